"""Recommendations in words: what holds each configuration back, what to try, and the best one for a goal.

Parameters have the names of the configuration file, so that what is recommended can be written there.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from multicard.analysis.best import GOALS, Choice, Goal, choices
from multicard.analysis.bottlenecks import Bottleneck, BottleneckReport, bottlenecks
from multicard.analysis.claims import interval_words
from multicard.analysis.evidence import Configuration, Evidence
from multicard.analysis.statistics import BY_CHANCE, FEW_REPEATS, Interval, verdict
from multicard.analysis.tuning_options import Advice, Neighbours, Tried, advice, effect
from multicard.core.text import for_markdown
from multicard.core.units import SECONDS, with_unit

UNITS: dict[Goal, str] = {
    "throughput": "{}s per second",
    "time_to_accuracy": "s to 98 % of accuracy",
    "energy": "J per {}",
    "memory": "GB per device at the peak",
}
_OPEN = ("more", "less", "other")  # changes whose value the configuration tells


@dataclass(frozen=True)
class Recommendation:
    """What holds one configuration back, each bottleneck with what to try; `rest` is for what computing takes."""

    report: BottleneckReport
    advised: list[tuple[Bottleneck, list[Advice]]]
    rest: list[Advice]


def recommendations(evidence: Evidence) -> list[Recommendation]:
    """What holds back each configuration that has a run with an outcome, and what to try."""
    neighbours = Neighbours(evidence.configurations)
    return [
        Recommendation(
            report,
            [(each, advice(report.configuration, each.kind, neighbours)) for each in report.bottlenecks],
            advice(report.configuration, "compute", neighbours) if report.compute else [],
        )
        for report in bottlenecks(evidence)
    ]


def as_markdown(evidence: Evidence, goals: Sequence[Goal] = GOALS, memory_limit_gb: float | None = None) -> str:
    """All recommendations as Markdown; text that came from files is escaped."""
    found = recommendations(evidence)
    lines = ["# Recommendations", ""]
    if not any(each.report.configuration.completed for each in found):
        lines += ["No run completed, so there is nothing to recommend.", ""]
    if any(run.values.get("device") == "cpu" for run in evidence.runs):
        lines += ["What was measured on CPU processes says nothing about GPUs.", ""]
    if any(run.synthetic for run in evidence.runs):
        lines += ["Some of these runs are synthetic: they show how this page reads, not how a machine performs.", ""]
    lines += _best_lines(evidence, goals, memory_limit_gb)
    lines += ["## What holds each configuration back", ""]
    lines += _overview(found)
    for each in found:
        lines += _configuration_lines(each)
    return "\n".join(lines).rstrip() + "\n"


def _best_lines(evidence: Evidence, goals: Sequence[Goal], limit: float | None) -> list[str]:
    within = f", within {limit:g} GB per device" if limit is not None else ""
    lines = [f"## Best measured configuration{within}", ""]
    for goal in goals:
        found = choices(evidence, goal, limit)
        lines += [f"### {goal.replace('_', ' ').capitalize()}", ""]
        if not found:
            lines += ["No completed run has the measure for it.", ""]
            continue
        compared = [choice for choice in found if choice.candidates + choice.too_large > 1]
        alone = len(found) - len(compared)
        if alone:
            lines += [f"Of {alone} pairs of a job and a number of devices, one configuration was measured.", ""]
        if not compared:
            continue
        lines += ["| Job | Devices | Best | Measured | What the data say |", "|---|---|---|---|---|"]
        machines = len({choice.machine for choice in found}) > 1
        lines += [_choice_line(choice, goal, machines) for choice in compared]
        lines += [""]
    return lines


def _choice_line(choice: Choice, goal: Goal, machines: bool) -> str:
    where = f" ({for_markdown(choice.machine or 'machine unknown')})" if machines else ""
    kind = ("GPU", "GPUs") if choice.device == "cuda" else ("CPU process", "CPU processes")
    devices = f"{choice.devices} {kind[choice.devices > 1]}{where}"
    if choice.best is None:
        lost = f"none of {choice.too_large} configurations is known to fit"
        return f"| {for_markdown(choice.job)} | {devices} | – | – | {lost} |"
    unit = UNITS[goal].format(choice.best.workload.unit.name)
    value = _in_gb(choice.value) if goal == "memory" else choice.value
    words = f"{interval_words(value)} {unit}"
    best = for_markdown(_own_words(choice, choice.best))
    return f"| {for_markdown(choice.job)} | {devices} | {best} | {words} | {_decision(choice)} |"


def _decision(choice: Choice) -> str:
    dropped = f"; {choice.too_large} left out by the memory limit" if choice.too_large else ""
    if choice.candidates == 1:
        return f"the only one measured{dropped}"
    if choice.decided:
        others = choice.candidates - 1
        than = f"the {others} others" if others > 1 else "the other one"
        return f"better than {than}{_by_chance(choice.repeats)}{dropped}"
    names = "; ".join(for_markdown(_own_words(choice, each)) for each in choice.tied[:3])
    more = f" and {len(choice.tied) - 3} more" if len(choice.tied) > 3 else ""
    overlap = choice.of_one_repeat < len(choice.tied)
    why = " or ".join(["intervals overlap"] * overlap + ["one repeat only"] * (choice.of_one_repeat > 0))
    return f"not decided ({why}): it may as well be {names}{more}{dropped}"


def _by_chance(repeats: int) -> str:
    """What to say after a difference that rests on so few repeats; nothing where there are enough."""
    return f" ({repeats} repeats: {BY_CHANCE})" if repeats < FEW_REPEATS else ""


def _own_words(choice: Choice, configuration: Configuration) -> str:
    """Name a configuration by what tells it from the others of the job."""
    return configuration.naming(choice.differing) or configuration.words(in_short=True)


def _in_gb(value: Interval | None) -> Interval | None:
    if value is None or value.value is None:
        return value
    ends = (end / 1e9 if end is not None else None for end in (value.value, value.low, value.high))
    return Interval(*ends, repeats=value.repeats)


def _overview(found: Sequence[Recommendation]) -> list[str]:
    """How often each bottleneck comes first."""
    counts = Counter(each.report.bottlenecks[0].kind for each in found if each.report.bottlenecks)
    free = sum(not each.report.bottlenecks and bool(each.report.configuration.completed) for each in found)
    lines = [f"- {kind} comes first in {count} of {len(found)} configurations" for kind, count in counts.most_common()]
    if free:
        lines.append(f"- {free} of {len(found)}: nothing that was measured holds back 5 % of the step or more")
    return [*lines, ""] if lines else []


def _configuration_lines(recommendation: Recommendation) -> list[str]:
    report = recommendation.report
    lines = [f"### {for_markdown(report.configuration.words())}", ""]
    times = report.configuration.values("iteration_time_s")
    where = report.configuration.place.machine
    facts = [f"{len(report.configuration.completed)} of {len(report.configuration.runs)} runs completed"]
    if times:
        facts.append(f"{with_unit(median(times), SECONDS)} per step")
    facts.append(for_markdown(where) if where else "machine unknown")
    lines += [", ".join(facts) + ".", ""]
    for rank, (bottleneck, advised) in enumerate(recommendation.advised, 1):
        lines.append(f"{rank}. **{bottleneck.kind}**: {for_markdown(bottleneck.evidence)}.")
        lines += [f"   - {line}" for line in _advice_lines(advised)]
        if not advised:
            lines.append("   - no switch of this project is left to try")
    if not recommendation.advised and report.configuration.completed:
        lines.append("Nothing that was measured holds back 5 % of the step or more.")
    if report.compute is not None:
        lines += ["", f"Compute: {for_markdown(report.compute.evidence)}."]
        lines += ["", *(f"- {line}" for line in _advice_lines(recommendation.rest))]
    if report.caveats:
        lines += ["", f"Mind: {'; '.join(for_markdown(each) for each in report.caveats)}."]
    return [*lines, ""]


def _advice_lines(advised: Sequence[Advice]) -> list[str]:
    """A line per switch that was measured, and one for all others."""
    named = {
        id(each): f"`{each.switch.name}`" + (f" ({each.switch.says})" if each.switch.says else "") for each in advised
    }
    lines = [
        f"{named[id(each)]}: {'; '.join(_tried_words(each, tried) for tried in each.tried)}"
        for each in advised
        if each.tried
    ]
    others = [named[id(each)] for each in advised if not each.tried]
    return [*lines, f"to try, not measured here: {', '.join(others)}"] if others else lines


def _tried_words(each: Advice, tried: Tried) -> str:
    values = [f"{name} {tried.configuration[name]}" for name, change in each.switch.changes.items() if change in _OPEN]
    under = f"with {for_markdown(', '.join(values))} " if values else ""
    speed, memory = effect(tried.speed), effect(tried.memory, ("more", "less"))
    told = f"measured {under}{speed}" + (f", peak memory {memory}" if tried.memory.value is not None else "")
    differ = [ratio.repeats for ratio in (tried.speed, tried.memory) if verdict(ratio) in ("more", "less")]
    return told + _by_chance(min(differ, default=FEW_REPEATS))
