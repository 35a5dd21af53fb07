"""The figure of predicted against measured step times has panels for what there is, and hides no end of an interval."""

from pathlib import Path
from typing import Any

import pytest

from figures.measured import closed, gathered, legend, measured, words
from multicard.analysis.scenario_tables import ScenarioTables
from multicard.figures.prediction import prediction

SCATTER = (0.99, 1.0, 1.01)


def job(folder: Path, times: dict[int, float], machine: str | None = None, factors: tuple[float, ...] = SCATTER) -> Any:
    """Repeats of a job with 64 images for each CPU process."""
    rows: list[dict[str, Any]] = [
        {"strategy": "ddp-ds", "devices": devices, "repeat": repeat, "iteration_time_s": seconds * factor,
         "throughput_samples_per_s": 64 * devices / seconds / factor,
         "processed_samples_per_s": 64 * devices / seconds / factor}
        for devices, seconds in times.items()
        for repeat, factor in enumerate(factors, 1)
    ]  # fmt: skip
    info = [{"run": f"run{number}", "machine": machine} for number in range(len(rows))]
    tables: ScenarioTables = gathered(folder, measured("vision", *rows), runs_info=info)
    return tables


def test_without_a_check_there_is_one_panel(tmp_path: Path) -> None:
    figure, data = prediction(job(tmp_path, {1: 0.1, 2: 0.11}))
    [axes] = closed(figure).axes
    assert axes.get_title() == "Step time; predictions were never checked here"
    assert data["devices"].tolist() == [1, 2, 4] and data["prediction_error"].isna().all()
    assert legend(figure) == [["ddp-ds", "hollow: predicted from fewer devices"]]


def test_with_a_check_there_are_its_errors(tmp_path: Path) -> None:
    figure, data = prediction(job(tmp_path, {1: 0.1, 2: 0.12, 4: 0.14, 8: 0.32}))
    _, right = closed(figure).axes
    assert right.get_title() == "Error of predictions"
    # 20 ms for each doubling, so 160 ms, where 320 were measured.
    assert data.set_index("devices").loc[8, "prediction_error"] == pytest.approx(-0.5, abs=0.01)


def test_an_interval_that_the_axis_cuts_off_ends_in_an_arrow_with_its_end(tmp_path: Path) -> None:
    figure, data = prediction(job(tmp_path, {1: 0.1, 2: 0.12}, factors=(0.3, 3.0)))
    [axes] = closed(figure).axes
    high = 1000 * data.set_index("devices").loc[4, "predicted_s_high"]
    top = axes.get_ylim()[1]
    assert high > top
    [arrow] = [line for line in axes.get_lines() if line.get_marker() == "^"]
    assert arrow.get_ydata()[0] == top
    assert any(text == f"{high:,.0f}" for text in words(axes))
    figure, _ = prediction(job(tmp_path / "steady", {1: 0.1, 2: 0.1001}, factors=(0.9999, 1.0, 1.0001)))
    [axes] = closed(figure).axes
    assert not [line for line in axes.get_lines() if line.get_marker() == "^"]
