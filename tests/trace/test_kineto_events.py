"""What events of a trace of PyTorch's profiler mean, in the spellings of its versions, of vendors, and of mergers."""

import json
from pathlib import Path
from typing import Any

import pytest

from changed_traces import rows_of
from multicard.core.errors import TraceError
from multicard.trace.files import open_trace
from multicard.trace.model import MISSING, Trace

Events = list[dict[str, Any]]


def event(
    category: str, name: str, start: float, duration: float, pid: Any = 70, tid: Any = 7, **arguments: Any
) -> dict:
    """A complete event; times in microseconds."""
    return {
        "ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": start, "dur": duration,
        "args": arguments,
    }  # fmt: skip


def rank_events(pid: Any, device: int, late: float = 0, **on_device: Any) -> Events:
    """Two steps of 1 ms with four launches each, 20 µs before their kernels of 200 µs, as closed forms give them."""
    events = []
    for step in range(2):
        start = 1000 * step + late
        events.append(event("user_annotation", f"ProfilerStep#{step}", start, 1000, pid))
        for number in range(4):
            correlation = 1 + 4 * step + number
            call = start + 10 + 230 * number
            events.append(event("cuda_runtime", "cudaLaunchKernel", call, 5, pid, correlation=correlation))
            where = {"device": device, "stream": 7} | on_device
            events.append(event("kernel", "gemm", call + 20, 200, device, 7, correlation=correlation, **where))
    return events


def trace_file(path: Path, events: Events, **others: Any) -> Path:
    path.write_text(json.dumps({**others, "traceEvents": events}))
    return path


def batch_of(trace: Trace, kind: str, *groups: str) -> list[dict[str, Any]]:
    """The events of a kind, each with its numbers and these columns of its group."""
    source = trace.open(kind, (), groups)
    [batch] = [batch for part in source.parts for batch in part()]
    described = source.described()
    return [
        {name: int(values[i]) for name, values in batch.numbers.items()}
        | dict(zip(groups, described[code], strict=True))
        for i, code in enumerate(batch.group.tolist())
    ]


def test_until_pytorch_1_10_steps_and_loading_were_operators(tmp_path: Path) -> None:
    events = rank_events(70, 0)
    old = {"user_annotation": "Operator", "cuda_runtime": "Runtime", "kernel": "Kernel"}
    for each in events:
        each["cat"] = old[each["cat"]]
    loading = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    names = [loading, "aten::add", "AddBackward0", "Optimizer.step#SGD.step", "detach_"]
    events += [event("Operator", name, 2000 + 10 * i, 5) for i, name in enumerate(names)]
    rows = rows_of(trace_file(tmp_path / "t.json", events))
    assert {row["range"]: row["calls"] for row in rows["ranges"]} == {
        "step": 2, loading: 1, "Optimizer.step#SGD.step": 1,
    }  # fmt: skip
    assert [row["joined"] for row in rows["launches"]] == [8]


@pytest.mark.parametrize("device", ["args", "pid", "pid as text"])
def test_the_device_is_read_from_the_process_where_the_arguments_lack_it(device: str, tmp_path: Path) -> None:
    events = [*rank_events(70, 0), *rank_events(70, 1)]
    for each in events:
        if each["cat"] == "kernel" and device != "args":
            del each["args"]["device"], each["args"]["stream"]
            each["pid"] = f"GPU {each['pid']}" if device == "pid as text" else each["pid"]
            each["tid"] = "stream 7" if device == "pid as text" else 7
    trace = open_trace(trace_file(tmp_path / "t.json", events))
    places = [(row["device"], row["stream"]) for row in batch_of(trace, "kernels", "device", "stream")]
    assert places == [(0, 7)] * 8 + [(1, 7)] * 8


def test_of_a_device_without_a_number_the_process_is_not_taken_for_one(tmp_path: Path) -> None:
    events = rank_events(70, 0)
    for each in events:
        each["pid"] = 70
        each["args"].pop("device", None)
    trace = open_trace(trace_file(tmp_path / "t.json", events))
    assert {row["device"] for row in batch_of(trace, "kernels", "device")} == {None}


@pytest.mark.parametrize(
    ("pids", "devices", "in_order_of_time"),
    [
        ((100, 200), (0, 1), False),
        ((100, 200), (0, 0), False),
        ((100, 200), (0, 1), True),
        (("[TP00] 100", "[TP01] 200"), (0, 1), False),
    ],
)
def test_the_ranks_of_a_merged_file_keep_their_own_kernels(
    pids: tuple[Any, Any], devices: tuple[int, int], in_order_of_time: bool, tmp_path: Path
) -> None:
    """Both number their calls alike, the second runs 100 µs later: each kernel begins 20 µs after its own launch."""
    events = [*rank_events(pids[0], devices[0]), *rank_events(pids[1], devices[1], late=100)]
    if in_order_of_time:
        events.sort(key=lambda each: each["ts"])
    path = trace_file(tmp_path / "t.json", events, distributedInfo={"rank": 3})
    rows = rows_of(path)
    assert [(row["process"], row["device"], row["rank"], row["joined"]) for row in rows["launches"]] == [
        (100, devices[0], None, 8), (200, devices[1], None, 8),
    ]  # fmt: skip
    assert [row["median_latency_s"] for row in rows["launches"]] == [pytest.approx(20e-6)] * 2
    assert open_trace(path).notices == (
        "t.json: the traces of processes 100 and 200 in one file, so their ranks are unknown",
    )


def test_a_merged_file_that_lists_all_of_the_host_first_is_divided_by_the_calls(tmp_path: Path) -> None:
    events = [*rank_events(100, 0), *rank_events(200, 1, late=100)]
    events.sort(key=lambda each: each["cat"] == "kernel")
    rows = rows_of(trace_file(tmp_path / "t.json", events))
    assert [(row["process"], row["device"], row["joined"]) for row in rows["launches"]] == [(100, 0, 8), (200, 1, 8)]
    assert [row["median_latency_s"] for row in rows["launches"]] == [pytest.approx(20e-6)] * 2


def test_a_merged_file_that_does_not_tell_whose_the_kernels_are_is_refused(tmp_path: Path) -> None:
    events = [*rank_events(100, 0), *rank_events(200, 0, late=100)]
    events.sort(key=lambda each: each["ts"])  # both on one stream of a device 0, side by side
    path = trace_file(tmp_path / "t.json", events)
    with pytest.raises(TraceError, match=r"2 processes \(100, 200\) .* expected a file for each rank"):
        open_trace(path)


def test_a_container_that_gives_a_process_two_ids_makes_one_process(tmp_path: Path) -> None:
    events = rank_events(70, 0)
    for each in events:
        if each["cat"] == "user_annotation":
            each["pid"] = 1
    rows = rows_of(trace_file(tmp_path / "t.json", events))
    assert {row["process"] for table in ("ranges", "launches", "cuda_api") for row in rows[table]} == {70}


def test_calls_and_queues_of_intels_xpu_are_read(tmp_path: Path) -> None:
    events = [
        event("xpu_runtime", "urEnqueueKernelLaunch", 0, 8, correlation=1),
        event("xpu_driver", "zeCommandListAppendLaunchKernel", 2, 4, correlation=1),
        event("kernel", "gemm_kernel", 30, 150, 0, 3, correlation=1, device=0, **{"sycl queue": 3}),
    ]
    path = trace_file(tmp_path / "t.json", events)
    trace = open_trace(path)
    assert [(row["device"], row["stream"]) for row in batch_of(trace, "kernels", "device", "stream")] == [(0, 3)]
    rows = rows_of(path)
    assert [(row["joined"], row["median_latency_s"]) for row in rows["launches"]] == [(1, pytest.approx(30e-6))]
    assert {row["api"] for row in rows["cuda_api"]} == {"runtime", "driver"}


@pytest.mark.parametrize(
    ("category", "name", "operation", "host_memory"),
    [
        ("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", "host_to_device", "pageable"),
        ("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", "device_to_host", "pinned"),
        ("gpu_memcpy", "Memcpy PtoP (Device -> Device)", "peer_to_peer", None),
        ("gpu_memcpy", "Memcpy HtoH (Pageable -> Pinned)", "host_to_host", "pageable"),
        ("gpu_memcpy", "Memcpy AtoD (Array -> Device)", "device_to_device", None),
        ("gpu_memcpy", "Memcpy M2D (MEMORY(Unknown) -> DEVICE)", "host_to_device", None),
        ("gpu_memcpy", "Memcpy D2M", "device_to_host", None),
        ("gpu_memcpy", "Memcpy M2M (MEMORY(Unknown) -> MEMORY(Unknown))", "host_to_host", None),
        ("gpu_memcpy", "Memcpy H2D (HOST -> DEVICE)", "host_to_device", None),
        ("gpu_memcpy", "Memcpy D2D (DEVICE -> DEVICE)", "device_to_device", None),
        ("gpu_memcpy", "Memcpy D2S (DEVICE -> SHARED)", "other", None),
        ("gpu_memcpy", "CopyHostToDevice", "host_to_device", None),
        ("gpu_memcpy", "CopyDeviceToHost2D", "device_to_host", None),
        ("gpu_memcpy", "CopyDeviceToDevice", "device_to_device", None),
        ("gpu_memcpy", "FillBuffer", "memset", None),
        ("gpu_memset", "Memset (0 -> DEVICE)", "memset", None),
        ("Memset", "Memset (Device)", "memset", None),
        ("gpu_memcpy", "CopyImage", "other", None),
    ],
)
def test_the_direction_of_a_copy_is_told_by_its_name(
    category: str, name: str, operation: str, host_memory: str | None, tmp_path: Path
) -> None:
    trace = open_trace(trace_file(tmp_path / "t.json", [event(category, name, 0, 5, 0, device=0)]))
    [row] = batch_of(trace, "memory", "operation", "host_memory")
    assert (row["operation"], row["host_memory"]) == (operation, host_memory)


def noted(collective: str, sent: Any, received: Any, dtype: str = "Float", **others: Any) -> dict[str, Any]:
    """What PyTorch notes on the kernel of a collective."""
    return {
        "Collective name": collective, "In msg nelems": sent, "Out msg nelems": received, "dtype": dtype,
        "Group size": 4, **others,
    }  # fmt: skip


def test_each_kernel_carries_its_own_message(tmp_path: Path) -> None:
    group = {"Process Group Name": "TP", "Seq": 12, "Comms Id": (1 << 64) - 1}
    kernels = [
        # The call of the runtime comes before that of the driver inside, and counts.
        event("kernel", "ncclKernel", 500, 50, 0, device=0, correlation=1, **noted("allreduce", 10, 10, **group)),
        event("kernel", "ncclKernel", 300, 50, 0, device=0, correlation=2, **noted("allgather", 10, 40)),
        event("kernel", "ncclKernel", 700, 50, 0, device=0),
    ]
    calls = [
        event("cuda_driver", "cuLaunchKernelEx", 2, 4, 70, 9, correlation=1),
        event("cuda_runtime", "cudaLaunchKernelExC", 1, 7, 70, 8, correlation=1),
    ]
    trace = open_trace(trace_file(tmp_path / "t.json", [*kernels, *calls]))
    groups = ("process", "collective", "ranks", "communicator", "thread")
    assert batch_of(trace, "messages", *groups) == [
        {
            "process": 70, "collective": "all_reduce", "ranks": 4, "communicator": "TP", "thread": 8, "correlation": 1,
            "kernel_start": 500_000, "start": 1_000, "end": 8_000, "duration": 7_000, "bytes": 40, "sequence": 12,
        },
        {
            "process": 70, "collective": "all_gather", "ranks": 4, "communicator": None, "thread": None,
            "correlation": 2, "kernel_start": 300_000, "start": 300_000, "end": MISSING, "duration": MISSING,
            "bytes": 40, "sequence": MISSING,
        },
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("note", "collective", "size"),
    [
        # c10d's names of calls (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp).
        (noted("_allgather_base", 10, 40, "BFloat16"), "all_gather", 20),
        (noted("_reduce_scatter_base", 40, 10, "Half"), "reduce_scatter", 20),
        (noted("reduce_scatter_tensor_coalesced", 40, 10), "reduce_scatter", 40),
        (noted("allreduce_coalesced", 10, 10, "Double"), "all_reduce", 80),
        (noted("all_to_allv", 10, 12, "Byte"), "all_to_all", 10),
        (noted("broadcast", "10", "10", "Long"), "broadcast", 80),
        (noted("send", 10, 0, "Bool"), "send", 10),
        (noted("recv", 0, 10, "Float8_e4m3fnuz"), "recv", 10),
        (noted("allreduce", 10, 10, "torch.bfloat16"), "all_reduce", 20),
        (noted("allreduce", 10, 10, "QInt4"), "all_reduce", MISSING),
        ({"Collective name": "allreduce"}, "all_reduce", MISSING),
        (noted("allreduce", 1 << 62, 1 << 62), "all_reduce", MISSING),
    ],
)
def test_messages_are_counted_as_nccl_does(note: dict[str, Any], collective: str, size: int, tmp_path: Path) -> None:
    trace = open_trace(trace_file(tmp_path / "t.json", [event("kernel", "ncclKernel", 0, 5, 0, device=0, **note)]))
    [row] = batch_of(trace, "messages", "collective")
    assert (row["collective"], row["bytes"]) == (collective, size)


def test_calls_that_are_no_collective_carry_no_message(tmp_path: Path) -> None:
    note = noted("wait", 1, 1)
    trace = open_trace(trace_file(tmp_path / "t.json", [event("kernel", "ncclKernel", 0, 5, 0, device=0, **note)]))
    assert not trace.has("messages")


def properties(*names: str) -> list[dict[str, Any]]:
    return [{"id": number, "name": name} for number, name in enumerate(names)]


def test_gpus_are_those_that_ran_something(tmp_path: Path) -> None:
    devices = properties("NVIDIA A100", "NVIDIA T4", "NVIDIA A100")
    devices[1]["uuid"] = "GPU-17"
    trace = open_trace(trace_file(tmp_path / "t.json", rank_events(70, 1), deviceProperties=devices))
    assert (trace.gpus, trace.gpu_count, trace.gpu_identities) == (("NVIDIA T4",), 3, {(70, 1): "GPU-17"})
    idle = open_trace(trace_file(tmp_path / "t.json", [], deviceProperties=devices))
    assert idle.gpus == ("NVIDIA A100", "NVIDIA T4")
    unknown = open_trace(trace_file(tmp_path / "t.json", rank_events(70, 0), deviceProperties=[{"id": 0, "name": ""}]))
    assert (unknown.gpus, unknown.gpu_count, unknown.gpu_identities) == ((), 1, {})
    nowhere = event("kernel", "gemm", 0, 1, device="gone", stream=7)
    without_id = [{"name": "NVIDIA A100"}, {"id": 1, "name": "NVIDIA T4"}]
    partly = open_trace(trace_file(tmp_path / "t.json", [*rank_events(70, 1), nowhere], deviceProperties=without_id))
    assert partly.gpus == ("NVIDIA T4",)
    none = open_trace(trace_file(tmp_path / "t.json", rank_events(70, 0), deviceProperties=None))
    assert (none.gpus, none.gpu_count) == ((), None)


@pytest.mark.parametrize(("stated", "rank"), [(3, 3), ("3", 3), (3.0, 3), (None, None), ("three", None), (True, None)])
def test_the_rank_may_stand_as_text(stated: Any, rank: int | None, tmp_path: Path) -> None:
    trace = open_trace(trace_file(tmp_path / "t.json", rank_events(70, 0), distributedInfo={"rank": stated}))
    assert trace.ranks.get(70) == rank


def clock(path: Path, since: int = 0, **others: Any) -> str | None:
    events = rank_events(70, 0)
    for each in events:
        each["ts"] += since
    return open_trace(trace_file(path, events, **others)).clock


def test_clocks_are_the_same_where_base_and_host_are(tmp_path: Path) -> None:
    base = {"baseTimeNanoseconds": 1_767_189_312_000_000_000}
    plain = clock(tmp_path / "rank0.json", **base)
    assert plain is not None
    assert clock(tmp_path / "rank1.json", **base) == plain
    assert clock(tmp_path / "rank1.json", baseTimeNanoseconds=1_775_078_550_000_000_000) != plain
    assert clock(tmp_path / "rank1.json", **base, host_name="node1") not in (None, plain)
    # As torch.profiler.tensorboard_trace_handler names files: host, process id and time.
    node = clock(tmp_path / "node1_70.1700000000.pt.trace.json", **base)
    assert node == clock(tmp_path / "b.json", **base, traceName="/logs/node1_70.1800000000.pt.trace.json")
    assert node == clock(tmp_path / "b.json", **base, host_name="node1")
    assert clock(tmp_path / "worker_0.1700000000.pt.trace.json", **base) == plain


def test_times_without_a_base_are_those_since_1970_or_cannot_be_compared(tmp_path: Path) -> None:
    assert clock(tmp_path / "rank0.json") is None
    since_1970 = clock(tmp_path / "rank0.json", since=1_700_000_000_000_000)
    assert since_1970 is not None
    assert since_1970 == clock(tmp_path / "rank1.json", since=1_700_000_001_000_000)


def test_a_begin_whose_time_is_a_text_may_end_at_a_number(tmp_path: Path) -> None:
    begin = event("cuda_runtime", "cudaLaunchKernel", 0, 0) | {"ph": "B", "ts": "1603029046213755.125"}
    end = event("cuda_runtime", "cudaLaunchKernel", 0, 0) | {"ph": "E", "ts": 1603029046213757.5}
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": [begin, end]}))
    [row] = rows_of(path)["cuda_api"]
    assert row["total_s"] == pytest.approx(2.375e-6)


def test_an_event_without_a_duration_is_read_alike_whatever_else_is_mistyped(tmp_path: Path) -> None:
    call = event("cuda_runtime", "cudaLaunchKernel", 0, 0)
    del call["dur"]
    halves = [call | {"ph": "B"}, call | {"ph": "E", "ts": 3}]
    sound = open_trace(trace_file(tmp_path / "t.json", halves))
    assert sound.notices == ("t.json: 1 event put together from begin and end",)
    mistyped = open_trace(trace_file(tmp_path / "t.json", [*halves, {"ph": "i", "name": "mark", "cat": ["no text"]}]))
    assert mistyped.notices == sound.notices


def test_a_collective_is_read_from_the_typed_arguments_of_pytorch_2_15(tmp_path: Path) -> None:
    """PyTorch's exporter in Python puts all arguments of record_param_comms onto the kernel, in their own types."""
    call = event("cuda_runtime", "cudaLaunchKernelExC", 10, 5, correlation=41, cbid=430)
    of_kernel = {
        "External id": 12, "queued": 0, "device": 1, "context": 1, "stream": 20, "correlation": 41,
        "registers per thread": 96, "shared memory": 82224, "blocks per SM": 0.181818, "warps per SM": "inf",
        "grid": [24, 1, 1], "block": [544, 1, 1], "est. achieved occupancy %": 0,
        "occupancy": {"limitingFactors": "registers"}, "priority": -5, "graph id": 0,
    }  # fmt: skip
    of_call = {
        "Record function id": 0, "Concrete Inputs": ["", "(('0', 'default_pg'),)", "True"], "Rank": 1, "Seq": 7,
        "Collective name": "allreduce", "dtype": "BFloat16", "In msg nelems": 4096, "Out msg nelems": 4096,
        "In split size": "[]", "Out split size": "[]", "Global rank start": 0, "Global rank stride": 1, "Group size": 2,
        "Process Group Name": "0", "Process Group Description": "default_pg", "Process Group Ranks": "[0, 1]",
        "Is asynchronized op": True, "Comms Id": 18446744073709551615, "Input Dims": [[[4096]], [], []], "Ev Idx": 9,
    }  # fmt: skip
    kernel = event("kernel", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 30, 40, 1, 20, **of_kernel, **of_call)
    trace = open_trace(trace_file(tmp_path / "t.json", [call, kernel]))
    columns = ("collective", "ranks", "communicator")
    [message] = batch_of(trace, "messages", *columns)
    assert [message[name] for name in columns] == ["all_reduce", 2, "0"]
    assert (message["bytes"], message["sequence"], message["correlation"]) == (4096 * 2, 7, 41)
    assert trace.notices == ()


def test_of_a_kernel_shown_on_a_lane_the_stream_is_the_one_that_it_ran_on(tmp_path: Path) -> None:
    """PyTorch 2.15 shows kernels of a CUDA graph on lanes, and writes all that the program notes on them as texts."""
    noted = {"Collective name": "allreduce", "dtype": "Float", "In msg nelems": "256", "Group size": "4"}
    lane = {"device": 0, "stream": 60, "original_stream": 31, "correlation": 5, "graph node id": 8}
    kernel = event("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 10, 40, 0, 60, **lane, **noted)
    trace = open_trace(trace_file(tmp_path / "t.json", [event("cpu_op", "aten::add", 0, 1), kernel]))
    assert [row["stream"] for row in batch_of(trace, "kernels", "stream")] == [31]
    [message] = batch_of(trace, "messages", "ranks")
    assert (message["bytes"], message["ranks"]) == (256 * 4, 4)


@pytest.mark.parametrize(
    ("kinds", "operation", "host_memory"),
    [
        (("HtoD", "pinned", "device"), "host_to_device", "pinned"),
        (("DtoH", "device", "pageable"), "device_to_host", "pageable"),
        (("DtoD", "device", "device"), "device_to_device", None),
        (("PtoP", "device", "device"), "peer_to_peer", None),
        ((11, "managed", "device"), "other", None),
    ],
)
def test_copies_of_pytorchs_own_recorder_state_their_kind_in_arguments(
    kinds: tuple[Any, str, str], operation: str, host_memory: str | None, tmp_path: Path
) -> None:
    """All of them have the name "Memcpy" (torch/profiler/_cuspy/trace.py)."""
    arguments = dict(zip(("copy kind", "src kind", "dst kind"), kinds, strict=True))
    place = {"device": 0, "context": 1, "stream": 7, "correlation": 3, "bytes": 64}
    copy = event("gpu_memcpy", "Memcpy", 10, 2, 0, 7, **place, **arguments)
    trace = open_trace(trace_file(tmp_path / "t.json", [event("cpu_op", "aten::to", 0, 1), copy]))
    [row] = batch_of(trace, "memory", "operation", "host_memory")
    assert (row["operation"], row["host_memory"], row["bytes"]) == (operation, host_memory, 64)
