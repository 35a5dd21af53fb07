"""Names of the jobs that Snakemake's plugin for Slurm submits: those of their runs instead of one UUID for all."""

import importlib
import re
from collections.abc import Callable, Mapping
from typing import Any

from multicard.launch.slurm_watch import OF_RUN

PLUGIN = "snakemake_executor_plugin_slurm"
# The plugin queries its jobs by their common name; without the name it finds them by id among all jobs of the user.
QUERIES = {"query_job_status_squeue": " --me", "query_job_status_sacct": ""}


def name_jobs_after_runs() -> None:
    """Have the plugin of this process name jobs after their runs; a plugin that works otherwise is left alone."""
    plugin = importlib.import_module(PLUGIN)
    if not all(hasattr(plugin, name) for name in ("get_submit_command", *QUERIES)):
        return
    submit = plugin.get_submit_command

    def named(job: Any, params: Mapping[str, Any], *arguments: Any, **options: Any) -> str:
        return submit(job, {**params, "run_uuid": job_name(params["comment_str"])}, *arguments, **options)

    plugin.get_submit_command = named
    for name, user in QUERIES.items():
        setattr(plugin, name, _by_user(getattr(plugin, name), user))


def job_name(comment: str) -> str:
    """Name of a job by the plugin's comment: its run, else its rule or group.

    >>> job_name("rule_launch_run_wildcards_vision_r1"), job_name("group_trace_wildcards_x")
    ('vision_r1', 'trace_wildcards_x')
    """
    return comment.removeprefix(OF_RUN).removeprefix("rule_").removeprefix("group_")


def _by_user(query: Callable[[str], str], user: str) -> Callable[[str], str]:
    def asked(uuid: str) -> str:
        return re.sub(rf" --name[ =]{re.escape(uuid)}", user, query(uuid))

    return asked
