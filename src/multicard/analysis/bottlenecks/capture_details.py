"""What took longest in a capture, in lines: kernels, collectives, copies and calls of the host."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from multicard.core.text import listed, plural
from multicard.core.units import BYTES, SECONDS, percent, with_unit
from multicard.trace.api_names import api_name

LONGEST = 5  # kernels
FEW = 3  # of whatever else is listed in a line

GPU = ["report", "process", "device"]

Rows = Sequence[dict[str, Any]]


def kernel_rows(rows: dict[str, Rows], gpus: int) -> list[tuple[str, str, str, str, str]]:
    """Return time, share of the time in kernels, calls, class and name of the longest kernels of a GPU."""
    sums = _sums(rows.get("kernels", []), ["class", "kernel"])
    total = sum(row["total_s"] for row in sums)
    return [
        (
            with_unit(row["total_s"] / row["gpus"], SECONDS),
            percent(row["total_s"] / total) if total else "",
            f"{row['calls'] / row['gpus']:,.0f}{_on(row, gpus)}",
            str(row["class"]).replace("_", " "),
            str(row["kernel"]),
        )
        for row in sums[:LONGEST]
    ]


def collectives_line(rows: dict[str, Rows], gpus: int, over: str) -> list[str]:
    """Return a line on the longest collectives, if there are any."""
    sums = _sums(rows.get("collectives", []), ["collective"])
    named = [
        _took("unnamed" if pd.isna(row["collective"]) else row["collective"].replace("_", "-"), row) + _on(row, gpus)
        for row in sums[:FEW]
    ]
    return [f"Collectives of a GPU{over}: {', '.join(named)}"] if named else []


def copies_line(rows: dict[str, Rows], gpus: int, over: str) -> list[str]:
    """Return a line on the longest copies, and migrations of managed memory, if there are any."""
    sums = _sums(rows.get("memory_operations", []), ["operation", "host_memory"], "bytes")
    named = []
    for row in [row for row in sums if row["bytes"] > 0][:FEW]:
        operation = row["operation"].replace("_", " ")
        if operation.startswith("unified "):
            operation = f"page migration {operation.removeprefix('unified ')}"
        memory = "" if pd.isna(row["host_memory"]) else f" ({row['host_memory']})"
        size, took = with_unit(row["bytes"] / row["gpus"], BYTES), with_unit(row["total_s"] / row["gpus"], SECONDS)
        rate = f", {with_unit(row['bytes'] / row['total_s'], BYTES)}/s" if row["total_s"] else ""
        named.append(f"{operation}{memory} {size} in {took}{rate}{_on(row, gpus)}")
    return [f"Copies of a GPU{over}: {'; '.join(named)}"] if named else []


def calls_line(rows: dict[str, Rows], over: str) -> list[str]:
    """Return a line on the calls of the CUDA or HIP API in which a process spent most time, if there are any."""
    calls = [row for row in rows.get("cuda_api", []) if row["api"] != "backtrace"]
    processes = len({(row["report"], row["process"]) for row in calls})
    named = [_took(row["function"], row | {"gpus": processes}) for row in _sums(calls, ["function"])[:FEW]]
    return (
        [f"{api_name(row['function'] for row in calls)} calls of a process{over}: {', '.join(named)}"] if named else []
    )


def _sums(rows: Rows, by: list[str], *more: str) -> list[dict[str, Any]]:
    """Return sums by some columns, the longest first.

    Columns: `total_s`, `calls`, further ones; `gpus`, how many have any, and `devices`, their numbers.
    """
    if not rows:
        return []
    table = pd.DataFrame(rows)
    places = [name for name in GPU if name in table]
    groups = table.groupby(by, sort=False, dropna=False)
    sums = groups[["total_s", "calls", *more]].sum()
    sums["gpus"] = groups.apply(lambda own: max(1, len(own[places].drop_duplicates())), include_groups=False)
    if "device" in table:
        sums["devices"] = groups["device"].agg(lambda own: sorted(set(own)))
    return sums.sort_values("total_s", ascending=False, kind="stable").reset_index().to_dict("records")


def _took(name: object, row: dict[str, Any]) -> str:
    """Return what of a GPU or a process took how long, in how many calls."""
    calls = row["calls"] / row["gpus"]
    return f"{name} {with_unit(row['total_s'] / row['gpus'], SECONDS)} in {calls:,.0f} {plural(round(calls), 'call')}"


def _on(row: dict[str, Any], gpus: int) -> str:
    """Return on which of the GPUs there is something, where it is not on all."""
    if row["gpus"] >= gpus:
        return ""
    devices = row["devices"]
    if len(devices) == row["gpus"] <= FEW:  # else several ranks call their own GPU by the same number
        return f" (only on {plural(len(devices), 'GPU')} {listed([str(device) for device in devices])})"
    return f" (on {row['gpus']} of {gpus} GPUs)"
