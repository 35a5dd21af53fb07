"""What the gathered tables say of each run, one row per run: times and bytes per step, shares.

The tables of a run hold what belongs to its profiled steps, so sums divided by the number of steps are per step.

Times are summed durations, so parts that overlap add up to more than wall time; only `gpu_time` and
`trace_shares` count every moment once. What a run did not record has no row.
"""

import re
from collections.abc import Sequence

import numpy as np
import pandas as pd

from multicard.analysis.runs.device_time import device_time, overall
from multicard.results.results import Results
from multicard.trace.collectives import bus_bandwidth

# Functions of the CUDA API that the papers report on; others follow by their time.
REPORTED = (
    "cudaLaunchKernel",
    "cudaMemcpyAsync",
    "cudaStreamSynchronize",
    "cudaEventSynchronize",
    "cudaEventDestroy",
)
REST = "other"  # column for all that has none of its own
# Numbers of columns at most, `REST` not counted.
MOST_FUNCTIONS = 9
MOST_KINDS = 8
# Points of one run at most, in a figure over steps.
MOST_POINTS = 200

# Columns that identify what a time is per, within a run.
PROCESS = ["report", "process"]
GPU = [*PROCESS, "device"]

# The profiler adds the version of a function to its name: `cudaMemcpyAsync_ptsz`.
_VERSION = re.compile(r"(_v\d+|_ptsz|_ptds)+$")


def cuda_api(results: Results) -> pd.DataFrame:
    """Return the seconds in each function of the CUDA API, per profiled step and process.

    Columns: the functions of `REPORTED` that were called, then those with most time, up to nine in all, and `REST`.
    Versions of one function (`cudaLaunchKernel_v7000`, `cudaMemcpyAsync_ptsz`) count as one.
    """
    calls = results.table("cuda_api")
    calls = calls[calls["api"] != "backtrace"]
    calls = calls.assign(function=[_VERSION.sub("", name) for name in calls["function"]])
    seconds = _per_step(results, calls, "function", "total_s", PROCESS)
    return _leading(seconds, MOST_FUNCTIONS, REPORTED)


def kernel_classes(results: Results) -> pd.DataFrame:
    """Return the seconds of the kernels of each class, per profiled step and GPU: the eight largest, and `REST`."""
    kernels = results.table("kernel_classes")
    seconds = _per_step(results, kernels, "class", "total_s", GPU)
    return _leading(seconds, MOST_KINDS)


def collectives(results: Results) -> pd.DataFrame:
    """Return the seconds of each collective's kernels, per profiled step and GPU: the eight largest, and `REST`."""
    calls = results.table("collectives")
    names = calls["collective"].fillna("unnamed").str.replace("_", "-")
    seconds = _per_step(results, calls.assign(name=names), "name", "total_s", GPU)
    return _leading(seconds, MOST_KINDS)


def bus_bandwidths(results: Results) -> pd.DataFrame:
    """Return the bus bandwidth of the collectives of each run by the size of their messages, where it was recorded.

    Columns: `run`, `collective`, `size_bytes` of a message, and `bus_bandwidth_bytes_per_s` of the fastest GPU: over
    the time after all ranks had joined, or, where ranks could not be matched, over all of its time. Where the trace
    does not show how many ranks take part (it began after NCCL did), all ranks of the run are assumed to: jobs have no
    smaller groups.
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
    """Return the sum of `value` (`total_s` or `bytes`) per profiled step and GPU, by direction and host memory."""
    operations = results.table("memory_operations")
    kinds = []
    for operation, host_memory in zip(operations["operation"], operations["host_memory"], strict=True):
        direction = operation.replace("_", " ")
        kinds.append(f"{direction}, {host_memory}" if isinstance(host_memory, str) else direction)
    per_step = _per_step(results, operations.assign(kind=kinds), "kind", value, GPU)
    return per_step[_by_size(per_step)]


def shares(results: Results) -> pd.DataFrame:
    """Return the four shares of a run: summed over processes and GPUs, over the sum of what each is a share of."""
    by_share = results.table("shares").groupby(["run", "share"], sort=False)
    sums = by_share[["total_s", "of_s"]].sum(min_count=1)
    whole_s = sums["of_s"].where(sums["of_s"] > 0)
    return (sums["total_s"] / whole_s).unstack("share")


def gpu_time(results: Results) -> pd.DataFrame:
    """Return the parts of each GPU's time over all steps: a row per run and GPU, shares of the span, `busy` too."""
    rows = overall(results.table("timeline"))
    rows = rows[(rows["span_s"] > 0) & rows["busy_s"].notna()]
    span_s = rows["span_s"]
    parts = device_time(rows).div(span_s, axis=0)
    parts["busy"] = rows["busy_s"] / span_s
    return rows[["run", "rank", "device"]].join(parts)


def trace_shares(results: Results) -> pd.DataFrame:
    """Return the shares of time and bytes in the traces of each run that point to bottlenecks: a row per run.

    All processes and GPUs count together. Columns: each `DevicePart` as a share of the span; `scope`, the kind of the
    span: `steps` (from the first profiled step to the last) where the trace has steps, else `capture`;
    `waiting_in_collectives`, the share of the span in which GPUs waited inside collectives for the last rank;
    `pageable_copies`, the share of the bytes copied from the host that came from pageable memory.
    """
    rows = overall(results.table("timeline"))
    span_s = rows["span_s"].groupby(rows["run"]).sum()
    span_s = span_s.where(span_s > 0)
    parts_s = device_time(rows).groupby(rows["run"]).sum(min_count=1)
    waited_s = results.table("stragglers").groupby("run")["waited_s"].sum()
    columns = {
        "scope": rows.groupby("run")["scope"].first(),
        **parts_s.div(span_s, axis=0).clip(lower=0.0),
        "waiting_in_collectives": waited_s / span_s,
        "pageable_copies": _pageable_share(results.table("memory_operations")),
    }
    return pd.DataFrame(columns)


def _pageable_share(operations: pd.DataFrame) -> pd.Series:
    """Return the share of the bytes copied from the host to a device that came from pageable memory, by run."""
    copies = operations[operations["operation"] == "host_to_device"]
    copied_bytes = copies.groupby("run")["bytes"].sum()
    # Copies from other memory count as 0 bytes, not as missing: a run without pageable copies has a share of 0.
    bytes_if_pageable = copies["bytes"].where(copies["host_memory"] == "pageable", 0)
    pageable_bytes = bytes_if_pageable.groupby(copies["run"]).sum()
    return pageable_bytes / copied_bytes.where(copied_bytes > 0)


def measured_steps(results: Results) -> pd.DataFrame:
    """Return the duration of each measured step, of its slowest rank: columns `run`, `step`, `duration_s`."""
    steps = results.table("steps")
    measured = steps[steps["window"] == "measured"]
    return measured.groupby(["run", "step"], sort=False, as_index=False)["duration_s"].max()


def over_steps(results: Results, values: list[str]) -> pd.DataFrame:
    """Return values of the training steps of each run, in all windows: `run`, `step`, and the mean over ranks of each.

    A run with more than 200 steps has at most that many rows, each the mean of equally many neighbours.
    """
    steps = results.table("steps")
    means = steps.groupby(["run", "step"], sort=True, as_index=False)[values].mean()
    by_run = means.groupby("run")["run"]
    steps_per_point = np.ceil(by_run.transform("size") / MOST_POINTS)
    point = (by_run.cumcount() // steps_per_point).rename("point")
    points = means.groupby(["run", point], sort=False)[["step", *values]].mean()
    return points.reset_index().drop(columns="point")


def accuracy_over_time(results: Results) -> pd.DataFrame:
    """Return the test accuracy after each epoch: `run`, `epoch`, `time_s` of training up to it, `test_accuracy`."""
    epochs = results.table("epochs").sort_values(["run", "epoch"], kind="stable")
    time_s = epochs.groupby("run")["epoch_time_s"].cumsum()
    return epochs.assign(time_s=time_s)[["run", "epoch", "time_s", "test_accuracy"]]


def _per_step(results: Results, rows: pd.DataFrame, key: str, value: str, unit: list[str]) -> pd.DataFrame:
    """Return the sum of `value` for each value of `key`, per profiled step and unit: a row per run, a column per key.

    `unit`: the columns that identify what a run has several of, `PROCESS` or `GPU`. With 6 s of a kernel class on the
    2 GPUs of a run with 3 profiled steps, its cell is 1.0. Only units with rows in the table are counted.
    """
    units = rows[["run", *unit]].drop_duplicates()
    unit_counts = units.groupby("run", sort=False).size()
    traced_steps = results.table("runs_info").set_index("run")["traced_steps"]
    steps_of_units = unit_counts * traced_steps.reindex(unit_counts.index)
    sums = rows.groupby(["run", key], sort=False)[value].sum(min_count=1).unstack(key)
    per_step = sums.div(steps_of_units, axis=0)
    return per_step.dropna(how="all").astype(float)


def _leading(values: pd.DataFrame, most: int, first: Sequence[str] = ()) -> pd.DataFrame:
    """Return the columns of `first`, then the largest, up to `most` in all; the sum of the others as `REST`."""
    stated = [name for name in first if name in values]
    # A column that is called `REST` already is summed into the new one.
    by_size = _by_size(values.drop(columns=[*stated, REST], errors="ignore"))
    free_columns = max(0, most - len(stated))
    shown = [*stated, *by_size[:free_columns]]
    hidden = [name for name in values if name not in shown]
    if not hidden:
        return values[shown].copy()
    hidden_sum = values[hidden].sum(axis=1, min_count=1)
    return values[shown].assign(**{REST: hidden_sum})


def _by_size(values: pd.DataFrame) -> list[str]:
    """Return the names of columns by their sums, the largest first."""
    return list(values.sum().sort_values(ascending=False, kind="stable").index)
