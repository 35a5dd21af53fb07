"""One row of measures per run, from its record and its activity tables.

A measure is a column of measures.csv; docs/files.md explains each. What was not recorded is None.
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
# Columns before parameters and measures.
ABOUT = ("run", "outcome", "reason", "profiler_used", "disturbance", "inconsistency", "trace_notice")
# The measures of each workload by its name, then those of all workloads.
MEASURES_OF = {name: tuple(dict.fromkeys((*COMMON, *workload.measures))) for name, workload in WORKLOADS.items()}
MEASURES = tuple(dict.fromkeys(name for measures in MEASURES_OF.values() for name in measures))

# Columns of steps.csv without which a completed run has no measures.
_NEEDED_OF_STEPS = ("step", "window", "start_s", "duration_s", *_PHASE_COLUMNS, "samples", "peak_memory_bytes")

# Share by which steps of a trace may be longer or shorter than those of the record.
TOLERANCE = 0.05


def measure_run(run: Path | RunFiles, machines: Sequence[MachineLimits] = ()) -> dict[str, Any]:
    """Return the row of one run: the columns `ABOUT`, its parameters, and the measures of its workload.

    The parts of its step are here as far as phases show them; `breakdown.complete_breakdowns` completes them.

    `run`: its directory, or its files. `machines`: limits of any machines; those of the run's kind of machine count.

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
    """Return the measures and notices of a completed run; `row` has what is known of it without its steps."""
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
    """Read the steps of a completed run; it may have none only if it is made of traces.

    Raises `UserError` if there is no measured step, or one without its start.
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
    """Read the epochs of a run; None if it has none.

    Raises `UserError` if it should have some and has none.
    """
    # A run that replays CUDA graphs in place of the host's work ends no epoch.
    is_replayed = "host" in run.record.parameters.ablate
    if not workload.has_epochs or is_replayed:
        return None
    epochs = run.table(EPOCHS, EPOCH_COLUMNS)
    if epochs.empty:
        raise UserError(f"{run.folder / EPOCHS}: found no epoch")
    return epochs


def _speed(record: RunRecord, workload: Workload, window: Window) -> dict[str, Any]:
    """Return times of the measured window and of its steps in seconds, and rates per second.

    What several ranks process alike counts once in throughput, and for each of them in `processed_samples_per_s`.
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
    """Return the mean seconds of each recorded phase over steps and ranks; `other_s` is what lies in none of them."""
    phases = measured[list(_PHASE_COLUMNS)]
    with_evaluation = phases.assign(evaluation_s=measured.get("evaluation_s"))
    other_s = measured["duration_s"] - with_evaluation.sum(axis=1)
    means = {name: times.mean() for name, times in phases.items() if times.notna().any()}
    return {**means, "other_s": other_s.mean()}


def _memory(record: RunRecord, measured: pd.DataFrame) -> dict[str, int | None]:
    """Return the most memory in bytes that a device used: by all processes, by PyTorch, by tensors."""
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
    """Return the seconds that the slowest rank's loader takes for a step alone, and its workers; empty if not measured.

    It was measured with nothing else running in the rank.
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
    """Return how much longer or shorter steps are by the trace than by the record, in words; None if they agree."""
    ratio = trace_to_record(run, steps)
    if ratio is None or abs(ratio - 1) <= TOLERANCE:
        return None
    return f"the trace's steps last {ratio:.1%} of the record's"


def trace_to_record(run: RunFiles, steps: pd.DataFrame) -> float | None:
    """Return the time of profiled steps by the trace over that by the record; None where no step is in both.

    `steps`: the steps of the record. Both times are those of the GPU where there is one.

    What a record omits, it omits from every step, while a busy machine may delay a process between any two marks. So
    the ratio of a rank is that of its step whose ratio is nearest to 1, and the ratio of the run is that of the rank
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
    """Return the durations of each rank's steps in order."""
    return dict(iter(steps.sort_values("step").groupby("rank")["duration_s"]))


def _distance_from_1(ratio: float) -> float:
    return abs(ratio - 1)


def _profiled_window(steps: pd.DataFrame, measured: Window) -> dict[str, Any]:
    """Return the measures of the profiled steps, by the definitions of the measured ones; empty without a step."""
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
    """Return the elapsed seconds of the slowest process over its steps, by the trace; None where it shows no step."""
    if steps.empty:
        return None
    numbered = steps.assign(process_number=steps.groupby(["report", "process"], sort=False).ngroup())
    periods = step_periods(numbered, "process_number")
    return elapsed_s(periods, "process_number") / numbered["step"].nunique()


def energy_per(record: RunRecord, counts: pd.Series) -> float | None:
    """Return the joules of the measured steps per unit of `counts`, which has a row per step and rank.

    None unless each GPU was metered; not a number where a count is not known.
    """
    joules: list[float] = []
    for rank in record.ranks:
        energies = [gpu.energy_j for gpu in rank.energy or ()]
        if not energies or None in energies:
            return None
        joules += [energy for energy in energies if energy is not None]
    return sum(joules) / counts.sum(skipna=False)


def runs_table(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return the rows of `measure_run` as a table, with the parameters and measures of the runs' workloads.

    Without rows it has the columns of all workloads.
    """
    columns = dict.fromkeys(name for row in rows for name in row) or dict.fromkeys((*PARAMETERS, *MEASURES))
    in_order = [*ABOUT, *parameters_in(columns), *(name for name in MEASURES if name in columns)]
    return pd.DataFrame(rows, columns=in_order)


def outcome_of(run: Path | RunFiles) -> dict[str, Any]:
    """Return the row of one run in the table of outcomes."""
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
    """Return one row per run of a scenario: its outcome, or `not run` with the reason; when, where and how it ran.

    `rows` are those of `outcome_of`; `not_run` has reasons by run id, of the runs that have none.
    """
    columns = ["run", "outcome", "reason", "started", "wall_time_s", "host", "profiler", "trace_missing", "block"]
    columns += ["planned_position", "disturbance"]
    without_record = ({"run": run, "outcome": NOT_RUN, "reason": reason} for run, reason in not_run.items())
    table = pd.DataFrame([*rows, *without_record], columns=columns)
    return table.astype({"block": "Int64", "planned_position": "Int64"})
