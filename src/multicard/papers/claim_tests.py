"""Kinds of tests of claims: which runs each is about, and the comparisons between them that it makes."""

import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from statistics import geometric_mean
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import pandas as pd
from pydantic import AfterValidator, Field, model_validator

from multicard.analysis.runs.measures import MEASURES
from multicard.analysis.scaling.speedup import speedups_of
from multicard.core.grouping import grouped
from multicard.core.units import percent
from multicard.experiment.config import PARAMETERS, is_parameter
from multicard.experiment.datasets import Strict
from multicard.results.configuration import OBSERVATION, Configuration, MeasuredRun, observed_once
from multicard.results.results import Results
from multicard.stats.samples import ratio_by_block, shared_blocks

# A key of `where`: the kind of the data set, which the record of a run has, and neither parameters nor measures.
DATA_SOURCE = "data_source"

NumberType = Literal["ratio", "share"]


class Comparison(NamedTuple):
    """A number that a test compares with its limits, in each block of repeats in which all of its sides ran.

    A block is the number of a repeat, in which every configuration runs once.
    """

    by_block: Mapping[int, float]
    sides: tuple[Configuration, ...]

    def runs(self, blocks: Iterable[int]) -> list[MeasuredRun]:
        """Return the runs of all sides in some blocks."""
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
    """A test of a claim, base of all kinds: the runs that it is about, and the limits between which its number must be.

    Attributes
    ----------
    number_type
        Ratios are averaged as logarithms, shares as they are.
    statement
        What the test shows if it is confirmed, as a sentence.
    where
        Values that the compared configurations have, by the name of a parameter or measure.
    max_data_share
        Highest mean share of a step spent waiting for data, if the loader must not set the pace.
    above, below
        Limits of the number; at least one is set.
    """

    # Pytest collects no class that has this.
    __test__ = False

    number_type: ClassVar[NumberType] = "ratio"

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

    def comparisons(self, configurations: Sequence[Configuration], results: Results) -> list[Comparison]:
        """Compare some configurations of all evidence; those without the numbers make no comparison."""
        raise NotImplementedError

    def exclusion_reason(self, configuration: Configuration) -> str:
        """Return why the runs of a configuration do not show what the test is about; empty where they do."""
        data_shares = configuration.values("data_share")
        if self.max_data_share is None or not data_shares:
            return ""
        mean_share = sum(data_shares) / len(data_shares)
        is_exceeded = mean_share > self.max_data_share
        return f"the loader sets the pace (data share above {percent(self.max_data_share)})" if is_exceeded else ""


class Compare(Test):
    """The ratio of a measure under one value of a parameter to the measure under another value.

    Everything else is equal except the parameters that `may_differ`. A `trend` is this ratio on the most devices
    divided by the ratio on the fewest.
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

    def comparisons(self, configurations: Sequence[Configuration], results: Results) -> list[Comparison]:
        """Return one comparison per pair of configurations, of a trend one per series of pairs over devices."""
        where = {name: values for name, values in self.where.items() if name != self.parameter}
        fitting = [configuration for configuration in configurations if fits(configuration, where)]
        groups = grouped(fitting, lambda configuration: configuration.rest([self.parameter, *self.may_differ]))
        pairs = one_per_job([pair for group in groups.values() for pair in self._pairs(group)])
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
    """Speed-up per device over one device, under the strategy `single` if it ran, else under the same strategy.

    A configuration counts only if it was also measured with each of the values in `measured_with`, so that several
    tests compare the same configurations.
    """

    kind: Literal["efficiency"]
    measured_with: dict[Name, Values] = Field(default_factory=dict)

    def comparisons(self, configurations: Sequence[Configuration], results: Results) -> list[Comparison]:
        """Return one comparison per configuration on several devices."""
        measured = {
            (name, configuration[name], _key_without(configuration, name))
            for configuration in results.configurations()
            if configuration.completed
            for name in self.measured_with
        }
        required = [(name, value) for name, values in self.measured_with.items() for value in values]
        comparisons = []
        for speedup in _speedups(configurations, self.where):
            scaled = speedup.sides[0]
            if all((name, value, _key_without(scaled, name)) in measured for name, value in required):
                per_device = {block: times / scaled["devices"] for block, times in speedup.by_block.items()}
                comparisons.append(speedup._replace(by_block=per_device))
        return one_per_job(comparisons, 1)


class Scaling(Test):
    """Mean speed-up of the configurations `where` over that of those `than`, with equal numbers of devices."""

    kind: Literal["scaling"]
    than: Where

    def comparisons(self, configurations: Sequence[Configuration], results: Results) -> list[Comparison]:
        """Return one comparison per machine, versions and number of devices."""
        speedups_by_setting = self._speedups_by_setting(configurations, self.where)
        bases_by_setting = self._speedups_by_setting(configurations, self.than)
        comparisons = []
        for setting in speedups_by_setting:
            if setting not in bases_by_setting:
                continue
            compared = same_blocks(speedups_by_setting[setting])
            bases = same_blocks(bases_by_setting[setting])
            ratios = ratio_by_block(_means_by_block(compared), _means_by_block(bases))
            if ratios:
                sides = tuple(side for speedup in (*compared, *bases) for side in speedup.sides)
                comparisons.append(Comparison(ratios, sides))
        return comparisons

    @staticmethod
    def _speedups_by_setting(
        configurations: Sequence[Configuration], where: Where
    ) -> Mapping[tuple[Any, ...], Sequence[Comparison]]:
        """Return the speed-ups of the configurations `where`, by number of devices, machine and versions."""

        def setting(speedup: Comparison) -> tuple[Any, ...]:
            scaled = speedup.sides[0]
            return scaled["devices"], scaled.provenance.machine, scaled.provenance.versions

        return grouped(one_per_job(_speedups(configurations, where), 1), setting)


class ShareOfRuns(Test):
    """A test of a share of each run, base of those that read it from the run's rows in `table`."""

    number_type: ClassVar[NumberType] = "share"
    table: ClassVar[str]

    def comparisons(self, configurations: Sequence[Configuration], results: Results) -> list[Comparison]:
        """Return one comparison per configuration."""
        rows_by_run = results.table_by_run(self.table)
        comparisons = []
        for configuration in configurations:
            shares = {}
            for run in configuration.completed:
                share = self.share(rows_by_run[run.run]) if run.run in rows_by_run else None
                if share is not None:
                    shares[run.repeat] = share
            if shares and fits(configuration, self.where):
                comparisons.append(Comparison(shares, (configuration,)))
        return one_per_job(comparisons)

    def share(self, rows: pd.DataFrame) -> float | None:
        """Return the share from the rows of a run; None where they do not show it."""
        raise NotImplementedError


class ApiTime(ShareOfRuns):
    """The share of the time in CUDA calls that is spent in the functions whose names contain a pattern."""

    table: ClassVar[str] = "cuda_api"

    kind: Literal["api_time"]
    functions: re.Pattern[str]

    def share(self, rows: pd.DataFrame) -> float | None:
        """Return the share of the summed durations of the calls of a run; None without calls."""
        # Rows of backtraces repeat calls of other rows.
        calls = rows[rows["api"] != "backtrace"]
        matches = calls["function"].map(lambda name: bool(self.functions.search(str(name)))).astype(bool)
        total_s = calls["total_s"].sum()
        return float(calls["total_s"][matches].sum() / total_s) if total_s > 0 else None


class Reaches(ShareOfRuns):
    """The highest test accuracy in the first epochs."""

    table: ClassVar[str] = "epochs"

    kind: Literal["reaches"]
    epochs: Annotated[int, Field(ge=1)]

    @property
    def timed(self) -> bool:
        """False: an accuracy does not depend on times."""
        return False

    def share(self, rows: pd.DataFrame) -> float | None:
        """Return the highest accuracy of the epochs of a run; None if no epoch has one."""
        highest = rows.loc[rows["epoch"] <= self.epochs, "test_accuracy"].max()
        return float(highest) if pd.notna(highest) else None


AnyTest = Annotated[Compare | Efficiency | Scaling | ApiTime | Reaches, Field(discriminator="kind")]


def fits(configuration: Configuration, where: Where) -> bool:
    """True if a configuration has the parameters, and the first of its completed runs the measures, that are wanted.

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


def _means_by_block(comparisons: Sequence[Comparison]) -> dict[int, float]:
    """Return the geometric mean of comparisons that have the same blocks, in each of these."""
    if not comparisons:
        return {}
    return {
        block: geometric_mean(comparison.by_block[block] for comparison in comparisons)
        for block in comparisons[0].by_block
    }


def one_per_job(comparisons: Sequence[Comparison], job_sides: int | None = None) -> list[Comparison]:
    """Return one of several comparisons whose configurations differ only in how their runs are observed.

    The first `job_sides` sides of a comparison decide, by default all.
    """
    return observed_once(
        comparisons,
        job=lambda comparison: tuple(side.rest(OBSERVATION) for side in comparison.sides[:job_sides]),
        block_count=lambda comparison: len(comparison.by_block),
    )


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
