"""Resources that runs, and the steps after them, request from Slurm; amounts are per node, as Slurm counts them."""

import math
from pathlib import Path

from multicard.experiment.cluster import Cluster
from multicard.experiment.config import Experiment
from multicard.experiment.runs import Run

# Minutes of a job beside the run in it, which has a limit of its own: Snakemake starts twice, and traces are written.
AROUND_MIN = 10

# Attempts of a lost job that do its work. A run's third one (`retries: 2` in profiles/slurm) only leaves an outcome.
ATTEMPTS = 2

# Rough, and rather too much than too little: Slurm ends a job that exceeds what it asked for.
PROCESS_MB = {"cpu": 1000, "cuda": 4000}  # a training process: the libraries, and on a GPU what its driver takes
WORKER_MB = 500  # a process that loads data
AROUND_MB = 2000  # Snakemake, the launcher, the profiler
HEADROOM = 1.5

# Steps after the runs, which read traces: their memory in MB per MB of a trace by suffix. Measured: 340 MB for
# compressed traces of PyTorch of 3 MB, 3.7 GB for a database of 5.8 GB (benchmarks/README.md), whose report is smaller.
MEMORY_PER_TRACE = {".nsys-rep": 10, ".gz": 100}
TRACE_MB_PER_MIN = 10  # exported and read, on a slow file system
STEP_MINUTES = 20
STEP_MB = 1500


def request(run: Run, experiment: Experiment, whole_memory: bool = True) -> dict[str, int | str | None]:
    """Return the resources of Snakemake's plugin for Slurm, `REQUESTED`, beside memory and time; None requests nothing.

    On one node GPUs are counted for the job (`gpu`), on several for each node (`gres`): else Slurm could share them
    out unevenly. A job on several nodes is one that starts its processes itself (`mpi`), and that outlives the loss of
    one of them, to write down what happened.

    `whole_memory`: whether a run that has its nodes to itself gets all of their memory, whatever its estimate.
    """
    p = run.parameters
    gpus = p.devices_per_node if p.device == "cuda" else None
    is_exclusive = experiment.timing == "exclusive"
    options = []
    if is_exclusive:
        # Jobs for whole nodes let the small steps after finished runs go first, so that figures appear before the last
        # run has ended.
        options += ["--exclusive", "--nice=100"]
    if is_exclusive and whole_memory:
        # All memory of the nodes. The plugin refuses the plain option, which the shell makes of this one.
        options.append("--mem''=0")
    several = p.nodes > 1
    if several:
        options.append("--no-kill")
    return {
        "nodes": p.nodes,
        "gpu": None if several else gpus,
        "gres": f"gpu:{gpus}" if several and gpus else None,
        "mpi": "srun" if several else None,
        "tasks": p.nodes if several else None,
        # The plugin would multiply `tasks` by the GPUs.
        "tasks_per_gpu": 0 if several and gpus else None,
        "slurm_extra": " ".join(options) or None,
    }


REQUESTED = ("nodes", "gpu", "gres", "mpi", "tasks", "tasks_per_gpu", "slurm_extra")


def memory_mb(run: Run) -> int:
    """Return the megabytes of a node's own memory, not of its GPUs, that a run needs; rounded up to hundreds."""
    p = run.parameters
    rank = PROCESS_MB[p.device] + run.workload.resources(p, run.inputs).rank_memory_mb
    workers = math.ceil(p.loader_workers / p.nodes) * WORKER_MB
    needed = AROUND_MB + HEADROOM * (p.ranks_per_node * rank + workers)
    return math.ceil(needed / 100) * 100


def memory_of_attempt_mb(run: Run, attempt: int, experiment: Experiment) -> int:
    """Return the megabytes of a node that an attempt of a run requests; the first attempt is number 1.

    Twice as many for the second, since memory may be what the first one lacked, unless the run gets all memory of its
    nodes anyway. No more than a node has, where the cluster states it: Slurm would refuse the job.
    """
    grows = experiment.timing != "exclusive" and attempt <= ATTEMPTS
    return _memory_of_attempt(memory_mb(run), attempt if grows else 1, experiment.cluster)


def _memory_of_attempt(first_mb: int, attempt: int, cluster: Cluster | None) -> int:
    requested = first_mb * min(attempt, ATTEMPTS)
    if cluster is None or cluster.memory_per_node_gb is None:
        return requested
    return min(requested, int(cluster.memory_per_node_gb * 1000))


def step_memory_mb(attempt: int, cluster: Cluster | None, trace: Path | None = None) -> int:
    """Return the megabytes of a step after the runs: more for a trace that it reads and, as for a run, per attempt."""
    reading = sum(MEMORY_PER_TRACE[file.suffix] * _size_mb(file) for file in _trace_files(trace))
    return _memory_of_attempt(STEP_MB + math.ceil(reading), attempt, cluster)


def step_minutes(attempt: int, trace: Path | None = None) -> int:
    """Return the minutes of a step after the runs: more for a trace that it reads, and per attempt."""
    reading = sum(_size_mb(file) for file in _trace_files(trace)) / TRACE_MB_PER_MIN
    return min(attempt, ATTEMPTS) * (STEP_MINUTES + math.ceil(reading))


def _trace_files(folder: Path | None) -> list[Path]:
    """Return the trace files in a folder; none before the run, when there is no folder."""
    if folder is None or not folder.is_dir():
        return []
    return [file for file in folder.iterdir() if file.suffix in MEMORY_PER_TRACE]


def _size_mb(file: Path) -> float:
    return file.stat().st_size / 1e6
