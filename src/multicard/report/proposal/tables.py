"""The sections with tables: how the job scales, where the time of a step goes, and what the runs take."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from multicard.answers.bottlenecks.bottlenecks import peak_memory, report_of, summary
from multicard.answers.choice.choice import Choice
from multicard.answers.choice.learning import words_of
from multicard.answers.scaling.headline import STEP_TIME
from multicard.core.text import counted, plural
from multicard.core.units import BYTES, SECONDS, UNKNOWN, number, number_in, percent, unit_for, with_unit
from multicard.programs.program import BATCH
from multicard.report.proposal.application import Application, measured_nodes, shown_speedup
from multicard.report.proposal.document import Section, SectionTable
from multicard.results.per_run import trace_shares
from multicard.results.results import Results
from multicard.stats.interval import Interval

NOT_MEASURED = "not measured"
LEAST_SHARE = 0.005  # a part of a step with a smaller share of its time has no row
NOT_INCLUDED = "the start of jobs, and checkpoints and tests outside the measured steps"
# Sentence about the batch, by kind of scaling.
BATCHES = {
    "strong": "The total batch is constant, so all {devices} share it.",
    "weak": "The batch per {device} is constant, so the total batch grows with the {devices}.",
    "unknown": "Neither strong nor weak scaling, by what is known of the batches.",
}

# By kind of scaling (strong, weak or unknown): the choices on all numbers of devices. The first kind is that of the
# choice that is applied for.
SeriesByScaling = Mapping[str, Sequence[Choice]]


def scaling_sections(application: Application, series: SeriesByScaling) -> list[Section]:
    """Return a section for each kind of scaling. The last one also names the kind that was not measured.

    If the first series has a single number of devices, there is one section, which says that scaling was not measured.
    """
    first_choices = next(iter(series.values()))
    if len({choice.devices for choice in first_choices}) == 1:
        return [_section_without_scaling(application, first_choices)]
    sections: list[Section] = []
    for scaling, choices in series.items():
        is_first = not sections
        section = Section(
            title="Scaling" if scaling == "unknown" else f"{scaling.capitalize()} scaling",
            sentences=_scaling_sentences(application, scaling, choices, is_first),
            table=_scaling_table(application, choices),
            has_figure=is_first,
        )
        sections.append(section)
    if "unknown" not in series:
        missing = [scaling for scaling in ("strong", "weak") if scaling not in series]
        sentences = [f"{scaling.capitalize()} scaling: {NOT_MEASURED}." for scaling in missing]
        last = sections[-1]
        sections[-1] = replace(last, sentences=[*last.sentences, *sentences])
    return sections


def _section_without_scaling(application: Application, choices: Sequence[Choice]) -> Section:
    """Return the section for choices on a single number of devices; it says how to measure others."""
    missing = f"{NOT_MEASURED}, all runs of this configuration are on {application.devices_words}"
    remedy = "multicard scale --devices 1,2,4, or devices: [1, 2, 4] under vary in the configuration"
    sentence = f"Scaling: {missing}. To measure it: {remedy}."
    return Section("Scaling", [sentence], table=_scaling_table(application, choices))


def _scaling_sentences(application: Application, scaling: str, choices: Sequence[Choice], is_first: bool) -> list[str]:
    """Return sentences: what happens to the batch, how training differs from the first series, what is not measured.

    `is_first`: True for the series of the choice that is applied for.
    """
    device = application.device_word
    sentences = [BATCHES[scaling].format(device=device, devices=plural(2, device))]
    differences = {name: change for name, change in choices[-1].changes.items() if name != BATCH}
    if differences and not is_first:
        sentences.append(f"Otherwise different: {words_of(differences)}.")
    if choices[0].devices > 1:
        sentences.append(f"Speed-up and efficiency: {NOT_MEASURED}, no run is on one device.")
    return sentences


def _scaling_table(application: Application, choices: Sequence[Choice]) -> SectionTable:
    """Return a table with a row per choice: devices, step time, throughput, speed-up, efficiency and repeats."""
    step_times = [application.mean(choice, STEP_TIME) for choice in choices]
    factor, unit = unit_for([step_s.value if step_s else None for step_s in step_times], SECONDS)
    has_several_node_counts = len({measured_nodes(choice.configuration) for choice in choices}) > 1
    rows = []
    for choice, step_s in zip(choices, step_times, strict=True):
        devices = str(choice.devices)
        if has_several_node_counts:
            devices += f" on {counted(measured_nodes(choice.configuration), 'node')}"
        speedup = shown_speedup(choice)
        cells = [
            devices,
            _cell(step_s and step_s.map(lambda seconds: seconds * factor)),
            _cell(choice.rate),
            _cell(speedup),
            _cell(_efficiency_percent(speedup, choice.devices)),
            str(len(choice.configuration.completed)),
        ]
        rows.append(cells)
    headings = [
        plural(2, application.device_word),
        f"Step ({unit})",
        f"{plural(2, application.job.unit).capitalize()}/s",
        "Speed-up",
        "Efficiency (%)",
        "n",
    ]
    return SectionTable(headings, rows, _index_of(application.choice, choices))


def _efficiency_percent(speedup: Interval | None, devices: int) -> Interval | None:
    """Return a speed-up divided by the number of devices, in per cent; None without a speed-up."""
    return speedup and speedup.map(lambda ratio: 100 * ratio / devices)


def step_section(application: Application, results: Results) -> Section:
    """Return the section on where the time of a step goes on the devices that are applied for, and on their memory."""
    configuration = application.configuration
    report = report_of(configuration, trace_shares(results).to_dict("index"))
    step_s = configuration.mean(STEP_TIME)
    rows = []
    for part, share in sorted(report.parts.items(), key=lambda item: item[1], reverse=True):
        if share >= LEAST_SHARE:
            time = with_unit(share * step_s, SECONDS) if step_s else UNKNOWN
            rows.append([part, percent(share), time])
    return Section(
        title=f"A step on {application.devices_words}",
        sentences=[_sentence(summary(report)) or f"Where its time goes: {NOT_MEASURED}."],
        facts=[("Peak memory", _memory_words(application))],
        table=SectionTable(["Part", "Share", "Time"], rows) if rows else None,
    )


def _memory_words(application: Application) -> str:
    """Return the peak memory of a device in words; for GPUs also as a share of their memory, if that is known."""
    used_bytes = peak_memory(application.configuration)
    gpu_bytes = application.configuration.provenance.gpu_memory_bytes
    if not used_bytes:
        return NOT_MEASURED
    if not application.is_on_gpus:
        return f"{with_unit(used_bytes, BYTES)} per process"
    words = f"{with_unit(used_bytes, BYTES)} per GPU"
    if gpu_bytes:
        words += f", {percent(used_bytes / gpu_bytes)} of its {with_unit(gpu_bytes, BYTES)}"
    return words


def resources_section(application: Application, scaling: str, choices: Sequence[Choice]) -> Section:
    """Return the section on what the runs take with each of `choices`; `scaling`: how these scale.

    Choices without a measured time of the work have no row.
    """
    timed_choices = []
    rows = []
    for choice in choices:
        run_hours = application.run_hours(choice)
        if run_hours is not None:
            timed_choices.append(choice)
            rows.append(_resources_row(application, choice, run_hours))
    runs = application.runs_words
    sentences = [f"{runs} of {application.work_words}; {_nodes_note(application)}; without {NOT_INCLUDED}."]
    if application.request.unit == "steps" and scaling != "strong" and len(timed_choices) > 1:
        sentences.append("A step on more devices processes more samples, so the rows are not the same work.")
    hours = application.hours_word[:1].upper() + application.hours_word[1:]
    devices = plural(2, application.device_word)
    headings = [devices, "Nodes", "Hours/run", f"{hours}/run", f"{hours}, {runs}", f"Node-hours, {runs}"]
    return Section(
        "Resources", sentences, table=SectionTable(headings, rows, _index_of(application.choice, timed_choices))
    )


def _resources_row(application: Application, choice: Choice, run_hours: Interval) -> list[str]:
    """Return devices, nodes, hours and device-hours of a run, then device-hours and node-hours of all runs."""
    run_count = application.request.runs
    nodes = application.nodes(choice)
    device_hours = run_hours.map(lambda hours: hours * choice.devices)
    return [
        str(choice.devices),
        str(nodes or UNKNOWN),
        _cell(run_hours),
        _cell(device_hours),
        number(run_hours.value * choice.devices * run_count),
        number(run_hours.value * nodes * run_count) if nodes else UNKNOWN,
    ]


def _nodes_note(application: Application) -> str:
    """Return which nodes the node-hours are of, in words."""
    if application.gpus_per_node:
        note = f"whole nodes of {counted(application.gpus_per_node, 'GPU')}"
        return note if application.request.gpus_per_node else f"{note}, as the measured jobs saw them"
    if application.is_on_gpus:
        return "node-hours: not known, state --gpus-per-node"
    return f"on {counted(measured_nodes(application.configuration), 'node')}, as measured"


def _index_of(choice: Choice, choices: Sequence[Choice]) -> int | None:
    """Return the index of a choice; None if it is not among them."""
    keys = [other.key for other in choices]
    return keys.index(choice.key) if choice.key in keys else None


def _sentence(words: str) -> str:
    """Return words as a sentence, with a capital and a full stop; empty if they are empty."""
    return f"{words[:1].upper()}{words[1:]}." if words else ""


def _cell(interval: Interval | None) -> str:
    """Return a value with its interval in brackets; `NOT_MEASURED` if there is none."""
    return number_in(interval.value, interval.low, interval.high) if interval else NOT_MEASURED
