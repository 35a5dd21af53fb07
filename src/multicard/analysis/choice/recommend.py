"""Recommendations: for each job how many devices, the largest part of its step, what to try next, and how sure that is.

`advise` gives them as records of plain words; recommendations.md and the report are made of these by a template each.
Parameters have the names of the configuration file, so that a recommendation can be copied into it.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from multicard.analysis import ablation
from multicard.analysis.ablation import ABLATED, PartCost
from multicard.analysis.bottlenecks.bottlenecks import BottleneckReport, report_of, summary
from multicard.analysis.choice.advice import JobAdvice, Recommendations
from multicard.analysis.choice.answers import gains, how_many, joined, speedups, which_configuration
from multicard.analysis.choice.choices import Choices, choices, outcomes_of
from multicard.analysis.choice.next_steps import doubts, part_of, trial
from multicard.analysis.choice.overview import tiles, word_table
from multicard.analysis.evidence import Configuration, Evidence, place_words
from multicard.analysis.runs.per_run import trace_shares
from multicard.core.templates import markdown_template

MOST_NEXT = 2
MOST_CHANGES = 3  # in the first sentence about changes; the others make another one
MOST_COSTS = 4


def advise(evidence: Evidence) -> Recommendations:
    """Return what the measurements recommend, in plain text that is in part from files."""
    traces = evidence.per_run(trace_shares).to_dict("index")
    costs, not_measured = ablation.costs(evidence), ablation.not_measured(evidence)
    tables = sorted(choices(evidence), key=lambda job: (not speedups(job), -_completed_runs(job)))
    places = place_words([(job.machine, job.versions) for job in tables])
    jobs = []
    for job, place in zip(tables, places, strict=True):
        keys = {configuration.key for configuration in job.configurations}
        jobs.append(
            _job_advice(
                job,
                name=f"{job.job}, on {place}" if place else job.job,
                report=report_of(_in_question(job), traces),
                measured=evidence.configurations,
                costs=[cost for cost in costs if cost.configuration.key in keys],
                not_measured=[text for configuration, text in not_measured if configuration.key in keys],
            )
        )
    return Recommendations(jobs, _notes(evidence))


def as_markdown(evidence: Evidence, verbose: bool = True) -> str:
    """Return the recommendations as Markdown, the answers first; text from files is escaped."""
    template = markdown_template(Path(__file__).with_name("recommendations.md.j2"))
    return template.render(found=advise(evidence), verbose=verbose).rstrip() + "\n"


def _completed_runs(job: Choices) -> int:
    return sum(len(configuration.completed) for configuration in job.configurations)


def _in_question(job: Choices) -> Configuration:
    """Return the configuration that advice is about: the fastest on several devices, else on one, else any."""
    scaled = [speedup.choice for speedup in speedups(job)]
    fastest = min(scaled, key=lambda row: row.time_s.value, default=job.fastest)
    return fastest.configuration if fastest else (*job.configurations, *job.lost)[0]


def _notes(evidence: Evidence) -> list[str]:
    """Return what holds for all jobs."""
    notes = []
    if not any(configuration.completed for configuration in evidence.configurations):
        notes.append("No run completed, so there is nothing to recommend.")
    if any(run.values.get("device") == "cpu" for run in evidence.runs):
        notes.append("Measurements on CPU processes say nothing about GPUs.")
    synthetic = sum(run.synthetic for run in evidence.runs)
    if synthetic:
        which = "All" if synthetic == len(evidence.runs) else "Some"
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

    `report` has the bottlenecks of the configuration in question, `costs` and `not_measured` what parts of the step
    cost in configurations of the job, and why that is not known. `measured`: all configurations that ran.
    """
    about = report.configuration
    own_costs = {cost.part: cost for cost in costs if cost.configuration.key == about.key}
    report = replace(report, bottlenecks=ablation.with_hidden_parts(own_costs, report))
    parts = [
        part_of(bottleneck, about, measured, own_costs.get(ABLATED.get(bottleneck.name, "")))
        for bottleneck in report.bottlenecks
    ]
    trials = [trial(bottleneck, part, report.whole) for bottleneck, part in zip(report.bottlenecks, parts, strict=True)]
    results = gains(job)
    doubt = doubts(job)
    return JobAdvice(
        name=name,
        about=about.words(),
        has_speedups=bool(speedups(job)),
        how_many=how_many(job) if job.configurations else "",
        which=which_configuration(job),
        changes=[joined(some) for some in (results[:MOST_CHANGES], results[MOST_CHANGES:]) if some],
        costs=ablation.cost_lines(costs)[:MOST_COSTS],
        unmeasured_host_work=list(not_measured[:MOST_COSTS]),
        step=_step_words(job, report),
        next_steps=[text for text in trials if text][:MOST_NEXT],
        doubt=doubt,
        tiles=tiles(job, report, own_costs, doubt),
        table=word_table(job),
        lost=[f"{configuration.words()}: {outcomes_of(configuration)}" for configuration in job.lost],
        parts=parts,
    )


def _step_words(job: Choices, report: BottleneckReport) -> str:
    about = report.configuration
    text = summary(report) or ("where the step goes was not recorded" if about.completed else "")
    return f"{job.on(about['devices'])}: {text}" if text else ""
