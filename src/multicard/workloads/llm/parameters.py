"""The parameters of a run that tunes a language model."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from multicard.experiment.parameters import (
    DATASET_NAME,
    DatasetOf,
    JobParameters,
    ProfiledSteps,
    WarmupSteps,
)
from multicard.record.profiled_window import LEAST_SETTLING
from multicard.workloads.llm.technique import TECHNIQUES


class LlmParameters(JobParameters):
    """One tuning job of a Llama-3 model.

    >>> from multicard.experiment.parameters import run_id
    >>> run_id(LlmParameters(technique="qlora", device="cpu", devices=2, precision="fp32", packed=True))
    'llm_tiny_qlora_instructions_cpu2_fp32_packed_r1'
    """

    HEADLINE: ClassVar[tuple[str, ...]] = ("model", "technique", "dataset", "devices", "precision")

    workload: Annotated[Literal["llm"], Field(description="The kind of job.")] = "llm"
    dataset: DatasetOf = "instructions"
    model: Annotated[str, Field(pattern=DATASET_NAME, description="Name of a model listed under `models`.")] = "tiny"
    technique: Annotated[
        Literal[tuple(TECHNIQUES)],
        Field(description=" ".join(f"`{name}`: {entry.description}" for name, entry in TECHNIQUES.items())),
    ] = "lora"
    precision: Annotated[Literal["fp32", "bf16"], Field(description="Data type of weights and arithmetic.")] = "bf16"
    batch_size: Annotated[
        int,
        Field(
            ge=1,
            description="Samples per device and forward pass.",
            json_schema_extra={"label": "batch"},
        ),
    ] = 2
    gradient_accumulation_steps: Annotated[
        int,
        Field(
            ge=1,
            description="Batches per device whose gradients are accumulated into one step.",
            json_schema_extra={"label": "accumulate"},
        ),
    ] = 1
    sequence_length: Annotated[
        int,
        Field(
            ge=16,
            description="Maximum tokens per sequence: longer samples are truncated, packed ones fill it.",
            json_schema_extra={"label": "seq"},
        ),
    ] = 2048
    packed: Annotated[
        bool,
        Field(
            description="Pack several samples into each sequence instead of padding. On GPUs torchtune then uses "
            "PyTorch's flex attention, compiled whatever `compile` says.",
            json_schema_extra={"label": "packed"},
        ),
    ] = False
    learning_rate: Annotated[
        float | None,
        Field(
            gt=0,
            description="Peak learning rate of AdamW; null: the technique's, as in torchtune's own configurations.",
            json_schema_extra={"label": "lr"},
        ),
    ] = None
    lora_rank: Annotated[int, Field(ge=1, description="Rank of the adapters.", json_schema_extra={"label": "rank"})] = 8
    lora_alpha: Annotated[
        float,
        Field(
            gt=0,
            description="Scaling of the adapters, before division by their rank.",
            json_schema_extra={"label": "alpha"},
        ),
    ] = 16.0
    qat_of: Annotated[
        Literal["adapters", "weights"],
        Field(
            description="What technique `qat` trains: LoRA adapters, or all weights.",
            json_schema_extra={"label": "qat-"},
        ),
    ] = "adapters"
    qat_group: Annotated[
        int,
        Field(
            ge=1,
            description="Group size of weight quantization under `qat`; must divide the width of every layer.",
            json_schema_extra={"label": "group"},
        ),
    ] = 256
    activation_checkpointing: Annotated[
        bool,
        Field(
            description="Recompute activations in the backward pass instead of keeping them.",
            json_schema_extra={"label": "checkpointing"},
        ),
    ] = False
    compile: Annotated[
        bool, Field(description="Compile model and loss with torch.compile.", json_schema_extra={"label": "compile"})
    ] = False
    steps: Annotated[
        int, Field(ge=1, description="Measured steps, after the warm-up.", json_schema_extra={"label": "steps"})
    ] = 50
    warmup_steps: WarmupSteps = 5
    profiled_steps: ProfiledSteps = 5

    @property
    def compiled(self) -> bool:
        """Whether torch.compile is asked for."""
        return self.compile

    @property
    def distributed(self) -> bool:
        """Whether torchrun starts the ranks."""
        return self.devices > 1 or TECHNIQUES[self.technique].always_distributed

    @property
    def peak_learning_rate(self) -> float:
        """The stated learning rate, else the technique's."""
        stated = self.learning_rate
        return TECHNIQUES[self.technique].learning_rate(self) if stated is None else stated

    @property
    def trains_adapters(self) -> bool:
        """Whether adapters are trained and the model's own weights are frozen."""
        return TECHNIQUES[self.technique].trains_adapters(self)

    @property
    def total_steps(self) -> int:
        """Steps of all windows."""
        return self.warmup_steps + self.steps + LEAST_SETTLING + self.profiled_steps
