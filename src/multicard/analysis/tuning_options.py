"""What to try against what holds a configuration back, and what the results already say of it."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ValidationError

from multicard.analysis.bottlenecks import Kind
from multicard.analysis.evidence import Configuration
from multicard.analysis.statistics import Interval, ratios_of, verdict
from multicard.core.units import percent
from multicard.experiment.machine import Machine
from multicard.experiment.runs import Run

# A value, or one of these.
MORE, LESS, OTHER = "more", "less", "other"

# A machine that lacks nothing: what is impossible on it is impossible.
EVERYTHING = Machine(cpus=10**6, gpus=10**6, nodes=10**6, compiler=True, dali=True, weights_needed=False)


@dataclass(frozen=True)
class TuningOption:
    """Parameters to change, each to a value, or to `more`, `less` or `other` than it is.

    It is for one workload and one kind of device, or for both.
    """

    changes: dict[str, Any]
    workload: Literal["vision", "llm"] | None = None
    says: str = ""
    device: Literal["cuda", "cpu"] | None = None

    @property
    def name(self) -> str:
        """The switch in words.

        >>> TuningOption({"pin_memory": True, "num_workers": MORE}).name
        'pin_memory: true, more num_workers'
        """
        return ", ".join(_change_words(name, value) for name, value in self.changes.items())


LOWER_PRECISION = (TuningOption({"precision": "bf16"}), TuningOption({"precision": "fp16"}, "vision"))

TUNING_OPTIONS: dict[Kind, tuple[TuningOption, ...]] = {
    "data loading": (
        TuningOption({"num_workers": MORE}, "vision", "loads in more processes"),
        TuningOption({"prefetch_factor": MORE}, "vision", "loads further ahead; needs workers"),
        TuningOption({"loader": "dali"}, "vision", "decodes and resizes on the card", "cuda"),
        TuningOption({"loader": "dali"}, "vision", "decodes and resizes in threads of its own", "cpu"),
        TuningOption({"binding": "numa"}, None, "keeps a rank and its loading on one NUMA node"),
    ),
    "launch overhead": (
        TuningOption({"cuda_graphs": True}, "vision", "replays a step's kernels by one launch", "cuda"),
        TuningOption({"compile": True}, None, "fuses kernels, so that fewer are launched"),
        TuningOption({"fused_optimizer": True}, "vision", "updates all weights in one kernel"),
        TuningOption({"preset": "tuned"}, "vision"),
        TuningOption({"batch_size": MORE}, None, "gives each launch more to do"),
        TuningOption({"binding": "numa"}, None, "keeps the launching process next to the card"),
    ),
    "exposed communication": (
        TuningOption({"bucket_cap_mb": OTHER}, "vision", "begins earlier, or in fewer and larger parts"),
        TuningOption({"batch_size": MORE}, None, "computes more per exchange of gradients"),
        TuningOption({"gradient_accumulation_steps": MORE}, "llm", "exchanges gradients more rarely"),
        TuningOption({"strategy": "ddp-ds"}, "vision"),
    ),
    "waiting for other ranks": (
        TuningOption({"packed": True}, "llm", "gives all ranks equally long batches"),
        TuningOption({"num_workers": MORE}, "vision", "keeps single ranks from waiting for data"),
        TuningOption({"binding": "numa"}),
    ),
    "memory operations": (
        TuningOption(
            {"pin_memory": True, "non_blocking": True}, "vision", "copies faster, and while the card computes", "cuda"
        ),
        TuningOption({"pin_memory": True}, "vision", "copies faster", "cuda"),
        TuningOption({"loader": "dali"}, "vision", "sends the compressed images", "cuda"),
        TuningOption({"binding": "numa"}, None, "keeps copies on one NUMA node"),
    ),
    "padding": (TuningOption({"packed": True}, "llm", "fills every sequence with several samples"),),
    "memory": (
        TuningOption({"batch_size": LESS}),
        TuningOption({"activation_checkpointing": True}, "llm", "recomputes activations instead of keeping them"),
        TuningOption({"technique": "qlora"}, "llm", "keeps frozen weights in 4 bits"),
        TuningOption({"strategy": "fsdp"}, "vision", "splits weights and optimizer among the devices"),
        TuningOption({"precision": "bf16"}),
    ),
    "compute": (
        *LOWER_PRECISION,
        TuningOption({"layout": "nhwc"}, "vision"),
        TuningOption({"tf32": "on"}, "vision", device="cuda"),
        TuningOption({"preset": "tuned"}, "vision"),
        TuningOption({"compile": True}),
    ),
}


@dataclass(frozen=True)
class Tried:
    """A configuration with the switch that was measured: its ratio of speed, and of peak memory, to the one without."""

    configuration: Configuration
    speed: Interval
    memory: Interval


@dataclass(frozen=True)
class Advice:
    """A switch that the configuration has not, and what was measured with it; nothing where it was not."""

    switch: TuningOption
    tried: list[Tried]


class Neighbours:
    """Finds the configurations that differ from one in some parameters alone."""

    def __init__(self, configurations: Sequence[Configuration]):
        self._configurations = configurations
        self._by: dict[tuple[str, ...], dict[Any, list[Configuration]]] = {}

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


def advice(configuration: Configuration, kind: Kind, neighbours: Neighbours) -> list[Advice]:
    """The switches against a bottleneck that this configuration could take, those that were tried first."""
    found = []
    for switch in TUNING_OPTIONS[kind]:
        if not _possible(configuration, switch):
            continue
        having = [
            each
            for each in neighbours.of(configuration, list(switch.changes))
            if each.completed and all(_is(each[n], c, configuration[n]) for n, c in switch.changes.items())
        ]
        found.append(Advice(switch, _tried(configuration, having)))
    return sorted(found, key=lambda each: not each.tried)


def effect(ratio: Interval, what: tuple[str, str] = ("faster", "slower")) -> str:
    """Word a ratio to what it is compared with.

    >>> effect(Interval(1.25, 1.2, 1.3, 3)), effect(Interval(0.8, None, None, 1))
    ('25 % faster [+20 %, +30 %]', 'one repeat cannot tell (-20 %)')
    """
    if ratio.value is None:
        return "not known"
    if verdict(ratio) == "unknown":
        return f"one repeat cannot tell ({percent(ratio.value - 1, signed=True)})"
    bounds = f"[{percent(ratio.low - 1, signed=True)}, {percent(ratio.high - 1, signed=True)}]"
    if verdict(ratio) == "none":
        return f"no difference beyond that of repeats {bounds}"
    return f"{percent(abs(ratio.value - 1))} {what[verdict(ratio) == 'less']} {bounds}"


def _tried(configuration: Configuration, having: Sequence[Configuration]) -> list[Tried]:
    pairs = [
        (each.values(name), configuration.values(name))
        for each in having
        for name in (configuration.rate, "peak_memory_bytes")
    ]
    ratios = ratios_of(pairs)
    return [Tried(each, ratios[2 * i], ratios[2 * i + 1]) for i, each in enumerate(having)]


def _possible(configuration: Configuration, switch: TuningOption) -> bool:
    """Whether the switch changes anything here, and no rule of the workload forbids it."""
    if switch.workload not in (None, configuration["workload"]):
        return False
    if switch.device not in (None, configuration["device"]):
        return False
    if all(_is(configuration[name], change, configuration[name]) for name, change in switch.changes.items()):
        return False
    if "binding" in switch.changes and not _has_nodes(configuration):
        return False
    precision = switch.changes.get("precision")
    if precision and configuration["precision"] in ("fp16", "bf16"):
        return False
    return _allowed(configuration, switch)


def _has_nodes(configuration: Configuration) -> bool:
    """Whether there is a choice of NUMA nodes: of CPU processes only if that is known, of cards unless it is not so."""
    nodes = {node for run in configuration.runs for node in run.place.numa_nodes}
    return len(nodes) > 1 or (not nodes and configuration["device"] == "cuda")


def _allowed(configuration: Configuration, switch: TuningOption) -> bool:
    work = configuration.workload
    if not switch.changes.keys() <= work.parameters.model_fields.keys():
        return False
    if not work.tuning_applies(switch.changes, configuration.parameters):
        return False
    values = {name: value for name, value in configuration.parameters.items() if value is not None}
    follow = {each for name in switch.changes for each in work.implied.get(name, ())}
    values = {name: value for name, value in values.items() if name not in follow}
    changed = {name: _example(change, values.get(name)) for name, change in switch.changes.items()}
    try:
        parameters = work.parameters.model_validate(values | changed)
    except ValidationError:
        return False
    changed_run = Run("", parameters)
    return changed_run.unsupported_reason(EVERYTHING) is None and changed_run.config_error() is None


def _example(change: Any, now: Any) -> Any:
    if change in (MORE, OTHER):
        return max(1, (now or 0) * 2)
    return max(1, (now or 0) // 2) if change == LESS else change


def _is(value: Any, change: Any, before: Any) -> bool:
    """Whether a value is what the change makes of the one before."""
    if change in (MORE, LESS):
        known = value is not None and before is not None
        return known and (value > before if change == MORE else value < before)
    return value != before if change == OTHER else value == change


def _change_words(name: str, change: Any) -> str:
    if change in (MORE, LESS, OTHER):
        return {MORE: f"more {name}", LESS: f"less {name}", OTHER: f"another {name}"}[change]
    return f"{name}: {str(change).lower() if isinstance(change, bool) else change}"
