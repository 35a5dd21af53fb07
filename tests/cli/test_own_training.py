"""What the page "Measure your own training" has a newcomer do, done: its script, its commands, real processes."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from conftest import ROOT, ran
from console import multicard
from docs.code_blocks import blocks, shell_commands

pytestmark = pytest.mark.slow


def shell(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    paths = {"PATH": f"{Path(sys.prefix) / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    return ran("bash", "-c", command, cwd=folder, env=os.environ | paths)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the script of the page, and nothing else."""
    folder = tmp_path_factory.mktemp("own") / "my training"
    folder.mkdir()
    script, _ = (block.text for block in blocks("docs/own-training.md") if block.language == "python")
    (folder / "train.py").write_text(script)
    return folder


@pytest.fixture(scope="module")
def printed(folder: Path) -> str:
    """What `multicard scale` prints there."""
    dry, real, _ = shell_commands("docs/own-training.md")
    assert real == dry.replace("--dry-run ", "")
    done = shell(real, folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def measures(folder: Path) -> pd.DataFrame:
    return pd.read_csv(folder / "results" / "scenarios" / "scale" / "measures.csv").set_index("run").sort_index()


def test_every_configuration_is_measured(folder: Path, printed: str) -> None:
    found = measures(folder)
    assert found["outcome"].tolist() == ["completed"] * 4
    assert (found["measured_steps"] == 20).all()
    by_hand = found["devices"] * found["args.batch_size"] / found["iteration_time_s"]
    assert found["throughput_samples_per_s"].tolist() == pytest.approx(by_hand.tolist(), rel=1e-9)
    assert found["data_share"].between(0, 1).all()
    one, two = (found[found["devices"] == devices].set_index("args.batch_size") for devices in (1, 2))
    speedup = two["throughput_samples_per_s"] / one["throughput_samples_per_s"]
    assert two["speedup"].tolist() == pytest.approx(speedup.reindex(two.index).tolist(), rel=1e-9)


def test_the_table_has_a_row_of_each_configuration_and_what_two_processes_gain(folder: Path, printed: str) -> None:
    rows = [re.split(r" *│ *", line)[1:-1] for line in printed.splitlines() if line.startswith("│")]
    assert sorted((row[0], row[1]) for row in rows) == [(devices, batch) for devices in "12" for batch in ("16", "64")]
    assert "outcome" not in printed, "all completed"
    report, following = printed.splitlines()[-2:]
    assert report == "report: results/report.html" and following.startswith("next, for intervals by 3 repeats ")
    assert (folder / "results" / "report.html").stat().st_size > 0
    found = measures(folder)
    gains = found[found["devices"] == 2].set_index("args.batch_size")["speedup"].sort_values(ascending=False)
    first = r"batch_size (\d+) ([\d.]+)× as fast as 1 process \(n=1\), [^;]*"
    said = re.search(rf"^scale: on 2 processes: {first}; batch_size (\d+) ([\d.]+)×", printed, re.M)
    assert [int(said[1]), int(said[3])] == list(gains.index)
    assert [float(said[2]), float(said[4])] == pytest.approx(list(gains), rel=0.006)


def test_the_commands_that_go_on_from_there_work(folder: Path, printed: str) -> None:
    page = (ROOT / "docs" / "own-training.md").read_text()
    said = {}
    for name, arguments in re.findall(r"`multicard (status|archive|recommend)([^`]*)`", page):
        said[name] = multicard(name, *shlex.split(arguments), folder=folder).stdout
    assert said["status"].splitlines()[-1] == "4 completed"
    assert (folder / "ours.tar.gz").stat().st_size > 0
    recommended = said["recommend"].replace("\\", "")  # of Markdown
    assert "batch_size: 16 → 64" in recommended and "args." not in recommended
    compared = multicard("compare", "results", "ours.tar.gz", "--verbose", folder=folder).stdout
    assert all(run.removesuffix("_r1") in compared for run in measures(folder).index)


def test_the_next_step_that_is_named_adds_repeats_to_the_finished_runs(folder: Path, printed: str) -> None:
    file = folder / "multicard.yaml"
    before = file.read_text()
    change, _, command = printed.splitlines()[-1].partition(": ")[2].partition(" && multicard ")
    assert shell(change, folder).returncode == 0
    listed = multicard(*shlex.split(command), "--dry-run", folder=folder).stdout
    file.write_text(before)
    assert "12 runs: 8 would run, 4 done (" in listed


def test_a_second_start_measures_nothing_again(folder: Path, printed: str) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder.glob("results/runs/*/run.json")}
    *_, again = shell_commands("docs/own-training.md")
    assert again.startswith("multicard run ")
    done = shell(again, folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {path: path.stat().st_mtime_ns for path in folder.glob("results/runs/*/run.json")} == before
    assert len(before) == 4
