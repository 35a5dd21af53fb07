"""Real jobs end in an outcome and leave a complete run directory."""

import csv
import os
import shutil
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from conftest import TINY
from forked_ranks import forked_ranks
from multicard.config.read_run import read_run
from multicard.core.layout import PHASES
from multicard.core.reasons import describe_reason
from multicard.launch.job import run_job
from multicard.observe.record.binding import parse_cpus
from multicard.observe.record.profiled_window import LEAST_SETTLING
from multicard.programs.vision.parameters import VisionParameters
from multicard.runs.record import RunRecord
from multicard.trace.export import export_run
from multicard.trace.extract import extract_run

pytestmark = pytest.mark.slow

WITHOUT_TRACE = {"run.json", "steps.csv", "epochs.csv", "log.txt", "trace/captured.json"}


def files(folder: Path) -> set[str]:
    """Files of a run directory but its lock, which stays."""
    assert (folder / ".lock").stat().st_size == 0
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


def test_a_run_directory_has_every_step_of_every_rank_and_says_what_ran(two_rank_run: Path) -> None:
    steps = pd.read_csv(two_rank_run / "steps.csv")
    windows = ["warmup"] * 2 + ["measured"] * 6 + ["warmup"] * (1 + LEAST_SETTLING) + ["profiled"] * 3
    for _, rank in steps.groupby("rank"):
        assert rank["window"].tolist() == windows
        assert rank["step"].tolist() == list(range(1, 15))
    assert (steps["samples"] == TINY["batch_size"]).all()
    share = steps[[f"{phase}_s" for phase in PHASES]].sum(axis=1) / steps["duration_s"]
    assert share.median() == pytest.approx(1, abs=0.05)

    record = read_run(two_rank_run)
    stated = VisionParameters(**TINY, strategy="ddp-ds", devices=2, profiler="kineto")
    assert record.parameters == stated
    assert record.hardware.logical_cpus >= 1
    assert record.versions["torch"] == version("torch")
    assert record.profiler.why == "as configured"
    assert record.started < record.ended
    assert [(rank.rank, rank.binding.note) for rank in record.ranks] == [(0, None), (1, None)]
    # 1438 training samples, half for each of 2 ranks, in full batches of 8: floor(719 / 8).
    assert record.steps_per_pass == 89

    with (two_rank_run / "epochs.csv").open(newline="") as file:
        [epoch] = csv.DictReader(file)
    # An accuracy over 359 test samples is a whole number of them.
    right = float(epoch["test_accuracy"]) * 359
    assert 0 <= right <= 359 and right == pytest.approx(round(right), abs=1e-6)
    assert files(two_rank_run) == WITHOUT_TRACE | {"trace/rank0.json.gz", "trace/rank1.json.gz"}


def job(data: Path, folder: Path, limit: float = 300, **changes: Any) -> RunRecord:
    return run_job(VisionParameters(**(TINY | {"profiler": "none"} | changes)), data, folder, limit)


def forked(*arguments: Any, **changes: Any) -> RunRecord:
    """The same where how its ranks start is not looked at."""
    with forked_ranks():
        return job(*arguments, **changes)


def test_equal_seeds_train_equally_and_what_an_earlier_attempt_left_is_removed(digits: Path, tmp_path: Path) -> None:
    (tmp_path / "a" / ".scratch-old").mkdir(parents=True)
    (tmp_path / "a" / "trace").mkdir()
    (tmp_path / "a" / "trace" / "rank7.json.gz").write_text("old")
    (tmp_path / "a" / "run.json").write_text("{half")
    losses = []
    for name, repeat in (("a", 1), ("b", 1), ("c", 2)):
        assert forked(digits, tmp_path / name, repeat=repeat).outcome == "completed"
        losses.append(pd.read_csv(tmp_path / name / "steps.csv")["loss"].tolist())
    assert losses[0] == losses[1] != losses[2]
    assert files(tmp_path / "a") == WITHOUT_TRACE


def test_a_job_over_its_time_limit_is_the_outcome_timed_out(digits: Path, tmp_path: Path) -> None:
    record = job(digits, tmp_path, limit=1.5, epochs=1000)
    assert record.outcome == "timed_out"
    # It had no time to train; how far it came depends on the machine.
    assert record.reason.time_limit_s == 1.5


def test_others_are_metered_in_the_measured_steps_and_bindings_are_recorded(digits: Path, tmp_path: Path) -> None:
    record = forked(digits, tmp_path, strategy="ddp-ds", devices=2, epochs=2, binding="numa")
    [host] = record.conditions
    metered, steps = host.measured_steps, pd.read_csv(tmp_path / "steps.csv")
    measured = steps[(steps["window"] == "measured") & (steps["rank"] == 0)]
    assert measured["duration_s"].sum() <= metered.wall_s <= host.wall_s
    assert 0 <= metered.others_cpu_s <= metered.wall_s * host.usable_cpus
    for binding in (rank.binding for rank in record.ranks):
        assert parse_cpus(binding.cpus) <= os.sched_getaffinity(0)
        # What can be done depends on the machine; tests/observe/test_binding.py has machines of every kind.
        assert binding.note.startswith(("bound to CPUs", "not bound: "))


def test_what_cannot_be_trained_on_fails_with_a_reason(digits: Path, tmp_path: Path) -> None:
    record = forked(digits, tmp_path / "short", warmup_steps=8)
    said = "rank 0: warmup_steps: 8, but the run has only 8 steps"
    assert (record.outcome, describe_reason(record.reason)) == ("failed", said)
    shutil.copytree(digits, tmp_path / "data")
    with (tmp_path / "data" / "test_labels.npy").open("ab") as file:
        file.write(b"x")
    record = forked(tmp_path / "data", tmp_path / "run")
    assert record.outcome == "failed"
    assert "test_labels.npy: missing or changed" in record.reason.message


@pytest.mark.gpu
def test_a_job_on_a_gpu_is_timed_by_events_and_its_trace_has_kernels(digits: Path, tmp_path: Path) -> None:
    record = job(digits, tmp_path, device="cuda", profiler="kineto")
    assert record.outcome == "completed", record.reason
    steps = pd.read_csv(tmp_path / "steps.csv")
    share = steps[[f"{phase}_s" for phase in PHASES]].sum(axis=1) / steps["duration_s"]
    assert share.median() == pytest.approx(1, abs=0.05)
    export_run(tmp_path)
    extract_run(tmp_path, read_run(tmp_path).ranks)
    assert len(pd.read_parquet(tmp_path / "activity" / "kernels.parquet")) > 0


@pytest.mark.nsys
def test_nsys_records_both_ranks_in_one_report_and_does_not_meet_temporary_files_of_another_user(
    digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # nsys makes a folder $TMPDIR/nvidia; one of another user that it may not write to ends it as this file does.
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp" / "nvidia").touch()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    record = job(digits, tmp_path / "run", strategy="ddp", devices=2, profiler="nsys")
    assert (record.outcome, record.profiler.trace_missing) == ("completed", None)
    assert (tmp_path / "run" / "trace" / "report.nsys-rep").stat().st_size > 10_000
    left = {path.name for path in (tmp_path / "tmp").iterdir()}
    assert {name for name in left if not name.startswith("torchinductor_")} == {"nvidia"}  # that is PyTorch's cache
