"""What parts of a step cost, by runs that went without them; and that such runs count nowhere else."""

from pathlib import Path

import pytest

from figures.measured import gathered, measured
from multicard.analysis.ablation import as_table, costs, lines, with_loading
from multicard.analysis.choice.choices import choices
from multicard.analysis.choice.recommend import advise, as_markdown
from multicard.analysis.evidence import Evidence, evidence_of
from multicard.analysis.runs.breakdown import COLUMNS, COMPUTE, EITHER
from multicard.analysis.runs.notices import notices
from multicard.analysis.scaling.headline import headline
from multicard.analysis.scenario_tables import ScenarioTables

# Seconds per step of two repeats, by devices and what is left out; the second is slower in all by as much.
STEPS = {
    (1, "none"): (0.050, 0.060), (1, "loader"): (0.020, 0.024),
    (2, "none"): (0.080, 0.096), (2, "loader"): (0.0801, 0.0962), (2, "communication"): (0.040, 0.048),
    (2, "loader+communication"): (0.008, 0.0096),
}  # fmt: skip


@pytest.fixture
def tables(tmp_path: Path) -> ScenarioTables:
    rows = [
        {
            "command": ["train.py"], "devices": devices, "ablate": part, "repeat": repeat, "iteration_time_s": step_s,
            "throughput_samples_per_s": 8 * devices / step_s, "data_share": 0.1,
            COLUMNS[COMPUTE if devices == 1 else EITHER]: 0.9,
            "loader_alone_s": 0.015 * (1.2 if repeat == 2 else 1) if "loader" in part else None,
            "loader_workers": 3 if "loader" in part else None,
        }
        for (devices, part), times in STEPS.items()
        for repeat, step_s in enumerate(times, 1)
    ]  # fmt: skip
    return gathered(tmp_path / "scenarios/mine", measured("script", *rows))


@pytest.fixture
def evidence(tables: ScenarioTables) -> Evidence:
    return evidence_of(tables)


def test_costs_are_ratios_of_rates_and_what_they_save(evidence: Evidence) -> None:
    table = as_table(costs(evidence)).set_index(["devices", "without"])
    expected = {(1, "loading"): 2.5, (2, "communication"): 2.0, (2, "loading and communication"): 10.0}
    for where, ratio in expected.items():
        row = table.loc[where]
        assert row["speedup_without"] == pytest.approx(ratio)
        assert row["cost_share"] == pytest.approx(1 - 1 / ratio)
        assert row["cost_share_low"] <= row["cost_share"] <= row["cost_share_high"]
        assert row["repeats"] == 2
    assert len(table) == 4


def test_words_say_what_costs_time_and_what_does_not_and_how_many_workers_are_enough(evidence: Evidence) -> None:
    one, two = lines(costs(evidence))
    assert "without loading 2.5" in one and "loading costs 60% of the time" in one
    # Three workers together take 15 ms to load what a step of 20 ms needs, so one of them takes 45 ms.
    assert "3 workers per rank are enough (now 3)" in one
    # Geometric means of the repeats: a batch in 16.4 ms and a step of 21.9 ms, if they overlap and if they take turns.
    assert "together 21.9 ms to 38.3 ms" in one
    assert "loading and communication cost 90% of the time" in two
    assert two.split("without loading ")[1].split(";")[0].endswith(": no cost shown")
    assert "worker" not in two


@pytest.mark.parametrize(
    "alone, synthetic, real", [(84.5, 481.6, 83.2), (234, 415, 167), (944, 593, 578), (930, 820, 666)]
)
def test_loading_and_training_together_take_what_an_a100_took(alone: float, synthetic: float, real: float) -> None:
    """Samples per second of a loader alone, of training on synthetic batches, and of both (a public tutorial)."""
    low, high = with_loading(1 / synthetic, 1 / alone)
    assert low <= 1 / real <= high


def test_what_was_measured_counts_in_advice_in_place_of_shares(evidence: Evidence) -> None:
    said = as_markdown(evidence, verbose=False)
    assert "What parts cost, measured: 2 CPU processes" in said
    assert "data loading; about" not in said
    # The step of a CPU does not tell communication from computing; the run without it does.
    assert "since communication costs 50% of the time, measured" in said
    [job] = advise(evidence).jobs
    assert ("Cost of communication, measured", "50%") in [tile[:2] for tile in job.tiles]


def test_runs_that_trained_nothing_are_marked_and_count_nowhere_else(
    tables: ScenarioTables, evidence: Evidence
) -> None:
    assert set(tables.measures["ablate"]) == {"none"} and len(tables.measures) == 4
    assert len(tables.completed) == 4 and len(tables.ablated) == 8
    assert {each["ablate"] for each in evidence.configurations} == {"none"}
    assert [row.devices for job in choices(evidence) for row in job.rows] == [1, 2]
    assert headline(evidence).varied == ("devices",)
    for row in tables.ablated.to_dict("records"):
        assert any(notice.startswith("ablated: ") for notice in notices(row))


def test_without_such_runs_nothing_is_said(tmp_path: Path) -> None:
    rows = [{"command": ["train.py"], "devices": each, "iteration_time_s": 0.1} for each in (1, 2)]
    found = costs(evidence_of(gathered(tmp_path, measured("script", *rows))))
    assert found == [] and lines(found) == [] and as_table(found).empty
