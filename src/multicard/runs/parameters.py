"""What the parameters of every workload share, and the readable id that a run's parameters make."""

import hashlib
import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, ClassVar, get_args

from pydantic import BaseModel, ConfigDict, Field

from multicard.core.secrets import REMOVED, arguments_without_secrets, is_secret_argument, secret_parameters
from multicard.core.units import ARGS_PREFIX
from multicard.profilers import PROFILERS
from multicard.runs.parameter_types import (
    Ablation,
    Binding,
    DatasetName,
    Device,
    DeviceCount,
    NodeCount,
    NonNegative,
    Positive,
    ProfilerName,
)

DEFAULT_WORKLOAD = "vision"  # where parameters state none
LONGEST_ID = 180  # file systems allow 255 bytes in a name; temporary names need some of them
ARGS = "args"  # the parameter that holds a user's own
# Parts of a step that a run may skip, and combinations; see `multicard.record.observe.ablation`.
ABLATIONS: tuple[str, ...] = get_args(Ablation)


# How values of a parameter are worded for people: a format, or one by the text of a value, with `ANY` for all others.
# The text of a value that is not stated (null) is empty.
Words = str | dict[str, str]
ANY = "*"


def labelled(label: str, description: str, words: Words | None = None, **options: Any) -> Any:
    """Return a pydantic field that shows in a run's id as its label and value, where it differs from its default.

    `words`: see `worded`. `options`: further arguments of `pydantic.Field`.
    """
    return Field(description=description, json_schema_extra=_metadata(label=label, words=words), **options)


def worded(words: Words, description: str, **options: Any) -> Any:
    """Return a pydantic field whose values figures and texts word by `words`, such as "batch {}".

    Of others they state the name, too. `options`: further arguments of `pydantic.Field`.
    """
    return Field(description=description, json_schema_extra=_metadata(words=words), **options)


def _metadata(**entries: Any) -> dict[str, Any]:
    return {name: entry for name, entry in entries.items() if entry is not None}


# Parameters that each workload has with a default of its own.
DatasetOf = Annotated[DatasetName, worded("{}", "Name of a data set listed under `datasets`.")]
WarmupSteps = Annotated[NonNegative, labelled("warmup", "Warm-up steps, excluded from all measures.")]
ProfiledSteps = Annotated[
    Positive,
    labelled(
        "profiled",
        "Steps recorded by the profiler, after the measured ones. In vision runs at least 4 × `num_workers` × "
        "`prefetch_factor`, after as many warm-up steps.",
    ),
]


def flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters with the user's own as keys of their own, instead of in a mapping under `args`.

    >>> flat({"args": {"b": 32}, "devices": 2})
    {'devices': 2, 'args.b': 32}
    """
    ours = {name: value for name, value in values.items() if name != ARGS}
    users_own = {f"{ARGS_PREFIX}{name}": value for name, value in (values.get(ARGS) or {}).items()}
    return ours | users_own


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters with the user's own in a mapping under `args`: the inverse of `flat`.

    >>> nested({"devices": 2, "args.b": 32})
    {'devices': 2, 'args': {'b': 32}}
    """
    ours: dict[str, Any] = {}
    users_own: dict[str, Any] = {}
    for name, value in values.items():
        if name.startswith(ARGS_PREFIX):
            users_own[name.removeprefix(ARGS_PREFIX)] = value
        else:
            ours[name] = value
    return ours | {ARGS: users_own} if users_own else ours


def as_columns(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters as columns of a table: flat, commands as text in a shell's syntax, and without secrets.

    >>> as_columns({"command": ("train.py", "-b {b}", "--token=hunter2"), "args": {"b": 32}})
    {'command': "train.py '-b {b}' --token=removed", 'args.b': 32}
    """
    users_own = values.get(ARGS) or {}
    secrets = secret_own(values.get("command") or (), users_own) if users_own else set()
    columns = {**values, ARGS: {**users_own, **dict.fromkeys(secrets, REMOVED)}} if secrets else values
    return {
        name: shlex.join(arguments_without_secrets(value)) if isinstance(value, list | tuple) else value
        for name, value in flat(columns).items()
    }


# The runs of a scenario share their command, which takes longer to search than the rest of a run takes to plan.
_secret_parameters_of_command = cache(secret_parameters)


def secret_own(command: Sequence[str], users_own: Mapping[str, Any]) -> set[str]:
    """Return the names of the user's own parameters that look like secrets, by name or by their place in `command`.

    >>> secret_own(["train.py", "--password={p}", "-b", "{b}"], {"p": "hunter2", "b": 8, "api_key": "x"}) - {"p"}
    {'api_key'}
    """
    secret_in_command = _secret_parameters_of_command(tuple(command))
    return {
        name for name, value in users_own.items() if name in secret_in_command or is_secret_argument(name, str(value))
    }


class JobParameters(BaseModel):
    """Parameters of one job: the base of every workload's.

    The metadata `label` is how a parameter shows in the run id when it differs from its default.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    # Names of the parameters with which `run_id` begins: those that a reader of results looks for first.
    HEADLINE: ClassVar[tuple[str, ...]]

    workload: str = Field(description="The kind of job.")
    device: Device = worded("{}", "`cuda`: one GPU per rank; `cpu`: one process per rank.", default="cuda")
    devices: DeviceCount = Field(default=1, description="Total number of GPUs, or of CPU processes, over all nodes.")
    nodes: NodeCount = labelled(
        "nodes", "Machines that share the devices equally; more than one needs Slurm.", default=1
    )
    threads: Positive = labelled("threads", "CPU threads per rank.", default=1)
    binding: Binding = labelled(
        "binding-", "`numa`: each rank is bound to the CPUs and memory next to its GPU.", default="none"
    )
    seed: NonNegative = labelled("seed", "Random seed of repeat 1.", default=0)
    warmup_steps: WarmupSteps = 10
    profiled_steps: ProfiledSteps = 10
    ablate: Ablation = labelled(
        "without-",
        "What the run goes without, to measure what it costs; such a run trains nothing. `loader`: the "
        "batches of the warm-up come again and again. `communication`: ranks exchange no gradients. `host`: "
        "without the loader, too, and a step is replayed as a CUDA graph, so that its GPU never waits.",
        default="none",
    )
    profiler: ProfilerName = labelled(
        "profiler-",
        "`auto`: the first of the others that is available. "
        + "; ".join(f"`{name}`: {profiler.description}" for name, profiler in PROFILERS.items())
        + ".",
        {"none": "no profiler", ANY: "{}"},
        default="auto",
    )
    memory_snapshot: bool = labelled(
        "memory-snapshot",
        "Record the history of GPU memory, which makes steps longer. If memory runs out, the reason tells what "
        "held it, and `memory_snapshot.pickle` in the run's folder opens in PyTorch's viewer.",
        default=False,
    )
    repeat: Positive = Field(default=1, description="Number of this repeat; the seed increases with it.")

    @property
    def ablated(self) -> tuple[str, ...]:
        """Parts that the run skips; to skip the host's work includes skipping the loader, which is part of it."""
        if self.ablate == "none":
            return ()
        parts = tuple(self.ablate.split("+"))
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
        """True if torchrun starts the ranks and they form a process group."""
        raise NotImplementedError

    @property
    def compiled(self) -> bool:
        """True if the run uses torch.compile."""
        return False

    @property
    def loader_workers(self) -> int:
        """Number of processes that load data, of all ranks together."""
        return 0

    @property
    def cpus_per_node(self) -> int:
        """CPUs that the run needs on a node: one for each thread and each loading process of its ranks."""
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
        """Return the value that a parameter has where it is not stated."""
        return field_defaults(type(self))[name]

    def stated(self) -> dict[str, Any]:
        """Return only what differs from the defaults, so that a new parameter with a default reruns nothing.

        The workload is stated unless it is the default one.
        """
        different = {name: value for name, value in self.model_dump().items() if value != self.default(name)}
        return different if self.workload == DEFAULT_WORKLOAD else {"workload": self.workload, **different}


# The fields of a class never change, and planning asks for them for each of thousands of runs: hence the caches.
@cache
def field_defaults(parameters: type[JobParameters]) -> dict[str, Any]:
    """Return the defaults of a workload's parameters by name."""
    return {name: field.default for name, field in parameters.model_fields.items()}


@cache
def _labels(parameters: type[JobParameters]) -> dict[str, str]:
    """Return the labels of the parameters that a run id shows only where they differ from their defaults."""
    return _metadata_entries(parameters, "label")


@cache
def parameter_words(parameters: type[JobParameters]) -> dict[str, Words]:
    """Return how the values of parameters are worded, by name; see `worded`."""
    return _metadata_entries(parameters, "words")


def _metadata_entries(parameters: type[JobParameters], entry: str) -> dict[str, Any]:
    entries = {}
    for name, field in parameters.model_fields.items():
        metadata = field.json_schema_extra
        if isinstance(metadata, dict) and entry in metadata:
            entries[name] = metadata[entry]
    return entries


def run_id(parameters: JobParameters) -> str:
    """Return the readable id of a run, made of its own parameters and of nothing else, so that it is stable.

    The headline comes first; any other parameter shows only when it differs from its default, so two different runs
    never share an id. An id too long for a file name ends in a digest.
    """
    parts = [parameters.workload, *(_headline_part(parameters, name) for name in parameters.HEADLINE)]
    for name, label in _labels(type(parameters)).items():
        value = getattr(parameters, name)
        if value != parameters.default(name):
            parts.append(_labelled_part(label, value))
    full_id = "_".join([*parts, *parameters.id_parts, f"r{parameters.repeat}"])
    if len(full_id) <= LONGEST_ID:
        return full_id
    digest = hashlib.sha256(full_id.encode()).hexdigest()[:12]
    return f"{full_id[: LONGEST_ID - 13]}_{digest}"


def _headline_part(parameters: JobParameters, name: str) -> str:
    value = getattr(parameters, name)
    match name:
        case "image_size":
            return f"{value}px"
        case "devices":
            return f"{parameters.device}{value}"
    return str(value)


def _labelled_part(label: str, value: Any) -> str:
    """Return a parameter as it shows in a run id.

    >>> _labelled_part("batch", 32), _labelled_part("packed", True), _labelled_part("persistent", False)
    ('batch32', 'packed', 'no-persistent')
    """
    if isinstance(value, bool):
        return label if value else f"no-{label}"
    return f"{label}{value}"
