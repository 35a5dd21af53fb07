"""The parameters of one run, and the readable id that they make."""

import hashlib
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

DATASET_NAME = r"^[a-z0-9][a-z0-9-]*$"
LONGEST_ID = 180  # file systems allow 255 bytes in a name; temporary names need some of them

Precision = Literal["fp64", "fp32", "fp16", "bf16"]
Strategy = Literal["single", "dp", "ddp", "ddp-ds", "fsdp"]
Profiler = Literal["auto", "nsys", "kineto", "none"]

# What the preset `tuned` turns on; what a configuration states goes before it.
TUNED: dict[str, Any] = {
    "layout": "nhwc",
    "pin_memory": True,
    "non_blocking": True,
    "tf32": "on",
    "fused_optimizer": True,
}


class VisionParameters(BaseModel):
    """One image-classification training job.

    The metadata `label` is how a parameter shows in the run id when it differs from its default.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    workload: Annotated[Literal["vision"], Field(description="The kind of job.")] = "vision"
    dataset: Annotated[str, Field(pattern=DATASET_NAME, description="Name of a data set listed under `datasets`.")] = (
        "digits"
    )
    image_size: Annotated[
        int, Field(ge=8, le=4096, description="Edge length in pixels that images are resized to.")
    ] = 32
    strategy: Annotated[
        Strategy,
        Field(
            description="`single`: one process, no communication. `dp`: one process drives all cards "
            "(nn.DataParallel), each batch is split among them. `ddp`: DistributedDataParallel, every rank sees all "
            "the data. `ddp-ds`: the same with a distributed sampler, each rank sees its share. `fsdp`: as ddp-ds, "
            "with weights, gradients and optimizer state split among the ranks (FSDP2)."
        ),
    ] = "single"
    device: Annotated[
        Literal["cpu", "cuda"], Field(description="`cuda`: one card per rank; `cpu`: one process per rank.")
    ] = "cuda"
    devices: Annotated[int, Field(ge=1, le=1024, description="Number of cards, or of CPU processes.")] = 1
    precision: Annotated[Precision, Field(description="fp16 is autocast with gradient scaling, bf16 is autocast.")] = (
        "fp32"
    )
    model: Annotated[Literal["mobilenet_v2"], Field(description="torchvision model, trained from scratch.")] = (
        "mobilenet_v2"
    )
    width: Annotated[
        float,
        Field(gt=0, le=4, description="Width multiplier of MobileNet v2.", json_schema_extra={"label": "width"}),
    ] = 1.0
    batch_size: Annotated[
        int,
        Field(
            ge=1,
            description="Samples per step: of each device under weak scaling, of all devices together under strong.",
            json_schema_extra={"label": "batch"},
        ),
    ] = 64
    scaling: Annotated[
        Literal["weak", "strong"],
        Field(
            description="`weak`: each device keeps its batch, so more devices do more per step. `strong`: the devices "
            "share one batch, so more devices do less each.",
            json_schema_extra={"label": "scaling-"},
        ),
    ] = "weak"
    epochs: Annotated[
        int, Field(ge=1, description="Passes over the training data.", json_schema_extra={"label": "epochs"})
    ] = 20
    steps_per_epoch: Annotated[
        int | None,
        Field(ge=1, description="Cut every epoch to this many steps.", json_schema_extra={"label": "steps"}),
    ] = None
    learning_rate: Annotated[
        float, Field(gt=0, description="Of SGD with momentum 0.9.", json_schema_extra={"label": "lr"})
    ] = 0.01
    workers: Annotated[
        int,
        Field(ge=0, description="DataLoader worker processes per rank.", json_schema_extra={"label": "workers"}),
    ] = 0
    persistent_workers: Annotated[
        bool,
        Field(description="Keep the workers from one epoch to the next.", json_schema_extra={"label": "persistent"}),
    ] = True
    prefetch: Annotated[
        int,
        Field(ge=1, description="Batches that each worker loads ahead.", json_schema_extra={"label": "prefetch"}),
    ] = 2
    pin_memory: Annotated[
        bool,
        Field(
            description="Put batches into page-locked host memory, from which a GPU copies faster.",
            json_schema_extra={"label": "pin"},
        ),
    ] = False
    loader: Annotated[
        Literal["torch", "dali"],
        Field(
            description="`torch`: PyTorch's DataLoader. `dali`: NVIDIA DALI, on the GPU where there is one.",
            json_schema_extra={"label": "loader-"},
        ),
    ] = "torch"
    layout: Annotated[
        Literal["nchw", "nhwc"],
        Field(
            description="Order of the values in memory, of the model and its batches; `nhwc` is PyTorch's "
            "channels_last.",
            json_schema_extra={"label": ""},
        ),
    ] = "nchw"
    binding: Annotated[
        Literal["none", "numa"],
        Field(
            description="`numa`: each rank runs on the CPUs and in the memory next to its GPU; on a CPU, ranks "
            "share out the NUMA nodes.",
            json_schema_extra={"label": "binding-"},
        ),
    ] = "none"
    preset: Annotated[
        Literal["paper", "tuned"],
        Field(
            description="Defaults of the switches below, of layout and of pin_memory: `paper` leaves PyTorch's, "
            "`tuned` turns on what usually pays. What is stated goes before the preset.",
            json_schema_extra={"label": ""},
        ),
    ] = "paper"
    non_blocking: Annotated[
        bool,
        Field(
            description="Copy batches to the GPU without waiting; needs pin_memory to have an effect.",
            json_schema_extra={"label": "nonblocking"},
        ),
    ] = False
    tf32: Annotated[
        Literal["default", "on", "off"],
        Field(
            description="Whether the GPU computes fp32 in TF32. `default`: as PyTorch does, convolutions do and matrix "
            "products do not.",
            json_schema_extra={"label": "tf32-"},
        ),
    ] = "default"
    compile: Annotated[
        bool, Field(description="Compile the model with torch.compile.", json_schema_extra={"label": "compile"})
    ] = False
    cuda_graphs: Annotated[
        bool,
        Field(
            description="Replay the model from CUDA graphs (torch.compile in the mode reduce-overhead).",
            json_schema_extra={"label": "graphs"},
        ),
    ] = False
    fused_optimizer: Annotated[
        bool,
        Field(description="Update all weights in one kernel.", json_schema_extra={"label": "fused"}),
    ] = False
    bucket_mb: Annotated[
        int,
        Field(
            ge=1,
            description="Megabytes of gradients that DDP reduces together.",
            json_schema_extra={"label": "bucket"},
        ),
    ] = 25
    threads: Annotated[
        int,
        Field(
            ge=1,
            description="CPU threads that each rank computes with.",
            json_schema_extra={"label": "threads"},
        ),
    ] = 1
    seed: Annotated[int, Field(ge=0, description="Seed of repeat 1.", json_schema_extra={"label": "seed"})] = 0
    warmup_steps: Annotated[
        int,
        Field(ge=0, description="First steps, which no measure counts.", json_schema_extra={"label": "warmup"}),
    ] = 10
    profiled_steps: Annotated[
        int,
        Field(
            ge=1,
            description="Steps after the last epoch that the profiler records.",
            json_schema_extra={"label": "profiled"},
        ),
    ] = 10
    profiler: Annotated[
        Profiler,
        Field(
            description="`auto`: Nsight Systems when nsys is on the PATH, else PyTorch's own profiler (`kineto`).",
            json_schema_extra={"label": "profiler-"},
        ),
    ] = "auto"
    repeat: Annotated[int, Field(ge=1, description="Number of this repetition; it shifts the seed.")] = 1

    @model_validator(mode="before")
    @classmethod
    def _preset(cls, values: Any) -> Any:
        """Let the preset fill in what is not stated."""
        if isinstance(values, dict) and values.get("preset") == "tuned":
            return TUNED | values
        return values

    @property
    def ranks(self) -> int:
        """Number of training processes."""
        return 1 if self.strategy == "dp" else self.devices

    @property
    def batch_of_device(self) -> int:
        """Samples per device and step."""
        return self.batch_size // self.devices if self.scaling == "strong" else self.batch_size

    @property
    def batch_of_rank(self) -> int:
        """Samples that a training process loads per step."""
        return self.batch_of_device * self.devices // self.ranks

    def default(self, name: str) -> Any:
        """Value of a parameter that is not stated."""
        fallback = type(self).model_fields[name].default
        return TUNED.get(name, fallback) if self.preset == "tuned" else fallback

    def stated(self) -> dict[str, Any]:
        """Only what differs from the defaults, so that a new parameter with a default reruns nothing."""
        return {name: value for name, value in self.model_dump().items() if value != self.default(name)}


def run_id(parameters: VisionParameters) -> str:
    """Stable readable name of a run, made of its own parameters and of nothing else.

    The parameters that every reader asks for come first; any other shows only when it differs from its
    default, so two different runs never share an id. An id too long for a file name ends in a digest.

    >>> run_id(VisionParameters(strategy="ddp-ds", device="cpu", devices=2, width=0.5, repeat=3))
    'vision_digits_32px_ddp-ds_cpu2_fp32_width0.5_r3'
    """
    p = parameters
    parts = [p.workload, p.dataset, f"{p.image_size}px", p.strategy, f"{p.device}{p.devices}", p.precision]
    for name, field in type(p).model_fields.items():
        label = (field.json_schema_extra or {}).get("label")
        value = getattr(p, name)
        if label is not None and value != p.default(name):
            parts.append(f"{label}{value}" if not isinstance(value, bool) else label if value else f"no-{label}")
    name = "_".join([*parts, f"r{p.repeat}"])
    if len(name) > LONGEST_ID:
        digest = hashlib.sha256(name.encode()).hexdigest()[:12]
        name = f"{name[: LONGEST_ID - 13]}_{digest}"
    return name
