"""Notice the first call of a module after a batch was given, where the transfer of the batch ends."""

from collections.abc import Callable
from threading import get_ident
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle


class FirstCall:
    """Calls `callback` once after each `wait`, when this thread next calls a module that has parameters.

    A hook for calls of modules is registered only during this time, because it makes every call slower. `wait` must not
    be called where torch.compile is used, because that would compile the hook, too.
    """

    def __init__(self, callback: Callable[[], None]):
        self._callback = callback
        self._thread = get_ident()
        self._handle: RemovableHandle | None = None  # None while no hook is registered

    def wait(self) -> None:
        """Wait for the next call of a module."""
        self.stop()
        self._handle = register_module_forward_pre_hook(self._called)

    def stop(self) -> None:
        """Wait no more."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def _called(self, module: nn.Module, _inputs: Any) -> None:
        # Augmentation and losses are modules as well, but have no parameters: they do not end the wait.
        if get_ident() == self._thread and next(module.parameters(), None) is not None:
            self.stop()
            self._callback()
