"""Time between two passes over the data, of synthetic runs whose times are stated."""

from pathlib import Path

import pytest

from factories import Row, make_results, recommendations
from multicard.answers.diagnoses.causes import causes_of
from multicard.answers.diagnoses.user_code.code_places import places_of
from multicard.results.results import Results

SCRIPT: Row = {"workload": "script", "command": ["train.py"], "folder": ".", "device": "cpu"}
# Passes of 10 steps of 60 ms.
PASSES: Row = {
    "iteration_time_s": 0.060, "mean_iteration_time_s": 0.060, "elapsed_s": 3.6, "measured_steps": 60,
    "measured_passes": 6, "steps_per_pass": 10, "between_passes_s": 0.300,
}  # fmt: skip
READING = {"phase": "between passes", "site": "train.py:26", "function": "read_samples", "samples_there": 18}


def results_of(folder: Path, *lines: Row, **changes: float | None) -> Results:
    rows = [SCRIPT | PASSES | changes]
    samples = [{"at": 0, "rank": 0, "stack_samples": 40} | line for line in lines]
    return make_results(folder, rows, gpu=None, tables={"code_lines": samples})


def test_time_between_passes_is_told_with_the_line_that_takes_most_of_it(tmp_path: Path) -> None:
    results = results_of(tmp_path, READING, READING | {"site": "train.py:40", "function": "save", "samples_there": 3})
    [found] = causes_of(results.configurations()[0], results)
    assert found.share == pytest.approx(0.3 / (10 * 0.06 + 0.3))
    assert found.evidence == (
        "between two passes of 10 steps it takes 300 ms, which is in no step (33% of the time), mostly at train.py, "
        "line 26 (`read_samples`)"
    )
    assert found.evidence in recommendations(results)
    # Such samples are of no step.
    assert places_of(results.configurations()[0], results, None) == []


def test_a_line_in_a_model_stands_for_the_one_that_evaluates(tmp_path: Path) -> None:
    line = READING | {"site": "net.py:12", "function": "Network.forward", "caller": "train.py:31"}
    results = results_of(tmp_path, line)
    [found] = causes_of(results.configurations()[0], results)
    assert found.evidence.endswith(" of the time), mostly at train.py, line 31")


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [READING | {"samples_there": 2}],
        [READING | {"site": f"train.py:{line}", "samples_there": 6} for line in (26, 27, 28)],
    ],
)
def test_a_line_of_few_samples_is_not_told(lines: list[Row], tmp_path: Path) -> None:
    results = results_of(tmp_path, *lines)
    [found] = causes_of(results.configurations()[0], results)
    assert found.evidence.endswith("in no step (33% of the time)")


def test_passes_of_unknown_length_are_those_measured(tmp_path: Path) -> None:
    results = results_of(tmp_path, steps_per_pass=None)
    [found] = causes_of(results.configurations()[0], results)
    # 5 times 300 ms between the 60 steps of 6 passes.
    assert found.share == pytest.approx(5 * 0.3 / (60 * 0.06 + 5 * 0.3))


@pytest.mark.parametrize(
    "changes",
    [
        {"between_passes_s": 0.03},  # 30 of 630 ms
        {"between_passes_s": None, "measured_passes": 1},
        {"steps_per_pass": 1000},
    ],
)
def test_what_takes_little_of_a_pass_is_not_told(changes: dict[str, float | None], tmp_path: Path) -> None:
    results = results_of(tmp_path, **changes)
    assert causes_of(results.configurations()[0], results) == []
