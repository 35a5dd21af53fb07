"""`GpuActivity`: what the GPUs of a run or of a capture do, in numbers per step and GPU, as diagnoses read it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

import pandas as pd

from multicard.core.text import plural
from multicard.core.units import SECONDS, number, percent, with_unit
from multicard.results.breakdown import StepPart, parts_of
from multicard.results.configuration import Configuration
from multicard.results.device_time import overall
from multicard.results.results import Results
from multicard.results.step_periods import DEVICE
from multicard.trace.api_calls import HostActivity, host_activity
from multicard.trace.api_names import call_name
from multicard.trace.tables import STEP

# Activity tables that diagnoses read: of GPUs, and of processes.
OF_GPUS = ("kernel_classes", "collectives", "memory_operations", "fp32_products")
OF_PROCESSES = ("cuda_api",)


class Sum(NamedTuple):
    """Sums over rows of an activity table, each per step and GPU, or per step and process."""

    calls: float
    seconds: float
    # None if the size of some was not recorded.
    bytes: float | None

    @property
    def mean_s(self) -> float:
        """Mean seconds of a call; 0 without calls."""
        return self.seconds / self.calls if self.calls else 0.0

    @property
    def mean_bytes(self) -> float | None:
        """Mean size of a call; None if it is not known."""
        return self.bytes / self.calls if self.calls and self.bytes is not None else None


@dataclass(frozen=True)
class GpuActivity:
    """What the GPUs of a run or of a capture do. Made by `of_runs` and `of_tables`.

    Numbers are means over the GPUs that ran kernels, over steps, and over the repeats of a configuration. A capture
    without steps counts as one step, and `whole` is then `capture`.
    """

    # The share of each part in the time of a step.
    parts: Mapping[StepPart, float]
    # Seconds of a step; None if not known.
    whole_s: float | None
    # The word for what shares are of: `step` or `capture`.
    whole: str
    # Number of pairs of a step and a GPU, or a process, that the rows of the tables are sums over.
    gpu_steps: float
    process_steps: float
    # Rows of `OF_GPUS`, `OF_PROCESSES` and `timeline`.
    tables: Mapping[str, pd.DataFrame]

    def share(self, part: StepPart) -> float:
        """Return the share of a part of the step; 0 if it is not known."""
        return self.parts.get(part, 0.0)

    def takes(self, share: float) -> str:
        """Return a share in words, with its time if that is known: "34.0 ms of a step (12%)"."""
        if not self.whole_s:
            return f"{percent(share)} of {self.one}"
        return f"{with_unit(share * self.whole_s, SECONDS)} of {self.one} ({percent(share)})"

    @property
    def one(self) -> str:
        """The time that shares are of: "a step" or "the capture"."""
        return "a step" if self.whole == "step" else "the capture"

    @property
    def each(self) -> str:
        """The time that counts are of: "a step" or "in the capture"."""
        return "a step" if self.whole == "step" else "in the capture"

    def sum_of(self, table: str, **values: str | Sequence[str]) -> Sum:
        """Return the sums over the rows of a table with these values; `values`: a value or several, by column."""
        rows = self._rows(table)
        for column, value in values.items():
            rows = rows[rows[column].isin([value] if isinstance(value, str) else list(value))]
        return self._sum(rows, self.process_steps if table in OF_PROCESSES else self.gpu_steps)

    def sums_by(self, table: str, column: str) -> dict[str, Sum]:
        """Return the sums for each value of a column, that with the longest time first; empty cells are left out."""
        rows = self._rows(table)
        steps = self.process_steps if table in OF_PROCESSES else self.gpu_steps
        sums = {str(value): self._sum(of_value, steps) for value, of_value in rows.groupby(column, sort=False)}
        return dict(sorted(sums.items(), key=lambda item: -item[1].seconds))

    def calls(self, activity: HostActivity) -> dict[str, Sum]:
        """Return the functions of the GPU's API by which the host does something, the longest time first."""
        rows = self._rows("cuda_api")
        if rows.empty:
            return {}
        functions = rows["function"].map(lambda name: call_name(str(name)))
        counts = (rows["api"] != "backtrace") & functions.map(lambda name: host_activity(name) == activity)
        by_function = rows[counts].groupby(functions[counts], sort=False)
        sums = {str(name): self._sum(of_function, self.process_steps) for name, of_function in by_function}
        return dict(sorted(sums.items(), key=lambda item: -item[1].seconds))

    def total_s(self, column: str) -> float:
        """Return the sum of a column of the timeline over the GPUs, in all steps or in the capture; 0 if unknown."""
        timeline = self._rows("timeline")
        return float(overall(timeline)[column].sum()) if column in timeline else 0.0

    def longest_idle_call(self, cause: str) -> str | None:
        """Return the function of the host in which most idle time of a cause lies (`idle.NAMED`); None if unknown."""
        rows = overall(self._rows("timeline"))
        column = f"{cause}_call"
        if column not in rows:
            return None
        seconds = rows.assign(seconds=rows[f"{cause}_s"].astype(float)).groupby(column)["seconds"].sum()
        return str(seconds.idxmax()) if len(seconds) else None

    def _rows(self, table: str) -> pd.DataFrame:
        return self.tables.get(table, _EMPTY)

    def _sum(self, rows: pd.DataFrame, steps: float) -> Sum:
        if rows.empty or not steps:
            return Sum(0.0, 0.0, None)
        has_bytes = "bytes" in rows and rows["bytes"].notna().all()
        size = float(rows["bytes"].sum()) / steps if has_bytes else None
        return Sum(float(rows["calls"].sum()) / steps, float(rows["total_s"].sum()) / steps, size)


# The columns that the sums select by, so that an absent table needs no case of its own.
_EMPTY = pd.DataFrame(
    columns=[
        "calls", "total_s", "class", "collective", "operation", "host_memory", "arithmetic", "kernel", "api",
        "function", "scope",
    ]
)  # fmt: skip


def of_tables(
    tables: Mapping[str, pd.DataFrame], parts: Mapping[StepPart, float], whole_s: float | None
) -> GpuActivity | None:
    """Return what GPUs do by the activity tables of a capture or of runs; None if no GPU ran a kernel or a graph.

    `tables`: if they are of several runs, they have the column `run`. `parts` and `whole_s`: as in `GpuActivity`.
    """
    with_runs = {name: rows if "run" in rows else rows.assign(run="") for name, rows in tables.items() if len(rows)}
    if "timeline" not in with_runs:
        return None
    timeline = with_runs["timeline"]
    devices = overall(timeline)
    gpu = ["run", *DEVICE]
    ran = devices[["compute_s", "communication_s", "graphs_s"]].astype(float).fillna(0.0).sum(axis=1) > 0
    at_work = devices[ran]
    if at_work.empty:
        return None
    has_steps = bool((at_work["scope"] != "capture").any())
    steps = timeline[timeline["scope"] == STEP].groupby(gpu, dropna=False).size()
    # A device of a run with steps has a row for each of them.
    steps_of_gpus = [steps.get(key, 1) if has_steps else 1 for key in at_work[gpu].itertuples(index=False, name=None)]
    idle = set(devices.loc[~ran, gpu].itertuples(index=False, name=None))
    chosen = {"timeline": timeline}
    for name in OF_GPUS:
        if name in with_runs:
            rows = with_runs[name]
            keys = list(rows[gpu].itertuples(index=False, name=None))
            chosen[name] = rows[[key not in idle for key in keys]]
    process_steps = 0.0
    if "cuda_api" in with_runs:
        chosen["cuda_api"] = with_runs["cuda_api"]
        processes = len(chosen["cuda_api"][["run", "report", "process"]].drop_duplicates())
        process_steps = processes * fmean(steps_of_gpus)
    whole = "step" if has_steps else "capture"
    if not has_steps:  # the tables are sums over the whole capture, even if steps were measured otherwise
        whole_s = float(at_work["span_s"].mean())
    return GpuActivity(parts, whole_s, whole, float(sum(steps_of_gpus)), process_steps, chosen)


def of_runs(configuration: Configuration, results: Results) -> GpuActivity | None:
    """Return what the GPUs of a configuration do, in those repeats whose trace shows it; None if none does."""
    runs = {run.run: run for run in configuration.completed}
    tables = {}
    for name in ("timeline", *OF_GPUS, *OF_PROCESSES):
        rows = results.table(name)
        tables[name] = rows[rows["run"].isin(list(runs))]
    timeline = tables["timeline"]
    traced = [runs[run] for run in dict.fromkeys(overall(timeline)["run"])] if len(timeline) else []
    shares = [parts for run in traced if (parts := parts_of(run.values))]
    if not shares:
        return None
    mean_parts = {part: fmean(parts.get(part, 0.0) for parts in shares) for part in StepPart}
    return of_tables(tables, mean_parts, configuration.mean("iteration_time_s"))


def in_calls(function: str, found: Sum) -> str:
    """Return a function with the number of its calls in words: "14 cudaStreamSynchronize"."""
    return f"{count(found.calls)} {function}"


def count(calls: float) -> str:
    """Return how many calls there are, which may be a mean: with three digits.

    >>> count(1840.2), count(0.25), count(14.0)
    ('1,840', '0.25', '14')
    """
    return number(round(calls) if calls >= 100 else calls)


def things(calls: float, singular: str) -> str:
    """Return a number of things in words.

    >>> things(1840.2, "kernel"), things(1.0, "copy of 4 B")
    ('1,840 kernels', '1 copy of 4 B')
    """
    words = count(calls)
    return f"{words} {singular if words == '1' else plural(2, singular)}"
