"""The record of a run, run.json: written by the launcher when a job has ended, read by `read_run` alone.

Each field has a description. Its unit is the end of its name (`_s` seconds, `_bytes` bytes). Beside its type stands the
rule by which an archive may hold its text (`multicard.core.sharing`). docs/run-record.md and the list of what archives
may hold are made from these.

Nearly every field may be None, because a job that ended early recorded less, and because archives leave some fields
out. A value that was not recorded is None, never zero.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_serializer, field_validator

from multicard.core.host_work import FUNCTIONS, KINDS
from multicard.core.layout import BETWEEN_PASSES, OUTCOMES, PHASES, Outcome
from multicard.core.reasons import Reason
from multicard.core.sharing import (
    AS_IT_IS,
    GPU,
    HARDWARE,
    HOST,
    PRIVATE,
    SETTING,
    SHA256,
    TIME,
    VARIABLE_NAMES,
    VERSION,
    Beginning,
    ByKey,
    ErrorText,
    Form,
    Keys,
    OwnText,
    Remark,
    Words,
)
from multicard.core.values import JsonObject
from multicard.profilers.interface import UsedProfiler
from multicard.runs.parameters import JobParameters

NO_PROFILER = "no profiler was used"
# Names of the bits of NVML's clocks event reasons, which say why clocks are low (nvml.h).
CLOCK_REASONS = {
    0x1: "gpu_idle", 0x2: "applications_clocks_setting", 0x4: "sw_power_cap", 0x8: "hw_slowdown", 0x10: "sync_boost",
    0x20: "sw_thermal_slowdown", 0x40: "hw_thermal_slowdown", 0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting", 0x200: "board_limit", 0x400: "reliability",
}  # fmt: skip
CLOCK_REASON = Form(rf"{'|'.join(CLOCK_REASONS.values())}|0x[0-9a-f]+")  # a bit without a name is written as 0x…


def ended_as(outcome: str) -> str:
    """Return the reason why a run that did not complete has no trace: its outcome."""
    return f"the run ended as {outcome}"


class RecordPart(BaseModel):
    """Base class of the record and its parts. Instances are immutable, and unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Self:
        """Return the part with these values, which are as in JSON: lists for tuples, mappings for parts."""
        return cls.model_validate_json(json.dumps(values))


class ListedFile(RecordPart):
    """A file, or a tree of files, with what its content is recognized by."""

    name: Annotated[str | None, Words("steps.csv", "epochs.csv")] = Field(None, description="Its name.")
    bytes: int = Field(description="Its size; of a tree all sizes together.")
    sha256: Annotated[str | None, SHA256] = Field(None, description="Its checksum; none of a tree.")
    files: int | None = Field(None, description="Of a tree the number of its files.")


class Place(RecordPart):
    """The planned place of a run among those that it shares blocks with."""

    seed: int = Field(description="The experiment's `order_seed`.")
    group: Annotated[tuple[str, ...], AS_IT_IS] = Field(
        description="The scenarios whose runs it ran among: all that share runs, directly or through others."
    )
    block: int = Field(description="Its repeat: in each block every configuration of the group runs once.")
    position: int = Field(description="Its place among all runs of the group, from 1.")


class ProfilerUse(RecordPart):
    """The profiler of a run, and what it missed."""

    used: Annotated[UsedProfiler, AS_IT_IS] = Field(description="Its name, or `none`.")
    why: Annotated[str | None, Words("as configured")] = Field(None, description="Why this one.")
    caveat: Annotated[str | None, Remark("limited for a reason that archives leave out")] = Field(
        None, description="Why it may record too little."
    )
    trace_missing: Annotated[
        str | None,
        Words(
            NO_PROFILER, *map(ended_as, OUTCOMES), otherwise="missing for a reason that archives leave out",
        ),
    ] = Field(None, description="Why there is no trace.")  # fmt: skip


class Host(RecordPart):
    """A machine, by its name and its system."""

    name: Annotated[str | None, HOST] = Field(None, description="Its host name.")
    system: Annotated[str | None, Beginning(r"(?:Linux|macOS|Darwin|Windows)(?:-\d+(?:\.\d+)*)?")] = Field(
        None, description="Its operating system."
    )
    machine_digest: Annotated[str | None, Form(r"[0-9a-f]{32}")] = Field(
        None,
        description="The same for [all runs on this machine](comparing.md#different-sessions), and for no others.",
    )


class GpuModel(RecordPart):
    """A kind of GPU."""

    name: Annotated[str | None, HARDWARE] = Field(None, description="As its driver names it.")
    memory_bytes: int | None = Field(None, description="Its memory.")
    capability: Annotated[str | None, Form(r"\d+\.\d+")] = Field(None, description="CUDA's compute capability.")


class Hardware(RecordPart):
    """What a machine consists of, as far as the job could see it."""

    processor: Annotated[str | None, HARDWARE] = Field(None, description="Name of the processor.")
    logical_cpus: int | None = Field(None, description="CPUs of the machine.")
    usable_cpus: int | None = Field(None, description="CPUs that the job may use.")
    memory_bytes: int | None = Field(None, description="The machine's memory.")
    gpus: tuple[GpuModel, ...] = Field((), description="GPUs that the job may use.")


class CpuUse(RecordPart):
    """What others took of the CPUs that a run may use, in some span of time; times have the grain of a clock tick."""

    others_cpu_s: float | None = Field(None, description="CPU time of processes that are not of the run.")
    stolen_cpu_s: float | None = Field(None, description="CPU time that the hypervisor gave to other machines.")
    wall_s: float | None = Field(None, description="Length of the span.")


class NodeConditions(CpuUse):
    """Who else used the CPUs of a node, during the whole run."""

    usable_cpus: int | None = Field(None, description="CPUs that the run may use.")
    measured_steps: CpuUse | None = Field(
        None, description="The same during the measured steps, from the last sample before to the first after them."
    )


class GpuState(RecordPart):
    """Clocks, heat and power of a GPU at one moment."""

    sm_clock_mhz: float | None = Field(None, description="Clock of the multiprocessors.")
    memory_clock_mhz: float | None = Field(None, description="Clock of the memory.")
    temperature_c: float | None = Field(None, description="Temperature.")
    power_w: float | None = Field(None, description="Power drawn.")
    power_limit_w: float | None = Field(None, description="Power limit in force.")
    default_power_limit_w: float | None = Field(None, description="Power limit that the GPU is built for.")
    clock_reasons: Annotated[tuple[str, ...] | None, CLOCK_REASON] = Field(
        None, description="Why the clocks are not higher, by NVML's names."
    )


class GpuConditions(RecordPart):
    """How a GPU ran during the measured steps."""

    before: GpuState | None = Field(None, description="State at the first sample.")
    after: GpuState | None = Field(None, description="State at the last sample within the measured steps.")
    clock_reasons: Annotated[tuple[str, ...] | None, CLOCK_REASON] = Field(
        None, description="All reasons for lower clocks in the measured steps while the GPU was not idle."
    )


class Energy(RecordPart):
    """Energy that a GPU took for all that ran on it in the measured steps."""

    energy_j: float | None = Field(None, description="Joules, from NVML's counter.")
    duration_s: float | None = Field(None, description="Length of the measured windows.")
    reason: Annotated[str | None, ErrorText()] = Field(None, description="Why there are no joules.")


class GpuIdentity(RecordPart):
    """One GPU, told from others of its kind."""

    uuid: Annotated[str | None, GPU] = Field(None, description="As the driver identifies it.")
    name: Annotated[str | None, HARDWARE] = Field(None, description="Its kind.")


class Binding(RecordPart):
    """CPUs that a rank was bound to."""

    cpus: Annotated[str | None, Form(r"[\d,-]+")] = Field(None, description="A list as Linux writes it: `0-3,8`.")
    numa_nodes: tuple[int, ...] | None = Field(None, description="NUMA nodes of these.")
    note: str | None = Field(None, description="What binding did, if it was asked for.")


class ProfiledWindowRecord(RecordPart):
    """Steps of the pass that was profiled, in order."""

    warmup_steps: int = Field(description="Before the profiler starts; `warmup` in steps.csv.")
    settling_steps: int = Field(description="While the profiler is still starting; `warmup` in steps.csv.")
    profiled_steps: int = Field(description="Recorded steps.")
    crosses_pass: bool = Field(description="A pass over the data ends in the capture or shortly before.")


class LoaderRecord(RecordPart):
    """A loader of training data, as a rank saw it."""

    kind: str | None = Field(None, description="Its class.")
    sampler: str | None = Field(None, description="Class of its sampler.")
    distinct: bool | int | None = Field(
        None,
        description="Whether each rank draws samples of its own; a number: how many ranks do, while the others repeat "
        "them.",
    )
    batch_size: int | None = Field(None, description="Samples of a batch.")
    num_workers: int | None = Field(None, description="Its worker processes.")
    prefetch_factor: int | None = Field(None, description="Batches that each worker prepares ahead.")
    persistent_workers: bool | None = Field(None, description="Whether workers stay from one pass to the next.")
    pin_memory: bool | None = Field(None, description="Whether it puts batches into pinned memory.")
    batches_in_pass: int | None = Field(None, description="Batches of one pass over the data.")
    cpu_s: float | None = Field(
        None,
        description="CPU time of its workers in the measured steps; without workers that of the thread that trains "
        "while it loads, estimated from one in four of the batches of a step after its first.",
    )


class LoaderAlone(RecordPart):
    """What a loader gave that had the machine to itself (`ablate: loader`)."""

    batches: int = Field(description="Batches that it gave.")
    seconds: float = Field(description="Time that these took.")
    batches_per_step: float = Field(description="Batches that a step uses.")


class HostWorkRecord(RecordPart):
    """Work of the host in measured steps that no phase shows: calls of one function in one phase."""

    kind: Annotated[str | None, Words(*KINDS)] = Field(None, description="What it is.")
    function: Annotated[str | None, Words(*FUNCTIONS)] = Field(
        None, description="The function; `automatic` for garbage that Python collects by itself."
    )
    phase: Annotated[str | None, Words(*PHASES, "evaluation")] = Field(
        None, description="Phase of the step; none outside of all."
    )
    calls: int = Field(description="Its calls.")
    seconds: float = Field(description="Time of the host in them.")
    bytes: int = Field(0, description="Of collectives: bytes of all tensors that were passed.")
    steps: int = Field(description="Measured steps with such a call.")
    first_steps: tuple[int, ...] = Field((), description="Numbers of the first of these steps.")
    site: Annotated[str | None, PRIVATE] = Field(
        None, description="File and line of the user's code with the first call."
    )


class CodeLine(RecordPart):
    """A line of the user's code where the thread that trains was in measured steps, by samples of its stack."""

    phase: Annotated[str | None, Words(*PHASES, "evaluation", BETWEEN_PASSES)] = Field(
        None,
        description="Phase of the step; none outside of all. `between passes`: in no step, after the last step of a "
        "pass over the data and before the first one of the next.",
    )
    site: Annotated[str | None, PRIVATE] = Field(
        None, description="File and line; none while no code of the user was on the stack."
    )
    function: Annotated[str | None, PRIVATE] = Field(None, description="Function of the user's code with that line.")
    called: Annotated[str | None, PRIVATE] = Field(
        None, description="Function of a library that the line called; none if it was not written in Python."
    )
    caller: Annotated[str | None, PRIVATE] = Field(
        None, description="Of a line in the `forward` of a module: file and line that called the model."
    )
    samples: int = Field(description="Samples there.")


class TrainingSetup(RecordPart):
    """How a rank trains, as PyTorch showed it at the end of the measured steps. What is not known is none."""

    backends: Annotated[tuple[str, ...], Words("gloo", "nccl", "mpi", "ucc", "xccl", otherwise="another")] = Field(
        (), description="Back ends of its process groups, for the kind of device that it trains on."
    )
    wrapper: Annotated[str | None, Words("DataParallel", "DistributedDataParallel", "FSDP")] = Field(
        None, description="What makes the model parallel."
    )
    backward_passes: float | None = Field(None, description="Backward passes per measured step.")
    collectives: float | None = Field(
        None, description="Collectives per measured step on all process groups, the wrapper's included."
    )
    exchanged_passes: float | None = Field(
        None, description="Of DistributedDataParallel: backward passes per measured step that exchange gradients."
    )
    needless_exchanges: float | None = Field(
        None,
        description="Of these: those after which the next pass adds to the same gradients, before any update.",
    )
    gradient_bytes: int | None = Field(None, description="Of DistributedDataParallel: bytes of all gradients.")
    buckets: int | None = Field(None, description="Of DistributedDataParallel: buckets in which these are exchanged.")
    bucket_limit_bytes: int | None = Field(None, description="Of DistributedDataParallel: size of a bucket at most.")
    finds_unused: bool | None = Field(
        None, description="Of DistributedDataParallel: whether each step searches for parameters without a gradient."
    )
    has_unused: bool | None = Field(None, description="Of DistributedDataParallel: whether there are any.")
    broadcast_bytes: int | None = Field(
        None, description="Of DistributedDataParallel: bytes of buffers that each forward pass sends to all ranks."
    )
    synchronized_norms: int | None = Field(
        None, description="Of DistributedDataParallel: layers of `SyncBatchNorm` in the model."
    )
    parameters: int | None = Field(None, description="Tensors that the optimizer updates.")
    loops_over_parameters: bool | None = Field(
        None, description="Whether the optimizer updates them one by one (neither `foreach` nor `fused`)."
    )
    can_fuse: bool | None = Field(None, description="Whether it could update them by `fused=True`.")
    has_convolutions: bool | None = Field(
        None, description="Whether one of them is a weight of a convolution over two or more dimensions."
    )
    is_compiled: bool | None = Field(None, description="Whether torch.compile compiled anything.")
    graph_breaks: int | None = Field(
        None, description="How often torch.compile had to leave a graph while it compiled; none if it compiled nothing."
    )
    debugging: Annotated[
        tuple[str, ...],
        Words("anomaly detection", "deterministic algorithms", "autograd profiler", "CUDA_LAUNCH_BLOCKING",
              "TORCH_DISTRIBUTED_DEBUG", "synchronization warnings"),
    ] = Field((), description="Switches for debugging that slow training down.")  # fmt: skip


class Observed(RecordPart):
    """What the observer saw of a script's rank."""

    optimizers: tuple[str, ...] = Field((), description="Classes of the optimizers that updated.")
    steps_by: Annotated[str | None, Words("optimizer", "marks", "backward passes")] = Field(
        None, description="What ends the steps."
    )
    loaders: tuple[LoaderRecord, ...] = Field((), description="Loaders whose batches the steps used.")
    first_batches: tuple[int, ...] = Field(
        (),
        description="Batches that its first three steps asked for, numbered such that equal ones have the same number "
        "on all ranks.",
    )
    exchanged: bool | None = Field(None, description="Whether ranks exchanged anything in the measured steps.")
    loader_alone: LoaderAlone | None = Field(None, description="The slowest loader that the run went without.")
    host_work: tuple[HostWorkRecord, ...] = Field(
        (), description="What the host did in the measured steps that no phase shows, the longest first."
    )
    stack_samples: int | None = Field(
        None,
        description="Samples of the stack of the thread that trains, in measured steps, with those that came too late "
        "to show a line; none if none were taken.",
    )
    lines: tuple[CodeLine, ...] = Field((), description="Where these were, that with the most samples first.")
    setup: TrainingSetup | None = Field(None, description="How the rank trains.")


class OperationCount(RecordPart):
    """Floating-point operations of one warm-up step of a rank."""

    model: float | None = Field(None, description="As the model needs them.")
    hardware: float | None = Field(None, description="With those that activation checkpointing repeats.")
    precision: Annotated[str | None, Words("fp64", "fp32", "tf32", "bf16", "fp16", "fp8")] = Field(
        None, description="Precision of most of them."
    )
    bytes: float | None = Field(None, description="Bytes that operators read and write.")
    padded_tokens: int | None = Field(None, description="Tokens of the step, padding included.")
    problem: Annotated[str | None, ErrorText()] = Field(None, description="Why they could not be counted.")


class RankRecord(RecordPart):
    """One rank of a run."""

    rank: int = Field(description="Its number.")
    node: int | None = Field(None, description="Number of its node.")
    pid: int | None = Field(None, description="Its process id.")
    binding: Binding | None = Field(None, description="The CPUs that it was bound to.")
    gpus: tuple[GpuIdentity, ...] | None = Field(None, description="Its GPUs.")
    windows: tuple[tuple[float, float], ...] | None = Field(
        None, description="When its measured steps began and ended, by the node's CLOCK_MONOTONIC; a pair per pass."
    )
    energy: tuple[Energy, ...] | None = Field(None, description="Of each of its GPUs.")
    gpu_conditions: tuple[GpuConditions | None, ...] | None = Field(None, description="Of each of its GPUs.")
    device_memory_used_bytes: tuple[int | None, ...] | None = Field(
        None, description="Of each of its GPUs the most memory that all processes used in the first measured window."
    )
    observed: Observed | None = Field(None, description="Scripts: what was seen of it.")
    operations: OperationCount | None = Field(None, description="Scripts with `count_operations`.")
    intraop_threads: int | None = Field(
        None, description="Threads of PyTorch's operators at its end (`torch.get_num_threads`)."
    )


class NodeRecord(RecordPart):
    """One of several nodes of a run."""

    name: Annotated[str | None, HOST] = Field(None, description="Its name in Slurm.")
    host: Host | None = Field(None, description="The machine.")
    hardware: Hardware | None = Field(None, description="Its hardware.")
    ranks: tuple[int, ...] = Field((), description="Ranks that ran there.")


class DataRecord(RecordPart):
    """The data set of a run."""

    dataset: Annotated[str | None, OwnText()] = Field(None, description="Its name in the configuration.")
    source: Annotated[str | None, OwnText()] = Field(None, description="Where it came from.")
    kind: Annotated[str | None, OwnText()] = Field(None, description="Language models: the kind of its texts.")
    train_samples: int | None = Field(None, description="Samples to train with.")
    test_samples: int | None = Field(None, description="Samples to test with.")
    classes: int | None = Field(None, description="Classes of images.")
    files: tuple[ListedFile, ...] = Field((), description="Its files.")


class ModelRecord(RecordPart):
    """The language model of a run."""

    model: Annotated[str | None, OwnText()] = Field(None, description="Its name in the configuration.")
    architecture: Annotated[str | None, OwnText()] = Field(None, description="Its architecture.")
    parameters: int | None = Field(None, description="Number of its weights.")
    files: tuple[ListedFile, ...] = Field((), description="Its files.")


class ScriptRecord(RecordPart):
    """The user's script, and the repository that its folder is in."""

    file: Annotated[str | None, Form(r"[\w.+-]{1,80}\.py")] = Field(None, description="Its file name.")
    sha256: Annotated[str | None, SHA256] = Field(None, description="Its checksum.")
    commit: str | None = Field(None, description="The commit of git that is checked out in its folder.")
    modified: bool | None = Field(None, description="Whether files that git tracks there differ from the commit.")


class AdoptedTrace(ListedFile):
    """A trace that a run was made of."""

    name: Annotated[str | None, OwnText()] = Field(None, description="Its name.")


class AdoptedRecord(RecordPart):
    """What a run that was [made of traces](traces.md#existing-traces) is based on."""

    traces: tuple[AdoptedTrace, ...] = Field((), description="The traces.")
    samples_per_step: float | None = Field(None, description="As stated.")
    warmup_steps: int | None = Field(None, description="As stated.")
    steps_from: Annotated[str | None, OwnText()] = Field(None, description="How steps were detected.")
    steps: int | None = Field(None, description="Steps of a rank.")
    traced_devices: int | None = Field(None, description="GPUs at work in the traces.")


class RunRecord(RecordPart):
    """A run: what it was to be, where and how it ran, and how it ended."""

    run: Annotated[str, AS_IT_IS] = Field(description="Its name, made of its parameters.")
    outcome: Annotated[Outcome, AS_IT_IS] = Field(description="How it ended; see [outcomes](files.md#outcomes).")
    reason: Reason | None = Field(None, description="Why, unless it completed; see [outcomes](files.md#outcomes).")
    parameters: Annotated[JobParameters, AS_IT_IS] = Field(description="All its [parameters](parameters.md).")
    order: Place | None = Field(None, description="Its planned place.")
    started: Annotated[str | None, TIME] = Field(None, description="When the last attempt started, in UTC.")
    ended: Annotated[str | None, TIME] = Field(None, description="When it ended.")
    profiler: ProfilerUse = Field(description="The profiler.")
    wall_time_s: float | None = Field(None, description="Time of the last attempt.")
    exit_code: int | None = Field(None, description="Of its launcher; minus the number of a signal that ended it.")
    ended_at_time_limit: bool | None = Field(None, description="Whether the time limit ended it.")
    files: tuple[ListedFile, ...] = Field((), description="Its tables of steps and epochs.")
    command: Annotated[tuple[str, ...], PRIVATE] = Field((), description="The command that started the ranks.")
    variables: Annotated[Mapping[str, str] | None, VARIABLE_NAMES, SETTING] = Field(
        None, description="Environment variables of the job that may change its speed or results."
    )
    withheld: Annotated[tuple[str, ...], PRIVATE] = Field(
        (), description="Names of your variables that it did not get because they look like secrets."
    )
    conditions: tuple[NodeConditions | None, ...] = Field((), description="Who else used the CPUs, per node.")
    host: Host | None = Field(None, description="The machine; of several nodes the first.")
    hardware: Hardware | None = Field(None, description="Its hardware.")
    versions: Annotated[Mapping[str, str | None] | None, Keys(), ByKey({"GPU": HARDWARE}, VERSION)] = Field(
        None, description="Versions of its software; of a run made of traces `GPU`, the kinds of GPUs."
    )
    steps_per_pass: int | None = Field(None, description="Steps of a rank in a pass over the training data.")
    profiled_window: ProfiledWindowRecord | None = Field(None, description="None without a profiled window.")
    ranks: tuple[RankRecord, ...] = Field((), description="Its ranks, in order.")
    resumed: bool | None = Field(None, description="Whether it resumed from a checkpoint.")
    data: DataRecord | None = Field(None, description="Its data set.")
    model: ModelRecord | None = Field(None, description="Its language model.")
    nodes: tuple[NodeRecord, ...] | None = Field(None, description="Of a run on several nodes.")
    script: ScriptRecord | None = Field(None, description="Of a user's script.")
    adopted: AdoptedRecord | None = Field(None, description="Of a run made of traces.")

    @property
    def completed(self) -> bool:
        """True if the run completed, so that it has measures."""
        return self.outcome == "completed"

    @field_validator("parameters", mode="plain")
    @classmethod
    def _by_their_workload(cls, value: Any, info: ValidationInfo) -> JobParameters:
        """Return parameters that were checked before, by the model of their program.

        This module does not know the programs. So a reader of a file checks the parameters, and passes the result as
        `parameters` in the context of validation; they then replace `value`.
        """
        parameters = value if isinstance(value, JobParameters) else (info.context or {}).get("parameters")
        if not isinstance(parameters, JobParameters):
            raise ValueError("expected parameters that were checked before; use read_run")
        return parameters

    @field_serializer("parameters")
    def _all_parameters(self, parameters: JobParameters) -> dict[str, Any]:
        """Return all parameters, also those at their defaults, because a later version may have other defaults."""
        return parameters.model_dump(mode="json")

    @field_serializer("reason")
    def _without_absent_fields(self, reason: Reason | None) -> dict[str, Any] | None:
        return None if reason is None else reason.record()

    def as_json(self) -> JsonObject:
        """Return the content of run.json: the fields that were given to the record, also those that are None."""
        return self.model_dump(mode="json", exclude_unset=True)
