"""Notice the first call of a module after a batch was given, where the transfer of the batch ends."""

import weakref
from collections.abc import Callable
from threading import get_ident
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook


class FirstCall:
    """Calls `callback` once after each `wait`, when this thread next calls a module that has parameters.

    A hook for calls of modules is in place only during this time, because it makes every call slower. Who does not want
    to wait any more ignores the callback: to take the hook away takes longer, and mostly the next batch would put it
    back. `wait` must not be called where torch.compile is used, because that would compile the hook, too.
    """

    def __init__(self, callback: Callable[[], None]):
        self.is_waiting = False  # True while the hook is in place, when a further `wait` would change nothing
        self._callback = callback
        self._thread = get_ident()
        # PyTorch's dictionary of hooks, and the key of this one. The hook is put there and taken away in every step,
        # and to register it again would make a handle with a weak reference in each step.
        handle = register_module_forward_pre_hook(self._called)
        self._hooks: Any = handle.hooks_dict_ref()
        self._key = handle.id
        handle.remove()
        # The module that ended the last wait, and so has parameters: looking for these takes long in a nested module.
        self._last_module: Callable[[], nn.Module | None] = lambda: None

    def wait(self) -> None:
        """Wait for the next call of a module."""
        self.is_waiting = True
        self._hooks[self._key] = self._called

    def stop(self) -> None:
        """Wait no more."""
        self.is_waiting = False
        self._hooks.pop(self._key, None)

    def _called(self, module: nn.Module, _inputs: Any) -> None:
        if get_ident() != self._thread:
            return
        if module is not self._last_module():
            # Augmentation and losses are modules as well, but have no parameters: they do not end the wait.
            if next(module.parameters(), None) is None:
                return
            self._last_module = weakref.ref(module)
        self.stop()
        self._callback()
