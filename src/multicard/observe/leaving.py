"""Write the record of a rank that has steps, and end its script: in order, early, or by an error."""

import contextlib
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NoReturn

import torch

from multicard.core.files import write_csv, write_json
from multicard.core.layout import EPOCH_COLUMNS, EPOCHS, PROGRESS, STEPS, rank_file
from multicard.core.reasons import Reason
from multicard.core.text import counted
from multicard.core.values import JsonObject
from multicard.observe.ablation import Replay, slowest_alone, why_not_ablated
from multicard.observe.batches import checksums, used_by_step
from multicard.observe.failure import RankOutcome, describe_failure, facts_of_process
from multicard.observe.loaders import LoaderDescription, without_varying_length
from multicard.observe.process import after_limit, leave_now
from multicard.observe.record import visible
from multicard.observe.record.binding import bound
from multicard.observe.record.capture import RankLeft
from multicard.observe.recording import Recording


def leave_in_order(recording: Recording, replay: Replay | None) -> NoReturn:
    """Write the record of a rank that has made all its steps, wait for the other ranks, and ask the script to end.

    `replay`: None unless the run goes without loading. Raises `SystemExit`. A process that still runs `process.LIMIT_S`
    seconds later is ended.
    """
    recording.settle()
    _write(recording, _outcome_of_measured(recording, replay), replay)
    if recording.barrier is not None:
        with contextlib.suppress(Exception):  # the process of the rank that has the store may have ended already
            recording.barrier.wait()
    after_limit(lambda: leave_now(0))
    raise SystemExit(0)


def _outcome_of_measured(recording: Recording, replay: Replay | None) -> RankOutcome:
    """Return the outcome of a rank that has made all measured steps.

    It has failed if the measured steps had a part that the run was to go without.
    """
    reason = why_not_ablated(recording.observed_job, recording.rank, replay, recording.exchanged)
    return RankOutcome("completed") if reason is None else RankOutcome("failed", reason)


def leave_early(recording: Recording, error: BaseException | None, replay: Replay | None) -> None:
    """Write the record of a rank that ends before it has made all its steps, by `error`, or by itself (None)."""
    outcome = _outcome_of_early_end(recording, error, replay)
    # rank.json is first written without what the steps show: `settle` waits for the GPU, which may wait for ever for a
    # rank that has ended.
    write_json(recording.record_path, {**outcome.record(), **facts_of_process(recording.rank)})

    def release_and_exit() -> NoReturn:
        try:
            _release_others(recording)
        finally:
            leave_now(0 if error is None else 1)

    timer = after_limit(release_and_exit)  # called only if `settle` takes longer than `process.LIMIT_S` seconds
    with contextlib.suppress(Exception):  # a GPU that failed gives no times
        recording.settle()
    timer.cancel()
    _write(recording, outcome, replay)
    _release_others(recording)


def _outcome_of_early_end(recording: Recording, error: BaseException | None, replay: Replay | None) -> RankOutcome:
    """Return the outcome of a rank that has not made all its steps.

    A rank that ends by itself, or because another rank has left, counts as completed if it has made all measured steps.
    Only its trace is missing: its profiler is stopped, and the reason is printed and kept for rank.json.
    """
    rank = recording.rank
    ends_by_itself = error is None or isinstance(error, RankLeft)
    if recording.has_measured and ends_by_itself:
        outcome = replace(_outcome_of_measured(recording, replay), ended_early=True)
        recording.capture.problem = recording.capture.problem or _why_no_trace(recording)
        recording.abandon_window()
        print(f"{PROGRESS}  no trace of rank {rank}: {recording.capture.problem}", file=sys.stderr, flush=True)
        return outcome
    if isinstance(error, RankLeft):
        return RankOutcome("failed", Reason("steps_disagree", rank, step=recording.steps + 1))
    if error is not None:
        return describe_failure(error, rank)
    # The first update ended no step, but users count it as one.
    updates = recording.steps + 1
    needed = recording.plan.measured_end + 1
    return RankOutcome("failed", Reason("too_few_steps", rank, steps=updates, needed_steps=needed))


def _why_no_trace(recording: Recording) -> str:
    """Return why a rank that ended by itself after its measured steps has no trace, and what would give it one."""
    updates = counted(recording.steps + 1, "step")
    needed = recording.plan.steps + 1
    why = f"the script ended after {updates}, and a trace needs {needed}"
    if not recording.pace.ahead:
        return f"{why}; train longer"
    why += f" since its loader reads {counted(recording.pace.ahead, 'batch')} ahead"
    return f"{why}; train longer, with fewer workers or a smaller prefetch_factor"


def _release_others(recording: Recording) -> None:
    """Have ranks that wait for this one stop waiting; they get `RankLeft`."""
    if recording.barrier is not None:
        with contextlib.suppress(Exception):
            recording.barrier.leave()


def _write(recording: Recording, outcome: RankOutcome, replay: Replay | None) -> None:
    """Write steps.csv, epochs.csv (if the script logged values of epochs) and rank.json."""
    recording.timer.cancel()  # it would write steps.csv, too
    recording.sampler.stop()
    loaders = _loaders_of_steps(recording)
    _count_contents(recording, has_loaders=bool(loaders))
    recording.recorder.write(recording.scratch / rank_file(STEPS, recording.rank))
    epochs = recording.events.epochs()
    if epochs:
        write_csv(recording.scratch / rank_file(EPOCHS, recording.rank), EPOCH_COLUMNS, epochs)
    window = recording.plan.profiled
    operations = recording.recorder.operations
    observed: JsonObject = {
        "optimizers": sorted(recording.updates.optimizers),
        "steps_by": recording.updates.steps_by.value,
        "loaders": [{**loader._asdict(), "cpu_s": _cpu_s(loader, recording.loading_cpu_s)} for loader in loaders],
        "first_batches": checksums(recording.loop.passes),
        "exchanged": recording.exchanged,
        "host_work": recording.host_work.record(),
        "setup": recording.setup,
        **recording.stack_samples.record(),
    }
    alone = slowest_alone(replay)
    if alone is not None and recording.pace.batches_per_step:
        # Batches that a measured step used, on average, go with the speed of the slowest loader.
        observed["loader_alone"] = {**alone._asdict(), "batches_per_step": recording.pace.batches_per_step}
    record: JsonObject = {
        **outcome.record(),
        **facts_of_process(recording.rank),
        "gpus": visible.identities(recording.devices),
        "binding": bound()._asdict(),
        "intraop_threads": torch.get_num_threads(),
        "steps_per_pass": recording.pace.pass_steps,
        "profiled_window": None if window is None else window._asdict(),
        "windows": recording.recorder.windows,
        "operations": None if operations is None else operations.record(),
        "trace_problem": recording.capture.problem,
        "observed": observed,
    }
    write_json(recording.record_path, record)


def _loaders_of_steps(recording: Recording) -> list[LoaderDescription]:
    """Return the descriptions of the loaders from which recorded steps drew, without duplicates."""
    return without_varying_length(
        drawn.loader.description
        for drawn in recording.loop.passes
        if any(0 < step <= recording.steps for step, _ in drawn.batches)
    )


def _cpu_s(loader: LoaderDescription, cpu_s: Mapping[LoaderDescription, float]) -> float | None:
    """Return the CPU seconds of a loader, of all passes if these differ in length; None if they are not known."""
    has_length = loader.batches_in_pass is not None
    own = [
        seconds
        for described, seconds in cpu_s.items()
        if (described if has_length else described._replace(batches_in_pass=None)) == loader
    ]
    return sum(own) if own else None


def _count_contents(recording: Recording, has_loaders: bool) -> None:
    """Set samples and tokens of each step from the batches that it used, unless the script states its counts.

    Samples are None if no step drew from a loader, or if a batch of the step has unknown samples. Tokens are None if no
    batch of any step has known tokens, or if a batch of the step has unknown tokens.
    """
    if recording.events.counts_itself:
        return
    used = used_by_step(recording.loop.passes)
    has_tokens = any(contents.tokens is not None for batches in used.values() for contents in batches)
    for row in recording.recorder.rows:
        batches = used.get(row.number, [])
        row.counts = row.counts._replace(
            samples=_sum_if_known(contents.samples for contents in batches) if has_loaders else None,
            tokens=_sum_if_known(contents.tokens for contents in batches) if has_tokens else None,
        )


def _sum_if_known(counts: Iterable[int | None]) -> int | None:
    """Return the sum of all counts; None if one is None.

    >>> _sum_if_known([8, 4]), _sum_if_known([8, None]), _sum_if_known([])
    (12, None, 0)
    """
    total = 0
    for count in counts:
        if count is None:
            return None
        total += count
    return total
