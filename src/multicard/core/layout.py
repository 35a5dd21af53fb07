"""Names of files in the results and in a run directory, and the vocabulary of columns."""

import re
import socket
from pathlib import Path

RUN_NAME = re.compile(r"[a-z0-9][A-Za-z0-9_.+-]*")  # a name in a table becomes a path: it must be one name
RUN = "run.json"
STEPS = "steps.csv"
EPOCHS = "epochs.csv"
LOG = "log.txt"
SAVED = "saved"
CHECKPOINT = "checkpoint.pt"
KEPT = ".outcome"  # folder with a second copy of the outcome
TRACE = "trace"
CAPTURED = "captured.json"
EXPORTED = "exported.json"
MEMORY_SNAPSHOT = "memory_snapshot.pickle"  # by PyTorch, for its viewer; nothing here reads it
ACTIVITY = "activity"
ACTIVITY_INDEX = "tables.json"

# Activity tables that a question about several runs needs.
GATHERED_ACTIVITIES = (
    "cuda_api", "shares", "kernel_classes", "collectives", "memory_operations", "timeline", "launches", "stragglers",
    "message_sizes",
)  # fmt: skip
ARCHIVED_TABLES = ("phases", *GATHERED_ACTIVITIES)  # what of a run's an archive holds
# What is gathered of a scenario's runs, a Parquet file each.
SCENARIO_TABLES = (*GATHERED_ACTIVITIES, "steps", "epochs", "runs_info")
SCENARIO_INDEX = "tables.json"  # names, sizes and checksums of these, and of the tables of runs
HEADLINE = "headline.json"  # what it found, in a sentence

LAUNCHES = "logs/launch_run"  # folder in the results of what the launchers of runs say
# What follows from all scenarios: verdicts on claims and on their tests; what to try.
CLAIMS, CLAIM_TESTS = "claims.csv", "claims_tests.csv"
RECOMMENDATIONS = "recommendations.md"

MACHINES = "machine"  # folder of the machines' limits in the results
ANY_NODE = "cluster"  # in the name of a record of limits: of a node that the cluster chose
SEARCHES = "search"  # folder of the searches in the results

JOB = "job.json"  # in the scratch folder only
NODE = "node.json"  # likewise, of each of several nodes
COPIED = "copied.json"  # likewise, of each task of Slurm: that what its ranks left has been copied, and how they ended
CPU_SAMPLES = "cpu_samples.csv"  # likewise
GPU_SAMPLES = "gpu_samples.csv"  # of a run on GPUs
PROCESS = "process.json"  # likewise, of each Python process of a script that is observed
MADE = "made"  # likewise, of each of its ranks: steps that it has made so far, as a native 64-bit integer

PROGRESS = "multicard: "  # prefix of the log lines that are shown while a job runs

PHASES = ("data", "transfer", "forward", "backward", "optimizer")
OUTCOMES = ("completed", "out_of_memory", "diverged", "timed_out", "failed")
NOT_RUN = "not run"  # of a run that cannot run here

REWARDS = ("reward_chosen", "reward_rejected", "reward_accuracy")  # of DPO
STEP_COLUMNS = (
    "rank", "epoch", "step", "window", "start_s", "duration_s", *(f"{phase}_s" for phase in PHASES),
    "evaluation_s", "samples", "tokens", "padded_tokens", "loss", *REWARDS, "peak_memory_bytes", "peak_reserved_bytes",
)  # fmt: skip
EPOCH_COLUMNS = ("epoch", "train_loss", "test_loss", "test_accuracy", "epoch_time_s")
# Keys of run.json that the first rank tells of all.
FROM_FIRST_RANK = (
    "host", "hardware", "versions", "steps_per_pass", "profiled_window",
)  # fmt: skip


def node_file(kind: str, node: int) -> str:
    """Name of the part that one of several nodes leaves, with the suffix of `kind`.

    >>> node_file("report.nsys-rep", 1)
    'report-node1.nsys-rep'
    """
    stem, dot, suffix = kind.partition(".")
    return f"{stem}-node{node}{dot}{suffix}"


def node_files(kind: str, nodes: int) -> list[str]:
    """Names of what each node of a job leaves: `kind` itself where there is one node."""
    return [kind] if nodes == 1 else [node_file(kind, node) for node in range(nodes)]


def rank_file(kind: str, rank: int) -> str:
    """Name of the part that one rank leaves in the scratch folder."""
    return f"{kind}.rank{rank}"


def machine_file(results: Path, device: str, host: str | None = None) -> Path:
    """Where the limits of a kind of device (cpu, cuda) of a machine, by default this one, are kept in the results."""
    return results / MACHINES / f"{host or machine_name()}-{device}.json"


def machine_name() -> str:
    """The host name of this machine, as a file name."""
    return re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname())


def machine_records(results: Path) -> list[Path]:
    """Records of limits in the results, of any machine."""
    return sorted((results / MACHINES).glob("*.json"))


def search_tables(results: Path) -> list[Path]:
    """Tables of the searches in the results, one for each scenario that was searched."""
    return sorted((results / SEARCHES).glob("*.csv"))
