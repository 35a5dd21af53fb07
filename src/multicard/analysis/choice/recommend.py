"""Recommendations in words: the best configuration for each goal, and for each configuration what to try next.

Parameters have the names of the configuration file, so that a recommendation can be copied into it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from multicard.analysis.bottlenecks.bottlenecks import LEAST, Bottleneck, BottleneckReport, bottlenecks, summary
from multicard.analysis.bottlenecks.general_options import GENERAL_OPTIONS
from multicard.analysis.bottlenecks.tuning_options import (
    DIFFERENT,
    HIGHER,
    LOWER,
    TUNING_OPTIONS,
    Advice,
    Neighbours,
    Tried,
    advice,
    effect,
)
from multicard.analysis.choice.answers import answer_lines
from multicard.analysis.choice.best import GOALS, Choice, Goal, choices
from multicard.analysis.choice.learning import changes_words
from multicard.analysis.choice.tradeoff import Demand, reaching
from multicard.analysis.evidence import DEVICE_WORDS, Configuration, Evidence, place_words
from multicard.analysis.statistics import scaled
from multicard.core.text import counted, for_markdown
from multicard.core.units import BYTES, SECONDS, number, with_unit

UNITS: dict[Goal, str] = {
    "throughput": "{}s per second",
    "time_to_accuracy": "s to 98% accuracy",
    "energy": "J per {}",
    "memory": "GB of peak memory per device",
}
WORTHWHILE = 1.02  # gain below which an option that was not tried is not named
LEARNS_OTHERWISE = "may change accuracy"


@dataclass(frozen=True)
class Recommendation:
    """The bottlenecks of one configuration, each with options to try."""

    report: BottleneckReport
    advised: list[tuple[Bottleneck, list[Advice]]]


def recommendations(evidence: Evidence) -> list[Recommendation]:
    """Give bottlenecks and options for each configuration that has a run with an outcome."""
    neighbours = Neighbours(evidence.configurations)
    return [
        Recommendation(
            report,
            [(each, advice(report.configuration, each.kind, neighbours)) for each in report.bottlenecks],
        )
        for report in bottlenecks(evidence)
    ]


def as_markdown(evidence: Evidence, goals: Sequence[Goal] = GOALS, demand: Demand | None = None) -> str:
    """Give all recommendations as Markdown, with a demand the answer to it first; text from files is escaped."""
    found = recommendations(evidence)
    lines = ["# Recommendations", ""]
    if not any(each.report.configuration.completed for each in found):
        lines += ["No run completed, so there is nothing to recommend.", ""]
    lines += _overview(found)
    if any(run.values.get("device") == "cpu" for run in evidence.runs):
        lines += ["Measurements on CPU processes say nothing about GPUs.", ""]
    if any(run.synthetic for run in evidence.runs):
        lines += ["Some runs have synthetic timings: no machine takes these times.", ""]
    if demand is not None and demand != Demand():
        lines += answer_lines(evidence, demand)
    lines += _best_lines(evidence, goals, demand or Demand())
    lines += ["## Bottlenecks", ""]
    for each in found:
        lines += _configuration_lines(each)
    return "\n".join(lines).rstrip() + "\n"


def _best_lines(evidence: Evidence, goals: Sequence[Goal], demand: Demand) -> list[str]:
    limit = demand.max_memory_bytes
    asked = [f"within {with_unit(limit, BYTES)} per device"] if limit is not None else []
    asked += [f"with an accuracy of {number(demand.min_accuracy)} or more"] if demand.min_accuracy else []
    asked += [f"with a loss of {number(demand.max_loss)} or less"] if demand.max_loss else []
    lines = [" ".join(["## Best measured configuration", *asked]), ""]
    admitted = reaching(evidence, demand)
    for goal in goals:
        found = choices(evidence, goal, limit, admitted)
        lines += [f"### {goal.replace('_', ' ').capitalize()}", ""]
        if not found:
            lines += ["Not measured by any completed run.", ""]
            continue
        compared = [choice for choice in found if choice.candidates + choice.excluded > 1]
        alone = len({choice.job for choice in found} - {choice.job for choice in compared})
        if alone:
            which = f"{alone} jobs have" if alone > 1 else "1 job has"
            lines += [f"{which} one configuration per number of devices, so there is nothing to rank.", ""]
        if not compared:
            continue
        lines += ["| Job | Devices | Best | Measured | Verdict |", "|---|---|---|---|---|"]
        places = dict(zip(map(id, found), place_words([(each.machine, each.versions) for each in found]), strict=True))
        for choice in compared:
            lines.append(_choice_line(choice, goal, places[id(choice)]))
            if choice.unchanged:
                lines.append(_choice_line(choice.unchanged, goal, places[id(choice)], "without that change: "))
        lines += [""]
    return lines


def _choice_line(choice: Choice, goal: Goal, place: str, head: str = "") -> str:
    where = f" ({for_markdown(place)})" if place else ""
    devices = f"{counted(choice.devices, DEVICE_WORDS[choice.device])}{where}"
    if choice.best is None:
        lost = f"none of {counted(choice.excluded, 'configuration')} is known to be within the limits"
        return f"| {for_markdown(choice.job)} | {devices} | – | – | {lost} |"
    unit = UNITS[goal].format(choice.best.workload.unit.name)
    value = scaled(choice.value, 1e-9) if goal == "memory" else choice.value
    best = for_markdown(_own_words(choice, choice.best))
    cells = for_markdown(choice.job), devices, best, f"{value.format()} {unit}", head + _decision(choice)
    return f"| {' | '.join(cells)} |"


def _decision(choice: Choice) -> str:
    besides = f"; changes {for_markdown(changes_words(choice.changes))}" if choice.changes else ""
    besides += f"; {choice.excluded} excluded by the limits" if choice.excluded else ""
    if choice.candidates == 1:
        return f"the only one measured{besides}"
    if choice.decided:
        others = choice.candidates - 1
        than = f"the {others} others" if others > 1 else "the other one"
        return f"better than {than}{besides}"
    names = "; ".join(for_markdown(_own_words(choice, each)) for each in choice.tied[:3])
    more = f"; and {len(choice.tied) - 3} more" if len(choice.tied) > 3 else ""
    overlap = choice.of_one_repeat < len(choice.tied)
    why = " or ".join(["no significant difference"] * overlap + ["one repeat only"] * (choice.of_one_repeat > 0))
    return f"inconclusive ({why}); possibly just as good: {names}{more}{besides}"


def _own_words(choice: Choice, configuration: Configuration) -> str:
    """Name a configuration by what distinguishes it from the others of the job."""
    return configuration.naming(choice.differing) or configuration.words(in_short=True)


def _overview(found: Sequence[Recommendation]) -> list[str]:
    """Where the steps go, over all configurations."""
    reports = [each.report for each in found]
    lines = [f"- {line[0].upper()}{line[1:]}." for line in summary(reports)]
    unknown = sum(bool(report.configuration.completed) and not report.parts for report in reports)
    if unknown:
        every = counted(len(reports), "configuration")
        lines.append(f"- {unknown} of {every}: where the step goes was not recorded.")
    return [*lines, ""] if lines else []


def _configuration_lines(recommendation: Recommendation) -> list[str]:
    report = recommendation.report
    lines = [f"### {for_markdown(report.configuration.words())}", ""]
    step_s = report.configuration.mean("iteration_time_s")
    where = report.configuration.provenance.machine
    facts = [f"{len(report.configuration.completed)} of {counted(len(report.configuration.runs), 'run')} completed"]
    if step_s:
        facts.append(f"{with_unit(step_s, SECONDS)} per step")
    facts.append(for_markdown(where) if where else "machine unknown")
    lines += [", ".join(facts) + ".", ""]
    for rank, (bottleneck, advised) in enumerate(recommendation.advised, 1):
        lines.append(
            f"{rank}. **{bottleneck.kind[0].upper()}{bottleneck.kind[1:]}**: {for_markdown(bottleneck.evidence)}."
        )
        lines += [f"   - {line}" for line in _advice_lines(bottleneck, advised)]
        general = _general_lines(report.configuration, bottleneck)
        lines += [f"   - {line}" for line in general]
        if not advised and not general and TUNING_OPTIONS[bottleneck.kind]:
            lines.append("   - No tuning option left to try.")
    if not recommendation.advised and report.configuration.completed:
        lines.append("Where the step goes was not recorded.")
    if report.caveats:
        lines += ["", f"Caveats: {'; '.join(for_markdown(each) for each in report.caveats)}."]
    return [*lines, ""]


def _advice_lines(bottleneck: Bottleneck, advised: Sequence[Advice]) -> list[str]:
    """A line per option that was measured, and one for all others, with what they can gain."""
    named = {}
    for each in advised:
        notes = [each.option.description, LEARNS_OTHERWISE if each.learns_otherwise else ""]
        known = "; ".join(filter(None, notes))
        named[id(each)] = f"`{each.option.name}`" + (f" ({known})" if known else "")
    lines = [
        f"{named[id(each)]}: {'; '.join(_tried_words(each, tried) for tried in each.tried)}."
        for each in advised
        if each.tried
    ]
    others = [named[id(each)] for each in advised if not each.tried]
    if not others or not _is_worthwhile(bottleneck):
        return lines
    return [*lines, f"Untried{_bound_words(bottleneck)}: {', '.join(others)}."]


def _general_lines(configuration: Configuration, bottleneck: Bottleneck) -> list[str]:
    """A line of what to change in a program whose options are its own, with what it can gain; or none."""
    if not configuration.workload.has_own_options or not _is_worthwhile(bottleneck):
        return []
    options = [
        f"{option.description}{f' ({LEARNS_OTHERWISE})' if option.learns_otherwise else ''}"
        for option in GENERAL_OPTIONS[bottleneck.kind]
        if option.applies(configuration)
        and not (option.pins and bottleneck.pageable is not None and bottleneck.pageable < LEAST)
    ]
    return [f"To change in the program{_bound_words(bottleneck)}: {'; '.join(options)}."] if options else []


def _is_worthwhile(bottleneck: Bottleneck) -> bool:
    return bottleneck.gain is None or bottleneck.gain >= WORTHWHILE


def _bound_words(bottleneck: Bottleneck) -> str:
    return "" if bottleneck.gain is None else f" (about {bottleneck.gain:.2f} times as fast if it took no time)"


def _tried_words(each: Advice, tried: Tried) -> str:
    open_changes = [name for name, change in each.option.changes.items() if change in (HIGHER, LOWER, DIFFERENT)]
    values = f" with {for_markdown(tried.configuration.naming(open_changes))}" if open_changes else ""
    speed, memory = effect(tried.speed), effect(tried.memory, ("more", "less"))
    return f"{speed}{values}" + (f", peak memory: {memory}" if tried.memory.value is not None else "")
