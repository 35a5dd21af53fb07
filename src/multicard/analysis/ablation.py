"""What a part of the step costs, by runs that went without it: measured, where shares of a step only suggest it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean

import pandas as pd

from multicard.analysis.bottlenecks.bottlenecks import LEAST, Bottleneck, BottleneckReport
from multicard.analysis.evidence import DEVICE_WORDS, Configuration, Evidence
from multicard.analysis.runs.breakdown import COLUMNS, COMMUNICATION, DATA, EITHER, ELSEWHERE, LAUNCHES, OTHER
from multicard.analysis.scaling.headline import STEP_TIME
from multicard.core.text import counted
from multicard.core.units import SECONDS, percent, with_unit
from multicard.experiment.config import configuration_key
from multicard.stats.interval import Interval, interval_columns, verdict
from multicard.stats.pool import Pool

WORDS = {
    "loader": "loading",
    "communication": "communication",
    "loader+communication": "loading and communication",
    "host": "loading and the host's work",
    "communication+host": "loading, communication and the host's work",
}
ALL_PARTS, NO_LOADING = "all parts", "without loading"  # that runs are compared with
WORTHWHILE = 1.02  # times as fast, below which nothing is worth a change
HIDING = (EITHER, OTHER)  # parts of a step without a trace that communication may be in
# What runs go without to measure a part of the step.
ABLATED = {DATA: "loader", COMMUNICATION: "communication", LAUNCHES: "host"}


@dataclass(frozen=True)
class Cost:
    """Of one part, or of several together, in one configuration."""

    configuration: Configuration  # the one that has all parts
    without: Configuration  # the one that goes without
    # The one that it is compared with: that with all parts, but of the host the one without loading, since a run
    # without the host's work is without that, too.
    beside: Configuration
    part: str  # value of `ablate`
    # How many times as fast it is without, by the rate of work, or by step times where that is not known.
    ratio: Interval

    @property
    def share(self) -> Interval:
        """Part of the time that it costs: what would be saved without it."""
        return self.ratio.map(lambda times: 1 - 1 / times)

    @property
    def is_shown(self) -> bool:
        """Whether it shows that the part costs anything."""
        return verdict(self.ratio) == "more"

    @property
    def may_matter(self) -> bool:
        """Whether it shows that the part costs anything, or seems to and too few repeats tell."""
        return self.is_shown or (verdict(self.ratio) == "unknown" and self.ratio.value > 1)

    @property
    def is_excluded(self) -> bool:
        """Whether it shows that nothing worth a change is gained without the part."""
        return self.ratio.high is not None and self.ratio.high < WORTHWHILE

    @property
    def runs(self) -> str:
        """By what it is known, in words."""
        return "one run" if self.ratio.repeats == 1 else "runs"

    @property
    def is_of_rest(self) -> bool:
        """Whether it is of the time without loading."""
        return self.beside is not self.configuration

    @property
    def name(self) -> str:
        """What costs that, in words."""
        return "the host's work" if self.is_of_rest else WORDS[self.part]

    @property
    def sentence(self) -> str:
        """What it costs, in words."""
        costs = "cost" if " and " in self.name else "costs"
        of = "the time without loading" if self.is_of_rest else "the time"
        return f"{self.name} {costs} {percent(self.share.value)} of {of}"

    def words(self) -> str:
        """What it costs, in words, after how much faster it is without."""
        text = f"without {self.name}{', too,' if self.is_of_rest else ''} {self.ratio.format(unit='×')}"
        if verdict(self.ratio) == "none":
            return f"{text}: no cost shown"
        return text + (f": {self.sentence}" if self.ratio.value > 1 else "")

    def workers(self) -> str | None:
        """How many workers of the loader are enough, with what that is computed from; None where it is not known.

        If each needs as long as those that were measured: n workers give n batches in the time of one.
        """
        alone_s, step_s = self.without.mean("loader_alone_s"), self.without.mean(STEP_TIME)
        if self.part != "loader" or not alone_s or not step_s:
            return None
        now = max(self.without.values("loader_workers"))
        of_one_s = alone_s * max(1.0, now)
        enough = math.ceil(of_one_s / step_s)
        times = f"one takes {with_unit(of_one_s, SECONDS)} a step, the rest of it {with_unit(step_s, SECONDS)}"
        low, high = (with_unit(each, SECONDS) for each in with_loading(step_s, of_one_s / enough))
        text = (
            f"{counted(enough, 'worker')} per rank {'is' if enough == 1 else 'are'} enough (now {now:.0f}): {times}, "
            f"together {low} to {high}"
        )
        cpus, one = self.configuration.provenance.usable_cpus, self.configuration
        if cpus and enough * one["devices"] > cpus * (one["nodes"] or 1):
            text += f"; a node has {counted(cpus, 'CPU')}, so make loading itself cheaper"
        return text


def with_loading(step_s: float, loading_s: float) -> tuple[float, float]:
    """Shortest and longest time of a step with its loading, from the time of each alone.

    The shortest if they overlap wholly, the longest if they take turns. They compete for CPUs, or for the GPU, and how
    much differs: in the public table of an A100 (benchmarks/README.md) the shorter of the two adds 4% to 71% of itself.
    """
    return max(step_s, loading_s), step_s + loading_s


def costs(evidence: Evidence) -> list[Cost]:
    """Of each ablated configuration that completed, beside the one that has all parts.

    What each part costs is a question of its own, so p-values are not corrected for their number.
    """
    no_loading = {
        each.rest(("ablate",)): each for each in evidence.ablated if each["ablate"] == "loader" and each.completed
    }
    whole = {each.rest(("ablate",)): each for each in evidence.configurations if each.completed}
    found = []
    for without in evidence.ablated:
        one = whole.get(without.rest(("ablate",)))
        if one is None or not without.completed:
            continue
        part = str(without["ablate"])
        beside = no_loading.get(one.rest(("ablate",)), one) if part == "host" else one
        has_rates = beside.blocks(one.rate) and without.blocks(one.rate)
        sides = [each.blocks(one.rate if has_rates else STEP_TIME) for each in (without, beside)]
        ratio = Pool(sides).ratio(0, 1)
        if ratio is None:
            continue
        found.append(Cost(one, without, beside, part, ratio if has_rates else ratio.map(lambda times: 1 / times)))
    return found


def not_measured(evidence: Evidence) -> list[tuple[Configuration, str]]:
    """Where no run could go without the host's work: the configuration, why that is, and the share by the trace."""
    # A run that failed may not say where.
    failed = {
        configuration_key(each.parameters, {"ablate"}): run.values.get("reason")
        for each in evidence.ablated
        if each["ablate"] == "host" and not each.completed
        for run in each.runs
    }
    found = []
    for one in evidence.configurations:
        reason = failed.get(configuration_key(one.parameters, {"ablate"}))
        if reason is None or not one.completed:
            continue
        where = counted(one["devices"], DEVICE_WORDS[one["device"]])
        text = f"{where}: what the host's work costs was not measured ({reason})"
        if shares := [mean(known) for part in (LAUNCHES, ELSEWHERE) if (known := one.values(COLUMNS[part]))]:
            text += f"; by the trace, the GPU is idle because of it in {percent(sum(shares))} of the step"
            text += ", which is a share and no measured cost"
        found.append((one, text))
    return found


def with_unseen(measured: Mapping[str, Cost], report: BottleneckReport) -> list[Bottleneck]:
    """The bottlenecks of a report, with what its step does not tell apart, as communication on CPUs, at its place.

    A run without such a part shows what it costs; that time is then no longer of the parts that it is hidden in, the
    largest first. `measured`: what parts cost in the configuration of the report, by part.
    """
    seen = {each.kind for each in report.bottlenecks}
    hidden = {kind: measured[part] for kind, part in ABLATED.items() if part in measured and kind not in seen}
    found = [
        Bottleneck(kind, cost.share.value, f"{cost.sentence}, by {cost.runs} without it")
        for kind, cost in hidden.items()
        if cost.may_matter and cost.share.value >= LEAST
    ]
    left = sum(each.share for each in found)
    others = []
    for each in sorted(report.bottlenecks, key=lambda each: -each.share):
        taken = min(left, each.share) if each.kind in HIDING else 0.0
        left -= taken
        if taken:
            less = f"{each.evidence}; {percent(each.share - taken)} without what was measured"
            each = replace(each, share=each.share - taken, evidence=less)
        others += [each] if each.share >= LEAST else []
    return [*found, *others]


def of_largest(measured: Mapping[str, Cost], report: BottleneckReport) -> Cost | None:
    """What the largest part of the step was measured to cost, also where it is most of one that is not told apart."""
    is_hidden = report.largest in HIDING
    kind = COMMUNICATION if is_hidden else report.largest
    cost = measured.get(ABLATED.get(kind or "", ""))
    if cost is None or not cost.is_shown:
        return None
    return None if is_hidden and 2 * cost.share.value < report.parts[report.largest] else cost


def lines(found: Sequence[Cost]) -> list[str]:
    """What parts cost on each number of devices, single ones first, and how many workers are enough."""
    said = []
    for devices in sorted({each.configuration["devices"] for each in found}):
        own = [each for each in found if each.configuration["devices"] == devices]
        words = [each.words() for each in sorted(own, key=lambda each: (len(WORDS[each.part]), -each.ratio.value))]
        words += [text for each in own if each.is_shown and (text := each.workers())]
        said.append(f"{counted(devices, DEVICE_WORDS[own[0].configuration['device']])}: {'; '.join(words)}")
    return said


def as_table(found: Sequence[Cost]) -> pd.DataFrame:
    """One row per cost."""
    return pd.DataFrame(
        [
            {
                "configuration": each.configuration.words(without=("devices",)),
                "device": each.configuration["device"],
                "devices": each.configuration["devices"],
                "without": WORDS[each.part],
                "compared_with": NO_LOADING if each.is_of_rest else ALL_PARTS,
                "repeats": each.ratio.repeats,
                **interval_columns("speedup_without", each.ratio),
                **interval_columns("cost_share", each.share),
            }
            for each in found
        ]
    )
