"""How the choices of a job compare: by what they learn, then by their speed.

Choices of one family are the same training on the same number of devices, so only their speed decides. Each is compared
with the fastest of its family. Whether to train differently, for example in another precision, is for the user to
decide. To show what that gains, the fastest choice of each family is compared with the fastest choice of a family on as
many devices that trains like the reference (`_gains`).
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from multicard.answers.choice.choice import Choice, Gain
from multicard.answers.choice.learning import Learning, changes_from, key_of
from multicard.answers.pools import pool_of_rates
from multicard.core.grouping import grouped
from multicard.programs.program import BATCH
from multicard.results.configuration import Configuration
from multicard.stats.interval import Interval
from multicard.stats.pool import Pool


@dataclass(frozen=True)
class _Training:
    """The choices that learn the same from a sample, on any number of devices."""

    choices: list[Choice]
    # Numbers of devices that this training ran on, together with those of trainings that differ from it in the batch
    # alone: under weak scaling the batch grows with the devices.
    device_counts_of_any_batch: frozenset[int]

    @property
    def learning(self) -> Learning:
        return self.choices[0].learning

    @property
    def sort_key(self) -> tuple[int, int, int, int]:
        """The key that sorts trainings by how well they serve as the reference, the best first.

        A training is better if it ran on more numbers of devices. If this is equal, the larger
        `device_counts_of_any_batch` is better; if that is equal, too, the smaller smallest number of devices; and at
        last the larger number of choices. A training with one choice on 1 and one on 2 devices has (-2, -2, 1, -2).
        """
        device_counts = {choice.devices for choice in self.choices}
        return (
            -len(device_counts),
            -len(self.device_counts_of_any_batch),
            min(device_counts),
            -len(self.choices),
        )


@dataclass(frozen=True)
class _Family:
    """The choices of one training on one number of devices."""

    choices: list[Choice]

    @property
    def fastest(self) -> Choice:
        return max(self.choices, key=lambda choice: choice.rate.value)

    def ratios(self, pool: Pool) -> dict[Hashable, Interval | None]:
        """Return for each choice but the fastest its speed over that of the fastest, by the choice's key."""
        fastest_key = self.fastest.key
        slower_keys = [choice.key for choice in self.choices if choice.key != fastest_key]
        ratios = pool.against_best(fastest_key, slower_keys)
        return dict(zip(slower_keys, ratios, strict=True))


def ordered(choices: Sequence[Choice]) -> list[Choice]:
    """Return the choices, sorted, with `changes`: how what each learns differs from the reference training.

    The reference is the training with the best `sort_key`: it was measured on the most numbers of devices. Its choices
    come first, then those of the other trainings, by rising number of changes. Within a training the choices are sorted
    by devices, then by time.

    An example with four choices: three train in fp32, on 1, 1 and 2 devices, and one in bf16. Those in fp32 come first,
    led by the faster one on 1 device. The one in bf16 is last, with `changes` {"precision": ("fp32", "bf16")}.
    """
    trainings = _trainings(choices)
    if not trainings:
        return []
    reference = min(trainings, key=lambda training: training.sort_key)

    def distance(training: _Training) -> tuple[Any, ...]:
        changes = changes_from(reference.learning, training.learning)
        return len(changes), training.sort_key

    changed_trainings = [training for training in trainings if training is not reference]
    changed_trainings.sort(key=distance)
    return [
        replace(choice, changes=changes_from(reference.learning, choice.learning))
        for training in (reference, *changed_trainings)
        for choice in sorted(training.choices, key=lambda choice: (choice.devices, choice.time_s.value))
    ]


def compared(choices: Sequence[Choice], others: Sequence[Configuration] = ()) -> list[Choice]:
    """Return the choices in their order, each compared with other choices on as many devices.

    `choices`: as `ordered` returns them, with their `changes`. `others`: configurations of other jobs, which only show
    how much scenarios scatter. The results have `ratio` (speed over that of the fastest of the family; None for the
    fastest itself), `rivals` (how many choices the family has) and `gain` (see `_gains`). If a family has two choices
    with 1 and 2 samples per second, the first has a ratio of 0.5, and both have 2 rivals.
    """
    pool = pool_of_rates([choice.configuration for choice in choices], others)
    results: dict[Hashable, Choice] = {}
    for choices_on_count in grouped(choices, lambda choice: choice.devices).values():
        choices_by_family = grouped(choices_on_count, lambda choice: choice.family)
        families = [_Family(members) for members in choices_by_family.values()]
        gains = _gains(families, pool)
        for family in families:
            ratios = family.ratios(pool)
            for choice in family.choices:
                results[choice.key] = replace(
                    choice,
                    ratio=ratios.get(choice.key),
                    rivals=len(family.choices),
                    gain=gains.get(choice.key),
                )
    return [results[choice.key] for choice in choices]


def _trainings(choices: Sequence[Choice]) -> list[_Training]:
    choices_of_any_batch = grouped(choices, _key_without_batch)
    trainings = []
    for members in grouped(choices, lambda choice: key_of(choice.learning)).values():
        with_any_batch = choices_of_any_batch[_key_without_batch(members[0])]
        device_counts = frozenset(choice.devices for choice in with_any_batch)
        trainings.append(_Training(members, device_counts))
    return trainings


def _key_without_batch(choice: Choice) -> tuple[Any, ...]:
    return key_of({name: value for name, value in choice.learning.items() if name != BATCH})


def _gains(families: Sequence[_Family], pool: Pool) -> dict[Hashable, Gain]:
    """Return what the fastest choice of each family gains over that of the baseline family, by the choice's key.

    `families`: all families on one number of devices, in the order of `ordered`. The baseline is the first one that
    trains like the reference: the reference training itself if it ran on that number, else one with another batch. The
    result is empty without a baseline. A choice whose ratio is not known has no entry.
    """
    fastest_of_families = [family.fastest for family in families]
    baseline = next((choice for choice in fastest_of_families if choice.trains_like_reference), None)
    if baseline is None:
        return {}
    changed_keys = [choice.key for choice in fastest_of_families if choice is not baseline]
    # Each compared choice was picked because it is the fastest of its family. So p-values are those of a comparison of
    # any two among all choices on this number of devices.
    choice_count = sum(len(family.choices) for family in families)
    ratios = pool.against_best(baseline.key, changed_keys, among=choice_count)
    return {
        key: Gain(ratio, baseline.learning)
        for key, ratio in zip(changed_keys, ratios, strict=True)
        if ratio is not None
    }
