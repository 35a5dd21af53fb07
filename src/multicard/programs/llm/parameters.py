"""The parameters of a run that tunes a language model."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from multicard.observe.record.profiled_window import LEAST_SETTLING
from multicard.programs.llm.libraries import LIBRARIES
from multicard.programs.llm.techniques import TECHNIQUES
from multicard.runs.parameter_types import (
    DATASET_NAME,
    LibraryName,
    Positive,
    PositiveFloat,
    QatTarget,
    SequenceLength,
    TechniqueName,
)
from multicard.runs.parameters import ANY, DatasetOf, JobParameters, ProfiledSteps, WarmupSteps, labelled, worded


class LlmParameters(JobParameters):
    """Parameters of one job that tunes a Llama-3 model.

    >>> from multicard.runs.parameters import run_id
    >>> run_id(LlmParameters(technique="dpo", device="cpu", devices=2, precision="fp32", sequence_length=256))
    'llm_tiny_dpo_instructions_cpu2_fp32_seq256_r1'
    """

    HEADLINE: ClassVar[tuple[str, ...]] = ("model", "technique", "dataset", "devices", "precision")

    workload: Literal["llm"] = Field(default="llm", description="The kind of job.")
    dataset: DatasetOf = "instructions"
    model: str = worded("{}", "Name of a model listed under `models`.", default="tiny", pattern=DATASET_NAME)
    technique: TechniqueName = worded(
        {name: entry.label for name, entry in TECHNIQUES.items()},
        " ".join(f"`{name}`: {entry.description}" for name, entry in TECHNIQUES.items()),
        default="lora",
    )
    library: LibraryName = labelled(
        "by-",
        "What tunes the model. " + " ".join(f"`{name}`: {entry.description}" for name, entry in LIBRARIES.items()),
        {name: entry.label for name, entry in LIBRARIES.items()},
        default="trl",
    )
    precision: Literal["fp32", "bf16"] = worded("{}", "Data type of weights and arithmetic.", default="bf16")
    batch_size: Positive = labelled("batch", "Samples per device and forward pass.", "batch {}", default=2)
    gradient_accumulation_steps: Positive = labelled(
        "accumulate",
        "Batches per device whose gradients are accumulated into one step.",
        {"1": "1 batch per step", ANY: "{} batches per step"},
        default=1,
    )
    sequence_length: SequenceLength = labelled(
        "seq",
        "Maximum tokens per sequence: longer samples are truncated, packed ones fill it.",
        "{} tokens",
        default=2048,
    )
    packed: bool = labelled(
        "packed",
        "Pack several samples into each sequence instead of padding. Only with `library: torchtune`; on GPUs it then "
        "uses PyTorch's flex attention, compiled whatever `compile` says.",
        {"True": "packed", "False": "not packed"},
        default=False,
    )
    learning_rate: PositiveFloat | None = labelled(
        "lr",
        "Peak learning rate of AdamW; null: the technique's, as in torchtune's own configurations.",
        default=None,
    )
    lora_rank: Positive = labelled("rank", "Rank of the adapters.", "rank {}", default=8)
    lora_alpha: PositiveFloat = labelled(
        "alpha", "Scaling of the adapters, before division by their rank.", "alpha {}", default=16.0
    )
    qat_of: QatTarget = labelled(
        "qat-", "What technique `qat` trains: LoRA adapters, or all weights.", "QAT of {}", default="adapters"
    )
    qat_group: Positive = labelled(
        "group",
        "Group size of weight quantization under `qat`; must divide the width of every layer.",
        "QAT group {}",
        default=256,
    )
    activation_checkpointing: bool = labelled(
        "checkpointing",
        "Recompute activations in the backward pass instead of keeping them.",
        {"True": "recomputed activations", "False": "kept activations"},
        default=False,
    )
    compile: bool = labelled("compile", "Compile model and loss with torch.compile.", default=False)
    steps: Positive = labelled("steps", "Measured steps, after the warm-up.", default=50)
    warmup_steps: WarmupSteps = 5
    profiled_steps: ProfiledSteps = 5

    @classmethod
    def applies(cls, parameter: str, values: Mapping[str, Any]) -> bool:
        """Return True if a parameter has an effect. A technique's own parameter has one only with that technique."""
        technique = values.get("technique", cls.model_fields["technique"].default)
        owners = [name for name, owner in TECHNIQUES.items() if parameter in owner.own_parameters]
        return super().applies(parameter, values) and (not owners or technique in owners)

    @property
    def measured_steps(self) -> int:
        """Number of measured steps."""
        return self.steps

    @property
    def loads_in_step(self) -> bool:
        """True, because the libraries load in the process that trains."""
        return True

    @property
    def compiled(self) -> bool:
        """True if the run uses torch.compile."""
        return self.compile

    @property
    def distributed(self) -> bool:
        """True if torchrun starts the ranks."""
        return LIBRARIES[self.library].distributed(self)

    @property
    def peak_learning_rate(self) -> float:
        """The highest learning rate, reached when `warmup_steps` have ended: the stated one, else the technique's.

        The schedule has the same warm-up as the measurement: the rate rises linearly until then, and falls along a
        cosine after that.
        """
        stated = self.learning_rate
        return TECHNIQUES[self.technique].learning_rate(self) if stated is None else stated

    @property
    def trains_adapters(self) -> bool:
        """True if adapters are trained and the model's own weights are frozen."""
        return TECHNIQUES[self.technique].trains_adapters(self)

    @property
    def quantizes_weights(self) -> bool:
        """True if the frozen weights of linear layers lie in NF4."""
        return TECHNIQUES[self.technique].nf4

    @property
    def imitates_quantization(self) -> bool:
        """True if linear layers round their inputs and weights while they are trained."""
        return TECHNIQUES[self.technique].fake_quantization

    @property
    def total_steps(self) -> int:
        """Number of steps that the job trains: warm-up, measured, settling and profiled.

        In the settling steps (`LEAST_SETTLING`) a profiler is still starting. They are trained like the others, but no
        measure uses them. By default: 5 + 50 + 2 + 5 = 62.
        """
        return self.warmup_steps + self.steps + LEAST_SETTLING + self.profiled_steps
