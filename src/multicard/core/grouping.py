"""Group items by a key."""

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Return for each key the items that have it.

    Keys are in the order of their first items, and the items of a key in the order in which they came.

    >>> grouped(["one", "two", "three"], len)
    {3: ['one', 'two'], 5: ['three']}
    """
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups
