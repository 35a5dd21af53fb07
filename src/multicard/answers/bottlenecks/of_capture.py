"""Where the time of a single capture goes, in words: the answer of `multicard analyze`."""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pandas as pd

from multicard.answers.bottlenecks.capture_details import (
    KernelRow,
    Tables,
    calls_line,
    collectives_line,
    copies_line,
    kernel_rows,
)
from multicard.answers.bottlenecks.late_ranks import Rank, late_rank, waiting_inside
from multicard.answers.diagnoses.diagnosis import Diagnosis
from multicard.answers.diagnoses.gpus.gpu_activity import OF_GPUS, OF_PROCESSES, GpuActivity, of_tables
from multicard.answers.diagnoses.gpus.trace_causes import causes_on_gpus
from multicard.core.text import counted
from multicard.core.units import SECONDS, percent, with_unit
from multicard.core.values import number_of
from multicard.results.breakdown import MOSTLY, TRACED_PARTS, StepPart
from multicard.results.device_time import device_time, overall
from multicard.results.step_periods import DEVICE, StepTime, per_period, step_time
from multicard.trace import idle
from multicard.trace.api_calls import KERNEL_LAUNCH
from multicard.trace.tables import STEP, STEPS, ActivityTables

# Parts below this share of the time are not listed.
SHOWN = 0.001
# If the shares of two GPUs differ by more than this, shares are shown as a range.
UNEQUAL = 0.01

# Parts of idle time that are shown with a function of the host, and the cause of idle time that the function is of.
CAUSE_OF_PART: dict[str, str] = {
    StepPart.ALLOCATING: idle.ALLOCATING,
    StepPart.LOADING_CODE: idle.LOADING_CODE,
    StepPart.SYNCHRONIZING: idle.WAITING,
    StepPart.HOST_ELSEWHERE: idle.ELSEWHERE,
}
# The causes of idle time that launch overhead is made of, in words.
CAUSES_OF_LAUNCHES = {
    "in launching calls": idle.LAUNCHING,
    "between calls": idle.BETWEEN_CALLS,
    "in other calls": idle.OTHER_CALLS,
}

# Name of `StepPart.OTHER` here. It is idle time without a known cause: the launch of the kernel that ended it was not
# recorded.
UNKNOWN = "idle for an unknown reason"
INSIDE_GRAPHS = (
    "What runs inside CUDA graphs was not recorded, and may be anything: nsys profile --cuda-graph-trace=node shows it"
)


class PartRow(NamedTuple):
    """A part of the step, or of launch overhead, in words: means over GPUs, or a range of shares if GPUs differ."""

    name: str
    seconds: str
    share: str
    # The function of the host during which the GPU is idle; empty if none is known.
    function: str


@dataclass(frozen=True)
class Answer:
    """Where the time of a capture goes. Made by `answer`, printed by `multicard analyze`."""

    sentence: str
    # False if the capture does not show where the time goes.
    is_known: bool = True
    # Lines on what is missing from the capture. They are printed first.
    warnings: list[str] = field(default_factory=list)
    # Parts of the step, or without steps of the time from the first to the last activity of GPUs. The largest comes
    # first, those below `SHOWN` are left out. Launch overhead is followed by its own parts, with indented names.
    parts: list[PartRow] = field(default_factory=list)
    # Causes of lost time that the trace shows, that with the largest gain first.
    causes: list[Diagnosis] = field(default_factory=list)
    # The steps or the time that `kernels` and `lines` sum up, such as " in 5 steps".
    over: str = ""
    # The longest kernels.
    kernels: list[KernelRow] = field(default_factory=list)
    # Lines on what else took long, such as collectives, copies and calls.
    lines: list[str] = field(default_factory=list)


def answer(tables: ActivityTables) -> Answer:
    """Return where the time of a capture goes, from its activity tables."""
    timeline = pd.DataFrame(tables.rows.get("timeline", []))
    devices = overall(timeline) if len(timeline) else timeline
    if devices.empty or devices["busy_s"].isna().all():
        return _without_gpus(tables)
    at_work = _at_work(devices)
    time = step_time(tables)
    spans = _step_durations(timeline, at_work) if time else at_work
    parts = _with_waiting_for_ranks(_part_shares(spans), spans, at_work, tables)
    span_s = time.mean_s if time else float(spans["span_s"].mean())
    functions = _functions(at_work)
    sentence = _sentence(parts, functions, span_s, time, len(devices))
    late = late_rank(
        tables.rows.get("stragglers", []),
        span_s=float(at_work["span_s"].mean()),
        steps=time.count if time else None,
    )
    over = f" in {counted(time.count, 'step')}" if time else f" in {with_unit(span_s, SECONDS)}"
    rows = _by_gpu(tables)
    gpus = len(at_work)
    return Answer(
        sentence=f"{sentence}; {late}" if late else sentence,
        warnings=list(tables.warnings),
        parts=_part_rows(parts, spans, functions, span_s),
        causes=causes_on_gpus(_activity(tables, timeline, at_work, spans, span_s)),
        over=over,
        kernels=kernel_rows(rows, gpus),
        lines=[
            *([INSIDE_GRAPHS] if parts[StepPart.GRAPHS].mean() >= SHOWN else []),
            *collectives_line(rows, gpus, over),
            *copies_line(rows, gpus, over),
            *calls_line(tables.rows, over if time else " in the whole capture"),
            *_idle_gpus(tables, len(devices)),
        ],
    )


def _by_gpu(tables: ActivityTables) -> Tables:
    """Return the rows of the tables about devices, so that each GPU is under one process.

    If several processes share a GPU, its rows get the process under which the timeline has that GPU.
    """
    if not tables.shared:
        return tables.rows
    by_gpu = {}
    for name in ("kernels", *OF_GPUS):
        rows = []
        for row in tables.rows.get(name, []):
            device = (row["report"], row["process"], row["device"])
            rows.append(row | {"process": tables.shared.get(device, row["process"])})
        by_gpu[name] = rows
    return by_gpu


def _activity(
    tables: ActivityTables, timeline: pd.DataFrame, at_work: pd.DataFrame, spans: pd.DataFrame, span_s: float
) -> GpuActivity | None:
    """Return what the GPUs of a capture do, as diagnoses read it.

    If there are steps, but the tables are of the whole capture, it is about the whole capture.
    """
    is_of_steps = bool((at_work["scope"] == STEPS).any())
    whole = spans if is_of_steps else at_work
    whole_s = span_s if is_of_steps else float(at_work["span_s"].mean())
    parts = _with_waiting_for_ranks(_part_shares(whole), whole, at_work, tables).mean()
    rows = _by_gpu(tables)
    names = [name for name in (*OF_GPUS, *OF_PROCESSES) if tables.rows.get(name)]
    frames = {name: pd.DataFrame(rows.get(name) or tables.rows[name]) for name in names}
    return of_tables(frames | {"timeline": timeline}, {StepPart(part): share for part, share in parts.items()}, whole_s)


def _at_work(devices: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the GPUs that ran a kernel or a graph; all rows if none did."""
    ran = devices[["compute_s", "communication_s", "graphs_s"]].fillna(0.0).sum(axis=1) > 0
    return devices[ran] if ran.any() else devices


def _step_durations(timeline: pd.DataFrame, at_work: pd.DataFrame) -> pd.DataFrame:
    """Return the durations of each GPU at work from the start of a step to the start of the next, mean over steps.

    If there is a single step, they are those of this step.
    """
    of_gpus = timeline.merge(at_work[DEVICE], on=DEVICE)
    from_start_to_start = per_period(of_gpus)
    if len(from_start_to_start):
        return from_start_to_start
    # Without a row of all steps together in the timeline, take the means of the rows of single steps.
    steps = of_gpus[of_gpus["scope"] == STEP]
    seconds = [name for name in steps if name.endswith("_s")]
    return steps.groupby(DEVICE, sort=False, dropna=False)[seconds].mean().reset_index()


def _part_shares(spans: pd.DataFrame) -> pd.DataFrame:
    """Return the share of each part in the span of each GPU: a row per GPU, a column per part."""
    shares = device_time(spans).div(spans["span_s"], axis=0)
    return pd.DataFrame({part: shares[list(names)].sum(axis=1) for part, names in TRACED_PARTS.items()})


def _with_waiting_for_ranks(
    parts: pd.DataFrame, spans: pd.DataFrame, devices: pd.DataFrame, tables: ActivityTables
) -> pd.DataFrame:
    """Return the parts with a further one: the time that GPUs waited inside collectives for other ranks.

    It is split off from exposed communication, because it would vanish if the other ranks arrived in time. `spans`: the
    time of a step of each GPU, whose shares `parts` has. `devices`: the whole time of each GPU, in which it waited.
    """
    waited_s = waiting_inside(tables.rows.get("stragglers", []))
    span_s = dict(zip(_ranks(devices), devices["span_s"], strict=True))
    shares = [waited_s.get(rank, 0.0) / span_s[rank] for rank in _ranks(spans)]
    # Waiting may be hidden behind computation. So it counts at most as much as the exposed communication.
    waiting = np.minimum(parts[StepPart.COMMUNICATION].to_numpy(), shares)
    transfer = parts[StepPart.COMMUNICATION] - waiting
    return parts.assign(**{StepPart.COMMUNICATION: transfer, StepPart.RANKS: waiting})


def _ranks(rows: pd.DataFrame) -> list[Rank]:
    """Return the rank of each row. Its device is None if the trace does not show it."""
    # An empty device is NaN, which is not equal to itself, so as a key of a dictionary it would never be found.
    columns = rows[DEVICE].astype(object)
    return [Rank(*values) for values in columns.where(columns.notna(), None).itertuples(index=False)]


def _functions(devices: pd.DataFrame) -> dict[str, str]:
    """Return a function of the host for each cause of idle time: that of the GPU with the most such idle time."""
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
    """Return the answer in words: how many GPUs there are, how long a step takes, and its two largest parts.

    `span_s`: seconds of a step, or of the capture. `time`: None if no steps were found. `devices`: how many GPUs are in
    the capture. `parts` has a row for each GPU that ran a kernel.
    """
    gpus = counted(len(parts), "GPU")
    if time:
        whole = "step"
        sentence = f"{gpus}, {counted(time.count, 'step')} of {with_unit(span_s, SECONDS)}{_spread(time)}"
    else:
        whole = "time"
        sentence = f"{gpus} in {with_unit(span_s, SECONDS)} from first to last activity, no steps found"
    means = parts.rename(columns={StepPart.OTHER: UNKNOWN}).mean().sort_values(ascending=False, kind="stable")
    (largest, share), (second, second_share) = list(means.items())[:2]
    extent = "mostly" if share >= MOSTLY else "largest part"
    sentence += f": {extent} {largest} ({percent(share)} of the {whole}{_in_call(largest, functions)})"
    if second_share >= SHOWN:
        took = with_unit(second_share * span_s, SECONDS)
        sentence += f"; then {second} ({percent(second_share)}, {took}{_in_call(second, functions)})"
    if devices > len(parts):
        sentence += f"; {devices - len(parts)} of {devices} GPUs ran no kernel"
    return sentence


def _spread(time: StepTime) -> str:
    """Return in words how unequal steps are; empty if their median is close to their mean."""
    if not time.is_skewed:
        return ""
    low, high = (with_unit(quartile, SECONDS) for quartile in time.quartiles_s)
    spread = f"quartiles {low} and {high}" if low != high else "few take far longer"
    return f" (median {with_unit(time.median_s, SECONDS)}, {spread})"


def _in_call(part: object, functions: dict[str, str]) -> str:
    function = functions.get(CAUSE_OF_PART.get(str(part), ""))
    return f", in {function}" if function else ""


def _part_rows(parts: pd.DataFrame, spans: pd.DataFrame, functions: dict[str, str], span_s: float) -> list[PartRow]:
    """Return a row for each part of at least `SHOWN`, the largest first."""
    rows = []
    for part, mean in parts.mean().sort_values(ascending=False, kind="stable").items():
        if mean >= SHOWN:
            name = UNKNOWN if part == StepPart.OTHER else str(part)
            function = functions.get(CAUSE_OF_PART.get(str(part), ""), "")
            rows.append(PartRow(name, with_unit(mean * span_s, SECONDS), _range(parts[part]), function))
            if part == StepPart.LAUNCHES:
                rows += _launch_rows(spans, functions, span_s)
    return rows


def _launch_rows(spans: pd.DataFrame, functions: dict[str, str], span_s: float) -> list[PartRow]:
    """Return a row for each part of launch overhead of at least `SHOWN`: its causes."""
    rows = []
    for name, cause in CAUSES_OF_LAUNCHES.items():
        shares = (spans[f"{cause}_s"].astype(float) / spans["span_s"]).fillna(0.0)
        mean = shares.mean()
        if mean >= SHOWN:
            took = with_unit(mean * span_s, SECONDS)
            rows.append(PartRow(f"  {name}", took, _range(shares), functions.get(cause, "")))
    return rows


def _range(shares: "pd.Series[float]") -> str:
    """Return the shares of GPUs in words: their mean, or their range if they differ by more than `UNEQUAL`."""
    least = max(shares.min(), 0.0)
    most = shares.max()
    if most - least > UNEQUAL:
        return f"{percent(least)} to {percent(most)}"
    return percent(shares.mean())


def _idle_gpus(tables: ActivityTables, devices: int) -> list[str]:
    """Return a line on GPUs of the machine that ran nothing; none if there are none, or if that is not known."""
    if tables.gpu_count is None or tables.gpu_count <= devices:
        return []
    return [f"{tables.gpu_count - devices} of the machine's {tables.gpu_count} GPUs ran nothing"]


def _steps_of_ranks(phases: pd.DataFrame) -> str:
    """Return the number of steps in words, by rank: "5 steps", "2 ranks × 5 steps", "9 steps in 2 ranks"."""
    steps = phases[phases["phase"] == STEP]
    counts = steps.groupby(["report", "process"], dropna=False).size()
    if len(counts) == 1:
        return counted(len(steps), "step")
    ranks = counted(len(counts), "rank")
    if counts.nunique() == 1:
        return f"{ranks} × {counted(counts.iloc[0], 'step')}"
    return f"{len(steps)} steps in {ranks}"


def _without_gpus(tables: ActivityTables) -> Answer:
    """Return the answer for a capture without activity of GPUs: the phases of its steps, and why it shows no more."""
    launches = _launched_kernels(tables)
    recorded = "no kernels of a GPU were recorded"
    if launches:
        were = "was" if launches == 1 else "were"
        recorded = f"{counted(launches, 'kernel')} {were} launched, but none recorded on a GPU"
    diagnostics = list(tables.diagnostics)
    reason = f": {'; '.join(diagnostics)}" if diagnostics else ""
    calls = calls_line(tables.rows, " in the whole capture")
    phases = pd.DataFrame(tables.rows.get("phases", []))
    if phases.empty:
        return Answer(f"cannot tell: {recorded}, and no step{reason}", is_known=False, lines=calls)
    sentence = f"{recorded}; {_phases_words(phases)}"
    steps = int(phases["phase"].eq(STEP).sum())
    late = late_rank(tables.rows.get("stragglers", []), span_s=None, steps=steps or None)
    if late:
        sentence += f"; {late}"
    # If kernels were launched, GPUs did the work, and the steps of the host do not show where their time goes.
    if launches:
        return Answer(f"cannot tell: {sentence}{reason}", is_known=False, lines=calls)
    return Answer(sentence, lines=calls)


def _launched_kernels(tables: ActivityTables) -> int:
    launches = 0.0
    for row in tables.rows.get("cuda_api", []):
        if row["api"] != "backtrace" and KERNEL_LAUNCH.match(str(row["function"])):
            launches += number_of(row["calls"])
    return int(launches)


def _phases_words(phases: pd.DataFrame) -> str:
    """Return in words the number of steps with their mean time, if there are any, and the mean time of each phase."""
    mean_s = phases.groupby("phase", sort=False)["duration_s"].mean().sort_values(ascending=False)
    steps = f"{_steps_of_ranks(phases)} of {with_unit(mean_s[STEP], SECONDS)}" if STEP in mean_s else "ranges"
    in_steps = [f"{name} {with_unit(seconds, SECONDS)}" for name, seconds in mean_s.items() if name != STEP]
    return f"{steps}: {', '.join(in_steps)}" if in_steps else steps
