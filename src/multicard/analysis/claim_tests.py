"""Kinds of tests of claims, each with the comparisons that it makes between measured runs."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from statistics import geometric_mean
from typing import Annotated, Any, Literal

import pandas as pd
from pydantic import Field

from multicard.analysis.claim_limits import (
    Comparison,
    Name,
    Number,
    Pattern,
    Test,
    Value,
    Where,
    WhyNot,
    fits,
    ratio_by_block,
)
from multicard.analysis.claim_verdicts import same_blocks
from multicard.analysis.device_time import PARTS, device_time, overall
from multicard.analysis.evidence import Configuration, Evidence, MeasuredRun
from multicard.analysis.scaling import BASELINE_DIFFERS, find_baselines

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
        own = "".join(f", {name} {_value_words(value)}" for name, value in self.of_where.items())
        return f"completed runs with {self.measure} that differ in {self.parameter} alone: {of}{own} against {against}"

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
        """One per configuration, whatever its number of devices: the most and fewest of those that may be judged."""
        groups: dict[Any, list[Pair]] = defaultdict(list)
        for pair in self.pairs(configurations):
            one, base, _ = pair
            alike = one.rest([self.parameter, "devices", *self.may_differ])
            groups[alike, one[self.parameter], base[self.parameter], why_not(one) or why_not(base)].append(pair)
        found = []
        for alike in groups.values():
            few, many = (end(alike, key=lambda pair: pair[0]["devices"]) for end in (min, max))
            if few[0]["devices"] < many[0]["devices"]:
                what = f"{self._what(*few[:2])}, {many[0]['devices']} over {few[0]['devices']} devices"
                ratio = ratio_by_block(many[2], few[2])
                sides = (*few[:2], *many[:2])
                found.append(self.compared(what, ratio, why_not, *sides, without=[self.parameter, "devices"]))
        return [each for each in found if each.by_block]


class Efficiency(Test):
    """Speed-up per device, against one device under the strategy `single` where that ran, else under the same."""

    kind: Literal["efficiency"]
    measure: Annotated[Name | None, Field(description="Measure of speed; by default that of the workload.")] = None

    def needs(self) -> str:
        """Runs that it needs."""
        return "completed runs that it is about on several devices, with the same on one"

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
        for (devices, *_), sides in places.items():
            reasons = [why_not(one) or why_not(base) for side in sides for one, base, _ in side]
            judged = [[pair for pair in side if not (why_not(pair[0]) or why_not(pair[1]))] for side in sides]
            found.append(self._compared(devices, judged, ""))
            if any(reasons):
                found.append(self._compared(devices, sides, next(filter(None, reasons))))
        return [each for each in found if each.by_block]

    def _compared(self, devices: int, sides: Sequence[Sequence[Pair]], why_not: str) -> Comparison:
        of, than = (_geometric_means(same_blocks([ratio for *_, ratio in side])) for side in sides)
        where = f"{devices} devices"
        runs = tuple(run for side in sides for one, base, _ in side for run in (*one.completed, *base.completed))
        return Comparison("speed-up over speed-up", where, where, ratio_by_block(of, than), runs, why_not)


class OfRuns(Test):
    """Base of the tests of one number per run."""

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
        of_run = self.of_run(evidence)
        found = []
        for each in self.chosen(configurations):
            shares = {run.repeat: share for run in each.completed if (share := of_run(run)) is not None}
            if shares:
                found.append(self.compared(self.what(), shares, why_not, each, without=()))
        return found

    def what(self) -> str:
        """What its number is, in words."""
        raise NotImplementedError

    def of_run(self, evidence: Evidence) -> Callable[[MeasuredRun], float | None]:
        """A function that gives the number of a run, None where it has none."""
        raise NotImplementedError


class ApiTime(OfRuns):
    """Share of the time in CUDA calls that is spent in some functions."""

    kind: Literal["api_time"]
    functions: Annotated[Pattern, Field(description="Regular expression to search for in their names.")]

    def what(self) -> str:
        """A share of calls."""
        return "share of the time in CUDA calls"

    def of_run(self, evidence: Evidence) -> Callable[[MeasuredRun], float | None]:
        """Share of the summed durations of calls, those of backtraces left out: they repeat other rows."""
        tables = evidence.table("cuda_api")

        def share(run: MeasuredRun) -> float | None:
            if run.run not in tables:
                return None
            calls = tables[run.run]
            calls = calls[calls["api"] != "backtrace"]
            total = calls["total_s"].sum()
            chosen = [re.search(self.functions, str(name)) is not None for name in calls["function"]]
            return float(calls.loc[chosen, "total_s"].sum() / total) if total > 0 else None

        return share


class DeviceTime(OfRuns):
    """Share of the GPUs' time from the first profiled step to the last, of the capture where the trace has no steps."""

    kind: Literal["device_time"]
    parts: Annotated[list[Literal[PARTS]], Field(min_length=1)]

    def what(self) -> str:
        """A share of the device's time."""
        return f"share of the GPUs' time: {', '.join(self.parts)}"

    def of_run(self, evidence: Evidence) -> Callable[[MeasuredRun], float | None]:
        """Share of the span, all GPUs together; none where the causes of idle time are unknown."""
        tables = evidence.table("timeline")

        def share(run: MeasuredRun) -> float | None:
            if run.run not in tables:
                return None
            rows = overall(tables[run.run])
            span = rows["span_s"].sum()
            if rows[["busy_s", "idle_host_bound_s"]].isna().any(axis=None) or not span > 0:
                return None
            return float(device_time(rows)[list(self.parts)].sum().sum() / span)

        return share


class Reaches(OfRuns):
    """Highest test accuracy in the first epochs."""

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

    def of_run(self, evidence: Evidence) -> Callable[[MeasuredRun], float | None]:
        """The highest of the epochs' accuracies."""
        tables = evidence.table("epochs")

        def highest(run: MeasuredRun) -> float | None:
            if run.run not in tables:
                return None
            epochs = tables[run.run]
            found = epochs.loc[epochs["epoch"] <= self.epochs, "test_accuracy"].max()
            return float(found) if pd.notna(found) else None

        return highest


KINDS = (Compare, Trend, Efficiency, Scaling, ApiTime, DeviceTime, Reaches)
AnyTest = Annotated[
    Compare | Trend | Efficiency | Scaling | ApiTime | DeviceTime | Reaches, Field(discriminator="kind")
]


def _speedups(
    chosen: Iterable[Configuration], configurations: Sequence[Configuration], measure: str | None = None
) -> list[Pair]:
    """Each of the chosen on several devices that has a baseline, with that and the ratio of their rates."""
    baselines = find_baselines(
        (c.rest(BASELINE_DIFFERS), c.workload, c[c.workload.method], c["devices"], bool(c.blocks(measure or c.rate)))
        for c in configurations
    )
    base_of = {id(c): configurations[base] for c, base in zip(configurations, baselines, strict=True) if base >= 0}
    pairs = [(each, base_of[id(each)]) for each in chosen if each["devices"] > 1 and id(each) in base_of]
    found = [
        (one, base, ratio_by_block(one.blocks(measure or one.rate), base.blocks(measure or base.rate)))
        for one, base in pairs
    ]
    return [pair for pair in found if pair[2]]


def _geometric_means(series: Sequence[dict[int, float]]) -> dict[int, float]:
    """Of series that have the same blocks, in each."""
    return {block: geometric_mean(each[block] for each in series) for block in (series[0] if series else ())}


def _value_words(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
