"""Records the steps that the observer tells of, runs their windows, and ends the script in order."""

import contextlib
import json
import sys
import threading
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NoReturn

import torch

from multicard.core.files import write_json
from multicard.core.layout import MADE, PROGRESS, STEPS, rank_file
from multicard.core.reasons import Reason
from multicard.core.text import counted
from multicard.record import visible
from multicard.record.binding import bound
from multicard.record.capture import Capture, RankLeft
from multicard.record.clock import CudaClock
from multicard.record.compilation import limits_hit
from multicard.record.observe.batches import asks_ahead, used_by_step
from multicard.record.observe.exchange import Exchanges
from multicard.record.observe.failure import facts_of_process
from multicard.record.observe.lead import is_capturing
from multicard.record.observe.observer import Observer
from multicard.record.observe.phases import (
    BACKWARD,
    EVALUATION,
    FORWARD,
    LEFT,
    OPTIMIZER,
    PASSED,
    TESTED,
    TRANSFER,
    UNFED_BACKWARD,
    Event,
    phases_of,
)
from multicard.record.observe.plan import Pace, Plan, place
from multicard.record.observe.process import devices_of, frameworks, make_barrier, shared_number
from multicard.record.observe.ranks import rank_of_process
from multicard.record.observe.transfer import FirstCall, has_compiled
from multicard.record.others import OthersMeter
from multicard.record.profiled_window import ProfiledWindow
from multicard.record.rank import describe_failure
from multicard.record.recorder import COUNTED_STEP, Recorder
from multicard.record.tear_down import LIMIT_S, leave_now
from multicard.record.thread_time import ThreadTime


class Recording:
    """Of one rank, from its first update on.

    Phases follow each other without overlap: what lies inside an update but belongs to another phase, such as the
    passes of a closure, is of that one. `forward` is what lies before a backward pass since a batch, a backward pass or
    another optimizer's update; without a loader it is unknown. On a GPU the first part of it is `transfer`: until the
    script calls a module that has parameters, unless torch.compile is used or the batch is not the one computed on.

    Parameters
    ----------
    job
        Content of job.json.
    optimizer
        The lead one; None where the script marks its steps.
    """

    def __init__(self, job: dict[str, Any], optimizer: Any):
        self.stated, self.scratch = job["observe"], Path(job["scratch"])
        self.rank = rank_of_process()
        self.devices = devices_of(optimizer, self.stated)
        device = self.devices[0]
        self.barrier = make_barrier()
        self.capture = Capture(
            job["profiler"], self.scratch, self.rank, device, self.devices, self.barrier, forgiving=True
        )
        clock = CudaClock(self.devices, device) if device.type == "cuda" else None
        counted = min(COUNTED_STEP, self.stated["warmup_steps"]) if self.stated.get("count_operations") else None
        # The script may read the peaks of memory itself.
        self.recorder = Recorder(
            self.rank, device, self.capture, self.devices, clock, reset_peaks=False, counted_step=counted
        )
        self._mark = self.recorder.clock.mark
        self._on_gpu = device.type == "cuda"
        self.plan = Plan(self.stated)
        self.thread, self.exchanges = ThreadTime(), Exchanges()
        is_first = self.rank % self.stated["ranks_per_node"] == 0
        self.others = OthersMeter(job.get("launcher") if is_first else None)
        self.record: dict[str, Any] = {}
        self.steps = 0  # that have ended
        self._made = shared_number(self.scratch / rank_file(MADE, self.rank))  # the same, for who ends this process
        self.is_complete = False
        self._pace = Pace()
        self._between_passes = False
        self._step: Any = None
        self._start: Any = None  # mark of the end of the step before
        self._events: list[Event] = []  # of the step
        self._seen: list[tuple[Any, list[Event]]] = []  # steps, and their events, whose phases are not worked out
        self._arrival = FirstCall(lambda: self.note(FORWARD)) if self._on_gpu else None  # of a batch on the GPU
        self._window: AbstractContextManager[Any] | None = None
        self._ranges: list[AbstractContextManager[Any]] = []  # of the step, and of its phase
        self._is_within = True  # a pass: else one may end before the step begins, and a test may follow

    @property
    def is_measured(self) -> bool:
        """Whether all measured steps have ended."""
        return self.steps >= self.plan.measured_end

    # Phases.

    def note(self, event: str | None) -> None:
        """A phase begins, and the one before ends; or that one ends: `LEFT` or `PASSED`."""
        if self._arrival is not None:
            self._arrival.stop()
        if self._step is None or (self._on_gpu and is_capturing()):
            return
        mark = self._mark()
        self._events.append((event, mark))
        if not self._on_gpu:
            self.thread.note(mark)
        if self._window is not None:
            self._show(event)

    def note_batch(self) -> None:
        """A loader gave a batch: its transfer begins, or the forward pass does."""
        self._is_within = True
        if self._arrival is None or has_compiled():
            self.note(FORWARD)
        else:
            self.note(TRANSFER)
            self._arrival.wait()

    def note_closure(self) -> None:
        """An optimizer calls a closure: after its own work a forward pass may begin."""
        if self._events and self._events[-1][0] == OPTIMIZER:
            self.note(PASSED)

    def note_backward(self, is_fed: bool) -> None:
        """A backward pass begins; `is_fed`: whether a loader gave the step a batch."""
        if self._between_passes and self._step is not None and not (self._on_gpu and is_capturing()):
            self._resume_clock()  # an exhausted loader may have given the batch before
        self.note(BACKWARD if is_fed else UNFED_BACKWARD)

    @property
    def events(self) -> int:
        """Number of events of the step so far."""
        return len(self._events)

    def note_evaluation(self) -> None:
        """An evaluation begins, or goes on."""
        if not self._events or self._events[-1][0] != EVALUATION:
            self.note(EVALUATION)

    def note_after_evaluation(self, event: str | None) -> None:
        """An evaluation ends, if one is open."""
        if self._events and self._events[-1][0] == EVALUATION:
            self.note(event)

    def retract(self, number: int, before_pass: tuple[Any, int, list[Event], bool] | None) -> None:
        """Take the events of the step from that number on for an evaluation; `before_pass`: as `begin_pass` gave it."""
        if self._step is None or not (tested := self._events[number:]):
            return
        ended = [(TESTED, tested[-1][1])] if tested[-1][0] is LEFT else []  # else the pass was broken off
        self._events[number:] = [(EVALUATION, tested[0][1]), *ended]
        if before_pass is not None:
            self._step.start, self._step.epoch, events, is_between = before_pass
            self._events[:0] = events
            if is_between:
                self.end_pass()

    def _show(self, event: str | None) -> None:
        self._close_ranges(1)
        if event in (LEFT, PASSED, EVALUATION, TESTED) or not self._is_within:
            return
        self._show_step()
        if self._step.window != "warmup":
            self._open_range(BACKWARD if event == UNFED_BACKWARD else event, 1)

    def _show_step(self) -> None:
        self._open_range("warmup" if self._step.window == "warmup" else "step", 0)

    def _open_range(self, name: str, level: int) -> None:
        """Show what follows as a range in the trace, if no range of that level is open."""
        if len(self._ranges) == level:
            self._ranges.append(self.capture.range(name))
            self._ranges[-1].__enter__()

    def _close_ranges(self, level: int) -> None:
        while len(self._ranges) > level:
            self._ranges.pop().__exit__(None, None, None)

    # Steps and passes.

    def begin_step(self, observer: Observer) -> None:
        """Begin the step after the last one, and what its window needs."""
        step = self.steps + 1
        if self._prepare(step, observer):
            self._start = None  # work of the profiler, or of ours, is in no step
        self._resume_clock()
        window = self.plan.window(step)
        self._step = self.recorder.begin(observer.epoch, window, self._start)
        self._start, self._events = self._step.start, []
        self._seen.append((self._step, self._events))
        length = observer.loader.length if observer.loader else None
        self._is_within = length is None or observer.batches_in_pass < length
        if self._window is not None and self._is_within:
            self._show_step()

    def end_step(self, observer: Observer) -> None:
        """End the current step; after the last one, close the profiled window."""
        self.note(LEFT)
        self._start = self._step.end = self._events[-1][1]
        self._close_ranges(0)
        self.recorder.end()
        self._step = None
        self.steps += 1
        self._made[0] = self.steps
        if self._window is not None and self.steps == self.plan.steps:
            self._window.__exit__(None, None, None)
            self._window = None
            self.is_complete = True
            if self.capture.problem:
                print(f"{PROGRESS}  no trace of rank {self.rank}: {self.capture.problem}", file=sys.stderr, flush=True)

    def _settle(self, observer: Observer) -> None:
        """Read the marks of the steps that have ended."""
        if asks_ahead(observer.passes):  # it may have moved the batch before it asked for the next one
            self._arrival = None
        for step, events in self._seen:
            step.phases = phases_of(events, has_transfers=self._arrival is not None)
            if step.window == "measured" and not self._on_gpu:
                self.thread.add(step.phases)
        self._seen.clear()
        self.recorder.settle()

    def begin_pass(self, observer: Observer) -> tuple[Any, int, list[Event], bool] | None:
        """A pass over the data begins: the step that is open begins only now; give what that has changed."""
        if self._step is None:
            return None
        self._is_within = True
        before = self._step.start, self._step.epoch, list(self._events), self._between_passes
        self._close_ranges(0)
        self._events.clear()
        self._step.epoch = observer.epoch
        self._resume_clock()
        self._step.start = self._mark()
        return before

    def end_pass(self) -> None:
        """A loader is exhausted: tests may follow, whose time does not count."""
        if self.plan.window(self.steps + 1) == "measured":
            self._between_passes = True
            self.thread.stop()

    def _resume_clock(self) -> None:
        if self._between_passes and self.plan.window(self.steps + 1) == "measured":
            self.thread.start()
        self._between_passes = False

    def _prepare(self, step: int, observer: Observer) -> bool:
        """Do what comes before a step, and say whether that took time."""
        plan = self.plan
        if step == max(1, plan.warmup):  # the last step of the warm-up makes up for the time that this takes
            self.others.start()
            self.recorder.clock.reserve(plan.measured)
        if step == plan.warmup + 1:
            self._log(f"measuring {counted(plan.measured, 'step')}")
            self.thread.start()
            self.exchanges.start()
        if step == plan.measured_end + 1:
            self._settle(observer)
            self.thread.stop()
            self.exchanges.stop()
            self.others.stop()
            window = plan.profiled = self._agree(observer)
            before = window.warmup_steps + window.settling_steps
            self._log(f"profiling {counted(window.profiled_steps, 'step')}, after {before} more")
        if step != plan.opening:
            return step == plan.measured_end + 1
        self._window = self.capture.window()
        self._window.__enter__()
        return True

    def _agree(self, observer: Observer) -> ProfiledWindow:
        """Where the profiled window lies: on all ranks where it does on the first."""
        if loader := observer.loader:
            plan = self.plan
            used = used_by_step([each for each in observer.passes if each.loader == loader])
            batches = sum(len(used.get(step, ())) for step in range(plan.warmup + 1, plan.measured_end + 1))
            mean = batches / plan.measured
            self._pace = Pace(observer.steps_in_pass, mean, loader.length, loader.ahead)
        placed = place(self._pace, self.plan.least_profiled)
        if self.barrier is None:
            return placed
        return ProfiledWindow(*json.loads(self.barrier.share(json.dumps(placed) if self.rank == 0 else None)))

    def _log(self, text: str) -> None:
        if self.rank == 0:
            print(f"{PROGRESS}  {text}\n", end="", file=sys.stderr, flush=True)  # in one write: others print, too

    # The end.

    def finish(self, observer: Observer) -> NoReturn:
        """Leave the record of a rank that has made all its steps, and ask the script to end."""
        self._settle(observer)
        self._write({"outcome": "completed", "reason": None}, observer)
        if self.barrier is not None:
            with contextlib.suppress(Exception):  # the store may be gone already with the rank that had it
                self.barrier.wait()
        timer = threading.Timer(LIMIT_S, self.force_exit)
        timer.daemon = True
        timer.start()
        raise SystemExit(0)

    def force_exit(self) -> NoReturn:
        """End a script that was asked to end and goes on."""
        try:
            write_json(self._path(), self.record | {"ignored_exit": True})
        finally:
            leave_now(0)

    def write_early(self, error: BaseException | None, observer: Observer) -> None:
        """Leave the record of a rank that ends before it has made all its steps, because of an error or by itself."""
        if isinstance(error, RankLeft):
            reason = Reason("steps_disagree", rank=self.rank, step=self.steps + 1)
            ended = {"outcome": "failed", "reason": reason.record()}
        elif error is not None:
            ended = describe_failure(error, self.rank)
        else:  # the first update ended no step
            found, needed = self.steps + 1, self.plan.steps + 1
            reason = Reason("too_few_steps", rank=self.rank, steps=found, needed_steps=needed)
            ended = {"outcome": "failed", "reason": reason.record()}
        # A GPU may wait for ever for a rank that will not come.
        write_json(self._path(), {**ended, **facts_of_process(self.rank)})
        timer = threading.Timer(LIMIT_S, self._leave_others, [0 if error is None else 1])
        timer.daemon = True
        timer.start()
        with contextlib.suppress(Exception):  # a GPU that failed gives no times
            self._settle(observer)
        timer.cancel()
        self._write(ended, observer)
        self._tell_others()

    def _leave_others(self, code: int) -> NoReturn:
        try:
            self._tell_others()
        finally:
            leave_now(code)

    def _tell_others(self) -> None:
        if self.barrier is not None:
            with contextlib.suppress(Exception):
                self.barrier.leave()

    def _write(self, ended: Mapping[str, Any], observer: Observer) -> None:
        loaders = self._count_contents(observer)
        self.recorder.write(self.scratch / rank_file(STEPS, self.rank))
        stated = self.stated.get("samples_per_step")
        sampled = any(row["samples"] for row in self.recorder.rows)
        self.record = {
            **ended,
            **facts_of_process(self.rank),
            "gpus": visible.identities(self.devices),
            "binding": bound() | {"note": None},
            "steps_per_pass": self._pace.pass_steps,
            "profiled_window": self.plan.profiled and self.plan.profiled._asdict(),
            "windows": self.recorder.windows,
            "host_conditions": self.others.record(),
            "compile_limits_hit": limits_hit(),
            "operations": self.recorder.operations,
            "trace_problem": self.capture.problem,
            "observed": {
                "optimizers": sorted(observer.optimizers),
                "loaders": loaders,
                "samples_from": "stated" if stated else "loader" if sampled else None,
                "frameworks": dict(frameworks()),
                "threads": torch.get_num_threads(),
                "thread_time": self.thread.record(),
                "exchanged": self.exchanges.seen,
            },
            "ignored_exit": False,
        }
        write_json(self._path(), self.record)

    def _count_contents(self, observer: Observer) -> list[dict[str, Any]]:
        """Give each step what is in the batches that it used; return what the loaders of the steps are."""
        loaders: list[dict[str, Any]] = []
        for each in observer.passes:
            recorded = any(0 < step <= self.steps for step, _ in each.batches)
            if recorded and each.loader.description not in loaders:
                loaders.append(each.loader.description)
        used = used_by_step(observer.passes)
        has_tokens = any(each.tokens is not None for batches in used.values() for each in batches)
        for row in self.recorder.rows:
            batches = used.get(row["step"], [])
            row["samples"] = _sum(each.samples for each in batches) if loaders else None
            row["tokens"] = _sum(each.tokens for each in batches) if has_tokens else None
        return loaders

    def _path(self) -> Path:
        return self.scratch / rank_file("rank.json", self.rank)


def _sum(counts: Iterable[int | None]) -> int | None:
    """Sum of all; None where one is not known."""
    known = list(counts)
    return None if None in known else sum(known)
