"""Options against each kind of bottleneck, by options.yaml, and what the results already say about them."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import ValidationError

from multicard.analysis.bottlenecks.bottlenecks import LEAST, Kind
from multicard.analysis.evidence import Configuration
from multicard.analysis.pooling import Pool
from multicard.analysis.statistics import Interval, corrected, verdict
from multicard.core.units import confidence, percent
from multicard.experiment.machine import Machine
from multicard.experiment.runs import Run

# Changes of a parameter to no particular value.
HIGHER, LOWER, DIFFERENT = "higher", "lower", "different"

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
            and (not self.numa or several_numa_nodes(configuration))
            and not (self.pins and pageable is not None and pageable < LEAST)
        )


@cache
def options() -> tuple[dict[Kind, list[TuningOption]], dict[Kind, list[ProgramOption]]]:
    """Parameters to change against each kind of bottleneck, and what to change in a program."""
    read = yaml.safe_load(Path(__file__).with_name("options.yaml").read_text(encoding="utf-8"))
    return (
        {kind: [TuningOption(**each) for each in _joined(found)] for kind, found in read["parameters"].items()},
        {kind: [ProgramOption(**each) for each in _joined(found)] for kind, found in read["programs"].items()},
    )


def _joined(found: list[Any]) -> list[dict[str, Any]]:
    return [each for part in found for each in (part if isinstance(part, list) else [part])]


@dataclass(frozen=True)
class Tried:
    """A measured configuration with the option: its speed and peak memory, over those of the one without.

    Their verdicts are corrected for all that was tried against a bottleneck.
    """

    configuration: Configuration
    speed: Interval
    memory: Interval


@dataclass(frozen=True)
class Advice:
    """An option that a configuration does not have, and what was measured with it, if anything.

    `learns_otherwise`: the option changes what is learned from a sample (`Workload.learning`).
    """

    option: TuningOption
    tried: list[Tried]
    learns_otherwise: bool = False


class Neighbours:
    """Finds the configurations that differ from one only in some parameters."""

    def __init__(self, configurations: Sequence[Configuration]):
        self._configurations = configurations
        self._by: dict[tuple[str, ...], dict[Any, list[Configuration]]] = {}
        self._pools: dict[tuple[Any, ...], tuple[Pool, dict[int, int]]] = {}

    def of(self, configuration: Configuration, parameters: Sequence[str]) -> list[Configuration]:
        """Those that are equal in all but the parameters and what these imply."""
        implied = configuration.workload.implied
        names = tuple(sorted({*parameters, *(each for name in parameters for each in implied.get(name, ()))}))
        if names not in self._by:
            groups = defaultdict(list)
            for each in self._configurations:
                groups[each.rest(names)].append(each)
            self._by[names] = groups
        return [each for each in self._by[names][configuration.rest(names)] if each is not configuration]

    def ratio(self, measure: str, one: Configuration, base: Configuration) -> Interval:
        """A measure of a configuration over that of another, by the scatter of all of their job and place."""
        key = measure, *self._job(one)
        if key not in self._pools:
            alike = [each for each in self._configurations if self._job(each) == key[1:]]
            self._pools[key] = Pool([each.blocks(measure) for each in alike]), {id(e): i for i, e in enumerate(alike)}
        pool, places = self._pools[key]
        return pool.ratio(places[id(one)], places[id(base)])

    @staticmethod
    def _job(configuration: Configuration) -> tuple[Any, ...]:
        place = configuration.provenance
        return configuration.workload.job(configuration.parameters), configuration["device"], place.kind, place.software


def advice(configuration: Configuration, kind: Kind, neighbours: Neighbours) -> list[Advice]:
    """Options against a bottleneck that a configuration does not have yet, those that were measured first."""
    found = []
    for option in options()[0].get(kind, ()):
        values = _with_option(configuration, option)
        if values is None:
            continue
        having = [
            each
            for each in neighbours.of(configuration, list(option.changes))
            if each.completed and all(_is(each[n], c, configuration[n]) for n, c in option.changes.items())
        ]
        learning = configuration.workload.learning
        otherwise = learning(configuration.parameters) != learning(values)
        found.append(Advice(option, [_tried(neighbours, configuration, each) for each in having], otherwise))
    tried = [tried for each in found for tried in each.tried]
    ratios = iter(corrected([ratio for each in tried for ratio in (each.speed, each.memory)]))
    found = [
        replace(each, tried=[Tried(tried.configuration, next(ratios), next(ratios)) for tried in each.tried])
        for each in found
    ]
    return sorted(found, key=lambda each: not each.tried)


def effect(ratio: Interval, what: tuple[str, str] = ("faster", "slower")) -> str:
    """Describe a ratio of speed, or of something else.

    >>> effect(Interval(1.25, 1.2, 1.3, 3, p_value=0.01))
    '25% faster (95% CI +20% to +30%, n=3)'
    >>> effect(Interval(1.42, 0.41, 4.96, 2, p_value=0.3)), effect(Interval(0.8, None, None, 1))
    ('inconclusive: +42% (95% CI -59% to +396%, n=2)', 'inconclusive: -20% (n=1)')
    """
    if ratio.value is None:
        return "not known"
    ends = [None if end is None else percent(end - 1, signed=True) for end in (ratio.value, ratio.low, ratio.high)]
    if verdict(ratio) in ("unknown", "none"):
        return f"inconclusive: {ends[0]} {confidence(*ends[1:], ratio.repeats)}"
    change = f"{percent(abs(ratio.value - 1))} {what[verdict(ratio) == 'less']}"
    return f"{change} {confidence(*ends[1:], ratio.repeats)}"


def _tried(neighbours: Neighbours, configuration: Configuration, having: Configuration) -> Tried:
    measures = configuration.rate, "peak_memory_bytes"
    return Tried(having, *(neighbours.ratio(measure, having, configuration) for measure in measures))


def _with_option(configuration: Configuration, option: TuningOption) -> dict[str, Any] | None:
    """The parameters with the option; None if it changes nothing here, or the workload does not allow it."""
    if option.workload not in (None, configuration["workload"]):
        return None
    if option.device not in (None, configuration["device"]):
        return None
    if all(_is(configuration[name], change, configuration[name]) for name, change in option.changes.items()):
        return None
    if "binding" in option.changes and not several_numa_nodes(configuration):
        return None
    precision = option.changes.get("precision")
    if precision and configuration["precision"] in ("fp16", "bf16"):
        return None
    return _changed(configuration, option)


def several_numa_nodes(configuration: Configuration) -> bool:
    """Whether there are several NUMA nodes; where that is not recorded, GPUs are taken to have some."""
    nodes = {node for run in configuration.runs for node in run.provenance.numa_nodes}
    return len(nodes) > 1 or (not nodes and configuration["device"] == "cuda")


def _changed(configuration: Configuration, option: TuningOption) -> dict[str, Any] | None:
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
