"""How a rank leaves its record, and ends its script: in order, early, or by force."""

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from multicard.core.files import write_csv, write_json
from multicard.core.layout import EPOCH_COLUMNS, EPOCHS, STEPS, rank_file
from multicard.core.reasons import Reason
from multicard.record import visible
from multicard.record.binding import bound
from multicard.record.capture import RankLeft
from multicard.record.observe.ablation import loader_alone, not_left_out
from multicard.record.observe.batches import used_by_step
from multicard.record.observe.failure import describe_failure, facts_of_process
from multicard.record.observe.observer import Observer
from multicard.record.observe.process import after_limit, leave_now
from multicard.record.observe.recording import Recording


class Leaving:
    """The end of a recording."""

    def __init__(self, recording: Recording, observer: Observer):
        self._recording, self._observer = recording, observer
        self._path = recording.scratch / rank_file("rank.json", recording.rank)
        self._record: dict[str, Any] = {}

    def in_order(self) -> NoReturn:
        """Leave the record of a rank that has made all its steps, and ask the script to end."""
        recording = self._recording
        recording.settle(self._observer)
        if part := not_left_out(recording.stated, self._observer.replay, recording.exchanged):
            reason = Reason("not_ablated", rank=recording.rank, **part)
            self._write({"outcome": "failed", "reason": reason.record()})
        else:
            self._write({"outcome": "completed", "reason": None})
        if self._recording.barrier is not None:
            with contextlib.suppress(Exception):  # the store may be gone already with the rank that had it
                self._recording.barrier.wait()
        after_limit(self.by_force)
        raise SystemExit(0)

    def by_force(self) -> NoReturn:
        """End a script that was asked to end and goes on."""
        try:
            write_json(self._path, self._record | {"ignored_exit": True})
        finally:
            leave_now(0)

    def early(self, error: BaseException | None) -> None:
        """Leave the record of a rank that ends before it has made all its steps, because of an error or by itself."""
        recording = self._recording
        if self._observer.graphed is not None:
            error = self._observer.graphed.explained(error)
        if isinstance(error, RankLeft):
            reason = Reason("steps_disagree", rank=recording.rank, step=recording.steps + 1)
            ended = {"outcome": "failed", "reason": reason.record()}
        elif error is not None:
            ended = describe_failure(error, recording.rank)
        else:  # the first update ended no step
            found, needed = recording.steps + 1, recording.plan.steps + 1
            reason = Reason("too_few_steps", rank=recording.rank, steps=found, needed_steps=needed)
            ended = {"outcome": "failed", "reason": reason.record()}
        # A GPU may wait for ever for a rank that will not come.
        write_json(self._path, {**ended, **facts_of_process(recording.rank)})
        timer = after_limit(lambda: self._leave_others(0 if error is None else 1))
        with contextlib.suppress(Exception):  # a GPU that failed gives no times
            recording.settle(self._observer)
        timer.cancel()
        self._write(ended)
        self._tell_others()

    def _leave_others(self, code: int) -> NoReturn:
        try:
            self._tell_others()
        finally:
            leave_now(code)

    def _tell_others(self) -> None:
        if self._recording.barrier is not None:
            with contextlib.suppress(Exception):
                self._recording.barrier.leave()

    def _write(self, ended: Mapping[str, Any]) -> None:
        recording, observer = self._recording, self._observer
        loaders = self._count_contents()
        recording.recorder.write(recording.scratch / rank_file(STEPS, recording.rank))
        if recording.epochs:
            write_csv(recording.scratch / rank_file(EPOCHS, recording.rank), EPOCH_COLUMNS, recording.epochs)
        self._record = {
            **ended,
            **facts_of_process(recording.rank),
            "gpus": visible.identities(recording.devices),
            "binding": bound(),
            "steps_per_pass": recording.pace.pass_steps,
            "profiled_window": recording.plan.profiled and recording.plan.profiled._asdict(),
            "windows": recording.recorder.windows,
            "operations": recording.recorder.operations,
            "trace_problem": recording.capture.problem,
            "observed": {
                "optimizers": sorted(observer.optimizers),
                "loaders": loaders,
                "exchanged": recording.exchanged,
                **loader_alone(observer.replay, recording.pace.batches_per_step),
            },
            "ignored_exit": False,
        }
        write_json(self._path, self._record)

    def _count_contents(self) -> list[dict[str, Any]]:
        """Give each step what is in the batches that it used; return what the loaders of the steps are."""
        recording, observer = self._recording, self._observer
        loaders: list[dict[str, Any]] = []
        for each in observer.passes:
            recorded = any(0 < step <= recording.steps for step, _ in each.batches)
            if recorded and each.loader.description not in loaders:
                loaders.append(each.loader.description)
        if recording.counts_itself:
            return loaders
        used = used_by_step(observer.passes)
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
