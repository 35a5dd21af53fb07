"""Why a run did not complete: recorded as facts, and worded only where it is shown."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Annotated, Any

from multicard.core.secrets import without_secrets
from multicard.core.sharing import HOST, ErrorText, Form, Words
from multicard.core.text import counted, printable
from multicard.core.units import BYTES, SECONDS, with_unit

LONGEST_MESSAGE = 300  # characters that a reason quotes

# Text of each code; a field that a reason does not have shows as "?".
WORDINGS = {
    "out_of_memory": "{message}",
    "diverged": "the loss is {loss} at step {step}",
    "timed_out": "exceeded its time limit of {limit_min} min",
    "error": "{message}",  # a rank reported it
    "killed": "killed by {signal}",
    "exited": "exit code {exit_code}",  # the rank's, or the launcher's where no rank reported an error
    "node_lost": "{node} was lost (Slurm: node failure)",
    "profiler_failed": "the profiler failed: {message}; start again, or use another one (`profiler`)",
    "wrong_gpus": "its {devices} ranks shared GPUs (distinct: {gpus}), so this is no measurement of {devices}; see "
    "`gpus` of the ranks in run.json, and `nvidia-smi -L`",
    "cannot_run": "cannot run on {node}: {message}",
    "job_lost": "its Slurm jobs ended before it had an outcome (memory, time limit, scancel or a lost node)",
    "not_ablated": "cannot go without {part}: {message}",
    # Only scripts end for these.
    "no_torch": "{message}; set the interpreter that your training uses (`python`, --python)",
    "no_steps": "no optimizer step was seen: {message}",
    "too_few_steps": "the script ended after {steps} of {needed_steps} steps that are needed; train longer, or "
    "lower `steps` or `warmup_steps` (--steps, --warmup)",
    "steps_disagree": "another rank ended before step {step}; every rank has to make the same number of steps",
    "hidden_ranks": "{ranks} of its processes trained, but `launcher` and `devices` ask for {devices}; let "
    "the script start that many ({{devices}} in its command), or use another `launcher` (`python`: one process, all "
    "GPUs)",
    "unused_gpus": "its process trained on {gpus} of {devices} GPUs; let the script use all that it sees, or use "
    "another `launcher`",
    "same_rank": "{ranks} processes claim this rank; let them form a process group, give each its own RANK"
    ", or use another `launcher`",
    "trained_apart": "its {ranks} ranks exchanged nothing in the measured steps, so each trained its own model; "
    "call torch.distributed.init_process_group and wrap the model in DistributedDataParallel",
    "trained_on_cpu": "its processes trained on CPUs although `device` is cuda; move the model to the GPU, or "
    "set `device: cpu`",
}
# Parts of a step, and combinations, that a run may go without.
PARTS = ("loader", "communication", "loader+communication", "host", "communication+host")
HOLDERS = {"fragments": "reserved but unallocated", "outside_pytorch": "CUDA and other processes"}
HINTS = {"SIGKILL": ", as Linux does when memory runs out"}


# The fields of a record are checked where it is read, by pydantic, which a user's training process need not have.
_STRICT = {"extra": "forbid", "strict": True}


@dataclass(frozen=True)
class UnreportedRank:
    """A rank that ended without leaving a record, and its node in a job on several."""

    rank: int
    node: Annotated[str | None, HOST] = None

    __pydantic_config__ = _STRICT


@dataclass(frozen=True)
class LargestUse:
    """The code behind most of a category of GPU memory."""

    bytes: int
    where: str | None = None  # a line such as "train.py:27", or the class of a module; an archive leaves it out
    modules: int | None = None  # live modules of that class; None of a line

    __pydantic_config__ = _STRICT


@dataclass(frozen=True)
class MemoryHeld:
    """What held the memory of a GPU when it ran out; made by `multicard.record.memory_held`."""

    gpu: int
    total_bytes: int
    bytes: Mapping[str, int]  # a number per category; these add up to the total
    wanted_bytes: int | None = None  # the allocation that failed
    most: Mapping[str, LargestUse] = field(default_factory=dict)  # per category, for some of them
    snapshot: str | None = None  # file name of PyTorch's snapshot

    __pydantic_config__ = _STRICT


@dataclass(frozen=True)
class Reason:
    """Why a run did not complete. In run.json it has no fields that are None or empty."""

    code: Annotated[str, Words(*WORDINGS, otherwise="unknown")]
    rank: int | None = None  # where it happened
    node: Annotated[str | None, HOST] = None  # where that rank ran, in a job on several
    signal: Annotated[str | None, Form(r"SIG[A-Z0-9+]{2,9}")] = None
    exit_code: int | None = None
    loss: Annotated[str | None, Form(r"[+-]?(?:nan|inf|[\d.]+(?:e[+-]?\d+)?)")] = None
    step: int | None = None
    time_limit_s: float | None = None
    unreported: tuple[UnreportedRank, ...] = ()
    devices: int | None = None  # GPUs, or processes on CPUs, that the job was to have
    gpus: int | None = None  # distinct GPUs that it had
    ranks: int | None = None  # processes that trained
    steps: int | None = None  # steps that a script made, as far as known when it ended
    needed_steps: int | None = None  # steps that its windows need
    measured_steps: int | None = None  # steps that all ranks made in the measured window nevertheless
    step_s: float | None = None  # time of one of these
    part: Annotated[str | None, Words(*PARTS)] = None  # what an ablated run was to go without
    message: Annotated[str | None, ErrorText()] = None  # what a program printed, which may be anything
    held: MemoryHeld | None = None  # what held the memory of a GPU that ran out of it

    __pydantic_config__ = _STRICT

    def record(self) -> dict[str, Any]:
        """Return the fields that are known, for JSON, without what looks like a secret in the message.

        The message goes into tables and reports.
        """
        facts = _without_empty(asdict(self))
        if self.message:
            facts["message"] = without_secrets(self.message)
        return facts


def _without_empty(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that are neither None nor empty, of nested mappings and lists of these too."""
    kept = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            value = _without_empty(value)
        elif isinstance(value, list | tuple):
            value = [_without_empty(entry) for entry in value]
        if value is not None and value != [] and value != {}:
            kept[name] = value
    return kept


def describe_reason(reason: Reason | None) -> str | None:
    """Return why a run did not complete as one line of text; None without a reason.

    >>> describe_reason(Reason("killed", rank=1, node="n2", signal="SIGSEGV"))
    'rank 1 on n2: killed by SIGSEGV'
    >>> describe_reason(Reason("timed_out", time_limit_s=480.0, measured_steps=8, step_s=13.6))
    'exceeded its time limit of 8 min; its 8 measured steps took 13.6 s each'
    """
    if reason is None:
        return None
    if reason.held is not None:
        text = _describe_memory(reason, reason.held)
    else:
        wording = WORDINGS.get(reason.code, reason.code.replace("_", " "))
        text = wording.format_map(_fields_in_words(reason))
    text += HINTS.get(reason.signal or "", "")
    if reason.code in ("exited", "timed_out") and reason.message:
        text += f": {reason.message}"
    if reason.rank is not None:
        text = f"rank {_rank_on_node(reason.rank, reason.node)}: {text}"
    if reason.unreported:
        silent = ", ".join(_rank_on_node(rank.rank, rank.node) for rank in reason.unreported)
        text += f"; rank {silent} exited without reporting"
    if reason.measured_steps and reason.step_s is not None:
        steps = counted(reason.measured_steps, "measured step")
        text += f"; its {steps} took {with_unit(reason.step_s, SECONDS)}{' each' if reason.measured_steps > 1 else ''}"
    return printable(text)


def _fields_in_words(reason: Reason) -> dict[str, Any]:
    """Return what the wordings name, "?" for a field that the reason does not have."""
    values = {entry.name: getattr(reason, entry.name) for entry in fields(reason)}
    words = {name: "?" if value is None else value for name, value in values.items()}
    words["limit_min"] = "?" if reason.time_limit_s is None else f"{reason.time_limit_s / 60:g}"
    return words


def _describe_memory(reason: Reason, held: MemoryHeld) -> str:
    """Return what held the memory of a GPU, the largest category first and free memory last."""
    if held.wanted_bytes is None:
        text = str(reason.message)
    else:
        text = f"no memory for {with_unit(held.wanted_bytes, BYTES)} more"
    by_size = sorted(held.bytes.items(), key=lambda entry: (entry[0] == "free", -entry[1]))
    parts = [_describe_use(category, size, held.most.get(category)) for category, size in by_size if size]
    snapshot = f"; see {held.snapshot}" if held.snapshot else ""
    return f"{text}; GPU {held.gpu} has {with_unit(held.total_bytes, BYTES)}: {', '.join(parts)}{snapshot}"


def _describe_use(category: str, size: int, largest: LargestUse | None) -> str:
    """Return the size of a category of memory, and the code that holds most of it where that is known."""
    text = f"{HOLDERS.get(category, category.replace('_', ' '))} {with_unit(size, BYTES)}"
    if largest is None or largest.where is None:
        return text
    if largest.modules is None:
        code = f"at {largest.where}"
    else:
        several = f", {largest.modules} modules" if largest.modules > 1 else ""
        code = f"in forward of {largest.where}{several}"
    return f"{text} ({with_unit(largest.bytes, BYTES)} of it {code})"


def _rank_on_node(rank: int, node: str | None) -> str:
    return f"{rank} on {node}" if node else str(rank)
