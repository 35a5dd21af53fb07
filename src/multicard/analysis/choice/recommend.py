"""Recommendations: for each job how many devices, the largest part of its step, what to try next, and how sure that is.

`advise` gives them as objects of plain words; recommendations.md and the report are made of these by a template each.
Parameters have the names of the configuration file, so that a recommendation can be copied into it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import jinja2

from multicard.analysis import ablation
from multicard.analysis.ablation import ABLATED, WORTHWHILE, Cost
from multicard.analysis.bottlenecks.bottlenecks import Bottleneck, BottleneckReport, report_of, summary
from multicard.analysis.bottlenecks.options import untried
from multicard.analysis.choice.choice import Choice
from multicard.analysis.choice.choices import Choices, choices, outcomes_of
from multicard.analysis.choice.learning import changes_from, words_of
from multicard.analysis.evidence import Configuration, Evidence, place_words
from multicard.analysis.runs.notices import NOTICES, told
from multicard.analysis.runs.per_run import trace_shares
from multicard.analysis.scaling.speedup import implausible
from multicard.core.text import code_in_markdown, counted, for_markdown, listed, plural
from multicard.core.units import BYTES, UNKNOWN, number, percent, with_unit
from multicard.experiment.workload import BATCH
from multicard.stats.corrections import corrected
from multicard.stats.interval import EQUAL_REPEATS, Interval, verdict
from multicard.stats.selection import chosen_among

MOST_JOBS = 2  # that are answered at once
MOST_NEXT = 2
MOST_CHANGES = 3
MOST_OPTIONS = 3
MOST_DOUBTS = 3
MOST_COSTS = 4
SURE = {"more": "Significant", "less": "Significantly slower", "none": "Not significant", "unknown": "No interval"}
MANY, WHICH, CHANGE = "How many devices", "Which configuration", "If you may change"
NOT_KNOWN = "not known"
NO_THROUGHPUT = f"{NOT_KNOWN}: no completed run says its throughput"
HOURS = {"cuda": "GPU-hours", "cpu": "process-hours"}
FASTER = "× as fast"


class Part(NamedTuple):
    """A bottleneck in words, and in Markdown what was not tried against it."""

    kind: str
    evidence: str
    options: list[str]
    bound: str
    measured: str = ""  # what it costs, if that was measured


class Tile(NamedTuple):
    """One of the numbers that a job is known by."""

    title: str
    value: str
    notes: str = ""


class WordTable(NamedTuple):
    """Headings, and rows of words."""

    headings: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class JobAdvice:
    """What is recommended for a job on one machine."""

    name: str
    points: list[tuple[str, str]]  # label and sentence, the answer first
    more: list[tuple[str, str]]  # further ones, for which the first screen is too small
    tiles: list[Tile]
    table: WordTable  # all choices
    lost: list[str]  # configurations of which no run completed
    about: str  # the configuration that advice is about
    parts: list[Part]  # the bottlenecks of its step
    step: str  # the largest part of that, in a sentence

    @property
    def answers(self) -> list[str]:
        """Sentences that answer what was compared; where there is nothing to compare, where the step goes."""
        found = [(label, text) for label, text in self.points if label in (MANY, WHICH, CHANGE)]
        if self.step and all(text == NO_THROUGHPUT for _, text in found):
            return [f"{self.step}."]
        known = [each for each in found if not each[1].startswith(NOT_KNOWN)] or found
        texts = [f"{label} {text}" if label == CHANGE else text for label, text in known]
        return [f"{each[:1].upper()}{each[1:]}." for each in texts]

    @property
    def rest(self) -> list[tuple[str, str]]:
        """The points that are no answers."""
        return [each for each in self.points if each[0] not in (MANY, WHICH, CHANGE)]


@dataclass(frozen=True)
class Recommendations:
    """What is recommended for each job, those with an answer first, and what holds for all of them."""

    jobs: list[JobAdvice]
    notes: list[str]

    @property
    def shown(self) -> list[JobAdvice]:
        """Jobs that are answered at once."""
        return self.jobs[:MOST_JOBS]


def advise(evidence: Evidence) -> Recommendations:
    """Give what the measurements recommend, as objects of plain text, in part from files."""
    traces = evidence.per_run(trace_shares).to_dict("index")
    tables, costs, not_measured = choices(evidence), ablation.costs(evidence), ablation.not_measured(evidence)
    places = place_words([(job.machine, job.versions) for job in tables])
    jobs = []
    for job, place in zip(tables, places, strict=True):
        report = report_of(_in_question(job), traces)
        own = [each for each in costs if each.configuration in job.configurations]
        unknown = [text for one, text in not_measured if one in job.configurations]
        jobs.append(_job(job, f"{job.job}, on {place}" if place else job.job, report, evidence, own, unknown))
    notes = []
    if not any(each.completed for each in evidence.configurations):
        notes.append("No run completed, so there is nothing to recommend.")
    if any(run.values.get("device") == "cpu" for run in evidence.runs):
        notes.append("Measurements on CPU processes say nothing about GPUs.")
    if made_up := sum(run.synthetic for run in evidence.runs):
        which = "All" if made_up == len(evidence.runs) else "Some"
        notes.append(f"{which} runs have synthetic timings: no machine takes these times.")
    runs = [sum(len(each.completed) for each in table.configurations) for table in tables]
    order = sorted(range(len(jobs)), key=lambda index: (not speedups(tables[index]), -runs[index]))
    return Recommendations([jobs[index] for index in order], notes)


def as_markdown(evidence: Evidence, verbose: bool = True) -> str:
    """Give the recommendations as Markdown, the answers first; text from files is escaped."""
    return _template().render(found=advise(evidence), verbose=verbose).rstrip() + "\n"


@cache
def _template() -> jinja2.Template:
    templates = jinja2.Environment(  # Markdown, which the filters `md` and `code` escape
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {"md": for_markdown, "code": code_in_markdown}
    return templates.get_template("recommendations.md.j2")


def _in_question(job: Choices) -> Configuration:
    """The configuration that advice is about: the fastest on several devices, else on one, else any."""
    fastest = min((row for row, _ in speedups(job)), key=lambda each: each.time_s.value, default=job.fastest)
    return fastest.configuration if fastest else (*job.configurations, *job.lost)[0]


def _job(
    job: Choices, name: str, report: BottleneckReport, evidence: Evidence, costs: list[Cost], not_measured: list[str]
) -> JobAdvice:
    about = report.configuration
    measured = {each.part: each for each in costs if each.configuration is about}
    report = replace(report, bottlenecks=ablation.with_unseen(measured, report))
    parts = [_part(each, about, evidence, measured.get(ABLATED.get(each.kind, ""))) for each in report.bottlenecks]
    step = summary(report) or ("where the step goes was not recorded" if about.completed else "")
    step = f"{job.on(about['devices'])}: {step}" if step else ""
    many = [(MANY, _how_many(job))] if job.configurations else []
    which = [(WHICH, each) for each in _which(job)]
    gains = _gains(job)
    changes = [(CHANGE, _joined(some)) for some in (gains[:MOST_CHANGES], gains[MOST_CHANGES:]) if some]
    kinds = [many, which, changes] if speedups(job) else [which, changes, many]
    points = [point for kind in kinds for point in kind[:1]]
    points += [("What parts cost, measured", each) for each in ablation.lines(costs)[:MOST_COSTS]]
    points += [("The host's work", each) for each in not_measured[:MOST_COSTS]]
    points += [("Where the step goes", step)] if step else []
    points += [("Try next", each) for each in _next(report, parts)]
    doubt = doubts(job)
    points += [("How sure", doubt)] if doubt else []
    return JobAdvice(
        name=name,
        points=points,
        more=[point for kind in kinds for point in kind[1:]],
        tiles=_tiles(job, report, measured, doubt),
        table=_in_words(job),
        lost=[f"{each.words()}: {outcomes_of(each)}" for each in job.lost],
        about=about.words(),
        parts=parts,
        step=step,
    )


# The answers ----------------------------------------------------------------------------------------------------------


def speedups(job: Choices) -> list[tuple[Choice, Interval]]:
    """The fastest row of each number of devices that has a speed-up and learns as the reference does, with that.

    Intervals and p-values allow for its own values having chosen it among those on as many devices
    (`selection.chosen_among`). The p-values are corrected for the number of numbers of devices as well.
    """
    alike = [each for each in job.rows if each.trains_like_reference and each.speedup and each.devices > 1]
    fastest = {each.devices: each for each in sorted(alike, key=lambda each: -each.time_s.value)}
    rows = [fastest[count] for count in sorted(fastest)]
    rivals = Counter(each.devices for each in alike)
    ratios = [chosen_among(each.speedup, rivals[each.devices]) for each in rows if each.speedup]
    return list(zip(rows, corrected(ratios), strict=True))


def of_many(job: Choices, devices: int) -> str:
    """Return among how many configurations the fastest on so many devices was chosen, in words; empty of one."""
    count = sum(bool(each.trains_like_reference and each.speedup and each.devices == devices) for each in job.rows)
    return f"the best of {count}" if count > 1 else ""


def _how_many(job: Choices) -> str:
    """How much faster each number of devices is than one, the fastest first; or why that is not known."""
    told = []
    for row, ratio in sorted(speedups(job), key=lambda pair: -pair[1].value):
        one = "1 GPU" if job.device == "cuda" else "1"
        of = job.on(row.devices) + (" (weak scaling)" if BATCH in row.changes else "")
        hours = f"{number(row.devices / ratio.value)}× the {HOURS[job.device]}"
        notes = (of_many(job, row.devices), _doubt(ratio) or hours, implausible(ratio.value, row.devices))
        told.append((f"{of}: {ratio.format(unit=f'{FASTER} as {one}')}", ", ".join(filter(None, notes))))
    counts = {each.devices for each in job.rows}
    if told:
        return _joined(told)
    if not counts:
        return NO_THROUGHPUT
    if len(counts) == 1:
        [only] = counts
        return f"{NOT_KNOWN}: only {job.on(only)} {'was' if only == 1 else 'were'} measured"
    return f"{NOT_KNOWN}: no run on one device to compare with"


def _which(job: Choices) -> list[str]:
    """The fastest on each number of devices on which several configurations of a training were measured, most first."""
    lines = []
    for best in sorted(job.rows, key=lambda each: (not each.trains_like_reference, -each.devices)):
        rivals = [
            each for each in job.rows if each.ratio and (each.devices, each.changes) == (best.devices, best.changes)
        ]
        if best.ratio is not None or not rivals:
            continue
        where = job.on(best.devices) + (f" ({words_of(best.changes)})" if best.changes else "")
        nearest = min(rivals, key=lambda each: (each.is_worse, abs(each.ratio.value - 1)))
        more = f" and {len(rivals) - 1} more" if len(rivals) > 1 else ""
        rate = best.rate.format(unit=f" {plural(2, job.unit)} per second")
        lines.append(
            f"fastest of {best.rivals} on {where}: {job.recipe(best)}, {rate}; {_standing(nearest)}: "
            f"{job.recipe(nearest)}, {nearest.ratio.format(unit=FASTER)}{more}"
        )
    return lines


def _gains(job: Choices) -> list[tuple[str, str]]:
    """What a change of what is learned gains over the fastest without it, the most first."""
    rows = [each for each in job.rows if each.gain is not None]
    told = []
    for row in sorted(rows, key=lambda each: -each.gain.ratio.value):
        what = words_of(changes_from(row.gain.instead_of, row.learning))
        told.append((f"{what}: {row.gain.ratio.format(unit=FASTER)} on {job.on(row.devices)}", _doubt(row.gain.ratio)))
    return told


def _joined(told: Sequence[tuple[str, str]]) -> str:
    """Results, each with its doubt; one that all share is told once, at the end.

    >>> _joined([("2 GPUs: 1.1×", "it may be noise"), ("4 GPUs: 1.2×", "it may be noise")])
    '2 GPUs: 1.1×; 4 GPUs: 1.2×; each: it may be noise'
    """
    texts, doubts = [text for text, _ in told], {doubt for _, doubt in told}
    if len(told) > 1 and len(doubts) == 1:
        return "; ".join([*texts, *(f"each: {doubt}" for doubt in doubts if doubt)])
    return "; ".join(", ".join(filter(None, each)) for each in told)


def _doubt(ratio: Interval) -> str:
    """Why a ratio shows no difference, by its corrected p-value; empty where it does.

    >>> _doubt(Interval(0.98, 0.96, 0.99, 2, p_value=0.2)), _doubt(Interval(1.01, 0.99, 1.02, 2, p_value=0.4))
    ('not significant among so many comparisons', 'no significant difference')
    """
    if verdict(ratio) == "unknown":
        return "one repeat, so it may be noise" if ratio.repeats < 2 else EQUAL_REPEATS
    if verdict(ratio) != "none":
        return ""
    return "no significant difference" if ratio.low <= 1 <= ratio.high else "not significant among so many comparisons"


# What to try, and how sure it is --------------------------------------------------------------------------------------


def _part(bottleneck: Bottleneck, about: Configuration, evidence: Evidence, cost: Cost | None) -> Part:
    """What can be done about a bottleneck; nothing where that can gain almost nothing.

    `cost`: what it was measured to cost. Where that shows a cost, it counts in place of the share of the step; where
    one repeat or a wide interval leaves it open, the share does.
    """
    gain, measured = bottleneck.gain, ""
    if cost is not None and cost.is_shown:
        gain, measured = cost.ratio.value, f"{cost.sentence}, measured"
    elif cost is not None and cost.is_excluded:
        gain = 1.0
    options = untried(about, bottleneck, evidence.configurations) if gain is None or gain >= WORTHWHILE else []
    bound = "" if gain is None else f"about {gain:.2f} times as fast if it took no time"
    if cost is not None:
        bound = f"measured: {cost.words()}"
    return Part(bottleneck.kind.capitalize(), bottleneck.evidence, options, bound, measured)


def _next(report: BottleneckReport, parts: list[Part]) -> list[str]:
    """What to try, each with its reason."""
    lines = []
    for bottleneck, part in zip(report.bottlenecks, parts, strict=True):
        if part.options:
            since = {
                "memory": "it needs too much memory",
                "padding": f"{percent(bottleneck.share)} of the tokens are padding",
            }.get(bottleneck.kind, f"{percent(bottleneck.share)} of the {report.of} is {bottleneck.kind}")
            named = listed(part.options[:MOST_OPTIONS], "or")
            reason = part.measured or f"{since}{f'; {part.bound}' if part.bound else ''}"
            lines.append(f"{named}, since {reason}")
    return lines[:MOST_NEXT]


def doubts(job: Choices) -> str:
    """What could change the answer: repeats, and what was the matter with the runs."""
    runs = [run for each in job.configurations for run in each.completed]
    if not runs:
        return ""
    repeats = sorted({len(each.completed) for each in job.configurations})
    said = [f"{repeats[0]} to {repeats[-1]} repeats" if len(repeats) > 1 else counted(repeats[0], "repeat")]
    said[0] += " of each configuration" if len(job.configurations) > 1 else ""
    counts = Counter(kind for run in runs for kind in told(run.values))
    order = sorted(counts, key=lambda kind: (-counts[kind], list(NOTICES).index(kind)))
    said += [f"{kind} in {counts[kind]} of {counted(len(runs), 'run')}" for kind in order[:MOST_DOUBTS]]
    if lost := sum(len(each.runs) for each in job.lost):
        said.append(f"{counted(lost, 'run')} of {counted(len(job.lost), 'configuration')} never completed")
    return "; ".join(said)


def _tiles(job: Choices, report: BottleneckReport, measured: Mapping[str, Cost], doubts: str) -> list[Tile]:
    """The fastest configuration, the speed-up, what costs most of the step, and how sure that is."""
    best = job.fastest
    if best is None:
        return []
    rate = f"{number(best.rate.value)} {plural(2, job.unit)} per second"
    notes = "; ".join(filter(None, (job.recipe(best), rate)))
    is_fastest = best.rate.value == max(row.rate.value for row in job.rows)
    title = "Fastest that was measured" if is_fastest else "Fastest of the same training"
    tiles, sure = [Tile(title, job.on(best.devices), notes)], counted(best.rate.repeats, "repeat")
    for row, ratio in speedups(job):
        if row.configuration is report.configuration:
            value, _, rest = ratio.format().partition(" ")
            efficiency = implausible(ratio.value, row.devices) or f"{percent(ratio.value / row.devices)} efficient"
            notes = "; ".join(filter(None, (rest[1:-1], of_many(job, row.devices), efficiency)))
            tiles.append(Tile(f"Speed-up of {job.on(row.devices)} over 1", f"{value}×", notes))
            sure = SURE[verdict(ratio)]
    on = job.on(report.configuration["devices"])
    if cost := ablation.of_largest(measured, report):
        value, notes = percent(cost.share.value), f"without it {cost.ratio.format(unit='×')}, on {on}"
        tiles.append(Tile(f"Cost of {cost.name}, measured", value, notes))
    elif report.largest:
        share = percent(report.parts[report.largest])
        tiles.append(Tile("Largest part of the step", share, f"{report.largest}, on {on}"))
    return [*tiles, Tile("How sure", sure, doubts)]


def _in_words(job: Choices) -> WordTable:
    """All choices for a person, without empty columns."""
    rows = job.rows
    columns = {
        "Devices": [job.on(each.devices) for each in rows],
        "Recipe": [job.recipe(each) for each in rows],
        "Changes": [words_of(each.changes) for each in rows],
        f"{plural(2, job.unit).capitalize()} per second": [each.rate.format() for each in rows],
        "Speed-up": [each.speedup.format() if each.speedup and each.devices > 1 else "" for each in rows],
        "Memory per device": [with_unit(each.memory_bytes, BYTES) if each.memory_bytes else "" for each in rows],
        "Standing": [_standing(each) for each in rows],
    }
    shown = {heading: cells for heading, cells in columns.items() if any(cells)}
    return WordTable(list(shown), [[cell or UNKNOWN for cell in row] for row in zip(*shown.values(), strict=True)])


def _standing(row: Choice) -> str:
    """Whether a choice is shown to be slower than its fastest rival."""
    if row.ratio is None:
        return f"fastest of {row.rivals}" if row.rivals > 1 else ""
    if row.is_worse:
        return "slower"
    if row.ratio.p_value is None:
        return f"{'one repeat' if row.ratio.repeats < 2 else 'equal repeats'}, so not compared"
    return f"not significantly slower{' among so many comparisons' if row.ratio.high < 1 else ''}"
