"""The sections of labelled facts: what is trained, on which machine, and how it was measured."""

import shlex
from collections.abc import Sequence

import pandas as pd

from multicard.answers.choice.choices import NO_CHOICE
from multicard.core.units import ARGS_PREFIX, number
from multicard.programs.program import BATCH
from multicard.programs.user_command import fill, names_in
from multicard.report.environment import Environment, environment
from multicard.report.proposal.application import Application, measured_nodes
from multicard.report.proposal.document import Section
from multicard.results.configuration import Configuration
from multicard.runs.environment import NOT_RECORDED, SHOWN_DIGITS
from multicard.runs.record import RunRecord

Facts = list[tuple[str, str]]

WINDOWS = {"warmup": "warm-up", "measured": "measured", "profiled": "profiled"}
# Software whose version a time depends on: its name in a record, and on the page. `GPU_VERSIONS` are shown only for
# runs on GPUs.
VERSIONS = {"torch": "PyTorch", "python": "Python"}
GPU_VERSIONS = {"cuda": "CUDA", "nccl": "NCCL", "driver": "driver"}
# Parameters that are not among the settings because another part of the page states them.
SHOWN_ELSEWHERE = (
    "command", "dataset", "model", "image_size", "sequence_length", "width_mult", "scaling", "devices",
    "nodes", "devices_per_node", "precision", "batch_size", "python", "folder",
)  # fmt: skip


def training_words(application: Application) -> str:
    """Return what is trained: the command of a script with the values of its parameters; else the job in words."""
    configuration = application.configuration
    return _filled_command(configuration) if configuration["command"] else application.job.job


def job_section(application: Application, records: Sequence[RunRecord]) -> Section:
    """Return the section on what is trained. `records`: of the runs of the choice that is applied for."""
    configuration = application.configuration
    facts = [("Command" if configuration["command"] else "Training", training_words(application))]
    facts += _script_facts(records)
    facts.append(("Data", _data_words(configuration)))
    facts.append(("Batch", _batch_words(application)))
    facts.append(("Precision", configuration["precision"] or "set by the script"))
    in_command = [name for name in configuration.parameters if name.startswith(ARGS_PREFIX)]
    # `NO_CHOICE`: parameters that state how long a run is and how it is observed.
    settings = configuration.words(without={*NO_CHOICE, *SHOWN_ELSEWHERE, *in_command})
    if settings:
        facts.append(("Settings", settings))
    return Section("The job", facts=facts)


def _script_facts(records: Sequence[RunRecord]) -> Facts:
    """Return the file of the user's script with its commit and checksum, as the first record states; empty without."""
    script = records[0].script if records else None
    if script is None or not script.file:
        return []
    words = [script.file]
    if script.commit:
        words.append(f"commit {script.commit[:SHOWN_DIGITS]}")
    if script.sha256:
        words.append(f"sha256 {script.sha256[:SHOWN_DIGITS]}")
    return [("Script", ", ".join(words))]


def _data_words(configuration: Configuration) -> str:
    """Return the name of the data set, with its source in brackets unless that is the same word."""
    dataset, source = configuration["dataset"], configuration.provenance.data_source
    if not dataset:
        return NOT_RECORDED if "dataset" in configuration.program.inputs else "loaded by the script"
    return dataset if source in (None, dataset) else f"{dataset} ({source})"


def _batch_words(application: Application) -> str:
    """Return the samples of a step, and those of each device unless the number is only about right (a text)."""
    batch = application.choice.learning.get(BATCH)
    if batch is None:
        return NOT_RECORDED
    words = f"{batch} {application.samples_word} per step"
    if isinstance(batch, int):
        per_device = number(batch / application.configuration["devices"])
        words += f", {per_device} per {application.device_word}"
    return words


def machine_section(application: Application, records: Sequence[RunRecord]) -> Section:
    """Return the section on hardware and versions. If `records` differ, the most frequent values are shown."""
    recorded = environment(records)
    if not recorded.machines:
        return Section("The machine", [f"{NOT_RECORDED.capitalize()}."])
    hardware = {name: text for name, text in recorded.machines[0].facts.items() if NOT_RECORDED not in text}
    hardware.pop("Host", None)
    gpus = hardware.pop("GPUs", NOT_RECORDED)
    facts = [("Nodes", str(measured_nodes(application.configuration)))]
    if application.is_on_gpus:
        facts.append(("GPUs of a node", _node_gpus(gpus, application.gpus_per_node)))
    facts += hardware.items()
    facts.append(("Software", _software_words(recorded, application.is_on_gpus)))
    return Section("The machine", facts=facts)


def _software_words(recorded: Environment, on_gpus: bool) -> str:
    """Return the versions of the software that a time depends on, the most frequent ones if runs differ."""
    versions = recorded.versions[0].facts if recorded.versions else {}
    shown = VERSIONS | GPU_VERSIONS if on_gpus else VERSIONS
    words = [f"{word} {versions[name]}" for name, word in shown.items() if versions.get(name, "none") != "none"]
    return ", ".join(words) or NOT_RECORDED


def _node_gpus(recorded: str, gpus_per_node: int | None) -> str:
    """Return the GPUs of a node in words.

    `recorded`: the GPUs that a job was given, perhaps only some of its node. If all are of one kind, their number is
    replaced by `gpus_per_node`, if that is known.

    >>> _node_gpus("1 × H100, 80.0 GB", 4), _node_gpus("1 × H100; 1 × H200", 4)
    ('4 × H100, 80.0 GB', '1 × H100; 1 × H200')
    """
    are_of_one_kind = ";" not in recorded
    if gpus_per_node and are_of_one_kind:
        _, _, name = recorded.partition(" × ")
        return f"{gpus_per_node} × {name}"
    return recorded


def measurement_section(
    application: Application,
    records: Sequence[RunRecord],
    steps: pd.DataFrame | None,
    source: Sequence[tuple[str, str]],
) -> Section:
    """Return the section on how the numbers were measured, and where they are kept.

    `steps`: the steps of the first completed run, with `rank` and `window`; None if none are recorded. `source`: facts
    about where the measurements are kept.
    """
    recorded = environment(records)
    facts = []
    if steps is not None:
        facts.append(("Steps of a run", f"{_windows_words(steps)}; timed while no profiler collects"))
    repeats = len(application.configuration.completed)
    if repeats > 1:
        repeats_words = f"{repeats}, each a job of its own; in brackets: 95% CI over repeats"
    else:
        repeats_words = "1, so no intervals: multicard scale --repeats 3"
    facts.append(("Repeats (n)", repeats_words))
    profilers = sorted({record.profiler.used for record in records})
    facts.append(("Profiler", ", ".join(profilers) or NOT_RECORDED))
    version = recorded.versions[0].facts.get("multicard", "") if recorded.versions else ""
    facts.append(("Tool", f"multicard {version}".strip()))
    if recorded.first_started:
        facts.append(("Measured on", recorded.first_started[:10]))
    return Section("How it was measured", facts=[*facts, *source])


def _windows_words(steps: pd.DataFrame) -> str:
    """Return how many steps of the first rank are in each window, in words."""
    of_first_rank = steps["rank"] == steps["rank"].min()
    counts = steps.loc[of_first_rank, "window"].value_counts()
    return ", ".join(f"{counts[name]} {word}" for name, word in WINDOWS.items() if name in counts)


def _filled_command(configuration: Configuration) -> str:
    """Return a script's command with the values of its own parameters; a name without a value stays in braces."""
    command = shlex.split(configuration["command"])
    values = {}
    for name in names_in(command):
        value = configuration[f"{ARGS_PREFIX}{name}"]
        values[name] = f"{{{name}}}" if value is None else value
    return shlex.join(fill(command, values))
