"""Results for experiment trackers and monitoring, written by these tools' own packages, without a server."""

import importlib.util
import json
import logging
import math
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from multicard.api.results import Results
from multicard.core.errors import UserError
from multicard.core.files import unwritable
from multicard.experiment.config import parameters_in

STEP_SERIES = {"duration_s": "max", "loss": "mean"}  # over ranks: a step lasts as long as its slowest rank
UNITS = {"s": "seconds", "j": "joules", "bytes": "bytes", "share": "ratio"}  # the last part of a column's name


@dataclass(frozen=True)
class Exported:
    """One run of one scenario; `steps` has a row per step: `duration_s` of its slowest rank, and `loss`."""

    scenario: str
    run: str
    outcome: str
    parameters: dict[str, Any]
    measures: dict[str, float]
    steps: pd.DataFrame


@dataclass(frozen=True)
class Format:
    """How results are written to a path, which packages that takes, and what opens it."""

    write: Callable[[Sequence[Exported], Path], None]
    packages: dict[str, str]  # module: what pip calls it
    opened: str


def export(results: Results, to: str, out: Path) -> None:
    """Write results, a row per scenario and run, in another tool's format: `to`, a key of `FORMATS`.

    `out`: the file (json, openmetrics) or folder to write.
    Raises UserError if the tool's package is missing, or `out` is there already or cannot be written.
    """
    chosen = FORMATS[to]
    if missing := [name for module, name in chosen.packages.items() if importlib.util.find_spec(module) is None]:
        raise UserError(f"--to {to} needs {' and '.join(missing)}: pip install {' '.join(missing)}")
    if out.exists():
        raise UserError(f"{out}: is there already, expected a new name")
    if reason := unwritable(out.absolute().parent):
        raise UserError(f"{out}: cannot be written: {reason}")
    runs = exported(results)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent, ignore_cleanup_errors=True) as scratch:
        chosen.write(runs, Path(scratch) / out.name)
        Path(scratch, out.name).rename(out)


def exported(results: Results) -> list[Exported]:
    """What there is to write of every run in every scenario."""
    measures = results.measures
    parameters = parameters_in(measures)
    numbers = measures.drop(columns=parameters).select_dtypes(["number", "bool"]).columns
    steps = results.steps.groupby(["run", "step"], as_index=False).agg(STEP_SERIES)
    of_run = {run: rows.drop(columns="run") for run, rows in steps.groupby("run")}
    found = []
    for row in measures.to_dict("records"):
        known = {name: value for name, value in row.items() if not _empty(value)}
        # A column of whole numbers with an empty cell in it holds floating-point numbers.
        whole = {name: int(of) for name, of in known.items() if isinstance(of, float) and of.is_integer()}
        stated = {name: (known | whole)[name] for name in parameters if name in known}
        measured = {name: float(known[name]) for name in numbers if name in known}
        own_steps = of_run.get(row["run"], steps.head(0))
        found.append(Exported(row["scenario"], row["run"], row["outcome"], stated, measured, own_steps))
    return found


def as_line(run: Exported) -> str:
    """A run as one line of JSON."""
    row = {"scenario": run.scenario, "run": run.run, "outcome": run.outcome}
    return json.dumps(row | run.parameters | run.measures, allow_nan=False)


def _json(runs: Sequence[Exported], out: Path) -> None:
    out.write_text("".join(f"{as_line(run)}\n" for run in runs), encoding="utf-8")


def _openmetrics(runs: Sequence[Exported], out: Path) -> None:
    """A gauge per measure, and the runs' parameters as labels of `multicard_run_info`, as Prometheus does such."""
    from prometheus_client.core import CollectorRegistry, GaugeMetricFamily
    from prometheus_client.openmetrics.exposition import generate_latest

    gauges: dict[str, GaugeMetricFamily] = {}
    for run in runs:
        for name, value in run.measures.items():
            gauge = gauges.setdefault(
                name, GaugeMetricFamily(_metric(name), f"{name} of measures.csv", labels=["scenario", "run"])
            )
            gauge.add_metric([run.scenario, run.run], value)
    names = list(dict.fromkeys(name for run in runs for name in run.parameters))
    labels = ["scenario", "run", "outcome", *(re.sub(r"\W", "_", name) for name in names)]
    info = GaugeMetricFamily("multicard_run_info", "parameters of a run", labels=labels)
    for run in runs:
        stated = (str(run.parameters.get(name, "")) for name in names)
        info.add_metric([run.scenario, run.run, run.outcome, *stated], 1)

    class Families:
        def collect(self) -> list[GaugeMetricFamily]:
            return [info, *gauges.values()]

    registry = CollectorRegistry()
    registry.register(Families())
    out.write_bytes(generate_latest(registry))


def _metric(column: str) -> str:
    """Name of a measure as Prometheus would have it: `iteration_time_s` is `multicard_iteration_time_seconds`."""
    stem, _, unit = column.rpartition("_")
    if unit == "s" and stem.endswith("_per"):
        return f"multicard_{stem}_second"
    return f"multicard_{stem}_{UNITS[unit]}" if stem and unit in UNITS else f"multicard_{column}"


def _mlflow(runs: Sequence[Exported], out: Path) -> None:
    """A database with an experiment per scenario; MLflow no longer writes its older folders of files."""
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param, RunTag

    logging.getLogger("mlflow").setLevel(logging.WARNING)
    out.mkdir()
    client = MlflowClient(tracking_uri=f"sqlite:///{out.absolute()}/mlflow.db")
    experiments: dict[str, str] = {}
    for run in runs:
        if run.scenario not in experiments:
            experiments[run.scenario] = client.create_experiment(run.scenario, artifact_location="artifacts")
        made = client.create_run(experiments[run.scenario], run_name=run.run).info
        metrics = [Metric(name, value, made.start_time, 0) for name, value in run.measures.items()]
        metrics += [Metric(name, value, made.start_time, step) for step, name, value in _series(run)]
        for first in range(0, len(metrics), 1000):  # the most that one call takes
            client.log_batch(made.run_id, metrics[first : first + 1000])
        params = [Param(name, str(value)) for name, value in run.parameters.items()]
        client.log_batch(made.run_id, params=params, tags=[RunTag("outcome", run.outcome)])
        client.set_terminated(made.run_id, "FINISHED" if run.outcome == "completed" else "FAILED")


def _wandb(runs: Sequence[Exported], out: Path) -> None:
    """A folder as `wandb sync` uploads it: offline runs, grouped by scenario."""
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
        ) as made:  # fmt: skip
            for step, name, value in _series(run):
                made.log({name: value}, step=step)
            made.summary.update(run.measures)


def _tensorboard(runs: Sequence[Exported], out: Path) -> None:
    """A folder per scenario and run, with parameters and measures for TensorBoard's HParams tab."""
    from tensorboardX import SummaryWriter

    for run in runs:
        with SummaryWriter(str(out / run.scenario / run.run)) as writer:
            for step, name, value in _series(run):
                writer.add_scalar(name, value, step)
            plain = {
                name: value if isinstance(value, bool | int | float) else str(value)
                for name, value in run.parameters.items()
            }
            writer.add_hparams(plain, run.measures, name="hparams")


def _series(run: Exported) -> list[tuple[int, str, float]]:
    """Step, name and value of what a run has per step."""
    return [
        (int(row["step"]), f"step/{name}", float(row[name]))
        for row in run.steps.to_dict("records")
        for name in STEP_SERIES
        if not _empty(row[name])
    ]


def _empty(value: Any) -> bool:
    return value is None or (isinstance(value, float) and not math.isfinite(value))


FORMATS = {
    "json": Format(_json, {}, "a line per run"),
    "mlflow": Format(_mlflow, {"mlflow": "mlflow"}, "mlflow ui --backend-store-uri sqlite:///{out}/mlflow.db"),
    "openmetrics": Format(_openmetrics, {"prometheus_client": "prometheus-client"}, "Prometheus's textfile collector"),
    "tensorboard": Format(_tensorboard, {"tensorboardX": "tensorboardX"}, "tensorboard --logdir {out}"),
    "wandb": Format(_wandb, {"wandb": "wandb"}, "wandb sync {out}/wandb/offline-run-*"),
}
