"""The finite space of configurations that a search chooses from."""

import operator
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

# A combination of values: for each parameter, the index of its value in the list of the parameter's values.
Levels = tuple[int, ...]
# Identifies a configuration.
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Space(Generic[Key]):
    """Combinations of values of some parameters, and the configuration of each combination."""

    # The values of each parameter.
    parameters: Mapping[str, Sequence[Any]]
    # The configuration of each combination. If a parameter has no effect beside the values of others, several
    # combinations have the same configuration.
    configurations: Mapping[Levels, Key]

    @cached_property
    def combinations(self) -> dict[Key, list[Levels]]:
        """The combinations of each configuration, in the order of `configurations`."""
        combinations: dict[Key, list[Levels]] = {}
        for levels, key in self.configurations.items():
            combinations.setdefault(key, []).append(levels)
        return combinations

    def neighbours(self, key: Key) -> list[Key]:
        """Return the configurations that differ from `key` in the value of exactly one parameter.

        If several combinations of a configuration differ so, the configuration is returned several times.

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
    """Return the number of parameters whose values differ."""
    return sum(map(operator.ne, first, second))
