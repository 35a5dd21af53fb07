"""The resources that runs, and the steps of the workflow after them, request from Slurm. Amounts are per node."""

import math
from pathlib import Path

from multicard.config.cluster import Cluster
from multicard.config.experiment import Experiment
from multicard.config.runs import Run

# Minutes that the job of a run requests in addition to the run's time limit. In this time Snakemake starts twice, and
# traces are written.
AROUND_MIN = 10

# Number of attempts at a job that do its work, because Slurm may lose a job. The third attempt at a run (`retries: 2`
# in profiles/slurm) only records an outcome.
ATTEMPTS = 2

# Rough estimates of memory. They are rather too high than too low, because Slurm ends a job that exceeds its request.
PROCESS_MB = {"cpu": 1000, "cuda": 4000}  # of a training process: its libraries, and on a GPU what the driver takes
WORKER_MB = 500  # of a process that loads data
AROUND_MB = 2000  # of Snakemake, the launcher and the profiler together
HEADROOM = 1.5  # factor of the estimate for training and loading processes

# Requests of the steps after the runs, which read traces.
# Megabytes of memory per megabyte of a trace, by the suffix of its file. Measured were 340 MB for compressed traces of
# PyTorch of 3 MB, and 3.7 GB for a database of 5.8 GB (benchmarks/README.md), whose report (.nsys-rep) is smaller.
MEMORY_PER_TRACE = {".nsys-rep": 10, ".gz": 100}
TRACE_MB_PER_MIN = 10  # megabytes of a trace that are exported and read in a minute, on a slow file system
STEP_MINUTES = 20  # of a step without a trace
STEP_MB = 1500  # of a step without a trace


def request(run: Run, experiment: Experiment, whole_memory: bool = True) -> dict[str, int | str | None]:
    """Return the resources `REQUESTED` of Snakemake's plugin for Slurm, without memory and time.

    A resource that is None is not requested.

    On one node, GPUs are requested for the job (`gpu`). On several nodes, they are requested per node (`gres`), because
    Slurm could otherwise distribute them unevenly. A job on several nodes starts its processes itself (`mpi`). It goes
    on when one of its nodes is lost (`--no-kill`), to record what happened.

    `whole_memory`: True if a run that has its nodes for itself gets all of their memory, whatever its estimate is.
    """
    p = run.parameters
    gpus = p.devices_per_node if p.device == "cuda" else None
    is_exclusive = experiment.timing == "exclusive"
    options = []
    if is_exclusive:
        # A run on whole nodes has a lower priority than the small steps after finished runs, so that figures appear
        # before the last run has ended.
        options += ["--exclusive", "--nice=100"]
    if is_exclusive and whole_memory:
        # Requests all memory of the nodes. The plugin refuses `--mem=0`. The quotes hide the option from the plugin,
        # and the shell removes them.
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
        # With 0, the plugin does not multiply `tasks` by the number of GPUs.
        "tasks_per_gpu": 0 if several and gpus else None,
        "slurm_extra": " ".join(options) or None,
    }


REQUESTED = ("nodes", "gpu", "gres", "mpi", "tasks", "tasks_per_gpu", "slurm_extra")


def memory_mb(run: Run) -> int:
    """Return the megabytes of host memory that a run needs on each node, rounded up to hundreds."""
    p = run.parameters
    rank = PROCESS_MB[p.device] + run.program.resources(p, run.inputs).rank_memory_mb
    workers = math.ceil(p.loader_workers / p.nodes) * WORKER_MB
    needed = AROUND_MB + HEADROOM * (p.ranks_per_node * rank + workers)
    return math.ceil(needed / 100) * 100


def memory_of_attempt_mb(run: Run, attempt: int, experiment: Experiment) -> int:
    """Return the megabytes of host memory that an attempt at a run requests on each node; the first attempt is 1.

    The second attempt requests twice as much, because the first may have failed for want of memory. It requests as much
    as the first if the run has its nodes for itself, and so gets all of their memory. So does the third, which only
    records an outcome. No attempt requests more than a node has, if the cluster states that, because Slurm would refuse
    the job.
    """
    grows = experiment.timing != "exclusive" and attempt <= ATTEMPTS
    return _memory_of_attempt(memory_mb(run), attempt if grows else 1, experiment.cluster)


def _memory_of_attempt(first_mb: int, attempt: int, cluster: Cluster | None) -> int:
    """Return `first_mb` for the first attempt and twice as much for later ones, but not more than a node has."""
    requested = first_mb * min(attempt, ATTEMPTS)
    if cluster is None or cluster.memory_per_node_gb is None:
        return requested
    return min(requested, int(cluster.memory_per_node_gb * 1000))


def step_memory_mb(attempt: int, cluster: Cluster | None, trace: Path | None = None) -> int:
    """Return the megabytes of memory that a step after the runs requests.

    The request grows with the sizes of the files in the folder `trace`, and doubles at the second attempt.
    """
    reading = sum(MEMORY_PER_TRACE[file.suffix] * _size_mb(file) for file in _trace_files(trace))
    return _memory_of_attempt(STEP_MB + math.ceil(reading), attempt, cluster)


def step_minutes(attempt: int, trace: Path | None = None) -> int:
    """Return the minutes that a step after the runs requests.

    The request grows with the sizes of the files in the folder `trace`, and doubles at the second attempt.
    """
    reading = sum(_size_mb(file) for file in _trace_files(trace)) / TRACE_MB_PER_MIN
    return min(attempt, ATTEMPTS) * (STEP_MINUTES + math.ceil(reading))


def _trace_files(folder: Path | None) -> list[Path]:
    """Return the trace files in a folder. The list is empty if the folder does not exist, as before the run."""
    if folder is None or not folder.is_dir():
        return []
    return [file for file in folder.iterdir() if file.suffix in MEMORY_PER_TRACE]


def _size_mb(file: Path) -> float:
    return file.stat().st_size / 1e6
