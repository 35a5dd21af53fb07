"""Why a run did not complete: recorded as facts, and worded only where it is shown."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from multicard.core.secrets import without_secrets
from multicard.core.text import counted, printable
from multicard.core.units import BYTES, SECONDS, with_unit

LONGEST_MESSAGE = 300  # characters that a reason quotes

# Text of each code; a field that a reason does not have shows as "?".
WORDINGS = {
    "out_of_memory": "{message}",
    "diverged": "the loss is {loss} at step {step}",
    "timed_out": "exceeded its time limit of {limit_min} min",
    "error": "{message}",  # of a rank
    "killed": "killed by {signal}",
    "exited": "exit code {exit_code}",  # of a rank, or of the launcher where no rank reported an error
    "node_lost": "{node} was lost (Slurm: node failure)",
    "profiler_failed": "the profiler failed: {message}; start again, or use another one (`profiler`)",
    "wrong_gpus": "its {devices} ranks shared GPUs (distinct: {gpus}), so this is no measurement of {devices}; see "
    "`gpus` of the ranks in run.json, and `nvidia-smi -L`",
    "cannot_run": "cannot run on {node}: {message}",
    "job_lost": "its Slurm jobs ended before it had an outcome (memory, time limit, scancel or a lost node)",
    "not_ablated": "cannot go without {part}: {message}",
    # Of scripts.
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
HOLDERS = {"fragments": "reserved but unallocated", "outside_pytorch": "CUDA and other processes"}
HINTS = {"SIGKILL": ", as Linux does when memory runs out"}


@dataclass(frozen=True)
class Reason:
    """Why a run did not complete, as run.json has it, without the fields that are None or empty."""

    code: str  # one of `WORDINGS`
    rank: int | None = None  # where it happened
    node: str | None = None  # likewise, of a job on several
    signal: str | None = None
    exit_code: int | None = None
    loss: str | None = None
    step: int | None = None
    time_limit_s: float | None = None
    unreported: list[dict[str, Any]] = field(default_factory=list)  # ranks that left no record, each with its node
    devices: int | None = None  # GPUs, or processes on CPUs, that the job was to have
    gpus: int | None = None  # distinct ones that it had
    ranks: int | None = None  # processes that trained
    steps: int | None = None  # that a script made, as far as that was known when it ended
    needed_steps: int | None = None  # that its windows need
    measured_steps: int | None = None  # that all ranks have made nevertheless
    step_s: float | None = None  # the time of one of these
    part: str | None = None  # that an ablated run was to go without
    message: str | None = None  # what a program printed, which may be anything
    held: dict[str, Any] | None = None  # of a GPU whose memory ran out: see `multicard.record.memory_held.sum_up`

    def record(self) -> dict[str, Any]:
        """For JSON, without what looks like a secret in the message: it goes into tables and reports."""
        facts = {name: value for name, value in asdict(self).items() if value not in (None, [])}
        return facts | ({"message": without_secrets(self.message)} if self.message else {})


def describe_reason(reason: Mapping[str, Any] | str | None) -> str | None:
    """Word the reason of a run.json in a line that may be shown; one from before reasons had fields is a text already.

    >>> describe_reason({"code": "killed", "rank": 1, "node": "n2", "signal": "SIGSEGV"})
    'rank 1 on n2: killed by SIGSEGV'
    >>> describe_reason({"code": "timed_out", "time_limit_s": 480.0, "measured_steps": 8, "step_s": 13.6})
    'exceeded its time limit of 8 min; its 8 measured steps took 13.6 s each'
    """
    if reason is None or isinstance(reason, str):
        return reason and printable(reason)
    fields, code = defaultdict(lambda: "?", reason), str(reason.get("code", "unknown"))
    if reason.get("time_limit_s") is not None:
        fields["limit_min"] = f"{reason['time_limit_s'] / 60:g}"
    text = _held(fields) if reason.get("held") else WORDINGS.get(code, code.replace("_", " ")).format_map(fields)
    text += HINTS.get(reason.get("signal", ""), "")
    text += f": {reason['message']}" if code in ("exited", "timed_out") and reason.get("message") else ""
    if "rank" in reason:
        text = f"rank {_place(reason)}: {text}"
    if reason.get("unreported"):
        text += f"; rank {', '.join(map(_place, reason['unreported']))} exited without reporting"
    if reason.get("measured_steps"):
        text += f"; its {counted(reason['measured_steps'], 'measured step')} took {_each(reason)}"
    return printable(text)


def _each(reason: Mapping[str, Any]) -> str:
    """Word the time of a measured step, of one or of each of several."""
    return with_unit(reason["step_s"], SECONDS) + (" each" if reason["measured_steps"] > 1 else "")


def _held(reason: Mapping[str, Any]) -> str:
    """Word what held the memory of a GPU, the most first, and what is free."""
    held = reason["held"]
    wanted = held.get("wanted_bytes")
    what = reason["message"] if wanted is None else f"no memory for {with_unit(wanted, BYTES)} more"
    parts = []
    for name, size in sorted(held["bytes"].items(), key=lambda each: (each[0] == "free", -each[1])):
        if size:
            most = held.get("most", {}).get(name, {})
            # An archive leaves out what the user named.
            at = f" ({with_unit(most['bytes'], BYTES)} of it {_holder(most)})" if most.get("where") else ""
            parts.append(f"{HOLDERS.get(name, name.replace('_', ' '))} {with_unit(size, BYTES)}{at}")
    see = f"; see {held['snapshot']}" if held.get("snapshot") else ""
    return f"{what}; GPU {held['gpu']} has {with_unit(held['total_bytes'], BYTES)}: {', '.join(parts)}{see}"


def _holder(most: Mapping[str, Any]) -> str:
    """Word the code behind most of a category: a line, or a class of modules."""
    if "modules" not in most:
        return f"at {most['where']}"
    return f"in forward of {most['where']}" + (f", {most['modules']} modules" if most["modules"] > 1 else "")


def _place(of: Mapping[str, Any]) -> str:
    return f"{of['rank']} on {of['node']}" if of.get("node") else str(of["rank"])
