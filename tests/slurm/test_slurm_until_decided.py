"""Repeats that are added until they decide, on a real Slurm."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from slurm_projects import HOG, HOGS, multicard, project, slurm_cluster, snakemake

pytestmark = [pytest.mark.slow, pytest.mark.rare]

# The interval of a single configuration is never as narrow as this, so that it gets its most repeats.
REPEATS = {"until": "0.001%", "least": 2, "most": 3}
EXPERIMENT: dict[str, Any] = HOGS | {
    "scenarios": {
        "one": {
            "question": "How long is a step?", "fixed": {"command": [HOG, "0"]}, "repeats": REPEATS,
            "figures": ["step_times"],
        },
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with slurm_cluster(tmp_path_factory) as folder:
        yield folder


def test_snakemake_submits_the_least_repeats_and_names_the_command_that_adds_more(slurm: Path, tmp_path: Path) -> None:
    folder = project(tmp_path / "project", EXPERIMENT, "scripts")

    def repeats() -> list[str]:
        return sorted(path.parent.name.rpartition("_r")[2] for path in folder.glob("results/runs/*/run.json"))

    alone = snakemake(folder)
    assert alone.returncode == 0, alone.stdout[-3000:] + alone.stderr[-6000:]
    assert repeats() == ["1", "2"]
    assert alone.stdout.splitlines()[-1] == (
        "next, to add repeats until comparisons are decided: multicard run config/tiny.yaml --profile slurm"
    )
    added = multicard(folder, "run")
    assert added.returncode == 0, added.stdout[-3000:] + added.stderr[-6000:]
    assert repeats() == ["1", "2", "3"]
    assert "one: not decided after 2 repeats, one more of 3 at most" in added.stdout
    assert "\n1 run in " in added.stdout
    # Each run by name: a job that Slurm loses, or refuses for the moment, is submitted again.
    submitted = re.findall(r"rule_launch_run\S*?(_r\d) ", (folder / "asked").read_text())
    assert sorted(set(submitted)) == ["_r1", "_r2", "_r3"]
