"""What all tests of claims share: the runs that one is about, and the limits that its number is compared with."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from multicard.analysis.evidence import Configuration, Evidence, MeasuredRun
from multicard.analysis.measures import MEASURES
from multicard.analysis.statistics import Interval
from multicard.experiment.config import PARAMETERS
from multicard.experiment.datasets import Strict

Answer = Literal["yes", "no", "open"]

DATA_SOURCE = "data_source"  # kind of the data set, from the record of a run


@dataclass(frozen=True)
class Comparison:
    """One number that a test found, and its answer: `yes` within the limits, `no` outside, `open` undecided.

    `what` is what was compared, `under` the configuration in full, `in_short` its headline.
    """

    what: str
    under: str
    in_short: str
    found: Interval
    answer: Answer
    runs: tuple[MeasuredRun, ...]


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


class Test(Strict):
    """Base of the tests: which runs it is about, and the limits between which its number must be."""

    __test__ = False  # not for pytest

    statement: Annotated[str, Field(min_length=1, description="What is tested, in one sentence.")]
    where: Annotated[Where, Field(description="Values that runs must have: one, one of several, or in a range.")]
    above: Annotated[float | None, Field(description="The number must be above it.")] = None
    below: Annotated[float | None, Field(description="The number must be below it.")] = None

    @model_validator(mode="after")
    def _has_a_limit(self) -> "Test":
        if self.above is None and self.below is None:
            raise ValueError("expected a limit: above, below or both")
        if self.above is not None and self.below is not None and self.above >= self.below:
            raise ValueError(f"above ({self.above}) must be less than below ({self.below})")
        return self

    def comparisons(self, configurations: Sequence[Configuration], evidence: Evidence) -> list[Comparison]:
        """Compare what there is among some configurations; those without the numbers make none."""
        raise NotImplementedError

    def needs(self) -> str:
        """Runs that the test needs, as they end the sentence `there are no …`."""
        return "completed runs that it is about"

    def chosen(self, configurations: Sequence[Configuration], besides: str | None = None) -> list[Configuration]:
        """Configurations that the test is about, whatever their value of the parameter `besides`."""
        return [each for each in configurations if fits(each, self.where, besides)]

    def judged(
        self,
        what: str,
        under: Configuration | str,
        found: Interval,
        runs: Iterable[MeasuredRun],
        without: Sequence[str] = (),
    ) -> Comparison:
        """Compare a number with the limits; without an interval, or with a limit inside it, the answer is open."""
        if isinstance(under, str):
            places = (under, under)
        else:
            places = (under.words(without), under.words(without, in_short=True))
        answer: Answer = "open"
        if found.coverage is not None:
            above = self.above if self.above is not None else float("-inf")
            below = self.below if self.below is not None else float("inf")
            if found.high < above or found.low > below:
                answer = "no"
            elif found.low > above and found.high < below:
                answer = "yes"
        return Comparison(what, *places, found, answer, tuple(runs))


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
    if name in PARAMETERS:
        return configuration[name]
    return next((run.values[name] for run in configuration.completed if name in run.values), None)
