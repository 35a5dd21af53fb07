"""The parameters that all programs share, and the readable id of a run, which is made of its parameters."""

import hashlib
import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, ClassVar, TypeAlias, get_args

from pydantic import BaseModel, ConfigDict, Field

from multicard.core.secrets import REMOVED, arguments_without_secrets, is_secret_argument, secret_parameters
from multicard.core.units import ARGS_PREFIX
from multicard.core.values import Row
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

DEFAULT_WORKLOAD = "vision"  # the program of parameters that state none
# Most characters of a run's id. File systems allow 255 bytes in a name, and names of temporary files add some to it.
LONGEST_ID = 180
ARGS = "args"  # name of the parameter that holds the user's own parameters, by name
# Values of `ablate`: the parts of a step that a run may skip, alone or together, and "none". See
# `multicard.observe.ablation`.
ABLATIONS: tuple[str, ...] = get_args(Ablation)


# How the values of a parameter are shown to people: one format for all values, such as "batch {}", or a mapping from
# the text of a value to a format, in which `ANY` stands for all other values. The text of null is empty.
Words = str | dict[str, str]
ANY = "*"


def labelled(label: str, description: str, words: Words | None = None, **options: Any) -> Any:
    """Return a pydantic field that a run's id shows, as label and value, if it differs from its default.

    `words`: as for `worded`. `options`: further arguments of `pydantic.Field`.
    """
    return Field(description=description, json_schema_extra=_metadata(label=label, words=words), **options)


def worded(words: Words, description: str, **options: Any) -> Any:
    """Return a pydantic field whose values are shown in figures and texts as `words` states, such as "batch {}".

    The values of a field without `words` are shown with the field's name. `options`: further arguments of
    `pydantic.Field`.
    """
    return Field(description=description, json_schema_extra=_metadata(words=words), **options)


def _metadata(**entries: Any) -> dict[str, Any]:
    """Return the entries that are not None."""
    return {name: entry for name, entry in entries.items() if entry is not None}


# Types of parameters that several programs have, each with its own default.
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


# Parameters by name, in a form of their own: a configuration file states them, and a workload's model validates them. A
# user's own parameters may have any name and value, so values have no narrower type.
Parameters: TypeAlias = dict[str, Any]


def flat(values: Mapping[str, Any]) -> Parameters:
    """Return parameters in which each of the user's own is a key such as `args.batch`, instead of a mapping `args`.

    >>> flat({"args": {"b": 32}, "devices": 2})
    {'devices': 2, 'args.b': 32}
    """
    ours = {name: value for name, value in values.items() if name != ARGS}
    users_own = {f"{ARGS_PREFIX}{name}": value for name, value in (values.get(ARGS) or {}).items()}
    return ours | users_own


def nested(values: Mapping[str, Any]) -> Parameters:
    """Return parameters in which the user's own are a mapping `args`: the inverse of `flat`.

    >>> nested({"devices": 2, "args.b": 32})
    {'devices': 2, 'args': {'b': 32}}
    """
    ours: Parameters = {}
    users_own: Parameters = {}
    for name, value in values.items():
        if name.startswith(ARGS_PREFIX):
            users_own[name.removeprefix(ARGS_PREFIX)] = value
        else:
            ours[name] = value
    return ours | {ARGS: users_own} if users_own else ours


def as_columns(values: Mapping[str, Any]) -> Row:
    """Return parameters as columns of a table: flat, with lists as text in a shell's syntax, and without secrets.

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


# Cached because the runs of a scenario have the same command, and searching it takes longer than the rest of planning a
# run.
_secret_parameters_of_command = cache(secret_parameters)


def secret_own(command: Sequence[str], users_own: Mapping[str, Any]) -> set[str]:
    """Return the names of the user's own parameters that look like secrets.

    A parameter looks like one by its name and value, or by its place in `command`, such as `--password={p}`.

    >>> secret_own(["train.py", "--password={p}", "-b", "{b}"], {"p": "hunter2", "b": 8, "api_key": "x"}) - {"p"}
    {'api_key'}
    """
    secret_in_command = _secret_parameters_of_command(tuple(command))
    return {
        name for name, value in users_own.items() if name in secret_in_command or is_secret_argument(name, str(value))
    }


class JobParameters(BaseModel):
    """Parameters of one job: the base class of the parameters of each program.

    Fields made by `labelled` are shown in the run's id if they differ from their defaults.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    # Names of the parameters that a run's id always shows, first and in this order.
    HEADLINE: ClassVar[tuple[str, ...]]

    # For a parameter that decides the defaults of others, such as `preset`: the names of these others.
    IMPLIED: ClassVar[Mapping[str, tuple[str, ...]]] = {}

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
        "batches of the warm-up come again and again. `communication`: ranks exchange no gradients.",
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
        "Record GPU allocations, which makes steps longer. If memory runs out, the reason states what held it, "
        "and `memory_snapshot.pickle` in the run's folder opens in PyTorch's viewer.",
        default=False,
    )
    repeat: Positive = Field(default=1, description="Number of this repeat; the seed increases with it.")

    @classmethod
    def applies(cls, parameter: str, values: Mapping[str, Any]) -> bool:
        """Return True if a parameter has an effect in a run whose stated parameters are `values`.

        A scenario leaves a parameter without effect at its default, so that its values do not make further runs.
        """
        # A single device does not communicate, so a run on it cannot skip communication.
        goes_without_communication = parameter == "ablate" and "communication" in str(values["ablate"])
        return not goes_without_communication or values.get("devices", 1) > 1

    @property
    def ablated(self) -> tuple[str, ...]:
        """Parts of a step that the run skips."""
        return () if self.ablate == "none" else tuple(self.ablate.split("+"))

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
    def launched_by(self) -> str:
        """Name of the launcher that starts the ranks (`multicard.launchers`)."""
        return "torchrun" if self.distributed else "python"

    @property
    def measured_steps(self) -> int | None:
        """Number of measured steps; None if the program itself states how many steps it trains."""
        return None

    @property
    def counts_operations(self) -> bool:
        """True if the floating-point operations of one step are counted."""
        return True

    @property
    def stated_samples(self) -> int | None:
        """Samples of a step that the user states, of all ranks together; None if the program counts them."""
        return None

    @property
    def loads_in_step(self) -> bool:
        """True if the process that trains also loads the data: its wait for data is then the loading itself."""
        return False

    @property
    def compiled(self) -> bool:
        """True if the run uses torch.compile."""
        return False

    @property
    def loader_workers(self) -> int:
        """Number of processes that load data, for all ranks of the run together."""
        return 0

    @property
    def cpus_per_node(self) -> int:
        """CPUs that the run needs on a node: one for each thread of its ranks, and one for each loading process."""
        return self.ranks_per_node * self.threads + math.ceil(self.loader_workers / self.nodes)

    @property
    def shared_memory_bytes(self) -> int:
        """Most bytes that the loading processes put into shared memory: all batches that they load ahead."""
        return 0

    @property
    def id_parts(self) -> Iterable[str]:
        """Further parts of the run id, before the repeat."""
        return ()

    def default(self, name: str) -> Any:
        """Return the value of a parameter that is not stated."""
        return field_defaults(type(self))[name]

    def stated(self) -> Parameters:
        """Return the parameters that differ from their defaults, and the program if it is not the default one.

        Defaults are left out so that the same run states the same after multicard gets a new parameter.
        """
        different = {name: value for name, value in self.model_dump().items() if value != self.default(name)}
        return different if self.workload == DEFAULT_WORKLOAD else {"workload": self.workload, **different}


# The functions below are cached because planning calls them for each of thousands of runs, and the fields of a class
# never change.
@cache
def field_defaults(parameters: type[JobParameters]) -> Parameters:
    """Return the defaults of a workload's parameters by name."""
    return {name: field.default for name, field in parameters.model_fields.items()}


@cache
def _labels(parameters: type[JobParameters]) -> dict[str, str]:
    """Return the labels, by name, of the parameters that a run id shows if they differ from their defaults."""
    return _metadata_entries(parameters, "label")


@cache
def parameter_words(parameters: type[JobParameters]) -> dict[str, Words]:
    """Return the words of each parameter that has some, by its name; see `Words`."""
    return _metadata_entries(parameters, "words")


def _metadata_entries(parameters: type[JobParameters], entry: str) -> dict[str, Any]:
    """Return the metadata `entry` (`label` or `words`) of each field that has it, by the field's name."""
    entries = {}
    for name, field in parameters.model_fields.items():
        metadata = field.json_schema_extra
        if isinstance(metadata, dict) and entry in metadata:
            entries[name] = metadata[entry]
    return entries


def run_id(parameters: JobParameters) -> str:
    """Return the readable id of a run. It depends on the run's parameters alone.

    The id has the program, the parameters of `HEADLINE`, then each other parameter that differs from its default, and
    at the end the repeat. So two runs with different parameters have different ids. If the id would be longer than
    `LONGEST_ID`, its end is replaced by a digest of the whole id.
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
    """Return a parameter as a run id shows it.

    >>> _labelled_part("batch", 32), _labelled_part("packed", True), _labelled_part("persistent", False)
    ('batch32', 'packed', 'no-persistent')
    """
    if isinstance(value, bool):
        return label if value else f"no-{label}"
    return f"{label}{value}"
