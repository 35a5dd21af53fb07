"""Doubts about a run reach its reader: in the lines above figures, and in the report's table of runs."""

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from figures.measured import gathered, measured, pictures, texts
from multicard.answers.notes import notes
from multicard.config.figures import FIGURES
from multicard.core.layout import GATHERED_ACTIVITIES
from multicard.figures.catalog import load_drawing
from multicard.figures.style import NothingToShow
from multicard.results.measure import runs_table
from multicard.results.notices import notices
from multicard.results.outcomes import outcome_table
from multicard.results.results import Results

DRIFTING = {"drift": 0.12, "stationary": False}
PILED_UP = {"data_share": 0.26, "profiled_data_share": 0.049, "profiler_overhead": -0.2}
HOST_EXTENTS = {"trace_host_extents": True}
LAUNCHES = "too few launches were recorded, so shares per step may cover the wrong time"
DRIFT = "step time +12% from the first to the second half of the measured steps: drift, or a slow fluctuation"
WINDOW = "steps 20% shorter, data share 4.9% instead of 26%"


def test_a_notice_says_what_is_the_matter_and_by_how_much() -> None:
    told = {"disturbance": "other processes: 1.6 CPUs"}
    assert notices(DRIFTING | PILED_UP | HOST_EXTENTS | told) == [
        "disturbed: other processes: 1.6 CPUs",
        f"not stationary: {DRIFT}",
        f"profiled window unlike the measured one: {WINDOW}",
        f"steps of a GPU timed on the host: {LAUNCHES}",
    ]
    unknown = dict.fromkeys(("profiled_data_share", "disturbance"), float("nan")) | {"stationary": None}
    for row in (
        {},
        {"stationary": True, "data_share": 0.3, "profiled_data_share": 0.25, "profiler_overhead": 0.4},
        unknown,
    ):
        assert notices(row) == []


def test_figures_say_which_runs_are_in_doubt_and_those_of_the_profiled_window_also_where_it_is(tmp_path: Path) -> None:
    def said(*rows: dict[str, Any], profiled: bool = False) -> str:
        return "; ".join(notes(gathered(tmp_path, measured("vision", *rows)), profiled=profiled))

    assert said({}, {"disturbance": "a"}) == "Disturbed: 1 of 2 runs (a)"
    assert said({"disturbance": "a"}, {"disturbance": "b"}) == "Disturbed: 2 of 2 runs (e.g. a)"
    drifting = {"stationary": True}, DRIFTING, DRIFTING | {"outcome": "failed"}
    assert said(*drifting) == f"Runs without numbers: 1 failed; Not stationary: 1 of 2 runs ({DRIFT})"
    piled_up = {}, PILED_UP, PILED_UP
    assert said(*piled_up) == ""
    assert f"unlike the measured one: 2 of 3 runs ({WINDOW})" in said(*piled_up, profiled=True)
    traced = {"trace_host_extents": False}, HOST_EXTENTS, HOST_EXTENTS, {}
    assert said(*traced) == ""
    assert "timed on the host: 2 of 4 runs" in said(*traced, profiled=True)


@dataclass(frozen=True, eq=False)
class Asked(Results):
    """Results that note which tables a figure asks for."""

    names: set[str] = field(default_factory=set)

    def table(self, name: str) -> pd.DataFrame:
        """Note the name."""
        self.names.add(name)
        return super().table(name)


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_that_reads_a_trace_is_one_of_the_profiled_window(name: str, tmp_path: Path) -> None:
    results = gathered(tmp_path, pictures() if "vision" in FIGURES[name].workloads else texts())
    asked, drawing = Asked(results.measures, scenarios=results.scenarios), load_drawing(name)
    with contextlib.suppress(NothingToShow):
        drawing.draw(asked)
    plt.close("all")
    of_measures = name in ("utilization", "profiler_overhead")  # which have it from the trace
    assert drawing.profiled == (of_measures or bool(asked.names & set(GATHERED_ACTIVITIES)))


def not_run_here(folder: Path, runs: dict[str, str]) -> Results:
    """Results of a scenario none of whose runs can run here: the reason of each by its id."""
    folder.mkdir(parents=True)
    runs_table([]).to_csv(folder / "measures.csv", index=False)
    outcome_table([], runs).to_csv(folder / "runs.csv", index=False)
    return Results.read_scenario(folder)


def test_a_run_that_two_scenarios_share_and_that_cannot_run_here_counts_once(tmp_path: Path) -> None:
    ours = not_run_here(tmp_path / "ours", {"shared": "needs 4 GPUs, 2 found", "other": "needs 8 GPUs, 2 found"})
    theirs = not_run_here(tmp_path / "theirs", {"shared": "needs 4 GPUs, 2 found"})
    both = Results.joined([ours, theirs])
    assert both.reasons_not_run() == ["needs 4 GPUs, 2 found", "needs 8 GPUs, 2 found"]
    assert notes(both) == ["Runs without numbers: 2 cannot run here"]


def test_results_that_no_scenario_was_read_for_have_no_outcomes() -> None:
    outcomes = Results(runs_table([])).outcomes()
    assert outcomes.empty and list(outcomes) == ["run", "outcome", "reason"]
