"""Shorten activity tables: a table with rows for each step gets a few rows for each process or device instead."""

from collections.abc import Callable
from statistics import fmean, median

from multicard.core.text import counted
from multicard.core.values import Cell, Row, number_of

Rows = list[Row]

# Names of the tables that a summary consists of, in its order: the most wanted table first.
SUMMARY = (
    "timeline", "shares", "phases", "kernel_classes", "kernels", "collectives", "message_sizes", "stragglers",
    "launches", "memory_operations", "cuda_api", "ranges",
)  # fmt: skip


def summarized(name: str, rows: Rows) -> Rows:
    """Return the rows of a table, in short if `_SHORTER` has a function for it.

    Rows with the column `total_s` are sorted by it, longest first. Others keep their order.
    """
    shorten = _SHORTER.get(name)
    if shorten is not None:
        rows = shorten(rows)
    if rows and "total_s" in rows[0]:
        return sorted(rows, key=lambda row: -number_of(row["total_s"]))
    return rows


def _phase_means(rows: Rows) -> Rows:
    """Return a row for each process and phase with the mean and median duration, in the order of their first rows."""
    means: Rows = []
    for key, phase_rows in _grouped(rows, ("report", "rank", "process", "phase")):
        durations = [number_of(row["duration_s"]) for row in phase_rows]
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
    """Return for each device its row about the capture or all steps, and a row with the mean of its steps.

    It is the mean and not the median, because the means of the parts of a step add up to the mean of the whole.
    """
    shorter: Rows = []
    for _, device_rows in _grouped(rows, ("report", "rank", "process", "device")):
        shorter += [row for row in device_rows if row["scope"] != "step"]
        steps = [row for row in device_rows if row["scope"] == "step"]
        if steps:
            shorter.append(_mean_step(steps))
    return [{name: value for name, value in row.items() if name not in ("step", "start_s")} for row in shorter]


def _mean_step(steps: Rows) -> Row:
    """Return the row of the first step, with the mean over all steps for each time; a time that is None stays None."""
    mean = dict(steps[0])
    for name, value in steps[0].items():
        if name.endswith("_s") and value is not None:
            mean[name] = fmean(number_of(step[name]) for step in steps)
    mean["scope"] = f"mean of {counted(len(steps), 'step')}"
    return mean


def _grouped(rows: Rows, columns: tuple[str, ...]) -> list[tuple[Row, Rows]]:
    """Group rows that have equal values in some columns.

    Return for each group these values by column, and its rows. Groups are in the order of their first rows.
    """
    groups: dict[tuple[Cell, ...], Rows] = {}
    for row in rows:
        groups.setdefault(tuple(row[column] for column in columns), []).append(row)
    return [(dict(zip(columns, values, strict=True)), members) for values, members in groups.items()]


_SHORTER: dict[str, Callable[[Rows], Rows]] = {"phases": _phase_means, "timeline": _capture_and_steps}
