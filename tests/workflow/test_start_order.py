"""Snakemake's scheduler starts the runs in the planned order, and a changed order reruns nothing."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from conftest import ROOT, TINY
from multicard.archive.matrix import Matrix
from multicard.experiment.load import check

pytestmark = pytest.mark.slow

EXPERIMENT: dict[str, Any] = {
    "order_seed": 3,
    "datasets": {"digits": {"source": "digits"}, "other": {"source": "digits", "limit": 500}},
    "fixed": TINY,
    "scenarios": {
        "data": {
            "question": "?",
            "vary": {"dataset": ["digits", "other"], "precision": ["fp32", "bf16"]},
            "repeats": 3,
            "figures": ["step_breakdown"],
        },
        "formats": {
            "question": "?",
            "vary": {"precision": ["fp64", "fp32"]},
            "repeats": 4,
            "figures": ["step_breakdown"],
        },
    },
}

# In the place of launch_run.py: leaves the files of a run, and a line about what it was told.
LAUNCHER = """
import argparse, json
from pathlib import Path
parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path)
parser.add_argument("--order", default="null")
known, _ = parser.parse_known_args()
(known.out / "trace").mkdir(parents=True, exist_ok=True)
for name in ("run.json", "steps.csv", "epochs.csv", "trace/captured.json", "log.txt"):
    (known.out / name).write_text("{}")
with open("started.jsonl", "a") as file:
    file.write(json.dumps([known.out.name, json.loads(known.order)]) + "\\n")
"""


def snakemake(folder: Path, *arguments: str) -> str:
    command = [str(Path(sys.prefix) / "bin" / "snakemake"), "--configfile", "mine.yaml", "--until", "launch_run"]
    done = subprocess.run(
        [*command, *arguments], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout + done.stderr


@pytest.mark.parametrize("cores", ["1", "2"])
def test_runs_start_block_by_block_in_the_planned_order(tmp_path: Path, cores: str) -> None:
    for name in ("Snakefile", "workflow", "resources"):
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, tmp_path / name)
    (tmp_path / "workflow/scripts/launch_run.py").write_text(LAUNCHER)
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(EXPERIMENT, sort_keys=False))
    snakemake(tmp_path, "--cores", cores)

    order = Matrix.plan(check(EXPERIMENT, "test")).order
    lines = [json.loads(line) for line in (tmp_path / "started.jsonl").read_text().splitlines()]
    assert [run for run, _ in lines] == list(order)
    # Three blocks of four configurations, then what the second scenario does not share: fp64, and its repeat 4.
    repeats = [int(run.rpartition("_r")[2]) for run, _ in lines]
    assert repeats == [1] * 4 + [2] * 4 + [3] * 4 + [1, 2, 3, 4, 4]
    place = {"seed": 3, "scenario": "formats", "block": 4, "position": 5}
    assert lines[-1][1] == place

    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(EXPERIMENT | {"order_seed": 4}, sort_keys=False))
    assert not re.findall(r"^Job \d+:", snakemake(tmp_path, "--cores", cores, "--dry-run"), re.M)
