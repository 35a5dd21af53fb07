"""What a pass over a loader gave, and which steps used it."""

import itertools
from collections import Counter
from collections.abc import Container, Sequence
from typing import Any

from multicard.core.system import read_or_none
from multicard.record.observe.contents import Contents, Reading, first_reading, later_samples, tokens_in
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
        self._first: Reading | None = None

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
        if asked == 1:
            return first_reading(batch, 1).samples
        if self._first is None:
            self._first = first_reading(batch, self.loader.batch_size)
            return self._first.samples
        return later_samples(batch, self.loader.batch_size, self.loader.drop_last, self._first)


def used_by_step(passes: Sequence[Pass]) -> dict[int, list[Contents]]:
    """Contents of the batches that each step used, by the steps that asked for them.

    A batch is used by the step that asks for the one so many later as the script is ahead, and the last ones of a pass
    by the steps that find the loader exhausted.
    """
    found: dict[int, list[Contents]] = {}
    begins = {each.batches[0][0] for each in passes}
    by_loader: list[list[Pass]] = []
    for each in passes:
        own = next((group for group in by_loader if group[0].loader == each.loader), [])
        if not own:
            by_loader.append(own)
        own.append(each)
    for own in by_loader:
        again = {each.batches[0][0] for each in own}
        paces = [_pace(each, begins) for each in own]
        known = next(filter(None, paces), (0, 1))
        for each, pace in zip(own, paces, strict=True):
            steps = _using_steps(each, *(pace or known), again)
            for step, (_, contents) in zip(steps, each.batches, strict=False):  # those not used yet are left out
                found.setdefault(step, []).append(contents)
    return found


def asks_ahead(passes: Sequence[Pass]) -> bool:
    """Whether a script asks for batches before it uses the last, in any pass that is long enough to tell."""
    begins = {each.batches[0][0] for each in passes}
    return any(pace is not None and pace[0] > 0 for pace in (_pace(each, begins) for each in passes))


def _using_steps(one: Pass, ahead: int, per_step: int, again: Container[int]) -> list[int]:
    """Steps that use the batches of a pass, one after another; `again`: those in which passes of its loader begin."""
    steps = [step for step, _ in one.batches][ahead:]
    if ahead and one.ended is not None:
        before = steps.count(one.ended)
        rest = (one.ended + number // per_step for number in range(before, before + ahead))
        steps += itertools.takewhile(lambda step: step not in again, rest)
    return steps


def _pace(one: Pass, begins: Container[int]) -> tuple[int, int] | None:
    """Batches that a script is ahead of its steps in a pass, and those of a step; None where the pass is too short.

    Accelerate, timm and others ask in the first step of a pass for what every later step asks for and some more, to
    have the next batch at hand. Where later steps do not ask for equally many, none are taken to be ahead.
    `begins`: steps in which passes begin.
    """
    asked, first, last = Counter(step for step, _ in one.batches), one.batches[0][0], one.batches[-1][0]
    if last <= first + 1 and (one.ended is None or one.ended in begins):
        return None
    per_step = asked[first + 1]
    is_steady = per_step > 0 and all(asked[step] == per_step for step in range(first + 1, last))
    return (max(0, asked[first] - per_step), per_step) if is_steady else (0, 1)
