"""Kinds of tests of claims: which runs a test of each kind is about, and how it compares them."""

import re
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import pandas as pd
from pydantic import AfterValidator, Field, model_validator

from multicard.analysis.runs.measures import MEASURES
from multicard.analysis.scaling.speedup import speedups_of
from multicard.core.grouping import grouped
from multicard.core.units import percent
from multicard.experiment.config import PARAMETERS, is_parameter
from multicard.experiment.datasets import Strict
from multicard.papers.compared_numbers import ComparedNumber, means_by_block, one_per_job, same_blocks
from multicard.results.configuration import OBSERVATION, Configuration
from multicard.results.results import Results
from multicard.stats.samples import ratio_by_block

# A key of `where` that is neither a parameter nor a measure: the kind of the data set, from the record of a run.
DATA_SOURCE = "data_source"

NumberType = Literal["ratio", "share"]


class Range(Strict):
    """All numbers from `at_least` to `at_most`, both included. None means that there is no limit on that side."""

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
    """A test of a claim: the runs that it is about, and the limits of its number. Base class of all kinds of tests.

    Attributes
    ----------
    number_type
        Ratios are averaged as logarithms, shares as they are.
    statement
        A sentence that says what the test shows if it is confirmed.
    where
        Values that the compared configurations must have, by the name of a parameter or measure, or `DATA_SOURCE`.
    max_data_share
        Configurations with a higher mean share of a step spent waiting for data do not count, because their loader sets
        the pace. None if any share counts.
    above, below
        The test is confirmed if the number is above the one limit and below the other. At least one is set.
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
        """True if the number depends on times, so that runs with doubtful times do not count.

        A number that does not depend on times is counted or computed in the same way in each repeat. Equal repeats then
        show that it does not scatter (`exact` of `stats.pool.Pool`).
        """
        return True

    @model_validator(mode="after")
    def _has_a_limit(self) -> "Test":
        if self.above is None and self.below is None:
            raise ValueError("expected a limit: above, below or both")
        return self

    def comparisons(self, configurations: Sequence[Configuration], results: Results) -> list[ComparedNumber]:
        """Return the comparisons that `configurations` make. Those without the needed numbers make none.

        `results`: all measurements, also those of configurations that do not count.
        """
        raise NotImplementedError

    def exclusion_reason(self, configuration: Configuration) -> str:
        """Return why the runs of a configuration do not show what the test is about; empty if they do."""
        data_shares = configuration.values("data_share")
        if self.max_data_share is None or not data_shares:
            return ""
        mean_share = sum(data_shares) / len(data_shares)
        is_exceeded = mean_share > self.max_data_share
        return f"the loader sets the pace (data share above {percent(self.max_data_share)})" if is_exceeded else ""


class Compare(Test):
    """The ratio of a measure under one value of a parameter to the measure under another value.

    The configuration under a value in `of` is divided by the one under a value in `against`. All other parameters are
    equal, except those in `may_differ`. A `trend` is this ratio on the most devices divided by the ratio on the fewest.
    `of_where`: further values that the first configuration must have.
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
        """True if the measure is a time, a rate or an energy, by the unit at the end of its name."""
        return self.measure.endswith(("_s", "_j"))

    def comparisons(self, configurations: Sequence[Configuration], results: Results) -> list[ComparedNumber]:
        """Return a comparison for each pair of configurations; for a trend, for each pair on several device counts."""
        where = {name: values for name, values in self.where.items() if name != self.parameter}
        fitting = [configuration for configuration in configurations if fits(configuration, where)]
        may_differ = [self.parameter, *self.may_differ]
        groups = grouped(fitting, lambda configuration: configuration.rest(may_differ))
        pairs: list[ComparedNumber] = []
        for group in groups.values():
            pairs += self._pairs(group)
        pairs = one_per_job(pairs)
        return pairs if self.kind == "compare" else self._trends(pairs)

    def _pairs(self, configurations: Sequence[Configuration]) -> list[ComparedNumber]:
        """Compare each configuration with a value in `of` with each that has a value in `against`.

        `configurations` differ at most in the parameter and in those of `may_differ`.
        """
        pairs = []
        for compared in configurations:
            if compared[self.parameter] not in self.of or not fits(compared, self.of_where):
                continue
            for base in configurations:
                if base[self.parameter] not in self.against:
                    continue
                ratios = ratio_by_block(compared.by_repeat(self.measure), base.by_repeat(self.measure))
                if ratios:
                    pairs.append(ComparedNumber(ratios, (compared, base)))
        return pairs

    def _trends(self, pairs: Sequence[ComparedNumber]) -> list[ComparedNumber]:
        """Compare each pair on the most devices with the same pair on the fewest; none if it ran on one number only."""
        # For each series the same pair on each number of devices.
        series: dict[Hashable, dict[int, ComparedNumber]] = defaultdict(dict)
        may_differ = [self.parameter, "devices", *self.may_differ, *OBSERVATION]
        for pair in pairs:
            compared, base = pair.sides
            key = (compared.rest(may_differ), compared[self.parameter], base[self.parameter])
            device_count = compared["devices"]
            series[key][device_count] = pair
        trends = []
        for pair_by_devices in series.values():
            if len(pair_by_devices) == 1:
                continue
            on_fewest = pair_by_devices[min(pair_by_devices)]
            on_most = pair_by_devices[max(pair_by_devices)]
            ratios = ratio_by_block(on_most.by_block, on_fewest.by_block)
            if ratios:
                trends.append(ComparedNumber(ratios, on_fewest.sides + on_most.sides))
        return trends


class Efficiency(Test):
    """Speed-up per device. The baseline is one device under the strategy `single` if that ran, else the same strategy.

    A configuration counts only if it was also measured with each value in `measured_with` in place of its own. So tests
    that differ in such a value compare the same configurations.
    """

    kind: Literal["efficiency"]
    measured_with: dict[Name, Values] = Field(default_factory=dict)

    def comparisons(self, configurations: Sequence[Configuration], results: Results) -> list[ComparedNumber]:
        """Return a comparison for each configuration on several devices that has a speed-up."""
        measured: set[tuple[Any, ...]] = set()
        for configuration in results.configurations():
            if configuration.completed:
                for name in self.measured_with:
                    measured.add((name, configuration[name], _key_without(configuration, name)))
        comparisons = []
        for speedup in _speedups(configurations, self.where):
            scaled = speedup.sides[0]
            required: set[tuple[Any, ...]] = set()
            for name, values in self.measured_with.items():
                key = _key_without(scaled, name)
                required.update((name, value, key) for value in values)
            if required <= measured:
                device_count = scaled["devices"]
                per_device = {block: ratio / device_count for block, ratio in speedup.by_block.items()}
                comparisons.append(speedup._replace(by_block=per_device))
        return one_per_job(comparisons, 1)


class Scaling(Test):
    """Mean speed-up of the configurations that fit `where`, divided by that of those that fit `than`."""

    kind: Literal["scaling"]
    than: Where

    def comparisons(self, configurations: Sequence[Configuration], results: Results) -> list[ComparedNumber]:
        """Return a comparison for each number of devices on each machine with each set of versions."""
        speedups_by_setting = self._speedups_by_setting(configurations, self.where)
        bases_by_setting = self._speedups_by_setting(configurations, self.than)
        comparisons = []
        for setting in speedups_by_setting:
            if setting not in bases_by_setting:
                continue
            compared = same_blocks(speedups_by_setting[setting])
            bases = same_blocks(bases_by_setting[setting])
            ratios = ratio_by_block(means_by_block(compared), means_by_block(bases))
            if ratios:
                sides = tuple(side for speedup in (*compared, *bases) for side in speedup.sides)
                comparisons.append(ComparedNumber(ratios, sides))
        return comparisons

    @staticmethod
    def _speedups_by_setting(
        configurations: Sequence[Configuration], where: Where
    ) -> Mapping[tuple[Any, ...], Sequence[ComparedNumber]]:
        """Return the speed-ups of the configurations that fit `where`, by number of devices, machine and versions."""

        def setting(speedup: ComparedNumber) -> tuple[Any, ...]:
            scaled = speedup.sides[0]
            return scaled["devices"], scaled.provenance.machine, scaled.provenance.versions

        return grouped(one_per_job(_speedups(configurations, where), 1), setting)


class ShareOfRuns(Test):
    """A test of a share that is read from the rows of each run in the gathered table `table`. A base class."""

    number_type: ClassVar[NumberType] = "share"
    table: ClassVar[str]

    def comparisons(self, configurations: Sequence[Configuration], results: Results) -> list[ComparedNumber]:
        """Return a comparison for each configuration of which a run shows the share."""
        rows_by_run = results.table_by_run(self.table)
        comparisons = []
        for configuration in configurations:
            shares = {}
            for run in configuration.completed:
                if run.run not in rows_by_run:
                    continue
                share = self.share(rows_by_run[run.run])
                if share is not None:
                    shares[run.repeat] = share
            if shares and fits(configuration, self.where):
                comparisons.append(ComparedNumber(shares, (configuration,)))
        return one_per_job(comparisons)

    def share(self, rows: pd.DataFrame) -> float | None:
        """Return the share that the rows of a run show; None if they show none."""
        raise NotImplementedError


class ApiTime(ShareOfRuns):
    """The share of the time in CUDA calls that is spent in functions whose names contain the pattern `functions`."""

    table: ClassVar[str] = "cuda_api"

    kind: Literal["api_time"]
    functions: re.Pattern[str]

    def share(self, rows: pd.DataFrame) -> float | None:
        """Return the share of the summed durations of all calls of a run; None if these take no time."""
        # Rows of backtraces repeat calls of other rows.
        calls = rows[rows["api"] != "backtrace"]
        has_function = [bool(self.functions.search(str(name))) for name in calls["function"]]
        total_s = calls["total_s"].sum()
        total_of_functions_s = calls["total_s"][has_function].sum()
        return float(total_of_functions_s / total_s) if total_s > 0 else None


class Reaches(ShareOfRuns):
    """The highest test accuracy in the first `epochs` epochs."""

    table: ClassVar[str] = "epochs"

    kind: Literal["reaches"]
    epochs: Annotated[int, Field(ge=1)]

    @property
    def timed(self) -> bool:
        """False: an accuracy does not depend on times."""
        return False

    def share(self, rows: pd.DataFrame) -> float | None:
        """Return the highest accuracy of a run in its first epochs; None if none of these has one."""
        highest = rows.loc[rows["epoch"] <= self.epochs, "test_accuracy"].max()
        return float(highest) if pd.notna(highest) else None


AnyTest = Annotated[Compare | Efficiency | Scaling | ApiTime | Reaches, Field(discriminator="kind")]


def fits(configuration: Configuration, where: Where) -> bool:
    """True if a configuration has all values in `where`.

    The value of a measure is that of the first completed run that has it. Configurations of a user's own program never
    fit, because no paper is about them.
    """
    if configuration.workload.is_user_program:
        return False
    return all(_is_wanted(_value(configuration, name), wanted) for name, wanted in where.items())


def _is_wanted(value: Any, wanted: Value | list[Value] | Range | None) -> bool:
    values = wanted if isinstance(wanted, list | Range) else [wanted]
    return value in values


def _value(configuration: Configuration, name: str) -> Any:
    if name == DATA_SOURCE:
        return configuration.provenance.data_source
    if is_parameter(name):
        return configuration[name]
    return next((run.values[name] for run in configuration.completed if name in run.values), None)


def _speedups(configurations: Sequence[Configuration], where: Where) -> list[ComparedNumber]:
    """Return the speed-up of each fitting configuration on several devices. Its second side is the baseline."""
    return [
        ComparedNumber(speedup.by_repeat, (speedup.configuration, speedup.baseline))
        for speedup in speedups_of(configurations)
        if speedup.baseline is not None
        and speedup.configuration["devices"] > 1
        and fits(speedup.configuration, where)
        and speedup.by_repeat
    ]


def _key_without(configuration: Configuration, parameter: str) -> Hashable:
    """Return a key that is equal for configurations that differ at most in `parameter` and in how they are observed."""
    return configuration.rest([parameter, *OBSERVATION])
