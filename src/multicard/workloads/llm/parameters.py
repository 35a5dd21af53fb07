"""The parameters of a run that tunes a language model."""

from typing import ClassVar, Literal

from pydantic import Field

from multicard.record.profiled_window import LEAST_SETTLING
from multicard.runs.parameters import (
    DATASET_NAME,
    DatasetOf,
    JobParameters,
    ProfiledSteps,
    WarmupSteps,
    labelled,
)
from multicard.workloads.llm.techniques import TECHNIQUES


class LlmParameters(JobParameters):
    """One tuning job of a Llama-3 model.

    >>> from multicard.runs.parameters import run_id
    >>> run_id(LlmParameters(technique="qlora", device="cpu", devices=2, precision="fp32", packed=True))
    'llm_tiny_qlora_instructions_cpu2_fp32_packed_r1'
    """

    HEADLINE: ClassVar[tuple[str, ...]] = ("model", "technique", "dataset", "devices", "precision")

    workload: Literal["llm"] = Field("llm", description="The kind of job.")
    dataset: DatasetOf = "instructions"
    model: str = Field("tiny", pattern=DATASET_NAME, description="Name of a model listed under `models`.")
    technique: Literal[tuple(TECHNIQUES)] = Field(
        "lora", description=" ".join(f"`{name}`: {entry.description}" for name, entry in TECHNIQUES.items())
    )
    precision: Literal["fp32", "bf16"] = Field("bf16", description="Data type of weights and arithmetic.")
    batch_size: int = labelled("batch", "Samples per device and forward pass.", ge=1, default=2)
    gradient_accumulation_steps: int = labelled(
        "accumulate", "Batches per device whose gradients are accumulated into one step.", ge=1, default=1
    )
    sequence_length: int = labelled(
        "seq", "Maximum tokens per sequence: longer samples are truncated, packed ones fill it.", ge=16, default=2048
    )
    packed: bool = labelled(
        "packed",
        "Pack several samples into each sequence instead of padding. On GPUs torchtune then uses "
        "PyTorch's flex attention, compiled whatever `compile` says.",
        default=False,
    )
    learning_rate: float | None = labelled(
        "lr",
        "Peak learning rate of AdamW; null: the technique's, as in torchtune's own configurations.",
        gt=0,
        default=None,
    )
    lora_rank: int = labelled("rank", "Rank of the adapters.", ge=1, default=8)
    lora_alpha: float = labelled("alpha", "Scaling of the adapters, before division by their rank.", gt=0, default=16.0)
    qat_of: Literal["adapters", "weights"] = labelled(
        "qat-", "What technique `qat` trains: LoRA adapters, or all weights.", default="adapters"
    )
    qat_group: int = labelled(
        "group",
        "Group size of weight quantization under `qat`; must divide the width of every layer.",
        ge=1,
        default=256,
    )
    activation_checkpointing: bool = labelled(
        "checkpointing", "Recompute activations in the backward pass instead of keeping them.", default=False
    )
    compile: bool = labelled("compile", "Compile model and loss with torch.compile.", default=False)
    steps: int = labelled("steps", "Measured steps, after the warm-up.", ge=1, default=50)
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
