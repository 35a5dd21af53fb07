"""Which optimizer's updates end the steps, and what a process is in the middle of."""

import sys
import weakref
from typing import Any

import torch


class Lead:
    """The optimizer that leads: the first one that updates, and once it is gone, the next one that does."""

    def __init__(self) -> None:
        self._of: weakref.ref[Any] | None = None

    @property
    def optimizer(self) -> Any:
        """The one that leads, if there is one."""
        return self._of() if self._of else None

    def is_held_by(self, optimizer: Any) -> bool:
        """Whether an optimizer that has updated leads."""
        if self.optimizer is None:
            self._of = weakref.ref(optimizer)
        return self.optimizer is optimizer


def is_capturing() -> bool:
    """Whether a CUDA graph is being captured, in which nothing can be timed."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def error_of_exit() -> BaseException | None:
    """The error that ends this process.

    Python keeps one that nobody caught; multiprocessing runs its exit handlers while the error is on its way, and
    torch.multiprocessing exits with 1 because of one.
    """
    error = sys.exc_info()[1] or getattr(sys, "last_value", None)
    if isinstance(error, SystemExit):
        error = error.__context__ if error.code else None
    return error
