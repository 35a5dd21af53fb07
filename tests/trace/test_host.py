"""When the host is busy with something other than launching work, against a count of every moment."""

from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest

from multicard.trace.collect import Events
from multicard.trace.files import open_trace
from multicard.trace.host import elsewhere
from multicard.trace.steps import Marks
from multicard.trace.tables import activity_tables
from random_inputs import seeds
from synthetic import PID, Work, training_trace

UNIT = 100_000  # ns; a pause counts from ten of them on
END = 900
Times = list[tuple[int, int]]


def events(groups: dict[tuple, Times]) -> Events:
    rows = [(code, *times) for code, own in enumerate(groups.values()) for times in own]
    code, start, end = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    fields = ("process", "name", "thread")
    arrays = {"start": start * UNIT, "duration": (end - start) * UNIT}
    return Events(fields, [(0, 1, *key) for key in groups], code, arrays, {(0, 1): slice(0, len(code))})


def random_host(seed: int) -> tuple[Times, Times, Times]:
    """Calls that follow each other closely, with some long pauses; steps; and waits for data."""
    generator = np.random.default_rng(seed)
    calls, at = [], int(generator.integers(0, 30))
    while at < END:
        length = int(generator.integers(1, 4))
        calls.append((at, min(END, at + length)))
        at += length + int(
            generator.choice([0, 1, 1, 1, 2, 12, 110, 250], p=[0.1, 0.3, 0.3, 0.1, 0.1, 0.05, 0.03, 0.02])
        )
    edges = np.unique(generator.integers(0, END, 8)).tolist()
    steps = list(zip(edges[::2], edges[1::2], strict=False)) if seed % 3 else []
    waits = [(start, start + int(generator.integers(1, 60))) for start in generator.integers(0, END, seed % 4).tolist()]
    return calls, steps, waits


def counted(calls: Times, steps: Times, waits: Times, model: Times) -> set[int]:
    """The moments, one by one."""

    def within(moment: int, times: Times) -> bool:
        return any(start <= moment < end for start, end in times)

    pauses, since = [], None
    for moment in range(END):
        if within(moment, calls):
            if since is not None and moment > since:
                pauses.append((since, moment))
            since = moment + 1
    usual = median(end - start for start, end in pauses) if pauses else float("inf")
    edges = [(-(10**9), min(start for start, _ in calls)), (max(end for _, end in calls), 10**9)]
    found = set()
    for start, end in (*pauses, *edges):
        for moment in range(max(0, start), min(END, end)):
            free = within(moment, waits) or (bool(steps) and not within(moment, steps))
            long = (start, end) not in edges and end - start >= 100 * usual and not within(moment, model)
            if end - start >= 10 and (free or long):
                found.add(moment)
    return found


@seeds(30, 600)
def test_every_moment_of_the_host_is_judged(seed: int) -> None:
    calls, steps, waits = random_host(seed)
    name = "data" if seed % 2 else "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    model, where = [(300, 500), (600, 650)], ("forward", "aten::mm", "Optimizer.step#SGD.step", "epoch")[seed % 4]
    ranges = events({("step", 5): steps, (name, 5): waits, (where, 5): model})
    found = elsewhere(events({("cudaLaunchKernel", 5): calls}), ranges, Marks(ranges), (0, 1))
    moments = {m for start, end in found.tolist() for m in range(max(0, start // UNIT), min(END, end // UNIT))}
    assert moments == counted(calls, steps, waits, model if where != "epoch" else [])


def test_of_a_process_without_calls_nothing_is_known() -> None:
    calls = events({("cudaLaunchKernel", 5): [(0, 1)]})
    assert len(elsewhere(calls, None, Marks(None), (0, 2))) == 0


def of_steps(path: Path) -> dict[str, Any]:
    return activity_tables([open_trace(path)], ["timeline"], scope="steps").rows["timeline"][0]


def starved(wait: float) -> tuple[list[tuple[float, float]], list[Work]]:
    """Five steps of 10 ms, 20 kernels of 0.2 ms launched every 0.5 ms in each, and a wait before each, in ms."""
    begins = [n * (10 + wait) + wait for n in range(5)]
    work = [
        (begin + 0.5 * k, begin + 0.5 * k + 0.1, begin + 0.5 * k + 0.3, "gemm") for begin in begins for k in range(20)
    ]
    return [(begin, begin + 10) for begin in begins], work


def test_a_wait_between_steps_is_no_launch_overhead(tmp_path: Path) -> None:
    steps, work = starved(30.0)
    row = of_steps(training_trace(tmp_path / "t.json", {PID: steps}, {PID: work}))
    # 0.2 of each 0.5 ms is busy. Each of the four waits lies between steps; between launches within steps 0.3 ms are
    # idle, but for the last 0.2 ms of the last step, which nothing follows, and the 0.1 ms until its first kernel.
    assert row["busy_s"] * 1e3 == pytest.approx(100 * 0.2)
    assert row["idle_host_elsewhere_s"] * 1e3 == pytest.approx(4 * 30)
    assert row["idle_other_s"] * 1e3 == pytest.approx(0.2)
    assert row["idle_host_bound_s"] * 1e3 == pytest.approx(5 * 10 - 20 - 0.2)


def test_a_pause_within_steps_that_stands_out_is_no_launch_overhead(tmp_path: Path) -> None:
    # Steps that begin as the last one ends, and hold the wait: nothing but the pause itself tells.
    steps, work = starved(40.0)
    tiled = [(begin - 40, end) for begin, end in steps]
    row = of_steps(training_trace(tmp_path / "t.sqlite", {PID: tiled}, {PID: work}))
    # A call lasts 0.1 ms and the next comes 0.4 ms later; from the last call of a step to the first of the next one
    # 40.4 ms pass, idle but for the 0.2 ms of the last kernel. The wait before the first call has an unknown length.
    assert row["idle_host_elsewhere_s"] * 1e3 == pytest.approx(4 * 40.2)
