"""The reason why a run did not complete. Records hold it as a code and facts; text is made only where it is shown."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Annotated, Any

from multicard.core.secrets import without_secrets
from multicard.core.sharing import HOST, ErrorText, Form, Words
from multicard.core.text import counted, printable
from multicard.core.units import BYTES, SECONDS, with_unit
from multicard.core.values import JsonObject

LONGEST_MESSAGE = 300  # characters of a program's message that a reason quotes at most

# The text of each code. In braces are fields of the reason; "?" is shown for a field that is None.
WORDINGS = {
    "out_of_memory": "{message}",
    "diverged": "the loss is {loss} at step {step}",
    "timed_out": "exceeded its time limit of {limit_min} min",
    "error": "{message}",  # a rank reported this error
    "killed": "killed by {signal}",
    "exited": "exit code {exit_code}",  # of the rank, or of the launcher if no rank reported an error
    "node_lost": "{node} was lost (Slurm: node failure)",
    "profiler_failed": "the profiler failed: {message}; start again, or use another one (`profiler`)",
    "wrong_gpus": "its {devices} ranks shared GPUs (distinct: {gpus}), so this is no measurement of {devices}; see "
    "`gpus` of the ranks in run.json, and `nvidia-smi -L`",
    "cannot_run": "cannot run on {node}: {message}",
    "job_lost": "its Slurm jobs ended before it had an outcome (memory, time limit, scancel or a lost node)",
    "not_ablated": "cannot go without {part}: {message}",
    # Reasons that follow from whether the job trained, and how.
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
# Parts of a step, and combinations of them, that an ablated run may skip.
PARTS = ("loader", "communication", "loader+communication")
# Words for categories of GPU memory (`MemoryHeld.bytes`) whose names do not explain them.
HOLDERS = {"fragments": "reserved but unallocated", "outside_pytorch": "CUDA and other processes"}
# Words that follow the text of a reason with this signal.
HINTS = {"SIGKILL": ", as Linux does when memory runs out"}


# Options for pydantic, which checks the fields when a record is read. The classes below do not import pydantic, because
# it may be missing in a user's training process.
_STRICT = {"extra": "forbid", "strict": True}


@dataclass(frozen=True)
class UnreportedRank:
    """A rank that ended without leaving a report. `node`: its name in a job on several nodes, else None."""

    rank: int
    node: Annotated[str | None, HOST] = None

    __pydantic_config__ = _STRICT


@dataclass(frozen=True)
class LargestUse:
    """The code that holds more of a category of GPU memory than any other code does."""

    bytes: int  # memory of the category that this code holds
    where: str | None = None  # a line such as "train.py:27", or the class of a module; None in an archive
    modules: int | None = None  # number of modules of that class that exist; None if `where` is a line

    __pydantic_config__ = _STRICT


@dataclass(frozen=True)
class MemoryHeld:
    """What held the memory of a GPU when it ran out; made by `multicard.observe.record.memory_held`."""

    gpu: int
    total_bytes: int
    bytes: Mapping[str, int]  # bytes of each category, including "free"; their sum is `total_bytes`
    wanted_bytes: int | None = None  # size of the allocation that failed; None if it is not known
    most: Mapping[str, LargestUse] = field(default_factory=dict)  # for each category of which the largest use is known
    snapshot: str | None = None  # file name of PyTorch's memory snapshot; None if there is none

    __pydantic_config__ = _STRICT


@dataclass(frozen=True)
class Reason:
    """The reason why a run did not complete. A field is None if it is not known, or does not belong to the code.

    run.json leaves out fields that are None or empty.
    """

    code: Annotated[str, Words(*WORDINGS, otherwise="unknown")]
    rank: int | None = None  # the rank in which it happened
    node: Annotated[str | None, HOST] = None  # the node of that rank in a job on several nodes, or a node that failed
    signal: Annotated[str | None, Form(r"SIG[A-Z0-9+]{2,9}")] = None
    exit_code: int | None = None
    loss: Annotated[str | None, Form(r"[+-]?(?:nan|inf|[\d.]+(?:e[+-]?\d+)?)")] = None
    step: int | None = None  # the step of a diverged loss, or the first step that another rank did not make
    time_limit_s: float | None = None
    unreported: tuple[UnreportedRank, ...] = ()
    devices: int | None = None  # number of GPUs, or of processes on CPUs, that the job was to use
    gpus: int | None = None  # number of distinct GPUs that it used
    ranks: int | None = None  # number of processes that trained, or that claim the same rank
    steps: int | None = None  # number of steps that a script made
    needed_steps: int | None = None  # number of steps that a script has to make for all windows of a run
    measured_steps: int | None = None  # number of measured steps that all ranks made although the run did not complete
    step_s: float | None = None  # mean time of one of these steps
    part: Annotated[str | None, Words(*PARTS)] = None  # the part of a step that an ablated run was to skip
    message: Annotated[str | None, ErrorText()] = None  # text that a program printed; it may contain anything
    held: MemoryHeld | None = None  # what held the memory of a GPU that ran out of it

    __pydantic_config__ = _STRICT

    def record(self) -> JsonObject:
        """Return the fields that are not None or empty, for JSON.

        What looks like a secret is removed from the message, because the message goes into tables and reports.
        """
        facts = _without_empty(asdict(self))
        if self.message:
            facts["message"] = without_secrets(self.message)
        return facts


def _without_empty(values: Mapping[str, Any]) -> JsonObject:
    """Return the values that are neither None nor an empty mapping or list, after doing the same in nested mappings.

    Lists must hold mappings.
    """
    kept: JsonObject = {}
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


def _fields_in_words(reason: Reason) -> Mapping[str, object]:
    """Return the values for the names in braces in `WORDINGS`; "?" for a field that is None."""
    values = {entry.name: getattr(reason, entry.name) for entry in fields(reason)}
    words = {name: "?" if value is None else value for name, value in values.items()}
    words["limit_min"] = "?" if reason.time_limit_s is None else f"{reason.time_limit_s / 60:g}"
    return words


def _describe_memory(reason: Reason, held: MemoryHeld) -> str:
    """Return in words what held the memory of a GPU: the largest category first, and free memory last."""
    if held.wanted_bytes is None:
        text = str(reason.message)
    else:
        text = f"no memory for {with_unit(held.wanted_bytes, BYTES)} more"
    by_size = sorted(held.bytes.items(), key=lambda entry: (entry[0] == "free", -entry[1]))
    parts = [_describe_use(category, size, held.most.get(category)) for category, size in by_size if size]
    snapshot = f"; see {held.snapshot}" if held.snapshot else ""
    return f"{text}; GPU {held.gpu} has {with_unit(held.total_bytes, BYTES)}: {', '.join(parts)}{snapshot}"


def _describe_use(category: str, size: int, largest: LargestUse | None) -> str:
    """Return in words the size of a category of memory and, if it is known, the code that holds most of it."""
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
