"""Kinds of tests of claims: which runs each is about, and the comparisons between them that it makes."""

import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from statistics import geometric_mean
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import pandas as pd
from pydantic import AfterValidator, Field, model_validator

from multicard.analysis.evidence import OBSERVATION, Configuration, Evidence, MeasuredRun, observed_once
from multicard.analysis.runs.measures import MEASURES
from multicard.analysis.scaling.speedup import speedups_of
from multicard.core.grouping import grouped
from multicard.core.units import percent
from multicard.experiment.config import PARAMETERS, is_parameter
from multicard.experiment.datasets import Strict
from multicard.stats.samples import ratio_by_block, shared_blocks

DATA_SOURCE = "data_source"  # kind of the data set, from the record of a run

Quantity = Literal["ratio", "share"]


class Comparison(NamedTuple):
    """A number that a test compares with its limits, in each block of repeats in which all of its sides ran."""

    by_block: Mapping[int, float]
    sides: tuple[Configuration, ...]

    def runs(self, blocks: Iterable[int]) -> list[MeasuredRun]:
        """Return the runs behind its numbers of some blocks."""
        return [run for side in self.sides for run in side.completed if run.repeat in blocks]


class Range(Strict):
    """Values from one number to another, both included."""

    at_least: float | None = None
    at_most: float | None = None

    def __contains__(self, value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        is_too_low = self.at_least is not None and not value >= self.at_least
        is_too_high = self.at_most is not None and not value <= self.at_most
        return not (is_too_low or is_too_high)


def _existing_name(name: str) -> str:
    if name not in (*PARAMETERS, *MEASURES, DATA_SOURCE):
        raise ValueError(f"{name!r} is neither a parameter nor a measure")
    return name


Name = Annotated[str, AfterValidator(_existing_name)]
Value = bool | int | float | str
Values = Annotated[list[Value], Field(min_length=1)]
Where = dict[Name, Value | list[Value] | Range | None]


class Test(Strict):
    """Base of the tests: which runs it is about, and the limits between which its number must be.

    `quantity` is that of its number; of ratios logarithms are averaged.
    """

    __test__ = False  # not for pytest

    quantity: ClassVar[Quantity] = "ratio"

    statement: Annotated[str, Field(min_length=1)]
    where: Where
    max_data_share: Annotated[float, Field(ge=0, le=1)] | None = None
    above: float | None = None
    below: float | None = None

    @property
    def timed(self) -> bool:
        """True if the number depends on times, so that disturbed runs do not count.

        Any other number is counted or computed alike in each repeat, so equal repeats show that it does not scatter
        (`stats.pool.Pool`).
        """
        return True

    @model_validator(mode="after")
    def _has_a_limit(self) -> "Test":
        if self.above is None and self.below is None:
            raise ValueError("expected a limit: above, below or both")
        return self

    def comparisons(self, configurations: Sequence[Configuration], evidence: Evidence) -> list[Comparison]:
        """Compare some configurations of all evidence; those without the numbers make no comparison."""
        raise NotImplementedError

    def why_not(self, configuration: Configuration) -> str:
        """Return why the runs of a configuration do not show what the test is about; empty where they do."""
        shares = configuration.values("data_share")
        if self.max_data_share is not None and shares and sum(shares) / len(shares) > self.max_data_share:
            return f"the loader sets the pace (data share above {percent(self.max_data_share)})"
        return ""


class Compare(Test):
    """A measure under one value of a parameter over that under another, all else equal but what `may_differ`.

    A `trend` is that ratio on the most devices over the same on the fewest.
    """

    kind: Literal["compare", "trend"]
    parameter: Name
    of: Values
    against: Values
    measure: Name
    may_differ: list[Name] = Field(default_factory=list)
    of_where: Where = Field(default_factory=dict)

    @property
    def timed(self) -> bool:
        """True of times, rates and energy, by the unit in the measure's name."""
        return self.measure.endswith(("_s", "_j"))

    def comparisons(self, configurations: Sequence[Configuration], evidence: Evidence) -> list[Comparison]:
        """Return one per pair, or per series of pairs over devices."""
        where = {name: values for name, values in self.where.items() if name != self.parameter}
        fitting = [configuration for configuration in configurations if fits(configuration, where)]
        alike = grouped(fitting, lambda configuration: configuration.rest([self.parameter, *self.may_differ]))
        pairs = once([pair for group in alike.values() for pair in self._pairs(group)])
        return pairs if self.kind == "compare" else self._trends(pairs)

    def _pairs(self, configurations: Sequence[Configuration]) -> list[Comparison]:
        """Compare configurations that differ in the parameter, and in what may differ."""
        pairs = []
        for compared in configurations:
            if compared[self.parameter] not in self.of or not fits(compared, self.of_where):
                continue
            for base in configurations:
                if base[self.parameter] in self.against:
                    ratios = ratio_by_block(compared.by_repeat(self.measure), base.by_repeat(self.measure))
                    if ratios:
                        pairs.append(Comparison(ratios, (compared, base)))
        return pairs

    def _trends(self, pairs: Sequence[Comparison]) -> list[Comparison]:
        """Compare each pair on the most devices with the same pair on the fewest."""
        series: dict[Hashable, dict[int, Comparison]] = defaultdict(dict)
        for pair in pairs:
            compared, base = pair.sides
            shared = compared.rest([self.parameter, "devices", *self.may_differ, *OBSERVATION])
            series[shared, compared[self.parameter], base[self.parameter]][compared["devices"]] = pair
        trends = []
        for by_devices in series.values():
            fewest, most = by_devices[min(by_devices)], by_devices[max(by_devices)]
            ratios = ratio_by_block(most.by_block, fewest.by_block)
            if len(by_devices) > 1 and ratios:
                trends.append(Comparison(ratios, fewest.sides + most.sides))
        return trends


class Efficiency(Test):
    """Speed-up per device, against one device under the strategy `single` where that ran, else under the same.

    With each of the values of `measured_with` the same must have been measured too, so that tests compare like with
    like.
    """

    kind: Literal["efficiency"]
    measured_with: dict[Name, Values] = Field(default_factory=dict)

    def comparisons(self, configurations: Sequence[Configuration], evidence: Evidence) -> list[Comparison]:
        """Return one per configuration on several devices."""
        measured = {
            (name, configuration[name], _key_without(configuration, name))
            for configuration in evidence.configurations
            if configuration.completed
            for name in self.measured_with
        }
        wanted = [(name, value) for name, values in self.measured_with.items() for value in values]
        comparisons = []
        for speedup in _speedups(configurations, self.where):
            scaled = speedup.sides[0]
            if all((name, value, _key_without(scaled, name)) in measured for name, value in wanted):
                per_device = {block: times / scaled["devices"] for block, times in speedup.by_block.items()}
                comparisons.append(speedup._replace(by_block=per_device))
        return once(comparisons, 1)


class Scaling(Test):
    """Mean speed-up of the configurations `where` over that of those `than`, with equal numbers of devices."""

    kind: Literal["scaling"]
    than: Where

    def comparisons(self, configurations: Sequence[Configuration], evidence: Evidence) -> list[Comparison]:
        """Return one per machine, versions and number of devices."""
        compared = grouped(once(_speedups(configurations, self.where), 1), _place_of_first_side)
        bases = grouped(once(_speedups(configurations, self.than), 1), _place_of_first_side)
        comparisons = []
        for place in compared:
            if place in bases:
                scaled, base = same_blocks(compared[place]), same_blocks(bases[place])
                ratios = ratio_by_block(_means_by_block(scaled), _means_by_block(base))
                if ratios:
                    sides = tuple(side for comparison in (*scaled, *base) for side in comparison.sides)
                    comparisons.append(Comparison(ratios, sides))
        return comparisons


class OfRuns(Test):
    """Base of the tests of a share of each run, by its rows in `table`."""

    quantity: ClassVar[Quantity] = "share"
    table: ClassVar[str]

    def comparisons(self, configurations: Sequence[Configuration], evidence: Evidence) -> list[Comparison]:
        """Return one per configuration."""
        rows = evidence.table(self.table)
        comparisons = []
        for configuration in configurations:
            shares = {}
            for run in configuration.completed:
                share = self.of_run(rows[run.run]) if run.run in rows else None
                if share is not None:
                    shares[run.repeat] = share
            if shares and fits(configuration, self.where):
                comparisons.append(Comparison(shares, (configuration,)))
        return once(comparisons)

    def of_run(self, rows: pd.DataFrame) -> float | None:
        """Return the number of a run by its rows; None where they do not show it."""
        raise NotImplementedError


class ApiTime(OfRuns):
    """Share of the time in CUDA calls that is spent in some functions, by a pattern to search for in their names."""

    table: ClassVar[str] = "cuda_api"

    kind: Literal["api_time"]
    functions: re.Pattern[str]

    def of_run(self, rows: pd.DataFrame) -> float | None:
        """Return the share of the summed durations of calls, those of backtraces left out: they repeat other rows."""
        calls = rows[rows["api"] != "backtrace"]
        chosen = calls["function"].map(lambda name: bool(self.functions.search(str(name)))).astype(bool)
        total = calls["total_s"].sum()
        return float(calls["total_s"][chosen].sum() / total) if total > 0 else None


class Reaches(OfRuns):
    """Highest test accuracy in the first epochs."""

    table: ClassVar[str] = "epochs"

    kind: Literal["reaches"]
    epochs: Annotated[int, Field(ge=1)]

    @property
    def timed(self) -> bool:
        """False: an accuracy does not depend on times."""
        return False

    def of_run(self, rows: pd.DataFrame) -> float | None:
        """Return the highest of the epochs' accuracies; None where none was tested."""
        highest = rows.loc[rows["epoch"] <= self.epochs, "test_accuracy"].max()
        return float(highest) if pd.notna(highest) else None


AnyTest = Annotated[Compare | Efficiency | Scaling | ApiTime | Reaches, Field(discriminator="kind")]


def fits(configuration: Configuration, where: Where) -> bool:
    """True if a configuration, or the first of its runs that completed, has the values wanted.

    Configurations of a user's own program never fit: no paper is about them.
    """
    if configuration.workload.is_user_program:
        return False
    return all(_is_wanted(_value(configuration, name), wanted) for name, wanted in where.items())


def _is_wanted(value: Any, wanted: Value | list[Value] | Range | None) -> bool:
    return value in (wanted if isinstance(wanted, list | Range) else [wanted])


def _value(configuration: Configuration, name: str) -> Any:
    if name == DATA_SOURCE:
        return configuration.provenance.data_source
    if is_parameter(name):
        return configuration[name]
    return next((run.values[name] for run in configuration.completed if name in run.values), None)


def _speedups(configurations: Sequence[Configuration], where: Where) -> list[Comparison]:
    """Return the speed-up of each configuration on several devices; its baseline is the second side."""
    return [
        Comparison(speedup.by_repeat, (speedup.configuration, speedup.baseline))
        for speedup in speedups_of(configurations)
        if speedup.baseline is not None
        and speedup.configuration["devices"] > 1
        and fits(speedup.configuration, where)
        and speedup.by_repeat
    ]


def _place_of_first_side(comparison: Comparison) -> tuple[Any, ...]:
    side = comparison.sides[0]
    return side["devices"], side.provenance.machine, side.provenance.versions


def _means_by_block(comparisons: Sequence[Comparison]) -> dict[int, float]:
    """Return the geometric mean of comparisons that have the same blocks, in each of these."""
    if not comparisons:
        return {}
    return {
        block: geometric_mean(comparison.by_block[block] for comparison in comparisons)
        for block in comparisons[0].by_block
    }


def once(comparisons: Sequence[Comparison], job_sides: int | None = None) -> list[Comparison]:
    """Return one of those comparisons whose jobs differ only in how their runs are observed.

    The job of a comparison is that of its first `job_sides` sides, by default of all.
    """
    jobs = [tuple(side.rest(OBSERVATION) for side in comparison.sides[:job_sides]) for comparison in comparisons]
    counts = [len(comparison.by_block) for comparison in comparisons]
    return [comparisons[index] for index in observed_once(jobs, counts)]


def same_blocks(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Return the comparisons in the blocks that all of them have; none without such a block.

    Means over different series would differ by these, so the series are the same in all blocks.
    """
    blocks = shared_blocks([comparison.by_block for comparison in comparisons])
    if not blocks:
        return []
    return [
        comparison._replace(by_block={block: comparison.by_block[block] for block in blocks})
        for comparison in comparisons
    ]


def _key_without(configuration: Configuration, parameter: str) -> Hashable:
    """Return a key that is equal for configurations that differ at most in a parameter, and how they are observed."""
    return configuration.rest([parameter, *OBSERVATION])
