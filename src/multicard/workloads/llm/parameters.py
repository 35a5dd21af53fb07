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
    precision: Annotated[Literal["fp32", "bf16"], Field(description="Format of weights and arithmetic.")] = "bf16"
    batch_size: Annotated[
        int,
        Field(
            ge=1,
            description="Samples that each device computes at a time.",
            json_schema_extra={"label": "batch"},
        ),
    ] = 2
    gradient_accumulation_steps: Annotated[
        int,
        Field(
            ge=1,
            description="Batches of each device whose gradients add up to one step.",
            json_schema_extra={"label": "accumulate"},
        ),
    ] = 1
    sequence_length: Annotated[
        int,
        Field(
            ge=16,
            description="Tokens that a sample is cut to, and that packed samples fill.",
            json_schema_extra={"label": "seq"},
        ),
    ] = 2048
    packed: Annotated[
        bool,
        Field(
            description="Fill every sequence with several samples, so that none is padding.",
            json_schema_extra={"label": "packed"},
        ),
    ] = False
    learning_rate: Annotated[
        float, Field(gt=0, description="Of AdamW, at its highest.", json_schema_extra={"label": "lr"})
    ] = 3e-4
    lora_rank: Annotated[int, Field(ge=1, description="Rank of the adapters.", json_schema_extra={"label": "rank"})] = 8
    lora_alpha: Annotated[
        float,
        Field(gt=0, description="Scale of the adapters, times their rank.", json_schema_extra={"label": "alpha"}),
    ] = 16.0
    qat_of: Annotated[
        Literal["adapters", "weights"],
        Field(
            description="What the technique qat trains: LoRA adapters, or all weights.",
            json_schema_extra={"label": "qat-"},
        ),
    ] = "adapters"
    qat_group: Annotated[
        int,
        Field(
            ge=1,
            description="Weights that share a scale under qat; divides the width of every layer.",
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
    save: Annotated[
        Literal["drop", "keep", "none"],
        Field(
            description="What is written after training, adapters or weights: `drop` removes it once it was timed.",
            json_schema_extra={"label": "save-"},
        ),
    ] = "drop"
    warmup_steps: WarmupSteps = 5
    profiled_steps: ProfiledSteps = 5

    @property
    def distributed(self) -> bool:
        """Whether torchrun starts the ranks."""
        return self.devices > 1 or TECHNIQUES[self.technique].always_distributed

    @property
    def trains_adapters(self) -> bool:
        """Whether adapters are trained and the model's own weights are frozen."""
        return TECHNIQUES[self.technique].trains_adapters(self)

    @property
    def total_steps(self) -> int:
        """Steps of all windows."""
        return self.warmup_steps + self.steps + self.profiled_steps
