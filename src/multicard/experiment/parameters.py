"""The parameters of one run, and the readable id that they make."""

import hashlib
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

DATASET_NAME = r"^[a-z0-9][a-z0-9-]*$"
LONGEST_ID = 180  # file systems allow 255 bytes in a name; temporary names need some of them

Precision = Literal["fp64", "fp32", "fp16", "bf16"]
Strategy = Literal["single", "ddp", "ddp-ds"]
Profiler = Literal["auto", "nsys", "kineto", "none"]


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
            description="`single`: one process, no communication. `ddp`: DistributedDataParallel, every rank "
            "sees all the data. `ddp-ds`: the same with a distributed sampler, each rank sees its share."
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
        int, Field(ge=1, description="Samples per device and step.", json_schema_extra={"label": "batch"})
    ] = 64
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

    @property
    def ranks(self) -> int:
        """Number of training processes."""
        return self.devices

    def stated(self) -> dict[str, Any]:
        """Only what differs from the defaults, so that a new parameter with a default reruns nothing."""
        return self.model_dump(exclude_defaults=True)


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
        if label is not None and value != field.default:
            parts.append(f"{label}{value}")
    name = "_".join([*parts, f"r{p.repeat}"])
    if len(name) > LONGEST_ID:
        digest = hashlib.sha256(name.encode()).hexdigest()[:12]
        name = f"{name[: LONGEST_ID - 13]}_{digest}"
    return name
