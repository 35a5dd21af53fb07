"""What a run asks of a cluster, from its own parameters; all amounts are those of one node, as Slurm counts them."""

import math
from pathlib import Path
from typing import Any

from multicard.experiment.cluster import Cluster
from multicard.experiment.config import Experiment
from multicard.experiment.runs import Run
from multicard.experiment.workload import WORKLOADS

# What a job takes beside the run in it, which has a limit of its own: Snakemake starts twice, and traces are written.
AROUND_MIN = 10

# Attempts of a lost job that do its work. A run's next one (`retries: 2` in profiles/slurm) only leaves an outcome.
ATTEMPTS = 2

# Rough, and meant to be too much rather than too little: Slurm ends a job that exceeds what it asked for.
PROCESS_MB = {"cpu": 1000, "cuda": 4000}  # of a training process: the libraries, and on a GPU what its driver takes
WORKER_MB = 500  # of a process that loads data
AROUND_MB = 2000  # Snakemake, the launcher, the profiler
HEADROOM = 1.5


def request(run: Run, experiment: Experiment, whole_memory: bool = True) -> dict[str, Any]:
    """Resources of Snakemake's plugin for Slurm beside memory and time; what is not asked for is None.

    On one node GPUs are counted for the job (`gpu`), on several for each node (`gres`): else Slurm could share them
    out unevenly. A job on several nodes is one that starts its processes itself (`mpi`), and that outlives the loss of
    one of them, to write down what happened.

    `whole_memory`: whether a run that has its nodes to itself gets all of their memory, whatever its estimate.
    """
    p = run.parameters
    several, gpus = p.nodes > 1, p.devices_per_node if p.device == "cuda" else None
    # Jobs for whole nodes let the small steps after finished runs go first, so that figures appear before the last run.
    flags = ["--exclusive", "--nice=100"] if experiment.timing == "exclusive" else []
    # All memory of the nodes. The plugin refuses the plain option, which the shell makes of this one.
    flags += ["--mem''=0"] if flags and whole_memory else []
    flags += ["--no-kill"] if several else []
    return {
        "nodes": p.nodes,
        "gpu": None if several else gpus,
        "gres": f"gpu:{gpus}" if several and gpus else None,
        "mpi": "srun" if several else None,
        "tasks": p.nodes if several else None,
        "tasks_per_gpu": 0 if several and gpus else None,  # the plugin would multiply `tasks` by the GPUs
        "slurm_extra": " ".join(flags) or None,
    }


REQUESTED = ("nodes", "gpu", "gres", "mpi", "tasks", "tasks_per_gpu", "slurm_extra")


def memory_mb(run: Run) -> int:
    """Megabytes of a node's own memory, not of its GPUs."""
    p = run.parameters
    rank = PROCESS_MB[p.device] + WORKLOADS[p.workload].resources(p, run.inputs).rank_memory_mb
    workers = math.ceil(p.loader_workers / p.nodes) * WORKER_MB
    return math.ceil((AROUND_MB + HEADROOM * (p.ranks_per_node * rank + workers)) / 100) * 100


def memory_of_attempt_mb(run: Run, attempt: int, experiment: Experiment) -> int:
    """Megabytes of a node for one of several attempts, the first of which is number 1.

    Twice as many for the second, since memory may be what the first one lacked, unless the run gets all memory of its
    nodes anyway. No more than a node has, where the cluster states it: Slurm would refuse the job.
    """
    shared = experiment.timing != "exclusive" and attempt <= ATTEMPTS
    return _of_attempt(memory_mb(run), attempt if shared else 1, experiment.cluster)


def _of_attempt(first_mb: int, attempt: int, cluster: Cluster | None) -> int:
    asked = first_mb * min(attempt, ATTEMPTS)
    if cluster is None or cluster.memory_per_node_gb is None:
        return asked
    return min(asked, int(cluster.memory_per_node_gb * 1000))


# Rules after the runs. Megabytes of memory per megabyte of a trace that is read, measured: 340 MB for 3 MB of PyTorch's
# compressed traces, 3.7 GB for a database of 5.8 GB (benchmarks/README.md), of which a report is smaller.
STEP_MINUTES, STEP_MB = 20, 1500
MEMORY_PER_TRACE = {".nsys-rep": 10, ".gz": 100}
TRACE_MB_PER_MIN = 10  # exported and read in a minute, on a slow file system


def _trace_sizes_mb(trace: Path | None) -> dict[str, float]:
    """Sizes of the traces in a folder by suffix; none before the run."""
    files = [path for path in trace.iterdir() if path.suffix in MEMORY_PER_TRACE] if trace and trace.is_dir() else []
    return {path.name: path.stat().st_size / 1e6 for path in files}


def step_memory_mb(attempt: int, cluster: Cluster | None, trace: Path | None = None) -> int:
    """Megabytes of a step, more for a trace that it reads and, as for a run, for each attempt."""
    reading = sum(MEMORY_PER_TRACE[Path(name).suffix] * size for name, size in _trace_sizes_mb(trace).items())
    return _of_attempt(STEP_MB + math.ceil(reading), attempt, cluster)


def step_minutes(attempt: int, trace: Path | None = None) -> int:
    """Minutes of a step, more for a trace that it reads and for each attempt."""
    reading = sum(_trace_sizes_mb(trace).values()) / TRACE_MB_PER_MIN
    return min(attempt, ATTEMPTS) * (STEP_MINUTES + math.ceil(reading))
