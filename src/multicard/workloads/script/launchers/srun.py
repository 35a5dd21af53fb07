"""Slurm's launcher."""

import os
from collections.abc import Mapping
from typing import Any

from multicard.core.rendezvous import Rendezvous, env_variables
from multicard.core.secrets import is_secret
from multicard.workloads.script.launcher import Launcher


class Srun(Launcher):
    """Starts a process for each device as tasks of a job step, which find their numbers in Slurm's variables.

    On several nodes multicard's own step has these tasks, and each starts its rank.
    """

    name = "srun"
    description = "`srun` starts a task for each device, inside a job of Slurm."
    programs = ("srun",)
    withheld = r"SLURM_(?!(JOB_ID|CLUSTER_NAME|CONF)$).*"
    hidden_from_profilers = "Slurm starts the ranks outside of the process that it runs"

    def refusal(self, source: Mapping[str, str]) -> str | None:
        """Return a reason outside of a job of Slurm, where srun would start one, on any node."""
        if source.get("SLURM_JOB_ID"):
            return None
        return (
            "launcher: srun starts ranks inside a job of Slurm, and this is none; use salloc, or --write-only and then "
            "multicard run FILE with a --profile for Slurm"
        )

    def command(self, python: str, arguments: list[str], p: Any, rendezvous: Rendezvous | None) -> list[str]:
        """Run the script as a step of the job; on several nodes this is a task of one already."""
        if rendezvous:
            return [python, *arguments]
        gres = [f"--gres=gpu:{p.devices}"] if p.device == "cuda" else []
        cpus = p.cpus_per_node // p.ranks_per_node
        # Snakemake runs this process as a step of its own, which has all of the job.
        return [
            "srun", "--overlap", "--nodes=1", f"--ntasks={p.ranks}", f"--cpus-per-task={cpus}", *gres,
            "--kill-on-bad-exit=1", "--input=none", "--unbuffered", python, *arguments,
        ]  # fmt: skip

    def tasks_per_node(self, p: Any) -> int:
        """Return a task for each rank."""
        return p.ranks_per_node

    def environment(self, rendezvous: Rendezvous | None = None) -> dict[str, str]:
        """Return the variables by which `env://` finds the first rank; a rank has its number from Slurm's.

        On several nodes, multicard's own task is the rank's, so that Slurm's variables are passed on.
        """
        if rendezvous is None:
            return env_variables()
        variables = env_variables(rendezvous)
        for name, value in os.environ.items():
            if name.startswith("SLURM") and not is_secret(name, value):
                variables[name] = value
        return variables


LAUNCHER = Srun()
