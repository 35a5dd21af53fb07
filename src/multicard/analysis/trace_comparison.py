"""Two traces compared: what got slower or faster, largest difference first."""

from typing import Any

from multicard.trace.tables import STEP, ActivityTables

PARTS = {"phases": "phase", "kernel_classes": "class", "memory_operations": "operation", "cuda_api": "function"}

COLUMNS = ("table", "name", "a_s", "b_s", "difference_s", "ratio")


def compare_captures(a: ActivityTables, b: ActivityTables) -> tuple[list[dict[str, Any]], str]:
    """Compare the activity tables of two captures.

    Seconds are means over processes of the summed durations: per step where both captures show steps, else over the
    whole capture; the second value says which. Durations that overlap add up, so a difference is work saved, not
    wall time saved. A name that is in one capture only has an empty time in the other. Rows are ordered by the size of
    the difference, one-sided rows by their time. One capture of each gives no interval: small differences may be noise.

    Columns: `COLUMNS`; ratio is b over a.
    """
    steps = _steps_per_process(a), _steps_per_process(b)
    per_step = None not in steps
    rows = []
    for table, name in PARTS.items():
        if table in a.rows and table in b.rows:
            before, after = (
                _seconds(side.rows[table], name, n if per_step else 1.0) for side, n in zip((a, b), steps, strict=True)
            )
            for text in dict.fromkeys((*before, *after)):
                one, other = before.get(text), after.get(text)
                both = one is not None and other is not None
                rows.append(
                    {
                        "table": table,
                        "name": text,
                        "a_s": one,
                        "b_s": other,
                        "difference_s": other - one if both else None,
                        "ratio": other / one if both and one else None,
                    }
                )
    rows.sort(key=lambda row: (-_size(row), row["table"], row["name"]))
    return rows, "per step" if per_step else "whole capture"


def _size(row: dict[str, Any]) -> float:
    found = (row["difference_s"], row["a_s"], row["b_s"])
    return next(abs(value) for value in found if value is not None)


def _steps_per_process(found: ActivityTables) -> float | None:
    """Number of steps that a capture shows per process; None when it shows none."""
    steps = [row for row in found.rows.get("phases", []) if row["phase"] == STEP]
    return len(steps) / _processes(steps) if steps else None


def _processes(rows: list[dict[str, Any]]) -> int:
    return len({(row["report"], row["process"]) for row in rows})


def _seconds(rows: list[dict[str, Any]], name: str, steps: float) -> dict[str, float]:
    """Mean over processes of the seconds per name."""
    value = "duration_s" if name == "phase" else "total_s"
    sums: dict[str, float] = {}
    for row in rows:
        sums[row[name]] = sums.get(row[name], 0.0) + row[value]
    return {text: seconds / _processes(rows) / steps for text, seconds in sums.items()}
