"""Names of files in the results and in a run directory, and names of columns that several packages share."""

import re
import socket
from pathlib import Path
from typing import Literal, get_args

# A run's name in a table becomes a path: it must be a single name.
RUN_NAME = re.compile(r"[a-z0-9][A-Za-z0-9_.+-]*")
RUN = "run.json"
STEPS = "steps.csv"
EPOCHS = "epochs.csv"
LOG = "log.txt"
SAVED = "saved"
CHECKPOINT = "checkpoint.pt"
KEPT = ".outcome"  # folder of a second copy of the outcome
TRACE = "trace"
CAPTURED = "captured.json"
EXPORTED = "exported.json"
MEMORY_SNAPSHOT = "memory_snapshot.pickle"  # PyTorch writes it for its viewer; nothing here reads it
ACTIVITY = "activity"
ACTIVITY_INDEX = "tables.json"

# Activity tables of runs that questions about several runs need.
GATHERED_ACTIVITIES = (
    "cuda_api", "shares", "kernel_classes", "collectives", "memory_operations", "timeline", "launches", "stragglers",
    "message_sizes",
)  # fmt: skip
# Activity tables of a run that an archive holds.
ARCHIVED_TABLES = ("phases", *GATHERED_ACTIVITIES)
# Tables gathered from a scenario's runs, a Parquet file each; and their index: names, sizes and checksums of the
# gathered tables and of those that they were made from.
SCENARIO_TABLES = (*GATHERED_ACTIVITIES, "steps", "epochs", "runs_info")
SCENARIO_INDEX = "tables.json"
ANSWER = "answer.json"  # the answer that a scenario gives, in a sentence with its numbers

# Folders and files in the results.
LAUNCHES = "logs/launch_run"  # output of the launchers of runs
CLAIMS, CLAIM_TESTS = "claims.csv", "claims_tests.csv"  # verdicts on the papers' claims, and on their tests
RECOMMENDATIONS = "recommendations.md"
MACHINES = "machine"  # records of the machines' limits
SEARCHES = "search"  # tables of the searches
ANY_NODE = "cluster"  # replaces the host's name in a record of limits, for a node that the cluster chose

# Files in the scratch folder of a job, which goes when the job ends.
JOB = "job.json"
NODE = "node.json"  # written by each of several nodes
COPIED = "copied.json"  # written by each task of Slurm when its ranks' files have been copied, with how these ended
CPU_SAMPLES = "cpu_samples.csv"
PROCESS = "process.json"  # written by each observed Python process of a script
MADE = "made"  # written by each rank: the number of steps made so far, as a native 64-bit integer

GPU_SAMPLES = "gpu_samples.csv"  # stays in the directory of a run on GPUs

PROGRESS = "multicard: "  # prefix of the log lines that are shown while a job runs

PHASES = ("data", "transfer", "forward", "backward", "optimizer")
Outcome = Literal["completed", "out_of_memory", "diverged", "timed_out", "failed"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
NOT_RUN = "not run"  # shown as the outcome of a run that cannot run here

REWARDS = ("reward_chosen", "reward_rejected", "reward_accuracy")  # columns of DPO
STEP_COLUMNS = (
    "rank", "epoch", "step", "window", "start_s", "duration_s", *(f"{phase}_s" for phase in PHASES),
    "evaluation_s", "samples", "tokens", "padded_tokens", "loss", *REWARDS, "peak_memory_bytes", "peak_reserved_bytes",
)  # fmt: skip
EPOCH_COLUMNS = ("epoch", "train_loss", "test_loss", "test_accuracy", "epoch_time_s")


def node_file(name: str, node: int) -> str:
    """Return the name of one node's part of the file `name`, with the same suffix.

    >>> node_file("report.nsys-rep", 1)
    'report-node1.nsys-rep'
    """
    stem, dot, suffix = name.partition(".")
    return f"{stem}-node{node}{dot}{suffix}"


def node_files(name: str, nodes: int) -> list[str]:
    """Return the names of all nodes' parts of the file `name`; that itself where there is one node."""
    return [name] if nodes == 1 else [node_file(name, node) for node in range(nodes)]


def rank_file(name: str, rank: int) -> str:
    """Return the name of one rank's part of the file `name`, in the scratch folder."""
    return f"{name}.rank{rank}"


def machine_file(results: Path, device: str, host: str | None = None) -> Path:
    """Return the path of the record of a machine's limits; `device`: cpu or cuda, `host`: by default this machine."""
    return results / MACHINES / f"{host or machine_name()}-{device}.json"


def machine_name() -> str:
    """Return the host name of this machine, as a file name."""
    return re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())


def machine_records(results: Path) -> list[Path]:
    """Return the records of limits in the results, of all machines."""
    return sorted((results / MACHINES).glob("*.json"))


def search_tables(results: Path) -> list[Path]:
    """Return the tables of the searches in the results, one for each scenario that was searched."""
    return sorted((results / SEARCHES).glob("*.csv"))
