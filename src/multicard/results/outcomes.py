"""The table of outcomes, runs.csv: a row per planned run of a scenario, whether it ran or not."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import pandas as pd

from multicard.core.layout import NOT_RUN
from multicard.core.reasons import describe_reason
from multicard.core.values import Cell, Row
from multicard.results.conditions import disturbance_of
from multicard.results.run_files import RunFiles


def outcome_of(run: Path | RunFiles) -> Row:
    """Return the row in the table of outcomes of a run that has a record."""
    record = RunFiles.of(run).record
    return {
        "run": record.run,
        "outcome": record.outcome,
        "reason": describe_reason(record.reason),
        "started": record.started,
        "wall_time_s": record.wall_time_s,
        "host": record.host.name if record.host else None,
        "profiler": record.profiler.used,
        "trace_missing": record.profiler.trace_missing,
        "block": record.parameters.repeat,
        "planned_position": record.order.position if record.order else None,
        "disturbance": disturbance_of(record),
    }


def outcome_table(rows: Iterable[Mapping[str, Cell]], not_run: Mapping[str, str]) -> pd.DataFrame:
    """Return a table with one row per run of a scenario: its outcome and reason, and when, where and how it ran.

    `rows`: those that `outcome_of` returned, of the runs with a record. `not_run`: for each other run, by its id, the
    reason why it was not run; its outcome is `not run`.
    """
    columns = ["run", "outcome", "reason", "started", "wall_time_s", "host", "profiler", "trace_missing", "block"]
    columns += ["planned_position", "disturbance"]
    without_record = ({"run": run, "outcome": NOT_RUN, "reason": reason} for run, reason in not_run.items())
    table = pd.DataFrame([*rows, *without_record], columns=columns)
    return table.astype({"block": "Int64", "planned_position": "Int64"})
