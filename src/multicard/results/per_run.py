"""Summaries of the gathered tables by run: times and bytes per step, and shares.

The tables hold the activity of a run's profiled steps. So a sum, divided by the number of these steps, is per step.

Times are sums of durations. Durations that overlap add up to more than wall time. Only `gpu_time` and `trace_shares`
count each moment once. A run that did not record a kind of activity has no row in the summary of this kind.
"""

import re
from collections.abc import Sequence

import numpy as np
import pandas as pd

from multicard.results.device_time import device_time, overall
from multicard.results.results import Results
from multicard.trace.collectives import bus_bandwidth

# Functions of the CUDA API that the papers report on. They precede the others, which are ordered by their time.
REPORTED = (
    "cudaLaunchKernel",
    "cudaMemcpyAsync",
    "cudaStreamSynchronize",
    "cudaEventSynchronize",
    "cudaEventDestroy",
)
REST = "other"  # name of the column with the sum of all that have no column of their own
# Most columns of a table, `REST` not counted.
MOST_FUNCTIONS = 9
MOST_KINDS = 8
# Most points of one run in a figure over steps.
MOST_POINTS = 200

# Columns that identify a process, or a GPU, within a run. Times are per process or per GPU.
PROCESS = ["report", "process"]
GPU = [*PROCESS, "device"]

# Endings that the profiler adds to the name of a function for its version: `_ptsz` of `cudaMemcpyAsync_ptsz`.
_VERSION = re.compile(r"(_v\d+|_ptsz|_ptds)+$")


def cuda_api(results: Results) -> pd.DataFrame:
    """Return the seconds in each function of the CUDA API, per profiled step and process: a row per run.

    The columns are the functions of `REPORTED` that were called, then the functions with the most time, nine columns at
    most. If there are further functions, the last column is `REST`, their sum. Versions of one function
    (`cudaLaunchKernel_v7000`, `cudaMemcpyAsync_ptsz`) count as one.
    """
    calls = results.table("cuda_api")
    calls = calls[calls["api"] != "backtrace"]
    functions = [_VERSION.sub("", name) for name in calls["function"]]
    calls = calls.assign(function=functions)
    seconds = _per_step(results, calls, "function", "total_s", PROCESS)
    return _leading(seconds, MOST_FUNCTIONS, REPORTED)


def kernel_classes(results: Results) -> pd.DataFrame:
    """Return the seconds of the kernels of each class, per profiled step and GPU: a row per run.

    The columns are the classes with the most time, eight at most. If there are further classes, the last column is
    `REST`, their sum.
    """
    kernels = results.table("kernel_classes")
    seconds = _per_step(results, kernels, "class", "total_s", GPU)
    return _leading(seconds, MOST_KINDS)


def collectives(results: Results) -> pd.DataFrame:
    """Return the seconds of each collective's kernels, per profiled step and GPU: a row per run.

    The columns are the collectives with the most time, eight at most. If there are further collectives, the last column
    is `REST`, their sum. Collectives without a name are in the column `unnamed`.
    """
    calls = results.table("collectives")
    names = calls["collective"].fillna("unnamed")
    calls = calls.assign(name=names.str.replace("_", "-"))
    seconds = _per_step(results, calls, "name", "total_s", GPU)
    return _leading(seconds, MOST_KINDS)


def bus_bandwidths(results: Results) -> pd.DataFrame:
    """Return the bus bandwidth of the collectives of each run, by the size of their messages.

    Columns: `run`, `collective`, `size_bytes` (of a message), and `bus_bandwidth_bytes_per_s` of the GPU with the
    highest bandwidth. Rows without a known bandwidth are left out.

    The bytes are divided by the time in which all ranks had joined the collective. If ranks could not be matched, they
    are divided by the whole time of the collective's kernels. A trace that began after NCCL started does not show how
    many ranks take part. All ranks of the run are assumed to take part then, because jobs have no smaller groups.
    """
    calls = results.table("message_sizes")
    devices_of_run = results.frame().set_index("run")["devices"]
    seconds = calls["transfer_s"].fillna(calls["total_s"])
    ranks = calls["ranks"].fillna(calls["run"].map(devices_of_run))
    total_bytes = calls["size_bytes"] * calls["calls"]
    bandwidths = [
        bus_bandwidth(collective, size, rank_count, duration_s)
        for collective, size, rank_count, duration_s in zip(
            calls["collective"], total_bytes, ranks, seconds, strict=True
        )
    ]
    calls = calls.assign(
        collective=calls["collective"].str.replace("_", "-"),
        bus_bandwidth_bytes_per_s=pd.Series(bandwidths, calls.index, dtype=float),
    )
    by_size = calls.groupby(["run", "collective", "size_bytes"], sort=False, as_index=False)
    return by_size["bus_bandwidth_bytes_per_s"].max().dropna()


def memory_operations(results: Results, value: str) -> pd.DataFrame:
    """Return the sum of `value` (`total_s` or `bytes`) per profiled step and GPU: a row per run.

    There is a column for each operation and kind of host memory, such as "host to device, pageable"; the column with
    the largest sum is first.
    """
    operations = results.table("memory_operations")
    names = []
    for operation, host_memory in zip(operations["operation"], operations["host_memory"], strict=True):
        name = operation.replace("_", " ")
        if isinstance(host_memory, str):
            name = f"{name}, {host_memory}"
        names.append(name)
    operations = operations.assign(kind=names)
    per_step = _per_step(results, operations, "kind", value, GPU)
    return per_step[_by_size(per_step)]


def shares(results: Results) -> pd.DataFrame:
    """Return each share of the table `shares`: a row per run, a column per share.

    A share is its time divided by the time that it is a part of. Both times are first summed over all processes and
    GPUs of the run. It is NaN if the divisor is 0 or unknown.
    """
    by_share = results.table("shares").groupby(["run", "share"], sort=False)
    sums = by_share[["total_s", "of_s"]].sum(min_count=1)
    whole_s = sums["of_s"].where(sums["of_s"] > 0)
    return (sums["total_s"] / whole_s).unstack("share")


def gpu_time(results: Results) -> pd.DataFrame:
    """Return the parts of each GPU's time as shares of its span: a row per run and GPU.

    The span is that of all profiled steps; see `overall`. Columns: `run`, `rank`, `device`, one for each `DevicePart`,
    and `busy`. A GPU without a span, or whose kernels were not recorded, has no row.
    """
    rows = overall(results.table("timeline"))
    has_span = rows["span_s"] > 0
    has_kernels = rows["busy_s"].notna()
    rows = rows[has_span & has_kernels]
    span_s = rows["span_s"]
    parts = device_time(rows).div(span_s, axis=0)
    parts["busy"] = rows["busy_s"] / span_s
    return rows[["run", "rank", "device"]].join(parts)


def trace_shares(results: Results) -> pd.DataFrame:
    """Return shares of time and bytes in the traces of each run that point to bottlenecks: a row per run.

    Times and bytes are summed over all processes and GPUs of a run. The span is the sum of the spans of its GPUs.

    Columns:

    - `scope`: `steps` if a span reaches from the first profiled step to the last, `capture` if the trace has no steps
    - each `DevicePart`: its time divided by the span
    - `waiting_in_collectives`: the time that GPUs waited inside collectives for the last rank, divided by the span
    - `pageable_copies`: the bytes copied to devices from pageable memory, divided by all bytes copied to devices

    A share is NaN if it was not recorded.
    """
    rows = overall(results.table("timeline"))
    span_s = rows["span_s"].groupby(rows["run"]).sum()
    span_s = span_s.where(span_s > 0)
    parts_s = device_time(rows).groupby(rows["run"]).sum(min_count=1)
    part_shares = parts_s.div(span_s, axis=0).clip(lower=0.0)
    waited_s = results.table("stragglers").groupby("run")["waited_s"].sum()
    columns = {
        "scope": rows.groupby("run")["scope"].first(),
        **part_shares,
        "waiting_in_collectives": waited_s / span_s,
        "pageable_copies": _pageable_share(results.table("memory_operations")),
    }
    return pd.DataFrame(columns)


def _pageable_share(operations: pd.DataFrame) -> pd.Series:
    """Return the share of the bytes copied from the host to devices that came from pageable memory, by run.

    A run without such copies has no share.
    """
    copies = operations[operations["operation"] == "host_to_device"]
    copied_bytes = copies.groupby("run")["bytes"].sum()
    # Copies from other memory count as 0 bytes instead of being dropped, so that a run without pageable copies has a
    # share of 0.
    bytes_if_pageable = copies["bytes"].where(copies["host_memory"] == "pageable", 0)
    pageable_bytes = bytes_if_pageable.groupby(copies["run"]).sum()
    return pageable_bytes / copied_bytes.where(copied_bytes > 0)


def measured_steps(results: Results) -> pd.DataFrame:
    """Return the duration of each measured step on its slowest rank: columns `run`, `step`, `duration_s`."""
    steps = results.table("steps")
    measured = steps[steps["window"] == "measured"]
    return measured.groupby(["run", "step"], sort=False, as_index=False)["duration_s"].max()


def over_steps(results: Results, values: list[str]) -> pd.DataFrame:
    """Return the columns `values` of each training step, averaged over ranks, for each run; with `run` and `step`.

    A run with more than `MOST_POINTS` steps has at most that many rows. Each is then the mean of equally many
    consecutive steps; the last row is the mean of the remaining steps.
    """
    steps_of_ranks = results.table("steps")
    by_step = steps_of_ranks.groupby(["run", "step"], sort=True, as_index=False)
    steps = by_step[values].mean()
    by_run = steps.groupby("run")["run"]
    step_counts = by_run.transform("size")
    steps_per_point = np.ceil(step_counts / MOST_POINTS)
    # Steps of a run are numbered from 0 here; the numbers that the run gave them may have gaps.
    positions = by_run.cumcount()
    points = (positions // steps_per_point).rename("point")
    means = steps.groupby(["run", points], sort=False)[["step", *values]].mean()
    return means.reset_index().drop(columns="point")


def accuracy_over_time(results: Results) -> pd.DataFrame:
    """Return the test accuracy after each epoch: columns `run`, `epoch`, `time_s` and `test_accuracy`.

    `time_s` is the sum of the times of all epochs of the run up to this one.
    """
    epochs = results.table("epochs").sort_values(["run", "epoch"], kind="stable")
    time_s = epochs.groupby("run")["epoch_time_s"].cumsum()
    return epochs.assign(time_s=time_s)[["run", "epoch", "time_s", "test_accuracy"]]


def _per_step(results: Results, rows: pd.DataFrame, key: str, value: str, unit: list[str]) -> pd.DataFrame:
    """Return the sum of the column `value` per profiled step and unit: a row per run, a column for each value of `key`.

    A unit is a process or a GPU; `unit`: the columns that identify it, `PROCESS` or `GPU`. If a kernel class took 6 s
    on the 2 GPUs of a run with 3 profiled steps, its cell is 6 / (2 × 3) = 1.0. Units without a row in `rows` do not
    count. A run without known steps has no row.
    """
    units = rows[["run", *unit]].drop_duplicates()
    unit_counts = units.groupby("run", sort=False).size()
    runs_info = results.table("runs_info").set_index("run")
    traced_steps = runs_info["traced_steps"].reindex(unit_counts.index)
    steps_of_units = unit_counts * traced_steps
    values_of_keys = rows.groupby(["run", key], sort=False)[value]
    sums = values_of_keys.sum(min_count=1).unstack(key)
    per_step = sums.div(steps_of_units, axis=0)
    return per_step.dropna(how="all").astype(float)


def _leading(values: pd.DataFrame, most: int, first: Sequence[str] = ()) -> pd.DataFrame:
    """Return the columns of `first` that exist, then those with the largest sums, up to `most` columns in all.

    If further columns exist, their sum is added as the column `REST`.
    """
    stated = [name for name in first if name in values]
    # If a column has the name `REST`, it counts as one of the further columns.
    unstated = values.drop(columns=[*stated, REST], errors="ignore")
    free_columns = max(0, most - len(stated))
    largest = _by_size(unstated)[:free_columns]
    shown = [*stated, *largest]
    hidden = [name for name in values if name not in shown]
    if not hidden:
        return values[shown].copy()
    hidden_sum = values[hidden].sum(axis=1, min_count=1)
    return values[shown].assign(**{REST: hidden_sum})


def _by_size(values: pd.DataFrame) -> list[str]:
    """Return the names of the columns in the order of their sums, the largest first."""
    sums = values.sum().sort_values(ascending=False, kind="stable")
    return list(sums.index)
