"""Recommendations: for each job how many devices, the largest part of its step, what to try next, and how sure that is.

`advise` returns them as records of text. One template makes recommendations.md of these records, another the report.
Parameters have the names of the configuration file, so that a recommendation can be copied into it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from multicard.answers import ablation
from multicard.answers.ablation import ABLATED, PartCost
from multicard.answers.answer import COSTS, HOW_SURE, NEXT, TRIED, WHERE, Answer
from multicard.answers.bottlenecks.bottlenecks import BottleneckReport, report_of, summary
from multicard.answers.bottlenecks.situation import FactsByConfiguration, facts_of, with_steps_of
from multicard.answers.choice.advice import BottleneckAdvice, JobAdvice, Recommendations
from multicard.answers.choice.answers import gains_by_changes, how_many, speedups, which_configuration
from multicard.answers.choice.candidates import Candidate, Kind, against_exchange, candidates
from multicard.answers.choice.choices import Choices, choices, outcomes_of
from multicard.answers.choice.combination import Combination, combination
from multicard.answers.choice.next_steps import caveats, part_of
from multicard.answers.choice.overview import tiles, word_table
from multicard.answers.choice.paying_devices import after_fewer_devices, fewer_devices
from multicard.answers.diagnoses.causes import causes_of
from multicard.answers.diagnoses.host.host_work import grown_work
from multicard.answers.diagnoses.host.periods import words_of_parts
from multicard.answers.diagnoses.user_code.code_lines import grown_places
from multicard.answers.scaling.growth import growths
from multicard.core.grouping import grouped
from multicard.core.templates import markdown_template
from multicard.core.values import Row
from multicard.results.configuration import Configuration
from multicard.results.per_run import trace_shares
from multicard.results.provenance import distinguishing_words
from multicard.results.results import Results

# Most answers for a job on what to try next, and on what parts of its step cost.
MOST_NEXT = 2
MOST_COSTS = 4


@dataclass(frozen=True)
class Whole:
    """What all scenarios have measured, for advice on one of them. Made by `whole_of`."""

    configurations: Sequence[Configuration]
    combinations: Sequence[Combination]


def whole_of(results: Results) -> Whole:
    """Return what results have measured. `results`: those of all scenarios."""
    return _whole(results, choices(results))


def _whole(results: Results, tables: Sequence[Choices]) -> Whole:
    """Return what results have measured; `tables`: their choices."""
    found = [combination(job) for job in tables]
    return Whole(results.configurations(), [combined for combined in found if combined is not None])


def advise(results: Results, whole: Whole | None = None) -> Recommendations:
    """Return the recommendations for all jobs. Some texts are from files, so templates have to escape them.

    `whole`: what was measured by all scenarios, if `results` are those of one; options that another scenario has tried
    are then shown with what they gained there.
    """
    traces = trace_shares(results).to_dict("index")
    facts = facts_of(results)
    costs = ablation.costs(results)
    tables = choices(results)
    whole = whole or _whole(results, tables)
    tables.sort(key=lambda job: (not speedups(job), -_completed_runs(job)))
    places = distinguishing_words([(job.machine, job.versions) for job in tables])
    jobs = []
    for job, place in zip(tables, places, strict=True):
        keys = {configuration.key for configuration in job.configurations}
        about = _in_question(job)
        jobs.append(
            _job_advice(
                job,
                name=f"{job.job}, on {place}" if place else job.job,
                report=report_of(about, traces, words_of_parts(about, results)),
                results=results,
                whole=whole,
                facts=facts,
                costs=[cost for cost in costs if cost.configuration.key in keys],
            )
        )
    return Recommendations(jobs, _notes(results))


def as_markdown(results: Results, verbose: bool = True) -> str:
    """Return the recommendations as Markdown, the answers first; text from files is escaped."""
    template = markdown_template(Path(__file__).with_name("recommendations.md.j2"))
    return template.render(found=advise(results), verbose=verbose).rstrip() + "\n"


def _completed_runs(job: Choices) -> int:
    return sum(len(configuration.completed) for configuration in job.configurations)


def _in_question(job: Choices) -> Configuration:
    """Return the configuration that advice on the step is about.

    It is that of the fastest choice with a speed-up, else that of the fastest choice that trains like the reference.
    For a job without choices it is the configuration on the most devices, preferably one with a completed run.
    """
    scaled = [speedup.choice for speedup in speedups(job)]
    fastest = min(scaled, key=lambda row: row.time_s.value, default=job.fastest)
    if fastest is not None:
        return fastest.configuration
    return max(job.configurations or job.lost, key=lambda configuration: configuration["devices"])


def _notes(results: Results) -> list[str]:
    """Return the notes that hold for all jobs."""
    notes = []
    if not any(configuration.completed for configuration in results.configurations()):
        notes.append("No run completed, so there is nothing to recommend.")
    if any(run.values.get("device") == "cpu" for run in results.runs):
        notes.append("Measurements on CPU processes say nothing about GPUs.")
    synthetic = sum(run.provenance.is_synthetic for run in results.runs)
    if synthetic:
        which = "All" if synthetic == len(results.runs) else "Some"
        notes.append(f"{which} runs have synthetic timings: no machine takes these times.")
    return notes


def _job_advice(
    job: Choices,
    name: str,
    report: BottleneckReport,
    results: Results,
    whole: Whole,
    facts: FactsByConfiguration,
    costs: Sequence[PartCost],
) -> JobAdvice:
    """Return the advice for a job.

    `report`: bottlenecks of the configuration that advice on the step is about. `results`, `facts`: those of all jobs.
    `whole`: what all scenarios have measured.
    `costs`: what parts of the step cost in configurations of this job.
    """
    about = report.configuration
    measured, facts = whole.configurations, with_steps_of(about, facts, results)
    keys = {configuration.key for configuration in job.configurations}
    combined = next((combined for combined in whole.combinations if combined.fastest.key in keys), None)
    # What the combination changes is told with it, not among other options.
    told = combined.changes if combined is not None and combined.fastest.key == about.key else {}
    own_costs = {cost.part: cost for cost in costs if cost.configuration.key == about.key}
    report = replace(report, bottlenecks=ablation.with_hidden_parts(own_costs, report))
    parts = [
        part_of(bottleneck, about, measured, own_costs.get(ABLATED.get(bottleneck.name, "")), facts, told)
        for bottleneck in report.bottlenecks
    ]
    trials = candidates(report, parts, causes_of(about, results))
    fewer = fewer_devices(job)
    if fewer is not None:
        exchange = [] if own_costs else against_exchange(report, measured, facts)
        trials = after_fewer_devices(job, fewer, about["devices"], trials, exchange)
    if combined is not None:
        # A measured gain comes before options that are only estimated.
        first = 0 if fewer is None else 1
        trials = [*trials[:first], Candidate(combined.sentence, Kind.COMBINATION), *trials[first:]]
    most_trials = MOST_NEXT + (fewer is not None) + (combined is not None)
    doubts = caveats(job)
    grew = _growths(job, results, doubts)
    others = [
        *_cost_answers(costs),
        *_step_answer(job, report),
        *[Answer(NEXT, candidate.sentence) for candidate in trials[:most_trials]],
        *_tried_answer(parts),
    ]
    if doubts:
        others.append(Answer(HOW_SURE, "; ".join(doubts)))
    return JobAdvice(
        name=name,
        about=about.words(),
        compared=_compared(job, grew, doubts),
        others=tuple(others),
        grew=next((replace(grown.answer, sentence=f"{grown.doubt}{grown.answer.sentence}") for grown in grew), None),
        first_trial=_first_trial(trials),
        combination=combined,
        tiles=tiles(job, report, own_costs, "; ".join(caveats(job, profiled=False))),
        table=word_table(job),
        lost=[f"{configuration.words()}: {outcomes_of(configuration)}" for configuration in job.lost],
        parts=parts,
    )


def _first_trial(trials: Sequence[Candidate]) -> Answer | None:
    """Return what to try first; after fewer devices also the next candidate. None if there is nothing to try."""
    if not trials:
        return None
    count = 2 if trials[0].kind is Kind.DEVICES else 1
    return Answer(NEXT, "; or ".join(candidate.sentence for candidate in trials[:count]))


def _tried_answer(parts: Sequence[BottleneckAdvice]) -> list[Answer]:
    """Return the one answer on what options gave that runs have tried; none if none was tried."""
    results = list(dict.fromkeys(words for part in parts for words in part.tried))
    return [Answer(TRIED, "; ".join(results))] if results else []


class _Grown(NamedTuple):
    """What grew in a step on several devices."""

    answer: Answer
    doubt: str  # `Growth.words_of_doubt`


def _compared(job: Choices, grew: Sequence[_Grown], doubts: tuple[str, ...]) -> tuple[tuple[Answer, ...], ...]:
    """Return the answers to each question that comparing choices answers.

    How many devices to use is the first question if there are speed-ups, else the last one. What grew in their steps
    is the next one, if anything did.
    """
    how = (how_many(job, doubts),) if job.configurations else ()
    shown = tuple(grown.answer for grown in grew if not grown.doubt)
    which = tuple(which_configuration(job, doubts))
    changes = tuple(gains_by_changes(job, doubts))
    return (how, shown, which, changes) if speedups(job) else (which, changes, how)


def _growths(job: Choices, results: Results, doubts: tuple[str, ...]) -> list[_Grown]:
    """Return what grew in the step of the fastest choice on each number of devices, the fastest of all first."""
    of_configurations = growths(job.configurations, job.others)
    grown = []
    for speedup in sorted(speedups(job), key=lambda speedup: speedup.ratio.value, reverse=True):
        growth = of_configurations.get(speedup.choice.key)
        if growth is not None:
            work = grown_work(growth.configuration, growth.baseline, growth.work_share, results)
            places = grown_places(growth.configuration, growth.baseline, growth.work_share, results)
            grown.append(_Grown(growth.answer(work, places, doubts), growth.words_of_doubt))
    return grown


def _cost_answers(costs: Sequence[PartCost]) -> list[Answer]:
    """Return what parts of the step cost: an answer for each of the smallest `MOST_COSTS` numbers of devices."""
    lines = ablation.cost_lines(costs)[:MOST_COSTS]
    rows = ablation.as_table(costs).to_dict("records")
    of_lines = grouped(rows, lambda row: row["devices"])
    counts = sorted(of_lines)
    return [
        Answer(COSTS, line, tuple(of_lines[devices]), (), "ablation")
        for line, devices in zip(lines, counts, strict=False)
    ]


def _step_answer(job: Choices, report: BottleneckReport) -> list[Answer]:
    """Return the one answer on where the step goes; none if no run of the configuration completed."""
    about = report.configuration
    text = summary(report) or ("where the step goes was not recorded" if about.completed else "")
    if not text:
        return []
    rows: list[Row] = [{"part": part, "share": share} for part, share in report.parts.items()]
    setting = job.setting(about)
    where = f"{job.on(about['devices'])} ({setting})" if setting else job.on(about["devices"])
    return [Answer(WHERE, f"{where}: {text}", tuple(rows), (), "utilization")]
