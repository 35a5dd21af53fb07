"""What of a run differs from its parameters, or went wrong at its end, is said in words."""

from typing import Any

import pytest

from multicard.analysis.deviations import deviation, tear_down_problem

HIT = {"compile_limits_hit": [{"limit": "recompile_limit", "value": 8, "functions": 1}]}


def record(*ranks: dict[str, Any], devices: int = 2, **fields: Any) -> dict[str, Any]:
    numbered = [{"rank": number} | rank for number, rank in enumerate(ranks)]
    return {"outcome": "completed", "parameters": {"devices": devices}, "ranks": numbered} | fields


def on(*uuids: str) -> dict[str, Any]:
    return {"gpus": [{"uuid": uuid, "name": "H100"} for uuid in uuids]}


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({}, None),
        (record({}, {}), None),  # from before this was recorded
        (record({"gpus": None, "compile_limits_hit": []}, {}), None),
        (record(on("a"), on("b")), None),
        (record(on("a", "b")), None),
        (record(on("a"), on("a")), "2 devices shared 1 distinct GPU"),
        (record(on("a"), on("a"), on("b"), devices=3), "3 devices shared 2 distinct GPUs"),
        (
            record(HIT, HIT),
            "compiled in part only: torch.compile hit its recompile_limit (8), and runs the rest uncompiled",
        ),
    ],
)
def test_a_deviation_is_told_by_what_the_ranks_recorded(found: dict[str, Any], words: str | None) -> None:
    assert deviation(found) == words


def test_a_problem_at_the_end_of_a_completed_run_is_told() -> None:
    stuck = {"tear_down_problem": "it hung"}
    assert tear_down_problem(record({}, stuck)) == "rank 1: it hung"
    assert tear_down_problem(record({}, {}, ended_at_time_limit=True)) == (
        "its processes did not exit after all ranks had finished, and were ended at the time limit"
    )
    assert tear_down_problem(record({}, left_behind=["python", "sh"], ended_at_time_limit=True)) == (
        "ended 2 processes that the script left running (python, sh)"
    )
    assert tear_down_problem(record({}, {}, ended_at_time_limit=False)) is None
    assert tear_down_problem(record({}, {})) is None
    assert tear_down_problem(record({}, outcome="timed_out", ended_at_time_limit=True)) is None
