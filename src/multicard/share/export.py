"""Export results to experiment trackers and monitoring tools, by the tools' own packages and without a server."""

import importlib.util
import json
import logging
import math
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from multicard.config.experiment import parameters_in
from multicard.core.errors import UserError
from multicard.core.files import unwritable
from multicard.core.values import Row

# Columns of steps.csv that are exported, and how a step's values of all ranks become one. A step lasts as long as its
# slowest rank, so its duration is the maximum.
STEP_SERIES = {"duration_s": "max", "loss": "mean"}
# Prometheus' words for units, by the last word of a column's name.
PROMETHEUS_UNITS = {"s": "seconds", "j": "joules", "bytes": "bytes", "share": "ratio"}
# Largest number of metrics that MLflow accepts in one call.
MLFLOW_BATCH = 1000


@dataclass(frozen=True)
class ExportedRun:
    """One run of one scenario."""

    scenario: str
    run: str
    outcome: str
    # Parameters and measures that have no value are left out; so are measures that are not finite.
    parameters: Row
    measures: dict[str, float]
    # A row per step: `step`, `duration_s` of its slowest rank, and the mean `loss` of its ranks.
    steps: pd.DataFrame


@dataclass(frozen=True)
class ExportFormat:
    """A format of another tool: the function that writes it, the packages that it needs, and what opens it."""

    write: Callable[[Sequence[ExportedRun], Path], None]
    # Needed packages: name of the module to import, and name for pip.
    packages: dict[str, str]
    # The command or tool that opens the file or folder `{out}`, in words.
    opened: str


def export(runs: Sequence[ExportedRun], to: str, out: Path) -> None:
    """Write runs in another tool's format.

    `to`: a key of `EXPORT_FORMATS`. `out`: the new file (json, openmetrics) or folder to write.

    Raises `UserError` if the tool's package is missing, or if `out` cannot be written.
    """
    export_format = EXPORT_FORMATS[to]
    missing = [name for module, name in export_format.packages.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise UserError(f"--to {to} needs {' and '.join(missing)}: pip install {' '.join(missing)}")
    reason = unwritable(out.absolute().parent)
    if reason:
        raise UserError(f"{out}: cannot be written: {reason}")
    out.parent.mkdir(parents=True, exist_ok=True)
    # The export is renamed when it is complete, so that `out` never holds a part of it.
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent, ignore_cleanup_errors=True) as scratch:
        unfinished = Path(scratch, out.name)
        export_format.write(runs, unfinished)
        unfinished.rename(out)


def exported_runs(measures: pd.DataFrame, steps: pd.DataFrame) -> list[ExportedRun]:
    """Return runs in the form that the formats write, without empty values.

    `measures`: a row per scenario and run, with `scenario`, `run`, `outcome`, parameters and measures; a run that
    several scenarios share is returned for each. `steps`: a row per run, rank and step.
    """
    parameters = parameters_in(measures)
    measured = measures.drop(columns=parameters).select_dtypes(["number", "bool"]).columns
    per_step = steps.groupby(["run", "step"], as_index=False).agg(STEP_SERIES)
    steps_by_run = {run: rows.drop(columns="run") for run, rows in per_step.groupby("run")}
    runs = []
    for row in measures.to_dict("records"):
        values = {str(name): value for name, value in row.items() if not _is_empty(value)}
        runs.append(
            ExportedRun(
                scenario=row["scenario"],
                run=row["run"],
                outcome=row["outcome"],
                parameters={name: _whole(values[name]) for name in parameters if name in values},
                measures={name: float(values[name]) for name in measured if name in values},
                steps=steps_by_run.get(row["run"], per_step.head(0)),
            )
        )
    return runs


def _whole(value: Any) -> Any:
    """Return a float that is a whole number as an integer, any other value unchanged.

    pandas stores a column of integers as floats if one of its cells is empty.

    >>> _whole(2.0), _whole(0.5), _whole("ddp")
    (2, 0.5, 'ddp')
    """
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, float) and not math.isfinite(value))


def as_line(run: ExportedRun) -> str:
    """Return a run as one line of JSON."""
    row: Row = {"scenario": run.scenario, "run": run.run, "outcome": run.outcome}
    return json.dumps(row | run.parameters | run.measures, allow_nan=False)


def _json(runs: Sequence[ExportedRun], out: Path) -> None:
    out.write_text("".join(f"{as_line(run)}\n" for run in runs), encoding="utf-8")


def _openmetrics(runs: Sequence[ExportedRun], out: Path) -> None:
    """Write a gauge for each measure, and the parameters as labels of a gauge `multicard_run_info` that is always 1.

    This is how parameters are usually exported to Prometheus.
    """
    from prometheus_client.core import CollectorRegistry, GaugeMetricFamily
    from prometheus_client.openmetrics.exposition import generate_latest

    gauges: dict[str, GaugeMetricFamily] = {}
    for run in runs:
        for name, value in run.measures.items():
            if name not in gauges:
                gauges[name] = GaugeMetricFamily(_metric(name), f"{name} of measures.csv", labels=["scenario", "run"])
            gauges[name].add_metric([run.scenario, run.run], value)
    names = list(dict.fromkeys(name for run in runs for name in run.parameters))
    parameter_labels = [re.sub(r"\W", "_", name) for name in names]
    labels = ["scenario", "run", "outcome", *parameter_labels]
    info = GaugeMetricFamily("multicard_run_info", "parameters of a run", labels=labels)
    for run in runs:
        values = [str(run.parameters.get(name, "")) for name in names]
        info.add_metric([run.scenario, run.run, run.outcome, *values], 1)

    class Families:
        def collect(self) -> list[GaugeMetricFamily]:
            return [info, *gauges.values()]

    registry = CollectorRegistry()
    registry.register(Families())
    out.write_bytes(generate_latest(registry))


def _metric(column: str) -> str:
    """Return the name of a measure by Prometheus' conventions, with its unit as a word.

    >>> _metric("iteration_time_s"), _metric("tokens_per_s"), _metric("measured_steps")
    ('multicard_iteration_time_seconds', 'multicard_tokens_per_second', 'multicard_measured_steps')
    """
    stem, _, unit = column.rpartition("_")
    if unit == "s" and stem.endswith("_per"):
        return f"multicard_{stem}_second"
    if stem and unit in PROMETHEUS_UNITS:
        return f"multicard_{stem}_{PROMETHEUS_UNITS[unit]}"
    return f"multicard_{column}"


def _mlflow(runs: Sequence[ExportedRun], out: Path) -> None:
    """Write a folder with an SQLite database, in which each scenario is an experiment.

    MLflow's older format, folders of files, is not used because MLflow no longer writes it.
    """
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param, RunTag

    logging.getLogger("mlflow").setLevel(logging.WARNING)
    out.mkdir()
    client = MlflowClient(tracking_uri=f"sqlite:///{out.absolute()}/mlflow.db")
    experiments: dict[str, str] = {}
    for run in runs:
        if run.scenario not in experiments:
            experiments[run.scenario] = client.create_experiment(run.scenario, artifact_location="artifacts")
        info = client.create_run(experiments[run.scenario], run_name=run.run).info
        metrics = [Metric(name, value, info.start_time, 0) for name, value in run.measures.items()]
        metrics += [Metric(point.name, point.value, info.start_time, point.step) for point in _step_values(run)]
        for start in range(0, len(metrics), MLFLOW_BATCH):
            batch = metrics[start : start + MLFLOW_BATCH]
            client.log_batch(info.run_id, batch)
        parameters = [Param(name, str(value)) for name, value in run.parameters.items()]
        tags = [RunTag("outcome", run.outcome)]
        client.log_batch(info.run_id, params=parameters, tags=tags)
        status = "FINISHED" if run.outcome == "completed" else "FAILED"
        client.set_terminated(info.run_id, status)


def _wandb(runs: Sequence[ExportedRun], out: Path) -> None:
    """Write a folder of offline runs, grouped by scenario, which `wandb sync` can upload."""
    import wandb

    out.mkdir()
    settings = wandb.Settings(
        console="off", silent=True, x_disable_stats=True, x_disable_meta=True,
        x_save_requirements=False, disable_git=True,
    )  # fmt: skip
    for run in runs:
        config = run.parameters | {"outcome": run.outcome}
        with wandb.init(
            project="multicard", group=run.scenario, name=run.run, config=config, dir=out, mode="offline",
            settings=settings, reinit="create_new",
        ) as offline_run:  # fmt: skip
            for point in _step_values(run):
                offline_run.log({point.name: point.value}, step=point.step)
            offline_run.summary.update(run.measures)


def _tensorboard(runs: Sequence[ExportedRun], out: Path) -> None:
    """Write a folder per scenario and run, with parameters and measures for TensorBoard's HParams tab."""
    from tensorboardX import SummaryWriter

    for run in runs:
        with SummaryWriter(str(out / run.scenario / run.run)) as writer:
            for point in _step_values(run):
                writer.add_scalar(point.name, point.value, point.step)
            parameters = {}
            for name, value in run.parameters.items():
                parameters[name] = value if isinstance(value, bool | int | float) else str(value)
            writer.add_hparams(parameters, run.measures, name="hparams")


class _StepValue(NamedTuple):
    """A value of one step, with the name under which it is exported."""

    step: int
    name: str
    value: float


def _step_values(run: ExportedRun) -> list[_StepValue]:
    """Return the values of a run's steps, step by step, without empty ones."""
    values: list[_StepValue] = []
    for row in run.steps.to_dict("records"):
        step = int(row["step"])
        for name in STEP_SERIES:
            if not _is_empty(row[name]):
                values.append(_StepValue(step, f"step/{name}", float(row[name])))
    return values


EXPORT_FORMATS = {
    "json": ExportFormat(_json, {}, "a line per run"),
    "mlflow": ExportFormat(_mlflow, {"mlflow": "mlflow"}, "mlflow ui --backend-store-uri sqlite:///{out}/mlflow.db"),
    "openmetrics": ExportFormat(
        _openmetrics, {"prometheus_client": "prometheus-client"}, "Prometheus's textfile collector"
    ),
    "tensorboard": ExportFormat(_tensorboard, {"tensorboardX": "tensorboardX"}, "tensorboard --logdir {out}"),
    "wandb": ExportFormat(_wandb, {"wandb": "wandb"}, "wandb sync {out}/wandb/offline-run-*"),
}
