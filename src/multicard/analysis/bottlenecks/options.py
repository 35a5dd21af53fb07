"""Options against a bottleneck: those of options.yaml that may help a configuration and that no run has tried."""

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

# Changes of a parameter that state a direction instead of a value.
HIGHER, LOWER, DIFFERENT = "higher", "lower", "different"
LEARNS_OTHERWISE = "may change accuracy"

# A machine that has everything. Options that are impossible on it are impossible on any machine.
EVERYTHING = Machine(cpus=10**6, gpus=10**6, nodes=10**6, compiler=True, dali=True, weights_needed=False)


@dataclass(frozen=True)
class TuningOption:
    """Parameters of a run to change together, each to a stated value, or to a `higher`, `lower` or `different` one.

    `workload` and `device` restrict it to one workload and one kind of device. Read from options.yaml by `options`.
    """

    # New values by the names of parameters, as a configuration file may state them, or one of the three directions.
    changes: Mapping[str, Any]
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
    """Something to change in a user's program, whose options are not known here. options.yaml explains the fields."""

    description: str
    device: Literal["cuda", "cpu"] | None = None
    several: bool = False
    numa: bool = False
    learns_otherwise: bool = False
    pins: bool = False

    def applies(self, configuration: Configuration, pageable: float | None) -> bool:
        """True if the option may help a configuration.

        `pageable`: the share of the bytes copied to GPUs that is from pageable memory; None if that is not known. An
        option that `pins` memory does not apply if that share is known to be below `LEAST`.
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
    """Options by the name of the bottleneck that they help against: parameters of runs, and changes of programs."""

    parameters: dict[str, list[TuningOption]]
    programs: dict[str, list[ProgramOption]]


class _Trial(NamedTuple):
    """An option in Markdown, with two properties by which options are sorted: False comes before True."""

    # True if another configuration of the job shows what the option gains.
    was_measured_elsewhere: bool
    # True if it changes what the model learns from a sample.
    learns_otherwise: bool
    text: str


@cache
def options() -> Options:
    """Return the options of options.yaml, which is read once."""
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


def _flat(entries: Sequence[Any]) -> list[Mapping[str, Any]]:
    """Return the options of a list of options and of lists of options, which several bottlenecks share."""
    flat: list[Mapping[str, Any]] = []
    for entry in entries:
        flat += entry if isinstance(entry, list) else [entry]
    return flat


def untried(configuration: Configuration, bottleneck: Bottleneck, measured: Sequence[Configuration]) -> list[str]:
    """Return in Markdown the options that may help and that no run has tried from this configuration.

    First come options that were not measured in any other configuration of the job, then those that were. In either
    group, options that change what the model learns from a sample come last. `measured`: all configurations that ran.
    """
    trials = _parameter_trials(configuration, bottleneck, measured)
    if configuration.workload.is_user_program:
        trials += _program_trials(configuration, bottleneck)
    trials.sort(key=lambda trial: (trial.was_measured_elsewhere, trial.learns_otherwise))
    return [trial.text for trial in trials]


def _parameter_trials(
    configuration: Configuration, bottleneck: Bottleneck, measured: Sequence[Configuration]
) -> list[_Trial]:
    """Return the options to change parameters, in Markdown: what each does, may cost, and gained elsewhere."""
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
    """Return the options to change the user's program, in Markdown."""
    trials = []
    for option in options().programs[bottleneck.name]:
        if option.applies(configuration, bottleneck.pageable):
            note = f" ({LEARNS_OTHERWISE})" if option.learns_otherwise else ""
            trials.append(_Trial(False, option.learns_otherwise, f"{option.description}{note}"))
    return trials


def _gain_elsewhere(configuration: Configuration, option: TuningOption, measured: Sequence[Configuration]) -> str:
    """Return in words what an option gained in the most similar other configuration of the job; empty if none shows it.

    Other configurations show it if they have the same values as `configuration` of the parameters that the option
    changes, and were measured both as they are and with the option. The most similar one differs from `configuration`
    in the fewest parameters.
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
    """Return the parameters in which two configurations differ, except `besides` and those about observing a run."""
    ignored = {*besides, *OBSERVATION}
    compared = [name for name in configuration.parameters if name not in ignored]
    return [name for name in compared if other[name] != configuration[name]]


def _job(configuration: Configuration) -> tuple[str, str, str]:
    """Return a key that is equal for configurations of the same job on the same kind of device."""
    workload = configuration.workload
    return workload.name, workload.job(configuration.parameters), configuration["device"]


def _implied_by(configuration: Configuration, option: TuningOption) -> set[str]:
    """Return the parameters whose defaults follow from those that an option changes."""
    implied = configuration.workload.implied
    return {name for changed in option.changes for name in implied.get(changed, ())}


def _changed_by(configuration: Configuration, option: TuningOption) -> set[str]:
    """Return the parameters of an option, and those that follow from them."""
    return {*option.changes, *_implied_by(configuration, option)}


def _was_measured(configuration: Configuration, option: TuningOption, measured: Sequence[Configuration]) -> bool:
    """True if another configuration with a completed run differs only in the option and in what the option implies."""
    changed = _changed_by(configuration, option)
    candidates = [
        other
        for other in measured
        if other is not configuration and other["workload"] == configuration["workload"] and other.completed
    ]
    return any(_differs_in_option(other, option, configuration, changed) for other in candidates)


def _differs_in_option(other: Configuration, option: TuningOption, before: Configuration, changed: set[str]) -> bool:
    """True if `other` is `before` with the option. `changed`: the parameters of the option, and what these imply."""
    return _has_option(other, option, before) and other.rest(changed) == before.rest(changed)


def _has_option(other: Configuration, option: TuningOption, before: Configuration) -> bool:
    """True if `other` has the values that the option makes of the values of `before`."""
    return all(_is_changed(other[name], change, before[name]) for name, change in option.changes.items())


def _with_option(configuration: Configuration, option: TuningOption) -> Mapping[str, Any] | None:
    """Return the parameters of a configuration with the option; None if it cannot help here, or is not possible."""
    if not _may_help(configuration, option):
        return None
    implied = _implied_by(configuration, option)
    # Parameters whose defaults follow from changed ones are left out, so that validation sets them to these defaults.
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
    """True if an option is for the workload and device of a configuration, is not in use, and may improve it."""
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
    """True if runs used several NUMA nodes. If none is recorded, a machine with GPUs is assumed to have several."""
    nodes = {node for run in configuration.runs for node in run.provenance.numa_nodes}
    return len(nodes) > 1 or (not nodes and configuration["device"] == "cuda")


def _example(change: Any, value: Any) -> Any:
    """Return an example of a changed value: twice `value` if higher or different, half if lower, else as stated."""
    if change in (HIGHER, DIFFERENT):
        return max(1, (value or 0) * 2)
    if change == LOWER:
        return max(1, (value or 0) // 2)
    return change


def _is_changed(value: Any, change: Any, before: Any) -> bool:
    """True if a value is what the change makes of the value `before`. None is neither higher nor lower."""
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
