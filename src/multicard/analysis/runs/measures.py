"""One row of measures per run, from its record and its activity tables."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from multicard.analysis.machine import utilization
from multicard.analysis.machine.limits import MachineLimits
from multicard.analysis.runs import breakdown, stationarity
from multicard.analysis.runs.conditions import disturbance_of
from multicard.analysis.runs.phase_parts import measures_of_phases
from multicard.analysis.runs.run_files import RunFiles
from multicard.analysis.runs.windows import Window, elapsed_s, step_periods
from multicard.core.errors import UserError
from multicard.core.layout import EPOCH_COLUMNS, EPOCHS, NOT_RUN, PHASES, RUN, STEPS
from multicard.core.reasons import describe_reason
from multicard.experiment.config import PARAMETERS, parameters_in
from multicard.experiment.workload import WORKLOADS, Workload
from multicard.runs.parameters import as_columns
from multicard.runs.record import RunRecord

# What each is: docs/files.md.
COMMON = (
    "elapsed_s", "iteration_time_s", "throughput_samples_per_s", "processed_samples_per_s", "estimated_epoch_time_s",
    "median_iteration_time_s", *(f"{phase}_s" for phase in PHASES), "other_s", "mean_iteration_time_s", "data_share",
    "energy_per_sample_j", "peak_reserved_bytes", "device_memory_used_bytes", "peak_memory_bytes",
    "measured_steps", "intraop_threads", "usable_cpus", "profiled_iteration_time_s", "profiled_data_s",
    "profiled_data_share", "trace_host_extents", "trace_iteration_time_s", "profiler_overhead",
    "loader_alone_s", "loader_workers", *stationarity.MEASURES, *utilization.MEASURES, *breakdown.MEASURES,
)  # fmt: skip
# Columns before parameters and measures.
ABOUT = ("run", "outcome", "reason", "profiler_used", "disturbance", "inconsistency", "trace_notice")
# Of each workload, by its name; and of all.
MEASURES_OF = {name: tuple(dict.fromkeys((*COMMON, *work.measures))) for name, work in WORKLOADS.items()}
MEASURES = tuple(dict.fromkeys(name for measures in MEASURES_OF.values() for name in measures))

# Columns of steps.csv without which a completed run has no measures.
_OF_STEPS = (
    "step", "window", "start_s", "duration_s", *(f"{phase}_s" for phase in PHASES), "samples", "peak_memory_bytes",
)  # fmt: skip

TOLERANCE = 0.05  # by which steps of a trace may last longer or shorter than those of the record


def measure_run(run: Path | RunFiles, machines: Sequence[MachineLimits] = ()) -> dict[str, Any]:
    """Give outcome, parameters and measures of one run; what was not recorded is None.

    `run`: its directory, or its files. `machines`: limits, with which machines of the same kind are compared.
    Raises UserError if a file of the run is missing or damaged.
    """
    run = RunFiles.of(run)
    folder, record = run.folder, run.record
    work = WORKLOADS[record.parameters.workload]
    row: dict[str, Any] = dict.fromkeys(ABOUT) | {
        "run": record.run,
        "outcome": record.outcome,
        "reason": describe_reason(record.reason),
        "profiler_used": record.profiler.used,
        "disturbance": disturbance_of(record),
        **as_columns(record.parameters.model_dump()),
        **dict.fromkeys(MEASURES_OF[work.name]),
    }
    if record.completed:
        steps = _read_steps(run, work)
        try:
            if steps.empty:
                row |= work.measure(record, row, steps, None)
            else:
                row["inconsistency"] = disagreement(run, steps)
                row["trace_notice"] = "; ".join(run.trace_notices()) or None
                row |= _measures(run, steps, work, machines)
        except (KeyError, TypeError, ValueError) as error:
            cause = f"found no {error}" if isinstance(error, KeyError) else str(error).splitlines()[0]
            raise UserError(f"{folder / RUN}: not a complete record of a completed run: {cause}") from error
    elif record.reason is not None:
        row |= {"measured_steps": record.reason.measured_steps, "iteration_time_s": record.reason.step_s}
    return row


def _read_steps(run: RunFiles, work: Workload) -> pd.DataFrame:
    """Read the steps of a completed run; none of one that shows none."""
    steps, path = run.table(STEPS, (*_OF_STEPS, *work.step_columns)), run.folder / STEPS
    if not (steps["window"] == "measured").any() and (work.launches or len(steps)):
        raise UserError(f"{path}: found no measured step")
    if steps["start_s"].isna().any():
        raise UserError(f"{path}: found a step without start_s, expected when each step began")
    return steps


def _measures(run: RunFiles, steps: pd.DataFrame, work: Workload, machines: Sequence[MachineLimits]) -> dict[str, Any]:
    """Measures of a completed run."""
    folder, record = run.folder, run.record
    steps = work.counted(record, steps)
    measured = steps[steps["window"] == "measured"]
    window, distinct = Window(measured), work.distinct_share(record)
    phases = measured[[f"{phase}_s" for phase in PHASES]]
    known = phases.assign(evaluation_s=measured.get("evaluation_s"))
    row = {
        "elapsed_s": window.elapsed_s,
        "iteration_time_s": window.iteration_time_s,
        "processed_samples_per_s": window.rate("samples"),
        "throughput_samples_per_s": distinct * window.rate("samples"),
        work.unit.throughput: distinct * window.rate(work.unit.column),
        "estimated_epoch_time_s": record.steps_per_pass and window.iteration_time_s * record.steps_per_pass,
        "median_iteration_time_s": window.median_iteration_time_s,
        **{name: times.mean() for name, times in phases.items() if times.notna().any()},
        "other_s": (measured["duration_s"] - known.sum(axis=1)).mean(),
        "mean_iteration_time_s": window.mean_iteration_time_s,
        "data_share": window.data_share,
        **measures_of_phases(window, record.parameters.devices),
        "energy_per_sample_j": energy_per(record, measured["samples"]),
        "peak_reserved_bytes": _highest(measured.get("peak_reserved_bytes", pd.Series(dtype=float))),
        "device_memory_used_bytes": _highest(
            pd.Series([used for rank in record.ranks for used in rank.device_memory_used_bytes or ()])
        ),
        "peak_memory_bytes": _highest(measured["peak_memory_bytes"]),
        "measured_steps": window.count,
        "intraop_threads": max((rank.intraop_threads or 0 for rank in record.ranks), default=0) or None,
        "usable_cpus": record.hardware.usable_cpus if record.hardware else None,
        **stationarity.stationarity(window.slowest_periods_s),
        **_profiled(steps[steps["window"] == "profiled"], window),
        **_loader_alone(record),
        "trace_host_extents": run.has_host_extents,
        "trace_iteration_time_s": _iteration_time_of_trace(run.traced_steps),
    }
    operations = work.operations(record, measured)
    row |= utilization.utilization(record, work, operations, window.iteration_time_s, machines)
    is_replayed = "host" in record.parameters.ablate  # in which no epoch ends
    epochs = run.table(EPOCHS, EPOCH_COLUMNS) if work.has_epochs and not is_replayed else None
    if epochs is not None and epochs.empty:
        raise UserError(f"{folder / EPOCHS}: found no epoch")
    row[work.unit.energy] = energy_per(record, measured[work.unit.column])
    return row | work.measure(record, row, steps, epochs)


def _loader_alone(record: RunRecord) -> dict[str, float | None]:
    """Return what the slowest rank's loader takes for a step alone, and its workers; nothing unless measured."""
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


def disagreement(run: RunFiles, steps: pd.DataFrame) -> str | None:
    """How the steps of the trace last otherwise than those of the record, in words; None where they do not."""
    ratio = trace_to_record(run, steps)
    if ratio is None or abs(ratio - 1) <= TOLERANCE:
        return None
    return f"the trace's steps last {ratio:.1%} of the record's"


def trace_to_record(run: RunFiles, steps: pd.DataFrame) -> float | None:
    """Time of profiled steps by the trace over that by the record, `steps`; None where no step is in both.

    Both are by the GPU where there is one. What a record omits, it omits from every step, while a busy machine may
    delay a process between any two marks: of a rank the step nearest to 1 counts, of the run the rank farthest from 1.
    """
    both = run.traced_steps, steps[steps["window"] == "profiled"]
    # In order: steps are numbered differently in the trace.
    traced, recorded = (dict(list(each.sort_values("step").groupby("rank")["duration_s"])) for each in both)
    nearest = [
        min((one / other for one, other in zip(traced[rank], recorded[rank], strict=False)), key=_distance)
        for rank in traced.keys() & recorded
    ]
    return max(nearest, key=_distance, default=None)


def _distance(ratio: float) -> float:
    return abs(ratio - 1)


def _profiled(steps: pd.DataFrame, measured: Window) -> dict[str, Any]:
    """The profiled window by the definitions of the measured one; empty without a profiled step."""
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
    """Elapsed time of the slowest process over its steps, by the trace; None where it shows no step."""
    if steps.empty:
        return None
    steps = steps.assign(place=steps.groupby(["report", "process"], sort=False).ngroup())
    return elapsed_s(step_periods(steps, "place"), "place") / steps["step"].nunique()


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


def _highest(values: pd.Series) -> int | None:
    known = values.dropna()
    return int(known.max()) if len(known) else None


def runs_table(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Rows by `measure_run` as a table. Columns: run, outcome, parameters and measures of the runs' workload.

    Without rows there are the columns of all workloads.
    """
    there = dict.fromkeys(name for row in rows for name in row) or dict.fromkeys((*PARAMETERS, *MEASURES))
    named = [*parameters_in(there), *(name for name in MEASURES if name in there)]
    return pd.DataFrame(rows, columns=[*ABOUT, *named])


def outcome_of(run: Path | RunFiles) -> dict[str, Any]:
    """The row of one run in the table of outcomes."""
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
    """One row per run of a scenario: its outcome, or `not run` with the reason; when, where and how it ran.

    `rows` are those of `outcome_of`; `not_run` has reasons by run id, of the runs that have none.
    """
    columns = ["run", "outcome", "reason", "started", "wall_time_s", "host", "profiler", "trace_missing", "block"]
    columns += ["planned_position", "disturbance"]
    others = ({"run": run, "outcome": NOT_RUN, "reason": reason} for run, reason in not_run.items())
    return pd.DataFrame([*rows, *others], columns=columns).astype({"block": "Int64", "planned_position": "Int64"})
