"""The row of measures of a run, from its record, its tables of steps and epochs, and its activity tables.

A measure is a column of measures.csv; docs/measures.md defines each. A measure that was not recorded is None.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from multicard.config.experiment import PARAMETERS, parameters_in
from multicard.core.errors import UserError
from multicard.core.layout import EPOCH_COLUMNS, EPOCHS, PHASES, RUN, STEP_COLUMNS, STEPS
from multicard.core.reasons import describe_reason
from multicard.core.values import Cell, Row
from multicard.programs import PROGRAMS
from multicard.programs.program import Program
from multicard.results.breakdown import StepPart
from multicard.results.conditions import disturbance_of
from multicard.results.limits import MachineLimits, peak_bus_bandwidth
from multicard.results.phase_parts import parts_of_phases
from multicard.results.run_files import RunFiles
from multicard.results.stationarity import stationarity
from multicard.results.utilization import limits_of, operations_of_step, utilization
from multicard.results.windows import EVALUATION, Window, elapsed_s, step_periods
from multicard.runs.measures import ABOUT, COMMON, TRACE_TOLERANCE, Measures
from multicard.runs.parameters import as_columns
from multicard.runs.record import RunRecord

# Columns of steps.csv with the seconds of each phase.
_PHASE_COLUMNS = tuple(f"{phase}_s" for phase in PHASES)

# The names of the measures of each program, by the program's name. Below, those of all programs together.
MEASURES_OF = {
    name: tuple(dict.fromkeys((*COMMON, *program.measures.definitions))) for name, program in PROGRAMS.items()
}
MEASURES = tuple(dict.fromkeys(name for measures in MEASURES_OF.values() for name in measures))


@dataclass(frozen=True)
class RunMeasures:
    """The measures of one run, with notices about its record. Made by `measures_of`."""

    common: Measures = field(default_factory=Measures)
    # Throughput and energy in the program's unit of work, and the measures that only this program has, by their names.
    # A name may be missing; its measure was not recorded.
    own: Row = field(default_factory=dict)
    # How the record disagrees with the trace; None if it does not.
    inconsistency: str | None = None
    # What the trace lacks, or what was corrected in it; None if nothing.
    trace_notice: str | None = None

    def columns(self) -> Row:
        """Return all measures by the names of their columns."""
        return {**asdict(self.common), **self.own}

    def number(self, column: str) -> float | None:
        """Return the number in a column; None if it was not recorded, or is no number."""
        value = self.columns().get(column)
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def measure_run(run: Path | RunFiles, machines: Sequence[MachineLimits] = ()) -> Row:
    """Return the row of one run in measures.csv: the columns `ABOUT`, its parameters, and its measures.

    The columns of measures are those of the run's program, `MEASURES_OF`. Parameters and errors are those of
    `measures_of`.
    """
    run = RunFiles.of(run)
    record = run.record
    measures = measures_of(run, machines)
    return {
        "run": record.run,
        "outcome": record.outcome,
        "reason": describe_reason(record.reason),
        "profiler_used": record.profiler.used,
        "disturbance": disturbance_of(record),
        "inconsistency": measures.inconsistency,
        "trace_notice": measures.trace_notice,
        **as_columns(record.parameters.model_dump()),
        **dict.fromkeys(MEASURES_OF[record.parameters.workload]),
        **measures.columns(),
    }


def measures_of(run: RunFiles, machines: Sequence[MachineLimits] = ()) -> RunMeasures:
    """Return the measures of one run.

    Of the parts of the step, only those are set that phases show; `breakdown.complete_breakdowns` adds the others. A
    run that did not complete has no measures, except `measured_steps` and `iteration_time_s` if its reason has them.

    `machines`: limits of any machines, of which those of the run's kind of machine are used.

    Raises `UserError` if a file of the run is missing or damaged, or if a step or the record lacks what a measure
    needs.
    """
    record = run.record
    if record.completed:
        return _of_completed(run, PROGRAMS[record.parameters.workload], machines)
    if record.reason is None:
        return RunMeasures()
    return RunMeasures(Measures(measured_steps=record.reason.measured_steps, iteration_time_s=record.reason.step_s))


def _of_completed(run: RunFiles, program: Program[Any], machines: Sequence[MachineLimits]) -> RunMeasures:
    """Return the measures of a completed run."""
    steps = _read_steps(run)
    epochs = run.table(EPOCHS, EPOCH_COLUMNS)
    try:
        if steps.empty:
            return RunMeasures(own=program.measures.compute(run.record, Measures(), steps, epochs))
        return _of_steps(run, program, steps, epochs, machines)
    except (KeyError, TypeError, ValueError) as error:
        cause = f"found no {error}" if isinstance(error, KeyError) else str(error).splitlines()[0]
        raise UserError(f"{run.folder / RUN}: not a complete record of a completed run: {cause}") from error


def _read_steps(run: RunFiles) -> pd.DataFrame:
    """Read the steps of a completed run. Only a run that is made of traces may have no steps.

    Raises `UserError` if no step is a measured one, or if any step has no `start_s`.
    """
    steps = run.table(STEPS, STEP_COLUMNS)
    path = run.folder / STEPS
    has_measured_steps = (steps["window"] == "measured").any()
    may_be_empty = run.record.adopted is not None and steps.empty
    if not has_measured_steps and not may_be_empty:
        raise UserError(f"{path}: found no measured step")
    if steps["start_s"].isna().any():
        raise UserError(f"{path}: found a step without start_s, expected when each step began")
    return steps


def _of_steps(
    run: RunFiles, program: Program[Any], steps: pd.DataFrame, epochs: pd.DataFrame, machines: Sequence[MachineLimits]
) -> RunMeasures:
    """Return the measures of a completed run that has steps."""
    record = run.record
    inconsistency = _inconsistency(run, steps)
    trace_notice = "; ".join(run.trace_notices()) or None
    steps = _with_times_of_phases(steps)
    stated_samples = record.parameters.stated_samples
    if stated_samples is not None:
        # The user states the samples of all ranks together, so each rank gets an equal part, maybe a fraction.
        steps = steps.assign(samples=stated_samples / steps["rank"].nunique())
    is_measured = steps["window"] == "measured"
    window = Window(steps[is_measured])
    common = _common(run, program, steps, window, machines)
    own = _in_unit(record, program, window) | program.measures.compute(record, common, steps, epochs)
    return RunMeasures(common, own, inconsistency, trace_notice)


def _with_times_of_phases(steps: pd.DataFrame) -> pd.DataFrame:
    """Return steps in which a phase that other steps of the run have takes 0 s, where its time is empty."""
    recorded = [column for column in _PHASE_COLUMNS if steps[column].notna().any()]
    return steps.assign(**{column: steps[column].fillna(0.0) for column in recorded})


def _common(
    run: RunFiles, program: Program[Any], steps: pd.DataFrame, window: Window, machines: Sequence[MachineLimits]
) -> Measures:
    """Return the common measures of a run. `steps`: the steps of all windows. `window`: the measured ones.

    A sample that several ranks process counts once in throughput, and once for each rank in `processed_samples_per_s`.
    """
    record = run.record
    measured = window.steps
    samples_per_s = window.rate("samples")
    steps_per_pass = record.steps_per_pass
    used_bytes = [used for rank in record.ranks for used in rank.device_memory_used_bytes or ()]
    profiled = _profiled_window(steps[steps["window"] == "profiled"], window)
    loader = _loader_alone(record)
    steadiness = stationarity(window.slowest_periods_s)
    parts = parts_of_phases(window, record.parameters.devices)
    used = utilization(record, operations_of_step(record, measured), window.iteration_time_s, machines)
    return Measures(
        elapsed_s=window.elapsed_s,
        iteration_time_s=window.iteration_time_s,
        throughput_samples_per_s=_distinct_share(record, program) * samples_per_s,
        processed_samples_per_s=samples_per_s,
        # None if the number of steps of a pass is not known.
        estimated_epoch_time_s=steps_per_pass and window.iteration_time_s * steps_per_pass,
        median_iteration_time_s=window.median_iteration_time_s,
        data_s=_mean_s(measured["data_s"]),
        transfer_s=_mean_s(measured["transfer_s"]),
        forward_s=_mean_s(measured["forward_s"]),
        backward_s=_mean_s(measured["backward_s"]),
        optimizer_s=_mean_s(measured["optimizer_s"]),
        evaluation_s=_evaluation_s(measured),
        other_s=_other_s(measured),
        mean_iteration_time_s=window.mean_iteration_time_s,
        data_share=window.data_share,
        energy_per_sample_j=energy_per(record, measured["samples"]),
        peak_reserved_bytes=_highest(measured["peak_reserved_bytes"]),
        device_memory_used_bytes=_highest(pd.Series(used_bytes)),
        peak_memory_bytes=_highest(measured["peak_memory_bytes"]),
        measured_steps=window.count,
        intraop_threads=max((rank.intraop_threads or 0 for rank in record.ranks), default=0) or None,
        usable_cpus=record.hardware.usable_cpus if record.hardware else None,
        profiled_iteration_time_s=profiled.iteration_time_s,
        profiled_data_s=profiled.data_s,
        profiled_data_share=profiled.data_share,
        profiler_overhead=profiled.overhead,
        trace_host_extents=run.has_host_extents,
        trace_iteration_time_s=_iteration_time_of_trace(run.traced_steps),
        loader_alone_s=loader.step_s,
        loader_workers=loader.workers,
        drift=steadiness.drift,
        stationary=steadiness.stationary,
        model_flop_per_step=used.model_flop_per_step,
        hardware_flop_per_step=used.hardware_flop_per_step,
        achieved_flop_per_s=used.achieved_flop_per_s,
        peak_flop_per_s=used.peak_flop_per_s,
        mfu=used.mfu,
        hfu=used.hfu,
        mfu_of=used.mfu_of,
        peak_bus_bandwidth_bytes_per_s=_peak_bus_bandwidth(record, machines),
        compute_share=parts.shares.get(StepPart.COMPUTE),
        compute_or_communication_share=parts.shares.get(StepPart.COMPUTE_OR_COMMUNICATION),
        memory_operations_share=parts.shares.get(StepPart.MEMORY_OPERATIONS),
        data_loading_share=parts.shares.get(StepPart.DATA),
        evaluation_share=parts.shares.get(StepPart.EVALUATION),
        stalls_share=parts.shares.get(StepPart.STALLS),
        other_share=parts.shares.get(StepPart.OTHER),
        stalled_steps=parts.stalled_steps,
    )


def _peak_bus_bandwidth(record: RunRecord, machines: Sequence[MachineLimits]) -> float | None:
    """Return the measured peak of all-reduces between the devices of a run; None if it is not known.

    Limits are measured on one machine, so that none is known of several nodes.
    """
    parameters = record.parameters
    limits = limits_of(record, parameters.device, machines)
    if limits is None or parameters.nodes > 1:
        return None
    return peak_bus_bandwidth(limits, parameters.devices)


def _in_unit(record: RunRecord, program: Program[Any], window: Window) -> Row:
    """Return throughput and energy in the program's unit of work, by the names of these measures.

    If the unit is a sample, both are among the common measures, too, with the same values.
    """
    unit = program.unit
    return {
        unit.throughput: _distinct_share(record, program) * window.rate(unit.column),
        unit.energy: energy_per(record, window.steps[unit.column]),
    }


def _distinct_share(record: RunRecord, program: Program[Any]) -> float:
    """Return the distinct samples divided by the processed ones; if that is not known, all count as distinct."""
    share = program.measures.distinct_share(record)
    return 1.0 if share is None else share


def _mean_s(phase_s: pd.Series) -> float | None:
    """Return the mean of a phase over steps and ranks; None if no step has the phase."""
    return phase_s.mean() if phase_s.notna().any() else None


def _evaluation_s(measured: pd.DataFrame) -> float | None:
    """Return the mean of the time of evaluation over steps and ranks; None if no evaluation was seen."""
    if measured[EVALUATION].isna().all():
        return None
    # A step without an evaluation spends no time in one.
    return measured[EVALUATION].fillna(0.0).mean()


def _other_s(measured: pd.DataFrame) -> float:
    """Return the mean time of a step outside of its phases and of evaluation."""
    timed = measured[list(_PHASE_COLUMNS)].assign(evaluation_s=measured[EVALUATION])
    other_s = measured["duration_s"] - timed.sum(axis=1)
    return other_s.mean()


def _highest(values: pd.Series) -> int | None:
    """Return the highest value; None if none was recorded."""
    recorded = values.dropna()
    return int(recorded.max()) if len(recorded) else None


class _LoaderAlone(NamedTuple):
    """How fast the loader of the slowest rank is alone. All is None if no rank measured its loader alone."""

    # Seconds in which the loader loads the batches of one step while nothing else runs in the rank.
    step_s: float | None = None
    # Number of workers of this rank's first loader.
    workers: int | None = None


def _loader_alone(record: RunRecord) -> _LoaderAlone:
    measured: list[tuple[float, int | None]] = []
    for rank in record.ranks:
        alone = rank.observed.loader_alone if rank.observed else None
        if alone is not None and rank.observed and rank.observed.loaders:
            step_s = alone.seconds / alone.batches * alone.batches_per_step
            measured.append((step_s, rank.observed.loaders[0].num_workers))
    return _LoaderAlone(*max(measured)) if measured else _LoaderAlone()


def _inconsistency(run: RunFiles, steps: pd.DataFrame) -> str | None:
    """Return in words how long steps are in the trace, as a share of their time in the record.

    None if the two differ by at most `TRACE_TOLERANCE`, or if no step is in both.
    """
    ratio = trace_to_record(run, steps)
    if ratio is None or abs(ratio - 1) <= TRACE_TOLERANCE:
        return None
    return f"the trace's steps last {ratio:.1%} of the record's"


def trace_to_record(run: RunFiles, steps: pd.DataFrame) -> float | None:
    """Return the time of profiled steps in the trace divided by their time in the record; None if no step is in both.

    `steps`: the steps of the record. If the run has a GPU, both times are the GPU's.

    A record that omits a part of the step omits it from every step. A busy machine, in contrast, may delay a process in
    a few steps. So of each rank the step counts whose ratio is nearest to 1, and of all ranks the one whose ratio is
    farthest from 1.
    """
    traced = _durations_by_rank(run.traced_steps)
    recorded = _durations_by_rank(steps[steps["window"] == "profiled"])
    nearest = []
    for rank in traced.keys() & recorded.keys():
        # Steps are paired in order, since the trace numbers them differently.
        pairs = zip(traced[rank], recorded[rank], strict=False)
        ratios = [traced_s / recorded_s for traced_s, recorded_s in pairs]
        nearest.append(min(ratios, key=_distance_from_1))
    return max(nearest, key=_distance_from_1, default=None)


def _durations_by_rank(steps: pd.DataFrame) -> dict[Any, pd.Series]:
    """Return the durations of each rank's steps, by rank, in the order of the steps."""
    return dict(iter(steps.sort_values("step").groupby("rank")["duration_s"]))


def _distance_from_1(ratio: float) -> float:
    return abs(ratio - 1)


class _Profiled(NamedTuple):
    """Measures of the profiled steps, defined like those of the measured ones. All are None without profiled steps."""

    iteration_time_s: float | None = None
    data_s: float | None = None
    data_share: float | None = None
    # Iteration time of the profiled steps over that of the measured ones, minus 1.
    overhead: float | None = None


def _profiled_window(steps: pd.DataFrame, measured: Window) -> _Profiled:
    if steps.empty:
        return _Profiled()
    window = Window(steps)
    return _Profiled(
        iteration_time_s=window.iteration_time_s,
        data_s=steps["data_s"].mean(),
        data_share=window.data_share,
        overhead=window.iteration_time_s / measured.iteration_time_s - 1,
    )


def _iteration_time_of_trace(steps: pd.DataFrame) -> float | None:
    """Return the elapsed seconds of the steps in the trace, divided by their number; None if the trace shows no step.

    For each stretch of consecutive steps, the elapsed time is that of its slowest process; see `windows.elapsed_s`.
    """
    if steps.empty:
        return None
    numbered = steps.assign(process_number=steps.groupby(["report", "process"], sort=False).ngroup())
    periods = step_periods(numbered, "process_number")
    return elapsed_s(periods, "process_number") / numbered["step"].nunique()


def energy_per(record: RunRecord, counts: pd.Series) -> float | None:
    """Return the joules of the measured steps divided by the sum of `counts`, which has a value per step and rank.

    None if the energy of any rank's GPU was not measured. NaN if any count is empty.
    """
    joules: list[float] = []
    for rank in record.ranks:
        energies = [gpu.energy_j for gpu in rank.energy or ()]
        if not energies or None in energies:
            return None
        joules += [energy for energy in energies if energy is not None]
    return sum(joules) / counts.sum(skipna=False)


def runs_table(rows: Sequence[Mapping[str, Cell]]) -> pd.DataFrame:
    """Return the rows of `measure_run` as a table, with the columns of the runs' programs.

    If there are no rows, the table has the columns of all programs.
    """
    columns = dict.fromkeys(name for row in rows for name in row) or dict.fromkeys((*PARAMETERS, *MEASURES))
    in_order = [*ABOUT, *parameters_in(columns), *(name for name in MEASURES if name in columns)]
    return pd.DataFrame(rows, columns=in_order)
