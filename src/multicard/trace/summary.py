"""Activity tables in short: a few rows per process or device where a table has one per step or sample."""

from collections.abc import Callable
from statistics import fmean, median
from typing import Any

from multicard.core.text import counted

Row = dict[str, Any]
Rows = list[Row]

# Tables of a summary, the most asked for first.
SUMMARY = (
    "timeline", "shares", "phases", "kernel_classes", "kernels", "collectives", "message_sizes", "stragglers",
    "launches", "memory_operations", "cuda_api", "ranges",
)  # fmt: skip


def summarized(name: str, rows: Rows) -> Rows:
    """Return the rows of a table in short, if it has a shorter form; those with the longest total come first."""
    shorten = _SHORTER.get(name)
    if shorten is not None:
        rows = shorten(rows)
    if rows and "total_s" in rows[0]:
        return sorted(rows, key=lambda row: -row["total_s"])
    return rows


def _phase_means(rows: Rows) -> Rows:
    """Return mean and median duration per process and phase, in the order of the phases."""
    means: Rows = []
    for key, phase_rows in _grouped(rows, ("report", "rank", "process", "phase")):
        durations = [row["duration_s"] for row in phase_rows]
        means.append(
            key
            | {
                "times": len(durations),
                "mean_s": fmean(durations),
                "median_s": median(durations),
                "total_s": sum(durations),
            }
        )
    return means


def _capture_and_steps(rows: Rows) -> Rows:
    """Return for each device the capture or all steps, and the mean over its steps: the parts of a mean add up."""
    shorter: Rows = []
    for _, device_rows in _grouped(rows, ("report", "rank", "process", "device")):
        shorter += [row for row in device_rows if row["scope"] != "step"]
        steps = [row for row in device_rows if row["scope"] == "step"]
        if steps:
            shorter.append(_mean_step(steps))
    return [{name: value for name, value in row.items() if name not in ("step", "start_s")} for row in shorter]


def _mean_step(steps: Rows) -> Row:
    """Return the first step with the mean times of all; a time that was not recorded stays None."""
    mean = dict(steps[0])
    for name, value in steps[0].items():
        if name.endswith("_s") and value is not None:
            mean[name] = fmean(step[name] for step in steps)
    mean["scope"] = f"mean of {counted(len(steps), 'step')}"
    return mean


def _grouped(rows: Rows, columns: tuple[str, ...]) -> list[tuple[Row, Rows]]:
    """Return the rows with equal values in some columns, and these values by column, in the order of the rows."""
    groups: dict[tuple[Any, ...], Rows] = {}
    for row in rows:
        groups.setdefault(tuple(row[column] for column in columns), []).append(row)
    return [(dict(zip(columns, values, strict=True)), members) for values, members in groups.items()]


_SHORTER: dict[str, Callable[[Rows], Rows]] = {"phases": _phase_means, "timeline": _capture_and_steps}
