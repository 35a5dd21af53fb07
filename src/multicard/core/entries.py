"""Make mappings by name of entries such as strategies, techniques, launchers and profilers."""

from typing import Protocol, TypeVar


class Named(Protocol):
    """An entry that states its name."""

    @property
    def name(self) -> str:
        """Name by which configurations and commands refer to the entry."""


Entry = TypeVar("Entry", bound=Named)


def by_name(*entries: Entry) -> dict[str, Entry]:
    """Return the entries by name, in the given order. Documentation and help list them in this order.

    Raises `ValueError` if two entries share a name.
    """
    mapping: dict[str, Entry] = {}
    for entry in entries:
        if entry.name in mapping:
            raise ValueError(f"two entries are named {entry.name}")
        mapping[entry.name] = entry
    return mapping
