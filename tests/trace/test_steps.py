"""What belongs to the steps of a trace, and when a device begins and ends them, against hand counts."""

import random
from pathlib import Path

import numpy as np
import pytest

from captures import COPY, MARKER, KernelTimes, Lanes, Process, make_trace
from changed_traces import change, change_events
from multicard.trace.events import Events
from multicard.trace.files import open_trace
from multicard.trace.idle import CAUSES
from multicard.trace.steps import Marks, Steps, steps_on_device
from multicard.trace.tables import CAPTURE, STEPS, ActivityTables, activity_tables
from random_inputs import seeds
from synthetic import OTHER, PID

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
EITHER = pytest.mark.parametrize("suffix", ["json", "sqlite"])

# Two ranks from 1000 ms on: two steps of 20 ms with 5 ms in between, a matrix product and an all-reduce in each.
STEP_TIMES = [(1000.0, 1020.0), (1025.0, 1045.0)]


def rank(late: float) -> list[KernelTimes]:
    return [
        each
        for begin, _ in STEP_TIMES
        for each in (
            (begin + 1, begin + 2, begin + 8 + late, "gemm"),
            (begin + 3, begin + 8 + late, begin + 15, ALL_REDUCE),
        )
    ]


RANKS = {PID: rank(0.0), OTHER: rank(2.0)}
BEFORE: KernelTimes = (500.0, 501.0, 801.0, ALL_REDUCE)  # 300 ms: waits for the skew of the ranks' profilers
AFTER: KernelTimes = (1050.0, 1051.0, 1351.0, ALL_REDUCE)


def of_steps(path: Path, scope: str = STEPS, only: list[str] | None = None) -> ActivityTables:
    return activity_tables([open_trace(path)], only, scope=scope)


def timeline_of(path: Path, scope: str = STEPS) -> list[dict]:
    return of_steps(path, scope, ["timeline"]).rows["timeline"]


def kernels_of(path: Path) -> dict[str, int]:
    return {row["kernel"]: row["calls"] for row in of_steps(path, only=["kernels"]).rows["kernels"]}


def in_ms(rows: list[dict], name: str) -> list[float]:
    return pytest.approx([row[f"{name}_s"] * 1e3 for row in rows])


@pytest.mark.parametrize(
    ("suffix", "calls", "who", "extra"),
    [
        ("sqlite", True, (PID, OTHER), BEFORE),
        ("sqlite", True, (OTHER,), AFTER),
        ("sqlite", False, (OTHER,), BEFORE),
        ("json", True, (PID,), BEFORE),
        ("json", False, (PID,), AFTER),
    ],
)
def test_what_is_launched_outside_of_the_steps_is_in_no_table_of_them(
    suffix: str, calls: bool, who: tuple[int, ...], extra: KernelTimes, tmp_path: Path
) -> None:
    ranks = RANKS if suffix == "sqlite" else {PID: RANKS[PID]}
    plain = [Process(STEP_TIMES, kernels) for kernels in ranks.values()]
    with_extra = [Process(STEP_TIMES, [*kernels, extra] if pid in who else kernels) for pid, kernels in ranks.items()]
    (tmp_path / "extra").mkdir()
    plain_trace = make_trace(tmp_path / f"t.{suffix}", *plain, calls=calls)
    trace_with_extra = make_trace(tmp_path / "extra" / f"t.{suffix}", *with_extra, calls=calls)
    before, after = of_steps(plain_trace), of_steps(trace_with_extra)
    assert {"kernels", "collectives", "timeline", "shares"} <= set(before.rows)
    assert ("stragglers" in before.rows) == (len(ranks) > 1)
    assert ("launches" in before.rows) == ("cuda_api" in before.rows) == calls
    assert after == before
    # It is in those of the whole capture.
    rows = of_steps(trace_with_extra, CAPTURE).rows
    assert sum(row["calls"] for row in rows["collectives"]) == 2 * len(ranks) + len(who)


@EITHER
def test_what_is_launched_as_the_steps_begin_is_theirs_and_as_they_end_is_not(suffix: str, tmp_path: Path) -> None:
    work: list[KernelTimes] = [(1000.0, 1001.0, 1002.0, "first"), (1045.0, 1046.0, 1047.0, "after")]
    path = make_trace(tmp_path / f"t.{suffix}", Process(STEP_TIMES, [*work, *rank(0.0)]))
    assert kernels_of(path) == {"first": 1, "gemm": 2, ALL_REDUCE: 2}


def test_steps_of_ranks_have_the_sums_of_a_hand_count(tmp_path: Path) -> None:
    first, second = (Process(STEP_TIMES, kernels) for kernels in ([*RANKS[PID], BEFORE], RANKS[OTHER]))
    path = make_trace(tmp_path / "t.sqlite", first, second)
    rows = of_steps(path).rows
    collectives = {row["process"]: (row["calls"], row["total_s"]) for row in rows["collectives"]}
    assert collectives == {PID: (2, pytest.approx(0.014)), OTHER: (2, pytest.approx(0.010))}
    assert {row["process"]: (row["calls"]) for row in rows["cuda_api"]} == {PID: 4, OTHER: 4}
    waited = {row["process"]: (row["times_last"], row["waited_s"]) for row in rows["stragglers"]}
    assert waited == {PID: (0, pytest.approx(0.004)), OTHER: (2, 0)}
    first, *_ = rows["timeline"]
    assert (first["scope"], first["extent"], first["step"]) == ("steps", "device", None)
    # 1000-1045 ms: busy at 1002-1015 and 1027-1040. Each step's first call lasts from 1 ms to 1.1 ms after the step's
    # begin, and 0.9 ms later its kernel begins. The host makes no call while it is between the steps; in the steps it
    # is between calls for 1, 5 + 1 and 5 ms of the rest.
    assert [first[f"{name}_s"] * 1e3 for name in ("span", "busy", "exposed_communication")] == pytest.approx(
        [45, 26, 14]
    )
    assert {cause: first[f"{cause}_s"] * 1e3 for cause in CAUSES if first[f"{cause}_s"]} == pytest.approx(
        {"idle_launching": 0.2, "idle_between_calls": 12, "idle_host_elsewhere": 5, "idle_queued": 1.8}
    )


@EITHER
def test_kernels_belong_to_the_steps_that_launched_them_whenever_they_run(suffix: str, tmp_path: Path) -> None:
    # Launched before the step and run in it; launched in it and run after it; launched after it.
    work: list[KernelTimes] = [(-3, 1, 4, "early"), (2, 5, 14, "late"), (11, 15, 16, "after")]
    path = make_trace(tmp_path / f"t.{suffix}", Process([(0, 10)], work))
    assert kernels_of(path) == {"late": 1}
    # The device begins the step when it is done with what came before, and ends it with the last it launched.
    [together, step] = timeline_of(path)
    for row in (together, step):
        assert (row["extent"], row["span_s"]) == ("device", pytest.approx(0.010))
        assert (row["busy_s"], row["idle_s"]) == (pytest.approx(0.009), pytest.approx(0.001))


def test_without_recorded_launches_kernels_belong_to_the_steps_by_time(tmp_path: Path) -> None:
    work: list[KernelTimes] = [(-3, -1, 4, "early"), (2, 5, 14, "inside"), (11, 15, 16, "after")]
    path = make_trace(tmp_path / "t.sqlite", Process([(0, 10)], work), calls=False)
    assert kernels_of(path) == {"inside": 1}
    [together, step] = timeline_of(path)
    assert [row["extent"] for row in (together, step)] == ["host", "host"]
    assert together["span_s"] == step["span_s"] == pytest.approx(0.010)


# The host runs ahead by three steps and then waits: 8 ms on the device each, one after another.
AHEAD_STEPS = [(0.0, 2.0), (2.0, 4.0), (4.0, 6.0), (6.0, 34.0)]
AHEAD_WORK: list[KernelTimes] = [
    (-1, -0.5, 0.5, "warm"), (0.6, 1, 9, "gemm"), (2.5, 9, 17, "gemm"), (4.5, 17, 25, "gemm"), (6.5, 25, 33, "gemm"),
]  # fmt: skip


@pytest.mark.parametrize(("suffix", "scope"), [("json", CAPTURE), ("sqlite", STEPS)])
def test_where_the_host_runs_ahead_steps_last_as_long_as_on_the_device(suffix: str, scope: str, tmp_path: Path) -> None:
    path = make_trace(tmp_path / f"t.{suffix}", Process(AHEAD_STEPS, AHEAD_WORK))
    steps = [row for row in timeline_of(path, scope) if row["scope"] == "step"]
    # 0.5-9, 9-17, 17-25 and 25-34 ms; the device is idle for 0.5 ms before the first kernel and 1 ms after the last.
    assert [row["extent"] for row in steps] == ["device"] * 4
    assert in_ms(steps, "start") == [0, 8.5, 16.5, 24.5]
    assert in_ms(steps, "span") == [8.5, 8, 8, 9]
    assert in_ms(steps, "busy") == [8, 8, 8, 8]
    # Phases keep the times of the host.
    assert in_ms(of_steps(path, only=["phases"]).rows["phases"], "duration") == [2, 2, 2, 28]


# Steps of 10 ms, in each of which the device works for 9 ms. 1 ms before each step ends, another thread launches work
# on another stream, 2 and 8 ms long in turn, for which the stream of the steps does not wait.
LOADED_STEPS = [(10.0 * n, 10.0 * n + 10) for n in range(6)]
COMPUTE: list[KernelTimes] = [(begin + 0.5, begin + 0.7, begin + 9.7, "gemm") for begin, _ in LOADED_STEPS]
LOADER: list[KernelTimes] = [
    (end - 1, end - 0.8, end - 0.8 + (2, 8)[n % 2], "resize") for n, (_, end) in enumerate(LOADED_STEPS)
]


def loaded(path: Path, lanes: Lanes, work: list[KernelTimes] = LOADER) -> list[dict]:
    return timeline_of(make_trace(path, Process(LOADED_STEPS, [*COMPUTE, *work]), lanes=lanes))


@EITHER
def test_steps_do_not_wait_for_streams_of_other_threads(suffix: str, tmp_path: Path) -> None:
    together, *steps = loaded(tmp_path / f"t.{suffix}", {"resize": (20, 2)})
    assert [row["extent"] for row in (together, *steps)] == ["device"] * 7
    assert in_ms([together, *steps], "span") == [60, *[10] * 6]
    assert in_ms(steps, "start") == [0, 10, 20, 30, 40, 50]
    # What the loader does is busy time all the same. It works from 9.2 to 11.2, 19.2 to 27.2, 29.2 to 31.2 ms and so
    # on, the steps from 0.7 to 9.7: each step begins with the rest of 1.2 or 7.2 ms and ends busy.
    assert in_ms(steps, "busy") == [9.3, 10, 10, 10, 10, 10]


@EITHER
def test_streams_and_threads_decide_what_steps_wait_for(suffix: str, tmp_path: Path) -> None:
    # They wait for other threads on their own stream: autograd's launches the backward pass.
    backward: list[KernelTimes] = [(7.0, 9.7, 12.0, "backward"), (16.0, 19.7, 20.5, "backward")]
    _, *steps = loaded(tmp_path / f"backward.{suffix}", {"backward": (7, 2)}, backward)
    assert in_ms(steps, "start") == [0, 12, 20.5, 30, 40, 50]
    assert in_ms(steps, "span") == [12, 8.5, 9.5, 10, 10, 10]
    # They do not wait for a stream of nothing but copies.
    copies = [(call, start, end, COPY) for call, start, end, _ in LOADER]
    assert in_ms(loaded(tmp_path / f"copies.{suffix}", {COPY: (20, MARKER)}, copies), "span") == [60, *[10] * 6]
    # Kernels of a graph have the correlation of its launch, wherever they run: here the second branch lasts longer.
    branch: list[KernelTimes] = [(8.0, 8.5, 12.0, "branch")]
    _, *steps = loaded(tmp_path / f"graph.{suffix}", {"branch": (21, MARKER)}, branch)
    assert in_ms(steps[:2], "span") == [12, 8]


def test_a_device_that_only_other_threads_use_has_steps_of_all_its_streams(tmp_path: Path) -> None:
    """As the replicas of `DataParallel` do, to which the main thread at most copies their batches."""
    replica: list[KernelTimes] = [(1.0, 1.5, 13.0, "replica"), (0.5, 0.6, 1.0, COPY)]
    path = make_trace(
        tmp_path / "t.json",
        Process(LOADED_STEPS, [*COMPUTE, *replica]),
        lanes={"replica": (7, 2), COPY: (30, MARKER)},
        devices={"replica": 1, COPY: 1},
    )
    spans = {(row["device"], row["step"]): row["span_s"] * 1e3 for row in timeline_of(path)}
    assert (spans[0, 1], spans[0, 2]) == pytest.approx((10, 10))
    assert (spans[1, 1], spans[1, 2]) == pytest.approx((13, 7))


@EITHER
def test_streams_and_threads_add_no_rows_to_tables(suffix: str, tmp_path: Path) -> None:
    path = make_trace(
        tmp_path / f"t.{suffix}",
        Process(
            LOADED_STEPS, [*COMPUTE, (50.0, 50.5, 51.0, "resize"), (51.0, 51.5, 52.0, COPY), (52.0, 52.5, 53.0, "gemm")]
        ),
        lanes={"resize": (20, 2)},
    )
    rows = of_steps(path).rows
    assert {row["function"]: row["calls"] for row in rows["cuda_api"]} == {"cudaLaunchKernel": 9}
    assert {row["kernel"]: row["calls"] for row in rows["kernels"]} == {"gemm": 7, "resize": 1}
    assert [len(rows[name]) for name in ("cuda_api", "kernels", "memory_operations", "ranges")] == [1, 2, 1, 1]


@pytest.mark.parametrize(("unknown", "extent"), [(1, "device"), (2, "host")])
def test_extents_are_the_hosts_where_launches_are_not_known(unknown: int, extent: str, tmp_path: Path) -> None:
    # Of ten kernels one call may be missing.
    work: list[KernelTimes] = [(1 + n, 1.5 + n, 2 + n, "gemm") for n in range(10)]
    path = make_trace(tmp_path / "t.sqlite", Process([(0, 20)], work))
    change(path, f"DELETE FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE correlationId < {unknown}")
    assert [row["extent"] for row in timeline_of(path)] == [extent, extent]
    assert kernels_of(path) == {"gemm": 10}


# The host marks a step every 2 ms and launches a kernel of 8 ms in each, which the device does one after another.
LAGGING = [(2.0 * n, 2.0 * n + 2) for n in range(9)]
QUEUED: list[KernelTimes] = [(2.0 * n + 0.5, 8.0 * n + 1, 8.0 * n + 9, "gemm") for n in range(9)]


@EITHER
def test_what_was_launched_before_the_capture_belongs_to_no_step(suffix: str, tmp_path: Path) -> None:
    path = make_trace(tmp_path / f"t.{suffix}", Process(LAGGING[3:], QUEUED))
    # The capture begins with the fourth step, at 6 ms. What was launched before runs until 25 ms, and has no calls.
    if suffix == "json":
        change_events(path, lambda rows: rows.__setitem__(slice(None), [row for row in rows if not is_early(row)]))
    else:
        change(path, "DELETE FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE correlationId < 3")
    together, *steps = timeline_of(path)
    assert [row["extent"] for row in (together, *steps)] == ["device"] * 7
    # By hand: the first step waits for the work before it, and each takes the device 8 ms.
    assert in_ms([together, *steps], "span") == [48, *[8] * 6]
    assert in_ms([together, *steps], "busy") == [48, *[8] * 6]
    assert kernels_of(path) == {"gemm": 6}
    # In the capture it is there.
    assert of_steps(path, CAPTURE, ["kernels"]).rows["kernels"][0]["calls"] == 9


def is_early(row: dict) -> bool:
    return row["cat"] == "cuda_runtime" and row["args"]["correlation"] < 3


def test_calls_that_are_missing_within_steps_still_leave_these_to_the_host(tmp_path: Path) -> None:
    # The same calls are missing, but the first three steps are marked: nobody can tell them.
    path = make_trace(tmp_path / "t.sqlite", Process(LAGGING, QUEUED))
    change(path, "DELETE FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE correlationId < 3")
    assert {row["extent"] for row in timeline_of(path)} == {"host"}


def marked(path: Path, *ranges: tuple[float, float, str]) -> Path:
    """A trace with a kernel and these ranges: start and end in milliseconds, name."""
    make_trace(path, Process(kernels=[(1.0, 1.5, 2.0, "gemm")]), lanes={})
    shape = {"ph": "X", "cat": "user_annotation", "pid": PID, "tid": MARKER}
    more = [shape | {"name": name, "ts": start * 1e3, "dur": (end - start) * 1e3} for start, end, name in ranges]
    return change_events(path, lambda rows: rows.extend(more))


def phases_of(path: Path) -> list[tuple[str, int | None]]:
    rows = of_steps(path, CAPTURE, ["phases"]).rows["phases"]
    return [(row["phase"], row["step"]) for row in rows]


def test_steps_that_touch_are_all_counted_though_their_starts_are_rounded(tmp_path: Path) -> None:
    # Each begins 0.25 µs before the one before ends.
    touching = [(float(n), n + 1.00025, "step") for n in range(6)]
    path = marked(tmp_path / "t.json", *touching, (2.5, 2.6, "step"))
    steps = of_steps(path, CAPTURE, ["phases"]).rows["phases"]
    assert [row["step"] for row in steps] == [1, 2, 3, 4, 5, 6]
    assert in_ms(steps, "start") == [0, 1.00025, 2.00025, 3.00025, 4.00025, 5.00025]
    assert in_ms(steps, "duration") == [1.00025, 1, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("ranges", "numbered"),
    [
        ([("data", 0, 5), ("step", 10, 20)], [("data", None, 0, 5), ("step", 1, 10, 10)]),
        ([("step", 10, 20), ("forward", 10, 15)], [("step", 1, 10, 10), ("forward", 1, 10, 5)]),
        ([("step", 10, 20), ("data", 20, 25)], [("step", 1, 10, 10), ("data", None, 20, 5)]),
        ([("step", 10, 20), ("step", 12, 18), ("step", 30, 40)], [("step", 1, 10, 10), ("step", 2, 30, 10)]),
        # A start that is rounded by up to 1 µs, and one that is not.
        ([("step", 0, 9_000), ("step", 8_500, 20_000)], [("step", 1, 0, 9_000), ("step", 2, 9_000, 11_000)]),
        ([("step", 0, 9_000), ("step", 5_000, 20_000)], [("step", 1, 0, 9_000)]),
    ],
)
def test_phases_have_the_number_of_the_step_that_holds_their_start(
    ranges: list[tuple[str, int, int]], numbered: list[tuple[str, int | None, int, int]]
) -> None:
    names, starts, ends = zip(*ranges, strict=True)
    arrays = {"start": np.array(starts), "duration": np.array(ends) - np.array(starts)}
    groups = [(0, PID, name, 7) for name in names]
    events = Events(("process", "name", "thread"), groups, np.arange(len(names)), arrays, {(0, PID): slice(len(names))})
    marked = Marks(events).steps_and_phases
    assert [(mark.phase, mark.step, mark.start, mark.duration) for mark in marked] == numbered


def test_phases_are_told_whatever_their_capitals(tmp_path: Path) -> None:
    path = marked(tmp_path / "t.json", (0, 5, "STEP"), (1, 2, "Forward"), (2, 3, "BACKWARD"), (3, 4, "Forward hook"))
    assert phases_of(path) == [("step", 1), ("forward", 1), ("backward", 1)]


def test_warm_up_is_no_step(tmp_path: Path) -> None:
    warm = [(0, 8, "Warm-up"), (0, 4, "step"), (1, 2, "forward"), (4, 8, "step")]
    path = marked(tmp_path / "t.json", *warm, (8, 12, "step"), (9, 10, "forward"), (12, 16, "step"))
    assert phases_of(path) == [("forward", None), ("step", 1), ("forward", 1), ("step", 2)]


def test_without_steps_a_process_has_those_of_its_trace_and_a_trace_its_whole_capture(tmp_path: Path) -> None:
    work: list[KernelTimes] = [(1.0, 2.0, 3.0, "gemm")]
    without_steps = Process(kernels=[(-9.0, -8.0, -7.0, "outside"), (1.0, 2.0, 3.0, "inside")])
    path = make_trace(tmp_path / "one.sqlite", Process([(0, 10)], work), without_steps)
    assert set(kernels_of(path)) == {"gemm", "inside"}
    path = make_trace(tmp_path / "none.sqlite", Process(kernels=work), without_steps)
    assert of_steps(path) == of_steps(path, CAPTURE)


@seeds(30, 300)
def test_steps_on_a_device_are_between_the_events_that_its_stream_would_record(seed: int) -> None:
    """A stream that works off its queue in order; an event in the queue takes the time when the stream comes to it."""
    chance = random.Random(seed)
    host, stream = 0, 0
    calls, ends, marks, events = [], [], [], []
    for _ in range(chance.randrange(1, 8)):
        host += chance.choice([0, 0, 30])  # between the steps
        for mark in ("begin", "end"):
            for _ in range(chance.randrange(4)):
                host += chance.randrange(1, 4)
                stream = max(stream, host + 1) + chance.choice([2, 2, 20])
                calls.append(host)
                ends.append(stream)
            host += 1
            if mark == "end" and chance.random() < 0.3:
                host = max(host, stream)  # the host waits for the device
            marks.append(host)
            events.append(max(stream, host))
    steps = Steps(np.array(marks[::2]), np.array(marks[1::2]))
    found = steps_on_device(steps, np.array(calls, np.int64), np.array(ends, np.int64))
    if calls:
        assert found.extent == "device"
        assert (found.starts.tolist(), found.ends.tolist()) == (events[::2], events[1::2])
    else:
        assert found == steps


@EITHER
def test_times_around_the_largest_32_bit_number_add_up(suffix: str, tmp_path: Path) -> None:
    # From 4.2 to 4.4 s: 2³² ns are 4.295 s.
    path = make_trace(tmp_path / f"t.{suffix}", Process(kernels=[(4150, 4200, 4400, "gemm")]))
    [row] = timeline_of(path, CAPTURE)
    assert (row["span_s"], row["busy_s"], row["idle_s"]) == (pytest.approx(0.2), pytest.approx(0.2), 0)
