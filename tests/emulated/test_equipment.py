"""Emulated GPUs compute what the CPU computes, and refuse what real GPUs refuse."""

import json
import re
import sys
from pathlib import Path

import pytest

from emulated_gpu.fixtures import NOTHING_COMPUTES, EmulatedGpus

pytestmark = [pytest.mark.emulated, pytest.mark.slow]

REFUSED = """
import torch

def refused(what, error=RuntimeError):
    try:
        what()
    except error as found:
        return " ".join(str(found).split())
    raise AssertionError("not refused")
"""


def test_as_many_gpus_are_seen_as_are_set_and_their_names_say_synthetic(emulated: EmulatedGpus) -> None:
    program = "import torch; print(*[torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())], sep=';')"
    assert emulated.output(program, gpus=3).strip().split(";") == ["Emulated GPU (synthetic)"] * 3
    assert emulated.output(program, gpus=3, CUDA_VISIBLE_DEVICES="2,0").strip().count(";") == 1


def test_a_small_network_learns_as_on_the_cpu(emulated: EmulatedGpus) -> None:
    program = """
import copy, json, torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU6(), nn.Flatten(), nn.RMSNorm(8 * 36), nn.Linear(8 * 36, 10)
)
images, labels, losses = torch.randn(16, 3, 8, 8), torch.randint(10, (16,)), {}
for device, net in (("cpu", model), ("cuda", copy.deepcopy(model).cuda())):
    steps = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, fused=True)
    losses[device] = []
    for _ in range(5):
        loss = nn.functional.cross_entropy(net(images.to(device)), labels.to(device))
        loss.backward()
        steps.step()
        steps.zero_grad()
        losses[device].append(loss.item())
print(json.dumps(losses))
"""
    losses = json.loads(emulated.output(program, gpus=1))
    assert losses["cuda"] == pytest.approx(losses["cpu"], rel=1e-4)
    assert losses["cuda"][-1] < losses["cuda"][0]


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_a_replayed_graph_trains_as_eager_steps_do(emulated: EmulatedGpus, precision: str) -> None:
    program = """
import copy, json, sys, torch
from torch import nn
torch.manual_seed(0)
dtype = getattr(torch, PRECISION)
first = nn.Sequential(
    nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.LayerNorm(8 * 36), nn.Linear(8 * 36, 10)
).cuda()
images, labels, losses = torch.randn(16, 3, 8, 8).cuda(), torch.randint(10, (16,)).cuda(), {}
for way in ("eager", "graph"):
    net = copy.deepcopy(first)
    steps = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    def step():
        steps.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=dtype, enabled=dtype != torch.float32):
            loss = nn.functional.cross_entropy(net(images), labels)
        loss.backward()
        steps.step()
        return loss
    stream, losses[way] = torch.cuda.Stream(), []
    with torch.cuda.stream(stream):
        for _ in range(2):
            step()
    torch.cuda.synchronize()
    if way == "graph":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = step()
    for _ in range(6):
        if way == "graph":
            graph.replay()
        else:
            loss = step()
        losses[way].append(loss.item())
print(json.dumps(losses))
"""
    losses = json.loads(emulated.output(f"PRECISION = {precision!r}" + program, gpus=1))
    assert losses["graph"] == pytest.approx(losses["eager"], rel=1e-3)
    assert losses["graph"][-1] < losses["graph"][0]


def test_streams_events_and_graphs_refuse_what_cuda_refuses(emulated: EmulatedGpus) -> None:
    program = """
first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
first.record(), last.record()
print(refused(lambda: first.elapsed_time(last)))
print(refused(lambda: torch.ones(2, device="cuda:0") + torch.ones(2, device="cuda:1")))
x = torch.ones(4, device="cuda")
def wait():
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        (x * 2).sum().item()
print(refused(wait))
print(refused(lambda: torch.empty(1 << 40, device="cuda"), torch.OutOfMemoryError))
"""
    early, devices, waiting, memory = emulated.output(REFUSED + program, gpus=2).splitlines()
    assert "Both events must be completed" in early
    assert "Expected all tensors to be on the same device" in devices
    assert "during capture" in waiting
    assert "CUDA out of memory. Tried to allocate 4096.00 GiB" in memory and "16.00 GiB" in memory


def test_the_second_gpu_can_be_smaller(emulated: EmulatedGpus) -> None:
    program = """
half = (1 << 29) // 4
print(torch.empty(half, device="cuda:0").numel() == half)
print(refused(lambda: torch.empty(half, device="cuda:1"), torch.OutOfMemoryError))
"""
    first, second = emulated.output(REFUSED + program, gpus=2, gpu_gib="16,0.5").splitlines()
    assert first == "True"
    assert "GPU 1 has a total capacity of 512.00 MiB" in second


def test_two_processes_reduce_over_nccl(emulated: EmulatedGpus, tmp_path: Path) -> None:
    program = """
import os, torch, torch.distributed as dist
rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
found = []
for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int64):
    x = torch.arange(1, 5, dtype=dtype, device="cuda") * (rank + 1)
    dist.all_reduce(x)
    found.append(x.tolist())
parts = torch.zeros(4, device="cuda")
dist.all_gather_into_tensor(parts, torch.full((2,), rank + 1.0, device="cuda"))
part = torch.zeros(2, device="cuda")
dist.reduce_scatter_tensor(part, torch.arange(4.0, device="cuda"), op=dist.ReduceOp.AVG)
found += [parts.tolist(), part.tolist()]
if rank == 1:
    print(found, flush=True)
dist.destroy_process_group()
"""
    (tmp_path / "reduce.py").write_text(program)
    done = emulated.run(
        "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", tmp_path / "reduce.py", gpus=2
    )
    assert done.returncode == 0, done.stderr
    # By hand: (1, 2, 3, 4) and its double; ones and twos; the mean of equal values.
    assert json.loads(done.stdout) == [[3, 6, 9, 12]] * 4 + [[1, 1, 2, 2], [2, 3]]


def test_nccl_refuses_two_ranks_on_one_gpu(emulated: EmulatedGpus, tmp_path: Path) -> None:
    program = """
import torch, torch.distributed as dist
dist.init_process_group("nccl")
dist.all_reduce(torch.ones(1, device="cuda:0"))
"""
    (tmp_path / "same.py").write_text(program)
    done = emulated.run(
        "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", tmp_path / "same.py", gpus=2
    )
    assert done.returncode != 0
    assert "invalid usage" in done.stderr


def test_the_profiler_sees_kernels_copies_and_their_launches(emulated: EmulatedGpus, tmp_path: Path) -> None:
    program = f"""
import torch
from torch.profiler import ProfilerActivity, profile
x = torch.ones(64, 64).pin_memory()
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
    y = x.to("cuda", non_blocking=True)
    (y @ y).sum().item()
seen.export_chrome_trace({str(tmp_path / "trace.json")!r})
"""
    emulated.output(program, gpus=1)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    found = {event["name"] for event in events if event.get("cat") == "kernel"}
    assert {"aten::mm", "aten::sum"} <= found
    copies = [event["name"] for event in events if event.get("cat") == "gpu_memcpy"]
    assert "Memcpy HtoD (Pinned -> Device)" in copies
    launches = {e["args"]["correlation"] for e in events if e.get("cat") == "cuda_runtime" and "args" in e}
    kernels = {event["args"]["correlation"] for event in events if event.get("cat") == "kernel"}
    assert kernels and kernels <= launches


def test_the_profiler_sees_the_kernels_of_a_graph_under_its_launch(emulated: EmulatedGpus, tmp_path: Path) -> None:
    program = f"""
import torch
from torch.profiler import ProfilerActivity, profile
x, graph = torch.ones(4, device="cuda"), torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    x.mul_(2)
    y = x + 1
captured = x.tolist()
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
    graph.replay()
    graph.replay()
seen.export_chrome_trace({str(tmp_path / "trace.json")!r})
print(captured, x.tolist(), y.tolist())
"""
    assert emulated.output(program, gpus=1).strip() == f"{[1.0] * 4} {[4.0] * 4} {[5.0] * 4}"
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    launches = [event["args"]["correlation"] for event in events if event.get("name") == "cudaGraphLaunch"]
    kernels = [(e["name"], e["args"]["correlation"]) for e in events if e.get("cat") == "kernel"]
    assert kernels == [(name, launch) for launch in launches for name in ("aten::mul_", "aten::add")]
    assert len(launches) == 2


def test_nvml_counts_a_hundred_watts_and_the_memory_of_all_processes(emulated: EmulatedGpus) -> None:
    program = """
import time, pynvml, torch
x = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(0).uuid}")
began, clock = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle), time.monotonic()
time.sleep(0.5)
joules, seconds = (pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) - began) / 1000, time.monotonic() - clock
print(abs(joules - 100 * seconds) < 100 * 0.05, pynvml.nvmlDeviceGetMemoryInfo(handle).used >> 20)
"""
    right, used = emulated.output(program, gpus=2, CUDA_VISIBLE_DEVICES="1").split()
    assert right == "True"
    assert int(used) == 256 + 300  # the tensor, and the context


def test_a_kernel_that_nothing_computes_is_an_error(emulated: EmulatedGpus) -> None:
    emulated.computes_all = False
    program = "print(refused(lambda: torch.cuda._sleep(1000)))"  # PyTorch's only kernel that is no operator
    assert "invalid device function" in emulated.output(REFUSED + program, gpus=1)
    assert len(emulated.logged(NOTHING_COMPUTES)) == 1


def test_equal_seeds_give_equal_random_numbers(emulated: EmulatedGpus) -> None:
    program = """
import torch
torch.manual_seed(7)
first = torch.rand(4, device="cuda")
state = torch.cuda.get_rng_state()
second = torch.rand(4, device="cuda")
torch.cuda.set_rng_state(state)
again = torch.rand(4, device="cuda")
torch.manual_seed(7)
print(torch.equal(second, again), torch.equal(first, torch.rand(4, device="cuda")), torch.equal(first, second))
"""
    assert emulated.output(program, gpus=1).split() == ["True", "True", "False"]


LISTED = """
import subprocess
print(subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout)
"""
SEEN = """
import ctypes
cudart, count, properties = ctypes.CDLL("libcudart.so.13"), ctypes.c_int(), ctypes.create_string_buffer(4096)
cudart.cudaGetDeviceCount(ctypes.byref(count))
for device in range(count.value):
    cudart.cudaGetDeviceProperties(properties, device)
    print(properties.raw[256:272].hex())  # the UUID follows 256 bytes of name
"""


def test_cuda_sees_the_gpus_that_cuda_visible_devices_names(emulated: EmulatedGpus) -> None:
    listed = emulated.output(LISTED, gpus=3)
    assert re.findall(r"GPU (\d): Emulated GPU \(synthetic\) \(UUID: GPU-", listed) == ["0", "1", "2"]
    uuids = re.findall(r"UUID: GPU-([0-9a-f-]+)", listed)
    plain = [uuid.replace("-", "") for uuid in uuids]

    def seen(visible: str) -> list[int]:
        return [plain.index(uuid) for uuid in emulated.output(SEEN, gpus=3, CUDA_VISIBLE_DEVICES=visible).split()]

    assert [plain.index(uuid) for uuid in emulated.output(SEEN, gpus=3).split()] == [0, 1, 2]
    assert seen("2,0") == [2, 0]
    assert seen(f"GPU-{uuids[1]},GPU-{uuids[0]}") == [1, 0]
    # Up to what is not there, of another kind, or not unique; none if one comes twice.
    assert seen("0,7,1") == [0]
    assert seen(f"0,GPU-{uuids[1]}") == [0]
    assert seen("GPU-e0") == seen("") == seen("1,1") == seen("MIG-e0") == []


def test_of_partitioned_gpus_a_process_sees_one_instance(emulated: EmulatedGpus) -> None:
    instances = re.findall(r"UUID: MIG-([0-9a-f-]+)", emulated.output(LISTED, gpus=2, mig=1))
    assert len(set(instances)) == 4
    plain = [uuid.replace("-", "") for uuid in instances]

    def seen(**variables: str) -> list[str]:
        return emulated.output(SEEN, gpus=2, mig=1, **variables).split()

    assert seen() == seen(CUDA_VISIBLE_DEVICES="0,1") == [plain[0]]
    assert seen(CUDA_VISIBLE_DEVICES="1") == [plain[2]]
    assert seen(CUDA_VISIBLE_DEVICES=f"MIG-{instances[3]},MIG-{instances[0]}") == [plain[3]]


def test_this_process_sees_no_emulated_gpu(emulated_python: Path) -> None:
    assert Path(sys.executable) != emulated_python
    assert not any("libemulated" in line for line in Path("/proc/self/maps").read_text().splitlines())
