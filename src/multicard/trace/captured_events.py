"""All events of a capture that the wanted tables are made of, each table of the traces read once."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

import numpy as np

from multicard.core.layout import PHASES
from multicard.trace.collect import Events, Progress, collect, cores
from multicard.trace.kernel_classes import collective, kernel_class
from multicard.trace.launches import Launches
from multicard.trace.model import Integers, Trace
from multicard.trace.statistics import Grouped, Statistics, statistics

STEP = "step"

Key = tuple[Any, ...]


class CapturedEvents:
    """Events by kind; None for a kind that was not recorded, or is not wanted."""

    def __init__(self, traces: Sequence[Trace], wanted: set[str], progress: Progress | None) -> None:
        """Read the kinds of events that are `wanted`.

        Beside kinds, "shapes" asks for launch shapes, "starts" for more than durations of what runs on devices, and
        "launches" for the calls that launched it.
        """
        self.traces = traces

        def read(kind: str, *keep: str, **how: Any) -> Events | None:
            return collect(traces, kind, keep=keep, progress=progress, **how) if kind in wanted else None

        linked = ("correlation",) if "launches" in wanted else ()
        times = ("start", "duration") if "starts" in wanted else ()
        shape = ("grid", "block") if "shapes" in wanted else ()
        self.kernels = read("kernels", *linked, *times, groups=("process", "device", "name", *shape))
        place = ("process", "device", "operation", "host_memory")
        self.memory = read("memory", *linked, *times, "bytes", groups=place)
        self.ranges = read("ranges", "start", "duration", groups=("process", "domain", "name"))
        self.messages = read("messages", "bytes", sort=None)
        self.memory_use = read("memory_use", "start", "bytes", sort=None)
        self.metrics = read("metrics", "start", "value", sort="value")
        # The sets of device events that calls are looked for: kernels first, memory operations last.
        on_device = [own for own in (self.kernels, self.memory) if own is not None]
        self.launches: Launches | None = None
        if "api" in wanted and linked and on_device and any(trace.has("api") for trace in traces):
            self.launches = Launches(on_device)
        for own in on_device:
            own.arrays.pop("correlation", None)
        self.api = read("api", groups=("process", "api", "name"), see=self.launches.see if self.launches else None)
        if self.launches:
            self.launches.done()
        self.classes = [kernel_class(name) for _, name in self.kernels.values("name")] if self.kernels else []
        self.collectives = [collective(name) for _, name in self.kernels.values("name")] if self.kernels else []

    def summed(self, kind: str, key: Callable[[int], Key | None]) -> list[tuple[Key, Statistics]]:
        """Statistics of the durations of all groups that share a key, by the code of the group; None leaves it out."""
        own: Events = getattr(self, kind)
        return summed(own.grouped, own, key)

    @cached_property
    def marked(self) -> list[dict[str, Any]]:
        """Steps and phases per process in order of time, with the number of their step.

        A phase belongs to the step that holds its start. A step inside another is a range of that step's, no step.
        """
        rows: list[dict[str, Any]] = []
        if self.ranges is None:
            return rows
        owners = self.ranges.values("process", "name")
        known = self.ranges.mask(name in (STEP, *PHASES) for _, _, name in owners)
        columns = (self.ranges.code, *(self.ranges.arrays[name] for name in ("start", "duration")))
        found = sorted(
            (owners[code][:2], start, -duration, owners[code][2])
            for code, start, duration in zip(*(column[known].tolist() for column in columns), strict=True)
        )
        owner, number, end = None, 0, 0
        for (trace, process), start, negative, name in found:
            if owner != (trace, process):
                owner, number, end = (trace, process), 0, start
            if name == STEP:
                if start < end:
                    continue
                number, end = number + 1, start - negative
            rows.append(
                {
                    "trace": trace,
                    "process": process,
                    "phase": name,
                    "step": number if number and start < end else None,
                    "start": start,
                    "duration": -negative,
                }
            )
        return rows

    @cached_property
    def steps(self) -> dict[tuple[int, int], tuple[Integers, Integers]]:
        """Starts and ends of the steps, by trace and process."""
        found: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for row in self.marked:
            if row["phase"] == STEP:
                times = (row["start"], row["start"] + row["duration"])
                found.setdefault((row["trace"], row["process"]), []).append(times)
        return {owner: tuple(np.array(times, np.int64).T) for owner, times in found.items()}  # type: ignore[misc]


def summed(values: Grouped, events: Events, key: Callable[[int], Key | None]) -> list[tuple[Key, Statistics]]:
    """Statistics of the values of all groups that share a key, in the order of the keys' texts."""
    members: dict[Key, list[int]] = {}
    for code in sorted(range(len(events.groups)), key=lambda code: str(events.groups[code])):
        found = key(code)
        if found is not None and code in values:
            members.setdefault(found, []).append(code)

    def one(codes: list[int]) -> Statistics:
        return statistics(values.of(codes))

    with ThreadPoolExecutor(cores()) as pool:
        results: Iterator[Statistics] = pool.map(one, members.values())
        return list(zip(members, results, strict=True))
