"""What a pass over a loader gave, and which steps used it."""

from collections import Counter
from collections.abc import Container, Sequence
from typing import Any

from multicard.core.system import read_or_none
from multicard.record.observe.contents import Contents, made_by_data_set, shared_sizes, tokens_in
from multicard.record.observe.loaders import Loader


class Pass:
    """Batches that one pass over a loader gave.

    Attributes
    ----------
    batches
        The step that asked for each, and its contents.
    ended
        The step that found the loader exhausted; None before.
    trained
        Whether a backward pass or an update followed any of them: else they are of a test.
    """

    def __init__(self, loader: Loader):
        self.loader = loader
        self.batches: list[tuple[int, Contents]] = []
        self.ended: int | None = None
        self.trained = False
        self._shows: bool | None = None  # whether the first one, which is full, shows its samples

    def add(self, step: int, batch: Any, asked: int | None) -> None:
        """Count a batch that a step asked for.

        Parameters
        ----------
        asked
            Samples that the loader asked its data set for; None where that is not known, as of a stream.
        """
        # A batch may be anything. What was asked counts whatever it looks like, as with two views of each sample.
        samples = asked if asked not in (None, 1) else read_or_none(lambda: self._samples(batch, asked))
        tokens = read_or_none(lambda: tokens_in(batch))
        self.batches.append((step, Contents(samples, tokens)))

    def _samples(self, batch: Any, asked: int | None) -> int | None:
        """Samples of a batch of a stream, or of one that a data set made; those that the loader states are believed."""
        stated = asked or self.loader.batch_size
        if stated is None:
            return made_by_data_set(batch)
        sizes = shared_sizes(batch)
        if stated == 1:  # a loader of single items, each of which is a batch or a sample as it may be
            is_list_of_one = isinstance(batch, list | tuple) and len(batch) == 1
            return 1 if 1 in sizes or not sizes or is_list_of_one else None
        if self._shows is None:
            self._shows = stated in sizes
        smaller = {size for size in sizes if size < stated}
        if not self._shows or stated in sizes or not smaller:
            return stated
        return smaller.pop() if len(smaller) == 1 else None


def used_by_step(passes: Sequence[Pass]) -> dict[int, list[Contents]]:
    """Contents of the batches that each step used, by the steps.

    Accelerate, timm and others ask in the first step of a pass for what every later step asks for and some more, to
    have the next batch at hand. Where all later steps ask for equally many, each uses so many, one after another, until
    the next pass over the same loader begins; else a batch is used by the step that asks for it.
    """
    found: dict[int, list[Contents]] = {}
    begins = {each.batches[0][0] for each in passes}
    for each in passes:
        own = [other for other in passes if other.loader == each.loader]
        pace = next((known for other in (each, *own) if (known := _per_step(other, begins)) is not None), 0)
        first, again = each.batches[0][0], {other.batches[0][0] for other in own}
        end = min((step for step in again if step > first), default=None)
        for number, (asking, contents) in enumerate(each.batches):
            step = first + number // pace if pace else asking
            if end is None or step < end or step == asking:
                found.setdefault(step, []).append(contents)
    return found


def asks_ahead(passes: Sequence[Pass]) -> bool:
    """Whether a script asks for batches before it uses the last, in any pass that is long enough to tell."""
    begins = {each.batches[0][0] for each in passes}
    return any(_in_step(each)[each.batches[0][0]] > pace for each in passes if (pace := _per_step(each, begins)))


def _per_step(one: Pass, begins: Container[int]) -> int | None:
    """Batches that each step of a pass uses: 0 where that cannot be told, None where the pass is too short for it.

    `begins`: steps in which passes begin.
    """
    asked, first, last = _in_step(one), one.batches[0][0], one.batches[-1][0]
    if last <= first + 1 and (one.ended is None or one.ended in begins):
        return None
    per_step = asked[first + 1]
    is_steady = asked[first] >= per_step and all(asked[step] == per_step for step in range(first + 1, last))
    return per_step if is_steady else 0


def _in_step(one: Pass) -> Counter[int]:
    """How many batches each step asked for."""
    return Counter(step for step, _ in one.batches)
