"""The sections `fixed` and `vary` of a configuration: values of parameters, and lists of such values.

Both classes have the parameters of all programs. Whether a scenario's program has a parameter and accepts its value
is checked when the configuration is read and the scenario is expanded into runs. The descriptions in the JSON schema
are those of the workloads' parameters (`multicard.config.schema`).
"""

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from multicard.programs.datasets import Strict
from multicard.runs.parameter_types import (
    Ablation,
    Binding,
    Command,
    DatasetName,
    Device,
    DeviceCount,
    Folder,
    ImageSize,
    LauncherName,
    Layout,
    LibraryName,
    LoaderName,
    ModelName,
    NodeCount,
    NonEmptyText,
    NonNegative,
    OwnLists,
    OwnParameters,
    Positive,
    PositiveFloat,
    Precision,
    Preset,
    ProfilerName,
    QatTarget,
    Scaling,
    SequenceLength,
    StrategyName,
    TechniqueName,
    Tf32,
    Values,
    VariableNames,
    WidthMultiplier,
    WorkloadName,
)

# The value of a parameter that a configuration does not state. `stated` distinguishes it from a null that a user wrote,
# which a few parameters accept.
UNSTATED: Any = None


class Fixed(Strict):
    """Any part of the parameters, each at most once. `repeat` is counted by `repeats`."""

    workload: WorkloadName = UNSTATED
    device: Device = UNSTATED
    devices: DeviceCount = UNSTATED
    nodes: NodeCount = UNSTATED
    threads: Positive = UNSTATED
    binding: Binding = UNSTATED
    seed: NonNegative = UNSTATED
    warmup_steps: NonNegative = UNSTATED
    profiled_steps: Positive = UNSTATED
    ablate: Ablation = UNSTATED
    profiler: ProfilerName = UNSTATED
    memory_snapshot: bool = UNSTATED
    repeat: Positive = UNSTATED
    dataset: DatasetName = UNSTATED
    image_size: ImageSize = UNSTATED
    strategy: StrategyName = UNSTATED
    precision: Precision = UNSTATED
    model: ModelName = UNSTATED
    width_mult: WidthMultiplier = UNSTATED
    batch_size: Positive = UNSTATED
    scaling: Scaling = UNSTATED
    epochs: Positive = UNSTATED
    steps_per_epoch: Positive | None = UNSTATED
    learning_rate: PositiveFloat | None = UNSTATED
    num_workers: NonNegative = UNSTATED
    persistent_workers: bool = UNSTATED
    prefetch_factor: Positive = UNSTATED
    pin_memory: bool = UNSTATED
    loader: LoaderName = UNSTATED
    layout: Layout = UNSTATED
    preset: Preset = UNSTATED
    non_blocking: bool = UNSTATED
    tf32: Tf32 = UNSTATED
    compile: bool = UNSTATED
    cuda_graphs: bool = UNSTATED
    fused_optimizer: bool = UNSTATED
    bucket_cap_mb: Positive = UNSTATED
    technique: TechniqueName = UNSTATED
    library: LibraryName = UNSTATED
    gradient_accumulation_steps: Positive = UNSTATED
    sequence_length: SequenceLength = UNSTATED
    packed: bool = UNSTATED
    lora_rank: Positive = UNSTATED
    lora_alpha: PositiveFloat = UNSTATED
    qat_of: QatTarget = UNSTATED
    qat_group: Positive = UNSTATED
    activation_checkpointing: bool = UNSTATED
    steps: Positive = UNSTATED
    command: Command = UNSTATED
    folder: Folder = UNSTATED
    python: NonEmptyText | None = UNSTATED
    launcher: LauncherName = UNSTATED
    environment: VariableNames = UNSTATED
    samples_per_step: Positive | None = UNSTATED
    samples_per_device: Positive | None = UNSTATED
    loader_cpus: NonNegative = UNSTATED
    count_operations: bool = UNSTATED
    args: OwnParameters = UNSTATED

    def stated(self) -> Mapping[str, Any]:
        """Return the parameters that the configuration states; the others are left out."""
        return self.model_dump(exclude_unset=True)


class Vary(Strict):
    """Lists of values per parameter; the runs are their product."""

    device: Values[Device] = UNSTATED
    devices: Values[DeviceCount] = UNSTATED
    nodes: Values[NodeCount] = UNSTATED
    threads: Values[Positive] = UNSTATED
    binding: Values[Binding] = UNSTATED
    seed: Values[NonNegative] = UNSTATED
    warmup_steps: Values[NonNegative] = UNSTATED
    profiled_steps: Values[Positive] = UNSTATED
    ablate: Values[Ablation] = UNSTATED
    profiler: Values[ProfilerName] = UNSTATED
    memory_snapshot: Values[bool] = UNSTATED
    dataset: Values[DatasetName] = UNSTATED
    image_size: Values[ImageSize] = UNSTATED
    strategy: Values[StrategyName] = UNSTATED
    precision: Values[Precision] = UNSTATED
    model: Values[ModelName] = UNSTATED
    width_mult: Values[WidthMultiplier] = UNSTATED
    batch_size: Values[Positive] = UNSTATED
    scaling: Values[Scaling] = UNSTATED
    epochs: Values[Positive] = UNSTATED
    steps_per_epoch: Values[Positive | None] = UNSTATED
    learning_rate: Values[PositiveFloat | None] = UNSTATED
    num_workers: Values[NonNegative] = UNSTATED
    persistent_workers: Values[bool] = UNSTATED
    prefetch_factor: Values[Positive] = UNSTATED
    pin_memory: Values[bool] = UNSTATED
    loader: Values[LoaderName] = UNSTATED
    layout: Values[Layout] = UNSTATED
    preset: Values[Preset] = UNSTATED
    non_blocking: Values[bool] = UNSTATED
    tf32: Values[Tf32] = UNSTATED
    compile: Values[bool] = UNSTATED
    cuda_graphs: Values[bool] = UNSTATED
    fused_optimizer: Values[bool] = UNSTATED
    bucket_cap_mb: Values[Positive] = UNSTATED
    technique: Values[TechniqueName] = UNSTATED
    library: Values[LibraryName] = UNSTATED
    gradient_accumulation_steps: Values[Positive] = UNSTATED
    sequence_length: Values[SequenceLength] = UNSTATED
    packed: Values[bool] = UNSTATED
    lora_rank: Values[Positive] = UNSTATED
    lora_alpha: Values[PositiveFloat] = UNSTATED
    qat_of: Values[QatTarget] = UNSTATED
    qat_group: Values[Positive] = UNSTATED
    activation_checkpointing: Values[bool] = UNSTATED
    steps: Values[Positive] = UNSTATED
    command: Values[Command] = UNSTATED
    folder: Values[Folder] = UNSTATED
    python: Values[NonEmptyText | None] = UNSTATED
    launcher: Values[LauncherName] = UNSTATED
    environment: Values[VariableNames] = UNSTATED
    samples_per_step: Values[Positive | None] = UNSTATED
    samples_per_device: Values[Positive | None] = UNSTATED
    loader_cpus: Values[NonNegative] = UNSTATED
    count_operations: Values[bool] = UNSTATED
    args: OwnLists = Field(default={}, description="Values of the script's own parameters, by name.")
