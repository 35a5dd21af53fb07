"""What a run asks of a cluster, from its own parameters; all amounts are those of one node, as Slurm counts them."""

import math
from typing import Any

from multicard.experiment.cluster import Cluster
from multicard.experiment.config import Experiment
from multicard.experiment.parameters import JobParameters
from multicard.experiment.runs import Run
from multicard.experiment.workload import WORKLOADS

# What a job takes beside the run in it, which has a limit of its own: Snakemake starts twice, and traces are written.
AROUND_MIN = 10

# Rough, and meant to be too much rather than too little: Slurm ends a job that exceeds what it asked for.
PROCESS_MB = {"cpu": 1000, "cuda": 4000}  # of a training process: the libraries, and on a GPU what its driver takes
WORKER_MB = 500  # of a process that loads data
AROUND_MB = 2000  # Snakemake, the launcher, the profiler
HEADROOM = 1.5


def request(run: Run, experiment: Experiment) -> dict[str, Any]:
    """Resources of Snakemake's plugin for Slurm beside memory and time; what is not asked for is None.

    On one node cards are counted for the job (`gpu`), on several for each node (`gres`): else Slurm could share them
    out unevenly. A job on several nodes is one that starts its processes itself (`mpi`), and that outlives the loss of
    one of them, to write down what happened.
    """
    p = run.parameters
    several, cards = p.nodes > 1, p.devices_per_node if p.device == "cuda" else None
    flags = ["--exclusive"] if experiment.timing == "exclusive" else []
    flags += ["--no-kill"] if several else []
    return {
        "nodes": p.nodes,
        "gpu": None if several else cards,
        "gres": f"gpu:{cards}" if several and cards else None,
        "mpi": "srun" if several else None,
        "tasks": p.nodes if several else None,
        "tasks_per_gpu": 0 if several and cards else None,  # the plugin would multiply `tasks` by the cards
        "slurm_extra": " ".join(flags) or None,
    }


REQUESTED = ("nodes", "gpu", "gres", "mpi", "tasks", "tasks_per_gpu", "slurm_extra")


def cpus(p: JobParameters) -> int:
    """CPUs of a node: one for each thread and each loading process of its ranks."""
    return p.ranks_per_node * p.threads + math.ceil(p.loader_workers / p.nodes)


def memory_mb(run: Run) -> int:
    """Megabytes of a node's own memory, not of its cards."""
    p = run.parameters
    rank = PROCESS_MB[p.device] + WORKLOADS[p.workload].rank_memory_mb(p, run.inputs)
    workers = math.ceil(p.loader_workers / p.nodes) * WORKER_MB
    return math.ceil((AROUND_MB + HEADROOM * (p.ranks_per_node * rank + workers)) / 100) * 100


def memory_of_attempt_mb(run: Run, attempt: int, cluster: Cluster | None) -> int:
    """Megabytes of a node for one of several attempts, the first of which is number 1.

    More for each, since memory may be what the last one lacked; but it may have been preempted only, so no more than
    the cluster says that a node has, where it says so, and never less than the first asked for.
    """
    first = memory_mb(run)
    if cluster is None or cluster.memory_per_node_gb is None:
        return first * attempt
    return max(first, min(first * attempt, int(cluster.memory_per_node_gb * 1000)))
