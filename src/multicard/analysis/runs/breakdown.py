"""One breakdown of the step of each run: parts that are means and add up to it. The largest one bounds the run.

It is of the measured steps, from the start of each to the start of the next. Their phases tell the wait for data,
evaluation and stalls. Where GPUs were traced, the profiled steps tell how what remains is divided; else the phases do,
and on CPUs what the ranks' threads waited for.
"""

from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

import numpy as np
import pandas as pd

from multicard.analysis.runs.device_time import (
    COMMUNICATION,
    COMPUTE,
    COPIES,
    ELSEWHERE,
    LAUNCHES,
    OF_TRACE,
    RANKS,
)
from multicard.analysis.runs.thread_times import EVALUATION, OTHER, ThreadTimes
from multicard.analysis.runs.windows import Window
from multicard.analysis.scaling.speedup import BASELINE_DIFFERS
from multicard.experiment.config import configuration_key

EITHER = "compute or communication"
COMPUTING = (COMPUTE, EITHER)
DATA, STALLS = "data loading", "stalls"
CPUS = "waiting for a CPU"

# The parts, and what each is.
PARTS = {
    COMPUTE: "computing: forward, backward and optimizer, or by a trace the kernels that do not communicate",
    EITHER: "the same on several devices where no trace tells communication from computing",
    COMMUNICATION: "communicating while nothing is computed",
    RANKS: "waiting for other ranks: before and inside collectives; on CPUs what a rank is blocked longer than on one",
    CPUS: "ready to run on a CPU, with none to run on",
    COPIES: "copying or filling memory while nothing is computed",
    LAUNCHES: "the GPU is idle while the host launches its next kernels",
    ELSEWHERE: "the GPU is idle while the host does something else than launching, such as loading data",
    DATA: "waiting for the loader, on the rank that waited longest in each step",
    EVALUATION: "evaluation between the steps of a pass",
    STALLS: f"what steps far longer than the rest take beyond a typical one, but for {DATA} and {EVALUATION}",
    OTHER: "none of these",
}
COLUMNS = {part: f"{part.lower().replace(' ', '_')}_share" for part in PARTS}

MEASURES: dict[str, str] = {
    **{COLUMNS[part]: f"part of the step, of which all add up to 1: {text}" for part, text in PARTS.items()},
    "blocked_share": "on CPUs, share of the step in which a rank's thread computes by its phases but neither runs nor "
    "waits for a CPU, as while it waits for other ranks; mean over ranks, empty where that was not recorded",
    "stalled_steps": "the steps with stalls: how many, and the numbers of the first",
    "bound": f"the largest part of the step: {', '.join(f'`{part}`' for part in PARTS)}",
}

FEWEST = 8  # steps of which the longest can be told from the rest
FAR = 3.0  # quartile ranges of the logarithm beyond the upper quartile: Tukey's outer fence
STALLED = 1.5  # times a typical step, at least
NAMED = 5  # stalled steps

_PHASES = {DATA: ("data",), EVALUATION: ("evaluation",), COPIES: ("transfer",)}
COMPUTES = ("forward", "backward", "optimizer")  # phases


def of_steps(window: Window, devices: int, threads: ThreadTimes | None = None) -> dict[str, Any]:
    """Measures of the breakdown by the phases of the measured steps; none where no phase was recorded.

    Phases do not tell communication from computing, so on several devices both are one part. `threads` of ranks on CPUs
    tell how much of each phase was a wait for a CPU.
    """
    recorded = {name for name in (*COMPUTES, *sum(_PHASES.values(), ())) if _is_recorded(window.steps, f"{name}_s")}
    if not recorded:
        return {}
    phases = {COMPUTE if devices == 1 else EITHER: COMPUTES} | _PHASES
    phases = {part: known for part, names in phases.items() if (known := [each for each in names if each in recorded])}
    seconds = pd.DataFrame({part: window.waiting[names].sum(axis=1) for part, names in phases.items()})
    seconds[OTHER] = (window.waiting["pitch_s"] - seconds.sum(axis=1)).clip(lower=0.0)
    busy = seconds.drop(columns=[DATA, EVALUATION], errors="ignore")
    stalled = _far_longer(busy.sum(axis=1))
    usual = busy.where(busy <= busy[~stalled].median(), busy[~stalled].median(), axis=1)
    seconds[STALLS] = (busy - usual).sum(axis=1).where(stalled, 0.0)
    seconds[busy.columns] = busy.mask(stalled, usual)
    shares = seconds.sum() / seconds.to_numpy().sum()
    if threads is not None:
        waits = {part: shares[part] * threads.waiting(phases.get(part, [part])) for part in (*phases, OTHER)}
        shares = shares.sub(pd.Series(waits), fill_value=0.0)
        shares[CPUS] = sum(waits.values())
    steps = seconds.index[stalled].tolist()
    first = ", ".join(map(str, steps[:NAMED])) + (", …" if len(steps) > NAMED else "")
    return {
        **{COLUMNS[part]: float(share) for part, share in shares.items()},
        "blocked_share": threads and threads.blocked(COMPUTES) / threads.total,
        "stalled_steps": f"{len(steps)} of {len(seconds)}: {first}" if steps else None,
    }


def _is_recorded(steps: pd.DataFrame, column: str) -> bool:
    return column in steps and bool(steps[column].notna().any())


def _far_longer(seconds: pd.Series) -> pd.Series:
    """Which steps are beyond Tukey's outer fence of the logarithms, and far longer than the median."""
    if len(seconds) < FEWEST:
        return pd.Series(data=False, index=seconds.index)
    logarithms = np.log(seconds.clip(lower=1e-9))
    low, high = logarithms.quantile([0.25, 0.75])
    return (logarithms > high + FAR * (high - low)) & (seconds > STALLED * seconds.median())


def complete(rows: Iterable[Mapping[str, Any]], traces: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows of measures, with the parts as far as traces and runs on one device tell them too, and the `bound`.

    Parameters
    ----------
    rows
        Measures of a scenario's runs, with those of `of_steps`.
    traces
        As `trace_shares` gives them.
    """
    rows, shares = list(rows), traces.to_dict("index")
    alone: dict[tuple[Any, ...], list[float]] = {}
    for row in rows:
        if row.get("devices") == 1 and (blocked := _blocked_s(row)) is not None:
            alone.setdefault(_rest(row), []).append(blocked)
    return [row | _completed(row, shares.get(row["run"], {}), alone.get(_rest(row))) for row in rows]


def parts_of(values: Mapping[str, Any]) -> dict[str, float]:
    """The parts of a run's step that are known, by its measures."""
    return {part: share for part, name in COLUMNS.items() if (share := _number(values, name)) is not None}


def _completed(row: Mapping[str, Any], trace: Mapping[str, Any], alone: list[float] | None) -> dict[str, Any]:
    parts = parts_of(row)
    if _number(trace, "compute") is not None:
        parts = _with_trace(parts, row, trace)
    elif EITHER in parts and alone and (blocked_s := _blocked_s(row)) is not None:
        waited = max(0.0, blocked_s - median(alone)) / _number(row, "iteration_time_s")
        parts[RANKS] = min(waited, parts[EITHER])
        parts[EITHER] -= parts[RANKS]
    bound = max(parts, key=parts.__getitem__, default=None)
    return {column: parts.get(part) for part, column in COLUMNS.items()} | {"bound": bound}


def _with_trace(parts: Mapping[str, float], row: Mapping[str, Any], trace: Mapping[str, Any]) -> dict[str, float]:
    """Divide what the phases do not tell apart as the profiled steps are, but for their own wait for data.

    That wait explains idle time, then waits of other ranks as far as the rank without data waited longer than the mean.
    """
    shares = {part: sum(_number(trace, name) or 0.0 for name in names) for part, names in OF_TRACE.items()}
    inside = min(shares[COMMUNICATION], _number(trace, "waiting_in_collectives") or 0.0)
    shares[COMMUNICATION] -= inside
    shares[RANKS] += inside
    step_s, waited_s = _number(row, "trace_iteration_time_s"), _number(row, "profiled_data_s")
    waited = waited_s / step_s if waited_s and step_s else 0.0
    longest_s = (_number(row, "profiled_data_share") or 0.0) * (_number(row, "profiled_iteration_time_s") or 0.0)
    longest = max(waited, longest_s / step_s) if step_s else waited
    of_data = 0.0
    for part, most in ((ELSEWHERE, waited), (LAUNCHES, waited), (RANKS, longest)):
        explained = min(shares[part], max(0.0, most - of_data))
        shares[part] -= explained
        of_data += explained
    told = {part: parts[part] for part in (DATA, EVALUATION, STALLS) if part in parts}
    if DATA not in told and waited_s is not None:
        told[DATA] = of_data
    rest, total = max(0.0, 1.0 - sum(told.values())), sum(shares.values())
    divided = {part: share / total * rest for part, share in shares.items()} if total > 0 else {OTHER: rest}
    return divided | told


def _blocked_s(row: Mapping[str, Any]) -> float | None:
    """Seconds of a step in which a rank computes by its phases, but is blocked; None where that is not known."""
    share, step_s = _number(row, "blocked_share"), _number(row, "iteration_time_s")
    return None if share is None or not step_s else share * step_s


def _rest(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """The parameters in which a run is like its baseline."""
    return configuration_key(row, (*BASELINE_DIFFERS, "repeat"))


def _number(values: Mapping[str, Any], name: str) -> float | None:
    value = values.get(name)
    return None if value is None or pd.isna(value) else float(value)
