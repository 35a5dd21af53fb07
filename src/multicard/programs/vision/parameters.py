"""The parameters of an image-classification run."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from multicard.core.values import Row
from multicard.programs.vision.strategies import STRATEGIES
from multicard.runs.parameter_types import (
    ImageSize,
    Layout,
    LoaderName,
    NonNegative,
    Positive,
    PositiveFloat,
    Precision,
    Preset,
    Scaling,
    StrategyName,
    Tf32,
    WidthMultiplier,
)
from multicard.runs.parameters import ANY, DatasetOf, JobParameters, labelled, worded

# What the preset `tuned` turns on; a stated value overrides it.
TUNED: Row = {
    "layout": "nhwc",
    "pin_memory": True,
    "non_blocking": True,
    "tf32": "on",
    "fused_optimizer": True,
}


class VisionParameters(JobParameters):
    """One image-classification training job.

    >>> from multicard.runs.parameters import run_id
    >>> run_id(VisionParameters(strategy="ddp-ds", device="cpu", devices=2, width_mult=0.5, repeat=3))
    'vision_digits_32px_ddp-ds_cpu2_fp32_width0.5_r3'
    """

    IMPLIED: ClassVar[Mapping[str, tuple[str, ...]]] = {"preset": tuple(TUNED)}
    HEADLINE: ClassVar[tuple[str, ...]] = ("dataset", "image_size", "strategy", "devices", "precision")

    workload: Literal["vision"] = Field(default="vision", description="The kind of job.")
    dataset: DatasetOf = "digits"
    image_size: ImageSize = worded("{} px", "Edge length in pixels that images are resized to.", default=32)
    strategy: StrategyName = worded(
        "{}", " ".join(f"`{name}`: {entry.description}" for name, entry in STRATEGIES.items()), default="single"
    )
    precision: Precision = worded("{}", "fp16 is autocast with gradient scaling, bf16 is autocast.", default="fp32")
    model: Literal["mobilenet_v2"] = worded("{}", "torchvision model, trained from scratch.", default="mobilenet_v2")
    width_mult: WidthMultiplier = labelled("width", "Width multiplier of MobileNet v2.", "width {}", default=1.0)
    batch_size: Positive = labelled(
        "batch",
        "Samples per step: per device under weak scaling, in total under strong scaling.",
        "batch {}",
        default=64,
    )
    scaling: Scaling = labelled(
        "scaling-",
        "`weak`: the batch per device is fixed, so more devices do more work per step. `strong`: the "
        "global batch is fixed, so each device does less.",
        "{} scaling",
        default="weak",
    )
    epochs: Positive = labelled("epochs", "Passes over the training data.", default=20)
    steps_per_epoch: Positive | None = labelled(
        "steps",
        "End every epoch after this many steps.",
        {"": "full epochs", "1": "1 step per epoch", ANY: "{} steps per epoch"},
        default=None,
    )
    learning_rate: PositiveFloat = labelled("lr", "Learning rate of SGD with momentum 0.9.", default=0.01)
    num_workers: NonNegative = labelled(
        "workers",
        "DataLoader worker processes per device: a process that drives several has as many for each.",
        {"1": "1 worker", ANY: "{} workers"},
        default=0,
    )
    persistent_workers: bool = labelled("persistent", "Keep the workers from one epoch to the next.", default=True)
    prefetch_factor: Positive = labelled("prefetch", "Batches that each worker prefetches.", default=2)
    pin_memory: bool = labelled(
        "pin",
        "Put batches in page-locked host memory, which copies to a GPU faster.",
        {"True": "pinned memory", "False": "pageable memory"},
        default=False,
    )
    loader: LoaderName = labelled(
        "loader-",
        "`torch`: PyTorch's DataLoader. `dali`: NVIDIA DALI, on the GPU if there is one.",
        {"torch": "DataLoader", "dali": "DALI"},
        default="torch",
    )
    layout: Layout = labelled(
        "",
        "Memory layout of the model and its batches; `nhwc` is PyTorch's channels_last.",
        {"nchw": "NCHW", "nhwc": "NHWC"},
        default="nchw",
    )
    preset: Preset = labelled(
        "",
        "Defaults of layout, pin_memory, non_blocking, tf32 and fused_optimizer: `paper` keeps "
        "PyTorch's, `tuned` turns on what usually helps. An explicit value overrides the preset.",
        "{} settings",
        default="paper",
    )
    non_blocking: bool = labelled(
        "nonblocking", "Copy batches to the GPU without waiting; needs pin_memory to have an effect.", default=False
    )
    tf32: Tf32 = labelled(
        "tf32-",
        "Whether the GPU uses TF32 for fp32. `default`: PyTorch's default, TF32 for convolutions but "
        "not for matrix products.",
        default="default",
    )
    compile: bool = labelled("compile", "Compile the model with torch.compile.", default=False)
    cuda_graphs: bool = labelled(
        "graphs", "Run the model as CUDA graphs (torch.compile with mode `reduce-overhead`).", default=False
    )
    fused_optimizer: bool = labelled("fused", "Update all weights in one kernel.", default=False)
    bucket_cap_mb: Positive = labelled("bucket", "Size in MB of the gradient buckets that DDP reduces.", default=25)

    @model_validator(mode="before")
    @classmethod
    def _preset(cls, values: Any) -> Any:
        """Add the values of the preset `tuned` for parameters that the user does not state."""
        if isinstance(values, dict) and values.get("preset") == "tuned":
            return _tuned(values.get("strategy")) | values
        return values

    @property
    def ranks(self) -> int:
        """Number of training processes."""
        return STRATEGIES[self.strategy].ranks(self.devices)

    @property
    def compiled(self) -> bool:
        """True if the run uses torch.compile, be it only for CUDA graphs, which torch.compile records."""
        return self.compile or self.cuda_graphs

    @property
    def distributed(self) -> bool:
        """True if the ranks form a process group, also a single one."""
        return STRATEGIES[self.strategy].distributed

    @property
    def launched_by(self) -> str:
        """Name of the launcher: torchrun for several ranks; a single one has no other to find."""
        return "torchrun" if self.ranks > 1 else "python"

    @property
    def loads_in_step(self) -> bool:
        """True if the training process loads, too: with PyTorch's loader and no workers."""
        return self.loader == "torch" and not self.num_workers

    @property
    def loader_workers(self) -> int:
        """Number of processes that load data, of all ranks together."""
        return self.workers_of_rank * self.ranks

    @property
    def workers_of_rank(self) -> int:
        """Number of processes that load the data of one training process."""
        return self.num_workers * self.devices // self.ranks

    @property
    def shared_memory_bytes(self) -> int:
        """Most bytes that the workers of PyTorch's loaders, of all ranks together, put into shared memory.

        Each worker holds up to `prefetch_factor` batches of float32 images. 0 with DALI, which has no workers.
        """
        workers = self.loader_workers if self.loader == "torch" else 0
        return workers * self.prefetch_factor * self.batch_of_rank * 3 * self.image_size**2 * 4

    @property
    def batch_of_device(self) -> int:
        """Samples per device and step."""
        return self.batch_size // self.devices if self.scaling == "strong" else self.batch_size

    @property
    def batch_of_rank(self) -> int:
        """Samples that a training process loads per step."""
        return self.batch_of_device * self.devices // self.ranks

    @property
    def samples_of_step(self) -> int:
        """Samples that all devices together process per step."""
        return self.batch_of_device * self.devices

    @property
    def distinct_samples_of_step(self) -> int:
        """Samples of a step, without those that are only repeated by other ranks.

        Where each rank iterates over all the data, each of `ranks` processes every sample once per epoch. There this is
        `samples_of_step` divided by `ranks`, else `samples_of_step`.
        """
        return self.samples_of_step // (1 if STRATEGIES[self.strategy].distributed_sampler else self.ranks)

    def default(self, name: str) -> Any:
        """Return the value that the parameter `name` has where it is not stated, with the preset of this run."""
        fallback = super().default(name)
        return _tuned(self.strategy).get(name, fallback) if self.preset == "tuned" else fallback


def _tuned(strategy: Any) -> Row:
    """Return the values that the preset `tuned` sets for a strategy, without those that the strategy excludes.

    `strategy` is not validated yet: an unknown one excludes nothing.
    """
    excluded = STRATEGIES[strategy].not_in_preset if strategy in STRATEGIES else ()
    return {name: value for name, value in TUNED.items() if name not in excluded}


def read_ahead(p: VisionParameters, synthetic: bool) -> int:
    """Return how many batches the training loader of a rank prepares ahead of the step that uses them.

    `synthetic`: True if the images are random: their loader has one batch from the start and prepares none.
    """
    if synthetic:
        return 0
    return p.prefetch_factor * (1 if p.loader == "dali" else p.workers_of_rank)
