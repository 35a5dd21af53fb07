"""Figures of scripts: series are named by the script's own parameters, as the user calls them."""

from typing import Any

import pandas as pd
import pytest

from figures.measured import closed, heading, legend, words
from multicard.analysis.scaling.speedup import add_scaling
from multicard.experiment.figures import FIGURES
from multicard.experiment.load import check
from multicard.experiment.parameters import as_columns
from multicard.figures.scaling import iteration_time, speedup
from multicard.figures.series import labels, unit
from multicard.figures.style import NothingToShow
from multicard.workloads.script.workload import WORKLOAD, default_figures
from script_runs import configuration, parameters_of_all, speeds


def synthetic(config: dict[str, Any] | None = None, known: bool = True) -> pd.DataFrame:
    """Measures of all runs of a scenario, by `script_runs.speeds`."""
    rows = []
    for number, p in enumerate(parameters_of_all(config or configuration())):
        rate = p.devices * p.args["batch_size"] / speeds(p) if known else None
        rows.append(
            {"run": f"synthetic{number}", "outcome": "completed", "reason": None, **as_columns(p.model_dump())}
            | {"iteration_time_s": speeds(p), "steps_per_s": 1 / speeds(p), "throughput_samples_per_s": rate}
        )
    return add_scaling(pd.DataFrame(rows))


SERIES = ["batch_size 32, amp none", "batch_size 32, amp bf16", "batch_size 64, amp none", "batch_size 64, amp bf16"]


def drawn(axes: Any) -> dict[str, list[float]]:
    return {line.get_label(): line.lines[0].get_ydata().tolist() for line in axes.containers}


def test_series_are_the_own_parameters_and_values_those_of_the_closed_form() -> None:
    figure, data = iteration_time(synthetic())
    left, right = closed(figure).axes
    assert legend(figure) == [SERIES]
    assert drawn(left)["batch_size 64, amp bf16"] == pytest.approx([32, 40])  # ms: 64 × 0.5, and 8 more
    assert drawn(right)["batch_size 64, amp bf16"] == pytest.approx([64 / 0.032, 128 / 0.040])
    assert {"args.batch_size", "args.amp"} <= set(data)
    figure, data = speedup(synthetic())
    [axes] = closed(figure).axes
    assert drawn(axes)["batch_size 32, amp none"] == pytest.approx([1, 2 * 32 / 40])
    assert data.loc[data["series"] == "batch_size 32, amp none", "efficiency"].tolist() == pytest.approx([1, 32 / 40])
    assert "80%" in words(axes) and heading(axes) == "Speed-up, labelled with the efficiency"


def test_throughput_is_in_steps_where_samples_are_not_known() -> None:
    figure, data = iteration_time(synthetic(known=False))
    _, right = closed(figure).axes
    assert (heading(right), right.get_ylabel()) == ("Throughput in steps", "Steps per second")
    assert drawn(right)["batch_size 32, amp none"] == pytest.approx([1 / 0.032, 1 / 0.040])
    assert "steps_per_s" in data
    with pytest.raises(NothingToShow, match="state samples_per_step"):
        speedup(synthetic(known=False))


def test_a_series_in_which_nothing_varies_is_named_by_the_command() -> None:
    rows = synthetic(configuration(vary={"devices": [1, 2], "args": {"batch_size": [32], "amp": ["none"]}}))
    assert set(labels(rows, [])) == {"train.py --batch-size '{batch_size}' …"}


@pytest.mark.parametrize(
    ("value", "label"),
    [
        (32, "x 32"), (32.0, "x 32"), (1e-05, "x 1e-05"), ("bf16", "x bf16"), (True, "x"), (False, "no x"),
        ("$a$", r"x \$a\$"), ("two\nlines", "x two lines"), ("a" * 50, "x " + "a" * 39 + "…"),
    ],
)  # fmt: skip
def test_own_values_are_shown_as_they_are_and_never_as_formulas(value: Any, label: str) -> None:
    assert unit("args.x", value) == label


def test_a_parameter_of_another_script_names_no_series() -> None:
    rows = pd.DataFrame({"launcher": "auto", "command": ["a.py", "b.py"], "args.lr": [0.1, None], "args.n": [None, 2]})
    assert labels(rows, ["command", "args.lr", "args.n"]) == ["a.py, lr 0.1", "b.py, n 2"]


@pytest.mark.parametrize(("several", "device"), [(True, "cpu"), (False, "cuda")])
def test_the_figures_that_a_script_gets_by_default_are_accepted(several: bool, device: str) -> None:
    names = default_figures(several, device)
    assert all(FIGURES[name].workload in (None, WORKLOAD.name) for name in names)
    vary = {"devices": [1, 2] if several else [2], "args": {"batch_size": [32], "amp": ["none"]}}
    config = configuration(vary=vary, figures=list(names))
    config["scenarios"]["ours"]["fixed"]["device"] = device
    check(config, "mine.yaml", outside=False)
