"""What the activity tables say of each run, one row per run: times and bytes per step, shares.

The tables of a run hold what belongs to its profiled steps, so sums divided by the number of steps are per step.

Times are summed durations, so parts that overlap add up to more than wall time; only `gpu_time` and
`trace_shares` count every moment once. What a run did not record has no row.
"""

import re

import numpy as np
import pandas as pd

from multicard.analysis.runs.device_time import device_time, overall
from multicard.analysis.scenario_tables import ScenarioTables
from multicard.trace.collectives import bus_bandwidth

# Functions of the CUDA API that the papers report on; others follow by their time.
REPORTED = (
    "cudaLaunchKernel",
    "cudaMemcpyAsync",
    "cudaStreamSynchronize",
    "cudaEventSynchronize",
    "cudaEventDestroy",
)
REST = "other"

PROCESS = ["report", "process"]
GPU = [*PROCESS, "device"]


def cuda_api(tables: ScenarioTables) -> pd.DataFrame:
    """Seconds in each function of the CUDA API, per profiled step and process.

    Columns: the functions of `REPORTED` that were called, then those with most time, up to nine in all, the rest as
    `REST`. Versions of one function (`cudaLaunchKernel_v7000`, `cudaMemcpyAsync_ptsz`) count as one.
    """
    rows = tables.table("cuda_api")
    rows = rows[rows["api"] != "backtrace"]
    rows = rows.assign(function=rows["function"].map(_function))
    return _leading(_per_step(tables, rows, ["function"], "total_s", PROCESS), 9, REPORTED)


def kernel_classes(tables: ScenarioTables) -> pd.DataFrame:
    """Seconds of the kernels of each class, per profiled step and GPU; the eight largest, the rest as `REST`."""
    return _leading(_per_step(tables, tables.table("kernel_classes"), ["class"], "total_s", GPU), 8)


def collectives(tables: ScenarioTables) -> pd.DataFrame:
    """Seconds of the kernels of each collective, per profiled step and GPU; the eight largest, the rest as `REST`."""
    rows = tables.table("collectives")
    names = rows["collective"].fillna("unnamed").str.replace("_", "-")
    return _leading(_per_step(tables, rows.assign(name=names), ["name"], "total_s", GPU), 8)


def bus_bandwidths(tables: ScenarioTables) -> pd.DataFrame:
    """Bus bandwidth of the collectives of each run by the size of their messages, where these were recorded.

    Columns: `run`, `collective`, `size_bytes` of a message, and `bus_bandwidth_bytes_per_s` of the fastest GPU: over
    the time after all ranks had joined, or where ranks could not be matched over all of its time. Where the trace does
    not tell how many ranks take part, as one that began after NCCL did, they are all those of the run: its jobs have no
    smaller groups.
    """
    rows = tables.table("message_sizes")
    seconds = rows["transfer_s"].fillna(rows["total_s"])
    ranks = rows["ranks"].fillna(rows["run"].map(tables.measures.set_index("run")["devices"]))
    calls = zip(rows["collective"], rows["size_bytes"] * rows["calls"], ranks, seconds, strict=True)
    rate = pd.Series([bus_bandwidth(*each) for each in calls], rows.index, dtype=float)
    rows = rows.assign(collective=rows["collective"].str.replace("_", "-"), bus_bandwidth_bytes_per_s=rate)
    key = ["run", "collective", "size_bytes"]
    found = rows.groupby(key, sort=False, as_index=False)["bus_bandwidth_bytes_per_s"].max()
    return found.dropna()


def memory_operations(tables: ScenarioTables, value: str) -> pd.DataFrame:
    """Sum of `value` (`total_s` or `bytes`) per profiled step and GPU, for each direction and kind of host memory."""
    rows = tables.table("memory_operations")
    kinds = [
        f"{operation.replace('_', ' ')}, {memory}" if isinstance(memory, str) else operation.replace("_", " ")
        for operation, memory in zip(rows["operation"], rows["host_memory"], strict=True)
    ]
    found = _per_step(tables, rows.assign(kind=kinds), ["kind"], value, GPU)
    return found[found.sum().sort_values(ascending=False, kind="stable").index]


def shares(tables: ScenarioTables) -> pd.DataFrame:
    """The four shares of a run: summed over processes and GPUs, over the sum of what each is a share of."""
    rows = tables.table("shares")
    sums = rows.groupby(["run", "share"], sort=False)[["total_s", "of_s"]].sum(min_count=1)
    return (sums["total_s"] / sums["of_s"].where(sums["of_s"] > 0)).unstack("share")


def gpu_time(tables: ScenarioTables) -> pd.DataFrame:
    """Parts of each GPU's time over all steps: a row per run and GPU, shares of the span, `busy` too."""
    rows = overall(tables.table("timeline"))
    rows = rows[(rows["span_s"] > 0) & rows["busy_s"].notna()]
    shares = device_time(rows).div(rows["span_s"], axis=0).assign(busy=rows["busy_s"] / rows["span_s"])
    return rows[["run", "rank", "device"]].join(shares)


def trace_shares(tables: ScenarioTables) -> pd.DataFrame:
    """What the traces of a run say of its bottlenecks, all processes and GPUs together.

    Columns: each `DevicePart` as a share of the span; `scope`, of what: `steps`, from the first profiled step to the
    last, where the trace has some, else `capture`; `waiting_in_collectives`, the share of the same in which GPUs waited
    inside collectives for the last rank; `pageable_copies`, the share of the bytes copied from the host that came from
    pageable memory.
    """
    rows = overall(tables.table("timeline"))
    by_run = rows["run"]
    span, seconds = rows["span_s"].groupby(by_run).sum(), device_time(rows).groupby(by_run).sum(min_count=1)
    waited = tables.table("stragglers").groupby("run")["waited_s"].sum()
    copies = tables.table("memory_operations")
    copies = copies[copies["operation"] == "host_to_device"]
    moved = copies.groupby("run")["bytes"].sum()
    pageable = copies["bytes"].where(copies["host_memory"] == "pageable", 0).groupby(copies["run"]).sum()
    found = {
        "scope": rows.groupby("run")["scope"].first(),
        **seconds.div(span.where(span > 0), axis=0).clip(lower=0.0),
        "waiting_in_collectives": waited / span.where(span > 0),
        "pageable_copies": pageable / moved.where(moved > 0),
    }
    return pd.DataFrame(found)


def measured_steps(tables: ScenarioTables) -> pd.DataFrame:
    """Duration of each measured step, of its slowest rank: columns `run`, `step`, `duration_s`."""
    steps = tables.table("steps")
    measured = steps[steps["window"] == "measured"]
    return measured.groupby(["run", "step"], sort=False, as_index=False)["duration_s"].max()


def over_steps(tables: ScenarioTables, values: list[str]) -> pd.DataFrame:
    """Values of the training steps of each run, in all windows: `run`, `step`, and the mean over ranks of each value.

    A run with more than 200 steps has at most that many rows, each the mean of equally many neighbours.
    """
    steps = tables.table("steps")
    means = steps.groupby(["run", "step"], sort=True, as_index=False)[values].mean()
    found = means.groupby(["run", _row(means, 200)], sort=False)[["step", *values]].mean()
    return found.reset_index().drop(columns="row")


def accuracy_over_time(tables: ScenarioTables) -> pd.DataFrame:
    """Test accuracy after each epoch against the training time up to it: `run`, `epoch`, `time_s`, `test_accuracy`."""
    epochs = tables.table("epochs").sort_values(["run", "epoch"], kind="stable")
    time = epochs.groupby("run")["epoch_time_s"].cumsum()
    return epochs.assign(time_s=time)[["run", "epoch", "time_s", "test_accuracy"]]


def _row(rows: pd.DataFrame, most: int) -> pd.Series:
    """Number of the row, of at most `most` per run, that takes each of a run's `rows` in: equally many neighbours."""
    runs = rows.groupby("run")["run"]
    return (runs.cumcount() // np.ceil(runs.transform("size") / most)).rename("row")


def _per_step(tables: ScenarioTables, rows: pd.DataFrame, key: list[str], value: str, place: list[str]) -> pd.DataFrame:
    """Sum of `value` by `key`, one column each, per profiled step and per `place` that the run has rows of."""
    steps = tables.table("runs_info").set_index("run")["traced_steps"]
    places = rows[["run", *place]].drop_duplicates().groupby("run", sort=False).size()
    sums = rows.groupby(["run", *key], sort=False)[value].sum(min_count=1).unstack(key)
    per = sums.div(places * steps.reindex(places.index), axis=0)
    return per.dropna(how="all").astype(float)


def _leading(values: pd.DataFrame, most: int, first: tuple[str, ...] = ()) -> pd.DataFrame:
    """Columns of `first`, then those with most time, up to `most`; what else there is, summed as `REST`."""
    known = [name for name in first if name in values]
    others = values.drop(columns=known).sum().sort_values(ascending=False, kind="stable").index
    others = [name for name in others if name != REST]
    shown = [*known, *others[: max(0, most - len(known))]]
    rest = [name for name in values if name not in shown]
    found = values[shown].copy()
    if rest:
        found[REST] = values[rest].sum(axis=1, min_count=1)
    return found


def _function(name: str) -> str:
    return re.sub(r"(_v\d+|_ptsz|_ptds)+$", "", name)
