"""Show the steps of a script and their phases as named ranges in a trace."""

from contextlib import AbstractContextManager

from multicard.record.capture import Capture
from multicard.record.observe.phases import BACKWARD, BACKWARD_WITHOUT_LOADER, ENDS, EVALUATION


class Ranges:
    """Names for the steps in a trace, and within each for its phases; a step of the warm-up has no phases."""

    def __init__(self, capture: Capture):
        self.are_shown = False  # while the profiler records
        self._capture = capture
        self._open: list[AbstractContextManager[object]] = []  # the step's range, and that of its phase

    def show(self, window: str, event: str | None, is_within_pass: bool) -> None:
        """Show what an event begins, unless that is between two passes over the data."""
        self._close_phase()
        if event in ENDS or event == EVALUATION or not is_within_pass:
            return
        self.show_step(window)
        if window != "warmup":
            self._open_range(BACKWARD if event == BACKWARD_WITHOUT_LOADER else str(event))

    def show_step(self, window: str) -> None:
        """Show the step that has begun, if it is not shown."""
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
