"""Slurm's launcher."""

import os
from collections.abc import Mapping
from typing import Any

from multicard.core.rendezvous import Rendezvous, env_variables
from multicard.core.secrets import is_secret
from multicard.launchers.interface import Launcher


class Srun(Launcher):
    """Starts a process for each device, as a task of a step of the Slurm job; it finds its rank in Slurm's variables.

    On several nodes multicard itself starts the step, with a task for each rank; each task then starts its rank.
    """

    name = "srun"
    description = "`srun` starts a task for each device, inside a job of Slurm."
    programs = ("srun",)
    # srun would read Slurm's variables as options, such as SLURM_NTASKS. It needs only these three, to find the job.
    withheld = r"SLURM_(?!(JOB_ID|CLUSTER_NAME|CONF)$).*"
    hidden_from_profilers = "Slurm starts the ranks outside of the process that it runs"

    def refusal(self, source: Mapping[str, str]) -> str | None:
        """Return why srun cannot be used outside of a Slurm job: it would submit a job of its own, to any node.

        None inside of a Slurm job.
        """
        if source.get("SLURM_JOB_ID"):
            return None
        return (
            "launcher: srun starts ranks inside a job of Slurm, and this is none; use salloc, or --write-only and then "
            "multicard run FILE with a --profile for Slurm"
        )

    def command(self, python: str, arguments: list[str], p: Any, rendezvous: Rendezvous | None) -> list[str]:
        """Return the command that runs the script as a step of the Slurm job.

        On several nodes, each rank's process is a task of a step already, and the command is the script alone.
        """
        if rendezvous:
            return [python, *arguments]
        gres = [f"--gres=gpu:{p.devices}"] if p.device == "cuda" else []
        cpus = p.cpus_per_node // p.ranks_per_node
        # Snakemake runs this process in a step that has all CPUs and GPUs of the job. With --overlap the new step may
        # use them, too.
        return [
            "srun", "--overlap", "--nodes=1", f"--ntasks={p.ranks}", f"--cpus-per-task={cpus}", *gres,
            "--kill-on-bad-exit=1", "--input=none", "--unbuffered", python, *arguments,
        ]  # fmt: skip

    def tasks_per_node(self, p: Any) -> int:
        """Return a task for each rank."""
        return p.ranks_per_node

    def environment(self, rendezvous: Rendezvous | None = None) -> dict[str, str]:
        """Return the address of the first rank, for PyTorch's `env://`; Slurm's variables give each rank its number.

        On several nodes the rank runs in a Slurm task of multicard, so Slurm's variables of this task are passed on.
        """
        if rendezvous is None:
            return env_variables()
        variables = env_variables(rendezvous)
        for name, value in os.environ.items():
            if name.startswith("SLURM") and not is_secret(name, value):
                variables[name] = value
        return variables


LAUNCHER = Srun()
