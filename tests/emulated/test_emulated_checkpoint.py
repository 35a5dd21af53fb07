"""A run on an emulated GPU that was interrupted resumes from its checkpoint as if it had not been."""

from pathlib import Path

import pandas as pd
import pytest
from emulated_jobs import run_program

from conftest import ROOT
from emulated_gpu.fixtures import EmulatedGpus

pytestmark = [pytest.mark.emulated, pytest.mark.slow]

PROGRAM = """
import sys
from pathlib import Path
import pytest, torch
tests, digits, folder = map(Path, sys.argv[1:])
sys.path.insert(0, str(tests))
import test_checkpoint as on_cpu
on_cpu.CPU = torch.device("cuda", 0)
p, drawn = on_cpu.parameters(device="cuda"), []
evaluate = on_cpu.training_program.evaluate

def draw_and_evaluate(*arguments):
    drawn.append(torch.rand(1, device="cuda").item())
    return evaluate(*arguments)

on_cpu.training_program.evaluate = draw_and_evaluate
on_cpu.attempt(p, digits, folder / "whole", checkpoint_after_s=1e9)
with pytest.MonkeyPatch.context() as patch:
    on_cpu.interrupted(p, digits, folder / "resumed", patch)
torch.manual_seed(99)  # what a process starts with is not what decides
assert on_cpu.attempt(p, digits, folder / "resumed")["resumed"]["epoch"] == 2
assert len(set(drawn[:3])) == 3 and drawn[:3] == drawn[3:], drawn  # by the GPU, once in each epoch
"""


def test_an_interrupted_run_learns_what_an_uninterrupted_one_learns(
    emulated: EmulatedGpus, digits: Path, tmp_path: Path
) -> None:
    done = run_program(emulated, "-c", PROGRAM, ROOT / "tests" / "vision", digits, tmp_path, gpus=1)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    whole, resumed = (pd.read_csv(tmp_path / name / "steps.csv.rank0") for name in ("whole", "resumed"))
    assert len(whole) >= 12
    assert resumed["loss"].tolist() == pytest.approx(whole["loss"].tolist(), rel=1e-4)
