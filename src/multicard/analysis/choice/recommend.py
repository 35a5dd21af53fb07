"""Recommendations: for each job how many devices, the largest part of its step, what to try next, and how sure that is.

`advise` returns them as records of text. One template makes recommendations.md of these records, another the report.
Parameters have the names of the configuration file, so that a recommendation can be copied into it.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from multicard.analysis import ablation
from multicard.analysis.ablation import ABLATED, PartCost
from multicard.analysis.answer import COSTS, HOST_WORK, HOW_SURE, NEXT, WHERE, Answer
from multicard.analysis.bottlenecks.bottlenecks import BottleneckReport, report_of, summary
from multicard.analysis.choice.advice import JobAdvice, Recommendations
from multicard.analysis.choice.answers import gains_by_changes, how_many, speedups, which_configuration
from multicard.analysis.choice.choices import Choices, choices, outcomes_of
from multicard.analysis.choice.next_steps import caveats, part_of, trial
from multicard.analysis.choice.overview import tiles, word_table
from multicard.analysis.runs.per_run import trace_shares
from multicard.core.grouping import grouped
from multicard.core.templates import markdown_template
from multicard.core.values import Row
from multicard.results.configuration import Configuration
from multicard.results.provenance import distinguishing_words
from multicard.results.results import Results

# Most answers for a job on what to try next, and on what parts of its step cost.
MOST_NEXT = 2
MOST_COSTS = 4


def advise(results: Results) -> Recommendations:
    """Return the recommendations for all jobs. Some texts are from files, so templates have to escape them."""
    traces = trace_shares(results).to_dict("index")
    costs, not_measured = ablation.costs(results), ablation.not_measured(results)
    tables = sorted(choices(results), key=lambda job: (not speedups(job), -_completed_runs(job)))
    places = distinguishing_words([(job.machine, job.versions) for job in tables])
    jobs = []
    for job, place in zip(tables, places, strict=True):
        keys = {configuration.key for configuration in job.configurations}
        jobs.append(
            _job_advice(
                job,
                name=f"{job.job}, on {place}" if place else job.job,
                report=report_of(_in_question(job), traces),
                measured=results.configurations(),
                costs=[cost for cost in costs if cost.configuration.key in keys],
                not_measured=[text for configuration, text in not_measured if configuration.key in keys],
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
    For a job without choices it is the first configuration, preferably one with a completed run.
    """
    scaled = [speedup.choice for speedup in speedups(job)]
    fastest = min(scaled, key=lambda row: row.time_s.value, default=job.fastest)
    return fastest.configuration if fastest else (*job.configurations, *job.lost)[0]


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
    measured: Sequence[Configuration],
    costs: Sequence[PartCost],
    not_measured: Sequence[str],
) -> JobAdvice:
    """Return the advice for a job.

    `report`: bottlenecks of the configuration that advice on the step is about. `measured`: all configurations that
    ran, of any job. `costs`: what parts of the step cost in configurations of this job. `not_measured`: lines on
    configurations of this job for which that was not measured, with the reason.
    """
    about = report.configuration
    own_costs = {cost.part: cost for cost in costs if cost.configuration.key == about.key}
    report = replace(report, bottlenecks=ablation.with_hidden_parts(own_costs, report))
    parts = [
        part_of(bottleneck, about, measured, own_costs.get(ABLATED.get(bottleneck.name, "")))
        for bottleneck in report.bottlenecks
    ]
    trials = [trial(bottleneck, part, report.whole) for bottleneck, part in zip(report.bottlenecks, parts, strict=True)]
    doubts = caveats(job)
    others = [
        *_cost_answers(costs),
        *(Answer(HOST_WORK, text) for text in not_measured[:MOST_COSTS]),
        *_step_answer(job, report),
        *[Answer(NEXT, text) for text in trials if text][:MOST_NEXT],
    ]
    if doubts:
        others.append(Answer(HOW_SURE, "; ".join(doubts)))
    return JobAdvice(
        name=name,
        about=about.words(),
        compared=_compared(job, doubts),
        others=tuple(others),
        tiles=tiles(job, report, own_costs, "; ".join(doubts)),
        table=word_table(job),
        lost=[f"{configuration.words()}: {outcomes_of(configuration)}" for configuration in job.lost],
        parts=parts,
    )


def _compared(job: Choices, doubts: tuple[str, ...]) -> tuple[tuple[Answer, ...], ...]:
    """Return the answers to each question that comparing choices answers.

    How many devices to use is the first question if there are speed-ups, else the last one.
    """
    how = (how_many(job, doubts),) if job.configurations else ()
    which = tuple(which_configuration(job, doubts))
    changes = tuple(gains_by_changes(job, doubts))
    return (how, which, changes) if speedups(job) else (which, changes, how)


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
    return [Answer(WHERE, f"{job.on(about['devices'])}: {text}", tuple(rows), (), "utilization")]
