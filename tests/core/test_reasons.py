"""Reasons are recorded as facts and worded where they are shown."""

import json
from pathlib import Path
from typing import Any

import pytest

from multicard.analysis.runs.run_files import read_record
from multicard.core.errors import UserError
from multicard.core.reasons import Reason, describe_reason


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        (Reason("error", rank=1, node="n2", message="ValueError: x"), "rank 1 on n2: ValueError: x"),
        (Reason("diverged", rank=0, loss="inf", step=9), "rank 0: the loss is inf at step 9"),
        (Reason("timed_out", time_limit_s=90.0), "exceeded its time limit of 1.5 min"),
        (Reason("killed", rank=0, signal="SIGKILL"), "rank 0: killed by SIGKILL, as Linux does when memory runs out"),
        (
            Reason("exited", exit_code=3, unreported=[{"rank": 0}, {"rank": 1, "node": "n2"}]),
            "exit code 3; rank 0, 1 on n2 exited without reporting",
        ),
        (Reason("cannot_run", node="n1", message="needs a CUDA GPU"), "cannot run on n1: needs a CUDA GPU"),
        (Reason("killed"), "killed by ?"),
    ],
)
def test_a_reason_is_worded_by_its_facts(reason: Reason, text: str) -> None:
    assert describe_reason(json.loads(json.dumps(reason.record()))) == text


def test_reasons_of_other_versions_are_readable() -> None:
    assert describe_reason("rank 1 was lost") == "rank 1 was lost"  # before reasons had fields
    assert describe_reason({"code": "lost_its_power", "rank": 2}) == "rank 2: lost its power"  # a later code
    assert describe_reason(None) is None


RECORD = {"run": "r", "outcome": "failed", "parameters": {"workload": "vision"}, "profiler": {"used": "none"}}


def test_a_record_is_read_unless_its_reason_has_another_form(tmp_path: Path) -> None:
    def read(reason: Any) -> Any:
        (tmp_path / "run.json").write_text(json.dumps(RECORD | {"reason": reason}))
        return read_record(tmp_path)["reason"]

    for reason in (None, "as text", {"code": "killed", "rank": 1, "signal": "SIGSEGV"}):
        assert read(reason) == reason
    with pytest.raises(UserError, match="reason"):
        read(3)
