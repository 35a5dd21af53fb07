"""Show the steps of a script and their phases as named ranges in a trace."""

from contextlib import AbstractContextManager

from multicard.observe.phases import EVALUATION, phase_of
from multicard.observe.record.capture import Capture


class Ranges:
    """Opens and closes a range for each step in a trace and, inside it, one for each phase.

    A step of the warm-up has no ranges for its phases.
    """

    def __init__(self, capture: Capture):
        self.are_shown = False  # True while the profiler records; set by `Recording`
        self._capture = capture
        self._open: list[AbstractContextManager[object]] = []  # the range of the step, then that of its phase

    def show(self, window: str, event: str | None, is_within_pass: bool) -> None:
        """End the range of the open phase, and open one for the phase that an event begins.

        None is opened for an evaluation, or if the event may lie between two passes over the data (`is_within_pass` is
        False). The range of the step is opened first if it is not open.
        """
        self._close_phase()
        phase = phase_of(event)
        if phase is None or phase == EVALUATION or not is_within_pass:
            return
        self.show_step(window)
        if window != "warmup":
            self._open_range(phase)

    def show_step(self, window: str) -> None:
        """Open a range for the step that has begun, if none is open."""
        if not self._open:
            self._open_range("warmup" if window == "warmup" else "step")

    def close(self) -> None:
        """End the range of the step, and that of its phase."""
        self._close_phase()
        if self._open:
            self._open.pop().__exit__(None, None, None)

    def _close_phase(self) -> None:
        if len(self._open) > 1:
            self._open.pop().__exit__(None, None, None)

    def _open_range(self, name: str) -> None:
        opened = self._capture.range(name)
        opened.__enter__()
        self._open.append(opened)
