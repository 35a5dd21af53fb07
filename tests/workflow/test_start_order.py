"""Snakemake's scheduler starts the runs in the planned order, and a changed order reruns nothing."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

import forked_python
from conftest import ROOT, TINY
from multicard.config.load import check
from multicard.config.plan import Plan

pytestmark = pytest.mark.slow

EXPERIMENT: dict[str, Any] = {
    "order_seed": 3,
    "datasets": {"digits": {"source": "digits"}, "other": {"source": "digits", "limit": 500}},
    "fixed": TINY,
    "scenarios": {
        "data": {"question": "?", "vary": {"dataset": ["digits", "other"]}, "repeats": 2, "figures": ["step_times"]},
        "formats": {"question": "?", "vary": {"precision": ["fp64", "fp32"]}, "repeats": 3, "figures": ["step_times"]},
    },
}

# In the place of launch_run.py, prepare_data.py and the scripts that read a trace: they leave the files that Snakemake
# expects and, but for the data, a line about what they were told.
LAUNCHER = """
import argparse, json, time
from pathlib import Path
started = time.monotonic()
parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path)
parser.add_argument("--order", default="null")
known, _ = parser.parse_known_args()
(known.out / "trace").mkdir(parents=True, exist_ok=True)
for name in ("run.json", "steps.csv", "epochs.csv", "trace/captured.json", "log.txt"):
    (known.out / name).write_text("{}")
with open("started.jsonl", "a") as file:
    file.write(json.dumps([known.out.name, json.loads(known.order)]) + "\\n")
if Path("lasts").exists():
    time.sleep(float(Path("lasts").read_text()))
(known.out / "at_work.json").write_text(json.dumps([started, time.monotonic()]))
"""
PREPARER = """
import sys
from pathlib import Path
Path(sys.argv[-1], "provenance.json").write_text("{}")
"""
READER = """
import json, sys
from pathlib import Path
for name in {files}:
    file = Path(sys.argv[1], name)
    file.parent.mkdir(exist_ok=True)
    file.write_text("{{}}")
with open("started.jsonl", "a") as file:
    file.write(json.dumps(["trace", None]) + "\\n")
"""


def project(folder: Path, experiment: dict[str, Any]) -> None:
    """The workflow with scripts that do nothing but say when they are started."""
    for name in ("workflow", "resources", "profiles"):
        shutil.copytree(ROOT / name, folder / name)
    (folder / "workflow/scripts/launch_run.py").write_text(LAUNCHER)
    (folder / "workflow/scripts/prepare_data.py").write_text(PREPARER)
    (folder / "workflow/scripts/extract_activity.py").write_text(READER.format(files=["activity/tables.json"]))
    (folder / "mine.yaml").write_text(yaml.safe_dump({"results": "results"} | experiment, sort_keys=False))


def started(folder: Path) -> list[tuple[str, Any]]:
    """Jobs in the order of their start, with what a run was told of its place."""
    return [tuple(json.loads(line)) for line in (folder / "started.jsonl").read_text().splitlines()]


def snakemake(folder: Path, *arguments: str, until: str = "launch_run") -> str:
    done = forked_python.snakemake(folder, "--configfile", "mine.yaml", "--until", until, *arguments)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout + done.stderr


def test_runs_start_block_by_block_in_the_planned_order(tmp_path: Path) -> None:
    project(tmp_path, EXPERIMENT)
    snakemake(tmp_path, "--cores", "1")  # on more, both data sets would be prepared at once

    order = Plan.make(check(EXPERIMENT, "test")).order
    lines = started(tmp_path)
    assert [run for run, _ in lines] == list(order)
    # The scenarios share a configuration, so two blocks of all three; then repeat 3 of the second scenario's two.
    repeats = [int(run.rpartition("_r")[2]) for run, _ in lines]
    assert repeats == [1] * 3 + [2] * 3 + [3] * 2
    place = {"seed": 3, "group": ["data", "formats"], "block": 3, "position": 8}
    assert lines[-1][1] == place

    (tmp_path / "mine.yaml").write_text(
        yaml.safe_dump(EXPERIMENT | {"results": "results", "order_seed": 4}, sort_keys=False)
    )
    assert not re.findall(r"^Job \d+:", snakemake(tmp_path, "--cores", "1", "--dry-run"), re.M)


def test_the_local_profile_reads_traces_after_the_last_run_of_their_group(tmp_path: Path) -> None:
    first = {"question": "?", "fixed": {"seed": 1}, "repeats": 2, "figures": ["step_breakdown"]}
    second = {"question": "?", "fixed": {"seed": 5}, "figures": ["step_breakdown"]}
    third = first | {"vary": {"precision": ["fp64", "fp32"]}}  # shares with the first
    project(tmp_path, {"fixed": TINY, "scenarios": {"first": first, "second": second, "third": third}})
    snakemake(tmp_path, "--profile", "profiles/local", "--cores", "2", until="extract_activity")
    kinds = ["trace" if name == "trace" else "run" for name, _ in started(tmp_path)]
    assert kinds == ["run"] * 4 + ["trace"] * 4 + ["run"] + ["trace"]


def test_runs_that_this_machine_starts_follow_each_other_though_a_cluster_is_stated(tmp_path: Path) -> None:
    scenario = {"question": "Do they meet?", "vary": {"seed": [0, 1]}, "figures": ["step_breakdown"]}
    cluster = {"cpus_per_node": 16}
    project(tmp_path, {"cluster": cluster, "fixed": TINY, "scenarios": {"neighbours": scenario}})
    (tmp_path / "lasts").write_text("1")  # s
    snakemake(tmp_path, "--profile", "profiles/local", "--cores", "2")
    first, second = sorted(json.loads(path.read_text()) for path in tmp_path.glob("results/runs/*/at_work.json"))
    assert first[1] <= second[0]
