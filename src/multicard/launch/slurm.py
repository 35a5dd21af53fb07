"""Slurm's part in a job on several nodes: tasks on each, all ended when one of them is."""

import os
from collections.abc import Mapping

# Variables that srun needs beside those of any job: its job, and where Slurm's configuration is if not in the usual
# place. Slurm's other variables would change the step.
FOR_SRUN = ("SLURM_JOB_ID", "SLURM_CLUSTER_NAME", "SLURM_CONF")


def srun_environment(source: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Slurm's variables that srun needs."""
    return {name: source[name] for name in FOR_SRUN if name in source}


def srun_command(command: list[str], nodes: int, cpus: int, gpus: int, tasks: int = 1) -> list[str]:
    """Command that runs `command` on each node of this process's job.

    Parameters
    ----------
    cpus, gpus
        Of each node.
    tasks
        How often on each node. Their numbers are those of the first node, then those of the next.
    """
    gres = [f"--gres=gpu:{gpus}"] if gpus else []
    return [
        "srun", f"--nodes={nodes}", f"--ntasks={nodes * tasks}", f"--ntasks-per-node={tasks}", "--distribution=block",
        f"--cpus-per-task={cpus // tasks}", *gres,
        "--kill-on-bad-exit=1", "--input=none", "--unbuffered", *command,
    ]  # fmt: skip
