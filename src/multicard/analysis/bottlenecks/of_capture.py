"""Where the time of a single capture goes, in words: what `multicard analyze` answers with."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from multicard.analysis.runs.breakdown import MOSTLY, OF_TRACE, device_time, overall, per_pitch
from multicard.analysis.runs.step_periods import step_periods
from multicard.core.text import counted, plural
from multicard.core.units import BYTES, SECONDS, percent, with_unit
from multicard.trace.tables import STEP, ActivityTables

SHOWN = 0.001  # of the time, below which a part is not listed
LONGEST = 5  # kernels
FEW = 3  # of whatever else is listed in a line
UNEQUAL = 0.01  # difference of shares from which on they are shown as a range

Rows = Sequence[dict[str, Any]]


@dataclass(frozen=True)
class Answer:
    """Where the time of a capture goes, and in `sentence` the answer.

    `parts`: name, seconds and share of each part of what `over` names (the steps or the capture), the largest first;
    means over GPUs, and of the shares their range where GPUs differ. `kernels`: seconds, share of the time in kernels,
    calls, class and name of the longest, per GPU. `lines`: what else took long, as collectives, copies, calls.
    """

    sentence: str
    parts: list[tuple[str, str, str]]
    over: str
    kernels: list[tuple[str, str, str, str, str]]
    lines: list[str]


def answer(found: ActivityTables) -> Answer:
    """Where the time of a capture goes, by its tables."""
    rows = found.rows
    timeline = pd.DataFrame(rows.get("timeline", []))
    devices = overall(timeline) if len(timeline) else timeline
    if devices.empty or devices["busy_s"].isna().all():
        return Answer(_without_gpus(found), [], "", [], _host(rows, ""))
    gpus = len(devices)
    periods, of_steps = step_periods(found), _of_steps(timeline)
    has_steps = len(periods) > 0 and len(of_steps) > 0
    spans = of_steps if has_steps else devices
    shares = device_time(spans).div(spans["span_s"], axis=0)
    parts = pd.DataFrame({part: shares[list(names)].sum(axis=1) for part, names in OF_TRACE.items()})
    means = parts.mean().sort_values(ascending=False, kind="stable")
    of, span_s = ("step", float(np.median(periods))) if has_steps else ("capture", float(spans["span_s"].mean()))
    where = f"{counted(gpus, 'GPU')}, {len(periods) + 1} steps of {with_unit(span_s, SECONDS)}"
    over = f" in {len(periods) + 1} steps"
    if not has_steps:
        over = f" in {with_unit(span_s, SECONDS)}"
        where = f"{counted(gpus, 'GPU')}{over}, no steps found"
    (first, share), (second, rest) = list(means.items())[:2]
    how = "mostly" if share >= MOSTLY else "largest part"
    sentence = f"{where}: {how} {first} ({percent(share)} of the {of})"
    if rest >= SHOWN:
        sentence += f"; then {second} ({percent(rest)}, {with_unit(rest * span_s, SECONDS)})"
    table = [
        (part, with_unit(mean * span_s, SECONDS), _range(parts[part])) for part, mean in means.items() if mean >= SHOWN
    ]
    lines = [*_collectives(rows, gpus, over), *_copies(rows, gpus, over), *_host(rows, over)]
    return Answer(sentence, table, over, _kernels(rows, gpus), lines)


def _of_steps(timeline: pd.DataFrame) -> pd.DataFrame:
    """Mean durations of a step of each device: from start to start, or of single steps where that is not known."""
    found = per_pitch(timeline)
    if len(found):
        return found
    steps = timeline[timeline["scope"] == STEP]
    return steps.groupby(["report", "process", "device"])[[name for name in steps if name.endswith("_s")]].mean()


def _without_gpus(found: ActivityTables) -> str:
    """What a capture without GPUs tells: the phases of its steps."""
    phases = pd.DataFrame(found.rows.get("phases", []))
    if phases.empty:
        return "cannot tell: no kernels of a GPU were recorded, and no step"
    means = phases.groupby("phase", sort=False)["duration_s"].mean().sort_values(ascending=False)
    count = phases["phase"].eq(STEP).sum()
    steps = f"{counted(count, 'step')} of {with_unit(means[STEP], SECONDS)}" if count else "ranges"
    rest = ", ".join(f"{name} {with_unit(seconds, SECONDS)}" for name, seconds in means.items() if name != STEP)
    return f"no kernels of a GPU were recorded; {steps}{': ' if rest else ''}{rest}"


def _range(shares: pd.Series) -> str:
    least, most = shares.min(), shares.max()
    return f"{percent(least)} to {percent(most)}" if most - least > UNEQUAL else percent(shares.mean())


def _sums(rows: Rows, by: list[str], *more: str) -> list[dict[str, Any]]:
    """Sums by some columns, the longest first: `total_s`, `calls`, and of further columns."""
    if not rows:
        return []
    sums = pd.DataFrame(rows).groupby(by, sort=False, dropna=False)[["total_s", "calls", *more]].sum()
    return sums.sort_values("total_s", ascending=False, kind="stable").reset_index().to_dict("records")


def _took(name: object, row: dict[str, Any], over: int) -> str:
    """What of a GPU or a process took how long, in how many calls."""
    calls = row["calls"] / over
    return f"{name} {with_unit(row['total_s'] / over, SECONDS)} in {calls:,.0f} {plural(round(calls), 'call')}"


def _kernels(rows: dict[str, Rows], gpus: int) -> list[tuple[str, str, str, str, str]]:
    found = _sums(rows.get("kernels", []), ["class", "kernel"])
    total = sum(row["total_s"] for row in found)
    return [
        (
            with_unit(row["total_s"] / gpus, SECONDS), percent(row["total_s"] / total) if total else "",
            f"{row['calls'] / gpus:,.0f}", str(row["class"]).replace("_", " "), str(row["kernel"]),
        )
        for row in found[:LONGEST]
    ]  # fmt: skip


def _collectives(rows: dict[str, Rows], gpus: int, over: str) -> list[str]:
    each = [
        _took("unnamed" if pd.isna(row["collective"]) else row["collective"].replace("_", "-"), row, gpus)
        for row in _sums(rows.get("collectives", []), ["collective"])[:FEW]
    ]
    return [f"Collectives of a GPU{over}: {', '.join(each)}"] if each else []


def _copies(rows: dict[str, Rows], gpus: int, over: str) -> list[str]:
    found = _sums(rows.get("memory_operations", []), ["operation", "host_memory"], "bytes")
    each = [
        f"{row['operation'].replace('_', ' ')}{'' if pd.isna(row['host_memory']) else ' (' + row['host_memory'] + ')'} "
        f"{with_unit(row['bytes'] / gpus, BYTES)} in {with_unit(row['total_s'] / gpus, SECONDS)}"
        + (f", {with_unit(row['bytes'] / row['total_s'], BYTES)}/s" if row["total_s"] else "")
        for row in [row for row in found if row["bytes"] > 0][:FEW]
    ]
    return [f"Copies of a GPU{over}: {'; '.join(each)}"] if each else []


def _host(rows: dict[str, Rows], over: str) -> list[str]:
    calls = [row for row in rows.get("cuda_api", []) if row["api"] != "backtrace"]
    processes = len({(row["report"], row["process"]) for row in calls})
    each = [_took(row["function"], row, processes) for row in _sums(calls, ["function"])[:FEW]]
    return [f"CUDA calls of a process{over}: {', '.join(each)}"] if each else []
