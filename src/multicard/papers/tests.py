"""Kinds of tests of claims, each with the comparisons that it makes between measured runs."""

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from statistics import geometric_mean
from typing import Annotated, Any, ClassVar, Literal

import pandas as pd
from pydantic import Field

from multicard.analysis.choice.observation import observed_once
from multicard.analysis.evidence import OBSERVATION, Configuration, Evidence
from multicard.analysis.runs.device_time import PARTS, device_time, overall
from multicard.analysis.scaling.speedup import BASELINE_DIFFERS, speedups_of
from multicard.analysis.statistics import ratio_by_block
from multicard.papers.limits import (
    Comparison,
    Name,
    Number,
    Pattern,
    Test,
    Value,
    Where,
    WhyNot,
    fits,
    job_of,
)
from multicard.papers.verdicts import same_blocks

Pair = tuple[Configuration, Configuration, dict[int, float]]  # one, what it is compared with, ratio of each block


class Compare(Test):
    """A measure under one value of a parameter over that under another, all else equal."""

    kind: Literal["compare"]
    parameter: Name
    of: Annotated[list[Value], Field(min_length=1)]
    against: Annotated[list[Value], Field(min_length=1)]
    measure: Name
    may_differ: Annotated[
        list[Name], Field(default_factory=list, description="Parameters in which the two may differ as well.")
    ]
    of_where: Annotated[
        Where, Field(default_factory=dict, description="Values that runs with a value of `of` must have.")
    ]

    @property
    def timed(self) -> bool:
        """Whether it compares times, rates or energy, by the unit in the measure's name."""
        return self.measure.endswith(("_s", "_j"))

    def needs(self) -> str:
        """Pairs that it needs."""
        of, against = (" or ".join(map(_value_words, values)) for values in (self.of, self.against))
        own = "".join(f" with {name} {_value_words(value)}" for name, value in self.of_where.items())
        also = [name for name in self.may_differ if name not in self.of_where]
        alone = f" and at most in {' and '.join(also)} besides" if also else "" if self.of_where else " alone"
        return f"completed runs with {self.measure} that differ in {self.parameter}{alone}: {of}{own} against {against}"

    def comparisons(
        self, configurations: Sequence[Configuration], evidence: Evidence, why_not: WhyNot
    ) -> list[Comparison]:
        """One per pair."""
        return [
            self.compared(self._what(one, base), ratio, why_not, one, base, without=[self.parameter])
            for one, base, ratio in self.pairs(configurations)
        ]

    def pairs(self, configurations: Sequence[Configuration]) -> list[Pair]:
        """Configurations that are equal in all but the parameter, with the ratios of their measures."""
        groups = defaultdict(list)
        for each in self.chosen(configurations, self.parameter):
            groups[each.rest([self.parameter, *self.may_differ])].append(each)
        pairs = [
            (one, base, ratio_by_block(one.blocks(self.measure), base.blocks(self.measure)))
            for alike in groups.values()
            for of in self.of
            for against in self.against
            for one in alike
            for base in alike
            if one[self.parameter] == of and base[self.parameter] == against and fits(one, self.of_where)
        ]
        return [pair for pair in pairs if pair[2]]

    def _what(self, one: Configuration, base: Configuration) -> str:
        of, against = _value_words(one[self.parameter]), _value_words(base[self.parameter])
        return f"{self.measure}, {self.parameter} {of} over {against}"


class Trend(Compare):
    """The ratio of `compare` with most devices over the same with fewest."""

    kind: Literal["trend"]

    def needs(self) -> str:
        """Pairs that it needs."""
        return f"{super().needs()}, on two numbers of devices"

    def comparisons(
        self, configurations: Sequence[Configuration], evidence: Evidence, why_not: WhyNot
    ) -> list[Comparison]:
        """One per configuration, whatever its number of devices.

        It is of the most and fewest of those that may be judged; where these are not the most and fewest of all, there
        is another of all, which is not judged.
        """
        groups: dict[Any, list[Pair]] = defaultdict(list)
        for pair in _each_once(self.pairs(configurations), why_not, job_of):
            one, base, _ = pair
            alike = one.rest([self.parameter, "devices", *self.may_differ, *OBSERVATION])
            groups[alike, one[self.parameter], base[self.parameter]].append(pair)
        found = []
        for alike in groups.values():
            ends = _ends([pair for pair in alike if not _reason(pair, why_not)])
            of_all = _ends(alike)
            found += [self._over(*each, why_not) for each in ([ends] if ends == of_all else [ends, of_all]) if each]
        return [each for each in found if each.by_block]

    def _over(self, few: Pair, many: Pair, why_not: WhyNot) -> Comparison:
        what = f"{self._what(*few[:2])}, {many[0]['devices']} over {few[0]['devices']} devices"
        sides = (*few[:2], *many[:2])
        ratio = ratio_by_block(many[2], few[2])
        return self.compared(what, ratio, why_not, *sides, without=[self.parameter, "devices"])


class Efficiency(Test):
    """Speed-up per device, against one device under the strategy `single` where that ran, else under the same."""

    kind: Literal["efficiency"]
    measure: Annotated[Name | None, Field(description="Measure of speed; by default that of the workload.")] = None

    def job(self, comparison: Comparison) -> Hashable:
        """The configuration on several devices, whatever the baseline."""
        return job_of(comparison.sides[0])

    def needs(self) -> str:
        """Runs that it needs."""
        beside = "".join(
            f", under each {name} of {', '.join(map(_value_words, values))}"
            for name, values in self.measured_with.items()
        )
        return f"completed runs that it is about on several devices, with the same on one{beside}"

    def comparisons(
        self, configurations: Sequence[Configuration], evidence: Evidence, why_not: WhyNot
    ) -> list[Comparison]:
        """One per configuration on several devices."""
        found = []
        for one, base, ratio in _speedups(self.chosen(configurations), configurations, self.measure):
            per_device = {block: speedup / one["devices"] for block, speedup in ratio.items()}
            found.append(
                self.compared(f"efficiency by {self.measure or one.rate}", per_device, why_not, one, base, without=())
            )
        return found


class Scaling(Test):
    """Mean speed-up of the configurations `where` over that of those `than`, with equal numbers of devices."""

    kind: Literal["scaling"]
    than: Where

    def needs(self) -> str:
        """Runs that it needs."""
        return "completed runs of both kinds of work on the same number of several devices, with the same on one"

    def comparisons(
        self, configurations: Sequence[Configuration], evidence: Evidence, why_not: WhyNot
    ) -> list[Comparison]:
        """One per machine, versions and number of devices, and one more where not all of its runs may be judged."""
        places: dict[Any, tuple[list[Pair], list[Pair]]] = defaultdict(lambda: ([], []))
        for side, where in enumerate((self.where, self.than)):
            for pair in _speedups([each for each in configurations if fits(each, where)], configurations):
                one = pair[0]
                places[one["devices"], one.provenance.machine, one.provenance.versions][side].append(pair)
        found = []
        for (devices, *_), every in places.items():
            sides = [_each_once(side, why_not, lambda one, _: job_of(one)) for side in every]
            reasons = [_reason(pair, why_not) for side in sides for pair in side]
            judged = [[pair for pair in side if not _reason(pair, why_not)] for side in sides]
            found.append(self._compared(devices, judged, ""))
            if any(reasons):
                found.append(self._compared(devices, sides, next(filter(None, reasons))))
        return [each for each in found if each.by_block]

    def _compared(self, devices: int, sides: Sequence[Sequence[Pair]], why_not: str) -> Comparison:
        series = [same_blocks([ratio for *_, ratio in side]) for side in sides]
        of, than = (_geometric_means(each) for each in series)
        where = f"{devices} devices"
        compared = tuple(
            configuration
            for side, kept in zip(sides, series, strict=True)
            for *pair, ratio in side
            if kept and kept[0].keys() <= ratio.keys()
            for configuration in pair
        )
        return Comparison("speed-up over speed-up", where, where, ratio_by_block(of, than), compared, why_not)


class OfRuns(Test):
    """Base of the tests of one number per run, of its rows in `table`."""

    table: ClassVar[str]

    def needs(self) -> str:
        """Runs that it needs."""
        return "completed runs that it is about whose trace has what it counts"

    @property
    def number(self) -> Number:
        """A share."""
        return "share"

    def comparisons(
        self, configurations: Sequence[Configuration], evidence: Evidence, why_not: WhyNot
    ) -> list[Comparison]:
        """One per configuration."""
        rows = evidence.table(self.table)
        found = []
        for each in self.chosen(configurations):
            traced = {run.repeat: rows[run.run] for run in each.completed if run.run in rows}
            shares = {repeat: share for repeat, own in traced.items() if (share := self.of_run(own)) is not None}
            if shares:
                found.append(self.compared(self.what(), shares, why_not, each, without=()))
        return found

    def what(self) -> str:
        """What its number is, in words."""
        raise NotImplementedError

    def of_run(self, rows: pd.DataFrame) -> float | None:
        """The number of a run by its rows, None where they do not tell."""
        raise NotImplementedError


class ApiTime(OfRuns):
    """Share of the time in CUDA calls that is spent in some functions."""

    table: ClassVar = "cuda_api"

    kind: Literal["api_time"]
    functions: Annotated[Pattern, Field(description="Regular expression to search for in their names.")]

    def what(self) -> str:
        """A share of calls."""
        return "share of the time in CUDA calls"

    def of_run(self, rows: pd.DataFrame) -> float | None:
        """Share of the summed durations of calls, those of backtraces left out: they repeat other rows."""
        calls = rows[rows["api"] != "backtrace"]
        total = calls["total_s"].sum()
        chosen = [re.search(self.functions, str(name)) is not None for name in calls["function"]]
        return float(calls.loc[chosen, "total_s"].sum() / total) if total > 0 else None


class DeviceTime(OfRuns):
    """Share of the GPUs' time from the first profiled step to the last, of the capture where the trace has no steps."""

    table: ClassVar = "timeline"

    kind: Literal["device_time"]
    parts: Annotated[list[Literal[PARTS]], Field(min_length=1)]

    def what(self) -> str:
        """A share of the device's time."""
        return f"share of the GPUs' time: {', '.join(self.parts)}"

    def of_run(self, rows: pd.DataFrame) -> float | None:
        """Share of the span, all GPUs together; none where the causes of idle time are unknown."""
        rows = overall(rows)
        span = rows["span_s"].sum()
        if rows[["busy_s", "idle_host_bound_s"]].isna().any(axis=None) or not span > 0:
            return None
        return float(device_time(rows)[list(self.parts)].sum().sum() / span)


class Reaches(OfRuns):
    """Highest test accuracy in the first epochs."""

    table: ClassVar = "epochs"

    kind: Literal["reaches"]
    epochs: Annotated[int, Field(ge=1)]

    @property
    def timed(self) -> bool:
        """An accuracy is no time."""
        return False

    def needs(self) -> str:
        """Runs that it needs."""
        return "completed runs that it is about whose accuracy was tested"

    def what(self) -> str:
        """An accuracy."""
        return "highest test accuracy"

    def of_run(self, rows: pd.DataFrame) -> float | None:
        """The highest of the epochs' accuracies."""
        found = rows.loc[rows["epoch"] <= self.epochs, "test_accuracy"].max()
        return float(found) if pd.notna(found) else None


KINDS = (Compare, Trend, Efficiency, Scaling, ApiTime, DeviceTime, Reaches)
AnyTest = Annotated[
    Compare | Trend | Efficiency | Scaling | ApiTime | DeviceTime | Reaches, Field(discriminator="kind")
]


def _speedups(
    chosen: Iterable[Configuration], configurations: Sequence[Configuration], measure: str | None = None
) -> list[Pair]:
    """Each of the chosen on several devices that has a baseline, with that and the ratio of their rates."""
    blocks = [each.blocks(measure or each.rate) for each in configurations]
    found = speedups_of(
        (each.rest(BASELINE_DIFFERS), each.workload, each[each.workload.method], each["devices"], rates)
        for each, rates in zip(configurations, blocks, strict=True)
    )
    speedup_of = {id(each): speedup for each, speedup in zip(configurations, found, strict=True)}
    several = [(each, speedup_of[id(each)]) for each in chosen if each["devices"] > 1]
    return [(each, configurations[speedup.baseline], ratio) for each, speedup in several if (ratio := speedup.by_block)]


def _reason(pair: Pair, why_not: WhyNot) -> str:
    one, base, _ = pair
    return why_not(one) or why_not(base)


def _each_once(
    pairs: Sequence[Pair], why_not: WhyNot, job: Callable[[Configuration, Configuration], Hashable]
) -> list[Pair]:
    """One of those pairs whose jobs differ only in how their runs are observed."""
    judged = [not _reason(pair, why_not) for pair in pairs]
    jobs = [job(one, base) for one, base, _ in pairs]
    once = observed_once([pair[:2] for pair in pairs], jobs, [len(ratio) for *_, ratio in pairs], judged)
    return [pairs[index] for index in once]


def _ends(pairs: Sequence[Pair]) -> tuple[Pair, Pair] | None:
    """Those on the fewest and the most devices; None where these are as many."""
    if not pairs:
        return None
    few, many = (end(pairs, key=lambda pair: pair[0]["devices"]) for end in (min, max))
    return (few, many) if few[0]["devices"] < many[0]["devices"] else None


def _geometric_means(series: Sequence[dict[int, float]]) -> dict[int, float]:
    """Of series that have the same blocks, in each."""
    return {block: geometric_mean(each[block] for each in series) for block in (series[0] if series else ())}


def _value_words(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
