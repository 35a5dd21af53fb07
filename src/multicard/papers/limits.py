"""What all tests of claims share: the runs that one is about, its limits, and the comparisons that it makes."""

import re
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from multicard.analysis.evidence import OBSERVATION, Configuration, Evidence, MeasuredRun
from multicard.analysis.runs.measures import MEASURES
from multicard.core.units import number, percent
from multicard.experiment.config import PARAMETERS, is_parameter
from multicard.experiment.datasets import Strict

DATA_SOURCE = "data_source"  # kind of the data set, from the record of a run

Number = Literal["ratio", "share"]

# Why a configuration is not judged; empty where it is.
WhyNot = Callable[[Configuration], str]


@dataclass(frozen=True)
class Comparison:
    """One number that a test found, of each block of repeats.

    Attributes
    ----------
    what
        What was compared.
    under, in_short
        The configuration in full, and its headline.
    by_block
        The number of each block in which all of its sides ran.
    sides
        The configurations that it compares, or is about.
    why_not
        Why it is not judged; empty where it is.
    """

    what: str
    under: str
    in_short: str
    by_block: Mapping[int, float]
    sides: tuple[Configuration, ...]
    why_not: str

    def runs(self, blocks: Collection[int] | None = None) -> list[MeasuredRun]:
        """The runs behind its numbers, or behind those of some blocks."""
        used = self.by_block if blocks is None else blocks
        return [run for side in self.sides for run in side.completed if run.repeat in used]


class Range(Strict):
    """Values from one number to another, both included."""

    at_least: float | None = None
    at_most: float | None = None


def _known(name: str) -> str:
    if name not in (*PARAMETERS, *MEASURES, DATA_SOURCE):
        raise ValueError(f"{name!r} is neither a parameter nor a measure")
    return name


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"{text!r} is not a regular expression: {error}") from None
    return text


Name = Annotated[str, AfterValidator(_known)]
Pattern = Annotated[str, AfterValidator(_pattern)]
Value = bool | int | float | str
Where = dict[Name, Value | list[Value] | Range | None]
Share = Annotated[float, Field(ge=0, le=1)]


class Test(Strict):
    """Base of the tests: which runs it is about, and the limits between which its number must be."""

    __test__ = False  # not for pytest

    statement: Annotated[str, Field(min_length=1, description="What is tested, in one sentence.")]
    decides: Annotated[bool, Field(description="Whether the verdict on the claim depends on it.")] = True
    where: Annotated[Where, Field(description="Values that runs must have: one, one of several, or in a range.")]
    measured_with: Annotated[
        dict[Name, Annotated[list[Value], Field(min_length=1)]],
        Field(default_factory=dict, description="Values with each of which the same must have been measured."),
    ]
    max_data_share: Annotated[Share | None, Field(description="Runs with a higher data share are not judged.")] = None
    max_profiler_overhead: Annotated[
        Annotated[float, Field(ge=0)] | None, Field(description="Runs with more profiling overhead are not judged.")
    ] = None
    above: Annotated[float | None, Field(description="The number must be above it.")] = None
    below: Annotated[float | None, Field(description="The number must be below it.")] = None

    @model_validator(mode="after")
    def _has_a_limit(self) -> "Test":
        if self.above is None and self.below is None:
            raise ValueError("expected a limit: above, below or both")
        if self.above is not None and self.below is not None and self.above >= self.below:
            raise ValueError(f"above ({self.above}) must be less than below ({self.below})")
        return self

    @property
    def number(self) -> Number:
        """Whether its number is a ratio, of which logarithms are averaged, or a share."""
        return "ratio"

    @property
    def timed(self) -> bool:
        """Whether its number is a time, so that it matters whether a run was disturbed or not stationary."""
        return True

    def comparisons(
        self, configurations: Sequence[Configuration], evidence: Evidence, why_not: WhyNot
    ) -> list[Comparison]:
        """Compare what there is among some configurations; those without the numbers make none."""
        raise NotImplementedError

    def job(self, comparison: Comparison) -> Hashable:
        """What a comparison is of, however its runs were observed: of such one is pooled."""
        return comparison.what, job_of(*comparison.sides)

    def needs(self) -> str:
        """Runs that the test needs, as they end the sentence `there are no …`."""
        return "completed runs that it is about"

    def refuted_if(self) -> str:
        """What refutes it."""
        ends = [
            f"{which} {quantity_words(limit, self.number)}"
            for which, limit in (("below", self.above), ("above", self.below))
            if limit is not None
        ]
        return f"The interval of the pooled {self.number} is wholly {' or wholly '.join(ends)}."

    def chosen(self, configurations: Sequence[Configuration], besides: str | None = None) -> list[Configuration]:
        """Configurations that the test is about, whatever their value of the parameter `besides`."""
        others = {
            (name, each[name], each.rest([name, *OBSERVATION]))
            for each in configurations
            for name in self.measured_with
            if each.completed
        }
        return [
            each
            for each in configurations
            if each.workload.is_judged
            and fits(each, self.where, besides)
            and all(
                (name, value, each.rest([name, *OBSERVATION])) in others
                for name, values in self.measured_with.items()
                for value in values
            )
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

    def compared(
        self, what: str, by_block: Mapping[int, float], why_not: WhyNot, *sides: Configuration, without: Sequence[str]
    ) -> Comparison:
        """The comparison of some configurations, worded by the first without the parameters that differ."""
        return Comparison(
            what,
            sides[0].words(without),
            sides[0].words(without, in_short=True),
            by_block,
            sides,
            next((reason for side in sides if (reason := why_not(side))), ""),
        )


def job_of(*sides: Configuration) -> Hashable:
    """What tells configurations apart that differ in more than how their runs are observed."""
    return tuple(side.rest(OBSERVATION) for side in sides)


def quantity_words(value: float, quantity: Number) -> str:
    """Word a number of a test or its limit, with three digits.

    >>> quantity_words(0.9837, "share"), quantity_words(0.9837, "ratio"), quantity_words(0.98, "share")
    ('98.4%', '0.984', '98%')
    """
    return f"{number(100 * value)}%" if quantity == "share" else number(value)


def fits(configuration: Configuration, where: Where, besides: str | None = None) -> bool:
    """Whether a configuration, or the first of its runs that completed, has the values wanted."""
    for name, wanted in where.items():
        if name == besides:
            continue
        found = configuration.provenance.data_source if name == DATA_SOURCE else _first(configuration, name)
        if isinstance(wanted, Range):
            is_number = isinstance(found, int | float) and not isinstance(found, bool)
            low, high = wanted.at_least, wanted.at_most
            if not is_number or (low is not None and found < low) or (high is not None and found > high):
                return False
        elif found not in (wanted if isinstance(wanted, list) else [wanted]):
            return False
    return True


def _first(configuration: Configuration, name: str) -> Any:
    if is_parameter(name):
        return configuration[name]
    return next((run.values[name] for run in configuration.completed if name in run.values), None)
