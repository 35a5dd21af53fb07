"""What all tests of claims share: the runs that one is about, its limits, and the comparisons that it makes."""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator

from multicard.analysis.choice.observation import observed_once
from multicard.analysis.evidence import OBSERVATION, Configuration, Evidence, MeasuredRun
from multicard.analysis.runs.measures import MEASURES
from multicard.core.units import number, percent
from multicard.experiment.config import PARAMETERS, is_parameter
from multicard.experiment.datasets import Strict

DATA_SOURCE = "data_source"  # kind of the data set, from the record of a run

Quantity = Literal["ratio", "share"]


@dataclass(frozen=True)
class Comparison:
    """One number that a test found: `by_block` has it for each block of repeats in which all of its sides ran.

    `under` words the configuration, `in_short` its headline; `sides` are the configurations that are compared.
    `why_not` says why it is not judged, and is empty where it is.
    """

    what: str
    under: str
    in_short: str
    by_block: Mapping[int, float]
    sides: tuple[Configuration, ...]
    why_not: str = ""

    def runs(self, blocks: Collection[int]) -> list[MeasuredRun]:
        """The runs behind its numbers of some blocks."""
        return [run for side in self.sides for run in side.completed if run.repeat in blocks]


@dataclass(frozen=True)
class Runs:
    """What a test compares: the configurations, all evidence, and why one is not judged (empty where it is)."""

    configurations: Sequence[Configuration]
    evidence: Evidence
    why_not: Callable[[Configuration], str]

    def compared(
        self, what: str, by_block: Mapping[int, float], *sides: Configuration, without: Sequence[str] = ()
    ) -> Comparison:
        """A comparison of some configurations, worded by the first without the parameters that differ."""
        words, in_short = (sides[0].words(without, in_short=short) for short in (False, True))
        why_not = next(filter(None, map(self.why_not, sides)), "")
        return Comparison(what, words, in_short, by_block, sides, why_not)


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
Share = Annotated[float, Field(ge=0)]


class Test(Strict):
    """Base of the tests: which runs it is about, and the limits between which its number must be.

    Of `quantity` ratios logarithms are averaged. Whether it is `timed` decides if disturbed runs count. `needs` words
    the runs that it needs. The first `job_sides` sides of a comparison tell its job.
    """

    __test__ = False  # not for pytest

    quantity: ClassVar[Quantity] = "ratio"
    timed: ClassVar[bool] = True
    needs: ClassVar[str] = "completed runs that it is about whose trace has what it counts"
    job_sides: ClassVar[int | None] = None

    statement: Annotated[str, Field(min_length=1)]
    decides: bool = True
    where: Where
    measured_with: dict[Name, Values] = Field(default_factory=dict)
    max_data_share: Annotated[Share, Field(le=1)] | None = None
    max_profiler_overhead: Share | None = None
    above: float | None = None
    below: float | None = None

    @model_validator(mode="after")
    def _has_a_limit(self) -> "Test":
        if self.above is None and self.below is None:
            raise ValueError("expected a limit: above, below or both")
        if self.above is not None and self.below is not None and self.above >= self.below:
            raise ValueError(f"above ({self.above}) must be less than below ({self.below})")
        return self

    def comparisons(self, runs: Runs) -> list[Comparison]:
        """Compare what there is; configurations without the numbers make none."""
        raise NotImplementedError

    def refuted_if(self) -> str:
        """What refutes it."""
        limits = (("below", self.above), ("above", self.below))
        ends = [f"{which} {quantity_words(limit, self.quantity)}" for which, limit in limits if limit is not None]
        return f"The interval of the pooled {self.quantity} is wholly {' or wholly '.join(ends)}."

    def chosen(self, configurations: Sequence[Configuration], besides: str | None = None) -> list[Configuration]:
        """Configurations that the test is about, whatever their value of the parameter `besides`."""
        completed = [each for each in configurations if each.completed]
        others = {(name, each[name], _alike(each, name)) for each in completed for name in self.measured_with}
        wanted = [(name, value) for name, values in self.measured_with.items() for value in values]
        return [
            each
            for each in configurations
            if each.workload.is_judged
            and fits(each, {name: values for name, values in self.where.items() if name != besides})
            and all((name, value, _alike(each, name)) in others for name, value in wanted)
        ]

    def why_not(self, configuration: Configuration) -> str:
        """Why the runs of a configuration do not show what the test is about; empty where they do."""
        for measure, limit, words in (
            ("data_share", self.max_data_share, "the loader sets the pace (data share above {})"),
            ("profiler_overhead", self.max_profiler_overhead, "profiling made the steps longer (by more than {})"),
        ):
            values = configuration.values(measure)
            if limit is not None and values and sum(values) / len(values) > limit:
                return words.format(percent(limit))
        return ""


def quantity_words(value: float, quantity: Quantity) -> str:
    """Word a number of a test or its limit, with three digits.

    >>> quantity_words(0.9837, "share"), quantity_words(0.9837, "ratio"), quantity_words(0.98, "share")
    ('98.4%', '0.984', '98%')
    """
    return f"{number(100 * value)}%" if quantity == "share" else number(value)


def fits(configuration: Configuration, where: Where) -> bool:
    """Whether a configuration, or the first of its runs that completed, has the values wanted."""
    return all(
        _value(configuration, name) in (wanted if isinstance(wanted, list | Range) else [wanted])
        for name, wanted in where.items()
    )


def _value(configuration: Configuration, name: str) -> Any:
    if name == DATA_SOURCE:
        return configuration.provenance.data_source
    if is_parameter(name):
        return configuration[name]
    return next((run.values[name] for run in configuration.completed if name in run.values), None)


def once(comparisons: Sequence[Comparison], job_sides: int | None = None) -> list[Comparison]:
    """One of those comparisons whose jobs, told by their first sides, differ only in how their runs are observed."""
    jobs = [(each.what, job_of(*each.sides[:job_sides])) for each in comparisons]
    judged = [not each.why_not for each in comparisons]
    blocks = [len(each.by_block) for each in comparisons]
    return [comparisons[index] for index in observed_once([each.sides for each in comparisons], jobs, blocks, judged)]


def job_of(*sides: Configuration) -> Hashable:
    """What tells configurations apart that differ in more than how their runs are observed."""
    return tuple(side.rest(OBSERVATION) for side in sides)


def same_blocks(series: Sequence[Mapping[int, float]]) -> list[dict[int, float]]:
    """Those of some series that have the same blocks, in these.

    Means over different series would differ by these, so the series are the same in all blocks: those blocks are taken
    in which most numbers remain (of equally many the most blocks), and series that lack one are left out.

    >>> same_blocks([{1: 2.0, 2: 8.0}, {1: 8.0, 2: 2.0}, {1: 5.0}])
    [{1: 2.0, 2: 8.0}, {1: 8.0, 2: 2.0}]
    """
    held = Counter(frozenset(each) for each in series)
    candidates = {one & other for one in held for other in held} - {frozenset()}
    if not candidates:
        return []

    def numbers(blocks: frozenset[int]) -> tuple[int, int, list[int]]:
        kept = sum(count for each, count in held.items() if blocks <= each)
        return len(blocks) * kept, len(blocks), sorted(blocks)

    blocks = max(candidates, key=numbers)
    return [{block: each[block] for block in sorted(blocks)} for each in series if blocks <= each.keys()]


def _alike(configuration: Configuration, besides: str) -> Hashable:
    return configuration.rest([besides, *OBSERVATION])
