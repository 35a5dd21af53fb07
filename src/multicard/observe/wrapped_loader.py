"""Report the batches of a loader that is not PyTorch's to the observer."""

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from multicard.core.system import read_or_none
from multicard.observe.ablation import Replay
from multicard.observe.batches import Pass
from multicard.observe.loaders import Loader, description_of_wrapped


class BatchObserver(Protocol):
    """The part of `Observer` to which batches are reported."""

    @property
    def replay(self) -> Replay | None:
        """See `Observer`."""

    def iterator_asked(self, loader: Loader | None, is_plain: bool = True) -> bool:
        """See `Observer`."""

    def iterator_given(self) -> None:
        """See `Observer`."""

    def batch_asked(self, iterator: Any) -> Pass | None:
        """See `Observer`."""

    def batch_given(self, iterator: Any, drawn: Pass, batch: Any, given: bool) -> None:
        """See `Observer`."""


class WrappedIterator:
    """Takes the place of PyTorch's iterator: it has the attributes that the observer and `Replay` read."""

    def __init__(self, loader: Loader):
        self._multicard_loader = loader
        self._multicard_kept: Any = None  # `ablation.Kept` in a run without loading
        self._num_yielded = 0


class WrappedLoader:
    """Gives the batches of another loader, and reports them to the observer. It has the other loader's attributes.

    `ahead`: number of batches that the other loader prepares before they are asked for.
    """

    def __init__(self, observer: BatchObserver, loader: Iterable[Any], ahead: int):
        self._observer = observer
        self._loader = loader
        self._ahead = ahead

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]  # raises what the loader raises if it has no length

    def __iter__(self) -> Iterator[Any]:
        iterator = WrappedIterator(self._describe())
        replay = self._observer.replay
        is_in_step = self._observer.iterator_asked(iterator._multicard_loader)
        try:
            plain_iterator = iter(self._loader)
        finally:
            if is_in_step:
                self._observer.iterator_given()
        if replay is not None:
            iterator._multicard_kept = replay.kept_of(self)

        def take(iterator: WrappedIterator) -> Any:
            batch = next(plain_iterator)
            iterator._num_yielded += 1
            return batch

        while True:
            drawn = self._observer.batch_asked(iterator)
            batch = None
            given = False
            try:
                batch = take(iterator) if replay is None or drawn is None else replay.take(take, iterator, drawn)
                given = True
            except StopIteration:
                return
            finally:
                if drawn is not None:
                    self._observer.batch_given(iterator, drawn, batch, given)
            yield batch

    def _describe(self) -> Loader:
        length = read_or_none(lambda: len(self))
        return Loader(description_of_wrapped(self._loader, length), None, length, self._ahead)
