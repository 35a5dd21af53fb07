"""Idle time of a device by cause, against a judgement of every moment, one by one."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from captures import Process, make_trace
from multicard.trace import idle
from multicard.trace.api_calls import HostActivity, host_activity
from multicard.trace.code_loading import FIRST_LAUNCH, loading_launches
from multicard.trace.device_times import COMMUNICATION, COMPUTE, MEMORY, MIGRATION, Device, Launches
from multicard.trace.events import Events
from multicard.trace.files import open_trace
from multicard.trace.host import Host
from multicard.trace.idle import ANY_THREAD, CAUSES, ThreadActivity
from multicard.trace.launches import UNKNOWN
from multicard.trace.steps import Marks
from multicard.trace.tables import activity_tables
from random_inputs import seeds

END = 60
UNIT = 200_000  # ns; so that five of them are a pause of 1 ms
OWNER = (0, 1)

FUNCTIONS = {
    "cudaLaunchKernel": idle.LAUNCHING,
    "cudaMalloc": idle.ALLOCATING,
    "cuLibraryLoadData": idle.LOADING_CODE,
    "cudaDeviceSynchronize": idle.WAITING,
    "cudaEventRecord": idle.OTHER_CALLS,
}
# The inner one of nested calls counts, and this is the order in which calls nest.
INNER_FIRST = (idle.LOADING_CODE, idle.ALLOCATING, idle.WAITING, idle.OTHER_CALLS, idle.LAUNCHING)


@dataclass
class Call:
    """A call of the host, in units of time."""

    start: int
    end: int
    function: str
    thread: int


@dataclass
class Activity:
    """What runs on the device, with its launching call, None where that was not recorded."""

    start: int
    end: int
    kind: int
    call: Call | None
    by_graph: bool = False


def events_of(rows: Sequence[tuple[int, int, tuple[object, ...]]], fields: tuple[str, ...]) -> Events:
    groups = list(dict.fromkeys(key for _, _, key in rows))
    code = np.array([groups.index(key) for _, _, key in rows], np.int64)
    start = np.array([start for start, _, _ in rows], np.int64) * UNIT
    duration = np.array([end - start for start, end, _ in rows], np.int64) * UNIT
    arrays = {"start": start, "duration": duration}
    return Events(fields, [(*OWNER, *key) for key in groups], code, arrays, {OWNER: slice(0, len(rows))})


def host_of(calls: list[Call], data: list[tuple[int, int]], loading: np.ndarray | None = None) -> Host:
    api = events_of(
        [(call.start, call.end, ("runtime", call.function, call.thread)) for call in calls],
        ("process", "api", "name", "thread"),
    )
    ranges = None
    if data:
        ranges = events_of([(start, end, ("data", 5)) for start, end in data], ("process", "name", "thread"))
    return Host(api, ranges, Marks(None), OWNER, *([] if loading is None else [loading]))


def device_of(activities: list[Activity]) -> Device:
    def numbers(of: str) -> np.ndarray:
        known = [None if a.call is None else getattr(a.call, of) for a in activities]
        return np.array([UNKNOWN if value is None else value * UNIT for value in known], np.int64)

    threads = np.array([0 if a.call is None else a.call.thread for a in activities])
    launches = Launches(numbers("start"), numbers("end"), threads, np.array([a.by_graph for a in activities]))
    start = np.array([a.start for a in activities]) * UNIT
    end = np.array([a.end for a in activities]) * UNIT
    return Device(start, end, np.array([a.kind for a in activities]), launches)


def causes_of(activities: list[Activity], host: Host, starts: list[int], ends: list[int]) -> list[dict[str, int]]:
    """Return the causes within each window, in units."""
    launching = {activity.call.thread for activity in activities if activity.call is not None}

    def activity_of(number: int, first: int, last: int) -> ThreadActivity:
        if number == ANY_THREAD:
            return ThreadActivity(host.any_thread(first, last), *host.outside())
        return ThreadActivity(host.thread(number), *host.outside(launching))

    edges = (np.array(starts) * UNIT, np.array(ends) * UNIT)
    found = device_of(activities).between(*edges, activity_of).nanoseconds
    return [{cause: found[cause][i] // UNIT for cause in CAUSES if found[cause][i]} for i in range(len(starts))]


def judged(moment: int, activities: list[Activity], calls: list[Call], data: list[tuple[int, int]]) -> str | None:
    """Return the cause of a moment; None if the device is at work."""
    real = [a for a in activities if a.end > a.start]
    if any(a.start <= moment < a.end for a in real):
        return None
    following = [a for a in real if a.start > moment]
    opener = min(following, key=lambda a: (a.start, UNKNOWN if a.call is None else a.call.start), default=None)
    if opener is None or (opener.call is None and opener.kind == MIGRATION):
        return of_host(moment, calls, calls, data)
    if opener.call is None:
        return idle.UNKNOWN_CAUSE
    before = [a for a in real if a.by_graph and a.call is opener.call and a.start < opener.start]
    if opener.by_graph and before:
        return idle.IN_GRAPH
    if moment >= opener.call.end:
        return idle.QUEUED
    launching = {a.call.thread for a in activities if a.call is not None}
    own = [call for call in calls if call.thread == opener.call.thread]
    return of_host(moment, own, [call for call in calls if call.thread in launching], data)


def of_host(moment: int, own: list[Call], calls: list[Call], data: list[tuple[int, int]]) -> str:
    """Return what the host does in a moment, by a thread's own calls and those of all threads that count."""
    in_progress = {FUNCTIONS[call.function] for call in own if call.start <= moment < call.end}
    for cause in INNER_FIRST:
        if cause in in_progress:
            return cause
    if any(call.start <= moment < call.end for call in calls):
        return idle.BETWEEN_CALLS  # of this thread
    if any(start <= moment < end for start, end in data):
        return idle.DATA_LOADING
    last = max((call.end for call in calls if call.end <= moment), default=None)
    following = min((call.start for call in calls if call.start > moment), default=None)
    if last is not None and following is not None and (following - last) * UNIT >= 1_000_000:
        return idle.ELSEWHERE
    return idle.BETWEEN_CALLS


def random_calls(generator: np.random.Generator) -> list[Call]:
    """Return calls of two threads that follow each other, some with another call inside."""
    calls = []
    for thread in (1, 2):
        at = int(generator.integers(0, 10))
        while at < END:
            length = int(generator.integers(1, 5))
            function = str(generator.choice(list(FUNCTIONS)))
            calls.append(Call(at, at + length, function, thread))
            if length > 2 and function == "cudaLaunchKernel":
                inner = str(generator.choice(["cuLibraryLoadData", "cudaMalloc"]))
                calls.append(Call(at + 1, at + length - 1, inner, thread))
            at += length + int(generator.choice([0, 1, 2, 12]))
    return calls


@seeds(100, 900)
def test_every_idle_moment_has_its_cause(seed: int) -> None:
    generator = np.random.default_rng(seed)
    calls = random_calls(generator)
    launching = [call for call in calls if call.function == "cudaLaunchKernel"]
    if len({call.start for call in launching}) < len(launching):
        return  # a launching call is known by when it began
    activities = []
    for _ in range(generator.integers(1, 10)):
        start = int(generator.integers(2, END))
        before = [call for call in launching if call.start < start]
        call = before[-int(generator.integers(1, 4)) % len(before)] if before and generator.random() < 0.8 else None
        kind = int(generator.choice([COMPUTE, COMMUNICATION, MEMORY] if call else [COMPUTE, MIGRATION]))
        by_graph = call is not None and call.start % 3 == 0
        activities.append(Activity(start, start + int(generator.integers(0, 8)), kind, call, by_graph))
    starts_of = [(a.start, a.call and a.call.start) for a in activities if a.end > a.start]
    if len(set(starts_of)) < len(starts_of):
        return  # two begin and were launched together, so either may count as first
    data = [(int(at), int(at) + 9) for at in generator.integers(0, END, seed % 3)]
    starts, ends = np.sort(generator.integers(0, END + 10, (2, 4)), axis=0).tolist()
    if not any(a.end > a.start for a in activities):
        return
    found = causes_of(activities, host_of(calls, data), starts, ends)
    for window, (start, end) in enumerate(zip(starts, ends, strict=True)):
        causes = [judged(moment, activities, calls, data) for moment in range(start, end)]
        assert found[window] == {cause: causes.count(cause) for cause in CAUSES if cause in causes}


def test_a_gap_is_the_hosts_until_the_launching_call_returns() -> None:
    # A kernel at 3-5, launched long before; the next one launched by a call at 6-8 begins at 20 only.
    first, second = Call(0, 2, "cudaLaunchKernel", 1), Call(6, 8, "cudaLaunchKernel", 1)
    activities = [Activity(3, 5, COMPUTE, first), Activity(20, 21, COMPUTE, second)]
    [found] = causes_of(activities, host_of([first, second], []), [3], [21])
    assert found == {idle.BETWEEN_CALLS: 1, idle.LAUNCHING: 2, idle.QUEUED: 12}


def test_a_call_that_began_before_the_device_ran_dry_is_launching_until_it_returns() -> None:
    first, second = Call(0, 1, "cudaLaunchKernel", 1), Call(2, 9, "cudaLaunchKernel", 1)
    activities = [Activity(1, 4, COMPUTE, first), Activity(8, 10, COMPUTE, second)]
    [found] = causes_of(activities, host_of([first, second], []), [1], [10])
    assert found == {idle.LAUNCHING: 4}


def test_calls_of_threads_that_launch_nothing_do_not_hide_what_the_launching_thread_does() -> None:
    # Another thread pins memory while the launching one loads data at 3-23, and asks for an event each unit later on.
    first, second, third = (Call(at, at + 1, "cudaLaunchKernel", 1) for at in (0, 23, 53))
    pinning = Call(4, 22, "cudaMalloc", 2)
    asking = [Call(at, at + 1, "cudaEventRecord", 3) for at in range(28, 50, 2)]
    activities = [Activity(at + 1, at + 3, COMPUTE, call) for at, call in ((0, first), (23, second), (53, third))]
    [found] = causes_of(activities, host_of([first, second, third, pinning, *asking], [(3, 23)]), [1], [56])
    assert found == {idle.DATA_LOADING: 20, idle.ELSEWHERE: 27, idle.LAUNCHING: 2}


def kernels_of(launches: list[tuple[int, int, str]]) -> Events:
    """Return kernels with their launching calls in nanoseconds."""
    names = list(dict.fromkeys(name for _, _, name in launches))
    arrays = {
        "call": np.array([call for call, _, _ in launches], np.int64),
        "returned": np.array([returned for _, returned, _ in launches], np.int64),
    }
    place = {(*OWNER, 0): slice(0, len(launches))}
    code = np.array([names.index(name) for _, _, name in launches])
    return Events(("process", "device", "name"), [(*OWNER, 0, name) for name in names], code, arrays, place)


def test_the_first_launch_of_a_kernel_that_lasts_loads_its_code() -> None:
    ms = 1_000_000
    usual = [(at * ms, at * ms + 8_000, "gemm") for at in range(10, 30)]
    launches = [(0, 5 * ms, "gemm"), (6 * ms, 6 * ms + 9_000, "copy"), *usual, (40 * ms, 42 * ms, "gemm")]
    # The call at 40 ms lasts as well, but code is loaded once; that of `copy` is as short as any.
    assert loading_launches(kernels_of(launches), OWNER).tolist() == [[0, 5 * ms]]
    # Where all launches last, as under a slow profiler, the first is no exception.
    slow = [(at * ms, at * ms + 600_000, "gemm") for at in range(10)]
    assert len(loading_launches(kernels_of(slow), OWNER)) == 0
    # Calls that were not recorded show no length, so these of 600 µs stay the usual ones.
    unrecorded = [(UNKNOWN, UNKNOWN, "gemm")] * 20
    assert len(loading_launches(kernels_of([*slow, *unrecorded]), OWNER)) == 0
    # Nor do calls that replay a graph.
    with_graphs = kernels_of([*slow, *((at * ms, at * ms + 3_000, "in graph") for at in range(50, 70))])
    with_graphs.arrays["by_graph"] = np.arange(30) >= 10
    assert len(loading_launches(with_graphs, OWNER)) == 0
    # A program of one kernel has nothing to compare it with.
    assert loading_launches(kernels_of([(0, 575_000, "gemm")]), OWNER).tolist() == [[0, 575_000]]


def test_the_function_of_each_cause_is_named() -> None:
    calls = [
        Call(0, 1, "cudaLaunchKernel", 1), Call(5, 15, "cudaMalloc", 1), Call(16, 18, "cudaFree", 1),
        Call(20, 22, "cudaLaunchKernel", 1), Call(30, 40, "cudaLaunchKernel", 1),
    ]  # fmt: skip
    activities = [Activity(1, 3, COMPUTE, calls[0]), Activity(22, 25, COMPUTE, calls[3])]
    activities.append(Activity(41, 42, COMPUTE, calls[4]))
    host = host_of(calls, [], np.array([[30 * UNIT, 40 * UNIT]]))
    device = device_of(activities)

    def activity_of(number: int, first: int, last: int) -> ThreadActivity:
        return ThreadActivity(host.thread(number), *host.outside())

    times = device.between(np.array([0]), np.array([42 * UNIT]), activity_of)
    assert times.functions == {
        idle.ALLOCATING: "cudaMalloc", idle.LOADING_CODE: FIRST_LAUNCH, idle.LAUNCHING: "cudaLaunchKernel",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("allocate", "free"),
    [("cudaMalloc", "cudaFree"), ("cudaMallocAsync", "cudaFreeAsync"), ("cudaHostAlloc", "cudaFreeHost")],
)
@pytest.mark.parametrize("file", ["t.json", "t.sqlite"])
def test_idle_time_in_allocations_is_a_cause_of_its_own(tmp_path: Path, file: str, allocate: str, free: str) -> None:
    # Times in milliseconds. A launching call takes 0.1, and then its kernel is queued until it starts.
    kernels = [(0, 0.2, 4, "gemm"), (9.5, 10, 14, "gemm"), (10.2, 20, 24, "gemm"), (37, 37.1, 40, "gemm")]
    calls = [
        (3, 9, allocate),
        (12, 23.5, free),
        (24, 30, allocate),
        (25, 27, "cuLibraryLoadData"),
        (30.5, 36.5, free),
        (31, 35, "cuCtxSynchronize"),
    ]
    path = make_trace(tmp_path / file, Process(kernels=kernels, others=calls))
    [row] = activity_tables([open_trace(path)], ["timeline"]).rows["timeline"]
    expected = {
        # The host allocates at 3-9, but at 3-4 the GPU still works. In the last gap, at 24-37.1, the allocation at
        # 24-30 loads code for 2 of its 6 ms. All 6 ms count in which memory is freed: its wait belongs to it.
        idle.ALLOCATING: 5 + 4 + 6,
        idle.LOADING_CODE: 2,
        idle.BETWEEN_CALLS: 0.5 + 0.5 + 0.5,
        idle.LAUNCHING: 0.1 + 0.1,
        # At 9.6-10, and at 14-20: while the host frees memory, but the kernel was launched in time.
        idle.QUEUED: 0.4 + 6,
    }
    assert {cause: row[f"{cause}_s"] * 1e3 for cause in CAUSES if row[f"{cause}_s"]} == pytest.approx(expected)
    assert row["idle_s"] * 1e3 == pytest.approx(6 + 6 + 13.1)
    # Of the gaps that are the host's, 5 + 6 ms lie in calls that allocate, and 6 ms in one that frees.
    assert row["idle_allocating_call"] == allocate


# Names from the CUDA Runtime and Driver API, HIP, and Level Zero references.
@pytest.mark.parametrize(
    ("activity", "functions"),
    [
        (
            HostActivity.LAUNCHING,
            "cudaLaunchKernel cudaLaunchKernelExC cuLaunchKernel cuLaunchKernelEx cudaGraphLaunch hipGraphLaunch "
            "hipLaunchKernel hipExtModuleLaunchKernel hipModuleLaunchKernel hipExtLaunchKernel cudaMemcpyAsync "
            "cuMemcpyHtoDAsync_v2 cudaMemset cudaMemsetAsync hipMemcpyAsync cudaMemPrefetchAsync "
            "zeCommandListAppendLaunchKernel urEnqueueKernelLaunch cudaMemcpy2DAsync cudaLaunchCooperativeKernel",
        ),
        (
            HostActivity.ALLOCATING,
            "cudaMalloc cudaMallocAsync cudaMallocManaged cudaFree cudaFreeAsync cudaHostAlloc cudaFreeHost "
            "cuMemAlloc_v2 cuMemFree_v2 cuMemHostRegister_v2 cuMemHostAlloc cudaHostRegister cudaHostUnregister "
            "hipMalloc hipFree hipHostMalloc cuMemCreate cuMemMap cuMemSetAccess hipArray3DCreate zeMemAllocDevice",
        ),
        (
            HostActivity.LOADING_CODE,
            "cuModuleLoad cuModuleLoadData cuModuleLoadDataEx cuModuleUnload cuLibraryLoadData cuLibraryUnload "
            "hipModuleLoad hipModuleLoadData __cudaRegisterFatBinary zeModuleCreate cuLinkComplete",
        ),
        (
            HostActivity.WAITING,
            "cudaDeviceSynchronize cudaStreamSynchronize cudaEventSynchronize cuCtxSynchronize hipDeviceSynchronize "
            "cudaMemcpy cuMemcpyDtoH_v2 hipMemcpy hipMemcpyWithStream zeEventHostSynchronize urQueueFinish",
        ),
        (
            HostActivity.OTHER,
            "cudaEventRecord cudaStreamWaitEvent cudaEventQuery cudaStreamIsCapturing cudaMemGetInfo cuInit "
            "hipGetDevicePropertiesR0600 cudaFuncSetAttribute cudaGetDevice "
            # They enqueue a wait of the stream and return at once (CUDA Driver API, stream memory operations).
            "cuStreamWaitValue32 cuStreamWaitValue32_v2 cuStreamWaitValue64_v2 hipStreamWaitValue32",
        ),
    ],
    ids=lambda value: value.name if isinstance(value, HostActivity) else "",
)
def test_calls_are_told_by_their_names(activity: HostActivity, functions: str) -> None:
    assert {function: host_activity(function) for function in functions.split()} == dict.fromkeys(
        functions.split(), activity
    )
