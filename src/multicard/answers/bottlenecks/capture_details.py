"""The kernels, collectives, copies and calls of the host that took longest in a capture, in words."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from multicard.core.text import listed, plural
from multicard.core.units import BYTES, SECONDS, percent, with_unit
from multicard.core.values import Cell
from multicard.results.step_periods import DEVICE
from multicard.trace.api_names import api_name

# Most kernels that are listed.
MOST_KERNELS = 5
# Most collectives, copies, calls or GPUs that a line lists.
FEW = 3

Rows = Sequence[Mapping[str, Cell]]
# Rows of the activity tables, by the name of their table.
Tables = Mapping[str, Rows]


class KernelRow(NamedTuple):
    """A kernel in words. `seconds` and `calls` are means over the GPUs that ran it."""

    seconds: str
    # Share of the time of all kernels on all GPUs; empty if that time is 0.
    share: str
    calls: str
    kernel_class: str
    name: str


class _Sum(NamedTuple):
    """The sums of all rows of a table that have the same key, whatever GPU or process they are of."""

    # Values of the columns by which rows are summed.
    key: tuple[Any, ...]
    total_s: float
    calls: int
    # 0 for tables without bytes.
    bytes: int
    # How many GPUs have any of these rows; for calls of the host, how many processes. At least 1.
    places: int
    # Distinct numbers of these GPUs. There may be fewer numbers than GPUs, because processes may call different GPUs by
    # the same number. Empty for calls of the host.
    devices: list[int]

    @property
    def seconds_words(self) -> str:
        """The mean time of a GPU or process, in words."""
        return with_unit(self.total_s / self.places, SECONDS)

    def in_calls(self, name: object) -> str:
        """Return the name with the mean time and the mean number of calls of a GPU or process."""
        calls = self.calls / self.places
        return f"{name} {self.seconds_words} in {calls:,.0f} {plural(round(calls), 'call')}"


def kernel_rows(tables: Tables, gpus: int) -> list[KernelRow]:
    """Return the kernels with the most time, the longest first; `gpus`: how many GPUs are at work."""
    kernels = _sums(tables.get("kernels", []), ["class", "kernel"])
    total_s = sum(kernel.total_s for kernel in kernels)
    rows = []
    for kernel in kernels[:MOST_KERNELS]:
        kernel_class, name = kernel.key
        rows.append(
            KernelRow(
                seconds=kernel.seconds_words,
                share=percent(kernel.total_s / total_s) if total_s else "",
                calls=f"{kernel.calls / kernel.places:,.0f}{_which_gpus(kernel, gpus)}",
                kernel_class=str(kernel_class).replace("_", " "),
                name=str(name),
            )
        )
    return rows


def collectives_line(tables: Tables, gpus: int, over: str) -> list[str]:
    """Return a line on the longest collectives; none if there are no collectives.

    `over`: the steps or the time that the rows sum up, such as " in 5 steps". `gpus`: how many GPUs are at work.
    """
    words = []
    for collective in _sums(tables.get("collectives", []), ["collective"])[:FEW]:
        [recorded_name] = collective.key
        name = "unnamed" if pd.isna(recorded_name) else recorded_name.replace("_", "-")
        words.append(f"{collective.in_calls(name)}{_which_gpus(collective, gpus)}")
    return [f"Collectives of a GPU{over}: {', '.join(words)}"] if words else []


def copies_line(tables: Tables, gpus: int, over: str) -> list[str]:
    """Return a line on the longest copies and migrations of managed memory; none if no bytes were moved."""
    operations = _sums(tables.get("memory_operations", []), ["operation", "host_memory"])
    copies = [operation for operation in operations if operation.bytes > 0]
    words = [f"{_copy_words(copy)}{_which_gpus(copy, gpus)}" for copy in copies[:FEW]]
    return [f"Copies of a GPU{over}: {'; '.join(words)}"] if words else []


def calls_line(tables: Tables, over: str) -> list[str]:
    """Return a line on the functions of the CUDA or HIP API with the most time; none if there are no calls."""
    calls = [row for row in tables.get("cuda_api", []) if row["api"] != "backtrace"]
    if not calls:
        return []
    processes = len({(row["report"], row["process"]) for row in calls})
    words = []
    for function in _sums(calls, ["function"])[:FEW]:
        # The mean is over all processes, also over those that do not call the function.
        words.append(function._replace(places=processes).in_calls(*function.key))
    api = api_name(str(row["function"]) for row in calls)
    return [f"{api} calls of a process{over}: {', '.join(words)}"]


def _copy_words(copy: _Sum) -> str:
    """Return in words how much a GPU copies in one direction, to or from one kind of host memory, and how fast."""
    operation, host_memory = copy.key
    name = operation.replace("_", " ")
    if name.startswith("unified "):
        name = f"page migration {name.removeprefix('unified ')}"
    if not pd.isna(host_memory):
        name = f"{name} ({host_memory})"
    size = with_unit(copy.bytes / copy.places, BYTES)
    rate = f", {with_unit(copy.bytes / copy.total_s, BYTES)}/s" if copy.total_s else ""
    return f"{name} {size} in {copy.seconds_words}{rate}"


def _sums(rows: Rows, by: list[str]) -> list[_Sum]:
    """Return the sums of the rows that have the same values in the columns `by`, those with the most time first."""
    if not rows:
        return []
    table = pd.DataFrame(rows)
    if "bytes" not in table:
        table["bytes"] = 0
    place_columns = [column for column in DEVICE if column in table]
    groups = table.groupby(by, sort=False, dropna=False)
    totals = groups[["total_s", "calls", "bytes"]].sum()
    sums = []
    for (key, group), total in zip(groups, totals.itertuples(index=False), strict=True):
        places = len(group[place_columns].drop_duplicates())
        devices = sorted(set(group["device"])) if "device" in group else []
        sums.append(_Sum(key, total.total_s, total.calls, total.bytes, places, devices))
    return sorted(sums, key=lambda of_key: of_key.total_s, reverse=True)


def _which_gpus(of_key: _Sum, gpus: int) -> str:
    """Return in words which GPUs have rows of a sum; empty if all GPUs at work (`gpus`) have."""
    if of_key.places >= gpus:
        return ""
    devices = of_key.devices
    # If there are fewer numbers than GPUs, several ranks call different GPUs by the same number, so none is named.
    if len(devices) == of_key.places <= FEW:
        return f" (only on {plural(len(devices), 'GPU')} {listed([str(device) for device in devices])})"
    return f" (on {of_key.places} of {gpus} GPUs)"
