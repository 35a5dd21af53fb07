"""Where passes begin and end, steps last as long as the script's own stopwatch says, whoever does the work."""

from pathlib import Path

import pytest

from observed_scripts import Observed, Server, after_head

pytestmark = pytest.mark.slow

# Passes of four batches; the sampler takes 0.2 s at the start of each, as one that sorts all samples by length does.
HEAD = """
import time
class Buckets:
    def __iter__(self):
        time.sleep(0.2)
        for first in range(0, 32, 8):
            yield list(range(first, first + 8))
    def __len__(self):
        return 4
def make(workers, persistent=False, kind=DataLoader):
    return kind(data, batch_sampler=Buckets(), num_workers=workers, persistent_workers=persistent)
def train(x, y):
    time.sleep(0.005)
    loss_of(x, y).backward()
    optimizer.step()
    optimizer.zero_grad()
    print("tick", time.perf_counter(), flush=True)
"""
PLAIN_LOOP = """
while True:
    for x, y in loader:
        train(x, y)
"""
BY_HAND = """
batches = iter(loader)
while True:
    try:
        x, y = next(batches)
    except StopIteration:
        batches = iter(loader)
        x, y = next(batches)
    train(x, y)
"""
BOTH = """
other = make(1, persistent=True)
while True:
    for (x, y), (z, _) in zip(loader, other):
        train(x + z, y)
"""
PREFETCHED = """
class Prefetcher:
    def __init__(self, loader):
        self.batches = iter(loader)
        self.following = next(self.batches, None)
    def __iter__(self):
        while self.following is not None:
            batch, self.following = self.following, next(self.batches, None)
            yield batch
while True:
    for x, y in Prefetcher(loader):
        train(x, y)
"""
STREAM = """
class Stream(IterableDataset):
    def __iter__(self):
        time.sleep(0.2)
        for each in range(32):
            yield data[each]
loader = DataLoader(Stream(), batch_size=8, num_workers=1)
"""
STATEFUL = """
from torchdata.stateful_dataloader import StatefulDataLoader
loader = make(1, persistent=True, kind=StatefulDataLoader)
"""
MARKED = """
from multicard import marks
class Own:
    def __iter__(self):
        time.sleep(0.2)
        return iter([tuple(each[:8] for each in data.tensors)] * 4)
    def __len__(self):
        return 4
loader = marks.wrap_loader(Own())
"""
SCRIPTS = {
    "no worker": "loader = make(0)" + PLAIN_LOOP,
    "a worker that stays": "loader = make(1, persistent=True)" + PLAIN_LOOP,
    "workers that start in each pass": "loader = make(2)" + PLAIN_LOOP,
    "an iterator by hand": "loader = make(1, persistent=True)" + BY_HAND,
    "two loaders in each step": "loader = make(1)" + BOTH,
    "a batch at hand": "loader = make(1)" + PREFETCHED,
    "a stream": STREAM + PLAIN_LOOP,
    "torchdata's loader": STATEFUL + PLAIN_LOOP,
    "a loader that is not PyTorch's": MARKED + PLAIN_LOOP,
}
WINDOWS = {"warmup_steps": 5, "measured_steps": 12, "profiled_steps": 2}


def elapsed_s(steps: list[dict[str, str]]) -> float:
    """From the start of the first to the end of the last step of each epoch."""
    ends: dict[str, list[float]] = {}
    for step in steps:
        start = float(step["start_s"])
        ends.setdefault(step["epoch"], []).extend([start, start + float(step["duration_s"])])
    return sum(max(each) - min(each) for each in ends.values())


def ticks(found: Observed) -> list[float]:
    """Moments of the script's own clock, one after each update."""
    return [float(line.split()[1]) for line in found.output.splitlines() if line.startswith("tick ")]


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_the_start_of_a_pass_is_in_its_first_step_whoever_does_the_work(
    script: str, server: Server, tmp_path: Path
) -> None:
    found = server.run(tmp_path, after_head(HEAD + script), ["torchdata.stateful_dataloader"], **WINDOWS)
    assert (found.exit_code, found.rank["outcome"]) == (0, "completed"), found.output
    own, measured = ticks(found), found.of("measured")
    assert len(measured) == 12
    # The first update ends no step, so step n lasts from tick n to the next; the first of these is tick 1.
    first, last = int(measured[0]["step"]), int(measured[-1]["step"])
    # A pass whose start was missed would lack 0.2 s; a busy machine delays the script between its clock and a mark.
    assert elapsed_s(measured) == pytest.approx(own[last] - own[first - 1], abs=0.1)
    # Three passes begin in them, each by a wait of 0.2 s at least.
    assert sum(float(step["data_s"] or 0) for step in measured) >= 3 * 0.2
    assert {step["samples"] for step in measured} == {"16" if "zip" in script else "8"}


AFTER_EACH = """
tests = DataLoader(TensorDataset(torch.randn(8, 4)), batch_size=4, num_workers=1)
@torch.no_grad()
def evaluate():
    began = time.perf_counter()
    for x, in tests:
        time.sleep(0.02)
    print("evaluated", time.perf_counter() - began, flush=True)
loader = make(0)
while True:
    for number, (x, y) in enumerate(loader, 1):
        train(x, y)
        if number % 4 == 0:
            evaluate()
"""


def test_an_evaluation_after_the_last_step_of_a_pass_is_in_the_pass_with_the_start_of_its_workers(
    server: Server, tmp_path: Path
) -> None:
    found = server.run(tmp_path, after_head(HEAD + AFTER_EACH), **WINDOWS)
    assert found.exit_code == 0, found.output
    own = [float(line.split()[1]) for line in found.output.splitlines() if line.startswith("evaluated ")]
    steps = {int(step["step"]): float(step["evaluation_s"] or 0) for step in found.steps[0]}
    # The update that ends step n is number n + 1, so passes end with the steps 3, 7, 11, …
    evaluated = [steps[number] for number in sorted(steps) if number % 4 == 3][: len(own)]
    assert {number % 4 for number, seconds in steps.items() if seconds} == {3}
    assert min(abs(one - other) for one, other in zip(evaluated[1:4], own[1:4], strict=True)) < 0.005
    assert {step["samples"] for step in found.steps[0]} == {"8"}


def test_the_start_of_a_pass_in_the_profiled_window_is_in_the_range_of_its_step(server: Server, tmp_path: Path) -> None:
    windows = {"warmup_steps": 1, "measured_steps": 3, "profiled_steps": 8}
    script = HEAD + "loader = make(1, persistent=True)" + PLAIN_LOOP
    found = server.run(tmp_path, after_head(script), profiler="kineto", **windows)
    assert found.rank["trace_problem"] is None, found.output
    import gzip
    import json

    with gzip.open(tmp_path / "scratch" / "rank0.json.gz", "rt") as file:
        events = [each for each in json.load(file)["traceEvents"] if each.get("cat") == "user_annotation"]
    shown = [each["dur"] / 1e6 for each in sorted(events, key=lambda each: each["ts"]) if each["name"] == "step"]
    profiled = [float(step["duration_s"]) for step in found.of("profiled")]
    assert len(shown) == len(profiled)
    assert [seconds > 0.2 for seconds in shown] == [seconds > 0.2 for seconds in profiled]
    assert sum(seconds > 0.2 for seconds in shown) == 2
