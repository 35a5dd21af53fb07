"""The report of one rank, rank.json: the training process writes it, and the launcher reads it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, TypeAdapter

from multicard.core.reasons import Reason
from multicard.runs.reading import read_model
from multicard.runs.record import (
    Binding,
    GpuIdentity,
    Hardware,
    Host,
    Observed,
    OperationCount,
    Outcome,
    ProfiledWindowRecord,
    RecordPart,
)


class RankReport(RecordPart):
    """How a rank ended, and what it measured. In the report of a rank that failed early, most fields are None."""

    rank: int
    outcome: Outcome
    reason: Reason | None = None
    ended_early: bool = Field(False, description="It has measured all, and then left by itself.")
    pid: int | None = None
    host: Host | None = None
    hardware: Hardware | None = None
    versions: dict[str, str | None] | None = None
    gpus: tuple[GpuIdentity, ...] | None = None
    binding: Binding | None = None
    intraop_threads: int | None = None
    steps_per_pass: int | None = None
    profiled_window: ProfiledWindowRecord | None = None
    windows: tuple[tuple[float, float], ...] | None = None
    operations: OperationCount | None = None
    trace_problem: str | None = Field(None, description="Why the rank has no trace.")
    observed: Observed | None = None


_REASON = TypeAdapter(Reason)


def reason_from(values: Mapping[str, Any]) -> Reason:
    """Return the reason whose fields are `values`, as parsed from JSON, for example from process.json.

    Raises `ValidationError` if `values` has other fields, or a value of another type.
    """
    return _REASON.validate_json(json.dumps(values))


def read_rank_report(path: Path) -> RankReport:
    """Read rank.json.

    Raises `UserError` if the file is missing or is not the report of a rank, because another program wrote it.
    """
    return read_model(path, RankReport, "not the report of a rank: ")
