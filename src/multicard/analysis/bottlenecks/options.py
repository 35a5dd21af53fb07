"""What to try against each kind of bottleneck, by options.yaml, of which a configuration has nothing yet."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

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
    """Parameters to change, each to a value, or to a `higher`, `lower` or `different` one.

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
        """Whether it can be had by a configuration, of whose copies a share is from `pageable` memory, if known."""
        return (
            self.device in (None, configuration["device"])
            and (configuration["devices"] > 1 or not self.several)
            and (not self.numa or _several_numa_nodes(configuration))
            and not (self.pins and pageable is not None and pageable < LEAST)
        )


@cache
def options() -> tuple[dict[str, list[TuningOption]], dict[str, list[ProgramOption]]]:
    """Parameters to change against each kind of bottleneck, and what to change in a program."""
    read = yaml.safe_load(Path(__file__).with_name("options.yaml").read_text(encoding="utf-8"))

    def of(section: dict[str, list[Any]], option: type) -> dict[str, list[Any]]:
        listed = {kind: [part if isinstance(part, list) else [part] for part in own] for kind, own in section.items()}
        return {kind: [option(**each) for part in own for each in part] for kind, own in listed.items()}

    return of(read["parameters"], TuningOption), of(read["programs"], ProgramOption)


def untried(configuration: Configuration, bottleneck: Bottleneck, measured: Sequence[Configuration]) -> list[str]:
    """Options in Markdown that may help and that no run has tried here, those last that were measured elsewhere.

    Before these come the ones that change what is learned from a sample. `measured`: all configurations; what some of
    them show is in the table of choices.
    """
    found: list[tuple[tuple[bool, bool], str]] = []
    learning = configuration.workload.learning
    for option in options()[0].get(bottleneck.kind, ()):
        values = _with_option(configuration, option)
        if values is None or _was_measured(configuration, option, measured):
            continue
        otherwise = learning(configuration.parameters) != learning(values)
        elsewhere = _gain_elsewhere(configuration, option, measured)
        notes = ", ".join(filter(None, (option.description, LEARNS_OTHERWISE if otherwise else "", elsewhere)))
        found.append(((bool(elsewhere), otherwise), f"`{option.name}`{f' ({notes})' if notes else ''}"))
    if configuration.workload.is_user_program:
        for each in options()[1][bottleneck.kind]:
            if each.applies(configuration, bottleneck.pageable):
                notes = f" ({LEARNS_OTHERWISE})" if each.learns_otherwise else ""
                found.append(((False, each.learns_otherwise), f"{each.description}{notes}"))
    return [text for _, text in sorted(found, key=lambda each: each[0])]


def _gain_elsewhere(configuration: Configuration, option: TuningOption, measured: Sequence[Configuration]) -> str:
    """Return what an option gave in the most similar configuration of the job that was measured with and without it.

    It is empty where there is none.
    """
    names = _changed_by(configuration, option)
    of_job = [each for each in measured if each.completed and _job(each) == _job(configuration)]
    pairs = [
        (_unlike(configuration, without, names), without, with_it)
        for without in of_job
        if all(without[name] == configuration[name] for name in option.changes)
        for with_it in of_job
        if all(_is(with_it[name], change, without[name]) for name, change in option.changes.items())
        and with_it.rest(names) == without.rest(names)
    ]
    if not pairs:
        return ""
    unlike, without, with_it = min(pairs, key=lambda pair: len(pair[0]))
    gain = ratio_of(with_it.blocks(without.rate), without.blocks(without.rate))
    return f"measured with {without.naming(unlike)}: {gain.format(unit='×')}" if gain else ""


def _unlike(configuration: Configuration, other: Configuration, besides: set[str]) -> list[str]:
    """Return the parameters in which another configuration differs, without those of how a run is observed."""
    names = [name for name in configuration.parameters if name not in {*besides, *OBSERVATION}]
    return [name for name in names if other[name] != configuration[name]]


def _job(configuration: Configuration) -> tuple[str, str, str]:
    work = configuration.workload
    return work.name, work.job(configuration.parameters), configuration["device"]


def _changed_by(configuration: Configuration, option: TuningOption) -> set[str]:
    """Return the parameters of an option, and those that follow from them."""
    implied = configuration.workload.implied
    return {*option.changes, *(each for name in option.changes for each in implied.get(name, ()))}


def _was_measured(configuration: Configuration, option: TuningOption, measured: Sequence[Configuration]) -> bool:
    """Whether another configuration differs only in the option, and in what this implies."""
    names = _changed_by(configuration, option)
    return any(
        each is not configuration
        and each["workload"] == configuration["workload"]
        and bool(each.completed)
        and all(_is(each[name], change, configuration[name]) for name, change in option.changes.items())
        and each.rest(names) == configuration.rest(names)
        for each in measured
    )


def _with_option(configuration: Configuration, option: TuningOption) -> dict[str, Any] | None:
    """The parameters with the option; None if it changes nothing here, or the workload does not allow it."""
    if option.workload not in (None, configuration["workload"]) or option.device not in (None, configuration["device"]):
        return None
    if all(_is(configuration[name], change, configuration[name]) for name, change in option.changes.items()):
        return None
    if "binding" in option.changes and not _several_numa_nodes(configuration):
        return None
    if option.changes.get("precision") and configuration["precision"] in ("fp16", "bf16"):
        return None
    work = configuration.workload
    if not option.changes.keys() <= work.parameters.model_fields.keys():
        return None
    if not work.tuning_applies(option.changes, configuration.parameters):
        return None
    values = {name: value for name, value in configuration.parameters.items() if value is not None}
    follow = {each for name in option.changes for each in work.implied.get(name, ())}
    values = {name: value for name, value in values.items() if name not in follow}
    changed = {name: _example(change, values.get(name)) for name, change in option.changes.items()}
    try:
        parameters = work.parameters.model_validate(values | changed)
    except ValidationError:
        return None
    changed_run = Run("", parameters)
    if changed_run.unsupported_reason(EVERYTHING) is not None or changed_run.config_error() is not None:
        return None
    return configuration.parameters | changed | {name: getattr(parameters, name) for name in follow - changed.keys()}


def _several_numa_nodes(configuration: Configuration) -> bool:
    """Whether there are several NUMA nodes; where that is not recorded, GPUs are taken to have some."""
    nodes = {node for run in configuration.runs for node in run.provenance.numa_nodes}
    return len(nodes) > 1 or (not nodes and configuration["device"] == "cuda")


def _example(change: Any, now: Any) -> Any:
    if change in (HIGHER, DIFFERENT):
        return max(1, (now or 0) * 2)
    return max(1, (now or 0) // 2) if change == LOWER else change


def _is(value: Any, change: Any, before: Any) -> bool:
    """Whether a value is what the change makes of the previous one."""
    if change in (HIGHER, LOWER):
        known = value is not None and before is not None
        return known and (value > before if change == HIGHER else value < before)
    return value != before if change == DIFFERENT else value == change


def _change_words(name: str, change: Any) -> str:
    if change in (HIGHER, LOWER, DIFFERENT):
        return f"{change} {name}"
    return f"{name}: {str(change).lower() if isinstance(change, bool) else change}"
