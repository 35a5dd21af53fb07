"""What is told of slow loading by scripts that sleep, against what follows by hand from their sleeps."""

import re
from pathlib import Path
from statistics import fmean

import pytest

from factories import Row, make_results, vision_runs
from multicard.answers.diagnoses.diagnosis import Diagnosis
from multicard.answers.diagnoses.loading.slow_loading import diagnoses
from observed_scripts import Observed, Server, after_head

pytestmark = pytest.mark.slow

TRAINING = """
def train(x, y):
    began = time.perf_counter()
    time.sleep(0.02)
    loss_of(x, y).backward()
    optimizer.step()
    optimizer.zero_grad()
    ended = time.perf_counter()
    print("trained", ended - began, flush=True)
    print("tick", ended, flush=True)
"""


def diagnosed(found: Observed) -> list[Diagnosis]:
    """Causes in the only rank of a script, as on a machine with 16 CPUs."""
    assert found.rank["outcome"] == "completed", found.output
    whole = ("rank", "epoch", "step", "samples", "peak_memory_bytes")
    steps = [
        {
            name: value if name == "window" else int(value) if name in whole else float(value)
            for name, value in step.items()
            if value
        }
        for step in found.steps[0]
    ]
    measured_s = [step["duration_s"] for step in steps if step["window"] == "measured"]
    step_s = sum(measured_s) / len(measured_s)
    measures: Row = {"iteration_time_s": step_s, "measured_steps": len(measured_s), "usable_cpus": 16}
    if found.rank["steps_per_pass"]:
        measures["estimated_epoch_time_s"] = step_s * found.rank["steps_per_pass"]
    observed = found.rank["observed"]
    work = [{**row, "first_steps": ", ".join(map(str, row["first_steps"]))} for row in observed["host_work"]]
    loaders = [{name: row[name] for name in row if name != "distinct"} for row in observed["loaders"]]
    tables = {"steps": steps, "loaders": loaders, "host_work": work}
    rows = vision_runs(8 / step_s, (1.0,), device="cpu", devices=1, **measures)
    of_run = {name: [{"at": 0, "rank": 0, **row} for row in table] for name, table in tables.items()}
    results = make_results(Path(found.rank["folder"]), rows, gpu=None, tables=of_run)
    return diagnoses(results.configurations()[0], results)


def run(script: str, server: Server, folder: Path, steps: int) -> tuple[Diagnosis, list[float]]:
    """Run a script; return its largest cause, and the seconds between its own ticks in the measured steps.

    On a busy machine other steps may wait, too, which is then a cause of its own.
    """
    found = server.run(folder, after_head(TRAINING) + script, warmup_steps=4, measured_steps=steps, profiled_steps=2)
    ticks = [float(line.split()[1]) for line in found.output.splitlines() if line.startswith("tick ")]
    found.rank["folder"] = str(folder / "results")
    largest = max(diagnosed(found), key=lambda cause: cause.share or 0.0)
    return largest, [ticks[step] - ticks[step - 1] for step in range(5, 5 + steps)]


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_the_number_of_workers_and_the_share_follow_from_the_time_of_a_batch(
    workers: int, server: Server, tmp_path: Path
) -> None:
    # A batch of 8 takes 80 ms, and the rest of a step 20 ms, or more on a busy machine, so 4 workers are needed: in a
    # step of 100 ms the training thread loads for 80; one worker gives a batch each 80 ms, and two of them each 40.
    script = f"""
class Slow(TensorDataset):
    def __getitem__(self, index):
        time.sleep(0.01)
        return super().__getitem__(index)
slow = Slow(*(tensor.repeat_interleave(40, 0) for tensor in data.tensors))
for x, y in DataLoader(slow, batch_size=8, num_workers={workers}):
    train(x, y)
"""
    found, ticks_s = run(script, server, tmp_path, steps=24)
    step_s = fmean(ticks_s)
    trained = [
        line.split()[1] for line in (tmp_path / "log.txt").read_text().splitlines() if line.startswith("trained")
    ]
    rest_s = fmean(map(float, trained[5:29]))
    assert found.share == pytest.approx(1 - rest_s / step_s, abs=0.05)
    batch_s = step_s - rest_s if workers == 0 else workers * step_s
    told = re.search(r"`num_workers=(\d+)", found.remedy)
    assert told is not None and int(told[1]) == pytest.approx(batch_s / rest_s, abs=1)
    assert "; loading mostly waits, as for storage, rather than computes" in found.evidence


@pytest.mark.parametrize("workers", [0, 1])
def test_loading_that_uses_its_cpu_computes(workers: int, server: Server, tmp_path: Path) -> None:
    # As long as a batch takes on a busy machine, 80 ms of it are CPU time.
    script = f"""
class Busy(TensorDataset):
    def __getitem__(self, index):
        end = time.thread_time() + 0.01
        while time.thread_time() < end:
            pass
        return super().__getitem__(index)
busy = Busy(*(tensor.repeat_interleave(40, 0) for tensor in data.tensors))
for x, y in DataLoader(busy, batch_size=8, num_workers={workers}):
    train(x, y)
"""
    script = after_head(TRAINING) + script
    found = server.run(tmp_path, script, warmup_steps=4, measured_steps=12, profiled_steps=2)
    [loader] = found.rank["observed"]["loaders"]
    assert loader["cpu_s"] == pytest.approx(12 * 0.08, rel=0.25)


def test_a_sampler_that_is_slow_at_the_start_of_passes_is_told_with_its_share(server: Server, tmp_path: Path) -> None:
    # A pass takes 200 ms of the sampler, and 4 × 20 ms.
    script = """
class Buckets:
    def __iter__(self):
        time.sleep(0.2)
        yield from [list(range(first, first + 8)) for first in range(0, 32, 8)]
    def __len__(self):
        return 4
loader = DataLoader(data, batch_sampler=Buckets())
while True:
    for x, y in loader:
        train(x, y)
"""
    found, _ = run(script, server, tmp_path, steps=24)
    assert found.share == pytest.approx(200 / 280, abs=0.08)
    assert found.evidence.startswith("`Buckets` takes 2")


def test_workers_that_start_again_are_told_with_the_share_that_a_stopwatch_shows(
    server: Server, tmp_path: Path
) -> None:
    script = """
loader = DataLoader(data, batch_size=8, num_workers=2)
while True:
    for x, y in loader:
        train(x, y)
"""
    found, ticks_s = run(script, server, tmp_path, steps=24)
    # Steps 8, 12 and so on begin passes, so their ticks are late by the end of one pass and the start of the next.
    usual_s = [tick_s for number, tick_s in enumerate(ticks_s) if number % 4 != 3]
    expected = 1 - len(ticks_s) * sum(usual_s) / len(usual_s) / sum(ticks_s)
    assert found.share == pytest.approx(expected, abs=0.08)
    assert found.remedy.startswith("`persistent_workers=True`")
