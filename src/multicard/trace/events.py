"""Events of one kind from all traces of a capture, as arrays.

Each group of events is described once. An event only holds the code of its group.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from multicard.trace.model import Integers
from multicard.trace.statistics import Grouped

# A process of a capture: (trace, process id). The trace is given by its position among the traces of the capture.
Owner = tuple[int, int]
# Where events happened: (trace, process) on the host, (trace, process, device) on a device, or () if the starts of the
# events were not read. The first two elements are the `Owner`.
Location = tuple[Any, ...]


@dataclass
class Events:
    """Events of one kind from all traces, made by `collect`.

    An event is a position in `code` and in each array of `arrays`. `arrays` holds the numbers that `collect` was asked
    for, as uint32 where all of them fit. `code` is the code of the event's group. `groups` has, by code, the trace and
    then the values of `fields`. Events of one location lie side by side, in the order in which they were recorded, in
    the slice that `locations` has for it. `left_out` has, by trace and process, the number of events that end
    before they begin; these are not among the events here.

    >>> kernels = Events(
    ...     fields=("process", "device", "name"),
    ...     groups=[(0, 4242, 1, "gemm"), (0, 4242, 1, "relu")],
    ...     code=np.array([0, 1, 0]),
    ...     arrays={"start": np.array([10, 20, 30]), "duration": np.array([5, 6, 7])},
    ...     locations={(0, 4242, 1): slice(0, 3)},
    ... )
    >>> is_gemm = kernels.mask(name == "gemm" for name in kernels.group_field("name"))
    >>> is_gemm.tolist(), kernels.ends(np.flatnonzero(is_gemm)).tolist()
    ([True, False, True], [15, 37])
    """

    fields: tuple[str, ...]
    groups: list[tuple[Any, ...]]
    code: Integers
    arrays: dict[str, Integers]
    locations: dict[Location, slice]
    left_out: dict[Owner, int] = dataclass_field(default_factory=dict)

    def where(self, keep: npt.NDArray[np.bool_]) -> "Events":
        """Return the events for which `keep` is True, without groups and locations that lose all of their events."""
        if keep.all():
            return self
        kept = np.flatnonzero(keep)
        old_code = self.code.take(kept)
        is_used = np.bincount(old_code, minlength=len(self.groups)) > 0
        # The remaining codes are renumbered without gaps: if group 1 loses all of its events, group 2 becomes group 1.
        new_code_of_old = (np.cumsum(is_used) - 1).astype(old_code.dtype)
        return Events(
            fields=self.fields,
            groups=[self.groups[code] for code in np.flatnonzero(is_used).tolist()],
            code=new_code_of_old.take(old_code),
            arrays={name: values.take(kept) for name, values in self.arrays.items()},
            locations=self._locations_of(kept),
            left_out=self.left_out,
        )

    def _locations_of(self, kept: Integers) -> dict[Location, slice]:
        """Return the locations that have some of the kept positions, each with its slice of the array `kept`."""
        locations: dict[Location, slice] = {}
        for location, part in self.locations.items():
            first, last = np.searchsorted(kept, (part.start, part.stop)).tolist()
            if first < last:
                locations[location] = slice(first, last)
        return locations

    def slice_of(self, location: Location) -> slice:
        """Return the slice of the events of a location; an empty one if it has none."""
        return self.locations.get(location, slice(0, 0))

    def locations_of(self, owner: Location) -> list[Location]:
        """Return the locations of a process: its devices, for events that run on devices."""
        return [location for location in self.locations if location[:2] == owner]

    def array_at(self, name: str, location: Location) -> Integers:
        """Return the array `name` of the events of a location, in the type in which it is stored.

        It is a view: writing to it changes `arrays`.
        """
        return self.arrays[name][self.slice_of(location)]

    def codes_at(self, location: Location) -> Integers:
        """Return the codes of the groups of the events of a location."""
        return self.code[self.slice_of(location)]

    def codes(self, positions: Integers) -> Integers:
        """Return the codes of the groups of some events."""
        return self.code.take(positions)

    def number(self, name: str, positions: Integers) -> Integers:
        """Return the number `name` of the events at some positions, as 64-bit integers.

        Narrower integers would overflow in sums and differences.
        """
        return self.arrays[name].take(positions).astype(np.int64, copy=False)

    def ends(self, positions: Integers) -> Integers:
        """Return when some events end; `arrays` must have their starts and durations."""
        return self.number("start", positions) + self.number("duration", positions)

    def in_time_order(self, positions: Integers) -> Integers:
        """Return the positions of some events in the order of the events' starts."""
        starts = self.arrays["start"].take(positions)
        return positions.take(np.argsort(starts, kind="stable"))

    def of_groups(self, codes: Sequence[int], positions: Integers) -> Integers:
        """Return those of the positions whose events are of one of the groups `codes`."""
        is_chosen = np.isin(self.codes(positions), codes)
        return positions[is_chosen]

    @cached_property
    def durations(self) -> Grouped:
        """Durations in nanoseconds by code."""
        return Grouped(self.code, self.arrays["duration"])

    def mask(self, groups: Iterable[bool], part: slice = slice(None)) -> npt.NDArray[np.bool_]:
        """Return a mask of the events, or of a part of them, that is True for events of the chosen groups.

        `groups` has one value for each group, True if it is chosen.
        """
        is_chosen = np.fromiter(groups, bool, len(self.groups))
        code = self.code[part]
        # Filling an array is faster than a look-up for each event.
        if is_chosen.all() or not is_chosen.any():
            return np.full(len(code), is_chosen.any())
        return is_chosen.take(code)

    def positions(self, location: Location) -> Integers:
        """Return the positions of the events of a location."""
        part = self.slice_of(location)
        return np.arange(part.start, part.stop)

    def group_field(self, name: str) -> list[Any]:
        """Return one field of each group, by code."""
        index = self.fields.index(name) + 1
        return [group[index] for group in self.groups]

    def group_fields(self, *names: str) -> list[tuple[Any, ...]]:
        """Return the trace and the named fields of each group, by code."""
        indices = [0, *(self.fields.index(name) + 1 for name in names)]
        return [tuple(group[index] for index in indices) for group in self.groups]
