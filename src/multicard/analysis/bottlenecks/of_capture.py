"""Where the time of a single capture goes, in words: what `multicard analyze` answers with."""

from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from multicard.analysis.bottlenecks.capture_details import Rows, calls_line, collectives_line, copies_line, kernel_rows
from multicard.analysis.bottlenecks.late_ranks import late_rank, waiting_inside
from multicard.analysis.runs.breakdown import (
    ALLOCATING,
    COMMUNICATION,
    ELSEWHERE,
    GRAPHS,
    LAUNCHES,
    LOADING_CODE,
    MOSTLY,
    OF_TRACE,
    OTHER,
    RANKS,
    SYNCHRONIZING,
    device_time,
    overall,
    per_pitch,
)
from multicard.analysis.runs.step_periods import StepTime, step_time
from multicard.core.text import counted
from multicard.core.units import SECONDS, percent, with_unit
from multicard.trace import idle
from multicard.trace.api_calls import KERNEL_LAUNCH
from multicard.trace.tables import STEP, ActivityTables

SHOWN = 0.001  # share of the time, below which a part is not listed
UNEQUAL = 0.01  # difference of the shares of GPUs from which on they are shown as a range

PLACE = ["report", "process", "device"]

# Cause of idle time whose function of the host is shown next to a part; and the causes that make up launch overhead.
CAUSE_OF_PART = {
    ALLOCATING: idle.ALLOCATING, LOADING_CODE: idle.LOADING_CODE, SYNCHRONIZING: idle.WAITING,
    ELSEWHERE: idle.ELSEWHERE,
}  # fmt: skip
OF_LAUNCHES = {
    "in launching calls": idle.LAUNCHING, "between calls": idle.BETWEEN_CALLS, "in other calls": idle.OTHER_CALLS,
}  # fmt: skip

UNKNOWN = "idle for an unknown reason"  # the launch of what ended it was not recorded
INSIDE_GRAPHS = (
    "What runs inside CUDA graphs was not recorded, and may be anything: nsys profile --cuda-graph-trace=node shows it"
)


@dataclass(frozen=True)
class Answer:
    """Where the time of a capture goes, and in `sentence` the answer.

    `is_known` is False where the capture does not tell. `warnings` are lines on what is missing from it, which come
    before the answer. `parts` holds rows of text: name, time, share and function of the host of each part of the step,
    or of the time from the first to the last activity of GPUs, the largest first, without those below `SHOWN`; what
    launch overhead is made of follows it, with indented names. They are means over GPUs, and of the shares their range
    where GPUs differ. `over` says what the other lists are about. `kernels`: seconds, share of the time in kernels,
    calls, class and name of the longest, per GPU. `lines`: what else took long, as collectives, copies, calls.
    """

    sentence: str
    is_known: bool = True
    warnings: list[str] = field(default_factory=list)
    parts: list[tuple[str, str, str, str]] = field(default_factory=list)
    over: str = ""
    kernels: list[tuple[str, str, str, str, str]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)


def answer(found: ActivityTables) -> Answer:
    """Return where the time of a capture goes, by its tables."""
    timeline = pd.DataFrame(found.rows.get("timeline", []))
    devices = overall(timeline) if len(timeline) else timeline
    if devices.empty or devices["busy_s"].isna().all():
        return _without_gpus(found)
    at_work = _at_work(devices)
    time = step_time(found)
    spans = _of_steps(timeline, at_work) if time else at_work
    shares = device_time(spans).div(spans["span_s"], axis=0)
    parts = pd.DataFrame({part: shares[list(names)].sum(axis=1) for part, names in OF_TRACE.items()})
    parts = _with_ranks(parts, spans, at_work, found)
    span_s = time.mean_s if time else float(spans["span_s"].mean())
    over = f" in {counted(time.count, 'step')}" if time else f" in {with_unit(span_s, SECONDS)}"
    functions = _functions(at_work)
    gpus = len(at_work)
    rows = _by_gpu(found)
    late = late_rank(found.rows.get("stragglers", []), float(at_work["span_s"].mean()), time.count if time else None)
    lines = [
        *([INSIDE_GRAPHS] if parts[GRAPHS].mean() >= SHOWN else []),
        *collectives_line(rows, gpus, over),
        *copies_line(rows, gpus, over),
        *calls_line(found.rows, over if time else " in the whole capture"),
        *_idle_gpus(found, len(devices)),
    ]
    return Answer(
        _sentence(parts, functions, span_s, time, len(devices)) + (f"; {late}" if late else ""),
        True,
        list(found.warnings),
        _part_rows(parts, spans, functions, span_s),
        over,
        kernel_rows(rows, gpus),
        lines,
    )


def _by_gpu(found: ActivityTables) -> dict[str, Rows]:
    """Return the rows of the tables of devices, those of processes that share a GPU as of one of them."""
    if not found.shared:
        return found.rows
    return {
        name: [
            row | {"process": found.shared.get((row["report"], row["process"], row["device"]), row["process"])}
            for row in found.rows.get(name, [])
        ]
        for name in ("kernels", "collectives", "memory_operations")
    }


def _at_work(devices: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the GPUs that ran a kernel or a graph; of all if none did."""
    ran = devices[["compute_s", "communication_s", "graphs_s"]].fillna(0.0).sum(axis=1) > 0
    return devices[ran] if ran.any() else devices


def _of_steps(timeline: pd.DataFrame, at_work: pd.DataFrame) -> pd.DataFrame:
    """Return the mean durations of each GPU at work from one step's start to the next; of a single step, its own."""
    mine = timeline.merge(at_work[PLACE], on=PLACE)
    found = per_pitch(mine)
    if len(found):
        return found
    steps = mine[mine["scope"] == STEP]
    seconds = [name for name in steps if name.endswith("_s")]
    return steps.groupby(PLACE, sort=False, dropna=False)[seconds].mean().reset_index()


def _with_ranks(parts: pd.DataFrame, spans: pd.DataFrame, devices: pd.DataFrame, found: ActivityTables) -> pd.DataFrame:
    """Return the parts with what GPUs waited for other ranks inside collectives as a part of its own.

    This time is split from communication because it would vanish if the other ranks arrived in time.
    """
    waited = waiting_inside(found.rows.get("stragglers", []))
    total_s = dict(zip(_places(devices), devices["span_s"], strict=True))
    shares = [waited.get(place, 0.0) / total_s[place] for place in _places(spans)]
    inside = np.minimum(parts[COMMUNICATION].to_numpy(), shares)
    return parts.assign(**{COMMUNICATION: parts[COMMUNICATION] - inside, RANKS: inside})


def _places(rows: pd.DataFrame) -> list[tuple[str, int, int | None]]:
    """Return report, process and device of each row; None for a device that the trace does not tell."""
    known = rows[PLACE].astype(object)  # NaN equals nothing, so it finds no entry
    return [tuple(place) for place in known.where(known.notna(), None).itertuples(index=False)]


def _functions(devices: pd.DataFrame) -> dict[str, str]:
    """Return for each cause of idle time the host's function of the GPU that is idle most for it."""
    functions = {}
    for cause in idle.NAMED:
        column = f"{cause}_call"
        named = devices[devices[column].notna()] if column in devices else devices.iloc[:0]
        if len(named):
            functions[cause] = str(named.loc[named[f"{cause}_s"].astype(float).idxmax(), column])
    return functions


def _sentence(
    parts: pd.DataFrame, functions: dict[str, str], span_s: float, time: StepTime | None, devices: int
) -> str:
    """Return the answer: how many GPUs, how long a step, and its two largest parts."""
    gpus = counted(len(parts), "GPU")
    if time:
        of = "step"
        where = f"{gpus}, {counted(time.count, 'step')} of {with_unit(span_s, SECONDS)}"
        if time.is_skewed:
            low, high = (with_unit(quartile, SECONDS) for quartile in time.quartiles_s)
            spread = f"quartiles {low} and {high}" if low != high else "few take far longer"
            where += f" (median {with_unit(time.median_s, SECONDS)}, {spread})"
    else:
        of = "time"
        where = f"{gpus} in {with_unit(span_s, SECONDS)} from first to last activity, no steps found"
    means = parts.rename(columns={OTHER: UNKNOWN}).mean().sort_values(ascending=False, kind="stable")
    (first, share), (second, rest) = list(means.items())[:2]
    how = "mostly" if share >= MOSTLY else "largest part"
    sentence = f"{where}: {how} {first} ({percent(share)} of the {of}{_in_call(first, functions)})"
    if rest >= SHOWN:
        took = with_unit(rest * span_s, SECONDS)
        sentence += f"; then {second} ({percent(rest)}, {took}{_in_call(second, functions)})"
    if devices > len(parts):
        sentence += f"; {devices - len(parts)} of {devices} GPUs ran no kernel"
    return sentence


def _in_call(part: str, functions: dict[str, str]) -> str:
    function = functions.get(CAUSE_OF_PART.get(part, ""))
    return f", in {function}" if function else ""


def _part_rows(
    parts: pd.DataFrame, spans: pd.DataFrame, functions: dict[str, str], span_s: float
) -> list[tuple[str, str, str, str]]:
    """Return name, time, share and call of the host of each part that is worth a line."""
    rows = []
    for part, mean in parts.mean().sort_values(ascending=False, kind="stable").items():
        if mean < SHOWN:
            continue
        function = functions.get(CAUSE_OF_PART.get(str(part), ""), "")
        name = UNKNOWN if part == OTHER else str(part)
        rows.append((name, with_unit(mean * span_s, SECONDS), _range(parts[part]), function))
        if part == LAUNCHES:
            for what, cause in OF_LAUNCHES.items():
                share = (spans[f"{cause}_s"].astype(float) / spans["span_s"]).fillna(0.0)
                if share.mean() >= SHOWN:
                    took = with_unit(share.mean() * span_s, SECONDS)
                    rows.append((f"  {what}", took, _range(share), functions.get(cause, "")))
    return rows


def _range(shares: "pd.Series[float]") -> str:
    """Return the shares of GPUs in words: their mean, or their range where they differ."""
    least, most = max(shares.min(), 0.0), shares.max()
    return f"{percent(least)} to {percent(most)}" if most - least > UNEQUAL else percent(shares.mean())


def _idle_gpus(found: ActivityTables, devices: int) -> list[str]:
    """Return a line on GPUs of the machine that ran nothing, where the trace tells how many there are."""
    if found.gpu_count is None or found.gpu_count <= devices:
        return []
    return [f"{found.gpu_count - devices} of the machine's {found.gpu_count} GPUs ran nothing"]


def _steps_of_ranks(phases: pd.DataFrame) -> str:
    """Count steps in words, by rank: "5 steps", "2 ranks × 5 steps", "9 steps in 2 ranks"."""
    steps = phases[phases["phase"] == STEP]
    counts = steps.groupby(["report", "process"], dropna=False).size()
    if len(counts) == 1:
        return counted(len(steps), "step")
    ranks = counted(len(counts), "rank")
    return f"{ranks} × {counted(counts.iloc[0], 'step')}" if counts.nunique() == 1 else f"{len(steps)} steps in {ranks}"


def _without_gpus(found: ActivityTables) -> Answer:
    """Return what a capture without activity of GPUs tells: the phases of its steps, and why there is no more."""
    why = list(found.diagnostics)
    launches = sum(
        row["calls"]
        for row in found.rows.get("cuda_api", [])
        if row["api"] != "backtrace" and KERNEL_LAUNCH.match(row["function"])
    )
    none = "no kernels of a GPU were recorded"
    if launches:
        none = (
            f"{counted(launches, 'kernel')} {'was' if launches == 1 else 'were'} launched, but none recorded on a GPU"
        )
    calls = calls_line(found.rows, " in the whole capture")
    phases = pd.DataFrame(found.rows.get("phases", []))
    reason = f": {'; '.join(why)}" if why else ""
    if phases.empty:
        return Answer(f"cannot tell: {none}, and no step{reason}", is_known=False, lines=calls)
    means = phases.groupby("phase", sort=False)["duration_s"].mean().sort_values(ascending=False)
    count = int(phases["phase"].eq(STEP).sum())
    steps = f"{_steps_of_ranks(phases)} of {with_unit(means[STEP], SECONDS)}" if count else "ranges"
    rest = ", ".join(f"{name} {with_unit(seconds, SECONDS)}" for name, seconds in means.items() if name != STEP)
    sentence = f"{none}; {steps}{': ' if rest else ''}{rest}"
    late = late_rank(found.rows.get("stragglers", []), None, count or None)
    if late:
        sentence += f"; {late}"
    if launches:  # where the time of the GPU goes, nobody can tell from the steps of the host
        return Answer(f"cannot tell: {sentence}{reason}", is_known=False, lines=calls)
    return Answer(sentence, lines=calls)
