"""What ran on the devices of a capture: events of several kinds, of which each device's are read together."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from multicard.trace.events import Events, Location
from multicard.trace.model import Integers

# The kinds of events that run on devices, in the order in which their arrays are concatenated.
ON_DEVICE = ("kernels", "memory", "graphs")

Mask = npt.NDArray[np.bool_]


class DeviceEvents:
    """The events that ran on devices, by kind in `of_kind`: those kinds of `ON_DEVICE` that were recorded and read.

    All arrays about a device hold its events of one kind after another, in the order of `ON_DEVICE`.

    >>> location = (0, 4242, 1)
    >>> kernels = Events(("process",), [(0, 4242)], np.array([0, 0]), {"start": np.array([5, 9])}, {location: slice(2)})
    >>> copies = Events(("process",), [(0, 4242)], np.array([0]), {"start": np.array([6])}, {location: slice(1)})
    >>> DeviceEvents({"memory": copies, "kernels": kernels}).array_at("start", location).tolist()
    [5, 9, 6]
    """

    def __init__(self, events: Mapping[str, Events]) -> None:
        """Take events by kind. Kinds that do not run on devices are ignored."""
        self.of_kind = {name: events[name] for name in ON_DEVICE if name in events}

    def locations(self) -> list[Location]:
        """Return the locations (trace, process, device) at which anything ran on a device, sorted by their texts.

        If only durations were read, the only location is ().
        """
        locations: set[Location] = set()
        for events in self.of_kind.values():
            locations |= events.locations.keys()
        return sorted(locations, key=str)

    @property
    def has_graph_launches(self) -> bool:
        """True if some of the joined launching calls replay CUDA graphs, so that events have the array `by_graph`."""
        return any("by_graph" in events.arrays for events in self.of_kind.values())

    def array_at(self, name: str, location: Location) -> Integers:
        """Return the array `name` of all events of a device.

        Times are in nanoseconds. Starts are returned as 64-bit integers, because narrower ones would overflow when a
        duration is added. All other arrays keep the type in which they are stored, which may be narrower.
        """
        parts = [events.array_at(name, location) for events in self.of_kind.values()]
        values = np.concatenate(parts)
        return values.astype(np.int64) if name == "start" else values

    def stream_numbers(self, location: Location) -> Integers:
        """Return the number of the stream of each event of a device.

        The streams of the device are numbered from 0, and a stream has the same number in all kinds.
        """
        number_of_stream: dict[int | None, int] = {}
        numbers: list[Integers] = []
        for events in self.of_kind.values():
            number_of_code: list[int] = []
            for stream in events.group_field("stream"):
                number = number_of_stream.setdefault(stream, len(number_of_stream))
                number_of_code.append(number)
            code_of_event = events.codes_at(location)
            numbers.append(np.array(number_of_code, np.int32).take(code_of_event))
        return np.concatenate(numbers)

    def by_kind(self, location: Location, values: Mask) -> dict[str, Mask]:
        """Split values for all events of a device into those of each kind."""
        counts = [len(events.codes_at(location)) for events in self.of_kind.values()]
        begins_of_others = np.cumsum(counts)[:-1]
        return dict(zip(self.of_kind, np.split(values, begins_of_others), strict=True))
