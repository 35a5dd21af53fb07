"""One breakdown of the step of each run: parts that are means and add up to it. The largest one bounds the run.

It is of the measured steps, from the start of each to the start of the next. Their phases tell the wait for data,
evaluation and stalls. Where GPUs were traced, the profiled steps tell how what remains is divided; else the phases do.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from multicard.analysis.runs.notices import without_empty
from multicard.analysis.runs.windows import Window
from multicard.trace.tables import STEP, STEPS

# Parts of the time of a device, by the activity table `timeline`, which add up to its span: each part's name, and the
# columns that it sums up, without `_s`.
IDLE_PARTS = {
    "idle (launching)": ("idle_launching", "idle_between_calls", "idle_other_calls"),
    "idle (allocating)": ("idle_allocating",),
    "idle (loading code)": ("idle_loading_code",),
    "idle (synchronizing)": ("idle_waiting",),
    "idle (data loading)": ("idle_data_loading",),
    "idle (host in no call)": ("idle_host_elsewhere",),
    "idle (within a graph)": ("idle_in_graph",),
    "idle (queued)": ("idle_queued",),
    "idle (unknown)": ("idle_unknown",),
}
BUSY_PARTS = (
    "compute", "compute and communication", "exposed communication", "exposed memory operations", "CUDA graphs",
)  # fmt: skip
DEVICE_PARTS = (*BUSY_PARTS, *IDLE_PARTS)
OTHER = "other"
MOSTLY = 0.5  # share of the time from which on a part is most of it

# What the breakdown of a step calls them.
COMPUTE, GRAPHS, COMMUNICATION, RANKS = "compute", "CUDA graphs", "exposed communication", "waiting for other ranks"
COPIES, LAUNCHES, ALLOCATING = "memory operations", "launch overhead", "memory allocation"
LOADING_CODE, SYNCHRONIZING, ELSEWHERE = "loading code", "synchronization", "host without GPU calls"
WITHIN_GRAPHS, QUEUED = "idle within graphs", "queued on the GPU"
DATA, EVALUATION, STALLS = "data loading", "evaluation", "stalls"
OF_TRACE = {
    COMPUTE: ("compute", "compute and communication"),
    GRAPHS: ("CUDA graphs",),
    COMMUNICATION: ("exposed communication",),
    COPIES: ("exposed memory operations",),
    LAUNCHES: ("idle (launching)",),
    ALLOCATING: ("idle (allocating)",),
    LOADING_CODE: ("idle (loading code)",),
    SYNCHRONIZING: ("idle (synchronizing)",),
    DATA: ("idle (data loading)",),
    ELSEWHERE: ("idle (host in no call)",),
    WITHIN_GRAPHS: ("idle (within a graph)",),
    QUEUED: ("idle (queued)",),
    OTHER: ("idle (unknown)",),
}

EITHER = "compute or communication"
COMPUTING = (COMPUTE, EITHER)

# What each is: docs/measuring.md, "Parts of a step".
PARTS = (
    COMPUTE, EITHER, GRAPHS, COMMUNICATION, RANKS, COPIES, LAUNCHES, ALLOCATING, LOADING_CODE, SYNCHRONIZING, ELSEWHERE,
    DATA, WITHIN_GRAPHS, QUEUED, EVALUATION, STALLS, OTHER,
)  # fmt: skip
COLUMNS = {part: f"{part.lower().replace(' ', '_')}_share" for part in PARTS}

MEASURES = (*COLUMNS.values(), "stalled_steps", "bound")

FEWEST = 8  # steps of which the longest can be told from the rest
FAR = 3.0  # quartile ranges of the logarithm beyond the upper quartile: Tukey's outer fence
STALLED = 1.5  # times a typical step, at least
NAMED = 5  # stalled steps

_PHASES = {DATA: ("data",), EVALUATION: ("evaluation",), COPIES: ("transfer",)}
COMPUTES = ("forward", "backward", "optimizer")  # phases


def of_steps(window: Window, devices: int) -> dict[str, Any]:
    """Measures of the breakdown by the phases of the measured steps; none where no phase was recorded.

    Phases do not tell communication from computing, so on several devices both are one part.
    """
    recorded = {name for name in (*COMPUTES, *sum(_PHASES.values(), ())) if _is_recorded(window.steps, f"{name}_s")}
    if not recorded:
        return {}
    phases = {COMPUTE if devices == 1 else EITHER: COMPUTES} | _PHASES
    phases = {part: known for part, names in phases.items() if (known := [each for each in names if each in recorded])}
    waiting = window.waiting
    seconds = {part: waiting[names].to_numpy().sum(axis=1) for part, names in phases.items()}  # of each step
    seconds[OTHER] = np.maximum(waiting["period_s"].to_numpy() - sum(seconds.values()), 0.0)
    busy = [part for part in seconds if part not in (DATA, EVALUATION)]
    stalled = _far_longer(sum(seconds[part] for part in busy))
    stalls = np.zeros(len(stalled))
    for part in busy:
        usual = np.minimum(seconds[part], np.median(seconds[part][~stalled]))
        stalls += np.where(stalled, seconds[part] - usual, 0.0)
        seconds[part] = np.where(stalled, usual, seconds[part])
    seconds[STALLS] = stalls
    total = sum(each.sum() for each in seconds.values())
    steps = waiting.index[stalled].tolist()
    first = ", ".join(map(str, steps[:NAMED])) + (", …" if len(steps) > NAMED else "")
    return {
        **{COLUMNS[part]: float(each.sum() / total) for part, each in seconds.items()},
        "stalled_steps": f"{len(steps)} of {len(stalled)}: {first}" if steps else None,
    }


def _is_recorded(steps: pd.DataFrame, column: str) -> bool:
    return column in steps and bool(steps[column].notna().any())


def _far_longer(seconds: np.ndarray) -> np.ndarray:
    """Which steps are beyond Tukey's outer fence of the logarithms, and far longer than the median."""
    if len(seconds) < FEWEST:
        return np.zeros(len(seconds), dtype=bool)
    logarithms = np.log(seconds.clip(1e-9))
    low, high = np.quantile(logarithms, [0.25, 0.75])
    return (logarithms > high + FAR * (high - low)) & (seconds > STALLED * np.median(seconds))


def complete(rows: Iterable[Mapping[str, Any]], traces: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows of measures, with the parts as far as traces tell them too, and the `bound`.

    `rows`: measures of a scenario's runs, with those of `of_steps`. `traces`: as `trace_shares` gives them.
    """
    shares = traces.to_dict("index")
    return [row | _completed(without_empty(row), without_empty(shares.get(row["run"], {}))) for row in rows]


def parts_of(values: Mapping[str, Any]) -> dict[str, float]:
    """The parts of a run's step that are known, by its measures."""
    known = without_empty(values)
    return {part: float(known[name]) for part, name in COLUMNS.items() if name in known}


def _completed(row: Mapping[str, Any], trace: Mapping[str, Any]) -> dict[str, Any]:
    parts = parts_of(row)
    if "compute" in trace:
        parts = _with_trace(parts, row, trace)
    bound = max(parts, key=parts.__getitem__, default=None)
    return {column: parts.get(part) for part, column in COLUMNS.items()} | {"bound": bound}


# Idle time of a rank's GPU that its own wait for data explains, the likeliest first.
_EXPLAINED_BY_DATA = (DATA, ELSEWHERE, LAUNCHES)


def _with_trace(parts: Mapping[str, float], row: Mapping[str, Any], trace: Mapping[str, Any]) -> dict[str, float]:
    """Divide what the phases do not tell apart as the profiled steps are, but for their own wait for data.

    That wait explains idle time, then waits of other ranks as far as the rank without data waited longer than the mean.
    """
    shares = {part: sum(trace.get(name, 0.0) for name in names) for part, names in OF_TRACE.items()}
    inside = min(shares[COMMUNICATION], trace.get("waiting_in_collectives", 0.0))
    shares[COMMUNICATION] -= inside
    shares[RANKS] = inside
    step_s, waited_s = row.get("trace_iteration_time_s"), row.get("profiled_data_s")
    waited = waited_s / step_s if waited_s and step_s else 0.0
    longest_s = row.get("profiled_data_share", 0.0) * row.get("profiled_iteration_time_s", 0.0)
    longest = max(waited, longest_s / step_s) if step_s else waited
    of_data = 0.0
    for part, most in (*((part, waited) for part in _EXPLAINED_BY_DATA), (RANKS, longest)):
        explained = min(shares[part], max(0.0, most - of_data))
        shares[part] -= explained
        of_data += explained
    told = {part: parts[part] for part in (DATA, EVALUATION, STALLS) if part in parts}
    if DATA not in told and waited_s is not None:
        told[DATA] = of_data
    if DATA in told:
        shares[ELSEWHERE] += shares.pop(DATA)  # in a loader, though not in the phase `data`
    rest, total = max(0.0, 1.0 - sum(told.values())), sum(shares.values())
    divided = {part: share / total * rest for part, share in shares.items()} if total > 0 else {OTHER: rest}
    return divided | told


def device_time(timeline: pd.DataFrame) -> pd.DataFrame:
    """Return the seconds of each of `DEVICE_PARTS` in each row of the timeline.

    `compute` is without communication, `exposed` is without any computation (of memory operations also without any
    communication), so every moment counts once. Idle time counts as of unknown cause where causes were not recorded. A
    row is empty where kernels were not recorded.
    """
    t = timeline.filter(regex="_s$").astype(float)
    causes = {
        part: sum((t[f"{name}_s"].fillna(0.0) for name in names if f"{name}_s" in t), pd.Series(0.0, t.index))
        for part, names in IDLE_PARTS.items()
    }
    unknown = "idle (unknown)"
    rest = t["idle_s"] - sum(seconds for part, seconds in causes.items() if part != unknown)
    causes[unknown] = rest.where(rest.isna() | (rest > 1e-12), 0.0)  # what remains of sums of the others is no time
    graphs = t["graphs_s"].fillna(0.0) if "graphs_s" in t else pd.Series(0.0, t.index)
    seconds = {
        "compute": t["compute_s"] - t["overlapped_s"],
        "compute and communication": t["overlapped_s"],
        "exposed communication": t["exposed_communication_s"],
        "exposed memory operations": t["busy_s"] - t["compute_s"] - t["exposed_communication_s"] - graphs,
        "CUDA graphs": graphs,
        **causes,
    }
    return pd.DataFrame(seconds).where(t["busy_s"].notna())


def overall(timeline: pd.DataFrame) -> pd.DataFrame:
    """Of each device the row about all steps together, or about the capture where its run's traces show no steps.

    A timeline without the column `run` is of one run.
    """
    rows = timeline[timeline["scope"] != STEP]
    of_steps = rows["scope"] == STEPS
    stepped = rows["run"].isin(rows.loc[of_steps, "run"]) if "run" in rows else of_steps.any()
    return rows[of_steps == stepped]


def per_pitch(timeline: pd.DataFrame) -> pd.DataFrame:
    """Seconds of each device from the start of a step to the start of the next one, mean over its steps.

    The time between steps counts, so this is what a step costs the job. With `n` steps, it is the row of all steps less
    that of the last one, over n − 1; of a single step there is no pitch, and it is that step. Devices without steps
    have no row. Columns: `report`, `process` and `device`, the durations of the timeline, `extent`, and `pitches`,
    n − 1.
    """
    place = ["report", "process", "device"]
    seconds = [name for name in timeline if name.endswith("_s") and name != "start_s"]
    found = []
    for where, own in timeline.groupby(place, sort=False, dropna=False):
        together, steps = own[own["scope"] == STEPS], own[own["scope"] == STEP].sort_values("step")
        if together.empty or steps.empty:
            continue
        row, pitches = together.iloc[0][seconds].astype(float), len(steps) - 1
        if pitches:
            row = (row - steps.iloc[-1][seconds].astype(float)) / pitches
        of_place = dict(zip(place, where, strict=True))
        found.append({**of_place, **row, "extent": together.iloc[0]["extent"], "pitches": pitches})
    return pd.DataFrame(found, columns=[*place, *seconds, "extent", "pitches"])
