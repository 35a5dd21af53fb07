"""Figures show what the measures say, in every format."""

import re
from pathlib import Path
from typing import Any, get_args

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from multicard.analysis.measures import MEASURES, PARAMETERS
from multicard.analysis.scaling import add_scaling
from multicard.experiment.config import Figure
from multicard.experiment.parameters import VisionParameters
from multicard.figures.catalog import FIGURES, draw
from multicard.figures.scaling import iteration_time, speedup
from multicard.figures.series import labels, varied


def synthetic_measures() -> pd.DataFrame:
    """Two strategies on one and two devices, two repeats; two precisions."""
    rows = []
    for strategy, devices, precision, seconds in (
        ("ddp", 1, "fp32", 0.10), ("ddp", 2, "fp32", 0.20), ("ddp-ds", 1, "fp32", 0.12), ("ddp-ds", 2, "fp32", 0.14),
        ("ddp-ds", 2, "fp64", 0.30),
    ):  # fmt: skip
        for repeat in (1, 2):
            parameters = VisionParameters(
                strategy=strategy, device="cpu", devices=devices, precision=precision, repeat=repeat
            )
            time = seconds * (1 + 0.1 * (repeat - 1))
            values: dict[str, Any] = dict.fromkeys(MEASURES) | {
                "iteration_time_s": time,
                "throughput_samples_per_s": 64 * (devices if strategy == "ddp-ds" else 1) / time,
                "forward_s": time / 3,
                "backward_s": time / 2,
                "other_s": time / 6,
                "test_accuracy": 0.9,
            }
            rows.append({"run": "r", "outcome": "completed", "reason": None, **parameters.model_dump(), **values})
    return add_scaling(pd.DataFrame(rows, columns=["run", "outcome", "reason", *PARAMETERS, *MEASURES]))


def test_the_catalog_is_what_a_configuration_may_ask_for() -> None:
    assert set(FIGURES) == set(get_args(Figure))


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_drawn_in_every_format_with_its_numbers(name: str, tmp_path: Path) -> None:
    draw(name, synthetic_measures(), tmp_path / name)
    assert {path.name for path in tmp_path.iterdir()} == {f"{name}.{suffix}" for suffix in ("png", "svg", "pdf", "csv")}
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / f"{name}.pdf").read_bytes().startswith(b"%PDF")
    assert len(pd.read_csv(tmp_path / f"{name}.csv")) == 5


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_survives_the_way_through_a_file(name: str, tmp_path: Path) -> None:
    synthetic_measures().to_csv(tmp_path / "measures.csv", index=False)
    draw(name, pd.read_csv(tmp_path / "measures.csv"), tmp_path / name)


def test_the_same_measures_give_the_same_files(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        draw("speedup", synthetic_measures(), tmp_path / folder / "speedup")
    for suffix in ("png", "svg", "pdf", "csv"):
        assert (tmp_path / f"a/speedup.{suffix}").read_bytes() == (tmp_path / f"b/speedup.{suffix}").read_bytes()


def test_lines_pass_through_the_medians_of_the_repeats() -> None:
    figure, _ = iteration_time(synthetic_measures())
    lines = {line.get_label(): line for line in figure.axes[0].get_lines()}
    drawn = [container.lines[0].get_ydata().tolist() for container in figure.axes[0].containers]
    plt.close(figure)
    assert lines
    assert drawn[0] == pytest.approx([105, 210])


def test_the_ideal_speedup_is_drawn() -> None:
    figure, _ = speedup(synthetic_measures())
    [ideal] = [line for line in figure.axes[0].get_lines() if line.get_label() == "ideal"]
    plt.close(figure)
    assert list(ideal.get_xdata()) == list(ideal.get_ydata()) == [1, 2]


def test_axes_carry_units_and_the_kind_of_device(tmp_path: Path) -> None:
    draw("iteration_time", synthetic_measures(), tmp_path / "f")
    text = re.sub(r"<[^>]+>", " ", (tmp_path / "f.svg").read_text())
    for label in ("Time per step (ms)", "Distinct samples per second", "CPU processes"):
        assert label in text


def test_runs_that_did_not_complete_are_counted_over_the_figure(tmp_path: Path) -> None:
    measures = synthetic_measures()
    measures.loc[0, "outcome"] = "out_of_memory"
    draw("phases", measures, tmp_path / "f")
    assert "Not shown: 1 out_of_memory" in (tmp_path / "f.svg").read_text()


def test_when_no_run_completed_the_figure_says_so(tmp_path: Path) -> None:
    draw("speedup", synthetic_measures().assign(outcome="failed"), tmp_path / "f")
    svg = (tmp_path / "f.svg").read_text()
    assert "No run completed" in svg
    assert "Not shown: 10 failed" in svg


def named(*changes: dict[str, Any]) -> list[str]:
    rows = pd.DataFrame([VisionParameters(**change).model_dump() for change in changes])
    return labels(rows, varied(rows, besides=("devices", "repeat")))


def test_series_are_named_by_what_varies_in_words() -> None:
    assert named({"loader": "torch"}, {"loader": "dali"}) == ["DataLoader", "DALI"]
    assert named({"layout": "nchw"}, {"layout": "nhwc"}) == ["NCHW", "NHWC"]
    assert named({"pin_memory": True}, {"pin_memory": False}) == ["pin memory", "no pin memory"]
    assert named({"image_size": 100, "precision": "fp64"}, {"image_size": 200}) == ["100 px, fp64", "200 px, fp32"]


def test_what_a_preset_brings_is_not_named_again() -> None:
    assert named({}, {"preset": "tuned"}) == ["paper settings", "tuned settings"]
    both = named({}, {"preset": "tuned"}, {"preset": "tuned", "layout": "nchw"})
    assert both == ["NCHW, paper settings", "NHWC, tuned settings", "NCHW, tuned settings"]


def test_an_axis_says_when_devices_share_a_batch() -> None:
    figure, _ = speedup(synthetic_measures().assign(scaling="strong"))
    assert figure.axes[0].get_xlabel() == "CPU processes, one batch for all"
