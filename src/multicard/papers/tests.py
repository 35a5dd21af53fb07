"""Kinds of tests of claims, and the comparisons between measured runs that each makes."""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import geometric_mean
from typing import Annotated, Any, ClassVar, Literal

import pandas as pd
from pydantic import AfterValidator, Field

from multicard.analysis.evidence import OBSERVATION, Configuration, as_stated
from multicard.analysis.runs.device_time import PARTS, device_time, overall
from multicard.analysis.scaling.speedup import speedups_between
from multicard.analysis.statistics import ratio_by_block
from multicard.papers.limits import Comparison, Name, Runs, Test, Values, Where, fits, once, same_blocks


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"{text!r} is not a regular expression: {error}") from None
    return text


class Compare(Test):
    """A measure under one value of a parameter over that under another, all else equal.

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

    @property
    def needs(self) -> str:
        """Pairs that it needs."""
        of, against = (" or ".join(map(as_stated, values)) for values in (self.of, self.against))
        own = "".join(f" with {name} {as_stated(value)}" for name, value in self.of_where.items())
        also = [name for name in self.may_differ if name not in self.of_where]
        alone = f" and at most in {' and '.join(also)} besides" if also else "" if self.of_where else " alone"
        devices = ", on two numbers of devices" if self.kind == "trend" else ""
        pairs = f"completed runs with {self.measure} that differ in {self.parameter}{alone}"
        return f"{pairs}: {of}{own} against {against}{devices}"

    def comparisons(self, runs: Runs) -> list[Comparison]:
        """One per pair; of a trend one per configuration, whatever its number of devices.

        A trend is of the most and fewest devices that may be judged. Where more were measured, there is one of all.
        """
        pairs = self._pairs(runs)
        if self.kind == "compare":
            return pairs
        groups: dict[Any, list[Comparison]] = defaultdict(list)
        for pair in once(pairs):
            one, base = pair.sides
            alike = one.rest([self.parameter, "devices", *self.may_differ, *OBSERVATION])
            groups[alike, one[self.parameter], base[self.parameter]].append(pair)
        ends = [each for alike in groups.values() for each in (_ends(_judged(alike)), _ends(alike))]
        different = {(id(few), id(many)): (few, many) for few, many in filter(None, ends)}
        trends = [self._trend(runs, few, many) for few, many in different.values()]
        return [each for each in trends if each.by_block]

    def _pairs(self, runs: Runs) -> list[Comparison]:
        groups = defaultdict(list)
        for each in self.chosen(runs.configurations, self.parameter):
            groups[each.rest([self.parameter, *self.may_differ])].append(each)
        pairs = [
            runs.compared(self._what(one, base), ratio, one, base, without=[self.parameter])
            for alike in groups.values()
            for of in self.of
            for against in self.against
            for one in alike
            for base in alike
            if one[self.parameter] == of and base[self.parameter] == against and fits(one, self.of_where)
            for ratio in [ratio_by_block(one.blocks(self.measure), base.blocks(self.measure))]
        ]
        return [pair for pair in pairs if pair.by_block]

    def _trend(self, runs: Runs, few: Comparison, many: Comparison) -> Comparison:
        devices = [each.sides[0]["devices"] for each in (many, few)]
        what = "{}, {} over {} devices".format(few.what, *devices)
        ratio = ratio_by_block(many.by_block, few.by_block)
        return runs.compared(what, ratio, *few.sides, *many.sides, without=[self.parameter, "devices"])

    def _what(self, one: Configuration, base: Configuration) -> str:
        of, against = (as_stated(each[self.parameter]) for each in (one, base))
        return f"{self.measure}, {self.parameter} {of} over {against}"


class Efficiency(Test):
    """Speed-up per device, against one device under the strategy `single` where that ran, else under the same."""

    job_sides: ClassVar = 1  # whatever the baseline

    kind: Literal["efficiency"]
    measure: Name | None = None

    @property
    def needs(self) -> str:
        """Runs that it needs."""
        each = [f", under each {name} of {', '.join(map(as_stated, own))}" for name, own in self.measured_with.items()]
        return f"completed runs that it is about on several devices, with the same on one{''.join(each)}"

    def comparisons(self, runs: Runs) -> list[Comparison]:
        """One per configuration on several devices."""
        found = []
        for each in _speedups(runs, self.chosen(runs.configurations), self.measure):
            one = each.sides[0]
            per_device = {block: speedup / one["devices"] for block, speedup in each.by_block.items()}
            found.append(replace(each, what=f"efficiency by {self.measure or one.rate}", by_block=per_device))
        return found


class Scaling(Test):
    """Mean speed-up of the configurations `where` over that of those `than`, with equal numbers of devices."""

    needs: ClassVar = "completed runs of both kinds of work on the same number of several devices, with the same on one"

    kind: Literal["scaling"]
    than: Where

    def comparisons(self, runs: Runs) -> list[Comparison]:
        """One per machine, versions and number of devices, and one more where not all of its runs may be judged."""
        places: dict[Any, tuple[list[Comparison], list[Comparison]]] = defaultdict(lambda: ([], []))
        for side, where in enumerate((self.where, self.than)):
            for each in _speedups(runs, [one for one in runs.configurations if fits(one, where)]):
                one = each.sides[0]
                places[one["devices"], one.provenance.machine, one.provenance.versions][side].append(each)
        found = []
        for (devices, *_), sides in places.items():
            sides = [once(side, 1) for side in sides]
            found.append(self._compared(devices, [_judged(side) for side in sides], ""))
            if reasons := [each.why_not for side in sides for each in side if each.why_not]:
                found.append(self._compared(devices, sides, reasons[0]))
        return [each for each in found if each.by_block]

    def _compared(self, devices: int, sides: Sequence[Sequence[Comparison]], why_not: str) -> Comparison:
        series = [same_blocks([each.by_block for each in side]) for side in sides]
        of, than = (
            {block: geometric_mean(each[block] for each in own) for block in (own[0] if own else ())} for own in series
        )
        compared = tuple(
            configuration
            for side, kept in zip(sides, series, strict=True)
            for each in side
            if kept and kept[0].keys() <= each.by_block.keys()
            for configuration in each.sides
        )
        where = f"{devices} devices"
        return Comparison("speed-up over speed-up", where, where, ratio_by_block(of, than), compared, why_not)


class OfRuns(Test):
    """Base of the tests of a share of each run, by its rows in `table`; `what` words it."""

    quantity: ClassVar = "share"
    table: ClassVar[str]
    what: ClassVar[str]

    def comparisons(self, runs: Runs) -> list[Comparison]:
        """One per configuration."""
        rows = runs.evidence.table(self.table)
        found = []
        for each in self.chosen(runs.configurations):
            traced = {run.repeat: rows[run.run] for run in each.completed if run.run in rows}
            shares = {repeat: share for repeat, own in traced.items() if (share := self.of_run(own)) is not None}
            if shares:
                found.append(runs.compared(self.what.format(self), shares, each))
        return found

    def of_run(self, rows: pd.DataFrame) -> float | None:
        """The number of a run by its rows, None where they do not tell."""
        raise NotImplementedError


class ApiTime(OfRuns):
    """Share of the time in CUDA calls that is spent in some functions, by a pattern to search for in their names."""

    table, what = "cuda_api", "share of the time in CUDA calls"

    kind: Literal["api_time"]
    functions: Annotated[str, AfterValidator(_pattern)]

    def of_run(self, rows: pd.DataFrame) -> float | None:
        """Share of the summed durations of calls, those of backtraces left out: they repeat other rows."""
        calls = rows[rows["api"] != "backtrace"]
        total = calls["total_s"].sum()
        chosen = calls["function"].astype(str).map(lambda name: re.search(self.functions, name) is not None)
        return float(calls["total_s"][chosen.astype(bool)].sum() / total) if total > 0 else None


class DeviceTime(OfRuns):
    """Share of the GPUs' time from the first profiled step to the last, of the capture where the trace has no steps."""

    table, what = "timeline", "share of the GPUs' time: {0.listed}"

    kind: Literal["device_time"]
    parts: Annotated[list[Literal[PARTS]], Field(min_length=1)]

    @property
    def listed(self) -> str:
        """The parts."""
        return ", ".join(self.parts)

    def of_run(self, rows: pd.DataFrame) -> float | None:
        """Share of the span, all GPUs together; none where the causes of idle time are unknown."""
        rows = overall(rows)
        span = rows["span_s"].sum()
        if rows[["busy_s", "idle_host_bound_s"]].isna().any(axis=None) or not span > 0:
            return None
        return float(device_time(rows)[self.parts].sum().sum() / span)


class Reaches(OfRuns):
    """Highest test accuracy in the first epochs."""

    timed: ClassVar = False
    table, what = "epochs", "highest test accuracy"
    needs: ClassVar = "completed runs that it is about whose accuracy was tested"

    kind: Literal["reaches"]
    epochs: Annotated[int, Field(ge=1)]

    def of_run(self, rows: pd.DataFrame) -> float | None:
        """The highest of the epochs' accuracies."""
        found = rows.loc[rows["epoch"] <= self.epochs, "test_accuracy"].max()
        return float(found) if pd.notna(found) else None


AnyTest = Annotated[Compare | Efficiency | Scaling | ApiTime | DeviceTime | Reaches, Field(discriminator="kind")]
KINDS = ("compare", "trend", "efficiency", "scaling", "api_time", "device_time", "reaches")


def _speedups(runs: Runs, chosen: Iterable[Configuration], measure: str | None = None) -> list[Comparison]:
    """Speed-up of each of the chosen on several devices that has a baseline, which is its second side."""
    every = runs.configurations
    found = speedups_between(every, measure)
    speedup_of = {id(each): speedup for each, speedup in zip(every, found, strict=True)}
    several = [(each, speedup_of[id(each)]) for each in chosen if each["devices"] > 1]
    return [
        runs.compared("speed-up", speedup.by_block, each, every[speedup.baseline])
        for each, speedup in several
        if speedup.by_block
    ]


def _judged(comparisons: Iterable[Comparison]) -> list[Comparison]:
    return [each for each in comparisons if not each.why_not]


def _ends(comparisons: Sequence[Comparison]) -> tuple[Comparison, Comparison] | None:
    """Those on the fewest and the most devices; None where these are as many."""
    devices = [each.sides[0]["devices"] for each in comparisons]
    if len(set(devices)) < 2:
        return None
    few, many = (comparisons[devices.index(end(devices))] for end in (min, max))
    return few, many
