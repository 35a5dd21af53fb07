"""What a script says of its steps itself, by the functions of `multicard.marks`."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from threading import get_ident
from typing import Any

from torch.utils.data import DataLoader

from multicard.record.observe.loaders import WrappedLoader
from multicard.record.observe.phases import LEFT


class MarkedScript:
    """The part of `Observer` that gets the marks of a script, which come before all that is inferred."""

    def mark_step(self, **counts: int | None) -> None:
        """A step ends here."""
        self._force_exit()
        if not self._marked:
            self._marked = True
            self._restart()
        if self._recording is not None and not self._ended:
            self._recording.count(counts)
            if self.graphed is not None:
                self.graphed.counts = counts
        self._end_step(None)

    def mark_training(self, steps: int | None, epoch: int) -> None:
        """The first step begins here, in that epoch."""
        self._marked, self._training_steps, self.epoch = True, steps, epoch
        self._restart()
        self._end_step(None)

    @contextlib.contextmanager
    def mark_phase(self, name: str) -> Iterator[None]:
        """The block is a phase."""
        is_open = self._recording is not None and not self._ended and get_ident() == self._thread
        if is_open:
            self._recording.mark(name)
        yield
        if is_open:
            self._recording.mark(LEFT)

    def mark_values(self, values: Mapping[str, Any], weight: float) -> None:
        """The step, or an epoch, has these values."""
        if self._recording is not None and not self._ended:
            self._recording.log(values, weight, self.epoch, is_begun=self.batches > 0 or self._backward_in_step)

    def wrap_loader(self, loader: Iterable[Any], ahead: int) -> Iterable[Any]:
        """The loader, with the observer told of its batches."""
        return loader if isinstance(loader, DataLoader) else WrappedLoader(self, loader, ahead)
