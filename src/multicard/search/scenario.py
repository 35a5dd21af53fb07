"""A scenario as a space to search: its configurations and their runs, those that need not run, and their results."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from multicard.analysis.runs.measures import measure_run
from multicard.archive.matrix import Matrix
from multicard.core.errors import UserError
from multicard.core.layout import ACTIVITY, ACTIVITY_INDEX, RUN
from multicard.core.reasons import describe_reason
from multicard.core.units import show
from multicard.experiment.config import Experiment
from multicard.experiment.runs import Run, combinations
from multicard.experiment.wording import statements
from multicard.experiment.workload import WORKLOADS
from multicard.results.run_files import RunFiles
from multicard.runs.environment import gpu_names, is_synthetic
from multicard.runs.parameters import as_columns
from multicard.search.core import Search
from multicard.search.space import Levels, Space
from multicard.stats.interval import Interval, verdict
from multicard.stats.pool import Pool


@dataclass(frozen=True)
class RunResult:
    """The result of a run."""

    # The measure that is the goal; None if the run did not complete.
    value: float | None
    outcome: str
    # Seconds that the run took.
    cost_s: float
    # True if the timings are synthetic.
    synthetic: bool
    # The most of any rank; None if it is not known or the run did not complete.
    memory_bytes: float | None = None
    # The reason why it did not complete, in words.
    reason: str | None = None


@dataclass(frozen=True)
class Decision:
    """The answer of a search."""

    best: str
    # The measure of the best.
    value: Interval
    # Configurations with repeats that are not significantly worse.
    tied: list[str]


class ScenarioSpace:
    """The configurations of a scenario that train; each is named by the id of its first repeat."""

    def __init__(self, experiment: Experiment, name: str, goal: str) -> None:
        """Plan a scenario; `goal` is `throughput` or `iteration_time`.

        Raises `UserError` if the scenario varies nothing.
        """
        self.experiment = experiment
        self.name = name
        self.scenario = experiment.scenarios[name]
        self.results = Path(experiment.results)
        self.varied = {
            parameter: values
            for parameter, values in self.scenario.varied.items()
            # A run without a part of its step trains nothing, so that it is no choice.
            if len(values) > 1 and parameter != "ablate"
        }
        if not self.varied:
            raise UserError(f"scenarios.{name}: varies nothing, expected several values of a parameter under vary")
        self.matrix = Matrix.plan(experiment)
        self.maximize = goal == "throughput"
        unit = WORKLOADS[experiment.workload(name)].unit
        self.measure = unit.throughput if self.maximize else "iteration_time_s"
        # The runs of each configuration.
        self.repeats: dict[str, list[Run]] = {}
        configurations: dict[Levels, str] = {}
        for values, runs in combinations(experiment, name).items():
            first = runs[0]
            if not first.parameters.ablated:
                configurations[self._levels(values)] = first.id
                self.repeats[first.id] = runs
        self.space = Space(self.varied, configurations)

    def _levels(self, values: Sequence[Any]) -> Levels:
        """Return which value each varied parameter has, given the values of all parameters that the scenario lists."""
        stated = dict(zip(self.scenario.varied, values, strict=True))
        return tuple(listed.index(stated[parameter]) for parameter, listed in self.varied.items())

    def run(self, configuration: str, repeat: int) -> Run:
        """Return a repeat of a configuration, from 1."""
        return self.repeats[configuration][repeat - 1]

    def record(self, run: Run) -> Path:
        """Return where the record of a run is."""
        return self.results / "runs" / run.id / RUN

    def target(self, run: Run) -> Path:
        """Return the file of a run that is made last, after all from which its measures are read."""
        return self.record(run).parent / ACTIVITY / ACTIVITY_INDEX

    def decide(self, search: Search[str]) -> Decision | None:
        """Return the best configuration by the values that a search was told; None if none completed."""
        best = search.best
        completed = search.completed
        if best is None:
            return None
        contenders = [key for key in search.contenders if key != best]
        pool = Pool(completed)
        value = pool.mean(best)
        if value is None:
            raise ValueError(f"expected values above zero, found {completed[best]}")
        ratios = pool.against_best(best, contenders, len(completed))
        tied = [key for key, ratio in zip(contenders, ratios, strict=True) if verdict(ratio) in ("none", "unknown")]
        return Decision(best, value, tied)

    def format(self, value: float) -> str:
        """Return a value of the measure with its unit."""
        rate = self.measure.removesuffix("_per_s")
        unit = f" {rate.split('_')[-1]}/s" if rate != self.measure else ""
        return f"{show(self.measure, value)}{unit}"

    def describe(self, configuration: str) -> str:
        """Return the values of the varied parameters in words."""
        values = self.values(configuration)
        return statements(values, values)

    def values(self, configuration: str) -> dict[str, Any]:
        """Return the values of the varied parameters."""
        levels = self.space.combinations[configuration][0]
        return {name: values[level] for (name, values), level in zip(self.varied.items(), levels, strict=True)}

    @property
    def learning_differences(self) -> list[str]:
        """Facts that decide how much is learned from a sample, and differ among the configurations."""
        workload = WORKLOADS[self.experiment.workload(self.name)]
        learning = [workload.learning(as_columns(runs[0].parameters.model_dump())) for runs in self.repeats.values()]
        names = dict.fromkeys(name for facts in learning for name in facts)
        return [name for name in names if len({repr(facts.get(name)) for facts in learning}) > 1]

    @property
    def on_gpus(self) -> bool:
        """True if all runs use GPUs, whose memory a batch may fill."""
        return all(runs[0].parameters.device == "cuda" for runs in self.repeats.values())

    def cannot_run(self) -> dict[str, str]:
        """Return the configurations that cannot run here, with the reason."""
        reasons = {}
        for key in self.repeats:
            reason = self.matrix.reasons[key]
            if reason:
                reasons[key] = reason
        return reasons

    def left_out(self) -> dict[str, str]:
        """Return the configurations that are not tried, with the reason: they cannot run here, or may not fit."""
        too_large = [key for key in self.repeats if self.run(key, 1).exceeds_memory(self.matrix.machine)]
        return dict.fromkeys(too_large, "memory estimate above that of a GPU") | self.cannot_run()

    def result(self, run: Run) -> RunResult:
        """Read the result of a run.

        Raises `UserError` if a file of it is missing or damaged, or it completed and has no value.
        """
        files = RunFiles.of(self.record(run).parent)
        record = files.record
        measures = measure_run(files)
        completed = measures["outcome"] == "completed"
        result = RunResult(
            value=measures[self.measure] if completed else None,
            outcome=measures["outcome"],
            cost_s=record.wall_time_s or 0.0,
            synthetic=is_synthetic(gpu_names(record.hardware)),
            memory_bytes=_peak_memory(measures) if completed else None,
            reason=describe_reason(record.reason),
        )
        if completed and not (result.value and result.value > 0):
            raise UserError(
                f"{files.folder}: has no {self.measure}, expected one above 0: search for another goal, such as "
                "--goal iteration_time"
            )
        return result


def _peak_memory(measures: dict[str, Any]) -> float | None:
    """Return the most bytes that a rank used, reserved ones preferred; None if they are not known."""
    for name in ("peak_reserved_bytes", "peak_memory_bytes"):
        if pd.notna(measures.get(name)):
            return measures[name]
    return None
