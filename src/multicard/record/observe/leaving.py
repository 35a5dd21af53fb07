"""How a rank leaves its record, and ends its script: in order, early, or by an error."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from multiprocessing import parent_process
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from multicard.core.errors import UserError
from multicard.core.files import write_csv, write_json
from multicard.core.layout import EPOCH_COLUMNS, EPOCHS, PROGRESS, STEPS, rank_file
from multicard.core.reasons import LONGEST_MESSAGE, Reason
from multicard.core.text import counted
from multicard.record import environment, visible
from multicard.record.binding import bound
from multicard.record.capture import RankLeft
from multicard.record.memory_snapshot import HISTORY
from multicard.record.observe.ablation import NotLeftOut, loader_alone, not_left_out
from multicard.record.observe.batches import used_by_step
from multicard.record.observe.process import after_limit, leave_now
from multicard.record.observe.ranks import RANKS, claim_rank, is_outermost, rank_of_process, told
from multicard.record.observe.recording import Recording
from multicard.record.out_of_memory import GpuMemory, fullest_gpu, is_out_of_memory, speaks_of_memory, without_advice
from multicard.record.recorder import Diverged

KNOWN = (Diverged, UserError)  # errors whose message is enough, without their type


def leave_in_order(recording: Recording) -> NoReturn:
    """Leave the record of a rank that has made all its steps, and ask the script to end."""
    recording.settle()
    _write(recording, _ended_in_order(recording))
    if recording.barrier is not None:
        with contextlib.suppress(Exception):  # the store may be gone already with the rank that had it
            recording.barrier.wait()
    after_limit(lambda: leave_now(0))
    raise SystemExit(0)


def _ended_in_order(recording: Recording) -> dict[str, Any]:
    """Outcome of a rank whose measured steps are complete."""
    if part := not_left_out(recording.stated, recording.observer.replay, recording.exchanged):
        return _ended("failed", Reason("not_ablated", rank=recording.rank, **part))
    return _ended("completed")


def leave_early(recording: Recording, error: BaseException | None) -> None:
    """Leave the record of a rank that ends before it has made all its steps, because of an error or by itself.

    One that ends by itself, or because another one did so, has completed if its measured steps are: without a trace.
    """
    if recording.observer.graphed is not None:
        error = recording.observer.graphed.explained(error)
    ends_by_itself = error is None or isinstance(error, RankLeft)
    if recording.has_measured and ends_by_itself:
        ended = _ended_in_order(recording) | {"ended_early": True}
        recording.capture.problem = recording.capture.problem or _why_no_trace(recording)
        recording.abandon_window()
        why = f"no trace of rank {recording.rank}: {recording.capture.problem}"
        print(f"{PROGRESS}  {why}", file=sys.stderr, flush=True)
    elif isinstance(error, RankLeft):
        ended = _ended("failed", Reason("steps_disagree", rank=recording.rank, step=recording.steps + 1))
    elif error is not None:
        ended = describe_failure(error, recording.rank)
    else:  # the first update ended no step
        found, needed = recording.steps + 1, recording.plan.measured_end + 1
        ended = _ended("failed", Reason("too_few_steps", rank=recording.rank, steps=found, needed_steps=needed))
    # A GPU may wait for ever for a rank that will not come.
    write_json(recording.path, {**ended, **facts_of_process(recording.rank)})

    def leave_others() -> NoReturn:
        try:
            _tell_others(recording)
        finally:
            leave_now(0 if error is None else 1)

    timer = after_limit(leave_others)
    with contextlib.suppress(Exception):  # a GPU that failed gives no times
        recording.settle()
    timer.cancel()
    _write(recording, ended)
    _tell_others(recording)


def _why_no_trace(recording: Recording) -> str:
    """Why a rank that ended by itself after its measured steps has no trace, and what would give it one."""
    found, needed = counted(recording.steps + 1, "step"), recording.plan.steps + 1
    why = f"the script ended after {found}, and a trace needs {needed}"
    if ahead := recording.pace.ahead:
        why += f" since its loader reads {counted(ahead, 'batch')} ahead"
    return f"{why}; train longer{', with fewer workers or a smaller prefetch_factor' if ahead else ''}"


def _tell_others(recording: Recording) -> None:
    if recording.barrier is not None:
        with contextlib.suppress(Exception):
            recording.barrier.leave()


def _write(recording: Recording, ended: Mapping[str, Any]) -> None:
    recording.timer.cancel()
    observer, loaders = recording.observer, _count_contents(recording)
    recording.recorder.write(recording.scratch / rank_file(STEPS, recording.rank))
    if recording.epochs:
        write_csv(recording.scratch / rank_file(EPOCHS, recording.rank), EPOCH_COLUMNS, recording.epochs)
    record = {
        **ended,
        **facts_of_process(recording.rank),
        "gpus": visible.identities(recording.devices),
        "binding": bound(),
        "intraop_threads": torch.get_num_threads(),
        "steps_per_pass": recording.pace.pass_steps,
        "profiled_window": recording.plan.profiled and recording.plan.profiled._asdict(),
        "windows": recording.recorder.windows,
        "operations": recording.recorder.operations,
        "trace_problem": recording.capture.problem,
        "observed": {
            "optimizers": sorted(observer.optimizers),
            "steps_by": observer.steps_by,
            "loaders": loaders,
            "exchanged": recording.exchanged,
            **loader_alone(observer.replay, recording.pace.batches_per_step),
        },
    }
    write_json(recording.path, record)


def _count_contents(recording: Recording) -> list[dict[str, Any]]:
    """Give each step what is in the batches that it used; return what the loaders of the steps are."""
    loaders: list[dict[str, Any]] = []
    for each in recording.observer.passes:
        recorded = any(0 < step <= recording.steps for step, _ in each.batches)
        if recorded and each.loader.description not in loaders:
            loaders.append(each.loader.description)
    if recording.counts_itself:
        return loaders
    used = used_by_step(recording.observer.passes)
    has_tokens = any(each.tokens is not None for batches in used.values() for each in batches)
    for row in recording.recorder.rows:
        batches = used.get(min(row["step"], recording.replayed or row["step"]), [])
        row["samples"] = _sum(each.samples for each in batches) if loaders else None
        row["tokens"] = _sum(each.tokens for each in batches) if has_tokens else None
    return loaders


def _sum(counts: Iterable[int | None]) -> int | None:
    """Sum of all; None where one is not known."""
    known = list(counts)
    return None if None in known else sum(known)


def _ended(outcome: str, reason: Reason | None = None) -> dict[str, Any]:
    return {"outcome": outcome, "reason": reason and reason.record()}


def facts_of_process(rank: int) -> dict[str, Any]:
    """What rank.json says of every process."""
    return {
        "pid": os.getpid(),
        "rank": rank,
        "host": environment.host(),
        "hardware": environment.hardware(),
        "versions": environment.versions(),
    }


def write_failure(error: BaseException, note_process: Callable[..., None], job: dict[str, Any]) -> None:
    """Leave word of an error before the first update: in rank.json of a rank, else in process.json.

    A process without a rank may be a launcher, whose error only says that a rank had one. A process that a rank started
    inherits its number, and may fail without the rank doing so.
    """
    stated = job["observe"]
    is_helper = stated["is_user_program"] and parent_process() is not None
    is_script = not is_helper and stated["ranks"] == 1 and not _names_of_program().isdisjoint(stated["program"])
    is_rank = is_script or dist.is_initialized() or told(RANKS) is not None
    rank = rank_of_process() if is_rank else None
    ended = describe_failure(error, rank)
    note_process(error=ended)
    if rank is not None and is_outermost(job) and claim_rank(job):
        write_json(Path(job["scratch"]) / rank_file("rank.json", rank), {**ended, **facts_of_process(rank)})


def _names_of_program() -> set[str]:
    """File that this process runs, and its module if Python was told one (-m)."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return {Path(sys.argv[0]).name} | ({spec.name.removesuffix(".__main__")} if spec else set())


def describe_failure(error: BaseException, rank: int | None) -> dict[str, Any]:
    """`outcome` and `reason` of a rank that an error ends, while its traceback holds what was allocated."""
    memory = fullest_gpu()
    if is_out_of_memory(error, memory):
        held = HISTORY.held(error, memory)
        return _ended("out_of_memory", Reason("out_of_memory", rank, message=_message(error, memory), held=held))
    if isinstance(error, Diverged):
        return _ended("diverged", Reason("diverged", rank=rank, loss=str(error.loss), step=error.step))
    if isinstance(error, NotLeftOut):
        return _ended("failed", Reason("not_ablated", rank=rank, part=error.part, message=error.why))
    return _ended("failed", Reason("error", rank=rank, message=_message(error, memory)))


def _message(error: BaseException, memory: GpuMemory | None = None) -> str:
    """One line of an error; of one about memory with its numbers, else with those of the fullest GPU."""
    text = without_advice(" ".join(str(error).split()))
    has_numbers = isinstance(error, torch.cuda.OutOfMemoryError)
    if len(text) > LONGEST_MESSAGE and not has_numbers:
        # The end of a worker's traceback has the error, its beginning the place.
        half = LONGEST_MESSAGE // 2
        text = f"{text[:half].rpartition(' ')[0] or text[:half]} … {text[-half:].partition(' ')[2] or text[-half:]}"
    if memory is not None and not has_numbers and speaks_of_memory(error):
        text += f"; {memory.describe()}"
    return text if isinstance(error, KNOWN) else f"{type(error).__name__}: {text}"
