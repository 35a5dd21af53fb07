"""Take an observed process through the states of `lifecycle`, and keep the recording of its steps.

`Observer` reports the ends of steps; this module claims the rank, begins and ends recorded steps, and leaves the record
when the process ends.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from multiprocessing.util import Finalize
from pathlib import Path
from threading import get_ident
from typing import TYPE_CHECKING, Any, NoReturn

import torch.distributed as dist

from multicard.core.files import read_json
from multicard.record.observe import OBSERVE
from multicard.record.observe.events import NOT_RECORDED, StepEvents
from multicard.record.observe.lifecycle import Action, Event, State, transition
from multicard.record.observe.process import error_of_exit, is_capturing, leave_now
from multicard.record.observe.ranks import claim_rank, rank_of_process
from multicard.record.observe.training_loop import TrainingLoop
from multicard.record.observe.updates import Updates

# At run time these are imported with the first update: most processes that import torch never make one.
if TYPE_CHECKING:
    from multicard.record.observe.ablation import Replay
    from multicard.record.observe.graphed import Graphed
    from multicard.record.observe.recording import Recording


class ObservedProcess:
    """State and recording of this process; made and used by `Observer`."""

    def __init__(self) -> None:
        self.replay: Replay | None = None  # None unless the run goes without loading
        self.graphed: Graphed | None = None  # None unless the run goes without the host's work
        self.note: Callable[..., None] = lambda **_: None  # adds facts to process.json
        self._job: str = ""  # path of job.json, once the process is observed
        self._before_exit: Callable[[], None] = lambda: None
        self._recording: Recording | None = None
        self._forget()

    def _forget(self) -> None:
        # Closing what a profiler of the parent had open would stop it here too, so it is kept.
        self._recording_of_parent = self._recording
        # None before the first update, and where the rank is taken; see `lifecycle`.
        self._recording = None
        self._state = State.WATCHING
        # Takes what happens in the open step; ignores it if no step is open.
        self.events: StepEvents = NOT_RECORDED
        self.is_over = False  # nothing is observed any more
        self.is_recording = False
        self.training_thread: int | None = None
        self.training_steps: int | None = None  # None unless the script states them
        self.updates = Updates()
        self.loop = TrainingLoop()

    def begin(self, note_process: Callable[..., None], job: str, before_exit: Callable[[], None]) -> None:
        """Be ready for the first update.

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
        if self._take(Event.FORKED) is Action.FORGET:
            self._forget()
        self._leave_at_exit()

    def _take(self, event: Event) -> Action:
        """Go to the state that an event leads to; return what is to be done."""
        state, action = transition(self._state, event)
        if state is not self._state:
            self._enter(state)
        return action

    def _enter(self, state: State) -> None:
        """Be in a state, and keep what follows from it where the hooks get it fastest."""
        self._state = state
        self.is_over = state is State.ENDED or state is State.ABANDONED
        self.is_recording = state is State.RECORDING or state is State.CAPTURING
        is_step_open = state is State.RECORDING
        self.events = self._recording.events if is_step_open and self._recording is not None else NOT_RECORDED

    def read_job(self) -> dict[str, Any]:
        """Return the content of job.json."""
        return read_json(Path(os.environ.get(OBSERVE, self._job)))

    @property
    def has_measured(self) -> bool:
        """True if all measured steps have ended."""
        return self._recording is not None and self._recording.has_measured

    def log(self, values: Mapping[str, Any], weight: float) -> None:
        """Keep values that the script logs for the step, or for an epoch."""
        if self._recording is not None and self.is_recording:
            self._recording.events.log(values, weight, self.loop.epoch, self.loop.has_begun_work)

    @property
    def trains_elsewhere(self) -> bool:
        """True if steps were recorded, and this thread is not the one that trains."""
        return self._recording is not None and get_ident() != self.training_thread

    # Steps.

    def end_step(self, optimizer: Any) -> None:
        """End the open step, which the update of an optimizer, a backward pass or a mark has completed."""
        # What the script captures itself as a CUDA graph has not run yet.
        if is_capturing() and self._state is not State.CAPTURING:
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
        if recording is None:  # the rank is taken
            self.loop.begin_step()
            return
        if action is Action.END_STEP:
            recording.end_step()
        elif action is Action.REPLAY_STEPS and self.graphed is not None:
            self.graphed.make_steps(recording)
        if recording.is_complete:
            self.loop.begin_step()
            self._take(Event.COMPLETED)
            from multicard.record.observe.leaving import leave_in_order

            leave_in_order(recording, self.replay)
        self.loop.end_step()
        if self.graphed is not None and self.graphed.captures(recording):
            self._take(Event.CAPTURE_BEGAN)
        else:
            recording.begin_step()

    def _claim_rank(self, optimizer: Any) -> None:
        """Begin to record, unless an earlier process claimed this rank."""
        from multicard.record.observe.recording import Recording

        self.training_thread = get_ident()
        self._leave_at_exit()  # multiprocessing drops it in a process that it forks
        job = self.read_job()
        if claim_rank(job):
            self._recording = Recording(job, self.loop, self.updates, optimizer, self.training_steps)
            self._take(Event.CLAIMED)
        else:
            self._take(Event.TAKEN)
        self.note(steps=True, rank=rank_of_process())

    def restart(self) -> None:
        """Forget the steps that were recorded, if any were."""
        if self._take(Event.RESTARTED) is Action.DROP_STEPS:
            self._recording = None
            self.loop.restart()

    # The end of the process.

    def _leave_at_exit(self) -> None:
        Finalize(None, self.leave, exitpriority=100)

    def _leave_at_errors(self) -> None:
        """Leave a record as soon as an error ends the process, whose exit may wait for other ranks.

        A program of multicard's own that has a process group does without Python's end, where NCCL may wait for ever.
        """
        plain = sys.excepthook

        def leave(error_type: type[BaseException], error: BaseException, traceback: Any) -> None:
            plain(error_type, error, traceback)
            self.leave()
            if dist.is_available() and dist.is_initialized() and not self.read_job()["observe"]["is_user_program"]:
                leave_now(1)

        sys.excepthook = leave

    def leave(self) -> None:
        """Leave a record of what there is, unless it is written: the process exits."""
        self._before_exit()
        error = error_of_exit()
        if not isinstance(error, KeyboardInterrupt):
            self._leave_record(self._take(Event.EXITED), error)

    def exit_if_ended(self) -> None:
        """Exit if the script was asked to end, and goes on."""
        if self.is_over and self._take(Event.WENT_ON) is Action.EXIT_NOW:
            leave_now(0)

    def _give_up(self, error: Exception) -> NoReturn:
        """End the script because of an error of the observer, or of ranks that do not agree.

        If another rank has left, and all measured steps were made, only the trace is lost.
        """
        from multicard.record.capture import RankLeft

        has_numbers = isinstance(error, RankLeft) and self.has_measured
        action = self._take(Event.FAILED)
        if not has_numbers:
            print(f"multicard: cannot go on observing: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        with contextlib.suppress(Exception):  # the disk may be full
            self._leave_record(action, error)
        raise SystemExit(0 if has_numbers else 1) from error

    def _leave_record(self, action: Action, error: BaseException | None) -> None:
        if action is Action.LEAVE_EARLY and self._recording is not None:
            from multicard.record.observe.leaving import leave_early

            if self.graphed is not None:
                error = self.graphed.explained(error)
            leave_early(self._recording, error, self.replay)
        elif action is Action.REPORT_ERROR and error is not None:
            from multicard.record.observe.failure import write_failure

            write_failure(error, self.note, self.read_job())
