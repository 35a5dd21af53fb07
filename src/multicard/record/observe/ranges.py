"""The ranges that a trace shows of the steps of a script, and of their phases."""

from contextlib import AbstractContextManager
from typing import Any

from multicard.record.capture import Capture
from multicard.record.observe.phases import BACKWARD, ENDS, EVALUATION, UNFED_BACKWARD


class Ranges:
    """A range of the step in the trace, and within it one of its phase; of a step of the warm-up the former alone."""

    def __init__(self, capture: Capture):
        self._capture = capture
        self._open: list[AbstractContextManager[Any]] = []

    def show(self, window: str, event: str | None, is_within: bool) -> None:
        """Show what an event begins, if that is within a pass over the data."""
        self.close(1)
        if event in (*ENDS, EVALUATION) or not is_within:
            return
        self.show_step(window)
        if window != "warmup":
            self._begin(BACKWARD if event == UNFED_BACKWARD else event, 1)

    def show_step(self, window: str) -> None:
        """Show the step that has begun, if it is not shown."""
        self._begin("warmup" if window == "warmup" else "step", 0)

    def close(self, level: int = 0) -> None:
        """End the ranges from a level on: 0 the step's, 1 its phase's."""
        while len(self._open) > level:
            self._open.pop().__exit__(None, None, None)

    def _begin(self, name: str, level: int) -> None:
        if len(self._open) == level:
            self._open.append(self._capture.range(name))
            self._open[-1].__enter__()
