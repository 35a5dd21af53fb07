"""Runs whose files were lost, cut or altered are named by status, which needs no place to write and no data."""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from console import multicard
from multicard.answers.outputs import write_scenario
from multicard.config import load
from recorded_runs import write_configuration

pytestmark = pytest.mark.slow


@pytest.fixture
def config(recorded_results: Path, tmp_path: Path) -> Path:
    """Of two runs that were measured."""
    results = Path(shutil.copytree(recorded_results, tmp_path / "results"))
    folders = sorted((results / "runs").iterdir())
    write_scenario(folders, {}, results / "scenarios" / "recorded")
    return write_configuration(tmp_path / "config.yaml", results, 2)


def first_run(config: Path) -> Path:
    return min((config.parent / "results" / "runs").iterdir())


def lose(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def alter(path: Path) -> None:
    """Without a change of size, long after the run was measured."""
    content = path.read_bytes()
    path.write_bytes(content.replace(b"1", b"2"))
    os.utime(path, (2_000_000_000, 2_000_000_000))


@pytest.mark.parametrize(
    ("name", "harm"),
    [
        ("run.json", cut),
        ("steps.csv", alter),
        ("epochs.csv", lose),
        ("activity/tables.json", lose),
        ("activity/kernel_classes.parquet", cut),
    ],
)
def test_status_names_a_file_that_was_harmed(config: Path, name: str, harm: Callable[[Path], object]) -> None:
    path = first_run(config) / name
    harm(path)
    done = multicard("status", config)
    # Above them is a table of remarks where the steps of the recorded run were disturbed.
    *_, named, counts = done.stdout.splitlines()
    assert done.returncode == 1
    assert named.startswith(f"{path}: ")
    assert counts == "1 damaged, 1 completed"


def test_what_is_measured_again_refuses_a_file_that_was_harmed_and_leaves_out_a_run_that_lost_one(config: Path) -> None:
    """Tables that were made before know nothing of it."""
    results, path = config.parent / "results", first_run(config) / "activity/cuda_api.parquet"
    drawn, exported = config.parent / "drawn", config.parent / "runs.json"
    commands = [
        ("recommend", "--json"), ("export", "--to", "json", "--out", exported), ("report", "--out", drawn),
    ]  # fmt: skip
    before = multicard("recommend", results).stdout
    whole = path.read_bytes()
    cut(path)
    for command, *options in commands:
        done = multicard(command, config, *options)
        [named] = done.stderr.splitlines()
        assert (done.returncode, done.stdout) == (1, "") and named.startswith(f"{path}: ")
    path.write_bytes(whole)
    done = multicard("status", config)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "2 completed")
    path.unlink()
    assert (multicard("recommend", results).stdout, multicard("status", config).returncode) == (before, 1)
    for command, *options in commands:
        assert multicard(command, config, *options).returncode == 0
    assert len(exported.read_text().splitlines()) == 1
    outcomes = (drawn / "scenarios" / "recorded" / "runs.csv").read_text()
    assert "incomplete: activity/cuda_api.parquet is missing" in outcomes
    done = multicard("archive", config, "--out", config.parent / "all.tar.gz")
    assert (done.returncode, (config.parent / "all.tar.gz").exists()) == (1, True)
    assert done.stdout.startswith(f"skipped: {path}: missing")


def test_status_and_archive_read_results_that_cannot_be_written(
    recorded_results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(recorded_results, "results")
    sets = {"mine": {"source": "imagefolder", "folder": "gone"}, "digits": {"source": "digits"}}
    write_configuration(Path("multicard.yaml"), Path("results"), 2, datasets=sets)
    with monkeypatch.context() as patched:
        patched.setattr(load, "unwritable", lambda folder: f"{folder}: Permission denied")  # root may write everywhere
        assert multicard("status").stdout.splitlines()[-1] == "2 completed"
        packed = multicard("archive", "--out", "all.tar.gz").stdout.splitlines()[-1]
    assert re.fullmatch(r"packed 2 runs \(.*\): all\.tar\.gz", packed)
    before = Path("all.tar.gz").read_bytes()
    again = multicard("archive", "--out", "all.tar.gz")
    assert (again.returncode, Path("all.tar.gz").read_bytes()) == (1, before)
    assert again.stderr == "--out: all.tar.gz exists, expected a new name; delete it, or state another one\n"
    write_configuration(Path("multicard.yaml"), Path("results"), 2)
    # As those above, it need not be told the name that scale gives.
    found = multicard("run", "--dry-run").stdout
    assert found == multicard("run", "multicard.yaml", "--dry-run").stdout != ""
