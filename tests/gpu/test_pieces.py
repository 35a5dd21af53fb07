"""The GPU check ends in time, and continues from what it saved."""

import os
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from pieces import ENDING_S, PART_BYTES, Deadline, restore, save

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


def test_what_is_saved_in_parts_is_restored_without_traces_and_runs_that_are_there_stay(tmp_path: Path) -> None:
    saved, elsewhere = tmp_path / "saved", tmp_path / "elsewhere"
    for name in ("a", "b", "unread", "unfinished"):
        for part, content in (
            *([] if name == "unread" else [("activity/tables.json", b"{}")]),
            ("trace/captured.json", b"{}"),
            ("trace/rank0.json.gz", b"long"),
            ("steps.csv", os.urandom(PART_BYTES if name == "a" else 10)),
        ):
            file = tmp_path / "results/runs" / name / part
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        if name != "unfinished":
            (tmp_path / "results/runs" / name / "run.json").write_text(name)
    os.utime(tmp_path / "results/runs/a/run.json", (1e9, 1e9))
    (elsewhere / "runs/b").mkdir(parents=True)
    restore(saved, elsewhere)  # of the first call there is nothing

    save(tmp_path / "results", saved)
    save(tmp_path / "results", saved)
    assert len(list(saved.iterdir())) == 2
    assert max(part.stat().st_size for part in saved.iterdir()) == PART_BYTES
    restore(saved, elsewhere)
    assert sorted(path.name for path in elsewhere.glob("runs/*")) == ["a", "b", "unread"]
    assert (elsewhere / "runs/unread/trace/rank0.json.gz").read_bytes() == b"long"
    assert list((elsewhere / "runs/b").iterdir()) == []
    assert {path.name for path in (elsewhere / "runs/a").rglob("*.*")} == {
        "tables.json", "captured.json", "steps.csv", "run.json",
    }  # fmt: skip
    for file in ("steps.csv", "run.json"):
        assert (elsewhere / "runs/a" / file).read_bytes() == (tmp_path / "results/runs/a" / file).read_bytes()
    assert (elsewhere / "runs/a/run.json").stat().st_mtime == 1e9, "by which Snakemake tells what is out of date"


@pytest.mark.parametrize("minutes", [0.0, (ENDING_S + 0.5) / 60])
def test_a_command_is_ended_or_not_begun_when_the_time_is_up(minutes: float, tmp_path: Path) -> None:
    deadline = Deadline(minutes)
    assert deadline.run(SLEEP, tmp_path) is None
    assert deadline.left_s == 0


def test_what_does_not_end_in_time_is_killed_with_what_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pieces.STOPPING_S", 0.2)
    stubborn = 'trap "" TERM; sleep 600 & echo $! > child; wait; wait'
    assert Deadline((ENDING_S + 0.5) / 60).run(["sh", "-c", stubborn], tmp_path) is None
    child = int((tmp_path / "child").read_text())
    with suppress(psutil.NoSuchProcess):  # or dead, and not yet waited for by what it fell to
        ended, _ = psutil.wait_procs([psutil.Process(child)], timeout=5)
        assert ended or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


def test_without_a_limit_or_in_time_a_command_gives_its_exit_code(tmp_path: Path) -> None:
    for minutes in (None, 60):
        assert Deadline(minutes).run([sys.executable, "-c", "raise SystemExit(3)"], tmp_path) == 3
