"""A scenario as a space to search: its configurations and their runs, what need not run, and what a run is worth."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from multicard.analysis.evidence import as_stated, names_synthetic
from multicard.analysis.runs.measures import measure_run
from multicard.analysis.runs.run_files import RunFiles
from multicard.analysis.scenario_tables import machine
from multicard.archive.matrix import Matrix
from multicard.core.errors import UserError
from multicard.core.layout import ACTIVITY, ACTIVITY_INDEX, RUN
from multicard.core.reasons import describe_reason
from multicard.core.units import ARGS_PREFIX, show
from multicard.experiment.config import Experiment
from multicard.experiment.runs import Run, combinations
from multicard.experiment.workload import WORKLOADS
from multicard.runs.parameters import as_columns
from multicard.search.core import Search, Space
from multicard.stats.interval import Interval, verdict
from multicard.stats.pool import Pool

MEMORY = ("peak_reserved_bytes", "peak_memory_bytes")  # measures, the first that is known


@dataclass(frozen=True)
class Result:
    """What came of a run: a value by the goal and the memory, if it completed, else why; the seconds that it took."""

    value: float | None
    outcome: str
    cost_s: float
    synthetic: bool
    memory_bytes: float | None = None  # the most of any rank
    reason: str | None = None


class ScenarioSpace:
    """The configurations of a scenario; each is known by the id of its first repeat."""

    def __init__(self, experiment: Experiment, name: str, goal: str) -> None:
        """Plan a scenario, whose `throughput` or `iteration_time` is the goal.

        Raises `UserError` if it varies nothing.
        """
        self.experiment, self.name = experiment, name
        self.scenario, self.results = experiment.scenarios[name], Path(experiment.results)
        varied = {key: values for key, values in self.scenario.varied.items() if key != "ablate"}  # no training
        self.varied = {key: values for key, values in varied.items() if len(values) > 1}
        if not self.varied:
            raise UserError(f"scenarios.{name}: varies nothing, expected several values of a parameter under vary")
        self.matrix = Matrix.plan(experiment)
        self.maximize = goal == "throughput"
        unit = WORKLOADS[experiment.workload(name)].unit
        self.measure = unit.throughput if self.maximize else "iteration_time_s"
        self.repeats: dict[str, list[Run]] = {}
        configurations = {}
        for values, runs in combinations(experiment, name).items():
            if not runs[0].parameters.ablated:
                self.repeats[runs[0].id] = runs
                of = dict(zip(self.scenario.varied, values, strict=True))
                levels = tuple(listed.index(of[name]) for name, listed in self.varied.items())
                configurations[levels] = runs[0].id
        self.space = Space(self.varied, configurations)

    def run(self, configuration: str, repeat: int) -> Run:
        """One of the repeats of a configuration, from 1."""
        return self.repeats[configuration][repeat - 1]

    def record(self, run: Run) -> Path:
        """Where the record of a run is."""
        return self.results / "runs" / run.id / RUN

    def target(self, run: Run) -> Path:
        """What is made last of what a run's measures are read from."""
        return self.record(run).parent / ACTIVITY / ACTIVITY_INDEX

    def decide(self, search: Search) -> tuple[str, list[str], Interval]:
        """The best configuration, those not significantly different of which there are repeats, and its value."""
        best, completed = search.best, search.completed
        close = [key for key in search.close if key != best]
        places = {key: place for place, key in enumerate(completed)}
        pool = Pool(list(completed.values()))
        ratios = pool.against_best(places[best], [places[key] for key in close], len(completed))
        tied = [key for key, ratio in zip(close, ratios, strict=True) if verdict(ratio) in ("none", "unknown")]
        value = pool.mean(places[best])
        if value is None:
            raise ValueError(f"expected values above zero, found {completed[best]}")
        return best, tied, value

    def in_words(self, value: float) -> str:
        """A value of the measure with its unit."""
        rate = self.measure.removesuffix("_per_s")
        unit = f" {rate.split('_')[-1]}/s" if rate != self.measure else ""
        return f"{show(self.measure, value)}{unit}"

    def named(self, configuration: str) -> str:
        """Values of the varied parameters, in words."""
        values = self.values(configuration).items()
        return ", ".join(f"{name.removeprefix(ARGS_PREFIX)}: {as_stated(value)}" for name, value in values)

    def values(self, configuration: str) -> dict[str, Any]:
        """Values of the varied parameters."""
        levels = next(levels for levels, key in self.space.configurations.items() if key == configuration)
        return {name: values[level] for (name, values), level in zip(self.varied.items(), levels, strict=True)}

    @property
    def unlike_learning(self) -> list[str]:
        """In what the configurations differ of what decides how much is learned from a sample."""
        work = WORKLOADS[self.experiment.workload(self.name)]
        found = [work.learning(as_columns(runs[0].parameters.model_dump())) for runs in self.repeats.values()]
        names = dict.fromkeys(name for each in found for name in each)
        return [name for name in names if len({repr(each.get(name)) for each in found}) > 1]

    @property
    def on_gpus(self) -> bool:
        """Whether all runs use GPUs, whose memory a batch may fill."""
        return all(runs[0].parameters.device == "cuda" for runs in self.repeats.values())

    def cannot_run(self) -> dict[str, str]:
        """Why configurations cannot run here."""
        return {key: reason for key in self.repeats if (reason := self.matrix.reasons[key])}

    def left_out(self) -> dict[str, str]:
        """Why configurations are not tried: they cannot run here, or are expected not to fit."""
        large = (key for key in self.repeats if self.run(key, 1).exceeds_memory(self.matrix.machine))
        return dict.fromkeys(large, "memory estimate above that of a GPU") | self.cannot_run()

    def result(self, run: Run) -> Result:
        """What came of a run.

        Raises `UserError` if a file of it is missing or damaged, or it completed and has no value.
        """
        files = RunFiles.of(self.record(run).parent)
        row, record = measure_run(files), files.record
        completed = row["outcome"] == "completed"
        value = row[self.measure] if completed else None
        if completed and not (value and value > 0):
            raise UserError(
                f"{files.folder}: has no {self.measure}, expected one above 0: search for another goal, such as "
                "--goal iteration_time"
            )
        synthetic = names_synthetic([machine(record.get("hardware") or {})])
        memory = next((row[name] for name in MEMORY if pd.notna(row.get(name))), None) if completed else None
        cost_s, reason = float(record.get("wall_time_s") or 0.0), describe_reason(record.get("reason"))
        return Result(value, row["outcome"], cost_s, synthetic, memory, reason)
