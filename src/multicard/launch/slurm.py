"""Slurm's part in a job on several nodes: tasks on each, all ended when one of them is."""

# srun takes Slurm's variables for options, so it gets no others than those that say which job this is, and where
# Slurm's configuration is if not in the usual place. Its tasks get all of theirs from it.
NOT_FOR_SRUN = r"SLURM_(?!(JOB_ID|CLUSTER_NAME|CONF)$).*"


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
