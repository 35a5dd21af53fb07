"""Slurm's launcher."""

from collections.abc import Mapping
from typing import Any

from multicard.core.rendezvous import Rendezvous, env_variables
from multicard.workloads.script.launcher import Launcher


class Srun(Launcher):
    """Starts a process for each device as tasks of a job step, which find their numbers in Slurm's variables."""

    name, order = "srun", 50
    description = "`srun` starts a task for each device, inside a job of Slurm."
    programs = ("srun",)
    several_nodes = False
    variables = ("SLURM_JOB_ID", "SLURM_CLUSTER_NAME", "SLURM_CONF")
    hidden_from_profilers = "Slurm starts the ranks outside of the process that it runs"

    def refusal(self, p: Any, program: str, source: Mapping[str, str]) -> str | None:
        """Outside of a job srun would ask for one, on any node."""
        if source.get("SLURM_JOB_ID"):
            return None
        return (
            "launcher: srun starts ranks inside a job of Slurm, and this is none; use salloc, or --write-only and then "
            "multicard run FILE with a --profile for Slurm"
        )

    def command(self, python: str, arguments: list[str], p: Any, rendezvous: Rendezvous | None) -> list[str]:
        """Run the script as a step of the job."""
        gres = [f"--gres=gpu:{p.devices}"] if p.device == "cuda" else []
        cpus = p.cpus_per_node // p.ranks_per_node
        # Snakemake runs this process as a step of its own, which has all of the job.
        return [
            "srun", "--overlap", "--nodes=1", f"--ntasks={p.ranks}", f"--cpus-per-task={cpus}", *gres,
            "--kill-on-bad-exit=1", "--input=none", "--unbuffered", python, *arguments,
        ]  # fmt: skip

    def environment(self) -> dict[str, str]:
        """Where `env://` looks for the first rank; the other variables scripts take from Slurm's."""
        return env_variables()


LAUNCHER = Srun()
