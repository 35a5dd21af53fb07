"""run.json and the report of a rank are read whole, or refused in one line with the file and the key."""

from pathlib import Path
from typing import Any

import pytest

from conftest import refusal
from factories import make_run, write_run
from multicard.config.read_run import read_run, read_run_if_any
from multicard.core.files import write_json
from multicard.programs import PROGRAMS
from multicard.runs.rank_report import RankReport, read_rank_report
from multicard.runs.reading import read_model

RECORD = make_run()


def refusal_of(folder: Path, content: dict[str, Any]) -> str:
    """The line that refuses this content of a run.json, without the path."""
    path = folder / "run.json"
    write_json(path, content)
    line = refusal(lambda: read_run(folder))
    assert line.startswith(f"{path}: ")
    return line.removeprefix(f"{path}: ")


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    folder = write_run(tmp_path, RECORD)
    assert read_run(folder) == RECORD
    assert read_run_if_any(folder) == RECORD
    assert read_run_if_any(tmp_path / "another") is None


@pytest.mark.parametrize(
    ("parameters", "fault"),
    [
        (7, "parameters: found 7, expected a mapping"),
        ({"workload": "audio"}, f"parameters.workload: found 'audio', expected one of {', '.join(PROGRAMS)}"),
        ({"workload": "vision", "devices": 0}, "parameters.devices: found 0, expected 1 or more"),
        ({"workload": "vision", "colour": 1}, "parameters.colour: unknown key"),
    ],
)
def test_parameters_are_checked_by_the_model_of_their_workload(parameters: object, fault: str, tmp_path: Path) -> None:
    content = RECORD.as_json()
    assert refusal_of(tmp_path, content | {"parameters": parameters}) == f"not the record of a run: {fault}"


def test_what_is_not_the_record_of_this_run_is_refused(tmp_path: Path) -> None:
    content = RECORD.as_json()
    without_parameters = {key: value for key, value in content.items() if key != "parameters"}
    for changed, fault in (
        (without_parameters, "parameters: missing"),
        (content | {"wall_time_s": "long"}, "wall_time_s: found 'long', expected a number"),
        (content | {"run": "x"}, f"run: found 'x', expected {RECORD.run!r}, which its parameters make"),
    ):
        assert refusal_of(tmp_path, changed) == f"not the record of a run: {fault}"


def test_a_report_of_a_rank_is_refused_in_the_same_way(tmp_path: Path) -> None:
    path = tmp_path / "rank.json"
    write_json(path, {"rank": 1, "outcome": "completed"})
    assert read_rank_report(path) == read_model(path, RankReport) == RankReport(rank=1, outcome="completed")
    write_json(path, {"rank": 1, "outcome": "bored"})
    fault = "outcome: found 'bored', expected one of "
    assert refusal(lambda: read_rank_report(path)).startswith(f"{path}: not the report of a rank: {fault}")
    assert refusal(lambda: read_model(path, RankReport)).startswith(f"{path}: {fault}")
