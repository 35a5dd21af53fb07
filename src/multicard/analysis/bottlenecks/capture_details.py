"""What took longest in a capture, in lines: kernels, collectives, copies and calls of the host."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from multicard.core.text import listed, plural
from multicard.core.units import BYTES, SECONDS, percent, with_unit
from multicard.trace.api_names import api_name

LONGEST = 5  # kernels that are listed
FEW = 3  # of anything else that is listed in a line

GPU = ["report", "process", "device"]

Rows = Sequence[dict[str, Any]]
Tables = Mapping[str, Rows]  # rows by the name of their table


class KernelRow(NamedTuple):
    """A kernel as words: its mean over the GPUs that ran it."""

    seconds: str
    share: str  # of the time in kernels; empty where that is 0
    calls: str
    kind: str
    name: str


def kernel_rows(rows: Tables, gpus: int) -> list[KernelRow]:
    """Return the longest kernels of a GPU; `gpus` is how many GPUs are at work."""
    sums = _sums(rows.get("kernels", []), ["class", "kernel"])
    total_s = sum(row["total_s"] for row in sums)
    return [
        KernelRow(
            seconds=_seconds_per_gpu(row),
            share=percent(row["total_s"] / total_s) if total_s else "",
            calls=f"{row['calls'] / row['gpus']:,.0f}{_which_gpus(row, gpus)}",
            kind=str(row["class"]).replace("_", " "),
            name=str(row["kernel"]),
        )
        for row in sums[:LONGEST]
    ]


def collectives_line(rows: Tables, gpus: int, over: str) -> list[str]:
    """Return a line on the longest collectives, if there are any; `over` says what the sums are of."""
    named = []
    for row in _sums(rows.get("collectives", []), ["collective"])[:FEW]:
        name = "unnamed" if pd.isna(row["collective"]) else row["collective"].replace("_", "-")
        named.append(f"{_time_and_calls(name, row)}{_which_gpus(row, gpus)}")
    return [f"Collectives of a GPU{over}: {', '.join(named)}"] if named else []


def copies_line(rows: Tables, gpus: int, over: str) -> list[str]:
    """Return a line on the longest copies, and migrations of managed memory, if there are any."""
    sums = _sums(rows.get("memory_operations", []), ["operation", "host_memory"], "bytes")
    copies = [row for row in sums if row["bytes"] > 0]
    named = [f"{_copy_words(row)}{_which_gpus(row, gpus)}" for row in copies[:FEW]]
    return [f"Copies of a GPU{over}: {'; '.join(named)}"] if named else []


def calls_line(rows: Tables, over: str) -> list[str]:
    """Return a line on the calls of the CUDA or HIP API in which a process spent most time, if there are any."""
    calls = [row for row in rows.get("cuda_api", []) if row["api"] != "backtrace"]
    if not calls:
        return []
    processes = len({(row["report"], row["process"]) for row in calls})
    longest = _sums(calls, ["function"])[:FEW]
    named = [_time_and_calls(row["function"], row | {"gpus": processes}) for row in longest]
    return [f"{api_name(row['function'] for row in calls)} calls of a process{over}: {', '.join(named)}"]


def _copy_words(row: dict[str, Any]) -> str:
    """Return size, time and rate of the copies of a GPU in one direction, from or to one kind of host memory."""
    operation = row["operation"].replace("_", " ")
    if operation.startswith("unified "):
        operation = f"page migration {operation.removeprefix('unified ')}"
    host_memory = "" if pd.isna(row["host_memory"]) else f" ({row['host_memory']})"
    size = with_unit(row["bytes"] / row["gpus"], BYTES)
    rate = f", {with_unit(row['bytes'] / row['total_s'], BYTES)}/s" if row["total_s"] else ""
    return f"{operation}{host_memory} {size} in {_seconds_per_gpu(row)}{rate}"


def _sums(rows: Rows, by: list[str], *more: str) -> list[dict[str, Any]]:
    """Return sums by some columns, the longest first.

    Columns: `total_s`, `calls`, further ones; `gpus`, how many have any, and `devices`, their numbers.
    """
    if not rows:
        return []
    table = pd.DataFrame(rows)
    gpu_columns = [name for name in GPU if name in table]
    groups = table.groupby(by, sort=False, dropna=False)
    sums = groups[["total_s", "calls", *more]].sum()
    sums["gpus"] = groups.apply(lambda group: max(1, len(group[gpu_columns].drop_duplicates())), include_groups=False)
    if "device" in table:
        sums["devices"] = groups["device"].agg(lambda devices: sorted(set(devices)))
    return sums.sort_values("total_s", ascending=False, kind="stable").reset_index().to_dict("records")


def _seconds_per_gpu(row: dict[str, Any]) -> str:
    return with_unit(row["total_s"] / row["gpus"], SECONDS)


def _time_and_calls(name: object, row: dict[str, Any]) -> str:
    """Return what of a GPU or a process took how long, in how many calls."""
    calls = row["calls"] / row["gpus"]
    return f"{name} {_seconds_per_gpu(row)} in {calls:,.0f} {plural(round(calls), 'call')}"


def _which_gpus(row: dict[str, Any], gpus: int) -> str:
    """Return which of the GPUs have any, in words; empty where all of them do."""
    if row["gpus"] >= gpus:
        return ""
    devices = row["devices"]
    # Otherwise several ranks call their own GPU by the same number.
    if len(devices) == row["gpus"] <= FEW:
        return f" (only on {plural(len(devices), 'GPU')} {listed([str(device) for device in devices])})"
    return f" (on {row['gpus']} of {gpus} GPUs)"
