"""The time of epochs and of the whole training, as their figure shows it; all tables are synthetic."""

from pathlib import Path
from typing import Any

import pytest

from figures.measured import closed, gathered, group_names, heading, legend, lengths, measured
from multicard.figures.draw import draw

MEASURED, EXTRAPOLATED, REST = "measured", "extrapolated from the measured steps", "start, tests and profiling"


def recorded(run: str, epochs: list[float], steps: int, per_pass: int, warmup: int, wall: float | None) -> dict:
    """Tables of a run with epochs so long, of so many steps each; `warmup` of them at first, and profiled ones last."""
    rows = [
        {"run": run, "rank": 0, "epoch": epoch + 1, "step": epoch * steps + n + 1}
        | {"window": "warmup" if epoch * steps + n < warmup else "measured"}
        for epoch in range(len(epochs))
        for n in range(steps)
    ]
    last = {"run": run, "rank": 0, "epoch": len(epochs) + 1, "step": len(rows) + 1, "window": "profiled"}
    return {
        "steps": [*rows, last],
        "epochs": [{"run": run, "epoch": n + 1, "epoch_time_s": seconds} for n, seconds in enumerate(epochs)],
        "runs_info": [{"run": run, "steps_per_pass": per_pass, "wall_time_s": wall}],
    }


def together(*runs: dict[str, list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    return {name: [row for run in runs for row in run[name]] for name in ("steps", "epochs", "runs_info")}


def test_full_epochs_are_measured_and_those_cut_short_extrapolated(tmp_path: Path) -> None:
    measures = measured(
        "vision",
        {"strategy": "ddp-ds", "devices": 1, "epochs": 3, "estimated_epoch_time_s": 1000.0},
        {"strategy": "ddp-ds", "devices": 2, "epochs": 3, "estimated_epoch_time_s": 7.0},
    )
    tables = together(
        # The first epoch warms up; of the others the mean is 11 s. All three are 40 s of 65 s.
        recorded("run0", [18.0, 10.0, 12.0], steps=4, per_pass=4, warmup=1, wall=65.0),
        recorded("run1", [2.0, 2.0, 2.0], steps=4, per_pass=14, warmup=1, wall=20.0),
    )
    figure, data = draw("training_time", gathered(tmp_path, measures, **tables))
    left, right = closed(figure).axes
    assert (heading(left), heading(right)) == ("Time per epoch", "Total time")
    assert group_names(left, horizontal=True) == ["ddp-ds, 1 CPU process", "ddp-ds, 2 CPU processes"]
    assert left.get_xlabel() == right.get_xlabel().replace("min", "s") == "Time (s)"
    assert lengths(left) == {MEASURED: [11, 0], EXTRAPOLATED: [0, 7]}
    shown = {name: [60 * value for value in values] for name, values in lengths(right).items()}
    assert shown == {
        MEASURED: pytest.approx([40, 0]), EXTRAPOLATED: pytest.approx([0, 21]), REST: pytest.approx([25, 0]),
    }  # fmt: skip
    assert legend(figure) == [[MEASURED, EXTRAPOLATED, REST]]
    assert data["cut_short"].tolist() == [0, 1]


def test_of_a_single_epoch_the_time_with_its_warmup_is_shown(tmp_path: Path) -> None:
    tables = recorded("run0", [30.0], steps=4, per_pass=4, warmup=2, wall=None)
    figure, data = draw("training_time", gathered(tmp_path, measured("vision", {"epochs": 1}), **tables))
    left, right = closed(figure).axes
    assert lengths(left) == lengths(right) == {MEASURED: [30]}
    assert data["other_time_s"].isna().all()
    _, data = draw("training_time", gathered(tmp_path / "none", measured("vision", {})))
    assert data["nothing_to_show"].tolist() == ["no time of an epoch was recorded"]
