"""Reasons are recorded as facts and worded where they are shown."""

from pathlib import Path

import pytest

from factories import make_run, write_run
from multicard.config.read_run import read_run
from multicard.core.errors import UserError
from multicard.core.files import write_json
from multicard.core.reasons import PARTS, Reason, UnreportedRank, describe_reason
from multicard.runs.parameters import ABLATIONS
from multicard.runs.rank_report import reason_from


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        (Reason("error", rank=1, node="n2", message="ValueError: x"), "rank 1 on n2: ValueError: x"),
        (Reason("diverged", rank=0, loss="inf", step=9), "rank 0: the loss is inf at step 9"),
        (Reason("timed_out", time_limit_s=90.0), "exceeded its time limit of 1.5 min"),
        (Reason("killed", rank=0, signal="SIGKILL"), "rank 0: killed by SIGKILL, as Linux does when memory runs out"),
        (
            Reason("exited", exit_code=3, unreported=[UnreportedRank(0), UnreportedRank(1, "n2")]),
            "exit code 3; rank 0, 1 on n2 exited without reporting",
        ),
        (Reason("cannot_run", node="n1", message="needs a CUDA GPU"), "cannot run on n1: needs a CUDA GPU"),
        (Reason("killed"), "killed by ?"),
    ],
)
def test_a_reason_is_worded_by_its_facts(reason: Reason, text: str) -> None:
    assert describe_reason(reason_from(reason.record())) == text


def test_a_later_code_is_worded_by_its_name() -> None:
    assert describe_reason(Reason("lost_its_power", rank=2)) == "rank 2: lost its power"
    assert describe_reason(None) is None


def test_a_record_is_refused_if_its_reason_has_another_form(tmp_path: Path) -> None:
    record = make_run(outcome="failed", reason=Reason("killed", rank=1, signal="SIGSEGV"))
    folder = write_run(tmp_path, record)
    assert read_run(folder) == record
    content = record.as_json()
    for reason, fault in (
        ("as text", "reason: found 'as text', expected a mapping"),
        ({"code": "killed", "rank": "1"}, "reason.rank: found '1', expected a whole number"),
        ({"code": "killed", "colour": 1}, "reason.colour: unknown key"),
    ):
        write_json(folder / "run.json", content | {"reason": reason})
        with pytest.raises(UserError) as refused:
            read_run(folder)
        assert str(refused.value) == f"{folder}/run.json: not the record of a run: {fault}"


def test_a_reason_knows_every_part_that_a_run_may_go_without() -> None:
    assert ("none", *PARTS) == ABLATIONS
