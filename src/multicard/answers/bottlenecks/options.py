"""Options against a bottleneck: those of options.yaml that may help a configuration, and those that runs have tried."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml
from pydantic import ValidationError

from multicard.answers.bottlenecks.bottlenecks import Bottleneck
from multicard.answers.bottlenecks.measured_options import MeasuredOption, has_option, result_of
from multicard.answers.bottlenecks.situation import FactsByConfiguration, Situation, has_several_numa_nodes
from multicard.config.runs import Run
from multicard.config.wording import statement
from multicard.programs.machine import Machine
from multicard.results.configuration import Configuration
from multicard.runs.parameters import JobParameters

# Changes of a parameter that state a direction instead of a value.
HIGHER, LOWER, DIFFERENT = "higher", "lower", "different"
VERBS = {HIGHER: "raise", LOWER: "reduce", DIFFERENT: "vary"}
LEARNS_OTHERWISE = "may change accuracy"

# A machine that has everything. Options that are impossible on it are impossible on any machine.
EVERYTHING = Machine(cpus=10**6, gpus=10**6, nodes=10**6, compiler=True, dali=True, weights_needed=False)


@dataclass(frozen=True)
class TuningOption:
    """Parameters of a run to change together, each to a stated value, or to a `higher`, `lower` or `different` one.

    It is for programs that have all these parameters and accept the new values. `device` restricts it to one kind of
    device. Read from options.yaml by `options`.
    """

    # New values by the names of parameters, as a configuration file may state them, or one of the three directions.
    changes: Mapping[str, Any]
    description: str = ""
    device: Literal["cuda", "cpu"] | None = None

    @property
    def name(self) -> str:
        """The option in words.

        >>> TuningOption({"pin_memory": True, "num_workers": HIGHER}).name
        'pin_memory: true, raise num_workers'
        """
        return ", ".join(_change_words(name, value) for name, value in self.changes.items())

    def is_changed(self, name: str, value: Any, before: Any) -> bool:
        """True if the value of a parameter is what the option makes of the value `before`.

        None is neither higher nor lower.
        """
        change = self.changes[name]
        if change in (HIGHER, LOWER):
            if value is None or before is None:
                return False
            is_higher: bool = value > before
            is_lower: bool = value < before
            return is_higher if change == HIGHER else is_lower
        is_equal: bool = value == (before if change == DIFFERENT else change)
        return not is_equal if change == DIFFERENT else is_equal


@dataclass(frozen=True)
class ProgramOption:
    """Something to change in a user's program, whose options are not known here. options.yaml explains the fields."""

    description: str
    device: Literal["cuda", "cpu"] | None = None
    # Names of properties of `Situation`, all of which have to be true.
    when: Sequence[str] = ()
    learns_otherwise: bool = False

    def applies(self, situation: Situation) -> bool:
        """True if the option may help in a situation."""
        if self.device not in (None, situation.configuration["device"]):
            return False
        return all(getattr(situation, condition) for condition in self.when)


class Options(NamedTuple):
    """Options by the name of the bottleneck that they help against: parameters of runs, and changes of programs."""

    parameters: dict[str, list[TuningOption]]
    programs: dict[str, list[ProgramOption]]


class OptionsAgainst(NamedTuple):
    """What is known of the options against a bottleneck of a configuration. Made by `options_against`."""

    # Options to try, in Markdown.
    untried: list[str]
    # Options that were measured and are not to be tried again.
    measured: list[MeasuredOption]


class _Trial(NamedTuple):
    """An option in Markdown, with two properties by which options are sorted: lower values come first."""

    # 0 if it is shown to gain elsewhere, 1 if it was not measured, 2 if a measurement elsewhere leaves it open.
    rank: int
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


def options_against(
    configuration: Configuration,
    bottleneck: Bottleneck,
    measured: Sequence[Configuration],
    facts: FactsByConfiguration | None = None,
    told: Mapping[str, Any] | None = None,
) -> OptionsAgainst:
    """Return the options that may help a configuration, those to try and those that were measured.

    An option that was measured in the configuration itself is not to be tried again, whatever it gave; nor is one that
    was measured in another configuration of the job and gained nothing there. Options to try are in this order: those
    that are shown to gain in another configuration, those that were not measured, and those that a measurement
    elsewhere leaves open. Among each, options that change what the model learns from a sample come last.

    `measured`: all configurations that ran. `facts`: how these train; None if that is not known of any. The option to
    make the changes `told` is left out.
    """
    trials: list[_Trial] = []
    results: list[MeasuredOption] = []
    for option in options().parameters.get(bottleneck.name, []):
        if option.changes == told:
            continue
        parameters = _with_option(configuration, option)
        if parameters is None:
            continue
        result = result_of(configuration, option, _changed_by(configuration, option), measured)
        if result is None or result.is_open:
            trials.append(_parameter_trial(configuration, option, parameters, result))
        else:
            results.append(result)
    if configuration.program.is_editable:
        trials += _program_trials(Situation(configuration, measured, facts or {}, bottleneck.pageable), bottleneck)
    trials.sort(key=lambda trial: (trial.rank, trial.learns_otherwise))
    return OptionsAgainst([trial.text for trial in trials], results)


def _parameter_trial(
    configuration: Configuration, option: TuningOption, parameters: Mapping[str, Any], result: MeasuredOption | None
) -> _Trial:
    """Return an option to change parameters, in Markdown: what it does, may cost, and gained elsewhere.

    `parameters`: those of the configuration with the option. `result`: what it gained elsewhere; None if nowhere.
    """
    learning = configuration.program.comparison.learning
    learns_otherwise = learning(configuration.parameters) != learning(parameters)
    gain = "" if result is None else result.place_words
    notes = [option.description, LEARNS_OTHERWISE if learns_otherwise else "", gain]
    words = ", ".join(note for note in notes if note)
    text = f"`{option.name}` ({words})" if words else f"`{option.name}`"
    if not gain or result is None:
        rank = 1
    else:
        rank = 0 if result.is_shown else 2
    return _Trial(rank, learns_otherwise, text)


def _program_trials(situation: Situation, bottleneck: Bottleneck) -> list[_Trial]:
    """Return the options to change the user's program, in Markdown."""
    trials = []
    for option in options().programs[bottleneck.name]:
        if option.applies(situation):
            note = f" ({LEARNS_OTHERWISE})" if option.learns_otherwise else ""
            trials.append(_Trial(1, option.learns_otherwise, f"{option.description}{note}"))
    return trials


def _implied_by(configuration: Configuration, option: TuningOption) -> set[str]:
    """Return the parameters whose defaults follow from those that an option changes."""
    implied = configuration.program.parameters.IMPLIED
    return {name for changed in option.changes for name in implied.get(changed, ())}


def _changed_by(configuration: Configuration, option: TuningOption) -> set[str]:
    """Return the parameters of an option, and those that follow from them."""
    return {*option.changes, *_implied_by(configuration, option)}


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
        parameters = configuration.program.parameters.model_validate(kept | changed)
    except ValidationError:
        return None
    if not is_possible(parameters):
        return None
    following = {name: getattr(parameters, name) for name in implied - changed.keys()}
    return {**configuration.parameters, **changed, **following}


def is_possible(parameters: JobParameters) -> bool:
    """True if a run with these parameters is possible on some machine."""
    run = Run("", parameters)
    return run.unsupported_reason(EVERYTHING) is None and run.config_error() is None


def _may_help(configuration: Configuration, option: TuningOption) -> bool:
    """True if a configuration has the parameters and the device of an option, does not use it, and may gain by it."""
    program = configuration.program
    has_parameters = option.changes.keys() <= program.parameters.model_fields.keys()
    if not has_parameters or option.device not in (None, configuration["device"]):
        return False
    if has_option(configuration, option, configuration):
        return False
    if "binding" in option.changes and not has_several_numa_nodes(configuration):
        return False
    if option.changes.get("precision") and configuration["precision"] in ("fp16", "bf16"):
        return False
    return program.comparison.tuning_applies(option.changes, configuration.parameters)


def _example(change: Any, value: Any) -> Any:
    """Return an example of a changed value: twice `value` if higher or different, half if lower, else as stated."""
    if change in (HIGHER, DIFFERENT):
        return max(1, (value or 0) * 2)
    if change == LOWER:
        return max(1, (value or 0) // 2)
    return change


def _change_words(name: str, change: Any) -> str:
    return f"{VERBS[change]} {name}" if change in VERBS else statement(name, change)
