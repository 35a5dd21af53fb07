"""Causes that follow from the measures of runs: of synthetic runs, with the gain that follows by hand."""

from pathlib import Path

import pytest

from factories import Row, make_results, recommendations, vision_runs
from multicard.answers.diagnoses.causes import causes_of
from multicard.answers.diagnoses.diagnosis import Diagnosis


def causes(folder: Path, rows: list[Row]) -> list[Diagnosis]:
    results = make_results(folder, rows, gpu=None)
    return causes_of(results.configurations()[0], results)


def test_ranks_that_draw_the_same_samples_gain_by_as_many_times_as_they_draw_them(tmp_path: Path) -> None:
    rows = vision_runs(100.0, devices=4, strategy="ddp", processed_samples_per_s=400.0)
    [found] = causes(tmp_path / "same", rows)
    assert found.gain == pytest.approx(4, rel=0.01)
    assert found.sentence == (
        "a `DistributedSampler`, with which each rank draws samples of its own, since each sample is drawn by 4 of the "
        "4 ranks; up to 4.00× as fast without it"
    )
    # A stream has no sampler.
    loaders = [{"at": at, "rank": rank, "kind": "DataLoader", "sampler": None} for at in range(3) for rank in range(4)]
    streaming = make_results(tmp_path / "stream", rows, gpu=None, tables={"loaders": loaders})
    [found] = causes_of(streaming.configurations()[0], streaming)
    assert found.remedy.startswith("a stream that gives each rank samples of its own")
    # The last batch of an epoch is filled up.
    assert causes(tmp_path / "own", vision_runs(100.0, devices=4, processed_samples_per_s=101.0)) == []


@pytest.mark.parametrize(
    ("devices", "threads", "says"),
    [
        (
            2, 8,
            "1 thread in a rank (`OMP_NUM_THREADS=1` or `torch.set_num_threads(1)`), since 2 ranks of a node compute "
            "with 8 threads each on 2 CPUs",
        ),
        (1, 8, "2 threads in a rank (`OMP_NUM_THREADS=2` or `torch.set_num_threads(2)`), since 1 rank computes with 8"),
        (2, 1, None),
        (1, 2, None),
    ],
)  # fmt: skip
def test_more_threads_than_cpus_are_a_cause_of_unknown_gain(
    devices: int, threads: int, says: str | None, tmp_path: Path
) -> None:
    rows = vision_runs(100.0, devices=devices, device="cpu", intraop_threads=threads, usable_cpus=2)
    found = causes(tmp_path, rows)
    assert [cause.share for cause in found] == ([] if says is None else [None])
    if says is not None:
        assert says in recommendations(make_results(tmp_path / "again", rows, gpu=None))


def test_causes_are_ordered_by_their_gain(tmp_path: Path) -> None:
    rows = vision_runs(100.0, devices=2, device="cpu", processed_samples_per_s=200.0, intraop_threads=4, usable_cpus=2)
    assert [cause.share for cause in causes(tmp_path, rows)] == [pytest.approx(0.5, rel=0.01), None]


def test_a_line_of_code_is_told_beside_saving_that_takes_as_long(tmp_path: Path) -> None:
    # Of 100 ms, saving takes 20 and a line 30, both outside of the phases: neither explains the other.
    times = {"iteration_time_s": 0.1, "mean_iteration_time_s": 0.1, "measured_steps": 50, "data_share": 0.1}
    phases = {"data_s": 0.010, "forward_s": 0.015, "backward_s": 0.020, "optimizer_s": 0.005}
    rows = vision_runs(640.0, device="cpu", **times | phases)
    saving = {"kind": "saving", "function": "torch.save", "calls": 50, "seconds": 1.0, "bytes": 0, "steps": 50}
    line = {"function": "log", "samples_there": 60, "stack_samples": 200}
    tables = {
        "host_work": [{"at": at, "rank": 0, "site": "train.py:7", "first_steps": "", **saving} for at in range(3)],
        "code_lines": [{"at": at, "rank": 0, "site": "train.py:12", **line} for at in range(3)],
    }
    results = make_results(tmp_path, rows, gpu=None, tables=tables)
    evidence = " ".join(cause.evidence for cause in causes_of(results.configurations()[0], results))
    assert "`torch.save` (train.py, line 7) saves in each step, for 20.0 ms" in evidence
    assert "is at train.py, line 12 (`log`)" in evidence
