"""What runs inside a training process needs torch and the standard library only."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest

# A training process in which what multicard needs elsewhere cannot be imported.
PROGRAM = """
import importlib
import importlib.machinery
import sys
from pathlib import Path

OTHERS = {
    "jinja2", "markdown_it", "matplotlib", "pandas", "psutil", "pyarrow", "pydantic", "pynvml", "rich", "scipy",
    "seaborn", "sklearn", "snakemake", "torchtune", "torchvision", "yaml",
}


class Refuse:
    def find_spec(self, name, path=None, target=None):  # torch looks for some packages that it does not import
        top, *below = name.split(".")
        if top in OTHERS or (top == "multicard" and below and below[0] not in ("core", "profilers", "record")):
            return importlib.machinery.ModuleSpec(name, self)
        return None

    def create_module(self, spec):
        raise ModuleNotFoundError(f"{spec.name} is not to be imported here", name=spec.name)

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, Refuse())

import pkgutil

import torch

import multicard.record
from multicard.core.layout import STEPS, rank_file

for module in pkgutil.walk_packages(multicard.record.__path__, "multicard.record."):
    importlib.import_module(module.name)

from multicard.record.capture import Capture
from multicard.record.recorder import Recorder

scratch, devices = Path(sys.argv[1]), [torch.device("cpu")]
for profiler in ("nsys", "none", "kineto"):
    capture, recorder = Capture(profiler, scratch, 0, devices), Recorder(0, devices)
    with capture.window(), capture.range("step"):
        step = recorder.begin(1, "measured")
        torch.ones(8, 8).matmul(torch.ones(8, 8)).sum()
        step.end = recorder.clock.mark()
        recorder.end()
    recorder.settle()
    recorder.write(scratch / rank_file(STEPS, profiler))
    assert capture.problem is None, capture.problem
"""


@pytest.mark.slow
def test_a_rank_records_without_any_other_package(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, tmp_path / "program.py", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    for profiler in ("nsys", "none", "kineto"):
        with (tmp_path / f"steps.csv.rank{profiler}").open(newline="") as file:
            assert [row["window"] for row in csv.DictReader(file)] == ["measured"]
    assert (tmp_path / "rank0.json.gz").exists()
