"""What the observer costs per step: the same scripts with and without it, in pairs of alternating order.

    python benchmarks/observer.py --repeats 20

Each script sleeps so long in each step that one takes 20 ms, and prints the seconds of its last steps itself. All but
one have a loader; a sleep takes no CPU, so what the observer computes is not hidden by it.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import multicard
from multicard.analysis.statistics import median_of
from multicard.record.observe import OBSERVE, OBSERVER_SITE

STEPS, WARMUP = 100, 20
HEAD = f"""
import gc
import time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.AdamW(model.parameters())
data = TensorDataset(torch.randn(4096, 64), torch.randint(10, (4096,)))
marks = []
def work(started):
    time.sleep(max(0.0, 0.02 - (time.perf_counter() - started)))
def update(parts):
    for x, y in parts:
        nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
    if len(marks) == {WARMUP}:  # of what was imported, in whichever process a collection would fall
        gc.collect()
        gc.freeze()
    marks.append(time.process_time())
    if len(marks) == {STEPS + WARMUP}:
        print("per step", (marks[-1] - marks[{WARMUP}]) / {STEPS - 1})
        raise SystemExit
"""
SCRIPTS = {
    "plain loop": "for x, y in DataLoader(data, batch_size=8):\n    t = time.perf_counter(); update([(x, y)]); work(t)",
    "no loader": "while True:\n    t = time.perf_counter(); update([data[:8]]); work(t)",
    "8 batches accumulated": "parts = []\nfor part in DataLoader(data, batch_size=2):\n    parts.append(part)\n"
    "    if len(parts) == 8:\n        t = time.perf_counter(); update(parts); parts = []; work(t)",
    "worker process": "for x, y in DataLoader(data, batch_size=8, num_workers=1):\n"
    "    t = time.perf_counter(); update([(x, y)]); work(t)",
}


def seconds(script: str, observed: bool) -> float:
    """CPU time of a step of the script's process."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "script.py").write_text(HEAD + script)
        variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}
        if observed:
            (folder / "sitecustomize.py").symlink_to(OBSERVER_SITE)
            (folder / "multicard").symlink_to(Path(multicard.__file__).parent)
            windows = {"warmup_steps": 1, "measured_steps": 2 * STEPS, "profiled_steps": 1}
            stated = {"device": "cpu", "devices": 1, "ranks_per_node": 1, "samples_per_step": None, **windows}
            job = {"parameters": {}, "scratch": name, "profiler": "none", "launcher": None, "observe": stated}
            (folder / "job.json").write_text(json.dumps(job))
            variables |= {"PYTHONPATH": name, OBSERVE: str(folder / "job.json")}
        done = subprocess.run(
            [sys.executable, folder / "script.py"], env=variables, capture_output=True, text=True, check=True
        )
    [line] = [line for line in done.stdout.splitlines() if line.startswith("per step")]
    return float(line.split()[-1])


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=20)
    repeats = parser.parse_args().repeats
    print("| script | CPU time per step without (µs) | cost of the observer (µs), median [95% interval] | of 20 ms |")
    print("|---|---|---|---|")
    for name, script in SCRIPTS.items():
        pairs = []
        for repeat in range(repeats):
            pair = {observed: seconds(script, observed) for observed in (repeat % 2 == 0, repeat % 2 == 1)}
            pairs.append((1e6 * pair[False], 1e6 * (pair[True] - pair[False])))
        cost = median_of([cost for _, cost in pairs])
        plain = statistics.median(plain for plain, _ in pairs)
        shares = ", ".join(f"{value / 20e3:.2%}" for value in (cost.low, cost.high))
        print(
            f"| {name} | {plain:.0f} | {cost.value:.0f} [{cost.low:.0f}, {cost.high:.0f}] | "
            f"{cost.value / 20e3:.2%} [{shares}] |", flush=True,
        )  # fmt: skip


if __name__ == "__main__":
    main()
