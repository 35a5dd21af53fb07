"""When a batch has reached the model, by PyTorch's own hook."""

from collections.abc import Callable
from threading import get_ident
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook


class FirstCall:
    """Tells when this thread next calls a module that has parameters, if it is waited for.

    The hook is there only so long, since with it every call of a module would cost more. Where torch.compile is used it
    must not be: that would compile the hook, too.

    Parameters
    ----------
    tell
        Called once for each `wait`.
    """

    def __init__(self, tell: Callable[[], None]):
        self._tell, self._thread = tell, get_ident()
        self._handle: Any = None

    def wait(self) -> None:
        """Wait for the next call."""
        self.stop()
        self._handle = register_module_forward_pre_hook(self._called)

    def stop(self) -> None:
        """Wait no more."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def _called(self, module: nn.Module, _inputs: Any) -> None:
        # Augmentation and losses are modules as well.
        if get_ident() == self._thread and next(module.parameters(), None) is not None:
            self.stop()
            self._tell()
