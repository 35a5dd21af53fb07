"""A simple model of one process that trains on one device: what its host submits and when its device does it.

Times are integer nanoseconds. The host submits items (kernels, copies, fills) one after another; each stream runs its
items in order, one at a time. The device's clock ticks every 32 ns (in a trace of an H100, kernels last multiples of
that, to within 2 ns), so that activities of different streams do begin at the very same time.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from catalogue import (
    BACKWARD,
    COLLECTIVE_STREAM,
    COMPUTE_STREAM,
    COPY_STREAM,
    FORWARD,
    MEMORY_KINDS,
    OPTIMIZER,
    QUERY,
    RECORD,
    STEP,
    SYNCHRONIZE,
    Catalogue,
)

Columns = dict[str, np.ndarray]

UNRECORDED_SHARE = 0.01
KERNELS_PER_MEMORY_OPERATION = 60
TICK = 32
MAIN_THREAD, AUTOGRAD_THREAD = 0, 1


class Items(NamedTuple):
    """What the host submits, in its order: copies and fills (`is_memory`) have a kind, kernels a shape."""

    is_memory: np.ndarray
    is_pageable: np.ndarray
    shape: np.ndarray
    kind: np.ndarray
    bytes: np.ndarray
    duration: np.ndarray
    stream: np.ndarray
    function: np.ndarray


@dataclass
class Activity:
    """What one process did in a while, as columns in the host's order.

    kernels: start, end, call_start, call_end, recorded, correlation, shape, stream, thread; memory: start, end,
    call_start, correlation, kind, bytes, stream; calls: start, end, function, correlation, thread; ranges: start, end,
    name, thread; synchronizations: start, end, correlation.
    """

    kernels: Columns
    memory: Columns
    calls: Columns
    ranges: Columns = field(default_factory=dict)
    synchronizations: Columns = field(default_factory=dict)


def ticks(times: np.ndarray) -> np.ndarray:
    """Times rounded up to the device's clock."""
    return -(-times // TICK) * TICK


def in_order(ready: np.ndarray, duration: np.ndarray, pause: np.ndarray, free: int) -> np.ndarray:
    """Start of each item of a stream: when it is ready and `pause` after the item before; the stream is free at `free`.

    end[i] = max(ready[i], end[i - 1] + pause[i]) + duration[i], solved by taking off the running sum of pause and
    duration, which leaves a running maximum.
    """
    spent = np.cumsum(pause + duration)
    return spent + np.maximum(np.maximum.accumulate(ready + duration - spent), free) - duration


class Process:
    """One rank: its host's and device's clocks and its correlation ids go on from step to step."""

    def __init__(self, rank: int, devices: int, catalogue: Catalogue, rng: np.random.Generator) -> None:
        self.rank = rank
        self.catalogue = catalogue
        self.rng = rng
        self.memory_kinds = len(MEMORY_KINDS) - (devices == 1)
        self.correlation = 100
        self.free = dict.fromkeys((COMPUTE_STREAM, COPY_STREAM, COLLECTIVE_STREAM), 0)

    def step(self, begin: int, kernels: int) -> tuple[Activity, int]:
        """A step with its ranges and the synchronization that ends it, and when it ended."""
        activity, marks = self.work(begin + 1000, kernels, max(8, kernels // KERNELS_PER_MEMORY_OPERATION))
        start = marks[-1] + 300
        finished = max(start + 1500, self.free[COMPUTE_STREAM] + int(self.rng.integers(2000, 4000)))
        end = finished + int(self.rng.integers(1000, 3000))
        call = {"start": start, "end": finished, "function": SYNCHRONIZE, "thread": MAIN_THREAD}
        call["correlation"] = self.correlation
        activity.calls = {key: np.append(column, call[key]) for key, column in activity.calls.items()}
        wait = {"start": start + 200, "end": finished - 300, "correlation": self.correlation}
        activity.synchronizations = {key: np.array([value]) for key, value in wait.items()}
        self.correlation += 1

        collective = self.catalogue.is_collective[activity.kernels["shape"]]
        launched = {key: column[collective] for key, column in activity.kernels.items()}
        phases = np.array(marks)
        activity.ranges = {
            "start": np.concatenate(([begin], phases[:3] + 100, launched["call_start"] - 300)),
            "end": np.concatenate(([end], phases[1:] + 50, launched["call_end"] + 100)),
            "name": np.concatenate(([STEP, FORWARD, BACKWARD, OPTIMIZER], self.catalogue.range[launched["shape"]])),
            "thread": np.concatenate(([MAIN_THREAD] * 4, launched["thread"])),
        }
        return activity, end

    def work(self, begin: int, kernels: int, operations: int) -> tuple[Activity, list[int]]:
        """What the host submits from `begin` on, and when forward, backward, optimizer began and all of it ended."""
        items = self.draw(kernels, operations)
        is_kernel, total = ~items.is_memory, kernels + operations
        starts, lasts, think = self.submit(begin, items)
        first_backward, first_optimizer = total // 3, total * 9 // 10
        ready = ticks(starts[0] + self.rng.integers(4000, 9000, total))
        start = self.run(ready, items, first_optimizer)

        thread = np.full(total, MAIN_THREAD)
        thread[first_backward:first_optimizer] = AUTOGRAD_THREAD
        exists = np.stack([np.ones(total, bool), is_kernel, is_kernel])
        correlation = self.correlation + np.cumsum(exists.T.ravel()).reshape(total, 3).T - 1
        self.correlation = int(correlation.max()) + 1
        recorded = items.is_memory | (self.rng.random(total) >= UNRECORDED_SHARE)
        exists[0] &= recorded

        on_device = {
            "start": start,
            "end": start + items.duration,
            "call_start": starts[0],
            "call_end": starts[0] + lasts[0],
            "correlation": correlation[0],
            "stream": items.stream,
        }
        of_kernels = {**on_device, "thread": thread, "recorded": recorded, "shape": items.shape}
        of_memory = {**on_device, "kind": items.kind, "bytes": items.bytes}
        of_calls = {
            "start": starts,
            "end": starts + lasts,
            "function": np.stack([items.function, np.full(total, RECORD), np.full(total, QUERY)]),
            "correlation": correlation,
            "thread": np.stack([thread] * 3),
        }
        activity = Activity(
            kernels={key: column[is_kernel] for key, column in of_kernels.items()},
            memory={key: column[items.is_memory] for key, column in of_memory.items()},
            calls={key: column.T[exists.T] for key, column in of_calls.items()},
        )
        marks = [int(starts[0, n] - think[n]) for n in (0, first_backward, first_optimizer)]
        return activity, [*marks, int(starts[2, -1] + lasts[2, -1])]

    def draw(self, kernels: int, operations: int) -> Items:
        """Kernels with memory operations of every kind among them."""
        rng, total = self.rng, kernels + operations
        is_memory = np.zeros(total, bool)
        is_memory[rng.choice(total, operations, replace=False)] = True
        shape, kind = np.zeros((2, total), int)
        shape[~is_memory] = self.catalogue.draw(rng, kernels)
        kind[is_memory] = rng.permutation(np.arange(operations) % self.memory_kinds)
        size = 2 ** rng.integers(10, 22, total)

        def of_kind(key: str) -> np.ndarray:
            return np.array([getattr(one, key) for one in MEMORY_KINDS])[kind]

        computing = self.catalogue.mean_ns[shape] / 4 * rng.standard_gamma(4, total) + 500
        copying = size // of_kind("bytes_per_ns") + 1000
        of_kernel = np.where(self.catalogue.is_collective[shape], COLLECTIVE_STREAM, COMPUTE_STREAM)
        return Items(
            is_memory=is_memory,
            is_pageable=is_memory & (of_kind("host_memory") == "pageable"),
            shape=shape,
            kind=kind,
            bytes=size,
            duration=ticks(np.where(is_memory, copying, computing).astype(np.int64)),
            stream=np.where(is_memory, of_kind("stream"), of_kernel),
            function=np.where(is_memory, of_kind("function"), self.catalogue.function[shape]),
        )

    def submit(self, begin: int, items: Items) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """When the calls of each item begin, how long they last (3 x items), and the host's thinking before each item.

        A kernel takes a launch, an event's record and its query; a copy or fill takes one call, and the host waits for
        a copy of pageable memory.
        """
        rng, total = self.rng, len(items.shape)
        think = rng.integers(500, 3500, total)
        think += (rng.random(total) < 0.015) * rng.integers(100_000, 500_000, total)
        lasts = np.stack([rng.integers(low, high, total) for low, high in ((2500, 6500), (600, 1500), (400, 1200))])
        lasts[0] += items.is_pageable * items.duration
        lasts[1:, items.is_memory] = 0
        between = np.where(items.is_memory, 0, 200)
        busy = lasts.sum(axis=0) + 2 * between
        first = begin + np.cumsum(think + busy) - busy
        second = first + lasts[0] + between
        return np.stack([first, second, second + lasts[1] + between]), lasts, think

    def run(self, ready: np.ndarray, items: Items, first_optimizer: int) -> np.ndarray:
        """Start of each item on the device.

        A collective follows the compute item submitted before it; the optimizer waits for the collectives before it.
        """
        start = np.empty_like(ready)
        for first, last in ((0, first_optimizer), (first_optimizer, len(ready))):
            compute, copies, collectives = (
                np.flatnonzero(items.stream[first:last] == stream) + first
                for stream in (COMPUTE_STREAM, COPY_STREAM, COLLECTIVE_STREAM)
            )
            compute_ready, free = ready[compute], self.free[COMPUTE_STREAM]
            if first:
                compute_ready = np.maximum(compute_ready, self.free[COLLECTIVE_STREAM] + 50 * TICK)
            start[compute] = self.serve(COMPUTE_STREAM, compute_ready, items.duration[compute])
            start[copies] = self.serve(COPY_STREAM, ready[copies], items.duration[copies])

            wait = self.rng.integers(1000, 8000, len(collectives))
            wait += (self.rng.random(len(collectives)) < 0.2) * self.rng.integers(20_000, 150_000, len(collectives))
            ends = np.concatenate(([free], start[compute] + items.duration[compute]))
            follows = ends[np.searchsorted(compute, collectives)] + ticks(wait)
            collectives_ready = np.maximum(ready[collectives], follows)
            start[collectives] = self.serve(COLLECTIVE_STREAM, collectives_ready, items.duration[collectives])
        return start

    def serve(self, stream: int, ready: np.ndarray, duration: np.ndarray) -> np.ndarray:
        """Start of the next items of a stream."""
        pause = ticks(self.rng.integers(900, 3000, len(ready)))
        start = in_order(ready, duration, pause, self.free[stream])
        if len(start):
            self.free[stream] = int(start[-1] + duration[-1])
        return start
