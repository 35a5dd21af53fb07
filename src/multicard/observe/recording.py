"""Record the steps of one rank in their windows: warm-up, measured, profiled."""

import json
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from typing import Any

from multicard.core.job_file import JobFile
from multicard.core.layout import JOB, MADE, PROGRESS, STEPS, rank_file
from multicard.core.text import counted
from multicard.core.values import JsonObject
from multicard.observe.batches import asks_ahead
from multicard.observe.events import RecordedEvents
from multicard.observe.host_work import HostWork, OpenWork
from multicard.observe.loaders import LoaderDescription
from multicard.observe.loading_cpu import LoadingCpu
from multicard.observe.plan import MarkedTraining, Pace, Plan, pace_of, place
from multicard.observe.process import before_time_limit, devices_of, make_barrier, shared_number
from multicard.observe.ranges import Ranges
from multicard.observe.ranks import collectives_between, exchanges, rank_of_process
from multicard.observe.record.capture import Capture, RankLeft
from multicard.observe.record.clock import Mark
from multicard.observe.record.profiled_window import ProfiledWindow
from multicard.observe.record.recorder import COUNTED_STEP, Diverged, Recorder, first_not_finite
from multicard.observe.stack_samples import StackSampler, StackSamples
from multicard.observe.training_loop import TrainingLoop
from multicard.observe.training_setup import BackwardPasses, PassCounts, describe_setup
from multicard.observe.updates import Updates


class Recording:
    """Recorded steps of one rank, from its first update.

    Made by `ObservedProcess`, which then begins and ends steps in turn. `Observer` reports what happens in a step to
    `events`.

    `job`: content of job.json. `loop`, `updates`, `passes`, `loading_cpu`: the state of the process, which `Observer`
    keeps up to date. `optimizer`: the lead optimizer; None if backward passes or marks end the steps. `training`: what
    the program states if it marks the begin of its training; else None. If it states its number of steps, the profiled
    window is placed as if a new pass over the data began after the measured steps.

    A pass is one traversal of the data loader. An epoch is the number of a pass, as in steps.csv.
    """

    def __init__(
        self,
        job: JobFile,
        loop: TrainingLoop,
        updates: Updates,
        passes: BackwardPasses,
        loading_cpu: LoadingCpu,
        optimizer: Any,
        training: MarkedTraining | None,
    ):
        self.observed_job = job.observe
        self.scratch = job.scratch
        self.loop = loop
        self.updates = updates
        self.passes = passes
        self.loading_cpu = loading_cpu
        self.host_work = HostWork()
        self.stack_samples = StackSamples()
        self.training_steps = training.steps if training else None
        self.rank = rank_of_process()
        self.record_path = self.scratch / rank_file("rank.json", self.rank)
        has_marked_training = training is not None
        self.devices = devices_of(optimizer, self.observed_job, has_marked_training)
        self.barrier = make_barrier()
        self.capture = Capture(job.profiler, self.scratch, self.rank, self.devices, self.barrier)
        self.recorder = self._make_recorder(has_marked_training)
        self.plan = Plan(self.observed_job, self.training_steps)
        self.pace = Pace()
        # True if ranks exchanged something in the measured steps. None until these have ended, and if exchanges cannot
        # be counted.
        self.exchanged: bool | None = None
        # How the rank trains: the field `setup` of rank.json. None until the measured steps have ended.
        self.setup: JsonObject | None = None
        self.steps = 0  # number of steps that have ended
        self.is_complete = False  # all windows have had their steps
        # The number of steps in shared memory, so that the launcher can read it after killing this process.
        self._shared_steps = shared_number(self.scratch / rank_file(MADE, self.rank))
        self.timer = before_time_limit(self.scratch / JOB, job.time_limit_s, self._write_ended)
        self._ranges = Ranges(self.capture)
        self.events = RecordedEvents(
            self.recorder.clock,
            self._ranges,
            OpenWork(self.host_work, self.stack_samples),
            on_gpu=self.devices[0].type == "cuda",
            settle_pass=self._settle_pass,
            pass_begins=self._log_epoch,
        )
        # Samples the stack of this thread, which is the one that trains.
        self.sampler = StackSampler(self.events.add_sample)
        # What `exchanges` returned when the measured steps began.
        self._exchanges_before: dict[str, int] | None = None
        # Backward passes before the measured steps.
        self._passes_before = PassCounts()
        # CPU seconds of each loader before the measured steps, and in them.
        self._loading_before_s: Mapping[LoaderDescription, float] = {}
        self.loading_cpu_s: Mapping[LoaderDescription, float] = {}
        # Mark of the end of the last step; None if other work came after it, so that the next step needs its own mark.
        self._last_end: Mark | None = None
        self._profiler_window: AbstractContextManager[None] | None = None  # None while the profiler does not record

    def _make_recorder(self, has_marked_training: bool) -> Recorder:
        counted_step = None
        if self.observed_job.count_operations:
            # Where the first update begins the first step, one update was made before, so that step may be counted. A
            # program that marks the begin of its training has made none.
            warmup_steps = self.observed_job.warmup_steps
            counted_step = COUNTED_STEP if has_marked_training else min(COUNTED_STEP, warmup_steps)
        # A script may read the peaks of memory itself, so they are reset only in a program that leaves them to
        # multicard by marking the begin of its training.
        return Recorder(self.rank, self.devices, reset_peaks=has_marked_training, counted_step=counted_step)

    @property
    def has_measured(self) -> bool:
        """True if all measured steps have ended."""
        return self.steps >= self.plan.measured_end

    def begin_step(self) -> None:
        """Begin the next step. Before that, begin or end windows if the step is the first of a window."""
        number = self.steps + 1
        if self._change_windows(number):
            # A step begins at the end of the last one, unless time passed in between that must not count as training.
            self._last_end = None
        window = self.plan.window(number)
        step = self.recorder.begin(self.loop.epoch, window, self._last_end)
        self._last_end = step.start
        batches_in_loader = self.loop.loader.length if self.loop.loader else None
        is_within_pass = batches_in_loader is None or self.loop.batches_in_pass < batches_in_loader
        self.events.begin(step, is_within_pass, keeps_losses=number == self.plan.measured_end)

    def end_step(self) -> None:
        """End the open step. If it was the last one, close its window and set `is_complete`."""
        loader = self.loop.loader
        step = self.events.end(has_workers=loader is not None and loader.description.num_workers != 0)
        self._last_end = step.end
        self.recorder.end(step)
        self.steps += 1
        self._shared_steps[0] = self.steps
        if self.steps < self.plan.steps:
            return
        if self._profiler_window is not None:
            self._close_window()
            self.is_complete = True
            if self.capture.problem:
                print(f"{PROGRESS}  no trace of rank {self.rank}: {self.capture.problem}", file=sys.stderr, flush=True)
        elif not self.plan.is_profiled:
            self._end_measured()
            self.is_complete = True

    def _change_windows(self, number: int) -> bool:
        """Do what is needed where windows begin or end before step `number`; return True if this took time of no step.

        With 2 warm-up and 3 measured steps, and a profiler that starts 3 steps later: marks are reserved, and the
        sampler of the stack starts, before step 2; the measured window begins with step 3 and ends before step 6
        (True); the profiler starts before step 9 (True).
        """
        plan = self.plan
        if plan.warmup + 1 < number <= plan.measured_end:  # within the measured window, where each call costs time
            return False
        # Before the last warm-up step, so that this step, and not a measured one, absorbs the pause.
        if number == max(1, plan.warmup):
            self.recorder.clock.reserve(plan.measured)
            self.sampler.start()
        begins_measured = number == plan.warmup + 1
        if begins_measured:
            self._log(f"measuring {counted(plan.measured, 'step')}")
            self._exchanges_before = exchanges()
            self._passes_before = self.passes.counts
            self._loading_before_s = self.loading_cpu.seconds()
            self.sampler.note_step()
        follows_measured = number == plan.measured_end + 1
        if follows_measured:
            self._end_measured()
            self._place_window()
        # This comes last, because `opening` is None until `_place_window`, and may be this very step.
        starts_profiler = number == plan.opening
        if starts_profiler:
            self._open_window()
        return follows_measured or starts_profiler

    def _place_window(self) -> None:
        window = self.plan.profiled = self._agree_on_window()
        before = window.warmup_steps + window.settling_steps
        self._log(f"profiling {counted(window.profiled_steps, 'step')}, after {before} more")

    def _agree_on_window(self) -> ProfiledWindow:
        """Return the profiled window that rank 0 has placed, so that it is the same on all ranks."""
        placed = place(self.pace, self.plan.least_profiled)
        if self.barrier is None:
            return placed
        return ProfiledWindow(*json.loads(self.barrier.gather("window", json.dumps(placed))[0]))

    def _open_window(self) -> None:
        self._profiler_window = self.capture.window()
        self._ranges.are_shown = True
        self._profiler_window.__enter__()

    def _close_window(self) -> None:
        if self._profiler_window is not None:
            self._profiler_window.__exit__(None, None, None)
            self._profiler_window = None
            self._ranges.are_shown = False

    def abandon_window(self) -> None:
        """Stop the profiler, if it records. It must not record while the process ends; its trace does not count.

        The window is left with an error, so that it does not wait for other ranks.
        """
        if self._profiler_window is not None:
            with suppress(Exception):
                self._profiler_window.__exit__(RankLeft, RankLeft(), None)

    def settle(self) -> None:
        """Read the marks of the steps that have ended.

        Raises `Diverged` if a loss that the script logged is not finite.
        """
        self.events.settle_phases(asks_ahead(self.loop.passes))
        self.recorder.settle()

    def _settle_pass(self) -> None:
        """Called between two passes: read the marks of the steps so far if the script states its number of steps.

        Such a training may be long, with too many steps to keep the marks of all. While the profiler records, they are
        kept nevertheless.
        """
        if self.training_steps is not None and self._profiler_window is None:
            self.settle()

    def _end_measured(self) -> None:
        """End the measured window. Its steps are written now, in case the process is killed before its record is.

        Raises `Diverged` if the loss of the last measured step is not finite.
        """
        self.recorder.note_peaks()  # before the memory of what is done here counts
        self.sampler.stop()
        before_s = self._loading_before_s
        self.loading_cpu_s = {
            loader: seconds - before_s.get(loader, 0.0) for loader, seconds in self.loading_cpu.seconds().items()
        }
        after = exchanges()
        self.exchanged = compare_exchanges(self._exchanges_before, after)
        self.setup = describe_setup(
            self.updates.lead,
            self.devices[0],
            self.passes.counts.since(self._passes_before),
            self.plan.measured,
            collectives_between(self._exchanges_before, after),
            self.updates.has_updated_in_graph,
        )
        self._set_pace()
        losses = self.events.losses
        self.events.losses = None
        self.settle()
        self.recorder.write(self.scratch / rank_file(STEPS, self.rank))
        # With a gradient scaler the loss is scaled and may overflow without harm.
        if self.updates.has_scaler:
            return
        loss = first_not_finite(losses)
        if loss is not None:
            raise Diverged(loss, self.plan.measured_end)

    def _set_pace(self) -> None:
        """Set `pace` from how the measured steps drew from the loader; it decides where the profiled window lies."""
        loader = self.loop.loader
        if not loader:
            return
        passes = [drawn for drawn in self.loop.passes if drawn.loader == loader]
        steps_in_pass = 0 if self.training_steps is not None else self.loop.steps_in_pass
        self.pace = pace_of(loader, passes, self.plan, steps_in_pass)

    def _write_ended(self) -> None:
        """Write the steps so far. Called on another thread than the one that trains."""
        self.events.find_phases()
        self.recorder.write_ended(self.scratch / rank_file(STEPS, self.rank))

    def _log_epoch(self) -> None:
        if self.training_steps is not None and self.steps < self.plan.measured_end:
            self._log(f"epoch {self.loop.epoch}, step {self.steps + 1} of {self.training_steps}")

    def _log(self, text: str) -> None:
        if self.rank == 0:
            # The end of the line is in the same write, since other processes print, too.
            print(f"{PROGRESS}  {text}\n", end="", file=sys.stderr, flush=True)


def compare_exchanges(before: dict[str, int] | None, after: dict[str, int] | None) -> bool | None:
    """Return True if ranks exchanged anything between two counts of `exchanges`; None if either count is None.

    >>> compare_exchanges({"messages": 3}, {"messages": 5}), compare_exchanges({"messages": 3}, None)
    (True, None)
    """
    if before is None or after is None:
        return None
    return before != after
