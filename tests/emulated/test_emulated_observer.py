"""The observer on emulated GPUs: it times scripts by CUDA events, has them wait for nothing, and takes parts away."""

import gzip
import json
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from emulated_gpu.fixtures import EmulatedGpus
from observed_scripts import (
    Server,
    environment,
    has_memory_and_phases,
    left,
    printed,
    serving,
    site,
    write_job,
)

pytestmark = [pytest.mark.emulated, pytest.mark.slow, pytest.mark.rare]

# On the second GPU, which is never the current device.
HEAD = """
import torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
gpu = torch.device("cuda", 1)
model = torch.nn.Linear(4, 2).to(gpu)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(64, 4), torch.randn(64, 2))
loader = DataLoader(data, batch_size=8)
"""
# Of each update how often the host waited since the one before; its losses are read when training is over.
WAITING = """
import ctypes, itertools
waits = ctypes.CDLL("libcudart.so.13").emulated_waits
losses, waited = [], []
try:
    before = waits()
    for x, y in itertools.islice(itertools.chain.from_iterable(itertools.repeat(loader)), 24):
        x, y = x.pin_memory().to(gpu, non_blocking=True), y.pin_memory().to(gpu, non_blocking=True)
        loss = torch.nn.functional.mse_loss(model(x), y)
        losses.append(loss.detach())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        waited.append(waits() - before)
        before = waits()
finally:
    print("waited", *waited)
    print("losses", *(loss.item().hex() for loss in losses))
"""


@pytest.fixture(scope="module")
def server(emulated_gpus: EmulatedGpus, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    with serving(folder, emulated_gpus.python, emulated_gpus.environment(gpus=2)) as started:
        yield started


def test_a_script_is_timed_on_its_gpu(server: Server, tmp_path: Path) -> None:
    script = """
    large = torch.empty(64 << 20, dtype=torch.uint8, device=gpu)
    del large
    try:
        while True:
            for x, y in loader:
                torch.nn.functional.mse_loss(model(x.to(gpu)), y.to(gpu)).backward()
                optimizer.step()
                optimizer.zero_grad()
    finally:
        print("peak", torch.cuda.max_memory_allocated(gpu))
    """
    found = server.run(tmp_path, HEAD + dedent(script), device="cuda")
    assert found.rank["outcome"] == "completed", found.output
    [gpu] = found.rank["gpus"]
    assert gpu["uuid"].endswith("0001")  # the emulation numbers them
    [steps] = found.steps
    # The measured steps leave three of the eight batches of a pass, too few for two that settle the profiler and two
    # that it records: these follow the first step of the next pass, in which the loader starts.
    windows = ["warmup"] + 3 * ["measured"] + (3 + 1 + 2) * ["warmup"] + 2 * ["profiled"]
    assert [step["window"] for step in steps] == windows
    measured = sum(float(step["duration_s"]) for step in steps if step["window"] == "measured")
    assert sum(end - start for start, end in found.rank["windows"]) == pytest.approx(measured, abs=1e-3)
    has_memory_and_phases(steps, least_bytes=(64 << 20) - 1)
    assert min(int(step["peak_reserved_bytes"]) for step in steps) >= 64 << 20
    # The counters are the script's own: nothing resets them.
    assert int(printed(found.output, "peak")[0]) >= 64 << 20


def test_no_measured_step_waits_for_the_gpu_and_the_losses_stay(
    server: Server, emulated_gpus: EmulatedGpus, tmp_path: Path
) -> None:
    plain = emulated_gpus.output(HEAD + WAITING, gpus=2)
    assert printed(plain, "waited")[1:] == ["0"] * 23  # of itself it does not
    found = server.run(tmp_path, HEAD + WAITING, device="cuda", measured_steps=6)
    assert found.rank["outcome"] == "completed", found.output
    waited = printed(found.output, "waited")
    # The second update ends the step of the warm-up. With the eighth the measured steps are over, and what was marked
    # is waited for.
    assert waited[1:7] == ["0"] * 6
    assert int(waited[7]) > 0
    # Digit by digit; the update that ends the last step ends the script.
    losses = printed(found.output, "losses")
    assert len(losses) == 1 + len(found.steps[0])
    assert losses == printed(plain, "losses")[: len(losses)]


def test_replays_of_a_graph_are_steps_where_the_script_marks_them(server: Server, tmp_path: Path) -> None:
    script = """
    import multicard.marks
    torch.cuda.set_device(gpu)
    x, y = (part[:8].to(gpu) for part in data.tensors)
    def step():
        optimizer.zero_grad(set_to_none=False)
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    replays = 0
    try:
        while True:
            graph.replay()
            replays += 1
            multicard.marks.step()
    finally:
        print("replays", replays)
    """
    found = server.run(tmp_path, HEAD + dedent(script), device="cuda")
    assert found.rank["outcome"] == "completed", found.output
    [steps] = found.steps
    assert [step["window"] for step in steps] == ["warmup"] + 3 * ["measured"] + 2 * ["warmup"] + 2 * ["profiled"]
    assert printed(found.output, "replays") == ["9"]  # the first one's end is where the first step begins
    assert all(float(step["duration_s"]) > 0 and step["backward_s"] == "" for step in steps)


# Its loader has workers; the loop notes on which devices the tensors of its batches are.
MOVING = """
loader = DataLoader(data, batch_size=8, num_workers=2)
places = []
try:
    while True:
        for x, y in loader:
            places.append(f"{x.device.type},{y.device.type}")
            torch.nn.functional.mse_loss(model(x.to(gpu)), y.to(gpu)).backward()
            optimizer.step()
            optimizer.zero_grad()
finally:
    print("places", *places)
"""


@pytest.mark.parametrize(("parts", "copies"), [([], 2), (["loader"], 0)])
def test_without_loading_batches_lie_on_the_gpu_and_nothing_is_copied_there(
    parts: list[str], copies: int, emulated: EmulatedGpus, tmp_path: Path
) -> None:
    windows = {"warmup_steps": 4, "measured_steps": 6, "profiled_steps": 2}
    job, command = write_job(tmp_path, HEAD + MOVING, device="cuda", profiler="kineto", ablate=parts, **windows)
    done = subprocess.run(
        [str(emulated.python), *command],
        env=environment(site(tmp_path / "observer"), job, source=emulated.environment(gpus=2)),
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, check=False,
    )  # fmt: skip
    found = left(tmp_path, done.returncode, done.stdout)
    assert found.rank["outcome"] == "completed", found.output
    # The labels too, though no module is called with them.
    assert set(printed(found.output, "places")[12:]) == {"cuda,cuda" if parts else "cpu,cpu"}
    [trace] = (tmp_path / "scratch").rglob("*.json.gz")
    events = Counter(each.get("name", "") for each in json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"])
    copied = sum(count for name, count in events.items() if name.startswith("Memcpy HtoD"))
    window = found.rank["profiled_window"]
    assert copied == copies * (window["settling_steps"] + window["profiled_steps"])
