"""The cost of a part of the step, measured by runs without that part. Shares of a step only suggest such a cost."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from multicard.answers.bottlenecks.bottlenecks import LEAST, Bottleneck, BottleneckReport
from multicard.answers.gain import WORTHWHILE
from multicard.answers.scaling.work import STEP_TIME
from multicard.core.grouping import grouped
from multicard.core.text import counted
from multicard.core.units import SECONDS, percent, with_unit
from multicard.core.values import Row
from multicard.results.breakdown import StepPart
from multicard.results.configuration import DEVICE_WORDS, Configuration
from multicard.results.results import Results
from multicard.stats.interval import Interval, interval_columns, verdict
from multicard.stats.pool import Pool

# The parts that a run goes without, in words, by the value of its parameter `ablate`.
WORDS = {
    "loader": "loading",
    "communication": "communication",
    "loader+communication": "loading and communication",
}
# Parts of a step that may contain communication, if no trace shows it as a part of its own.
HIDING = (StepPart.COMPUTE_OR_COMMUNICATION, StepPart.OTHER)
# The value of `ablate` of the runs that measure what a part of the step costs.
ABLATED: dict[str, str] = {StepPart.DATA: "loader", StepPart.COMMUNICATION: "communication"}


@dataclass(frozen=True)
class PartCost:
    """The cost of one part of the step, or of several together, in one configuration. Made by `costs`."""

    # The configuration with all parts, and the one without this part.
    configuration: Configuration
    without: Configuration
    # Value of `ablate` of the configuration `without`.
    part: str
    # Speed of `without` over that of `configuration`: the ratio of their rates of work, or of their step times if no
    # rate is known.
    ratio: Interval

    @property
    def share(self) -> Interval:
        """Share of the time that would be saved without the part.

        A configuration that is twice as fast without a part spends half of its time on it. Below 0 if it is slower.
        """
        return self.ratio.map(lambda times: 1 - 1 / times)

    @property
    def is_shown(self) -> bool:
        """True if the runs show that the part costs time."""
        return verdict(self.ratio) == "more"

    @property
    def may_matter(self) -> bool:
        """True if the part is shown to cost time, or seems to cost time without a p-value, as with a single repeat."""
        return self.is_shown or (verdict(self.ratio) == "unknown" and self.ratio.value > 1)

    @property
    def is_excluded(self) -> bool:
        """True if the interval of the ratio excludes a gain of `WORTHWHILE`."""
        return self.ratio.high is not None and self.ratio.high < WORTHWHILE

    @property
    def runs(self) -> str:
        """The word for the runs that show the cost: "one run" or "runs"."""
        return "one run" if self.ratio.repeats == 1 else "runs"

    @property
    def name(self) -> str:
        """The part in words."""
        return WORDS[self.part]

    @property
    def sentence(self) -> str:
        """The share of the time that the part costs, in words."""
        costs = "cost" if " and " in self.name else "costs"
        return f"{self.name} {costs} {percent(self.share.value)} of the time"

    def words(self) -> str:
        """Return in words how much faster the configuration is without the part, then what the part costs."""
        text = f"without {self.name} {self.ratio.format(unit='×')}"
        if verdict(self.ratio) == "none":
            return f"{text}: no cost shown"
        return f"{text}: {self.sentence}" if self.ratio.value > 1 else text


def with_loading(step_s: float, loading_s: float) -> tuple[float, float]:
    """Return the shortest and the longest time of a step together with its loading, in seconds.

    `step_s`: seconds of a step without loading. `loading_s`: seconds of the loading of a step alone. The time is
    shortest if both overlap wholly, and longest if they take turns. In between, they compete for CPUs or for the GPU.
    In the public table of an A100 (benchmarks/README.md) the shorter of the two adds 4% to 71% of its own time.

    >>> with_loading(0.25, 0.125)
    (0.25, 0.375)
    """
    return max(step_s, loading_s), step_s + loading_s


def enough_workers(cost: PartCost) -> str | None:
    """Return in words how many workers of the loader are enough, with the times that this is computed from.

    With enough workers loading a batch takes no longer than the rest of a step. Any number n of workers is assumed to
    give n batches in the time that a measured worker needs for one. None unless `cost` is that of loading, and the
    loader was measured alone.
    """
    alone_s = cost.without.mean("loader_alone_s")
    step_s = cost.without.mean(STEP_TIME)
    if cost.part != "loader" or not alone_s or not step_s:
        return None
    workers = max(cost.without.values("loader_workers"))
    # Without workers the training process itself loads, which counts as one worker.
    worker_s = alone_s * max(1.0, workers)
    enough = math.ceil(worker_s / step_s)
    shortest_s, longest_s = with_loading(step_s, worker_s / enough)
    text = (
        f"{counted(enough, 'worker')} per rank {'is' if enough == 1 else 'are'} enough (now {workers:.0f}): "
        f"one takes {with_unit(worker_s, SECONDS)} a step, the rest of it {with_unit(step_s, SECONDS)}, "
        f"together {with_unit(shortest_s, SECONDS)} to {with_unit(longest_s, SECONDS)}"
    )
    cpus = _short_of_cpus(cost.configuration, enough)
    if cpus is not None:
        text += f"; a node has {counted(cpus, 'CPU')}, so make loading itself cheaper"
    return text


def _short_of_cpus(configuration: Configuration, workers_per_rank: int) -> int | None:
    """Return the number of CPUs of a node if there are more workers than CPUs; None if not, or if it is not known."""
    cpus = configuration.provenance.usable_cpus
    if not cpus:
        return None
    workers = workers_per_rank * configuration["devices"]
    nodes = configuration["nodes"] or 1
    return cpus if workers > cpus * nodes else None


def costs(results: Results) -> list[PartCost]:
    """Return a cost for each ablated configuration, if it and the same configuration with all parts completed.

    What each part costs is a question of its own, so p-values are not corrected for the number of costs.
    """
    ablated = [configuration for configuration in results.ablated() if configuration.completed]
    whole = {_without_ablation(full): full for full in results.configurations() if full.completed}
    measured = []
    for without in ablated:
        full = whole.get(_without_ablation(without))
        ratio = _speed_ratio(without, full) if full is not None else None
        if full is not None and ratio is not None:
            measured.append(PartCost(full, without, str(without["ablate"]), ratio))
    return measured


def _without_ablation(configuration: Configuration) -> tuple[object, ...]:
    """Return a key that is equal for configurations that differ at most in the parts that they go without."""
    return configuration.rest(("ablate",))


def _speed_ratio(configuration: Configuration, baseline: Configuration) -> Interval | None:
    """Return how many times as fast as the baseline a configuration is, by rates of work, else by step times.

    None if neither is known of both.
    """
    rate = baseline.rate
    if baseline.blocks(rate) and configuration.blocks(rate):
        return Pool([configuration.blocks(rate), baseline.blocks(rate)]).ratio(0, 1)
    times = Pool([configuration.blocks(STEP_TIME), baseline.blocks(STEP_TIME)]).ratio(0, 1)
    return times and times.map(lambda ratio: 1 / ratio)


def with_hidden_parts(costs_by_part: Mapping[str, PartCost], report: BottleneckReport) -> list[Bottleneck]:
    """Return the bottlenecks of a report, and before them hidden parts: parts that the report does not list.

    Communication on CPUs is such a part: no trace shows it, but runs without it show what it costs. The share of the
    hidden parts is subtracted from the bottlenecks in `HIDING`, the largest first. Bottlenecks that then are below
    `LEAST` are dropped. `costs_by_part`: what parts cost in the configuration of the report, by the value of `ablate`.
    """
    hidden = _hidden_parts(costs_by_part, report)
    hidden_share = sum(bottleneck.share for bottleneck in hidden)
    remaining = []
    for bottleneck in sorted(report.bottlenecks, key=lambda bottleneck: -bottleneck.share):
        if bottleneck.name in HIDING and hidden_share:
            explained = min(hidden_share, bottleneck.share)
            hidden_share -= explained
            share = bottleneck.share - explained
            evidence = f"{bottleneck.evidence}; {percent(share)} without what was measured"
            bottleneck = replace(bottleneck, share=share, evidence=evidence)
        if bottleneck.share >= LEAST:
            remaining.append(bottleneck)
    return [*hidden, *remaining]


def _hidden_parts(costs_by_part: Mapping[str, PartCost], report: BottleneckReport) -> list[Bottleneck]:
    """Return the parts that a report does not list, but whose measured cost may matter and is at least `LEAST`."""
    listed = {bottleneck.name for bottleneck in report.bottlenecks}
    hidden = []
    for step_part, ablated in ABLATED.items():
        cost = costs_by_part.get(ablated)
        if cost is None or step_part in listed:
            continue
        if cost.may_matter and cost.share.value >= LEAST:
            evidence = f"{cost.sentence}, by {cost.runs} without it"
            hidden.append(Bottleneck(step_part, cost.share.value, evidence))
    return hidden


def cost_of_largest_part(costs_by_part: Mapping[str, PartCost], report: BottleneckReport) -> PartCost | None:
    """Return what the largest part of the step was measured to cost; None if no cost is shown.

    If the largest part may contain communication (`HIDING`), the result is the cost of communication, provided that it
    is at least half of that part.
    """
    largest = report.largest
    if largest is None:
        return None
    may_hide = largest in HIDING
    cost = costs_by_part.get(ABLATED.get(StepPart.COMMUNICATION if may_hide else largest, ""))
    if cost is None or not cost.is_shown:
        return None
    if may_hide and 2 * cost.share.value < report.parts[largest]:
        return None
    return cost


def cost_lines(all_costs: Sequence[PartCost]) -> list[str]:
    """Return a line for each number of devices, by rising number: what parts cost, and how many workers are enough."""
    by_devices = grouped(all_costs, lambda cost: cost.configuration["devices"])
    return [_cost_line(devices, by_devices[devices]) for devices in sorted(by_devices)]


def _cost_line(devices: int, device_costs: Sequence[PartCost]) -> str:
    """Return in words what parts cost on one number of devices.

    Single parts come before combined ones. Among these and among those, the largest gain comes first.
    """
    ordered = sorted(device_costs, key=lambda cost: (_part_count(cost.part), -cost.ratio.value))
    words = [cost.words() for cost in ordered]
    for cost in device_costs:
        workers = enough_workers(cost)
        if cost.is_shown and workers:
            words.append(workers)
    device = DEVICE_WORDS[device_costs[0].configuration["device"]]
    return f"{counted(devices, device)}: {'; '.join(words)}"


def _part_count(ablated: str) -> int:
    """Return the number of parts that a run goes without, by the value of its parameter `ablate`.

    >>> _part_count("loader"), _part_count("loader+communication")
    (1, 2)
    """
    return len(ablated.split("+"))


def as_table(all_costs: Sequence[PartCost]) -> pd.DataFrame:
    """Return one row per cost, with the columns of `_row`."""
    return pd.DataFrame([_row(cost) for cost in all_costs])


def _row(cost: PartCost) -> Row:
    return {
        "configuration": cost.configuration.words(without=("devices",)),
        "device": cost.configuration["device"],
        "devices": cost.configuration["devices"],
        "without": WORDS[cost.part],
        "repeats": cost.ratio.repeats,
        **interval_columns("speedup_without", cost.ratio),
        **interval_columns("cost_share", cost.share),
    }
