"""Kinds of tests of claims, each with the comparisons that it makes between measured runs."""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import pandas as pd
from pydantic import Field

from multicard.analysis.claim_limits import (
    Comparison,
    Name,
    Pattern,
    Test,
    Value,
    Where,
    fits,
)
from multicard.analysis.evidence import Configuration, Evidence, MeasuredRun
from multicard.analysis.scaling import BASELINE_DIFFERS, find_baselines
from multicard.analysis.statistics import Interval, Term, mean_of, product_of, ratio_of, scaled

Speedup = tuple[Configuration, Configuration, Interval]  # of a configuration over its baseline


class Compare(Test):
    """A measure under one value of a parameter over that under another, all else equal."""

    kind: Literal["compare"]
    parameter: Name
    of: Annotated[list[Value], Field(min_length=1)]
    against: Annotated[list[Value], Field(min_length=1)]
    measure: Name
    largest_only: Annotated[bool, Field(description="Judge only the largest ratio among all configurations.")] = False

    def needs(self) -> str:
        """Pairs that it needs."""
        of, against = (" or ".join(map(_value_words, values)) for values in (self.of, self.against))
        return f"completed runs with {self.measure} that differ in {self.parameter} alone: {of} against {against}"

    def comparisons(self, configurations: Sequence[Configuration], evidence: Evidence) -> list[Comparison]:
        """One per pair."""
        pairs = self.pairs(configurations)
        ratios = [ratio_of(one.blocks(self.measure), base.blocks(self.measure)) for one, base in pairs]
        found = [
            self.judged(self._what(one, base), one, ratio, (*one.completed, *base.completed), [self.parameter])
            for (one, base), ratio in zip(pairs, ratios, strict=True)
            if ratio.value is not None
        ]
        if self.largest_only and found:
            found = [max(found, key=lambda each: each.found.value)]
        return found

    def pairs(self, configurations: Sequence[Configuration]) -> list[tuple[Configuration, Configuration]]:
        """Configurations that are equal in all but the parameter."""
        groups = defaultdict(list)
        for each in self.chosen(configurations, self.parameter):
            groups[each.rest([self.parameter])].append(each)
        return [
            (one, base)
            for alike in groups.values()
            for of in self.of
            for against in self.against
            for one in alike
            for base in alike
            if one[self.parameter] == of and base[self.parameter] == against
        ]

    def _what(self, one: Configuration, base: Configuration) -> str:
        of, against = _value_words(one[self.parameter]), _value_words(base[self.parameter])
        return f"{self.measure}, {self.parameter} {of} over {against}"


class Trend(Compare):
    """The ratio of `compare` with most devices over the same with fewest."""

    kind: Literal["trend"]

    def needs(self) -> str:
        """Pairs that it needs."""
        return f"{super().needs()}, on two numbers of devices"

    def comparisons(self, configurations: Sequence[Configuration], evidence: Evidence) -> list[Comparison]:
        """One per configuration, whatever its number of devices."""
        groups = defaultdict(list)
        for one, base in self.pairs(configurations):
            if one.blocks(self.measure) and base.blocks(self.measure):
                groups[one.rest([self.parameter, "devices"]), one[self.parameter], base[self.parameter]].append(
                    (one, base)
                )
        found = []
        for alike in groups.values():
            few, many = (end(alike, key=lambda entry: entry[0]["devices"]) for end in (min, max))
            if few[0]["devices"] < many[0]["devices"]:
                counts = f"{many[0]['devices']} over {few[0]['devices']} devices"
                what = f"{self._what(*few)}, {counts}"
                runs = [run for pair in (few, many) for each in pair for run in each.completed]
                terms = zip((1.0, -1.0, -1.0, 1.0), (*many, *few), strict=True)
                ratio = product_of([(weight, each.blocks(self.measure)) for weight, each in terms])
                found.append(self.judged(what, few[0], ratio, runs, [self.parameter, "devices"]))
        return found


class Efficiency(Test):
    """Speed-up per device, against one device under the strategy `single` where that ran, else under the same."""

    kind: Literal["efficiency"]

    def needs(self) -> str:
        """Runs that it needs."""
        return "completed runs that it is about on several devices, with the same on one"

    def comparisons(self, configurations: Sequence[Configuration], evidence: Evidence) -> list[Comparison]:
        """One per configuration on several devices."""
        return [
            self.judged("efficiency", one, scaled(ratio, 1 / one["devices"]), (*one.completed, *base.completed))
            for one, base, ratio in _speedups(self.chosen(configurations), configurations)
        ]


class Scaling(Test):
    """Mean speed-up of the configurations `where` over that of those `than`, geometric, on as many devices."""

    kind: Literal["scaling"]
    than: Where

    def needs(self) -> str:
        """Runs that it needs."""
        return "completed runs of both kinds of work on the same number of several devices, with the same on one"

    def comparisons(self, configurations: Sequence[Configuration], evidence: Evidence) -> list[Comparison]:
        """One per machine, versions and number of devices."""
        sides: list[dict[Any, list[Speedup]]] = []
        for where in (self.where, self.than):
            places = defaultdict(list)
            for found in _speedups([each for each in configurations if fits(each, where)], configurations):
                one = found[0]
                places[one["devices"], one.provenance.machine, one.provenance.versions].append(found)
            sides.append(places)
        comparisons = []
        for key in [key for key in sides[0] if key in sides[1]]:
            terms: list[Term] = []
            for sign, side in zip((1, -1), sides, strict=True):
                weight = sign / len(side[key])
                for one, base, _ in side[key]:
                    terms += [(weight, one.blocks(one.rate)), (-weight, base.blocks(base.rate))]
            runs = [run for side in sides for one, base, _ in side[key] for run in (*one.completed, *base.completed)]
            ratio = product_of(terms)
            comparisons.append(self.judged("speed-up over speed-up", f"{key[0]} devices", ratio, runs))
        return comparisons


class ApiTime(Test):
    """Share of the time in CUDA calls that is spent in some functions."""

    kind: Literal["api_time"]
    functions: Annotated[Pattern, Field(description="Regular expression to search for in their names.")]

    def needs(self) -> str:
        """Runs that it needs."""
        return "completed runs that it is about whose CUDA calls were recorded"

    def comparisons(self, configurations: Sequence[Configuration], evidence: Evidence) -> list[Comparison]:
        """One per configuration."""
        calls = evidence.table("cuda_api")
        kept = []
        for each in self.chosen(configurations):
            parts = [part for run in each.completed if (part := self._part(calls.get(run.run))) is not None]
            if parts:
                kept.append((each, parts))
        return [
            self.judged("share of the time in CUDA calls", each, mean_of(parts), each.completed) for each, parts in kept
        ]

    def _part(self, calls: pd.DataFrame | None) -> float | None:
        if calls is None:
            return None
        calls = calls[calls["api"] != "backtrace"]  # it repeats other rows
        total = calls["total_s"].sum()
        chosen = [re.search(self.functions, str(name)) is not None for name in calls["function"]]
        return float(calls.loc[chosen, "total_s"].sum() / total) if total > 0 else None


class Reaches(Test):
    """Highest test accuracy in the first epochs; a run of fewer epochs that does not reach it leaves it open."""

    kind: Literal["reaches"]
    epochs: Annotated[int, Field(ge=1)]

    def comparisons(self, configurations: Sequence[Configuration], evidence: Evidence) -> list[Comparison]:
        """One per configuration."""
        tested = evidence.table("epochs")
        kept = []
        for each in self.chosen(configurations):
            highest = [best for run in each.completed if (best := self._highest(run, tested.get(run.run))) is not None]
            if highest:
                kept.append((each, highest))
        found = []
        for each, highest in kept:
            judged = self.judged("highest test accuracy", each, mean_of(highest), each.completed)
            too_short = judged.answer == "no" and each["epochs"] < self.epochs
            found.append(replace(judged, answer="open") if too_short else judged)
        return found

    def _highest(self, run: MeasuredRun, epochs: pd.DataFrame | None) -> float | None:
        if epochs is not None:
            highest = epochs.loc[epochs["epoch"] <= self.epochs, "test_accuracy"].max()
            if pd.notna(highest):
                return float(highest)
        return run.number("test_accuracy") if run.values.get("epochs", 0) <= self.epochs else None


AnyTest = Annotated[Compare | Trend | Efficiency | Scaling | ApiTime | Reaches, Field(discriminator="kind")]


def _speedups(chosen: Iterable[Configuration], configurations: Sequence[Configuration]) -> list[Speedup]:
    """Each of the chosen on several devices that has a baseline, with that and the ratio of their rates."""
    baselines = find_baselines(
        (c.rest(BASELINE_DIFFERS), c.workload, c[c.workload.method], c["devices"], bool(c.values(c.rate)))
        for c in configurations
    )
    base_of = {id(c): configurations[base] for c, base in zip(configurations, baselines, strict=True) if base >= 0}
    pairs = [(each, base_of[id(each)]) for each in chosen if each["devices"] > 1 and id(each) in base_of]
    ratios = [ratio_of(one.blocks(one.rate), base.blocks(base.rate)) for one, base in pairs]
    return [(*pair, ratio) for pair, ratio in zip(pairs, ratios, strict=True) if ratio.value is not None]


def _value_words(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
