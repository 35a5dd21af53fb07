"""Scripts whose truth is known, run without loading and without communication by the command."""

from pathlib import Path

import pandas as pd
import pytest

from multicard.cli import main

pytestmark = [pytest.mark.slow, pytest.mark.rare]

# By sleeping: 40 ms of loading, 10 of computing and 50 of exchanging gradients in a step.
SCRIPT = """
import os, time
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, index):
        time.sleep(0.01)
        return torch.randn(8), index % 2

def exchange(_, bucket):
    time.sleep(0.05)
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda future: future.value()[0])

dist.init_process_group("gloo")
model = DistributedDataParallel(nn.Linear(8, 2))
model.register_comm_hook(None, exchange)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in DataLoader(Slow(), 4):
    time.sleep(0.01)
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
STEP_S = {"none": 0.1, "loader": 0.06, "communication": 0.05, "loader+communication": 0.01}


def test_each_part_costs_what_the_script_spends_on_it_and_such_runs_are_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    windows = ("--warmup", "4", "--steps", "12", "--profiled-steps", "2")
    measured = ("--device", "cpu", "--devices", "2", *windows, "--ablate", "loader,communication")
    main(["scale", *measured, "--", "train.py"])
    printed = capfd.readouterr().out
    found = pd.read_csv("results/scenarios/scale/measures.csv").set_index("ablate")
    assert (found["outcome"] == "completed").all()
    for part, least_s in STEP_S.items():
        # A sleep lasts at least as long as it should, and other processes may make all of a step longer.
        assert found.loc[part, "median_iteration_time_s"] > least_s
    assert found.loc["loader", "loader_alone_s"] > 0.04
    times = found["median_iteration_time_s"]
    assert times["loader+communication"] < min(times["loader"], times["communication"])
    assert max(times["loader"], times["communication"]) < times["none"]
    assert "without loading and communication" in printed
    main(["status", "multicard.yaml"])
    assert capfd.readouterr().out.count("ablated:") == 3
    # In the table of results there is the one that trained.
    assert pd.read_csv("results/figures/scale/step_breakdown.csv")["devices"].tolist() == [2]
