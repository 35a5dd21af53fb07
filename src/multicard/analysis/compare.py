"""Two traces compared: what got slower or faster, largest effect first."""

import pandas as pd
import pyarrow as pa

PARTS = {"phases": "phase", "kernel_classes": "class", "memory_operations": "operation", "cuda_api": "function"}

COLUMNS = ["table", "name", "a_s", "b_s", "difference_s", "ratio"]


def steps_per_process(tables: dict[str, pa.Table]) -> float | None:
    """Number of steps that a capture shows per process; None when it shows none."""
    if "phases" not in tables:
        return None
    phases = tables["phases"].to_pandas()
    steps = phases[phases["phase"] == "step"]
    return len(steps) / steps["process"].nunique() if len(steps) else None


def compare(a: dict[str, pa.Table], b: dict[str, pa.Table]) -> tuple[pd.DataFrame, str]:
    """Compare the activity tables of two captures.

    Seconds are means over processes of the summed durations: per step where both captures show steps, else over the
    whole capture; the second value says which. Durations that overlap add up, so a difference is work saved, not
    wall time saved. A name that one capture lacks has an empty time there. Rows are ordered by the size of the
    difference, one-sided rows by their time. One capture each gives no interval: small differences may be chance.

    Columns: `COLUMNS`; ratio is b over a.
    """
    steps = steps_per_process(a), steps_per_process(b)
    per_step = None not in steps
    rows = []
    for table, name in PARTS.items():
        if table in a and table in b:
            times = [_seconds(side[table], name, n if per_step else 1.0) for side, n in zip((a, b), steps, strict=True)]
            joined = pd.concat(times, axis=1, keys=["a_s", "b_s"]).rename_axis("name").reset_index()
            rows.append(joined.assign(table=table))
    if not rows:
        return pd.DataFrame(columns=COLUMNS), "per step" if per_step else "whole capture"
    found = pd.concat(rows, ignore_index=True)
    found["difference_s"] = found["b_s"] - found["a_s"]
    found["ratio"] = found["b_s"] / found["a_s"]
    effect = found["difference_s"].fillna(found["a_s"]).fillna(found["b_s"]).abs()
    order = effect.sort_values(ascending=False, kind="stable").index
    return found.loc[order, COLUMNS].reset_index(drop=True), "per step" if per_step else "whole capture"


def _seconds(table: pa.Table, name: str, steps: float) -> pd.Series:
    """Mean over processes of the seconds per name."""
    frame = table.to_pandas()
    value = "duration_s" if name == "phase" else "total_s"
    return frame.groupby(name)[value].sum() / frame["process"].nunique() / steps
