"""What the gathered activity tables say of each run, one row per run: times and bytes per step, shares.

Times are summed durations, so parts that overlap add up to more than wall time; only `device_time` counts every moment
once. What a run did not record has no row.
"""

import re

import pandas as pd

from multicard.analysis.scenario_tables import ScenarioTables

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
CARD = [*PROCESS, "device"]

# Parts of a card's time that add up to the span, and how each follows from the timeline's columns. Idle time of
# unknown cause counts as other.
DEVICE_TIME = (
    "compute", "compute and communication", "communication alone", "memory operations alone",
    "idle, bound by the host", "idle, before a collective", "idle, other",
)  # fmt: skip


def cuda_api(gathered: ScenarioTables, most: int = 9) -> pd.DataFrame:
    """Seconds in each function of the CUDA API, per profiled step and process.

    Columns: the functions of `REPORTED` that were called, then those with most time, up to `most` in all, the rest as
    `REST`. Versions of one function (`cudaLaunchKernel_v7000`, `cudaMemcpyAsync_ptsz`) count as one.
    """
    rows = gathered.table("cuda_api")
    rows = rows[rows["api"] != "backtrace"]
    rows = rows.assign(function=rows["function"].map(_function))
    return _leading(_per_step(gathered, rows, ["function"], "total_s", PROCESS), most, REPORTED)


def kernel_classes(gathered: ScenarioTables, most: int = 8) -> pd.DataFrame:
    """Seconds of the kernels of each class, per profiled step and card; the largest classes, the rest as `REST`."""
    return _leading(_per_step(gathered, gathered.table("kernel_classes"), ["class"], "total_s", CARD), most)


def memory_operations(gathered: ScenarioTables, value: str) -> pd.DataFrame:
    """Sum of `value` (`total_s` or `bytes`) per profiled step and card, for each direction and kind of host memory."""
    rows = gathered.table("memory_operations")
    kinds = [
        f"{operation.replace('_', ' ')}, {memory}" if isinstance(memory, str) else operation.replace("_", " ")
        for operation, memory in zip(rows["operation"], rows["host_memory"], strict=True)
    ]
    found = _per_step(gathered, rows.assign(kind=kinds), ["kind"], value, CARD)
    return found[found.sum().sort_values(ascending=False, kind="stable").index]


def shares(gathered: ScenarioTables) -> pd.DataFrame:
    """The four shares of a run: summed over processes and cards, over the sum of what each is a share of."""
    rows = gathered.table("shares")
    sums = rows.groupby(["run", "share"], sort=False)[["total_s", "of_s"]].sum(min_count=1)
    return (sums["total_s"] / sums["of_s"].where(sums["of_s"] > 0)).unstack("share")


def device_time(gathered: ScenarioTables) -> pd.DataFrame:
    """Parts of each card's time over the capture: a row per run and card, the parts as shares of the span."""
    rows = gathered.table("timeline")
    rows = rows[(rows["scope"] == "capture") & (rows["span_s"] > 0) & rows["busy_s"].notna()]
    host, collective = rows["idle_host_bound_s"].fillna(0.0), rows["idle_collective_s"].fillna(0.0)
    parts = (
        rows["compute_s"] - rows["overlapped_s"],
        rows["overlapped_s"],
        rows["exposed_communication_s"],
        rows["busy_s"] - rows["compute_s"] - rows["exposed_communication_s"],
        host,
        collective,
        rows["idle_s"] - host - collective,
    )
    shares_of_span = {name: seconds / rows["span_s"] for name, seconds in zip(DEVICE_TIME, parts, strict=True)}
    return pd.DataFrame({"run": rows["run"], "rank": rows["rank"], "device": rows["device"]} | shares_of_span)


def measured_steps(gathered: ScenarioTables) -> pd.DataFrame:
    """Duration of each measured step, of its slowest rank: columns `run`, `step`, `duration_s`."""
    steps = gathered.table("steps")
    measured = steps[steps["window"] == "measured"]
    return measured.groupby(["run", "step"], sort=False, as_index=False)["duration_s"].max()


def accuracy_over_time(gathered: ScenarioTables) -> pd.DataFrame:
    """Test accuracy after each epoch against the training time up to it: `run`, `epoch`, `time_s`, `test_accuracy`."""
    epochs = gathered.table("epochs").sort_values(["run", "epoch"], kind="stable")
    time = epochs.groupby("run")["epoch_time_s"].cumsum()
    return epochs.assign(time_s=time)[["run", "epoch", "time_s", "test_accuracy"]]


def _per_step(
    gathered: ScenarioTables, rows: pd.DataFrame, key: list[str], value: str, place: list[str]
) -> pd.DataFrame:
    """Sum of `value` by `key`, one column each, per profiled step and per `place` that the run has rows of."""
    steps = gathered.table("runs_info").set_index("run")["traced_steps"]
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
