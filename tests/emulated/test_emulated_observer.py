"""The observer on emulated GPUs: it times scripts by CUDA events, has them wait for nothing, and takes parts away."""

import gzip
import json
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from emulated_gpu.fixtures import EmulatedGpus
from observed_scripts import (
    Observed,
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


# Of a single batch, or of four; the loop says where the loader's tensors were, and what it has learned.
SCRIPT = """
import os
import torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
rank = int(os.environ.get("RANK", 0))
gpu = torch.device("cuda", rank)
torch.cuda.set_device(gpu)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).to(gpu)
if "RANK" in os.environ:
    torch.distributed.init_process_group("BACKEND")
    model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[rank])
optimizer = torch.optim.OPTIMIZER(model.parameters(), lr=0.01)
data = TensorDataset(torch.randn(SAMPLES, 4), torch.randint(2, (SAMPLES,)))
loader = DataLoader(data, batch_size=8, num_workers=WORKERS)
places, updates = [], 0
def say(name, *words):  # at once, since ranks write at the same time
    os.write(1, "\\n{}{} {}\\n".format(name, rank, " ".join(map(str, words))).encode())
try:
    while updates < MOST:
        for x, y in loader:
            places.append(f"{x.device.type},{y.device.type}")
            loss = torch.nn.functional.cross_entropy(model(x.to(gpu)), y.to(gpu))
            loss.backward()
            optimizer.step()
            updates += 1
            optimizer.zero_grad()
            MORE
finally:
    say("places", *places)
    say("updates", updates)
    say("learned", *torch.cat([each.detach().flatten() for each in model.parameters()]).tolist())
"""
CAPTURED = 12  # step that is, of a run with fewer steps to warm up; an update comes before the first one
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def script(
    optimizer: str = "SGD", more: str = "pass", samples: int = 8, workers: int = 0, most: int = 10**9, on: str = "nccl"
) -> str:
    stated = {"OPTIMIZER": optimizer, "MORE": more, "SAMPLES": samples, "WORKERS": workers, "MOST": most, "BACKEND": on}
    text = SCRIPT
    for name, value in stated.items():
        text = text.replace(name, str(value))
    return text


def numbers(output: str, name: str = "learned0") -> list[float]:
    return [float(word) for word in printed(output, name)]


def run(emulated: EmulatedGpus, tmp_path: Path, text: str, command: Sequence[str] = (), **stated: Any) -> Observed:
    """What a script leaves that runs as a program of its own; `command` comes before it."""
    job, words = write_job(tmp_path, text, **{"device": "cuda", "ablate": ["loader", "host"]} | stated)
    done = subprocess.run(
        [str(emulated.python), *command, *words],
        env=environment(site(tmp_path / "observer"), job, source=emulated.environment(gpus=2)),
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, check=False,
    )  # fmt: skip
    return left(tmp_path, done.returncode, done.stdout)


def on_two(emulated: EmulatedGpus, tmp_path: Path, text: str) -> Observed:
    return run(emulated, tmp_path, text, TORCHRUN, devices=2)


def reason(found: Observed, rank: int = 0) -> dict[str, object]:
    assert found.ranks[rank]["outcome"] == "failed", found.output
    return found.ranks[rank]["reason"]


# Without loading ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("parts", "copies"), [([], 2), (["loader"], 0), (["loader", "host"], 0)])
def test_without_loading_batches_lie_on_the_gpu_and_nothing_is_copied_there(
    parts: list[str], copies: int, emulated: EmulatedGpus, tmp_path: Path
) -> None:
    text = script(samples=32, workers=2)
    windows = {"warmup_steps": 4, "measured_steps": 6, "profiled_steps": 2}
    found = run(emulated, tmp_path, text, ablate=parts, profiler="kineto", **windows)
    assert found.rank["outcome"] == "completed", found.output
    # The labels too, though no module is called with them.
    assert set(printed(found.output, "places0")[12:]) == {"cuda,cuda" if parts else "cpu,cpu"}
    [trace] = (tmp_path / "scratch").rglob("*.json.gz")
    events = Counter(each.get("name", "") for each in json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"])
    copied = sum(count for name, count in events.items() if name.startswith("Memcpy HtoD"))
    window = found.rank["profiled_window"]
    in_trace = window["settling_steps"] + window["profiled_steps"]
    assert copied == copies * in_trace
    assert events["cudaGraphLaunch"] == (in_trace if "host" in parts else 0)


# Without the host -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
def test_replayed_steps_learn_what_the_script_would_have_learned(
    optimizer: str, emulated: EmulatedGpus, tmp_path: Path
) -> None:
    found = run(emulated, tmp_path, script(optimizer))
    assert found.rank["outcome"] == "completed", found.output
    [steps] = found.steps
    windows = (CAPTURED - 1) * ["warmup"] + ["warmup"] + 3 * ["measured"] + 2 * ["warmup"] + 2 * ["profiled"]
    assert [step["window"] for step in steps] == windows
    assert {step["samples"] for step in steps} == {"8"}
    # The script made an update before the first step, and the observer all from the captured one on.
    assert printed(found.output, "updates0") == [str(CAPTURED)]
    # As often by the script alone. An update is of 1e-2 by Adam; its counts on the GPU are in single precision.
    plain = emulated.output(script(optimizer, most=1 + len(steps)), gpus=2)
    assert printed(plain, "updates0") == [str(1 + len(steps))]
    assert numbers(found.output) == pytest.approx(numbers(plain), abs=1e-5)
    fewer = emulated.output(script(optimizer, most=len(steps)), gpus=2)
    assert numbers(found.output) != pytest.approx(numbers(fewer), abs=1e-5)


def test_a_script_that_logs_now_and_then_is_captured_in_a_step_without(emulated: EmulatedGpus, tmp_path: Path) -> None:
    # Updates 5 and 9 are logged, so 13 is, which would be captured; filters of the script hide no wait.
    text = "import warnings\nwarnings.simplefilter('ignore')\n" + script(more="updates % 4 == 0 and loss.item()")
    found = run(emulated, tmp_path, text)
    assert found.rank["outcome"] == "completed", found.output
    [steps] = found.steps
    assert [step["window"] for step in steps].index("measured") == CAPTURED + 1
    assert printed(found.output, "updates0") == [str(CAPTURED + 1)]


LINE = SCRIPT.splitlines().index("            MORE") + 1
NOT_CAPTURED = "its step cannot be a CUDA graph: "


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("  pass", "  loss.item()"), f"each step waits for the GPU at script.py:{LINE}"),
        (("  pass", "  torch.cuda.synchronize()"), f"{NOT_CAPTURED}script.py:{LINE}: CUDA error: operation not permi"),
        (('torch.device("cuda", rank)\ntorch.cuda.set_device(gpu)', 'torch.device("cpu")'), "it does not compute on a"),
        (("places, updates", "model = torch.cuda.make_graphed_callables(model, (torch.randn(8, 4, device=gpu),))\n"
          "places, updates"), "its steps are CUDA graphs already"),
    ],
    ids=["waits", "cannot be captured", "CPU", "graphs"],
)  # fmt: skip
def test_a_step_that_needs_the_host_ends_the_run_with_the_reason_in_a_line(
    change: tuple[str, str], message: str, emulated: EmulatedGpus, tmp_path: Path
) -> None:
    why = reason(run(emulated, tmp_path, script().replace(*change)))
    assert (why["code"], why["part"]) == ("not_ablated", "host")
    assert why["message"].startswith(message) and "\n" not in why["message"]


def test_all_reduces_of_ddp_are_replayed_too(emulated: EmulatedGpus, tmp_path: Path) -> None:
    # Both ranks have the same data, so they learn what one does; the first one alone waits, now and then.
    found = on_two(emulated, tmp_path, script(more="rank == 0 and updates % 4 == 0 and loss.item()"))
    assert [each["outcome"] for each in found.ranks] == ["completed"] * 2, found.output
    assert [each["observed"]["exchanged"] for each in found.ranks] == [True] * 2
    assert numbers(found.output) == numbers(found.output, "learned1")
    alone = emulated.output(script(most=1 + len(found.steps[0])), gpus=2)
    assert numbers(found.output) == pytest.approx(numbers(alone), abs=1e-5)
    assert printed(found.output, "updates0") == printed(found.output, "updates1") == [str(CAPTURED + 1)]


def test_ranks_that_exchange_by_their_hosts_are_refused(emulated: EmulatedGpus, tmp_path: Path) -> None:
    found = on_two(emulated, tmp_path, script(on="gloo"))
    for rank in (0, 1):
        assert reason(found, rank)["message"] == "ranks exchange by gloo, on the host"


def test_a_rank_whose_capture_fails_leaves_none_waiting(emulated: EmulatedGpus, tmp_path: Path) -> None:
    found = on_two(emulated, tmp_path, script(more=f"rank == 1 and updates == {CAPTURED} and 1 / 0"))
    assert str(reason(found, 1)["message"]).startswith(NOT_CAPTURED)
    assert reason(found)["code"] == "steps_disagree"
