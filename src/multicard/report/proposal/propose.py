"""The page for an application for computing time, from what was measured.

The page begins with the answer, what is applied for; the evidence follows. What was not measured is left out, or the
page says that it was not measured.
"""

from collections.abc import Mapping, Sequence

import pandas as pd

from multicard.answers.choice.applied import (
    Request,
    other_series,
    proposed_choice,
    proposed_job,
    scaling_of,
    series_of,
)
from multicard.answers.choice.choices import outcomes_of
from multicard.answers.choice.next_steps import caveats
from multicard.answers.scaling.speedup import BASELINE_DIFFERS, scaling_of_runs
from multicard.core.text import counted
from multicard.report.environment import environment
from multicard.report.proposal.application import Application, measured_nodes, shown_speedup
from multicard.report.proposal.document import Proposal
from multicard.report.proposal.facts import job_section, machine_section, measurement_section, training_words
from multicard.report.proposal.tables import SeriesByScaling, resources_section, scaling_sections, step_section
from multicard.results.configuration import Configuration
from multicard.results.results import Results
from multicard.runs.record import RunRecord
from multicard.stats.interval import Interval, interval_columns


def propose(
    results: Results, records: Mapping[str, RunRecord], request: Request, source: Sequence[tuple[str, str]]
) -> Proposal:
    """Return the page for one job of the results.

    It is the job with speed-ups; if several have some, or none has, the job with the most completed runs.

    `records`: by run id. `request`: what is applied for. `source`: facts about where the measurements are kept.

    Raises `UserError` if no throughput is known, or if nothing was measured on the stated devices, or with the measure
    that the stated work needs.
    """
    job, other_jobs = proposed_job(results)
    choice, reason = proposed_choice(job, request)
    application = Application(job, choice, request)
    scaling_by_run = scaling_of_runs(results)
    choices = series_of(job, choice)
    scaling = scaling_of(choices, scaling_by_run)
    series = {scaling: choices, **other_series(job, choices, scaling_by_run)}
    completed = choice.configuration.completed
    records_of_choice = [records[run.run] for run in completed if run.run in records]
    steps = results.table_by_run("steps").get(completed[0].run)
    is_synthetic = any(run.provenance.is_synthetic for run in results.runs)
    return Proposal(
        title=f"Computing time for {training_words(application)}{' (synthetic timings)' if is_synthetic else ''}",
        request=application.sentence(),
        reason=reason,
        sections=[
            job_section(application, records_of_choice),
            machine_section(application, records_of_choice),
            *scaling_sections(application, series),
            step_section(application, results),
            resources_section(application, scaling, choices),
            measurement_section(application, records_of_choice, steps, source),
        ],
        caveats=_caveats(application, records_of_choice, other_jobs, is_synthetic),
        speedups=_speedup_points(series, job.device),
    )


def _caveats(
    application: Application, records: Sequence[RunRecord], other_jobs: Sequence[str], is_synthetic: bool
) -> list[str]:
    """Return what could change the answer, in sentences. `other_jobs`: names of jobs that the page is not about."""
    job = application.job
    lines = []
    if is_synthetic:
        lines.append("Synthetic timings: no machine takes these times.")
    if not application.is_on_gpus:
        lines.append("Measured on CPU processes, which says nothing about GPUs.")
    nodes, had_nodes = application.nodes(application.choice), measured_nodes(application.configuration)
    if nodes and nodes != had_nodes:
        lines.append(f"Measured on {counted(had_nodes, 'node')}, applied for on {nodes}: that was not measured.")
    mixed = environment(records).mixed
    if mixed:
        lines.append(f"The repeats ran on {mixed}.")
    for configuration in job.lost:
        if _settings(configuration) == _settings(application.configuration):
            lines.append(f"On {job.on(configuration['devices'])}: {outcomes_of(configuration)}.")
    # The first doubt is the number of repeats, which is worth a line by itself only if it is 1.
    doubts = caveats(job)
    is_more_than_repeats = len(doubts) > 1
    if is_more_than_repeats or any(doubt.startswith("1 repeat") for doubt in doubts):
        text = "; ".join(doubts)
        lines.append(f"{text[:1].upper()}{text[1:]}.")
    if other_jobs:
        lines.append(f"The results hold other jobs, too: {'; '.join(other_jobs)}.")
    return lines


def _settings(configuration: Configuration) -> tuple[object, ...]:
    """Return a key that is equal for configurations that differ only in `BASELINE_DIFFERS`, machine and versions.

    `BASELINE_DIFFERS` are strategy, devices and nodes.
    """
    # Machine and versions do not count because a run that was killed may have left no record of them.
    _machine, _versions, *settings = configuration.rest(BASELINE_DIFFERS)
    return tuple(settings)


def _speedup_points(series: SeriesByScaling, device: str) -> pd.DataFrame:
    """Return `Proposal.speedups`: for each kind of scaling, the fastest choice on each number of devices."""
    points = []
    for scaling, choices in sorted(series.items()):
        fastest: dict[int, Interval] = {}
        # Slow choices come first, so that a faster one on the same number of devices replaces them.
        for choice in sorted(choices, key=lambda choice: choice.rate.value):
            speedup = shown_speedup(choice)
            if speedup is not None:
                fastest[choice.devices] = speedup
        for devices, speedup in sorted(fastest.items()):
            point = {
                "series": f"{scaling} scaling",
                "devices": devices,
                "repeats": speedup.repeats,
                **interval_columns("speedup", speedup),
                "device": device,
            }
            points.append(point)
    columns = ["series", "devices", "repeats", "speedup", "speedup_low", "speedup_high", "device"]
    measures = ["speedup", "speedup_low", "speedup_high"]
    return pd.DataFrame(points, columns=columns).astype(dict.fromkeys(measures, float))
