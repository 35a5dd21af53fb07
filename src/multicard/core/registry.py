"""Registries: one entry per strategy, technique, profiler, figure or workload, each in a module of its own."""

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, TypeVar

T = TypeVar("T")


class Registry(Mapping[str, T]):
    """Entries by name, in their `order`, equal ones by name, found in the modules of a package when first asked for.

    Adding an entry is adding a module: each module (or package) right below `package`, a dotted name, that has the
    attribute gives one entry, or several in a tuple.

    Raises `ValueError` if two entries share a name, when the registry is first asked.
    """

    def __init__(self, package: str, attribute: str):
        self.package, self.attribute = package, attribute

    @cached_property
    def _entries(self) -> dict[str, T]:
        found: list[T] = []
        for module in pkgutil.iter_modules(importlib.import_module(self.package).__path__):
            if module.name.startswith("_"):
                continue
            given: Any = getattr(importlib.import_module(f"{self.package}.{module.name}"), self.attribute, ())
            found += given if isinstance(given, tuple) else (given,)
        found.sort(key=lambda entry: (entry.order, entry.name))
        entries = {entry.name: entry for entry in found}
        if len(entries) < len(found):
            twice = next(entry.name for entry in found if sum(other.name == entry.name for other in found) > 1)
            raise ValueError(f"{self.package}: two entries are named {twice}")
        return entries

    def __getitem__(self, name: str) -> T:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)
