"""Recommendations: for each job how many devices, the largest part of its step, what to try next, and how sure that is.

`advise` gives them as objects of plain words; recommendations.md and the report are made of these by a template each.
Parameters have the names of the configuration file, so that a recommendation can be copied into it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import jinja2

from multicard.analysis.bottlenecks.bottlenecks import Bottleneck, BottleneckReport, bottlenecks, summary
from multicard.analysis.bottlenecks.options import (
    DIFFERENT,
    HIGHER,
    LOWER,
    Advice,
    Neighbours,
    Tried,
    advice,
    effect,
    options,
)
from multicard.analysis.choice.answers import (
    NOT_KNOWN,
    basis,
    changed,
    demanded,
    how_many,
    missing_words,
    speedups,
    which,
)
from multicard.analysis.choice.choices import Choices, choices
from multicard.analysis.choice.demand import Demand
from multicard.analysis.choice.table import WordTable, in_words, lost_words
from multicard.analysis.evidence import DEVICE_WORDS, Configuration, Evidence, place_words
from multicard.analysis.runs.notices import NOTICES
from multicard.analysis.statistics import verdict
from multicard.core.text import counted, for_markdown, listed, plural
from multicard.core.units import SECONDS, number, percent, with_unit

WORTHWHILE = 1.02  # gain below which an option that was not tried is not named
LEARNS_OTHERWISE = "may change accuracy"
MOST_JOBS = 2  # that are answered at once
MOST_NEXT = 2
MOST_CHANGES = 3
MOST_OPTIONS = 3
MOST_DOUBTS = 3
SURE = {"more": "Significant", "less": "Significantly slower", "none": "Not significant", "unknown": "One repeat"}
MANY, WHICH, CHANGE = "How many devices", "Which configuration", "If you may change"
ANSWERS = (MANY, WHICH, CHANGE)
UNKNOWN_STEP = "where the step goes was not recorded"


class Option(NamedTuple):
    """Something to try: its name, why or with which reservation, and what was measured with it."""

    name: str
    notes: str = ""
    measured: str = ""

    @property
    def title(self) -> str:
        """Its name with the notes."""
        return f"{self.name} ({self.notes})" if self.notes else self.name


class Part(NamedTuple):
    """A bottleneck in words, what was tried against it, what was not, and about how much that can gain."""

    kind: str
    evidence: str
    tried: list[Option]
    untried: list[Option]
    general: list[str]
    bound: str


class Detail(NamedTuple):
    """A configuration: facts, and the parts of its step with options."""

    name: str
    facts: str
    parts: list[Part]
    caveats: list[str]


class Tile(NamedTuple):
    """One of the numbers that a job is known by."""

    title: str
    value: str
    notes: str = ""


@dataclass(frozen=True)
class JobAdvice:
    """What is recommended for a job on one machine.

    Attributes
    ----------
    points
        Label and sentence, the answer first.
    more
        Further sentences of the same kinds, for which the first screen is too small.
    """

    name: str
    points: list[tuple[str, str]]
    more: list[tuple[str, str]]
    tiles: list[Tile]
    table: WordTable
    basis: str
    lost: list[str]
    details: list[Detail]
    step: str

    @property
    def answers(self) -> list[str]:
        """Sentences that answer what was compared."""
        found = [(label, text) for label, text in self.points if label in ANSWERS]
        known = [each for each in found if not each[1].startswith(NOT_KNOWN)] or found
        texts = [f"{label} {text}" if label == CHANGE else text for label, text in known]
        return [f"{each[:1].upper()}{each[1:]}." for each in texts]

    @property
    def rest(self) -> list[tuple[str, str]]:
        """The points that are no answers."""
        return [each for each in self.points if each[0] not in ANSWERS]


@dataclass(frozen=True)
class Recommendations:
    """What is recommended for each job, those with an answer first, and what holds for all of them."""

    jobs: list[JobAdvice]
    notes: list[str]

    @property
    def shown(self) -> list[JobAdvice]:
        """Jobs that are answered at once."""
        return self.jobs[:MOST_JOBS]


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


def advise(evidence: Evidence, demand: Demand | None = None) -> Recommendations:
    """Give what the measurements recommend, as objects of plain text, in part from files."""
    demand = demand or Demand()
    found = {id(each.report.configuration): each for each in recommendations(evidence)}
    tables = choices(evidence, demand)
    places = place_words([(job.machine, job.versions) for job in tables])
    jobs = [_job(*pair, found, demand) for pair in zip(tables, places, strict=True)]
    notes = []
    if not any(each.completed for each in evidence.configurations):
        notes.append("No run completed, so there is nothing to recommend.")
    if any(run.values.get("device") == "cpu" for run in evidence.runs):
        notes.append("Measurements on CPU processes say nothing about GPUs.")
    made_up = sum(run.synthetic for run in evidence.runs)
    if made_up:
        which = "All" if made_up == len(evidence.runs) else "Some"
        notes.append(f"{which} runs have synthetic timings: no machine takes these times.")
    runs = [sum(len(each.completed) for each in table.configurations) for table in tables]
    order = sorted(range(len(jobs)), key=lambda index: (not speedups(tables[index]), -runs[index]))
    return Recommendations([jobs[index] for index in order], notes)


def as_markdown(evidence: Evidence, demand: Demand | None = None, verbose: bool = True) -> str:
    """Give the recommendations as Markdown, the answers first; text from files is escaped."""
    found = advise(evidence, demand)
    return _template().render(found=found, verbose=verbose).rstrip() + "\n"


@cache
def _template() -> jinja2.Template:
    templates = jinja2.Environment(  # Markdown, which the filter `md` escapes
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {"md": for_markdown}
    return templates.get_template("recommendations.md.j2")


def _job(job: Choices, place: str, found: dict[int, Recommendation], demand: Demand) -> JobAdvice:
    own = [found[id(each)] for each in (*job.configurations, *job.lost)]
    base = found[id(_in_question(job))]
    asked = [
        ("Deadline" if demand.deadline_s else "The training", each)
        for each in (demanded(job, demand) if demand != Demand(goal=demand.goal) else [])
    ]
    many = [(MANY, how_many(job))] if job.configurations else []
    others = [(WHICH, each) for each in which(job, demand)]
    gains = changed(job, demand)
    changes = [(CHANGE, "; ".join(part)) for part in (gains[:MOST_CHANGES], gains[MOST_CHANGES:]) if part]
    kinds = [asked, many, others, changes] if speedups(job) else [asked, others, changes, many]
    points = [point for kind in kinds for point in kind[:1]]
    more = [point for kind in kinds for point in kind[1:]]
    step = _step(base)
    points += [("Largest part of the step", step)] if step else []
    points += [("Try next", each) for each in _next(job, base, demand)]
    doubts = _doubts(job)
    points += [("How sure", doubts)] if doubts else []
    return JobAdvice(
        name=f"{job.job}, on {place}" if place else job.job,
        points=points,
        more=more,
        tiles=_tiles(job, base),
        table=in_words(job, demand),
        basis=basis(job) if job.rows else "",
        lost=[f"{each.words()}: {lost_words(each)}" for each in job.lost],
        details=[_detail(each) for each in own],
        step=step,
    )


def _in_question(job: Choices) -> Configuration:
    """The configuration that advice is about: the fastest on several devices, else on one, else any."""
    fastest = min((row for row, _ in speedups(job)), key=lambda each: each.time_s.value, default=job.fastest)
    return fastest.configuration if fastest else (*job.configurations, *job.lost)[0]


def _step(base: Recommendation) -> str:
    lines = summary([base.report])
    on = counted(base.report.configuration["devices"], DEVICE_WORDS[base.report.configuration["device"]])
    return f"{on}: {lines[0]}" if lines else (UNKNOWN_STEP if base.report.configuration.completed else "")


def _next(job: Choices, base: Recommendation, demand: Demand) -> list[str]:
    """What to try, each with its reason, what was measured to help first."""
    lines = []
    if (demand.deadline_s or not speedups(job)) and (missing := missing_words(job)):
        lines.append(missing)
    configuration = base.report.configuration
    for bottleneck, advised in base.advised:
        part = _part(configuration, bottleneck, advised)
        helped = [
            option
            for each, option in zip([each for each in advised if each.tried], part.tried, strict=True)
            if any(verdict(tried.speed) == "more" for tried in each.tried)
        ]
        lines += [f"{each.title}: {each.measured}" for each in helped[:1]]
        names = [each.title for each in sorted(part.untried, key=lambda each: LEARNS_OTHERWISE in each.notes)]
        named = listed(names[:MOST_OPTIONS], "or") or "; ".join(part.general[:MOST_OPTIONS])
        if named:
            of = "the memory" if bottleneck.kind == "memory" else bottleneck.kind
            since = f"{percent(bottleneck.share)} of the {base.report.of} is {of}"
            if bottleneck.kind == "memory":
                since = "it needs too much memory"
            elif bottleneck.kind == "padding":
                since = f"{percent(bottleneck.share)} of the tokens are padding"
            lines.append(f"{named}, since {since}{f'; {part.bound}' if part.bound else ''}")
        if len(lines) >= MOST_NEXT:
            break
    return lines[:MOST_NEXT]


def _doubts(job: Choices) -> str:
    """What could change the answer: repeats, and what was the matter with the runs."""
    runs = [run for each in job.configurations for run in each.completed]
    if not runs:
        return ""
    repeats = sorted({len(each.completed) for each in job.configurations})
    said = [f"{repeats[0]} to {repeats[-1]} repeats" if len(repeats) > 1 else counted(repeats[0], "repeat")]
    said[0] += " of each configuration" if len(job.configurations) > 1 else ""
    counts = {kind: sum(notice(run.values) is not None for run in runs) for kind, notice in NOTICES.items()}
    kinds = sorted((kind for kind, count in counts.items() if count), key=lambda kind: -counts[kind])
    said += [f"{kind} in {counts[kind]} of {counted(len(runs), 'run')}" for kind in kinds[:MOST_DOUBTS]]
    if lost := sum(len(each.runs) for each in job.lost):
        said.append(f"{counted(lost, 'run')} of {counted(len(job.lost), 'configuration')} never completed")
    return "; ".join(said)


def _tiles(job: Choices, base: Recommendation) -> list[Tile]:
    """The best configuration, the speed-up, the largest part of the step, and how sure that is."""
    best = job.fastest
    if best is None:
        return []
    devices = counted(best.devices, DEVICE_WORDS[job.device])
    notes = "; ".join(
        filter(None, (job.recipe(best), f"{number(job.work / best.time_s.value)} {plural(2, job.unit)} per second"))
    )
    tiles, sure = [Tile("Fastest that was measured", devices, notes)], counted(best.time_s.repeats, "repeat")
    for row, ratio in speedups(job):
        if row.configuration is not base.report.configuration:
            continue
        first, _, rest = ratio.format().partition(" ")
        on = counted(row.devices, DEVICE_WORDS[job.device])
        efficient = f"{percent(ratio.value / row.devices)} efficient"
        tiles.append(Tile(f"Speed-up of {on} over 1", f"{first}×", f"{rest[1:-1]}; {efficient}"))
        sure = SURE[verdict(ratio)]
    if base.report.largest:
        share = percent(base.report.parts[base.report.largest])
        on = counted(base.report.configuration["devices"], DEVICE_WORDS[job.device])
        tiles.append(Tile("Largest part of the step", share, f"{base.report.largest}, on {on}"))
    return [*tiles, Tile("How sure", sure, _doubts(job))]


def _detail(recommendation: Recommendation) -> Detail:
    report = recommendation.report
    configuration = report.configuration
    facts = [f"{len(configuration.completed)} of {counted(len(configuration.runs), 'run')} completed"]
    if step_s := configuration.mean("iteration_time_s"):
        facts.append(f"{with_unit(step_s, SECONDS)} per step")
    facts.append(configuration.provenance.machine or "machine unknown")
    parts = [_part(configuration, *pair) for pair in recommendation.advised]
    return Detail(configuration.words(), ", ".join(facts), parts, report.caveats)


def _part(configuration: Configuration, bottleneck: Bottleneck, advised: Sequence[Advice]) -> Part:
    """What can be done about a bottleneck; options that can gain almost nothing are named only if they were tried."""
    is_worthwhile = bottleneck.gain is None or bottleneck.gain >= WORTHWHILE
    tried = [
        Option(*_named(each), "; ".join(_tried_words(each, one) for one in each.tried))
        for each in advised
        if each.tried
    ]
    untried = [Option(*_named(each)) for each in advised if not each.tried and is_worthwhile]
    general = _general(configuration, bottleneck) if is_worthwhile else []
    bound = "" if bottleneck.gain is None else f"about {bottleneck.gain:.2f} times as fast if it took no time"
    kind = bottleneck.kind[0].upper() + bottleneck.kind[1:]
    return Part(kind, bottleneck.evidence, tried, untried, general, bound)


def _named(each: Advice) -> tuple[str, str]:
    notes = each.option.description, LEARNS_OTHERWISE if each.learns_otherwise else ""
    return each.option.name, "; ".join(filter(None, notes))


def _general(configuration: Configuration, bottleneck: Bottleneck) -> list[str]:
    """What to change in a program whose options are its own."""
    if not configuration.workload.has_own_options:
        return []
    return [
        f"{option.description}{f' ({LEARNS_OTHERWISE})' if option.learns_otherwise else ''}"
        for option in options()[1][bottleneck.kind]
        if option.applies(configuration, bottleneck.pageable)
    ]


def _tried_words(each: Advice, tried: Tried) -> str:
    open_changes = [name for name, change in each.option.changes.items() if change in (HIGHER, LOWER, DIFFERENT)]
    values = f" with {tried.configuration.naming(open_changes)}" if open_changes else ""
    speed, memory = effect(tried.speed), effect(tried.memory, ("more", "less"))
    return f"{speed}{values}" + (f", peak memory: {memory}" if tried.memory.value is not None else "")
