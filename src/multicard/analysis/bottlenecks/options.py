"""Options against a bottleneck: those of options.yaml that may help a configuration and were not measured yet."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml
from pydantic import ValidationError

from multicard.analysis.bottlenecks.bottlenecks import LEAST, Bottleneck
from multicard.experiment.machine import Machine
from multicard.experiment.runs import Run
from multicard.experiment.wording import statement
from multicard.results.configuration import OBSERVATION, Configuration
from multicard.stats.pool import ratio_of

# Changes of a parameter to no particular value.
HIGHER, LOWER, DIFFERENT = "higher", "lower", "different"
LEARNS_OTHERWISE = "may change accuracy"

# A machine that has everything: what is impossible on it is impossible anywhere.
EVERYTHING = Machine(cpus=10**6, gpus=10**6, nodes=10**6, compiler=True, dali=True, weights_needed=False)


@dataclass(frozen=True)
class TuningOption:
    """Parameters of a run to change, each to a value, or to a `higher`, `lower` or `different` one.

    `workload` and `device` restrict it to one workload and one kind of device. Read from options.yaml by `options`.
    """

    changes: dict[str, Any]
    workload: Literal["vision", "llm"] | None = None
    description: str = ""
    device: Literal["cuda", "cpu"] | None = None

    @property
    def name(self) -> str:
        """The option in words.

        >>> TuningOption({"pin_memory": True, "num_workers": HIGHER}).name
        'pin_memory: true, higher num_workers'
        """
        return ", ".join(_change_words(name, value) for name, value in self.changes.items())


@dataclass(frozen=True)
class ProgramOption:
    """Something to change in a program whose options are its own; options.yaml explains the fields."""

    description: str
    device: Literal["cuda", "cpu"] | None = None
    several: bool = False
    numa: bool = False
    learns_otherwise: bool = False
    pins: bool = False

    def applies(self, configuration: Configuration, pageable: float | None) -> bool:
        """True if it may help a configuration.

        `pageable`: the share of the bytes copied to GPUs that is from pageable memory; None where that is not known.
        """
        if self.device not in (None, configuration["device"]):
            return False
        if self.several and configuration["devices"] == 1:
            return False
        if self.numa and not _has_several_numa_nodes(configuration):
            return False
        is_pinned_already = pageable is not None and pageable < LEAST
        return not (self.pins and is_pinned_already)


class Options(NamedTuple):
    """Options by the name of the bottleneck that they help against."""

    parameters: dict[str, list[TuningOption]]
    programs: dict[str, list[ProgramOption]]


class _Trial(NamedTuple):
    """An option in Markdown, with what decides its order: options that neither property holds for come first."""

    # True if another configuration of the job shows what the option gains.
    was_measured_elsewhere: bool
    # True if it changes what the model learns from a sample.
    learns_otherwise: bool
    text: str


@cache
def options() -> Options:
    """Read parameters to change, and what to change in a program."""
    file = yaml.safe_load(Path(__file__).with_name("options.yaml").read_text(encoding="utf-8"))
    parameters = {
        bottleneck: [TuningOption(**fields) for fields in _flat(entries)]
        for bottleneck, entries in file["parameters"].items()
    }
    programs = {
        bottleneck: [ProgramOption(**fields) for fields in _flat(entries)]
        for bottleneck, entries in file["programs"].items()
    }
    return Options(parameters, programs)


def _flat(entries: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the options of a list; an entry may be a list itself, which several bottlenecks share."""
    flat: list[dict[str, Any]] = []
    for entry in entries:
        flat += entry if isinstance(entry, list) else [entry]
    return flat


def untried(configuration: Configuration, bottleneck: Bottleneck, measured: Sequence[Configuration]) -> list[str]:
    """Return the options in Markdown that may help and that no run has tried here.

    Options that were measured in other configurations are last. Before them come those that change what the model
    learns from a sample. `measured`: all configurations that ran.
    """
    trials = _parameter_trials(configuration, bottleneck, measured)
    if configuration.workload.is_user_program:
        trials += _program_trials(configuration, bottleneck)
    trials.sort(key=lambda trial: (trial.was_measured_elsewhere, trial.learns_otherwise))
    return [trial.text for trial in trials]


def _parameter_trials(
    configuration: Configuration, bottleneck: Bottleneck, measured: Sequence[Configuration]
) -> list[_Trial]:
    """Return the parameters to change, each in Markdown with what it does, what it may cost, and its gain elsewhere."""
    trials = []
    learning = configuration.workload.learning
    for option in options().parameters.get(bottleneck.name, []):
        parameters = _with_option(configuration, option)
        if parameters is None or _was_measured(configuration, option, measured):
            continue
        learns_otherwise = learning(configuration.parameters) != learning(parameters)
        gain = _gain_elsewhere(configuration, option, measured)
        notes = [option.description, LEARNS_OTHERWISE if learns_otherwise else "", gain]
        words = ", ".join(note for note in notes if note)
        text = f"`{option.name}` ({words})" if words else f"`{option.name}`"
        trials.append(_Trial(bool(gain), learns_otherwise, text))
    return trials


def _program_trials(configuration: Configuration, bottleneck: Bottleneck) -> list[_Trial]:
    """Return what to change in the user's program, each in Markdown."""
    trials = []
    for option in options().programs[bottleneck.name]:
        if option.applies(configuration, bottleneck.pageable):
            note = f" ({LEARNS_OTHERWISE})" if option.learns_otherwise else ""
            trials.append(_Trial(False, option.learns_otherwise, f"{option.description}{note}"))
    return trials


def _gain_elsewhere(configuration: Configuration, option: TuningOption, measured: Sequence[Configuration]) -> str:
    """Return in words what an option gained in the most similar configuration of the job; empty if none shows that.

    A configuration shows it if it has the same values as this one in place of those of the option, and was measured
    with and without the option.
    """
    changed = _changed_by(configuration, option)
    of_job = [other for other in measured if other.completed and _job(other) == _job(configuration)]
    pairs = []
    for without in of_job:
        starts_alike = all(without[name] == configuration[name] for name in option.changes)
        if starts_alike:
            pairs += [(without, other) for other in of_job if _differs_in_option(other, option, without, changed)]
    if not pairs:
        return ""
    without, with_option = min(pairs, key=lambda pair: len(_unlike(configuration, pair[0], changed)))
    gain = ratio_of(with_option.blocks(without.rate), without.blocks(without.rate))
    if gain is None:
        return ""
    return f"measured with {without.naming(_unlike(configuration, without, changed))}: {gain.format(unit='×')}"


def _unlike(configuration: Configuration, other: Configuration, besides: set[str]) -> list[str]:
    """Return the parameters in which another configuration differs, without `besides` and how a run is observed."""
    ignored = {*besides, *OBSERVATION}
    compared = [name for name in configuration.parameters if name not in ignored]
    return [name for name in compared if other[name] != configuration[name]]


def _job(configuration: Configuration) -> tuple[str, str, str]:
    """Return a key that is equal for configurations of the same job on the same kind of device."""
    workload = configuration.workload
    return workload.name, workload.job(configuration.parameters), configuration["device"]


def _implied_by(configuration: Configuration, option: TuningOption) -> set[str]:
    """Return the parameters that follow from those that an option changes."""
    implied = configuration.workload.implied
    return {name for changed in option.changes for name in implied.get(changed, ())}


def _changed_by(configuration: Configuration, option: TuningOption) -> set[str]:
    """Return the parameters of an option, and those that follow from them."""
    return {*option.changes, *_implied_by(configuration, option)}


def _was_measured(configuration: Configuration, option: TuningOption, measured: Sequence[Configuration]) -> bool:
    """True if another configuration completed that differs only in the option, and in what this implies."""
    changed = _changed_by(configuration, option)
    candidates = [
        other
        for other in measured
        if other is not configuration and other["workload"] == configuration["workload"] and other.completed
    ]
    return any(_differs_in_option(other, option, configuration, changed) for other in candidates)


def _differs_in_option(other: Configuration, option: TuningOption, before: Configuration, changed: set[str]) -> bool:
    """True if a configuration is another one with the option; `changed`: the parameters that this changes."""
    return _has_option(other, option, before) and other.rest(changed) == before.rest(changed)


def _has_option(other: Configuration, option: TuningOption, before: Configuration) -> bool:
    """True if a configuration has the values that an option makes of those of another."""
    return all(_is_changed(other[name], change, before[name]) for name, change in option.changes.items())


def _with_option(configuration: Configuration, option: TuningOption) -> Mapping[str, Any] | None:
    """Return the parameters with the option; None if it changes nothing here, or is not possible."""
    if not _may_help(configuration, option):
        return None
    implied = _implied_by(configuration, option)
    # Parameters that follow from changed ones are left out, so that they get the default that follows.
    kept = {name: value for name, value in configuration.parameters.items() if value is not None}
    kept = {name: value for name, value in kept.items() if name not in implied}
    changed = {name: _example(change, kept.get(name)) for name, change in option.changes.items()}
    try:
        parameters = configuration.workload.parameters.model_validate(kept | changed)
    except ValidationError:
        return None
    run = Run("", parameters)
    if run.unsupported_reason(EVERYTHING) is not None or run.config_error() is not None:
        return None
    following = {name: getattr(parameters, name) for name in implied - changed.keys()}
    return {**configuration.parameters, **changed, **following}


def _may_help(configuration: Configuration, option: TuningOption) -> bool:
    """True if an option is for the workload and the device of a configuration, and changes something that may help."""
    if option.workload not in (None, configuration["workload"]) or option.device not in (None, configuration["device"]):
        return False
    if _has_option(configuration, option, configuration):
        return False
    if "binding" in option.changes and not _has_several_numa_nodes(configuration):
        return False
    if option.changes.get("precision") and configuration["precision"] in ("fp16", "bf16"):
        return False
    workload = configuration.workload
    has_parameters = option.changes.keys() <= workload.parameters.model_fields.keys()
    return has_parameters and workload.tuning_applies(option.changes, configuration.parameters)


def _has_several_numa_nodes(configuration: Configuration) -> bool:
    """True if there are several NUMA nodes; where that is not recorded, GPUs are assumed to have some."""
    nodes = {node for run in configuration.runs for node in run.provenance.numa_nodes}
    return len(nodes) > 1 or (not nodes and configuration["device"] == "cuda")


def _example(change: Any, value: Any) -> Any:
    """Return a value that the change may make of another one: twice or half of it, or the one that it states."""
    if change in (HIGHER, DIFFERENT):
        return max(1, (value or 0) * 2)
    if change == LOWER:
        return max(1, (value or 0) // 2)
    return change


def _is_changed(value: Any, change: Any, before: Any) -> bool:
    """True if a value is what the change makes of the previous one."""
    if change in (HIGHER, LOWER):
        if value is None or before is None:
            return False
        return value > before if change == HIGHER else value < before
    if change == DIFFERENT:
        return value != before
    return value == change


def _change_words(name: str, change: Any) -> str:
    if change in (HIGHER, LOWER, DIFFERENT):
        return f"{change} {name}"
    return statement(name, change)
