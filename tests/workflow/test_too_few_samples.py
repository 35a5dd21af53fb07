"""Runs whose data set has too few samples are told of after it is prepared, before the first run starts."""

import sys
from pathlib import Path

import pytest
import yaml
from PIL import Image

from conftest import TINY, ran
from workflow.project_copy import environment

pytestmark = pytest.mark.slow

COMMAND = ("-c", "from multicard.cli import main; main()", "run", "mine.yaml")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Sixty small pictures of two classes, of which 54 are training images, and an experiment on them."""
    for number in range(60):
        path = tmp_path / f"data/raw/birds/{'crow' if number % 2 else 'wren'}/{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (16, 16), (number, 0, 0)).save(path)
    return tmp_path


def experiment(folder: Path, *batch_sizes: int) -> None:
    """As a user writes one, with the default warm-up of ten steps."""
    small = {name: value for name, value in TINY.items() if name in ("device", "width_mult", "image_size")}
    scenario = {
        "question": "Do more processes pay?",
        "fixed": {"dataset": "birds", "strategy": "ddp-ds", "epochs": 3, "profiler": "none", "learning_rate": 1e-5}
        | small,
        "vary": {"batch_size": list(batch_sizes)},
        "figures": ["step_breakdown"],
    }
    birds = {"source": "imagefolder", "folder": "data/raw/birds"}
    (folder / "mine.yaml").write_text(yaml.safe_dump({"datasets": {"birds": birds}, "scenarios": {"a": scenario}}))


def test_nothing_starts_where_no_run_can(folder: Path) -> None:
    experiment(folder, 64, 20)
    done = ran(sys.executable, *COMMAND, cwd=folder, env=environment())
    assert done.returncode == 1
    # 54 images in 3 epochs make more than 10 steps of 13 images: 12, and 9 of 14.
    assert done.stderr.splitlines()[-2:] == [
        "cannot run here: batch_size: 64 needs 64 training samples per rank, found 54; set batch_size: 13 or less",
        "cannot run here: warmup_steps: 10, but the run has only 6 steps; set epochs: 6 or more, or batch_size: 13 or "
        "less",
    ]
    assert not (folder / "results-mine/runs").exists()
    listed = ran(sys.executable, *COMMAND, "--dry-run", cwd=folder, env=environment()).stdout
    assert "2 runs: none would run" in listed


@pytest.mark.rare
def test_the_others_run_and_the_report_names_the_reason(folder: Path) -> None:
    experiment(folder, 64, 4)
    done = ran(sys.executable, *COMMAND, cwd=folder, env=environment())
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    first = next(at for at, line in enumerate(lines) if line.startswith("run 1 of 1: "))
    why = "batch_size: 64 needs 64 training samples per rank, found 54; set batch_size: 13 or less"
    assert lines.index(f"1 run cannot run: {why}") < first
    assert f"1 cannot run here: {why}" in lines
