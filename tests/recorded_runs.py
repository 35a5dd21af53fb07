"""Folders of results made of one real run: copies under the names that other repeats and devices would have.

The copies are synthetic: they hold the numbers of the one run, or multiples of them.
"""

import json
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from conftest import TINY
from multicard.config.experiment import Experiment
from multicard.config.load import check
from multicard.core.files import described
from multicard.programs import parameters_of
from multicard.runs.parameters import run_id
from multicard.share.manifest import MANIFEST, Manifest

FIXED = TINY | {"strategy": "ddp-ds", "devices": 2, "profiler": "kineto"}


def manifest_of(archive: Path) -> Manifest:
    with tarfile.open(archive) as tar:
        return Manifest.model_validate_json(tar.extractfile(MANIFEST).read())


def configuration(results: Path, repeats: int = 1, fixed: dict[str, Any] = FIXED, **keys: Any) -> dict[str, Any]:
    """A configuration of the run that `conftest.two_rank_run` is, and of its repeats."""
    scenario = {"question": "What is recorded?", "fixed": fixed, "figures": ["step_breakdown"], "repeats": repeats}
    return {"results": str(results), "scenarios": {"recorded": scenario}} | keys


def experiment(results: Path, repeats: int = 1, fixed: dict[str, Any] = FIXED, **keys: Any) -> Experiment:
    return check(configuration(results, repeats, fixed, **keys), "test.yaml")


def write_configuration(
    path: Path, results: Path, repeats: int = 1, fixed: dict[str, Any] = FIXED, **keys: Any
) -> Path:
    path.write_text(yaml.safe_dump(configuration(results, repeats, fixed, **keys), sort_keys=False))
    return path


def add_run(
    source: Path,
    results: Path,
    times: float = 1,
    change: Callable[[dict[str, Any]], object] = lambda record: None,
    **parameters: Any,
) -> Path:
    """Add a copy of a run with other parameters, every step lasting `times` as long, its record changed."""
    record = json.loads((source / "run.json").read_text())
    record["parameters"] |= parameters
    record["run"] = run_id(parameters_of(record["parameters"]))
    change(record)
    folder = results / "runs" / record["run"]
    shutil.copytree(source, folder)
    if times != 1:
        steps = pd.read_csv(folder / "steps.csv")
        scaled = [name for name in steps if name.endswith("_s")]
        steps[scaled] = steps[scaled] * times
        steps.to_csv(folder / "steps.csv", index=False)
    if "files" in record:
        record["files"] = [described(folder / name) for name in ("steps.csv", "epochs.csv")]
    (folder / "run.json").write_text(json.dumps(record))
    return folder
