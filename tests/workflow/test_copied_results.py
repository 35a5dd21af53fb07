"""Results that were copied from elsewhere are never measured again, whatever the time stamps of the prepared data."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import forked_python
from conftest import ROOT, TINY
from factories import make_run
from multicard.config.load import check
from multicard.config.runs import distinct, expand

pytestmark = pytest.mark.slow

SCENARIO = {"question": "How fast?", "fixed": TINY | {"strategy": "ddp-ds"}, "figures": ["step_breakdown"]}
LONG_AGO = 1_000_000_000


def configuration(folder: Path, **changes: Any) -> dict[str, Any]:
    experiment = {"results": "results", "scenarios": {"one": SCENARIO | changes}}
    (folder / "mine.yaml").write_text(yaml.safe_dump(experiment))
    return experiment


def copied(folder: Path, experiment: dict[str, Any]) -> list[str]:
    """What a run of each configuration would have left, older than anything else."""
    runs = distinct(expand(check(experiment, "mine.yaml", outside=False)))
    for name, run in runs.items():
        files = {
            "run.json": make_run(run.parameters).as_json(),
            "trace/captured.json": {}, "trace/exported.json": {}, "activity/tables.json": {},
        }  # fmt: skip
        for file in (*files, "steps.csv", "epochs.csv"):
            path = folder / "results/runs" / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(files[file]) if file in files else "step\n")
            os.utime(path, (LONG_AGO, LONG_AGO))
    return sorted(runs)


def snakemake(folder: Path, *arguments: str) -> str:
    command = ("--snakefile", str(ROOT / "workflow/Snakefile"), "--configfile", "mine.yaml", "--cores", "1")
    done = forked_python.snakemake(folder, *command, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def measured(folder: Path, dry: str) -> list[str]:
    """Folders of the runs that the scenario would be measured of."""
    [runs] = re.findall(r'measure_scenario.py" (\S+) ', dry)
    return json.loads((folder / runs).read_text())["folders"]


def planned(folder: Path) -> list[str]:
    return re.findall(r"^Job \d+: ((?:run|prepare) .+)$", snakemake(folder, "--dry-run"), re.M)


def test_finished_runs_in_a_fresh_clone_are_not_planned_again(tmp_path: Path) -> None:
    runs = copied(tmp_path, configuration(tmp_path, vary={"precision": ["fp32", "bf16"]}))
    assert len(runs) == 2
    assert planned(tmp_path) == []
    snakemake(tmp_path, "--", "prepare")
    assert planned(tmp_path) == []


def test_a_further_run_whose_data_are_yet_to_be_prepared_repeats_no_finished_one(tmp_path: Path) -> None:
    runs = copied(tmp_path, configuration(tmp_path))
    configuration(tmp_path, vary={"precision": ["fp32", "bf16"]})
    [data, further] = sorted(planned(tmp_path))
    assert data == "prepare the data set digits"
    assert further.startswith("run ") and "bf16" in further and further.removeprefix("run ") not in runs


def test_results_of_a_machine_that_had_more_are_drawn_here_and_never_measured_again(tmp_path: Path) -> None:
    runs = copied(tmp_path, configuration(tmp_path, vary={"devices": [1, 2]}, fixed=SCENARIO["fixed"] | {"nodes": 1}))
    configuration(tmp_path, vary={"nodes": [1, 2]}, fixed=SCENARIO["fixed"] | {"devices": 2})
    [elsewhere] = set(copied(tmp_path, yaml.safe_load((tmp_path / "mine.yaml").read_text()))) - {*runs}
    assert "nodes2" in elsewhere
    dry = snakemake(tmp_path, "--dry-run", "--printshellcmds", "--forcerun", "launch_run")
    assert f"results/runs/{elsewhere}" in measured(tmp_path, dry)
    repeated = re.findall(r"^Job \d+: run (.+)$", dry, re.M)
    assert repeated and elsewhere not in repeated
    # With other parameters it is another run, of which there is nothing.
    record = tmp_path / "results/runs" / elsewhere / "run.json"
    record.write_text(record.read_text().replace('"batch_size": 8', '"batch_size": 9'))
    dry = snakemake(tmp_path, "--dry-run", "--printshellcmds")
    assert f"results/runs/{elsewhere}" not in measured(tmp_path, dry)
