"""Activity tables in short: a few rows per process or device where a table has one per step or sample."""

from collections.abc import Callable
from statistics import fmean, median
from typing import Any

from multicard.core.text import counted

Rows = list[dict[str, Any]]

# Tables of a summary, the most asked for first.
SUMMARY = (
    "timeline", "shares", "phases", "kernel_classes", "kernels", "collectives", "message_sizes", "stragglers",
    "launches", "memory_operations", "cuda_api", "ranges",
)  # fmt: skip


def summarized(name: str, rows: Rows) -> Rows:
    """Rows of a table in short, where there is a shorter form; those with the longest total first."""
    rows = _SHORTER.get(name, lambda rows: rows)(rows)
    return sorted(rows, key=lambda row: -row["total_s"]) if rows and "total_s" in rows[0] else rows


def _phase_means(rows: Rows) -> Rows:
    """Mean and median duration per process and phase, in the order of the phases."""
    groups: dict[tuple[Any, ...], list[float]] = {}
    for row in rows:
        key = tuple(row[name] for name in ("report", "rank", "process", "phase"))
        groups.setdefault(key, []).append(row["duration_s"])
    return [
        dict(zip(("report", "rank", "process", "phase"), key, strict=True))
        | {"times": len(values), "mean_s": fmean(values), "median_s": median(values), "total_s": sum(values)}
        for key, values in groups.items()
    ]


def _capture_and_steps(rows: Rows) -> Rows:
    """The capture or all steps of each device, and the mean over its single steps: the parts of a mean add up."""
    shorter: Rows = []
    places = ("report", "rank", "process", "device")
    for key in dict.fromkeys(tuple(row[name] for name in places) for row in rows):
        own = [row for row in rows if tuple(row[name] for name in places) == key]
        shorter += [row for row in own if row["scope"] != "step"]
        steps = [row for row in own if row["scope"] == "step"]
        if steps:
            times = [name for name in steps[0] if name.endswith("_s")]
            means = {n: fmean(row[n] for row in steps) if steps[0][n] is not None else None for n in times}
            shorter.append(steps[0] | means | {"scope": f"mean of {counted(len(steps), 'step')}"})
    return [{name: value for name, value in row.items() if name not in ("step", "start_s")} for row in shorter]


_SHORTER: dict[str, Callable[[Rows], Rows]] = {"phases": _phase_means, "timeline": _capture_and_steps}
