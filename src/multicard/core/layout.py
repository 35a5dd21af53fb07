"""Names of files in the results and in a run directory, and names of columns that several packages share."""

import re
import socket
from pathlib import Path
from typing import Literal, get_args

# The form of a run's name. Names in tables become parts of paths, so they must not contain a slash or begin with a dot.
RUN_NAME = re.compile(r"[a-z0-9][A-Za-z0-9_.+-]*")
RUN = "run.json"
STEPS = "steps.csv"
EPOCHS = "epochs.csv"
LOG = "log.txt"
SAVED = "saved"
CHECKPOINT = "checkpoint.pt"
KEPT = ".outcome"  # folder with a second copy of the files that state the run's outcome
TRACE = "trace"
CAPTURED = "captured.json"
EXPORTED = "exported.json"
MEMORY_SNAPSHOT = "memory_snapshot.pickle"  # PyTorch writes it for its viewer; nothing here reads it
ACTIVITY = "activity"
ACTIVITY_INDEX = "tables.json"

# Activity tables that are joined over all runs of a scenario.
GATHERED_ACTIVITIES = (
    "cuda_api", "shares", "kernel_classes", "collectives", "memory_operations", "timeline", "launches", "stragglers",
    "message_sizes", "fp32_products",
)  # fmt: skip
# Activity tables of each run that an archive holds.
ARCHIVED_TABLES = ("phases", *GATHERED_ACTIVITIES)
# Tables joined over all runs of a scenario; each is a Parquet file. The index has names, sizes and checksums of these
# files and of the files that they were made from.
SCENARIO_TABLES = (
    *GATHERED_ACTIVITIES, "steps", "epochs", "host_work", "code_lines", "loaders", "training_setup", "runs_info",
)  # fmt: skip
SCENARIO_INDEX = "tables.json"
ANSWER = "answer.json"  # the answer to a scenario's question: a sentence, and its numbers

# Folders and files in the results.
LAUNCHES = "logs/launch_run"  # output of the launchers of runs
CLAIMS, CLAIM_TESTS = "claims.csv", "claims_tests.csv"  # verdicts on the papers' claims, and on their tests
RECOMMENDATIONS = "recommendations.md"
MACHINES = "machine"  # records of the machines' limits
SEARCHES = "search"  # tables of the searches
ADDED_REPEATS = "repeats.json"  # how many repeats were added to each scenario, until it was decided
ANY_NODE = "cluster"  # in the name of a record of limits, replaces the host's name if Slurm chose the node

# Files in the scratch folder of a job, which is removed when the job has ended.
JOB = "job.json"
NODE = "node.json"  # written by each node of a job on several nodes, with the name of the node
COPIED = "copied.json"  # written by each Slurm task once it has copied its ranks' files, with how the ranks ended
CPU_SAMPLES = "cpu_samples.csv"
PROCESS = "process.json"  # written by each observed Python process of a script
MADE = "made"  # written by each rank: the number of steps that it has made so far, as a native 64-bit integer

GPU_SAMPLES = "gpu_samples.csv"  # moved from the scratch folder to the run directory

PROGRESS = "multicard: "  # beginning of the lines about progress that are printed while a job runs

# Phases of a step, and the evaluation that it may have beside them.
PHASES = DATA, TRANSFER, FORWARD, BACKWARD, OPTIMIZER = ("data", "transfer", "forward", "backward", "optimizer")
EVALUATION = "evaluation"
BETWEEN_PASSES = "between passes"  # of samples of the stack that are in no step
Outcome = Literal["completed", "out_of_memory", "diverged", "timed_out", "failed"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
NOT_RUN = "not run"  # shown as the outcome of a run that cannot run here

REWARDS = ("reward_chosen", "reward_rejected", "reward_accuracy")  # columns that only DPO fills
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
    """Return the names of all nodes' parts of the file `name`; for a job on one node, `name` alone."""
    return [name] if nodes == 1 else [node_file(name, node) for node in range(nodes)]


def rank_file(name: str, rank: int) -> str:
    """Return the name of one rank's part of the file `name`, in the scratch folder."""
    return f"{name}.rank{rank}"


def machine_file(results: Path, device: str, host: str | None = None) -> Path:
    """Return the path of the record of a machine's limits.

    `device`: cpu or cuda. `host`: name of the machine; by default that of this machine.
    """
    return results / MACHINES / f"{host or machine_name()}-{device}.json"


def machine_name() -> str:
    """Return the host name of this machine, with "-" for characters that a file name should not have."""
    return re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())


def machine_records(results: Path) -> list[Path]:
    """Return the paths of the records of limits of all machines in the results."""
    return sorted((results / MACHINES).glob("*.json"))


def search_tables(results: Path) -> list[Path]:
    """Return the paths of the tables of searches in the results, one for each scenario that was searched."""
    return sorted((results / SEARCHES).glob("*.csv"))
