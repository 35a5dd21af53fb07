"""Jobs that Slurm has ended, and that Snakemake's plugin for Slurm would wait for without end."""

import inspect
from types import ModuleType
from typing import Any

from multicard.core.errors import UserError

ASKS = "query_job_status"  # the plugin's coroutine that gives the states of jobs by their ids


def count_lost_jobs_as_failed(plugin: ModuleType, requeued: bool) -> None:
    """Let the plugin take jobs that are lost as failed, so that they are submitted again or reported.

    The plugin (2.8.0) takes a PREEMPTED job for one that Slurm puts back into the queue, which Slurm does not where it
    was told so, or where preemption cancels. It compares whole states, but sacct names who cancelled a job: "CANCELLED
    by 1000". And when Slurm does not answer, it forgets the jobs that it asked about. So here the answers that it is
    given are put into words that it knows, and no answer is one that tells of no job: it asks again later.

    Parameters
    ----------
    plugin
        The module that `snakemake_executor_plugin_slurm` names.
    requeued
        Whether Slurm puts jobs back into the queue: then one that is preempted comes back.

    Raises
    ------
    UserError
        If the plugin asks Slurm in another way than is known here.
    """
    ask = getattr(plugin, ASKS, None)
    if not inspect.iscoroutinefunction(ask):
        raise UserError(
            f"{plugin.__name__}: found no coroutine {ASKS}, by which preempted jobs are told: expected version 2.8.0, "
            "which envs/requirements.lock names"
        )
    told: set[str] = set()

    async def states(command: str, logger: Any) -> tuple[dict[str, str], float]:
        found, took = await ask(command, logger)
        if found is None:
            return {}, 0.0
        found = {job: "CANCELLED" if state.startswith("CANCELLED") else state for job, state in found.items()}
        if not requeued:
            preempted = {job for job, state in found.items() if state == "PREEMPTED"}
            for job in sorted(preempted - told):
                logger.warning(f"Slurm job {job} was preempted and counts as cancelled")
            told.update(preempted)
            found |= dict.fromkeys(preempted, "CANCELLED")
        return found, took

    setattr(plugin, ASKS, states)
