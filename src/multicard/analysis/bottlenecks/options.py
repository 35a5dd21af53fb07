"""What to try against each kind of bottleneck, by options.yaml: what a configuration has nothing of yet."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml
from pydantic import ValidationError

from multicard.analysis.bottlenecks.bottlenecks import LEAST, Bottleneck
from multicard.analysis.evidence import OBSERVATION, Configuration
from multicard.experiment.machine import Machine
from multicard.experiment.runs import Run
from multicard.stats.pool import ratio_of

# Changes of a parameter to no particular value.
HIGHER, LOWER, DIFFERENT = "higher", "lower", "different"
LEARNS_OTHERWISE = "may change accuracy"

# A machine that has everything: what is impossible on it is impossible anywhere.
EVERYTHING = Machine(cpus=10**6, gpus=10**6, nodes=10**6, compiler=True, dali=True, weights_needed=False)


@dataclass(frozen=True)
class TuningOption:
    """Parameters of a run to change, each to a value, or to a `higher`, `lower` or `different` one.

    `workload` and `device` restrict it to one workload and one kind of device.
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
    """Something to change in a program whose options are its own; see options.yaml."""

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
    """Options by the kind of bottleneck that they help against."""

    parameters: dict[str, list[TuningOption]]
    programs: dict[str, list[ProgramOption]]


class _Trial(NamedTuple):
    """An option in Markdown, and whether it comes after others: those that nothing speaks against come first."""

    was_measured_elsewhere: bool
    learns_otherwise: bool
    text: str


@cache
def options() -> Options:
    """Read parameters to change, and what to change in a program."""
    read = yaml.safe_load(Path(__file__).with_name("options.yaml").read_text(encoding="utf-8"))
    return Options(
        parameters={
            kind: [TuningOption(**stated) for stated in _flat(listed)] for kind, listed in read["parameters"].items()
        },
        programs={
            kind: [ProgramOption(**stated) for stated in _flat(listed)] for kind, listed in read["programs"].items()
        },
    )


def _flat(listed: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the options of a list; in it may be lists, which several kinds of bottlenecks share."""
    flat: list[dict[str, Any]] = []
    for entry in listed:
        flat += entry if isinstance(entry, list) else [entry]
    return flat


def untried(configuration: Configuration, bottleneck: Bottleneck, measured: Sequence[Configuration]) -> list[str]:
    """Return the options in Markdown that may help and that no run has tried here.

    Those that were measured elsewhere are last. Before these come the ones that change what is learned from a sample.
    `measured`: all configurations; what some of them show is in the table of choices.
    """
    trials = _parameter_trials(configuration, bottleneck.kind, measured)
    if configuration.workload.is_user_program:
        trials += _program_trials(configuration, bottleneck)
    trials.sort(key=lambda trial: (trial.was_measured_elsewhere, trial.learns_otherwise))
    return [trial.text for trial in trials]


def _parameter_trials(configuration: Configuration, kind: str, measured: Sequence[Configuration]) -> list[_Trial]:
    trials = []
    learning = configuration.workload.learning
    for option in options().parameters.get(kind, []):
        values = _with_option(configuration, option)
        if values is None or _was_measured(configuration, option, measured):
            continue
        learns_otherwise = learning(configuration.parameters) != learning(values)
        elsewhere = _gain_elsewhere(configuration, option, measured)
        notes = ", ".join(filter(None, (option.description, LEARNS_OTHERWISE if learns_otherwise else "", elsewhere)))
        trials.append(_Trial(bool(elsewhere), learns_otherwise, f"`{option.name}`{f' ({notes})' if notes else ''}"))
    return trials


def _program_trials(configuration: Configuration, bottleneck: Bottleneck) -> list[_Trial]:
    trials = []
    for option in options().programs[bottleneck.kind]:
        if option.applies(configuration, bottleneck.pageable):
            note = f" ({LEARNS_OTHERWISE})" if option.learns_otherwise else ""
            trials.append(_Trial(False, option.learns_otherwise, f"{option.description}{note}"))
    return trials


def _gain_elsewhere(configuration: Configuration, option: TuningOption, measured: Sequence[Configuration]) -> str:
    """Return what an option gave in the most similar configuration of the job that was measured with and without it.

    It is empty where there is none.
    """
    changed = _changed_by(configuration, option)
    of_job = [other for other in measured if other.completed and _job(other) == _job(configuration)]
    starts_alike = [other for other in of_job if all(other[name] == configuration[name] for name in option.changes)]
    pairs = [
        (without, with_option)
        for without in starts_alike
        for with_option in of_job
        if _has_option(with_option, option, without) and with_option.rest(changed) == without.rest(changed)
    ]
    if not pairs:
        return ""
    without, with_option = min(pairs, key=lambda pair: len(_unlike(configuration, pair[0], changed)))
    gain = ratio_of(with_option.blocks(without.rate), without.blocks(without.rate))
    if gain is None:
        return ""
    return f"measured with {without.naming(_unlike(configuration, without, changed))}: {gain.format(unit='×')}"


def _unlike(configuration: Configuration, other: Configuration, besides: set[str]) -> list[str]:
    """Return the parameters in which another configuration differs, without those of how a run is observed."""
    names = [name for name in configuration.parameters if name not in {*besides, *OBSERVATION}]
    return [name for name in names if other[name] != configuration[name]]


def _job(configuration: Configuration) -> tuple[str, str, str]:
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
    """True if another configuration differs only in the option, and in what this implies."""
    changed = _changed_by(configuration, option)
    return any(
        other is not configuration
        and other["workload"] == configuration["workload"]
        and bool(other.completed)
        and _has_option(other, option, configuration)
        and other.rest(changed) == configuration.rest(changed)
        for other in measured
    )


def _has_option(other: Configuration, option: TuningOption, before: Configuration) -> bool:
    """True if a configuration has the values that an option makes of those of another."""
    return all(_is_changed(other[name], change, before[name]) for name, change in option.changes.items())


def _with_option(configuration: Configuration, option: TuningOption) -> Mapping[str, Any] | None:
    """Return the parameters with the option; None if it changes nothing here, or is not possible."""
    if not _may_help(configuration, option):
        return None
    workload = configuration.workload
    implied = _implied_by(configuration, option)
    values = {
        name: value for name, value in configuration.parameters.items() if value is not None and name not in implied
    }
    changed = {name: _example(change, values.get(name)) for name, change in option.changes.items()}
    try:
        parameters = workload.parameters.model_validate(values | changed)
    except ValidationError:
        return None
    run = Run("", parameters)
    if run.unsupported_reason(EVERYTHING) is not None or run.config_error() is not None:
        return None
    return {
        **configuration.parameters,
        **changed,
        **{name: getattr(parameters, name) for name in implied - changed.keys()},
    }


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
    """Return a value that the change may make of another one."""
    if change in (HIGHER, DIFFERENT):
        return max(1, (value or 0) * 2)
    return max(1, (value or 0) // 2) if change == LOWER else change


def _is_changed(value: Any, change: Any, before: Any) -> bool:
    """True if a value is what the change makes of the previous one."""
    if change in (HIGHER, LOWER):
        if value is None or before is None:
            return False
        return value > before if change == HIGHER else value < before
    return value != before if change == DIFFERENT else value == change


def _change_words(name: str, change: Any) -> str:
    if change in (HIGHER, LOWER, DIFFERENT):
        return f"{change} {name}"
    return f"{name}: {str(change).lower() if isinstance(change, bool) else change}"
