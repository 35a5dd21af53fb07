"""What the observer costs per step: CPU time of a script's process with its hooks in place and without them.

    python benchmarks/observer.py

    python benchmarks/observer.py --samples

The second command prints the same of the samples of the stack alone, with the hooks in place. Fewer than one step in
two has a sample, so of blocks of 50 steps the mean counts, and not the median.

Each script sleeps so long in each step that one takes 20 ms, and its hooks are called in every other block of 5 steps,
so that what differs between processes, or drifts, is in both. They are called through functions that stay in place:
replacing a method of a class would have CPython specialize all code that uses the class again, in each block. All but
one script have a loader; a sleep takes no CPU, so what the observer computes is not hidden by it.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from scipy.stats import quantile_test

import multicard
from multicard.core.job_file import JobFile, ObservedJob
from multicard.observe import OBSERVE, OBSERVER_SITE

STEPS, WARMUP = 5, 40  # of a block, and before the first
STEPS_WITH_SAMPLES = 50  # of a block, to measure samples of the stack
HEAD = """
import gc
import json
import time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, dataloader
from multicard.observe.observer import OBSERVER
from multicard.observe.stack_samples import StackSampler
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.AdamW(model.parameters())
data = TensorDataset(torch.randn(4096, 64), torch.randint(10, (4096,)))
marks = []

# What the observer has put in place of PyTorch's functions, and these.
iterators = dataloader._BaseDataLoaderIter
hooks = [(type(optimizer), "step"), (torch.autograd, "backward"), (iterators, "__next__"), (iterators, "_next_index")]
watched = [getattr(*hook) for hook in hooks]
cells = dict(zip(watched[0].__code__.co_freevars, watched[0].__closure__))
plain = [cells["plain"].cell_contents, *(each.__wrapped__ for each in watched[1:])]
called = list(watched)

def through(number):
    return lambda *arguments, **options: called[number](*arguments, **options)

for number, hook in enumerate(hooks):
    setattr(*hook, through(number))

def switch_hooks(on):
    called[:] = watched if on else plain

samplers = []

def switch_samples(on):
    recording = OBSERVER.process._recording
    for sampler in (recording.sampler, *samplers):
        sampler.stop()
    samplers[:] = [StackSampler(recording.events.add_sample)] if on else []
    for sampler in samplers:
        sampler.start()

switch = switch_samples if SAMPLES else switch_hooks

def work(started):
    time.sleep(max(0.0, 0.02 - (time.perf_counter() - started)))

def update(parts):
    for x, y in parts:
        nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
    done = len(marks) - WARMUP
    if done == 0:  # a collection of all that was imported would fall into any block
        gc.collect()
        gc.freeze()
    if done >= 0 and done % STEPS == 0:
        switch(done // STEPS % 2 == 0)
    marks.append(time.process_time())
    if done == 2 * STEPS * PAIRS:
        print("marks", json.dumps(marks[WARMUP:]))
        raise SystemExit
"""
SCRIPTS = {
    "plain loop": "while True:\n    for x, y in DataLoader(data, batch_size=8):\n"
    "        t = time.perf_counter(); update([(x, y)]); work(t)",
    "no loader": "while True:\n    t = time.perf_counter(); update([data[:8]]); work(t)",
    "8 batches accumulated": "parts = []\nwhile True:\n    for part in DataLoader(data, batch_size=2):\n"
    "        parts.append(part)\n"
    "        if len(parts) == 8:\n            t = time.perf_counter(); update(parts); parts = []; work(t)",
    "worker process": "while True:\n    for x, y in DataLoader(data, batch_size=8, num_workers=1):\n"
    "        t = time.perf_counter(); update([(x, y)]); work(t)",
}


def blocks(script: str, pairs: int, samples: bool) -> list[float]:
    """CPU seconds of a step of the script's process, of blocks with and without the observer in turn.

    Of a block it is the median of its steps: a page fault or an interrupt that falls into one has no part in the cost.
    `samples`: with and without samples of the stack, and of a block it is the mean of its steps.
    """
    block_steps = STEPS_WITH_SAMPLES if samples else STEPS
    of_block = statistics.fmean if samples else statistics.median
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        stated = f"STEPS, WARMUP, PAIRS, SAMPLES = {block_steps}, {WARMUP}, {pairs}, {samples}\n"
        (folder / "script.py").write_text(stated + HEAD + script)
        (folder / "sitecustomize.py").symlink_to(OBSERVER_SITE)
        (folder / "multicard").symlink_to(Path(multicard.__file__).parent)
        observe = ObservedJob(
            device="cpu", devices=1, devices_per_node=1, ranks=1, ranks_per_node=1, warmup_steps=1,
            measured_steps=10**6, profiled_steps=1,
        )  # fmt: skip
        job = JobFile(folder, "none", observe, time_limit_s=3600.0, port=0, parameters={}).write()
        variables = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": name, OBSERVE: str(job)}
        done = subprocess.run(
            [sys.executable, folder / "script.py"], env=variables, capture_output=True, text=True, check=True
        )
    [line] = [line for line in done.stdout.splitlines() if line.startswith("marks")]
    marks = json.loads(line.removeprefix("marks"))
    steps = [end - start for start, end in itertools.pairwise(marks)]
    return [of_block(steps[at : at + block_steps]) for at in range(0, len(steps), block_steps)]


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=300, help="pairs of blocks (default: %(default)s)")
    parser.add_argument("--samples", action="store_true", help="the cost of samples of the stack alone")
    stated = parser.parse_args()
    print("| script | CPU time per step without (µs) | cost of the observer (µs), median [95% interval] | of 20 ms |")
    print("|---|---|---|---|")
    for name, script in SCRIPTS.items():
        found = [1e6 * each for each in blocks(script, stated.pairs, stated.samples)]
        costs = [one - other for one, other in zip(found[::2], found[1::2], strict=True)]
        cost = statistics.median(costs)
        low, high = quantile_test(costs, p=0.5).confidence_interval(0.95)
        print(
            f"| {name} | {statistics.median(found[1::2]):.0f} | {cost:.0f} [{low:.0f}, {high:.0f}] | "
            f"{cost / 20e3:.2%} [{low / 20e3:.2%}, {high / 20e3:.2%}] |", flush=True,
        )  # fmt: skip


if __name__ == "__main__":
    main()
