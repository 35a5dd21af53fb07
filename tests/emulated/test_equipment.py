"""Emulated GPUs refuse what real GPUs refuse, replay graphs, and are seen as asked; the other tests compute on them.

Graphs that a program captures itself, and what their steps learn, are in test_emulated_observer.py.
"""

import json
import re
from typing import Any

import pytest

from emulated_gpu.fixtures import NOTHING_COMPUTES, EmulatedGpus

# The daily round uses the equipment, and its sources rarely change.
pytestmark = [pytest.mark.emulated, pytest.mark.slow, pytest.mark.rare]

# Programs for two GPUs, of which the second is small; each puts what it found into `found`.
PROGRAMS = {
    "refusals": """
first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
x = torch.ones(4, device="cuda")

def read_early():
    for _ in range(1000):  # the GPU is at work for some microseconds, in which this process may be held up
        first.record(), last.record()
        first.elapsed_time(last)

def wait():
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        (x * 2).sum().item()

def pin_beside(mode):
    # In another thread, as that of a loader does; of a size that PyTorch's cache of pinned memory lacks.
    size = {"global": 1 << 20, "thread_local": 1 << 22}[mode]
    other = threading.Thread(target=lambda: torch.empty(size, dtype=torch.uint8, pin_memory=True))
    with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode=mode):
        x * 2
        other.start(), other.join()
    return "nothing"

found = {
    "early reading": refused(read_early),
    "two devices": refused(lambda: torch.ones(2, device="cuda:0") + torch.ones(2, device="cuda:1")),
    "waiting while capturing": refused(wait),
    "allocating beside a global capture": refused(lambda: pin_beside("global")),
    "allocating beside a capture of its thread": pin_beside("thread_local"),
    "memory": refused(lambda: bytes_of(1 << 40, "cuda:0"), torch.OutOfMemoryError),
    "memory of the second": refused(lambda: bytes_of(1 << 29, "cuda:1"), torch.OutOfMemoryError),
}
bytes_of(1 << 29, "cuda:0")
""",
    # Graphs of PyTorch's own making, whose inputs lie in memory that a capture uses again.
    "graph": """
torch.manual_seed(0)
found = {}
first = nn.Sequential(nn.Linear(16, 16), nn.ReLU6(), nn.Linear(16, 10)).cuda()
batches = [(torch.randn(8, 16).cuda(), torch.randint(10, (8,)).cuda()) for _ in range(6)]
torch._dynamo.reset()
for way in ("eager", "graph"):
    net, found[way] = copy.deepcopy(first), []
    steps = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    forward = torch.compile(net, mode="reduce-overhead") if way == "graph" else net
    for images, labels in batches:
        loss = nn.functional.cross_entropy(forward(images), labels)
        loss.backward()
        steps.step()
        steps.zero_grad(set_to_none=True)
        found[way].append(loss.item())
""",
}
# Runs all of them in one process: PyTorch takes seconds to be imported.
RUN_ALL = """
import copy, json, sys, threading, traceback
import torch
from torch import nn

def refused(what, error=RuntimeError):
    try:
        what()
    except error as caught:
        return " ".join(str(caught).split())
    raise AssertionError("not refused")

def bytes_of(size, device):
    return torch.empty(size, dtype=torch.uint8, device=device)

outputs = {}
for name, program in json.loads(sys.argv[1]).items():
    names = dict(globals())
    try:
        exec(program, names)
        outputs[name] = names["found"]
    except Exception:
        outputs[name] = {"failed": traceback.format_exc()}
json.dump(outputs, open(sys.argv[2], "w"))
"""


@pytest.fixture(scope="module")
def found(emulated_gpus: EmulatedGpus, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    answers = tmp_path_factory.mktemp("programs") / "found.json"
    done = emulated_gpus.run("-c", RUN_ALL, json.dumps(PROGRAMS), answers, gpus=2, gpu_gib="16,0.5", compile="eager")
    assert done.returncode == 0, done.stdout + done.stderr
    outputs = json.loads(answers.read_text())
    failed = [output["failed"] for output in outputs.values() if "failed" in output]
    assert not failed, "\n".join(failed)
    return outputs


def test_steps_of_a_graph_learn_as_eager_ones_do(found: dict[str, Any]) -> None:
    assert found["graph"]["graph"] == pytest.approx(found["graph"]["eager"], rel=1e-3)
    assert len(set(found["graph"]["graph"])) == 6


def test_what_cuda_refuses_is_refused(found: dict[str, Any]) -> None:
    for what, message in {
        "early reading": "Both events must be completed",
        "two devices": "Expected all tensors to be on the same device",
        "waiting while capturing": "during capture",
        "allocating beside a global capture": "during capture",
        "allocating beside a capture of its thread": "nothing",
        "memory": "Tried to allocate 1024.00 GiB. GPU 0 has a total capacity of 16.00 GiB",
        "memory of the second": "GPU 1 has a total capacity of 512.00 MiB",
    }.items():
        assert message in found["refusals"][what]


def test_a_kernel_that_nothing_computes_is_an_error(emulated: EmulatedGpus) -> None:
    emulated.computes_all = False
    done = emulated.run("-c", "import torch; torch.cuda._sleep(1000)", gpus=1)  # a kernel, and no operator
    assert "invalid device function" in done.stderr
    assert len(emulated.logged(NOTHING_COMPUTES)) == 1


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
