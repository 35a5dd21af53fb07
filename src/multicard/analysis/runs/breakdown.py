"""The breakdown of a run's step: parts that are shares of its time and add up to 1. The largest one bounds the run.

The step is the mean of the measured steps, from the start of each to the start of the next. Their phases time the wait
for data, evaluation and stalls (`phase_parts`). Where GPUs were traced, what remains is divided in the proportions of
the profiled steps (`divided_by_trace`), else by the phases.

A run's row of measures holds its breakdown, in a column for each part (`StepPart.column`) and `bound`.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import pandas as pd

from multicard.analysis.runs.notices import Values, without_empty
from multicard.analysis.runs.step_parts import TRACED_PARTS, DevicePart, StepPart

# Shares of the time of a step by its parts.
Shares = Mapping[StepPart, float]

# Columns of measures.csv.
MEASURES = (*(part.column for part in StepPart), "stalled_steps", "bound")

# Parts that are timed on every measured step, so these times come before those of the few profiled steps.
_TIMED_PARTS = (StepPart.DATA, StepPart.EVALUATION, StepPart.STALLS)
# Idle time of a rank's GPU that the rank's own wait for data may cause, the likeliest first.
_IDLE_FOR_DATA = (StepPart.DATA, StepPart.HOST_ELSEWHERE, StepPart.LAUNCHES)


def complete_breakdowns(rows: Iterable[Mapping[str, Any]], traces: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of measures with the share of each part, by the traces too where there are some, and `bound`.

    `rows`: measures of a scenario's runs, with those of `measures_of_phases`. `traces`: the table `trace_shares`, whose
    index are the runs. A part that is not known is None, and so is the bound of a run without parts.
    """
    shares_by_run = traces.to_dict("index")
    completed = []
    for row in rows:
        measures = without_empty(row)
        trace = without_empty(shares_by_run.get(row["run"], {}))
        completed.append({**row, **_breakdown(measures, trace)})
    return completed


def parts_of(measures: Mapping[str, Any]) -> dict[StepPart, float]:
    """Return the parts of a run's step that its measures have, as shares of the step."""
    values = without_empty(measures)
    return {part: float(values[part.column]) for part in StepPart if part.column in values}


def _breakdown(measures: Values, trace: Values) -> dict[str, Any]:
    """Return the columns of all parts, and `bound`, the name of the largest part."""
    parts: Shares = parts_of(measures)
    # Without kernels in the trace it is not known when a device was idle.
    if DevicePart.COMPUTE in trace:
        parts = divided_by_trace(parts, trace, profiled_wait(measures))
    bound = max(parts, key=parts.__getitem__, default=None)
    columns = {part.column: parts.get(part) for part in StepPart}
    return columns | {"bound": None if bound is None else bound.value}


class ProfiledWait(NamedTuple):
    """The wait for data in the profiled steps, as shares of the step that the trace shows. Made by `profiled_wait`."""

    # Mean over ranks.
    mean: float
    # The wait of the rank that waits longest in each step. Meanwhile the other ranks wait for it.
    longest: float
    # False if the phase `data` of the profiled steps was not recorded; both shares are then 0.
    is_recorded: bool


def divided_by_trace(phases: Shares, trace: Values, wait: ProfiledWait) -> Shares:
    """Return the parts of the measured step; what their phases do not time is divided as in the profiled steps.

    `phases`: parts by the phases of the measured steps. `trace`: the run's row of `trace_shares`. All are shares, of
    the measured step, and of the devices' time in the profiled steps.

    A wait for data in the profiled steps shows in their trace as idle time of the rank that waits, and as the other
    ranks' wait for it. The measured steps have a wait of their own, which is timed, so that of the profiled steps is
    taken out of the trace first; else it would count twice.

    Two GPUs that by turns wait 3/4 of a step for data, and for the other one. On average each is idle for 3/8, and
    inside a collective for 3/8. Nothing of that is left when the wait is taken out: the rest of the step is computing.

    >>> trace = {"compute": 0.25, "idle (launching)": 0.375, "exposed communication": 0.375,
    ...     "waiting_in_collectives": 0.375}
    >>> wait = ProfiledWait(mean=0.375, longest=0.75, is_recorded=True)
    >>> parts = divided_by_trace({StepPart.DATA: 0.75, StepPart.COMPUTE_OR_COMMUNICATION: 0.25}, trace, wait)
    >>> {part.value: share for part, share in parts.items() if share > 0}
    {'compute': 0.25, 'data loading': 0.75}
    """
    traced = separate_waits_for_ranks(traced_parts(trace), trace.get("waiting_in_collectives", 0.0))
    # A rank's own wait keeps its GPU idle: on average over GPUs, for the mean wait. What the rank that waits longest
    # waits beyond that, the others wait for it.
    traced, explained = take_out(traced, _IDLE_FOR_DATA, wait.mean, taken=0.0)
    traced, explained = take_out(traced, (StepPart.RANKS,), wait.longest, taken=explained)
    timed = {part: phases[part] for part in _TIMED_PARTS if part in phases}
    if StepPart.DATA not in timed and wait.is_recorded:
        timed[StepPart.DATA] = explained
    return fill_up(timed, traced)


def profiled_wait(measures: Values) -> ProfiledWait:
    """Return the wait for data in a run's profiled steps.

    The step is that of the trace (`trace_iteration_time_s`), since the traced parts are shares of it. The longest wait
    is at least the mean. Both are 0 where the trace shows no steps.

    >>> profiled_wait({"trace_iteration_time_s": 0.5, "profiled_data_s": 0.125, "profiled_data_share": 0.5,
    ...     "profiled_iteration_time_s": 0.5})
    ProfiledWait(mean=0.25, longest=0.5, is_recorded=True)
    """
    step_s = measures.get("trace_iteration_time_s")
    mean_s = measures.get("profiled_data_s")
    is_recorded = mean_s is not None
    if not step_s:
        return ProfiledWait(0.0, 0.0, is_recorded)
    longest_s = measures.get("profiled_data_share", 0.0) * measures.get("profiled_iteration_time_s", 0.0)
    mean = mean_s / step_s if mean_s else 0.0
    return ProfiledWait(mean, max(mean, longest_s / step_s), is_recorded)


def traced_parts(trace: Values) -> Shares:
    """Return the parts of a step that a trace shows, each the sum of its parts of the devices' time.

    >>> parts = traced_parts({"compute": 0.5, "compute and communication": 0.25, "idle (queued)": 0.25})
    >>> parts[StepPart.COMPUTE], parts[StepPart.QUEUED], parts[StepPart.LAUNCHES]
    (0.75, 0.25, 0.0)
    """
    return {
        part: sum(trace.get(device_part, 0.0) for device_part in device_parts)
        for part, device_parts in TRACED_PARTS.items()
    }


def separate_waits_for_ranks(parts: Shares, waiting: float) -> Shares:
    """Return the parts with waits for other ranks as one of their own, taken from exposed communication.

    `waiting`: share of the time that GPUs were inside a collective that not all ranks had joined. It is no more than
    exposed communication here: the rest of it is hidden behind computation.

        waiting for other ranks = min(exposed communication, waiting)

    >>> separate_waits_for_ranks({StepPart.COMPUTE: 0.5, StepPart.COMMUNICATION: 0.5}, 0.375) == {
    ...     StepPart.COMPUTE: 0.5, StepPart.COMMUNICATION: 0.125, StepPart.RANKS: 0.375}
    True
    """
    waiting_exposed = min(parts[StepPart.COMMUNICATION], waiting)
    transfer = parts[StepPart.COMMUNICATION] - waiting_exposed
    return {**parts, StepPart.COMMUNICATION: transfer, StepPart.RANKS: waiting_exposed}


def take_out(parts: Shares, sources: Iterable[StepPart], most: float, taken: float) -> tuple[Shares, float]:
    """Take a wait out of some parts, and return what remains of all parts, and the total that was taken.

    `sources`: parts to take from, in this order, each as far as it goes. `most`: the total that may be taken, of which
    `taken` was taken before. From each source:

        min(source, most - taken so far)

    >>> parts = {StepPart.DATA: 0.125, StepPart.LAUNCHES: 0.5, StepPart.COMPUTE: 0.375}
    >>> remaining, total = take_out(parts, (StepPart.DATA, StepPart.LAUNCHES), most=0.25, taken=0.0)
    >>> remaining == {StepPart.DATA: 0.0, StepPart.LAUNCHES: 0.375, StepPart.COMPUTE: 0.375}, total
    (True, 0.25)
    """
    remaining = dict(parts)
    for part in sources:
        share = min(remaining[part], max(0.0, most - taken))
        remaining[part] -= share
        taken += share
    return remaining, taken


def fill_up(timed: Shares, traced: Shares) -> Shares:
    """Return the timed parts, and the traced ones scaled to what the timed ones leave of the step.

        share = traced share / sum of traced shares * (1 - sum of timed shares)

    If the trace has nothing left to divide, what remains is `OTHER`.

    >>> fill_up({StepPart.STALLS: 0.5}, {StepPart.COMPUTE: 0.375, StepPart.QUEUED: 0.125}) == {
    ...     StepPart.COMPUTE: 0.375, StepPart.QUEUED: 0.125, StepPart.STALLS: 0.5}
    True
    """
    shares = dict(traced)
    # Where the wait for data is timed, the trace may still have idle time in which the host loads data. It counts as
    # time in which the host makes no GPU call.
    if StepPart.DATA in timed:
        shares[StepPart.HOST_ELSEWHERE] += shares.pop(StepPart.DATA)
    remaining = max(0.0, 1.0 - sum(timed.values()))
    total = sum(shares.values())
    if total > 0:
        filling = {part: share / total * remaining for part, share in shares.items()}
    else:
        filling = {StepPart.OTHER: remaining}
    return {**filling, **timed}
