"""The report that one rank leaves of itself, rank.json: written in the training process, read by the launcher."""

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
    """How a rank ended, and what it measured; a rank that failed before its first step knows little else."""

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
    """Return a reason by its fields in JSON, such as in process.json.

    Raises `ValidationError` if they are not those of a reason.
    """
    return _REASON.validate_json(json.dumps(values))


def read_rank_report(path: Path) -> RankReport:
    """Read rank.json.

    Raises `UserError` if it is not the report of a rank, as when something else wrote to the folder.
    """
    return read_model(path, RankReport, "not the report of a rank: ")
