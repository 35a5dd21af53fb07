"""How the choices of a job compare: by what they learn, then by their speed.

Choices of one family are the same training on the same number of devices, so only their speed decides. Each is compared
with the fastest of its family. To train otherwise, in another precision for example, is the user's decision: the
fastest of such a family is compared with the fastest that learns as the reference does, to show what it gains.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from multicard.analysis.choice.choice import Choice, Gain
from multicard.analysis.choice.learning import Learning, changes_from, key_of
from multicard.core.grouping import grouped
from multicard.experiment.workload import BATCH
from multicard.stats.interval import Interval
from multicard.stats.pool import Pool


@dataclass(frozen=True)
class _Training:
    """The choices that learn the same from a sample, on any number of devices."""

    choices: list[Choice]
    # Numbers of devices that trainings ran on which differ at most in their batch: under weak scaling the batch grows
    # with the devices.
    device_counts_of_any_batch: frozenset[int]

    @property
    def learning(self) -> Learning:
        return self.choices[0].learning

    @property
    def rank(self) -> tuple[int, int, int, int]:
        """Sort key: trainings on the most numbers of devices first, then on the smallest one, then of most choices."""
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
        """Return the speed of each choice but the fastest over that of the fastest, by key."""
        fastest = self.fastest.key
        rivals = [choice.key for choice in self.choices if choice.key != fastest]
        return dict(zip(rivals, pool.against_best(fastest, rivals), strict=True))


def ordered(choices: Sequence[Choice]) -> list[Choice]:
    """Return choices with what they change; those of the reference training first, then by devices and time.

    The reference is the training that was measured on most numbers of devices. The others follow by the number of
    things that they change.
    """
    trainings = _trainings(choices)
    if not trainings:
        return []
    reference = min(trainings, key=lambda training: training.rank)
    others = [training for training in trainings if training is not reference]
    others.sort(key=lambda training: (len(changes_from(reference.learning, training.learning)), training.rank))
    return [
        replace(choice, changes=changes_from(reference.learning, choice.learning))
        for training in (reference, *others)
        for choice in sorted(training.choices, key=lambda choice: (choice.devices, choice.time_s.value))
    ]


def compared(choices: Sequence[Choice]) -> list[Choice]:
    """Return choices, whose changes are known, with how each compares with the fastest of others."""
    pool = Pool({choice.key: choice.configuration.blocks(choice.configuration.rate) for choice in choices})
    results: dict[Hashable, Choice] = {}
    for on_as_many in grouped(choices, lambda choice: choice.devices).values():
        families = [_Family(members) for members in grouped(on_as_many, lambda choice: choice.family).values()]
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
    of_any_batch = grouped(choices, _key_without_batch)
    trainings = []
    for alike in grouped(choices, lambda choice: key_of(choice.learning)).values():
        similar = of_any_batch[_key_without_batch(alike[0])]
        trainings.append(_Training(alike, frozenset(choice.devices for choice in similar)))
    return trainings


def _key_without_batch(choice: Choice) -> tuple[Any, ...]:
    return key_of({name: value for name, value in choice.learning.items() if name != BATCH})


def _gains(families: Sequence[_Family], pool: Pool) -> dict[Hashable, Gain]:
    """Return what the fastest of each family gains over the fastest that trains like the reference, by key.

    `families` are all that ran on one number of devices; any of their choices may have been the fastest.
    """
    fastest = [family.fastest for family in families]
    reference = next((choice for choice in fastest if choice.trains_like_reference), None)
    if reference is None:
        return {}
    changed = [choice.key for choice in fastest if choice is not reference]
    ratios = pool.against_best(reference.key, changed, among=sum(len(family.choices) for family in families))
    return {
        key: Gain(ratio, reference.learning) for key, ratio in zip(changed, ratios, strict=True) if ratio is not None
    }
