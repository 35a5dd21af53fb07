"""Slurm's part in a job on several nodes: one task on each, all ended when one of them is."""

import os
from collections.abc import Mapping

# Variables that srun needs beside those of any job: its job, and where Slurm's configuration is if not in the usual
# place. Slurm's other variables would change the step.
FOR_SRUN = ("SLURM_JOB_ID", "SLURM_CLUSTER_NAME", "SLURM_CONF")


def srun_environment(source: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Slurm's variables that srun needs."""
    return {name: source[name] for name in FOR_SRUN if name in source}


def srun_command(command: list[str], nodes: int, cpus: int, gpus: int) -> list[str]:
    """Command that runs `command` once on each node of this process's job.

    Parameters
    ----------
    cpus, gpus
        Of each node.
    """
    gres = [f"--gres=gpu:{gpus}"] if gpus else []
    return [
        "srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", f"--cpus-per-task={cpus}", *gres,
        "--kill-on-bad-exit=1", "--input=none", "--unbuffered", *command,
    ]  # fmt: skip
