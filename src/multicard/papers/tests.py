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
from multicard.core.units import percent
from multicard.experiment.config import PARAMETERS, is_parameter
from multicard.experiment.datasets import Strict
from multicard.stats.samples import ratio_by_block, shared_blocks

DATA_SOURCE = "data_source"  # kind of the data set, from the record of a run

Quantity = Literal["ratio", "share"]


class Comparison(NamedTuple):
    """One number that a test found, in each block of repeats in which all of its sides ran."""

    by_block: Mapping[int, float]
    sides: tuple[Configuration, ...]

    def runs(self, blocks: Iterable[int]) -> list[MeasuredRun]:
        """The runs behind its numbers of some blocks."""
        return [run for side in self.sides for run in side.completed if run.repeat in blocks]


class Range(Strict):
    """Values from one number to another, both included."""

    at_least: float | None = None
    at_most: float | None = None

    def __contains__(self, value: object) -> bool:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        low, high = self.at_least, self.at_most
        return is_number and (low is None or value >= low) and (high is None or value <= high)


def _known(name: str) -> str:
    if name not in (*PARAMETERS, *MEASURES, DATA_SOURCE):
        raise ValueError(f"{name!r} is neither a parameter nor a measure")
    return name


Name = Annotated[str, AfterValidator(_known)]
Value = bool | int | float | str
Values = Annotated[list[Value], Field(min_length=1)]
Where = dict[Name, Value | list[Value] | Range | None]


class Test(Strict):
    """Base of the tests: which runs it is about, and the limits between which its number must be.

    Of `quantity` ratios logarithms are averaged. Whether it is `timed` decides if disturbed runs count. What is not is
    counted or computed alike in each repeat, so equal repeats show that it does not scatter (`stats.pool.Pool`).
    """

    __test__ = False  # not for pytest

    quantity: ClassVar[Quantity] = "ratio"
    timed: ClassVar[bool] = True

    statement: Annotated[str, Field(min_length=1)]
    where: Where
    max_data_share: Annotated[float, Field(ge=0, le=1)] | None = None
    above: float | None = None
    below: float | None = None

    @model_validator(mode="after")
    def _has_a_limit(self) -> "Test":
        if self.above is None and self.below is None:
            raise ValueError("expected a limit: above, below or both")
        return self

    def comparisons(self, configurations: Sequence[Configuration], evidence: Evidence) -> list[Comparison]:
        """Compare some configurations of all evidence; those without the numbers make no comparison."""
        raise NotImplementedError

    def why_not(self, configuration: Configuration) -> str:
        """Why the runs of a configuration do not show what the test is about; empty where they do."""
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
        """Whether it compares times, rates or energy, by the unit in the measure's name."""
        return self.measure.endswith(("_s", "_j"))

    def comparisons(self, configurations: Sequence[Configuration], evidence: Evidence) -> list[Comparison]:
        """One per pair, or per series of pairs over devices."""
        groups = defaultdict(list)
        where = {name: values for name, values in self.where.items() if name != self.parameter}
        for each in configurations:
            if fits(each, where):
                groups[each.rest([self.parameter, *self.may_differ])].append(each)
        pairs = [
            Comparison(ratio, (one, base))
            for alike in groups.values()
            for one in alike
            for base in alike
            if one[self.parameter] in self.of and base[self.parameter] in self.against and fits(one, self.of_where)
            if (ratio := ratio_by_block(one.by_repeat(self.measure), base.by_repeat(self.measure)))
        ]
        return once(pairs) if self.kind == "compare" else self._trends(once(pairs))

    def _trends(self, pairs: Sequence[Comparison]) -> list[Comparison]:
        series: dict[Hashable, dict[int, Comparison]] = defaultdict(dict)
        for pair in pairs:
            one, base = pair.sides
            alike = one.rest([self.parameter, "devices", *self.may_differ, *OBSERVATION])
            series[alike, one[self.parameter], base[self.parameter]][one["devices"]] = pair
        ends = [(own[min(own)], own[max(own)]) for own in series.values() if len(own) > 1]
        found = [Comparison(ratio_by_block(many.by_block, few.by_block), few.sides + many.sides) for few, many in ends]
        return [each for each in found if each.by_block]


class Efficiency(Test):
    """Speed-up per device, against one device under the strategy `single` where that ran, else under the same.

    With each of the values of `measured_with` the same must have been measured too, so that tests compare like with
    like.
    """

    kind: Literal["efficiency"]
    measured_with: dict[Name, Values] = Field(default_factory=dict)

    def comparisons(self, configurations: Sequence[Configuration], evidence: Evidence) -> list[Comparison]:
        """One per configuration on several devices."""
        measured = {
            (name, each[name], _alike(each, name))
            for each in evidence.configurations
            if each.completed
            for name in self.measured_with
        }
        wanted = [(name, value) for name, values in self.measured_with.items() for value in values]
        found = []
        for each in _speedups(configurations, self.where):
            one = each.sides[0]
            if all((name, value, _alike(one, name)) in measured for name, value in wanted):
                per_device = {block: speedup / one["devices"] for block, speedup in each.by_block.items()}
                found.append(each._replace(by_block=per_device))
        return once(found, 1)


class Scaling(Test):
    """Mean speed-up of the configurations `where` over that of those `than`, with equal numbers of devices."""

    kind: Literal["scaling"]
    than: Where

    def comparisons(self, configurations: Sequence[Configuration], evidence: Evidence) -> list[Comparison]:
        """One per machine, versions and number of devices."""
        places: dict[Hashable, tuple[list[Comparison], list[Comparison]]] = defaultdict(lambda: ([], []))
        for side, where in enumerate((self.where, self.than)):
            for each in once(_speedups(configurations, where), 1):
                one = each.sides[0]
                places[one["devices"], one.provenance.machine, one.provenance.versions][side].append(each)
        found = []
        for sides in places.values():
            kept = [same_blocks(side) for side in sides]
            of, than = (
                {block: geometric_mean(each.by_block[block] for each in own) for block in own[0].by_block}
                if own
                else {}
                for own in kept
            )
            compared = tuple(configuration for own in kept for each in own for configuration in each.sides)
            found.append(Comparison(ratio_by_block(of, than), compared))
        return [each for each in found if each.by_block]


class OfRuns(Test):
    """Base of the tests of a share of each run, by its rows in `table`."""

    quantity: ClassVar = "share"
    table: ClassVar[str]

    def comparisons(self, configurations: Sequence[Configuration], evidence: Evidence) -> list[Comparison]:
        """One per configuration."""
        rows = evidence.table(self.table)
        found = []
        for each in configurations:
            recorded = {run.repeat: rows[run.run] for run in each.completed if run.run in rows}
            shares = {repeat: share for repeat, own in recorded.items() if (share := self.of_run(own)) is not None}
            if shares and fits(each, self.where):
                found.append(Comparison(shares, (each,)))
        return once(found)

    def of_run(self, rows: pd.DataFrame) -> float | None:
        """The number of a run by its rows, None where they do not tell."""
        raise NotImplementedError


class ApiTime(OfRuns):
    """Share of the time in CUDA calls that is spent in some functions, by a pattern to search for in their names."""

    table = "cuda_api"

    kind: Literal["api_time"]
    functions: re.Pattern[str]

    def of_run(self, rows: pd.DataFrame) -> float | None:
        """Share of the summed durations of calls, those of backtraces left out: they repeat other rows."""
        calls = rows[rows["api"] != "backtrace"]
        chosen = calls["function"].map(lambda name: bool(self.functions.search(str(name)))).astype(bool)
        total = calls["total_s"].sum()
        return float(calls["total_s"][chosen].sum() / total) if total > 0 else None


class Reaches(OfRuns):
    """Highest test accuracy in the first epochs."""

    timed: ClassVar = False
    table = "epochs"

    kind: Literal["reaches"]
    epochs: Annotated[int, Field(ge=1)]

    def of_run(self, rows: pd.DataFrame) -> float | None:
        """The highest of the epochs' accuracies."""
        found = rows.loc[rows["epoch"] <= self.epochs, "test_accuracy"].max()
        return float(found) if pd.notna(found) else None


AnyTest = Annotated[Compare | Efficiency | Scaling | ApiTime | Reaches, Field(discriminator="kind")]


def fits(configuration: Configuration, where: Where) -> bool:
    """Whether a configuration, or the first of its runs that completed, has the values wanted."""
    return not configuration.workload.is_user_program and all(
        _value(configuration, name) in (wanted if isinstance(wanted, list | Range) else [wanted])
        for name, wanted in where.items()
    )


def _value(configuration: Configuration, name: str) -> Any:
    if name == DATA_SOURCE:
        return configuration.provenance.data_source
    if is_parameter(name):
        return configuration[name]
    return next((run.values[name] for run in configuration.completed if name in run.values), None)


def _speedups(configurations: Sequence[Configuration], where: Where) -> list[Comparison]:
    """Speed-up of each configuration on several devices that has a baseline, which is its second side."""
    return [
        Comparison(each.by_repeat, (each.configuration, each.baseline))
        for each in speedups_of(configurations)
        if each.configuration["devices"] > 1 and fits(each.configuration, where) and each.by_repeat
    ]


def once(comparisons: Sequence[Comparison], job_sides: int | None = None) -> list[Comparison]:
    """One of those comparisons whose jobs, told by their first sides, differ only in how their runs are observed."""
    jobs = [tuple(side.rest(OBSERVATION) for side in each.sides[:job_sides]) for each in comparisons]
    kept = observed_once(jobs, [len(each.by_block) for each in comparisons])
    return [comparisons[index] for index in kept]


def same_blocks(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """The comparisons in the blocks that all of them have; none without such a block.

    Means over different series would differ by these, so the series are the same in all blocks.
    """
    blocks = shared_blocks([each.by_block for each in comparisons])
    kept = [each._replace(by_block={block: each.by_block[block] for block in blocks}) for each in comparisons]
    return kept if blocks else []


def _alike(configuration: Configuration, besides: str) -> Hashable:
    return configuration.rest([besides, *OBSERVATION])
