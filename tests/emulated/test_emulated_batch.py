"""The largest batch that fits on an emulated GPU, by the command, and as counted by hand."""

from pathlib import Path

import pandas as pd
import pytest
from emulated_jobs import run_program

from emulated_gpu.fixtures import EmulatedGpus

pytestmark = [pytest.mark.emulated, pytest.mark.slow, pytest.mark.rare]

SCRIPT = """\
import argparse, time
import torch
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int)
size, mib = parser.parse_args().batch_size, 2**20
weight = torch.nn.Parameter(torch.ones(8, device="cuda"))
optimizer = torch.optim.SGD([weight], lr=0.01)
held = torch.empty(28 * mib, dtype=torch.uint8, device="cuda")
for (x,) in DataLoader(TensorDataset(torch.randn(8192, 8)), size, drop_last=True):
    time.sleep(0.2)  # whatever the batch, so that the largest is the fastest
    activations = torch.empty(2 * mib * len(x), dtype=torch.uint8, device="cuda")
    optimizer.zero_grad()
    (x.cuda() * weight).square().mean().backward()
    optimizer.step()
    del activations
"""
# 512 MiB less 300 of the context; 28 are held and 2 are a segment for small tensors: 182 are left for 2 of each sample.
BY_HAND = (512 - 300 - 28 - 2) // 2


def test_the_largest_batch_is_the_one_that_is_counted_by_hand(emulated: EmulatedGpus, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    emulated.computes_all = False  # a profiler's
    gpu = {"gpus": 1, "gpu_gib": 0.5}
    main = f"import os; os.chdir({str(tmp_path)!r}); from multicard.cli import main; main()"
    own = ["--vary", "batch-size=64", "--steps", "6", "--warmup", "2", "--profiled-steps", "2", "--write-only"]
    command = ["--", "train.py", "--batch-size", "{batch_size}"]
    written = run_program(emulated, "-c", main, "scale", "--devices", "1", "--device", "cuda", *own, *command, **gpu)
    assert written.returncode == 0, written.stderr
    auto = ["--vary", "batch-size=auto", "--budget", "2h"]
    done = run_program(emulated, "-c", main, "tune", "multicard.yaml", *auto, **gpu)
    assert done.returncode == 0, done.stdout + done.stderr
    assert BY_HAND == 91
    [found] = [line for line in done.stdout.splitlines() if line.startswith("largest batch that fits: ")]
    # In steps of 8, an eighth of 64.
    assert found.startswith("largest batch that fits: 88 (") and found.endswith("; 96 ran out of memory")
    assert "batch that pays: 88, the fastest" in done.stdout
    table = pd.read_csv(tmp_path / "results/search/scale-batch_size.csv").set_index("args.batch_size")
    assert set(table.loc[[96, 128], "outcome"]) == {"out_of_memory"}
    # Reserved are whole segments: of 2 MiB for small tensors, 28 and 2 for each sample.
    completed = table[table["outcome"] == "completed"]
    assert (completed["peak_memory_bytes"] == (30 + 2 * completed.index) * 2**20).all()
