"""Repeats added until comparisons are decided, through Snakemake, on real training in a copy of the project."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from project_copy import CONFIG, environment, planned, project, snakemake

from conftest import TINY, ran

pytestmark = pytest.mark.slow

MOST = 3
EXPERIMENT: dict[str, Any] = {
    "fixed": TINY,
    "repeats": {"until": "20%", "least": 2, "most": MOST},
    "scenarios": {
        "formats": {"question": "?", "vary": {"precision": ["fp32", "fp64"]}, "figures": ["step_times"]},
    },
}


def run(folder: Path) -> str:
    done = ran(folder / "bin/multicard", "run", CONFIG, cwd=folder, env=environment())
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def repeats(folder: Path) -> list[int]:
    return sorted(int(path.parent.name.rpartition("_r")[2]) for path in folder.glob("results/runs/*/run.json"))


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project after a bare Snakemake."""
    folder = project(tmp_path_factory.mktemp("until") / "my project", EXPERIMENT)
    done = snakemake(folder)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (folder / "said").write_text(done.stdout)
    return folder


def test_snakemake_alone_makes_the_least_repeats_and_names_what_adds_more(started: Path) -> None:
    said = (started / "said").read_text()
    assert repeats(started) == [1, 1, 2, 2]
    assert "until decided: 4 to 6 runs" in said
    assert re.search(r"^4 runs in \d", said, re.M)
    assert re.search(r"^next, to add repeats until comparisons are decided: multicard run", said, re.M)
    assert (started / "results" / "report.html").exists()
    index = json.loads((started / "results/scenarios/formats/tables.json").read_text())
    assert index["looks"] == MOST - 1


def test_multicard_run_adds_what_decides_and_a_second_start_adds_nothing(started: Path) -> None:
    said = run(started)
    state = json.loads((started / "results" / "repeats.json").read_text())["formats"]
    # How much a busy machine scatters decides which of both it is.
    if state["decided"] is None:
        assert state["repeats"] == MOST and "formats: not decided after 2 repeats, one more of 3 at most" in said
        assert re.search(r"^2 runs in \d", said, re.M)
    else:
        assert state["repeats"] == 2 and "formats: decided after 2 repeats" in said
    expected = sorted([*range(1, state["repeats"] + 1)] * 2)
    assert repeats(started) == expected
    assert "Nothing to be done: the results are there" in run(started)
    assert repeats(started) == expected and planned(started) == []


def test_repeats_that_were_added_are_planned_by_snakemake_too(started: Path) -> None:
    state = started / "results" / "repeats.json"
    before = state.read_text() if state.exists() else None
    made = set(repeats(started))
    try:
        state.write_text(json.dumps({"formats": {"repeats": MOST}}))
        runs = [job for job in planned(started) if job.startswith("run ")]
    finally:
        state.write_text(before) if before is not None else state.unlink()
    assert len(runs) == (0 if MOST in made else 2) and all(job.endswith(f"_r{MOST}") for job in runs)
