"""A scenario as a space to search: its configurations, those that are left out, and their runs and results."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from multicard.config.experiment import Experiment
from multicard.config.plan import Plan
from multicard.config.runs import Run, combinations
from multicard.config.wording import statements
from multicard.core.errors import UserError
from multicard.core.layout import ACTIVITY, ACTIVITY_INDEX, RUN
from multicard.core.reasons import describe_reason
from multicard.core.units import show
from multicard.programs import PROGRAMS
from multicard.results.measure import measures_of
from multicard.results.run_files import RunFiles
from multicard.runs.environment import gpu_names, is_synthetic
from multicard.runs.measures import Measures
from multicard.runs.parameters import Parameters, as_columns
from multicard.search.core import Search
from multicard.search.space import Levels, Space
from multicard.stats.interval import Interval, verdict
from multicard.stats.pool import Pool


@dataclass(frozen=True)
class RunResult:
    """The result of a run."""

    # The value of the measure that the search optimizes; None if the run did not complete.
    value: float | None
    outcome: str
    # Wall time of the run in seconds; 0 if its record does not state it.
    cost_s: float
    # True if the run's times are synthetic and were not measured.
    synthetic: bool
    # Peak memory of the rank that used most; None if it is not known, or if the run did not complete.
    memory_bytes: float | None = None
    # Why the run did not complete, in words; None if it completed.
    reason: str | None = None


@dataclass(frozen=True)
class Decision:
    """The answer of a search."""

    # The best configuration.
    best: str
    # Its mean value, with an interval.
    value: Interval
    # Other contenders that are not shown to be worse or better than the best, also because they cannot be compared.
    tied: list[str]


class ScenarioSpace:
    """The configurations of a scenario, without ablated ones. The id of its first repeat names a configuration."""

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
            # An ablated run skips a part of its step and does not train, so it must not be chosen.
            if len(values) > 1 and parameter != "ablate"
        }
        if not self.varied:
            raise UserError(f"scenarios.{name}: varies nothing, expected several values of a parameter under vary")
        self.plan = Plan.make(experiment)
        self.maximize = goal == "throughput"
        unit = PROGRAMS[experiment.workload(name)].unit
        self.measure = unit.throughput if self.maximize else "iteration_time_s"
        # The runs of each configuration, in the order of their repeats.
        self.repeats: dict[str, list[Run]] = {}
        configurations: dict[Levels, str] = {}
        for values, runs in combinations(experiment, name).items():
            first = runs[0]
            if not first.parameters.ablated:
                configurations[self._levels(values)] = first.id
                self.repeats[first.id] = runs
        self.space = Space(self.varied, configurations)

    def _levels(self, values: Sequence[Any]) -> Levels:
        """Return for each parameter in `varied` the index of its value; `values`: of all that the scenario varies."""
        stated = dict(zip(self.scenario.varied, values, strict=True))
        return tuple(listed.index(stated[parameter]) for parameter, listed in self.varied.items())

    def run(self, configuration: str, repeat: int) -> Run:
        """Return the run of a configuration with the number `repeat`, from 1."""
        return self.repeats[configuration][repeat - 1]

    def record(self, run: Run) -> Path:
        """Return the path of the record of a run."""
        return self.results / "runs" / run.id / RUN

    def target(self, run: Run) -> Path:
        """Return the path of the file of a run that is made last, after all files from which its measures are read."""
        return self.record(run).parent / ACTIVITY / ACTIVITY_INDEX

    def decide(self, search: Search[str]) -> Decision | None:
        """Return the best configuration by the results that a search has; None if no configuration completed."""
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
        """Return the values of a configuration's varied parameters in words."""
        values = self.values(configuration)
        return statements(values, values)

    def values(self, configuration: str) -> Parameters:
        """Return the values of a configuration's varied parameters, by the names of the parameters."""
        levels = self.space.combinations[configuration][0]
        return {name: values[level] for (name, values), level in zip(self.varied.items(), levels, strict=True)}

    @property
    def learning_differences(self) -> list[str]:
        """Names of facts that decide how much is learned from a sample, and that differ between configurations."""
        program = PROGRAMS[self.experiment.workload(self.name)]
        learning = [
            program.comparison.learning(as_columns(runs[0].parameters.model_dump())) for runs in self.repeats.values()
        ]
        names = dict.fromkeys(name for facts in learning for name in facts)
        return [name for name in names if len({repr(facts.get(name)) for facts in learning}) > 1]

    @property
    def on_gpus(self) -> bool:
        """True if all runs use GPUs. Then a search may fill their memory."""
        return all(runs[0].parameters.device == "cuda" for runs in self.repeats.values())

    def cannot_run(self) -> dict[str, str]:
        """Return the configurations that cannot run here, each with the reason of its first repeat."""
        reasons = {}
        for key in self.repeats:
            reason = self.plan.reasons[key]
            if reason:
                reasons[key] = reason
        return reasons

    def left_out(self) -> dict[str, str]:
        """Return the configurations that are not tried, each with the reason.

        They cannot run here, or their estimated memory is more than a GPU has.
        """
        too_large = [key for key in self.repeats if self.run(key, 1).exceeds_memory(self.plan.machine)]
        return dict.fromkeys(too_large, "memory estimate above that of a GPU") | self.cannot_run()

    def result(self, run: Run) -> RunResult:
        """Read the result of a run.

        Raises `UserError` if a file of the run is missing or damaged, or if the run completed without a value above 0.
        """
        files = RunFiles.of(self.record(run).parent)
        record = files.record
        measures = measures_of(files)
        completed = record.completed
        result = RunResult(
            value=measures.number(self.measure) if completed else None,
            outcome=record.outcome,
            cost_s=record.wall_time_s or 0.0,
            synthetic=is_synthetic(gpu_names(record.hardware)),
            memory_bytes=_peak_memory(measures.common) if completed else None,
            reason=describe_reason(record.reason),
        )
        if completed and not (result.value and result.value > 0):
            raise UserError(
                f"{files.folder}: has no {self.measure}, expected one above 0: search for another goal, such as "
                "--goal iteration_time"
            )
        return result


def _peak_memory(measures: Measures) -> float | None:
    """Return the peak memory in bytes: reserved by PyTorch if that is known, else allocated; None if neither is."""
    reserved = measures.peak_reserved_bytes
    return measures.peak_memory_bytes if reserved is None else reserved
