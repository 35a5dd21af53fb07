"""When the host loads data or makes no call for long, against a count of every moment."""

from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest

from captures import KernelTimes, Process, make_trace
from multicard.trace.events import Events
from multicard.trace.files import open_trace
from multicard.trace.host import Host
from multicard.trace.steps import Marks
from multicard.trace.tables import activity_tables
from random_inputs import seeds

UNIT = 100_000  # ns; a pause counts from ten of them on
END = 900
Times = list[tuple[int, int]]


def events(groups: dict[tuple, Times], is_api: bool = False) -> Events:
    rows = [(code, *times) for code, own in enumerate(groups.values()) for times in own]
    code, start, end = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    fields = ("process", "api", "name", "thread") if is_api else ("process", "name", "thread")
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
    found = set()
    for start, end in pauses:
        for moment in range(start, end):
            in_model = within(moment, model)
            free = not within(moment, steps) if steps else not in_model
            long = end - start >= 100 * usual and not in_model
            if end - start >= 10 and (free or long) and not within(moment, waits):
                found.add(moment)
    return found


@seeds(30, 600)
def test_every_moment_of_the_host_is_judged(seed: int) -> None:
    calls, steps, waits = random_host(seed)
    name = "data" if seed % 2 else "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    model, where = [(300, 500), (600, 650)], ("forward", "aten::mm", "Optimizer.step#SGD.step", "epoch")[seed % 4]
    ranges = events({("step", 5): steps, (name, 5): waits, (where, 5): model})
    api = events({("runtime", "cudaLaunchKernel", 5): calls}, is_api=True)
    host = Host(api, ranges, Marks(ranges), (0, 1))
    data, elsewhere = host.outside()

    def listed(found: np.ndarray) -> set[int]:
        return {m for start, end in found.tolist() for m in range(max(0, start // UNIT), min(END, end // UNIT))}

    in_calls = {m for start, end in calls for m in range(start, end)}
    assert listed(host.thread(5).calls) == in_calls
    assert listed(elsewhere) == counted(calls, steps, waits, model if where != "epoch" else [])
    loading = {m for start, end in waits for m in range(start, min(END, end))}
    assert listed(data) == loading - in_calls


def test_the_median_pause_is_of_those_between_calls() -> None:
    # Pauses of 1, 2 and 200 within a step: the last is 100 times the median. What lies before and after is unknown.
    calls = [(100, 101), (102, 103), (105, 106), (306, 307)]
    ranges = events({("step", 5): [(0, 400)]})
    api = events({("runtime", "cudaLaunchKernel", 5): calls}, is_api=True)
    _, elsewhere = Host(api, ranges, Marks(ranges), (0, 1)).outside()
    assert (elsewhere / UNIT).tolist() == [[106, 306]]


def test_of_a_process_without_calls_nothing_is_known() -> None:
    api = events({("runtime", "cudaLaunchKernel", 5): [(0, 1)]}, is_api=True)
    assert [len(moments) for moments in Host(api, None, Marks(None), (0, 2)).outside()] == [0, 0]


def of_steps(path: Path) -> dict[str, Any]:
    return activity_tables([open_trace(path)], ["timeline"], scope="steps").rows["timeline"][0]


def starved(wait: float) -> tuple[list[tuple[float, float]], list[KernelTimes]]:
    """Five steps of 10 ms, 20 kernels of 0.2 ms launched every 0.5 ms in each, and a wait before each, in ms."""
    begins = [n * (10 + wait) + wait for n in range(5)]
    work = [
        (begin + 0.5 * k, begin + 0.5 * k + 0.1, begin + 0.5 * k + 0.3, "gemm") for begin in begins for k in range(20)
    ]
    return [(begin, begin + 10) for begin in begins], work


def test_a_wait_between_steps_is_no_launch_overhead(tmp_path: Path) -> None:
    steps, work = starved(30.0)
    row = of_steps(make_trace(tmp_path / "t.json", Process(steps, work)))
    # 0.2 of each 0.5 ms is busy. Each of the four waits lies between steps. Of the 0.3 ms between two kernels of a step
    # 0.1 lie in the next launching call, 0.2 before it; the last of each step are followed by no launch of the step.
    assert row["busy_s"] * 1e3 == pytest.approx(100 * 0.2)
    assert row["idle_host_elsewhere_s"] * 1e3 == pytest.approx(4 * 30)
    assert row["idle_launching_s"] * 1e3 == pytest.approx(100 * 0.1)
    assert row["idle_between_calls_s"] * 1e3 == pytest.approx(100 * 0.2)
    assert row["idle_queued_s"] == row["idle_unknown_s"] == 0


def test_a_pause_within_steps_that_stands_out_is_no_launch_overhead(tmp_path: Path) -> None:
    # Steps that begin as the last one ends, and hold the wait: nothing but the pause itself tells.
    steps, work = starved(40.0)
    tiled = [(begin - 40, end) for begin, end in steps]
    row = of_steps(make_trace(tmp_path / "t.sqlite", Process(tiled, work)))
    # A call lasts 0.1 ms and the next comes 0.4 ms later; from the last call of a step to the first of the next one
    # 40.4 ms pass, idle but for the 0.2 ms of the last kernel. The wait before the first call has an unknown length.
    assert row["idle_host_elsewhere_s"] * 1e3 == pytest.approx(4 * 40.2)
