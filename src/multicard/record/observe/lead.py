"""Which optimizer's updates end the steps, and what a process is in the middle of."""

import sys
import weakref
from collections import Counter
from typing import Any

import torch

# Updates of another optimizer since the lead's last one, or times as many as there were between two of these, beyond
# which it leads.
MOST_BESIDE, TIMES_BESIDE = 20, 3


class Lead:
    """The optimizer that leads: the first one that updates, until another one is all that updates. Each leads once."""

    def __init__(self) -> None:
        self._of: weakref.ref[Any] | None = None
        self._former = weakref.WeakSet[Any]()
        self._beside: Counter[int] = Counter()  # updates since the lead's last one, by the optimizer's identity
        self._most_beside = 0

    @property
    def optimizer(self) -> Any:
        """The one that leads, if there is one."""
        return self._of() if self._of else None

    def is_held_by(self, optimizer: Any) -> bool:
        """Whether an optimizer that has updated leads, as it does where there is none yet."""
        lead = self.optimizer
        if lead is None:
            lead, self._of = optimizer, weakref.ref(optimizer)
        if lead is not optimizer:
            return False
        if self._beside:
            self._most_beside = max(self._most_beside, *self._beside.values())
            self._beside.clear()
        return True

    def pass_on(self, optimizer: Any) -> Any:
        """Have another optimizer that has updated lead, if it is its turn; give the one that led before, else None."""
        self._beside[id(optimizer)] += 1
        most = max(MOST_BESIDE, TIMES_BESIDE * self._most_beside)
        if self._beside[id(optimizer)] <= most or optimizer in self._former or is_capturing():
            return None
        former, self._of = self.optimizer, weakref.ref(optimizer)
        self._former.add(former)
        self._beside.clear()
        self._most_beside = 0
        return former


def trains(optimizer: Any) -> tuple[type, int]:
    """What an optimizer does: its type, and of how many numbers its parameters are."""
    groups = getattr(optimizer, "param_groups", None) or []
    return type(optimizer), sum(each.numel() for group in groups for each in group["params"])


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
