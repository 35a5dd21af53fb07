"""One row of measures per run, from its record and its activity tables."""

from pathlib import Path
from typing import Any

import pandas as pd

from multicard.experiment.parameters import VisionParameters
from multicard.files import read_json
from multicard.record.names import ACTIVITY, EPOCHS, PHASES, RUN, STEPS
from multicard.trace.tables import STEP

PARAMETERS = tuple(VisionParameters.model_fields)

# Strategies whose ranks share one pass over the data; the others repeat it on every rank.
SHARDED = ("ddp-ds",)

MEASURES: dict[str, str] = {
    "iteration_time_s": "median over the measured steps of the slowest rank's step time",
    "throughput_samples_per_s": "distinct training samples per second: the speed of one pass over the training "
    "data. Ranks of the plain ddp strategy all see the same samples, so they count once",
    "processed_samples_per_s": "samples per second that all ranks together compute, repeated ones included",
    "epoch_time_s": "iteration time × steps of one whole pass over the training data",
    **{f"{phase}_s": f"mean time per measured step and rank in the phase {phase}" for phase in PHASES},
    "other_s": "mean time per measured step and rank outside every phase",
    "mean_iteration_time_s": "mean step time over measured steps and ranks: the sum of the phases and other",
    "peak_memory_bytes": "highest peak memory of a rank in the measured steps: allocated on a GPU, resident on a CPU",
    "test_loss": "after the last epoch",
    "test_accuracy": "after the last epoch",
    "measured_steps": "number of steps in the measured window, per rank",
    "profiled_iteration_time_s": "as iteration_time_s, in the profiled window, by the record",
    "trace_iteration_time_s": "as profiled_iteration_time_s, by the trace's step ranges",
    "profiler_overhead": "profiled_iteration_time_s / iteration_time_s − 1: what recording costs",
}


def measure_run(folder: Path) -> dict[str, Any]:
    """Give outcome, parameters and measures of one run; what was not recorded is None."""
    record = read_json(folder / RUN)
    row: dict[str, Any] = {
        "run": record["run"],
        "outcome": record["outcome"],
        "reason": record["reason"],
        "profiler_used": record["profiler"]["used"],
        **{name: record["parameters"].get(name) for name in PARAMETERS},
        **dict.fromkeys(MEASURES),
    }
    if record["outcome"] != "completed":
        return row
    steps = pd.read_csv(folder / STEPS)
    measured = steps[steps["window"] == "measured"]
    iteration = slowest_rank(measured)
    ranks = record["parameters"]["devices"]
    batch = record["parameters"]["batch_size"]
    distinct = batch * ranks if row["strategy"] in SHARDED else batch
    phases = measured[[f"{phase}_s" for phase in PHASES]]
    epochs = pd.read_csv(folder / EPOCHS)
    profiled = slowest_rank(steps[steps["window"] == "profiled"])
    row |= {
        "iteration_time_s": iteration,
        "throughput_samples_per_s": distinct / iteration,
        "processed_samples_per_s": batch * ranks / iteration,
        "epoch_time_s": iteration * record["steps_per_pass"],
        **{name: times.mean() for name, times in phases.items() if times.notna().any()},
        "other_s": (measured["duration_s"] - phases.sum(axis=1)).mean(),
        "mean_iteration_time_s": measured["duration_s"].mean(),
        "peak_memory_bytes": int(measured["peak_memory_bytes"].max()),
        "test_loss": epochs["test_loss"].iloc[-1],
        "test_accuracy": epochs["test_accuracy"].iloc[-1],
        "measured_steps": int(measured["step"].nunique()),
        "profiled_iteration_time_s": profiled,
        "trace_iteration_time_s": _trace_iteration_time(folder),
        "profiler_overhead": profiled / iteration - 1,
    }
    return row


def slowest_rank(steps: pd.DataFrame) -> float:
    """Median over steps of the longest `duration_s` among ranks: synchronous ranks wait for the slowest."""
    return float(steps.groupby("step")["duration_s"].max().median())


def measure_scenario(folders: list[Path]) -> pd.DataFrame:
    """One row per run, in the order given. Columns: run, outcome, parameters, `MEASURES`."""
    columns = ["run", "outcome", "reason", "profiler_used", *PARAMETERS, *MEASURES]
    return pd.DataFrame([measure_run(folder) for folder in folders], columns=columns)


def outcome_table(folders: list[Path], not_run: dict[str, str]) -> pd.DataFrame:
    """One row per run of a scenario: its outcome, or `not run` with the reason; when, where and how it ran."""
    rows = []
    for folder in folders:
        record = read_json(folder / RUN)
        rows.append(
            {
                "run": record["run"],
                "outcome": record["outcome"],
                "reason": record["reason"],
                "started": record["started"],
                "wall_time_s": record["wall_time_s"],
                "host": (record["host"] or {}).get("name"),
                "profiler": record["profiler"]["used"],
                "trace_missing": record["profiler"]["trace_missing"],
            }
        )
    rows += [{"run": run, "outcome": "not run", "reason": reason} for run, reason in not_run.items()]
    columns = ["run", "outcome", "reason", "started", "wall_time_s", "host", "profiler", "trace_missing"]
    return pd.DataFrame(rows, columns=columns)


def trace_steps(folder: Path) -> pd.DataFrame:
    """Steps of a run as its trace shows them: the rows of its phases table that are steps."""
    phases = pd.read_parquet(folder / ACTIVITY / "phases.parquet")
    return phases[phases["phase"] == STEP]


def _trace_iteration_time(folder: Path) -> float | None:
    steps = trace_steps(folder)
    return slowest_rank(steps) if len(steps) else None
