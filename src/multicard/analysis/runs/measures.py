"""The row of measures of a run, from its record, its tables of steps and epochs, and its activity tables.

A measure is a column of measures.csv; docs/files.md explains each. A measure that was not recorded is None.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from multicard.analysis.machine import utilization
from multicard.analysis.machine.limits import MachineLimits
from multicard.analysis.runs import breakdown, stationarity
from multicard.analysis.runs.conditions import disturbance_of
from multicard.analysis.runs.phase_parts import measures_of_phases
from multicard.analysis.runs.windows import Window, elapsed_s, step_periods
from multicard.core.errors import UserError
from multicard.core.layout import EPOCH_COLUMNS, EPOCHS, NOT_RUN, PHASES, RUN, STEPS
from multicard.core.reasons import describe_reason
from multicard.experiment.config import PARAMETERS, parameters_in
from multicard.experiment.workload import WORKLOADS, Workload
from multicard.results.run_files import RunFiles
from multicard.runs.parameters import as_columns
from multicard.runs.record import RunRecord

# Columns of steps.csv with the seconds of each phase.
_PHASE_COLUMNS = tuple(f"{phase}_s" for phase in PHASES)

# The measures that every workload has.
COMMON = (
    "elapsed_s", "iteration_time_s", "throughput_samples_per_s", "processed_samples_per_s", "estimated_epoch_time_s",
    "median_iteration_time_s", *_PHASE_COLUMNS, "other_s", "mean_iteration_time_s", "data_share",
    "energy_per_sample_j", "peak_reserved_bytes", "device_memory_used_bytes", "peak_memory_bytes",
    "measured_steps", "intraop_threads", "usable_cpus", "profiled_iteration_time_s", "profiled_data_s",
    "profiled_data_share", "trace_host_extents", "trace_iteration_time_s", "profiler_overhead",
    "loader_alone_s", "loader_workers", *stationarity.MEASURES, *utilization.MEASURES, *breakdown.MEASURES,
)  # fmt: skip
# Columns of measures.csv that precede parameters and measures.
ABOUT = ("run", "outcome", "reason", "profiler_used", "disturbance", "inconsistency", "trace_notice")
# The names of the measures of each workload, by the workload's name. Below, those of all workloads together.
MEASURES_OF = {name: tuple(dict.fromkeys((*COMMON, *workload.measures))) for name, workload in WORKLOADS.items()}
MEASURES = tuple(dict.fromkeys(name for measures in MEASURES_OF.values() for name in measures))

# Columns that steps.csv of a completed run must have.
_NEEDED_OF_STEPS = ("step", "window", "start_s", "duration_s", *_PHASE_COLUMNS, "samples", "peak_memory_bytes")

# The record counts as inconsistent if its steps are longer or shorter in the trace by more than this share.
TOLERANCE = 0.05


def measure_run(run: Path | RunFiles, machines: Sequence[MachineLimits] = ()) -> dict[str, Any]:
    """Return the row of one run: the columns `ABOUT`, its parameters, and the measures of its workload.

    The row has only those parts of the step that phases show; `breakdown.complete_breakdowns` adds the others. A run
    that did not complete has no measures, except `measured_steps` and `iteration_time_s` if its reason has them.

    `run`: the directory of the run, or its files. `machines`: limits of any machines, of which those of the run's kind
    of machine are used.

    Raises `UserError` if a file of the run is missing or damaged.
    """
    run = RunFiles.of(run)
    record = run.record
    workload = WORKLOADS[record.parameters.workload]
    row: dict[str, Any] = dict.fromkeys(ABOUT) | {
        "run": record.run,
        "outcome": record.outcome,
        "reason": describe_reason(record.reason),
        "profiler_used": record.profiler.used,
        "disturbance": disturbance_of(record),
        **as_columns(record.parameters.model_dump()),
        **dict.fromkeys(MEASURES_OF[workload.name]),
    }
    if record.completed:
        return row | _completed_run(run, workload, row, machines)
    if record.reason is not None:
        return row | {"measured_steps": record.reason.measured_steps, "iteration_time_s": record.reason.step_s}
    return row


def _completed_run(
    run: RunFiles, workload: Workload, row: Mapping[str, Any], machines: Sequence[MachineLimits]
) -> dict[str, Any]:
    """Return the measures and notices of a completed run. `row`: the columns `ABOUT` and the parameters of the run.

    Raises `UserError` if a step or the record lacks what a measure needs.
    """
    steps = _read_steps(run, workload)
    try:
        if steps.empty:
            return workload.measure(run.record, row, steps, None)
        return {
            "inconsistency": _inconsistency(run, steps),
            "trace_notice": "; ".join(run.trace_notices()) or None,
            **_measures(run, steps, workload, machines),
        }
    except (KeyError, TypeError, ValueError) as error:
        cause = f"found no {error}" if isinstance(error, KeyError) else str(error).splitlines()[0]
        raise UserError(f"{run.folder / RUN}: not a complete record of a completed run: {cause}") from error


def _read_steps(run: RunFiles, workload: Workload) -> pd.DataFrame:
    """Read the steps of a completed run. Only a run that is made of traces may have no steps.

    Raises `UserError` if no step is a measured one, or if any step has no `start_s`.
    """
    steps = run.table(STEPS, (*_NEEDED_OF_STEPS, *workload.step_columns))
    path = run.folder / STEPS
    has_measured_steps = (steps["window"] == "measured").any()
    may_be_empty = not workload.launches and steps.empty
    if not has_measured_steps and not may_be_empty:
        raise UserError(f"{path}: found no measured step")
    if steps["start_s"].isna().any():
        raise UserError(f"{path}: found a step without start_s, expected when each step began")
    return steps


def _measures(
    run: RunFiles, steps: pd.DataFrame, workload: Workload, machines: Sequence[MachineLimits]
) -> dict[str, Any]:
    """Return the measures of a completed run that has steps."""
    record = run.record
    steps = workload.counted(record, steps)
    measured = steps[steps["window"] == "measured"]
    profiled = steps[steps["window"] == "profiled"]
    window = Window(measured)
    unit = workload.unit
    row = {
        **_speed(record, workload, window),
        **_phase_times(measured),
        "data_share": window.data_share,
        **measures_of_phases(window, record.parameters.devices),
        "energy_per_sample_j": energy_per(record, measured["samples"]),
        unit.energy: energy_per(record, measured[unit.column]),
        **_memory(record, measured),
        "measured_steps": window.count,
        "intraop_threads": max((rank.intraop_threads or 0 for rank in record.ranks), default=0) or None,
        "usable_cpus": record.hardware.usable_cpus if record.hardware else None,
        **stationarity.stationarity(window.slowest_periods_s),
        **_profiled_window(profiled, window),
        **_loader_alone(record),
        "trace_host_extents": run.has_host_extents,
        "trace_iteration_time_s": _iteration_time_of_trace(run.traced_steps),
    }
    operations = workload.operations(record, measured)
    row |= utilization.utilization(record, workload, operations, window.iteration_time_s, machines)
    return row | workload.measure(record, row, steps, _read_epochs(run, workload))


def _read_epochs(run: RunFiles, workload: Workload) -> pd.DataFrame | None:
    """Read the epochs of a run; None if its workload has no epochs, or if the run skips the host's work.

    Raises `UserError` if the table of another run has no row.
    """
    # A run that skips the host's work replays a CUDA graph, and ends no epoch.
    is_replayed = "host" in run.record.parameters.ablate
    if not workload.has_epochs or is_replayed:
        return None
    epochs = run.table(EPOCHS, EPOCH_COLUMNS)
    if epochs.empty:
        raise UserError(f"{run.folder / EPOCHS}: found no epoch")
    return epochs


def _speed(record: RunRecord, workload: Workload, window: Window) -> dict[str, Any]:
    """Return times of the measured window and of its steps in seconds, and rates per second.

    A sample that several ranks process counts once in throughput, and once for each rank in `processed_samples_per_s`.
    `estimated_epoch_time_s` is None if the number of steps of a pass is not known.
    """
    distinct_share = workload.distinct_share(record)
    samples_per_s = window.rate("samples")
    return {
        "elapsed_s": window.elapsed_s,
        "iteration_time_s": window.iteration_time_s,
        "processed_samples_per_s": samples_per_s,
        "throughput_samples_per_s": distinct_share * samples_per_s,
        workload.unit.throughput: distinct_share * window.rate(workload.unit.column),
        "estimated_epoch_time_s": record.steps_per_pass and window.iteration_time_s * record.steps_per_pass,
        "median_iteration_time_s": window.median_iteration_time_s,
        "mean_iteration_time_s": window.mean_iteration_time_s,
    }


def _phase_times(measured: pd.DataFrame) -> dict[str, float]:
    """Return the mean seconds of each phase over steps and ranks. A phase that no step has is left out.

    `other_s` is the mean time of a step outside of its phases and of evaluation.
    """
    phases = measured[list(_PHASE_COLUMNS)]
    with_evaluation = phases.assign(evaluation_s=measured.get("evaluation_s"))
    other_s = measured["duration_s"] - with_evaluation.sum(axis=1)
    means = {name: times.mean() for name, times in phases.items() if times.notna().any()}
    return {**means, "other_s": other_s.mean()}


def _memory(record: RunRecord, measured: pd.DataFrame) -> dict[str, int | None]:
    """Return the most bytes of memory that were in use on any device; None for a kind that was not recorded.

    `device_memory_used_bytes`: used by all processes. `peak_reserved_bytes`: reserved by PyTorch. `peak_memory_bytes`:
    allocated for tensors.
    """
    used = [used for rank in record.ranks for used in rank.device_memory_used_bytes or ()]
    return {
        "device_memory_used_bytes": _highest(pd.Series(used)),
        "peak_reserved_bytes": _highest(measured.get("peak_reserved_bytes", pd.Series(dtype=float))),
        "peak_memory_bytes": _highest(measured["peak_memory_bytes"]),
    }


def _highest(values: pd.Series) -> int | None:
    recorded = values.dropna()
    return int(recorded.max()) if len(recorded) else None


def _loader_alone(record: RunRecord) -> dict[str, float | None]:
    """Return `loader_alone_s` and `loader_workers`; empty if no rank measured its loader alone.

    `loader_alone_s` is the time in which a rank's loader loads the batches of one step while nothing else runs in the
    rank, of the slowest rank. `loader_workers` is the number of workers of this rank's first loader.
    """
    measured: list[tuple[float, int | None]] = []
    for rank in record.ranks:
        alone = rank.observed.loader_alone if rank.observed else None
        if alone is not None and rank.observed and rank.observed.loaders:
            step_s = alone.seconds / alone.batches * alone.batches_per_step
            measured.append((step_s, rank.observed.loaders[0].num_workers))
    if not measured:
        return {}
    slowest_s, workers = max(measured)
    return {"loader_alone_s": slowest_s, "loader_workers": workers}


def _inconsistency(run: RunFiles, steps: pd.DataFrame) -> str | None:
    """Return in words how long steps are in the trace, as a share of their time in the record.

    None if the two differ by at most `TOLERANCE`, or if no step is in both.
    """
    ratio = trace_to_record(run, steps)
    if ratio is None or abs(ratio - 1) <= TOLERANCE:
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


def _profiled_window(steps: pd.DataFrame, measured: Window) -> dict[str, Any]:
    """Return the measures of the profiled steps, defined like those of the measured ones; empty without profiled steps.

    `profiler_overhead` is the iteration time of the profiled steps over that of the measured ones, minus 1.
    """
    if steps.empty:
        return {}
    window = Window(steps)
    return {
        "profiled_iteration_time_s": window.iteration_time_s,
        "profiled_data_s": steps["data_s"].mean(),
        "profiled_data_share": window.data_share,
        "profiler_overhead": window.iteration_time_s / measured.iteration_time_s - 1,
    }


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


def runs_table(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return the rows of `measure_run` as a table, with the columns of the runs' workloads.

    If there are no rows, the table has the columns of all workloads.
    """
    columns = dict.fromkeys(name for row in rows for name in row) or dict.fromkeys((*PARAMETERS, *MEASURES))
    in_order = [*ABOUT, *parameters_in(columns), *(name for name in MEASURES if name in columns)]
    return pd.DataFrame(rows, columns=in_order)


def outcome_of(run: Path | RunFiles) -> dict[str, Any]:
    """Return the row in the table of outcomes of a run that has a record."""
    record = RunFiles.of(run).record
    return {
        "run": record.run,
        "outcome": record.outcome,
        "reason": describe_reason(record.reason),
        "started": record.started,
        "wall_time_s": record.wall_time_s,
        "host": record.host.name if record.host else None,
        "profiler": record.profiler.used,
        "trace_missing": record.profiler.trace_missing,
        "block": record.parameters.repeat,
        "planned_position": record.order.position if record.order else None,
        "disturbance": disturbance_of(record),
    }


def outcome_table(rows: Iterable[Mapping[str, Any]], not_run: Mapping[str, str]) -> pd.DataFrame:
    """Return a table with one row per run of a scenario: its outcome and reason, and when, where and how it ran.

    `rows`: those that `outcome_of` returned, of the runs with a record. `not_run`: for each other run, by its id, the
    reason why it was not run; its outcome is `not run`.
    """
    columns = ["run", "outcome", "reason", "started", "wall_time_s", "host", "profiler", "trace_missing", "block"]
    columns += ["planned_position", "disturbance"]
    without_record = ({"run": run, "outcome": NOT_RUN, "reason": reason} for run, reason in not_run.items())
    table = pd.DataFrame([*rows, *without_record], columns=columns)
    return table.astype({"block": "Int64", "planned_position": "Int64"})
