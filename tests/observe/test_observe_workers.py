"""What a loader's workers and its sampler take is counted in the steps that wait for them."""

import time
from pathlib import Path
from typing import Any

import pytest

from multicard.core.host_work import SAMPLING, STARTING, STOPPING
from multicard.observe.host_work import CallTimer
from multicard.observe.loading_cpu import batches_timed
from observed_scripts import Observed, Server, after_head


def test_what_counts_as_other_work_is_left_out_of_the_open_call() -> None:
    timer = CallTimer()
    timer.begin()
    time.sleep(0.02)
    timer.leave_out(1000.0)
    seconds = timer.end()
    assert seconds is not None and 0.02 - 1000.0 <= seconds < 0


def test_each_batch_of_a_step_counts_once_in_the_mean_of_four_steps() -> None:
    for batches in range(20):
        assert sum(batches_timed(step, batches) for step in range(7, 11)) == 4


# Batches of 10 ms of the training, in passes of four batches.
TRAINING = """
def train(x, y):
    time.sleep(0.01)
    loss_of(x, y).backward()
    optimizer.step()
    optimizer.zero_grad()
    print("tick", time.perf_counter(), flush=True)
"""
# A worker ends only once it has loaded the batch that it is at.
BROKEN_OFF = """
class Slow(TensorDataset):
    def __getitem__(self, index):
        time.sleep(0.05)
        return super().__getitem__(index)
loader = DataLoader(Slow(*data.tensors), batch_size=8, num_workers=1)
while True:
    for number, (x, y) in enumerate(loader, 1):
        train(x, y)
        if number == 2:
            break
"""
EXHAUSTED = """
loader = DataLoader(data, batch_size=8, num_workers=2)
while True:
    for x, y in loader:
        train(x, y)
"""
WINDOWS = {"warmup_steps": 4, "measured_steps": 12, "profiled_steps": 2}


def work_of(found: Observed, kind: str) -> list[dict[str, Any]]:
    return [work for work in found.rank["observed"]["host_work"] if work["kind"] == kind]


@pytest.mark.slow
@pytest.mark.parametrize(("script", "length"), [(EXHAUSTED, 4), (BROKEN_OFF, 2)], ids=["exhausted", "broken off"])
def test_the_end_of_workers_is_in_the_last_step_of_a_pass_also_if_the_script_breaks_it_off(
    script: str, length: int, server: Server, tmp_path: Path
) -> None:
    found = server.run(tmp_path, after_head(TRAINING + script), **WINDOWS)
    assert found.rank["outcome"] == "completed", found.output
    ticks = [float(line.split()[1]) for line in found.output.splitlines() if line.startswith("tick ")]
    measured = found.of("measured")
    # The first update ends no step. What lies between passes is the deletion of the iterator alone.
    first, last = int(measured[0]["step"]), int(measured[-1]["step"])
    own_s = ticks[last] - ticks[first - 1]
    assert sum(float(step["duration_s"]) for step in measured) == pytest.approx(own_s, abs=0.05)
    # Updates 1, 5, 9 … begin passes of four, so steps 3, 7, 11 … are the last of passes.
    ends = [step for step in range(first, last + 1) if (step + 1) % length == 0]
    starts = [step for step in range(first, last + 1) if step % length == 0]
    for kind, steps in ((STOPPING, ends), (STARTING, starts)):
        assert sorted(step for work in work_of(found, kind) for step in work["first_steps"]) == steps
    stopping_s = sum(work["seconds"] for work in work_of(found, STOPPING))
    waits = [float(step["data_s"]) for step in measured if int(step["step"]) in ends]
    assert 0 < stopping_s <= sum(waits)


# As one that sorts all samples by length: the body of a generator runs when its first value is asked for, and any other
# function when it is called.
SAMPLERS = {
    "generator": """
    def __iter__(self):
        time.sleep(0.2)
        yield from [list(range(first, first + 8)) for first in range(0, 32, 8)]
""",
    "function": """
    def __iter__(self):
        time.sleep(0.2)
        return iter([list(range(first, first + 8)) for first in range(0, 32, 8)])
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
@pytest.mark.parametrize(
    "options",
    ["num_workers=0", "num_workers=1", "num_workers=1, persistent_workers=True"],
    ids=["no worker", "workers that start in each pass", "a worker that stays"],
)
def test_a_slow_sampler_is_counted_apart_from_the_start_of_workers(
    sampler: str, options: str, server: Server, tmp_path: Path
) -> None:
    script = f"""
class Buckets:
{sampler}
    def __len__(self):
        return 4
loader = DataLoader(data, batch_sampler=Buckets(), {options})
while True:
    for x, y in loader:
        train(x, y)
"""
    found = server.run(tmp_path, after_head(TRAINING) + script, **WINDOWS)
    assert found.rank["outcome"] == "completed", found.output
    sampling = work_of(found, SAMPLING)
    assert sorted({step for work in sampling for step in work["first_steps"]}) == [8, 12, 16]
    # PyTorch asks twice for the iterator where it starts workers. The body of a generator then runs once nevertheless.
    times = 2 if sampler == SAMPLERS["function"] and options == "num_workers=1" else 1
    assert 0.6 * times <= sum(work["seconds"] for work in sampling) < 0.6 * times + 0.2
    assert sum(work["seconds"] for work in work_of(found, STARTING)) < 0.3


@pytest.mark.slow
def test_a_sampler_that_answers_at_once_is_not_counted(server: Server, tmp_path: Path) -> None:
    found = server.run(tmp_path, after_head(TRAINING) + "while True:\n    for x, y in loader:\n        train(x, y)\n")
    assert found.rank["outcome"] == "completed", found.output
    # On a busy machine one of them may have had to wait for a CPU, and took a millisecond or more.
    slow = work_of(found, SAMPLING)
    assert all(work["seconds"] >= 0.001 * work["calls"] for work in slow)
    assert sum(work["calls"] for work in slow) < len(found.steps[0]) / 2
