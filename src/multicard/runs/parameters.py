"""What the parameters of every workload share, and the readable id that a run's parameters make."""

import hashlib
import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from multicard.core.secrets import REMOVED, arguments_without_secrets, is_secret_argument, secret_parameters
from multicard.core.text import quoted
from multicard.core.units import ARGS_PREFIX
from multicard.profilers import PROFILERS

DATASET_NAME = r"^[a-z0-9][a-z0-9-]*$"
DEFAULT_WORKLOAD = "vision"  # of parameters that name none
LONGEST_ID = 180  # file systems allow 255 bytes in a name; temporary names need some of them


def labelled(label: str, description: str, **limits: Any) -> Any:
    """A parameter that stands in a run's id by its label where it differs from its default; `limits`: as of Field."""
    return Field(description=description, json_schema_extra={"label": label}, **limits)


# What each workload has with a default of its own.
DatasetOf = Annotated[str, Field(pattern=DATASET_NAME, description="Name of a data set listed under `datasets`.")]
WarmupSteps = Annotated[int, labelled("warmup", "Warm-up steps, excluded from all measures.", ge=0)]
ProfiledSteps = Annotated[
    int,
    labelled(
        "profiled",
        "Steps recorded by the profiler, after the measured ones. In vision runs at least 4 × `num_workers` × "
        "`prefetch_factor`, after as many warm-up steps.",
        ge=1,
    ),
]


ARGS = "args"  # the parameter that holds a user's own
TEXT = r"^[^\x00]*$"  # what an argument of a program may be


def own_value(value: Any) -> Any:
    """Give text that is written as a number or boolean would be as that, so that equal commands are equal runs."""
    if isinstance(value, str):
        if value in ("True", "False"):
            return value == "True"
        for kind in (int, float):
            try:
                number = kind(value)
            except ValueError:
                continue
            if str(number) == value and math.isfinite(number):
                return number
    elif not isinstance(value, (int, float)):
        raise ValueError(f"found {quoted(value)}, expected text, a number or a boolean")
    return value


OwnName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$")]
OwnValue = Annotated[Annotated[str, StringConstraints(pattern=TEXT)] | int | float | bool, BeforeValidator(own_value)]


def flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters with the user's own one by one instead of under `args`.

    >>> flat({"args": {"b": 32}, "devices": 2})
    {'devices': 2, 'args.b': 32}
    """
    own = {f"{ARGS_PREFIX}{name}": value for name, value in (values.get(ARGS) or {}).items()}
    return {name: value for name, value in values.items() if name != ARGS} | own


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `flat`.

    >>> nested({"devices": 2, "args.b": 32})
    {'devices': 2, 'args': {'b': 32}}
    """
    own = {name.removeprefix(ARGS_PREFIX): value for name, value in values.items() if name.startswith(ARGS_PREFIX)}
    others = {name: value for name, value in values.items() if not name.startswith(ARGS_PREFIX)}
    return others | {ARGS: own} if own else others


def as_columns(values: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters as tables have them: the user's own one by one, words as one text, and no secrets.

    >>> as_columns({"command": ("train.py", "-b {b}", "--token=hunter2"), "args": {"b": 32}})
    {'command': "train.py '-b {b}' --token=removed", 'args.b': 32}
    """
    own = values.get(ARGS)
    if own and (secret := secret_own(values.get("command") or (), own)):
        values = {**values, ARGS: {**own, **dict.fromkeys(secret, REMOVED)}}
    return {
        name: shlex.join(arguments_without_secrets(value)) if isinstance(value, list | tuple) else value
        for name, value in flat(values).items()
    }


_placed_as_secrets = cache(secret_parameters)  # of thousands of runs each asks


def secret_own(command: Sequence[str], own: Mapping[str, Any]) -> set[str]:
    """Names of the user's own parameters that look like secrets: by their names, or by their place in the command."""
    placed = _placed_as_secrets(tuple(command))
    return {name for name, value in own.items() if name in placed or is_secret_argument(name, str(value))}


# Parts that a run may go without, and several; see `multicard.record.observe.ablation`.
ABLATIONS = ("none", "loader", "communication", "loader+communication", "host", "communication+host")


class JobParameters(BaseModel):
    """Base of a workload's parameters.

    The metadata `label` is how a parameter shows in the run id when it differs from its default.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    # The parameters that every reader asks for; `run_id` begins with them.
    HEADLINE: ClassVar[tuple[str, ...]]

    workload: str = Field(description="The kind of job.")
    device: Literal["cpu", "cuda"] = Field("cuda", description="`cuda`: one GPU per rank; `cpu`: one process per rank.")
    devices: int = Field(1, ge=1, le=1024, description="Total number of GPUs, or of CPU processes, over all nodes.")
    nodes: int = labelled(
        "nodes", "Machines that share the devices equally; more than one needs Slurm.", ge=1, le=1024, default=1
    )
    threads: int = labelled("threads", "CPU threads per rank.", ge=1, default=1)
    binding: Literal["none", "numa"] = labelled(
        "binding-", "`numa`: each rank is bound to the CPUs and memory next to its GPU.", default="none"
    )
    seed: int = labelled("seed", "Random seed of repeat 1.", ge=0, default=0)
    warmup_steps: WarmupSteps = 10
    profiled_steps: ProfiledSteps = 10
    ablate: Literal[ABLATIONS] = labelled(
        "without-",
        "What the run goes without, to measure what it costs; such a run trains nothing. `loader`: the "
        "batches of the warm-up come again and again. `communication`: ranks exchange no gradients. `host`: "
        "without the loader, too, and a step is replayed as a CUDA graph, so that its GPU never waits.",
        default="none",
    )
    profiler: Literal[("auto", *PROFILERS)] = labelled(
        "profiler-",
        "`auto`: the first of the others that is available. "
        + "; ".join(f"`{name}`: {profiler.description}" for name, profiler in PROFILERS.items())
        + ".",
        default="auto",
    )
    memory_snapshot: bool = labelled(
        "memory-snapshot",
        "Record the history of GPU memory, which makes steps longer. If memory runs out, the reason tells what "
        "held it, and `memory_snapshot.pickle` in the run's folder opens in PyTorch's viewer.",
        default=False,
    )
    repeat: int = Field(1, ge=1, description="Number of this repeat; the seed increases with it.")

    @property
    def ablated(self) -> tuple[str, ...]:
        """Parts that the run goes without: with the host also the loader, which works there."""
        parts = tuple(self.ablate.split("+")) if self.ablate != "none" else ()
        return ("loader", *parts) if "host" in parts else parts

    @property
    def ranks(self) -> int:
        """Number of training processes."""
        return self.devices

    @property
    def ranks_per_node(self) -> int:
        """Number of training processes on each node."""
        return self.ranks // self.nodes

    @property
    def devices_per_node(self) -> int:
        """Number of GPUs, or of CPU processes, on each node."""
        return self.devices // self.nodes

    @property
    def distributed(self) -> bool:
        """Whether torchrun starts the ranks and they form a process group."""
        raise NotImplementedError

    @property
    def compiled(self) -> bool:
        """Whether torch.compile is asked for."""
        return False

    @property
    def loader_workers(self) -> int:
        """Processes that load data, of all ranks together."""
        return 0

    @property
    def cpus_per_node(self) -> int:
        """CPUs of a node: one for each thread and each loading process of its ranks."""
        return self.ranks_per_node * self.threads + math.ceil(self.loader_workers / self.nodes)

    @property
    def shared_memory_bytes(self) -> int:
        """The most that loading processes put into shared memory: all batches that they load ahead."""
        return 0

    @property
    def id_parts(self) -> Iterable[str]:
        """Further parts of the run id, before the repeat."""
        return ()

    def default(self, name: str) -> Any:
        """Value of a parameter that is not stated."""
        return field_defaults(type(self))[name]

    def stated(self) -> dict[str, Any]:
        """Only what differs from the defaults, so that a new parameter with a default reruns nothing.

        The workload is stated unless it is the default one.
        """
        different = {name: value for name, value in self.model_dump().items() if value != self.default(name)}
        return different if self.workload == DEFAULT_WORKLOAD else {"workload": self.workload, **different}


@cache  # of thousands of runs each asks
def field_defaults(kind: type[JobParameters]) -> dict[str, Any]:
    """Defaults of the parameters of a workload."""
    return {name: field.default for name, field in kind.model_fields.items()}


@cache
def _labels(kind: type[JobParameters]) -> dict[str, str]:
    """What stands in a run id before the value of a parameter, of those that show only where they are stated."""
    labels = {name: (field.json_schema_extra or {}).get("label") for name, field in kind.model_fields.items()}
    return {name: label for name, label in labels.items() if label is not None}


def run_id(parameters: JobParameters) -> str:
    """Stable readable name of a run, made of its own parameters and of nothing else.

    The headline comes first; any other parameter shows only when it differs from its default, so two different runs
    never share an id. An id too long for a file name ends in a digest.
    """
    p = parameters
    parts = [p.workload, *(_headline(p, name) for name in p.HEADLINE)]
    for name, label in _labels(type(p)).items():
        value = getattr(p, name)
        if value != p.default(name):
            parts.append(f"{label}{value}" if not isinstance(value, bool) else label if value else f"no-{label}")
    name = "_".join([*parts, *p.id_parts, f"r{p.repeat}"])
    if len(name) > LONGEST_ID:
        digest = hashlib.sha256(name.encode()).hexdigest()[:12]
        name = f"{name[: LONGEST_ID - 13]}_{digest}"
    return name


def _headline(parameters: JobParameters, name: str) -> str:
    match name:
        case "image_size":
            return f"{parameters.image_size}px"
        case "devices":
            return f"{parameters.device}{parameters.devices}"
    return str(getattr(parameters, name))
