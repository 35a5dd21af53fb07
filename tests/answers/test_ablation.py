"""What parts of a step cost, by runs that went without them; and that such runs count nowhere else."""

import re
from pathlib import Path

import pytest

from figures.measured import gathered, measured
from multicard.answers.ablation import as_table, cost_lines, costs, with_loading
from multicard.answers.answer import HOW_MANY, NEXT
from multicard.answers.choice.choices import choices
from multicard.answers.choice.recommend import advise, as_markdown
from multicard.answers.scaling.headline import headline
from multicard.results.breakdown import StepPart
from multicard.results.notices import notices
from multicard.results.results import Results

# Seconds per step of two repeats, by devices and what is left out; the second is slower in all by about a fifth.
STEPS = {
    (1, "none"): (0.050, 0.060), (1, "loader"): (0.020 * 1.01, 0.024 / 1.01),
    (2, "none"): (0.080, 0.096), (2, "loader"): (0.0801, 0.0962), (2, "communication"): (0.040 * 1.01, 0.048 / 1.01),
    (2, "loader+communication"): (0.008 * 1.01, 0.0096 / 1.01),
}  # fmt: skip


@pytest.fixture
def evidence(tmp_path: Path) -> Results:
    rows = [
        {
            "command": ["train.py"], "devices": devices, "ablate": part, "repeat": repeat, "iteration_time_s": step_s,
            "throughput_samples_per_s": 8 * devices / step_s, "data_share": 0.1,
            (StepPart.COMPUTE if devices == 1 else StepPart.COMPUTE_OR_COMMUNICATION).column: 0.9,
            "loader_alone_s": 0.015 * (1.2 if repeat == 2 else 1) if "loader" in part else None,
            "loader_workers": 3 if "loader" in part else None,
        }
        for (devices, part), times in STEPS.items()
        for repeat, step_s in enumerate(times, 1)
    ]  # fmt: skip
    return gathered(tmp_path / "scenarios/mine", measured("script", *rows))


def test_costs_are_ratios_of_rates_and_what_they_save(evidence: Results) -> None:
    table = as_table(costs(evidence)).set_index(["devices", "without"])
    expected = {(1, "loading"): 2.5, (2, "communication"): 2.0, (2, "loading and communication"): 10.0}
    for where, ratio in expected.items():
        row = table.loc[where]
        assert row["speedup_without"] == pytest.approx(ratio)
        assert row["cost_share"] == pytest.approx(1 - 1 / ratio)
        assert row["cost_share_low"] <= row["cost_share"] <= row["cost_share_high"]
        assert row["repeats"] == 2
    assert len(table) == 4


def test_single_parts_come_first_and_of_these_the_one_that_costs_most(tmp_path: Path) -> None:
    """Steps of 100 ms take 90 ms without loading, 50 ms without communication, and 40 ms without both."""
    step_s = {"none": 0.1, "loader": 0.09, "communication": 0.05, "loader+communication": 0.04}
    rows = [
        {"command": ["train.py"], "devices": 2, "ablate": part, "repeat": 1, "iteration_time_s": seconds}
        for part, seconds in step_s.items()
    ]
    [line] = cost_lines(costs(gathered(tmp_path, measured("script", *rows))))
    assert re.findall(r"without ([a-z ]+?) \d", line) == ["communication", "loading", "loading and communication"]


def test_tables_have_no_rows_of_runs_without_a_part_after_such_runs_were_left_out(tmp_path: Path) -> None:
    rows = [{"command": ["train.py"], "devices": 1, "ablate": part} for part in ("none", "loader")]
    steps = [{"run": run, "step": 1, "window": "measured"} for run in ("run0", "run1")]
    results = gathered(tmp_path, measured("script", *rows), steps=steps)
    for left in (results, results.where(lambda measures: measures["ablate"] == "none")):
        assert left.table("steps")["run"].tolist() == ["run0"]
        assert Results.joined([left, left]).table("steps")["run"].tolist() == ["run0"]


def test_words_say_what_costs_time_and_what_does_not_and_how_many_workers_are_enough(evidence: Results) -> None:
    one, two = cost_lines(costs(evidence))
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


def test_what_was_measured_counts_in_advice_in_place_of_shares(evidence: Results) -> None:
    said = as_markdown(evidence, verbose=False)
    assert "What parts cost, measured: 2 CPU processes" in said
    assert "data loading; about" not in said
    # The step of a CPU does not tell communication from computing; the run without it does.
    assert "since communication costs 50% of the time, measured" in said
    [job] = advise(evidence).jobs
    assert ("Cost of communication, measured", "50%") in [tile[:2] for tile in job.tiles]


def test_runs_that_trained_nothing_are_marked_and_count_nowhere_else(evidence: Results) -> None:
    assert evidence.frame()["ablate"].tolist() == ["none"] * 4 and len(evidence.ablated_frame()) == 8
    assert {each["ablate"] for each in evidence.configurations()} == {"none"}
    assert [row.devices for job in choices(evidence) for row in job.rows] == [1, 2]
    assert headline(evidence).question == HOW_MANY
    for row in evidence.ablated_frame().to_dict("records"):
        assert any(notice.startswith("ablated: ") for notice in notices(row))


def test_without_such_runs_nothing_is_said(tmp_path: Path) -> None:
    rows = [{"command": ["train.py"], "devices": each, "iteration_time_s": 0.1} for each in (1, 2)]
    found = costs(gathered(tmp_path, measured("script", *rows)))
    assert found == [] and cost_lines(found) == [] and as_table(found).empty


def advised(folder: Path, parts: dict[str, float], ablate: str, *times: tuple[float, float]) -> list[str]:
    """What to try next for a script on two processes, by its parts and step times of its repeats, with and without."""
    rows = [
        {
            "command": ["train.py"], "devices": 2, "ablate": part, "repeat": repeat, "iteration_time_s": step_s,
            "throughput_samples_per_s": 16 / step_s, "data_share": parts.get("data loading", 0.0),
            **{StepPart(name).column: share for name, share in parts.items()},
        }
        for repeat, both in enumerate(times, 1)
        for part, step_s in zip(("none", ablate), both, strict=True)
    ]  # fmt: skip
    evidence = gathered(folder / "scenarios/mine", measured("script", *rows))
    [job] = advise(evidence).jobs
    return [answer.sentence for answer in job.first_screen if answer.question == NEXT]


LOADING = {"data loading": 0.73, StepPart.COMPUTE_OR_COMMUNICATION: 0.27}


@pytest.mark.parametrize(
    ("times", "is_advised"),
    [
        ([(0.120, 0.0253)], True),  # 4.74 times as fast, of one repeat
        ([(0.120, 0.0253), (0.050, 0.0400)], True),  # an interval that leaves everything open
        ([(0.120, 0.1199), (0.140, 0.1399), (0.110, 0.1099)], False),  # nothing is gained
        ([(0.120, 0.0253), (0.124, 0.0260)], True),
    ],
)
def test_advice_against_a_part_goes_only_where_it_is_shown_that_nothing_can_be_gained(
    times: list[tuple[float, float]], is_advised: bool, tmp_path: Path
) -> None:
    said = advised(tmp_path, LOADING, "loader", *times)
    assert any("more loader workers" in text for text in said) == is_advised, said
    assert said[0].startswith("more loader workers") == is_advised


@pytest.mark.parametrize(
    "parts",
    [
        {StepPart.OTHER: 0.90, StepPart.COMPUTE_OR_COMMUNICATION: 0.10},
        {StepPart.COMPUTE_OR_COMMUNICATION: 0.93, "stalls": 0.07},
    ],
    ids=["gradients averaged by hand", "synchronized batch norm"],
)
@pytest.mark.parametrize("repeats", [1, 2])
def test_advice_is_about_communication_where_runs_without_it_show_that_most_of_the_step_is(
    parts: dict[str, float], repeats: int, tmp_path: Path
) -> None:
    times = [(0.400, 0.052), (0.404, 0.0525)][:repeats]  # 87% of the time
    first, *others = advised(tmp_path, parts, "communication", *times)
    assert "larger batch per device" in first and "communication costs 87% of the time" in first
    # What is left of 90% in no phase is too little for advice; a tenth of the step, or less, is of computing.
    assert not any("py-spy" in each for each in others)
    shares = [float(re.search(r"since ([\d.]+)% of", each)[1]) for each in others]
    assert all(share <= 10 for share in shares), others
