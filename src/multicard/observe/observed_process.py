"""Take an observed process through the states of `lifecycle`, and keep the recording of its steps.

`Observer` reports the ends of steps. This module then claims the rank, begins and ends recorded steps, and writes the
record when the process ends.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from multiprocessing.util import Finalize
from pathlib import Path
from threading import get_ident
from time import perf_counter
from typing import TYPE_CHECKING, Any, NoReturn

from multicard.core.host_work import COMPILE, COMPILING, SAMPLER, SAMPLING
from multicard.core.job_file import JobFile, read_job
from multicard.observe import OBSERVE
from multicard.observe.events import NOT_RECORDED, StepEvents
from multicard.observe.host_work import LEAST_SAMPLING_S, CallTimer
from multicard.observe.lifecycle import Action, Event, State, transition
from multicard.observe.loading_cpu import LoadingCpu
from multicard.observe.plan import MarkedTraining
from multicard.observe.process import error_of_exit, is_capturing, leave_now
from multicard.observe.ranks import claim_rank, rank_of_process
from multicard.observe.training_loop import TrainingLoop
from multicard.observe.training_setup import BackwardPasses
from multicard.observe.updates import Updates

# At run time these are imported with the first update: most processes that import torch never make one.
if TYPE_CHECKING:
    from multicard.observe.ablation import Replay
    from multicard.observe.recording import Recording


class ObservedProcess:
    """State and recording of this process; made and used by `Observer`."""

    def __init__(self) -> None:
        self.replay: Replay | None = None  # None unless the run goes without loading
        self.note: Callable[..., None] = lambda **_: None  # adds facts to process.json
        self._job: str = ""  # path of job.json, once the process is observed
        self._before_exit: Callable[[], None] = lambda: None  # called first when the process exits
        self._recording: Recording | None = None
        self._has_compilations_reported = False  # torch.compile calls `work_begins` and `work_ends`
        self._forget()

    def _forget(self) -> None:
        # After a fork the recording of the parent is kept. If it were deleted, Python would close the contexts that the
        # parent's profiler has open, in this process too.
        self._recording_of_parent = self._recording
        # None before the first update, and if another process has claimed the rank; see `lifecycle`.
        self._recording = None
        self._state = State.WATCHING
        # Takes what happens in the open step; ignores it if no step is open.
        self.events: StepEvents = NOT_RECORDED
        self.is_over = False  # nothing is observed any more
        self.is_recording = False
        self.training_thread: int | None = None
        self.training: MarkedTraining | None = None  # None unless the program marks the begin of its training
        self.updates = Updates()
        self.backward_passes = BackwardPasses()
        self.loading_cpu = LoadingCpu()
        self.loop = TrainingLoop()
        self._timer = CallTimer()
        self._sampling_began_s: float | None = None  # None while no sampler is asked

    def begin(self, note_process: Callable[..., None], job: str, before_exit: Callable[[], None]) -> None:
        """Prepare for the first update, and have the record written when the process ends.

        `note_process` adds facts to this process's process.json; `job` is the path of job.json; `before_exit` is called
        when the process is about to end.
        """
        self.note = note_process
        self._job = job
        self._before_exit = before_exit
        self._leave_at_exit()
        self._leave_at_errors()

    def begin_after_fork(self) -> None:
        """Reset all state. DataLoader workers are never ranks; other forked processes can be."""
        if self._recording is not None:
            self._recording.sampler.stop()
        if self._take(Event.FORKED) is Action.FORGET:
            self._forget()
        self._leave_at_exit()

    def _take(self, event: Event) -> Action:
        """Enter the state that an event leads to; return the action that the caller must perform."""
        state, action = transition(self._state, event)
        if state is not self._state:
            self._enter(state)
        return action

    def _enter(self, state: State) -> None:
        """Enter a state, and set the attributes that follow from it, which hooks can read fast."""
        self._state = state
        self.is_over = state is State.ENDED or state is State.ABANDONED
        self.is_recording = state is State.RECORDING
        self.events = self._recording.events if self.is_recording and self._recording is not None else NOT_RECORDED

    def read_job(self) -> JobFile:
        """Return the content of job.json."""
        return read_job(Path(os.environ.get(OBSERVE, self._job)))

    @property
    def has_measured(self) -> bool:
        """True if all measured steps have ended."""
        return self._recording is not None and self._recording.has_measured

    def log(self, values: Mapping[str, Any], weight: float) -> None:
        """Keep values that the script logs for a step or an epoch; drop them if no steps are recorded."""
        if self._recording is not None and self.is_recording:
            self._recording.events.log(values, weight, self.loop.epoch, self.loop.has_begun_work)

    @property
    def trains_elsewhere(self) -> bool:
        """True if steps are recorded, or were, and this thread is not the one that trains."""
        return self._recording is not None and get_ident() != self.training_thread

    # Work of the host, on the thread that trains: what others do, such as saving in the background, delays no step.

    def work_begins(self) -> None:
        """Called before the host collects garbage, saves, compiles, starts or stops workers, or exchanges something."""
        if get_ident() == self.training_thread:
            self._timer.begin()

    def work_ends(self, kind: str, function: str, exchanged: Iterable[Any] = ()) -> None:
        """Called afterwards, also if it raised. `exchanged`: arguments of a collective, among them its tensors."""
        if get_ident() == self.training_thread:
            seconds = self._timer.end()
            if seconds is not None:
                self.events.add_work(kind, function, seconds, exchanged)

    def sampling_begins(self) -> bool:
        """Called before a loader asks its sampler for the indices of a batch, or for the iterator that gives these.

        Return True if `sampling_ends` must be called afterwards: not on another thread than the one that trains, nor
        while a sampler is asked already.
        """
        if self._sampling_began_s is not None or get_ident() != self.training_thread:
            return False
        self._timer.depth += 1
        self._sampling_began_s = perf_counter()
        return True

    def sampling_ends(self) -> None:
        """Called afterwards, also if it raised.

        A loader that starts its workers also asks the sampler, for the batches that these begin with. That time counts
        as the sampler's alone.
        """
        now_s = perf_counter()
        began_s, self._sampling_began_s = self._sampling_began_s, None
        if began_s is None:  # a process that was forked meanwhile has forgotten it
            return
        seconds = now_s - began_s
        timer = self._timer
        timer.depth -= 1
        if timer.depth:
            timer.leave_out(seconds)
        if seconds >= LEAST_SAMPLING_S:
            self.events.add_work(SAMPLING, SAMPLER, seconds, ())

    # Steps.

    def end_step(self, optimizer: Any) -> None:
        """Called at each boundary of steps: end the open step, if there is one, and begin the next.

        `optimizer`: the one whose update is the boundary; None if a backward pass or a mark is.
        """
        # If the script itself captures a CUDA graph, its work is not run yet, so no step has ended.
        if self.events.may_capture and is_capturing():
            return
        action = self._take(Event.BOUNDARY)
        if action is Action.NOTHING:
            return
        self.loop.note_trained()
        try:
            self._perform_boundary(action, optimizer)
        except Exception as error:
            self._give_up(error)

    def _perform_boundary(self, action: Action, optimizer: Any) -> None:
        if action is Action.CLAIM_RANK:
            self._claim_rank(optimizer)
        recording = self._recording
        if recording is None:  # another process has claimed the rank
            self.loop.begin_step()
            return
        if action is Action.END_STEP:
            recording.end_step()
        if recording.is_complete:
            self.loop.begin_step()
            self._take(Event.COMPLETED)
            from multicard.observe.leaving import leave_in_order

            leave_in_order(recording, self.replay)  # raises SystemExit
        self.loop.end_step()
        recording.begin_step()

    def _claim_rank(self, optimizer: Any) -> None:
        """Claim the rank and make its recording, unless an earlier process has claimed this rank."""
        from multicard.observe.record.compilation import report_compilations
        from multicard.observe.recording import Recording

        self.training_thread = get_ident()
        self._leave_at_exit()  # once more, because multiprocessing drops exit handlers in a process that it forks
        job = self.read_job()
        if claim_rank(job):
            self._recording = Recording(
                job, self.loop, self.updates, self.backward_passes, self.loading_cpu, optimizer, self.training
            )
            self._take(Event.CLAIMED)
            if not self._has_compilations_reported:
                self._has_compilations_reported = True
                report_compilations(self.work_begins, lambda: self.work_ends(COMPILING, COMPILE))
        else:
            self._take(Event.TAKEN)
        self.note(steps=True, rank=rank_of_process())

    def restart(self) -> None:
        """Forget the steps that were recorded, if any were; the next boundary is the first again."""
        if self._take(Event.RESTARTED) is Action.DROP_STEPS:
            if self._recording is not None:
                self._recording.sampler.stop()
            self._recording = None
            self.loop.restart()

    # The end of the process.

    def _leave_at_exit(self) -> None:
        Finalize(None, self.leave, exitpriority=100)

    def _leave_at_errors(self) -> None:
        """Have the record written as soon as an error ends the process, because its exit may wait for other ranks."""
        plain = sys.excepthook

        def leave(error_type: type[BaseException], error: BaseException, traceback: Any) -> None:
            plain(error_type, error, traceback)
            self.leave()

        sys.excepthook = leave

    def leave(self) -> None:
        """Called when the process exits: write the record, unless it is written already.

        Nothing is written if the user interrupts the process.
        """
        self._before_exit()
        error = error_of_exit()
        if not isinstance(error, KeyboardInterrupt):
            self._leave_record(self._take(Event.EXITED), error)

    def exit_if_ended(self) -> None:
        """End the process at once if its script was asked to end, but goes on to train."""
        if self.is_over and self._take(Event.WENT_ON) is Action.EXIT_NOW:
            leave_now(0)

    def _give_up(self, error: Exception) -> NoReturn:
        """Write the record and end the script, because the observer has raised, or because the ranks do not agree.

        If the error is that another rank has left, and this rank has made all measured steps, only its trace is lost.
        Then the script exits with 0, otherwise with 1.
        """
        from multicard.observe.record.capture import RankLeft

        has_numbers = isinstance(error, RankLeft) and self.has_measured
        action = self._take(Event.FAILED)
        if not has_numbers:
            print(f"multicard: cannot go on observing: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        with contextlib.suppress(Exception):  # the disk may be full
            self._leave_record(action, error)
        raise SystemExit(0 if has_numbers else 1) from error

    def _leave_record(self, action: Action, error: BaseException | None) -> None:
        if action is Action.LEAVE_EARLY and self._recording is not None:
            from multicard.observe.leaving import leave_early

            leave_early(self._recording, error, self.replay)
        elif action is Action.REPORT_ERROR and error is not None:
            from multicard.observe.failure import write_failure

            write_failure(error, self.note, self.read_job())
