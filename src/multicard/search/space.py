"""The finite space that a search chooses from."""

import operator
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

# The index of each parameter's value in the list of its values.
Levels = tuple[int, ...]
# Names a configuration.
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Space(Generic[Key]):
    """Combinations of values of some parameters, and the configurations that they stand for."""

    # The values of each parameter.
    parameters: Mapping[str, Sequence[Any]]
    # The configuration of each combination. Several combinations have the same where a parameter has no effect.
    configurations: Mapping[Levels, Key]

    @cached_property
    def combinations(self) -> dict[Key, list[Levels]]:
        """The combinations that stand for each configuration, in the order of `configurations`."""
        combinations: dict[Key, list[Levels]] = {}
        for levels, key in self.configurations.items():
            combinations.setdefault(key, []).append(levels)
        return combinations

    def neighbours(self, key: Key) -> list[Key]:
        """Return the configurations that differ from one in the value of a single parameter.

        A configuration occurs once for each of its combinations that does.

        >>> space = Space({"a": [1, 2], "b": [1, 2]}, {(0, 0): "x", (0, 1): "y", (1, 0): "z", (1, 1): "w"})
        >>> space.neighbours("x")
        ['y', 'z']
        """
        return [
            other
            for levels, other in self.configurations.items()
            if any(_differences(levels, combination) == 1 for combination in self.combinations[key])
        ]


def _differences(first: Levels, second: Levels) -> int:
    return sum(map(operator.ne, first, second))
