"""The breakdown of a run's step: parts that are shares of its time and add up to 1. The largest one bounds the run.

A step lasts from its start to the start of the next one, and the mean of the measured steps is divided.
`complete_breakdowns` reads for each run

- its measures, as `measure.measure_run` returns them: the parts that the phases of the measured steps show, which
  `phase_parts` computes, are in the columns of `StepPart`;
- its row of `per_run.trace_shares`: shares of its devices' time in the profiled steps (`DevicePart`), and of the waits
  for other ranks in them.

The wait for data, evaluation and stalls are timed by the phases. The rest of the step is divided in the proportions of
the trace (`divided_by_trace`), or by the phases, too, if no GPU was traced.

`answers.outputs` writes the result to measures.csv, in a column for each part (`StepPart.column`) and the column
`bound`. From there `parts_of` reads it.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

import pandas as pd

from multicard.core.values import Cell, Row
from multicard.results.device_time import DevicePart
from multicard.results.tables import KnownValues, known_values

# A step is "mostly" its largest part if the part has at least this share of its time.
MOSTLY = 0.5


class StepPart(StrEnum):
    """A part of a run's step. Its value is the name in texts and figures.

    The parts are in the order of the columns of measures.csv. docs/step-time.md explains them in "Parts of a step". A
    run has either `COMPUTE` or `COMPUTE_OR_COMMUNICATION`.
    """

    COMPUTE = "compute"
    # Used for several devices without a trace, because phases do not separate communication from computing.
    COMPUTE_OR_COMMUNICATION = "compute or communication"
    GRAPHS = "CUDA graphs"
    COMMUNICATION = "exposed communication"
    RANKS = "waiting for other ranks"
    MEMORY_OPERATIONS = "memory operations"
    LAUNCHES = "launch overhead"
    ALLOCATING = "memory allocation"
    LOADING_CODE = "loading code"
    SYNCHRONIZING = "synchronization"
    HOST_ELSEWHERE = "host without GPU calls"
    DATA = "data loading"
    WITHIN_GRAPHS = "idle within graphs"
    QUEUED = "queued on the GPU"
    EVALUATION = "evaluation"
    STALLS = "stalls"
    OTHER = "other"

    @property
    def column(self) -> str:
        """The column of measures.csv with the share of the step that this part takes, from 0 to 1.

        >>> StepPart.GRAPHS.column
        'cuda_graphs_share'
        """
        return f"{self.value.lower().replace(' ', '_')}_share"


# The parts of a step that a trace shows. Each is the sum of the listed parts of the devices' time.
TRACED_PARTS: dict[StepPart, tuple[DevicePart, ...]] = {
    StepPart.COMPUTE: (DevicePart.COMPUTE, DevicePart.COMPUTE_AND_COMMUNICATION),
    StepPart.GRAPHS: (DevicePart.GRAPHS,),
    StepPart.COMMUNICATION: (DevicePart.COMMUNICATION,),
    StepPart.MEMORY_OPERATIONS: (DevicePart.MEMORY_OPERATIONS,),
    StepPart.LAUNCHES: (DevicePart.IDLE_LAUNCHING,),
    StepPart.ALLOCATING: (DevicePart.IDLE_ALLOCATING,),
    StepPart.LOADING_CODE: (DevicePart.IDLE_LOADING_CODE,),
    StepPart.SYNCHRONIZING: (DevicePart.IDLE_SYNCHRONIZING,),
    StepPart.DATA: (DevicePart.IDLE_DATA_LOADING,),
    StepPart.HOST_ELSEWHERE: (DevicePart.IDLE_HOST_ELSEWHERE,),
    StepPart.WITHIN_GRAPHS: (DevicePart.IDLE_IN_GRAPH,),
    StepPart.QUEUED: (DevicePart.IDLE_QUEUED,),
    StepPart.OTHER: (DevicePart.IDLE_UNKNOWN,),
}

# Shares of the time of a step, from 0 to 1, by part.
Shares = Mapping[StepPart, float]

# Parts that are timed in every measured step. These times are used instead of those of the few profiled steps.
_TIMED_PARTS = (StepPart.DATA, StepPart.EVALUATION, StepPart.STALLS)
# Parts that show as idle time of a rank's GPU and that the rank's own wait for data may cause, the likeliest first.
_IDLE_FOR_DATA = (StepPart.DATA, StepPart.HOST_ELSEWHERE, StepPart.LAUNCHES)


def complete_breakdowns(rows: Iterable[Mapping[str, Cell]], traces: pd.DataFrame) -> list[Row]:
    """Return the rows of measures with the share of each part and with `bound`, the name of the largest part.

    `rows`: the rows of a scenario's runs, as `measure_run` returns them. `traces`: the table that
    `per_run.trace_shares` returns, indexed by run. The share of a part that is not known is None. `bound` is None if no
    part is known.
    """
    shares_by_run = traces.to_dict("index")
    completed = []
    for row in rows:
        measures = known_values(row)
        trace = known_values(shares_by_run.get(row["run"], {}))
        completed.append({**row, **_breakdown(measures, trace)})
    return completed


def parts_of(measures: KnownValues) -> dict[StepPart, float]:
    """Return the parts whose columns are not empty in a run's measures, as shares of its step."""
    values: KnownValues = known_values(measures)
    return {part: float(values[part.column]) for part in StepPart if part.column in values}


def _breakdown(measures: KnownValues, trace: KnownValues) -> Row:
    """Return the columns of all parts, and the column `bound`. `trace`: the run's row of `trace_shares`, or empty."""
    parts: Shares = parts_of(measures)
    # The trace is used only if it has kernels. Without them it is not known when a device was idle.
    if DevicePart.COMPUTE in trace:
        parts = divided_by_trace(parts, trace, profiled_wait(measures))
    bound = max(parts, key=parts.__getitem__, default=None)
    columns: Row = {part.column: parts.get(part) for part in StepPart}
    return columns | {"bound": None if bound is None else bound.value}


class ProfiledWait(NamedTuple):
    """The wait for data in the profiled steps, as shares of a step's time in the trace. Made by `profiled_wait`."""

    # Mean wait of all ranks.
    mean: float
    # In each step the wait of the rank for which the others wait: see `windows.Window.waiting`.
    longest: float
    # False if the phase `data` of the profiled steps was not recorded; both shares are then 0.
    is_recorded: bool


def divided_by_trace(phases: Shares, trace: KnownValues, wait: ProfiledWait) -> Shares:
    """Return the parts of the measured step. The part that phases do not time is divided as in the profiled steps.

    `phases`: the parts that the phases of the measured steps show, as shares of the measured step. `trace`: the run's
    row of `trace_shares`, shares of the devices' time in the profiled steps. `wait`: of the profiled steps.

    While a rank waits for data in the profiled steps, the trace shows its GPU as idle, and the GPUs of the other ranks
    as waiting for it. The wait for data of the measured steps is timed by their phases. So the wait of the profiled
    steps is subtracted from the trace first. Otherwise waits for data would count twice.

    In the example, two GPUs take turns: in each step one waits for data during 3/4 of the step, and the other waits for
    it. On average a GPU is idle for 3/8 of the step, and inside a collective for another 3/8. When the wait is
    subtracted from the trace, only computing remains:

    >>> trace = {"compute": 0.25, "idle (launching)": 0.375, "exposed communication": 0.375,
    ...     "waiting_in_collectives": 0.375}
    >>> wait = ProfiledWait(mean=0.375, longest=0.75, is_recorded=True)
    >>> parts = divided_by_trace({StepPart.DATA: 0.75, StepPart.COMPUTE_OR_COMMUNICATION: 0.25}, trace, wait)
    >>> {part.value: share for part, share in parts.items() if share > 0}
    {'compute': 0.25, 'data loading': 0.75}
    """
    traced = separate_waits_for_ranks(traced_parts(trace), trace.get("waiting_in_collectives", 0.0))
    # A rank's own wait keeps its GPU idle. Averaged over GPUs, this idle time is the mean wait. The longest wait minus
    # the mean wait is the time that the other ranks wait for the rank with the longest wait, averaged over ranks.
    traced, explained = take_out(traced, _IDLE_FOR_DATA, wait.mean, taken=0.0)
    traced, explained = take_out(traced, (StepPart.RANKS,), wait.longest, taken=explained)
    timed = {part: phases[part] for part in _TIMED_PARTS if part in phases}
    if StepPart.DATA not in timed and wait.is_recorded:
        timed[StepPart.DATA] = explained
    return fill_up(timed, traced)


def profiled_wait(measures: KnownValues) -> ProfiledWait:
    """Return the wait for data in a run's profiled steps.

    Both waits are divided by the time of a step in the trace (`trace_iteration_time_s`), because the traced parts are
    shares of it, too. If the longest wait is less than the mean, the mean takes its place. Both are 0 if the trace
    shows no steps.

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


def traced_parts(trace: KnownValues) -> Shares:
    """Return the parts of a step that a trace shows, each the sum of the parts of the devices' time in `TRACED_PARTS`.

    >>> parts = traced_parts({"compute": 0.5, "compute and communication": 0.25, "idle (queued)": 0.25})
    >>> parts[StepPart.COMPUTE], parts[StepPart.QUEUED], parts[StepPart.LAUNCHES]
    (0.75, 0.25, 0.0)
    """
    return {
        part: sum(trace.get(device_part, 0.0) for device_part in device_parts)
        for part, device_parts in TRACED_PARTS.items()
    }


def separate_waits_for_ranks(parts: Shares, waiting: float) -> Shares:
    """Return the parts with waits for other ranks as a further part, which is subtracted from exposed communication.

    `waiting`: share of the time in which GPUs were inside a collective that not all ranks had joined. If it is more
    than exposed communication, the difference is hidden behind computation and does not count:

        waiting for other ranks = min(exposed communication, waiting)

    >>> separate_waits_for_ranks({StepPart.COMPUTE: 0.5, StepPart.COMMUNICATION: 0.5}, 0.375) == {
    ...     StepPart.COMPUTE: 0.5, StepPart.COMMUNICATION: 0.125, StepPart.RANKS: 0.375}
    True
    """
    waiting_exposed = min(parts[StepPart.COMMUNICATION], waiting)
    transfer = parts[StepPart.COMMUNICATION] - waiting_exposed
    return {**parts, StepPart.COMMUNICATION: transfer, StepPart.RANKS: waiting_exposed}


def take_out(parts: Shares, sources: Iterable[StepPart], most: float, taken: float) -> tuple[Shares, float]:
    """Subtract a wait from some parts. Return the remaining parts, and the total that was subtracted, `taken` included.

    `sources`: the parts to subtract from, in this order. `most`: the total to subtract. `taken`: how much of the total
    was subtracted before. From each source this is subtracted:

        min(source, most - total subtracted so far)

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
    """Return the timed parts as they are, and the traced parts scaled so that all parts add up to 1.

        share = traced share / sum of traced shares * (1 - sum of timed shares)

    If the traced shares add up to 0, the rest of the step is `OTHER`. If the timed shares add up to more than 1, the
    traced parts are 0.

    >>> fill_up({StepPart.STALLS: 0.5}, {StepPart.COMPUTE: 0.375, StepPart.QUEUED: 0.125}) == {
    ...     StepPart.COMPUTE: 0.375, StepPart.QUEUED: 0.125, StepPart.STALLS: 0.5}
    True
    """
    shares = dict(traced)
    # If the wait for data is timed, the trace may still have idle time in which the host loads data. This idle time
    # counts as time in which the host makes no GPU call, because the timed wait takes the place of the part `DATA`.
    if StepPart.DATA in timed:
        shares[StepPart.HOST_ELSEWHERE] += shares.pop(StepPart.DATA)
    remaining = max(0.0, 1.0 - sum(timed.values()))
    total = sum(shares.values())
    if total > 0:
        filling = {part: share / total * remaining for part, share in shares.items()}
    else:
        filling = {StepPart.OTHER: remaining}
    return {**filling, **timed}
