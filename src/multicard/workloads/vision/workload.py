"""The entry of image-classification training."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from multicard.experiment.datasets import ImageSource
from multicard.experiment.machine import Machine
from multicard.experiment.workload import Inputs, Unit, Workload
from multicard.workloads.vision.parameters import TUNED, VisionParameters
from multicard.workloads.vision.strategy import STRATEGIES

# Assumed, not measured: what one current data-centre GPU trains of MobileNet v2 per second, in images of 224 px. Cost
# grows with the number of pixels. An estimate of the right order is what a budget needs.
IMAGES_PER_S = {"fp64": 150.0, "fp32": 1500.0, "fp16": 2500.0, "bf16": 2500.0}
REFERENCE_PX = 224

# Training samples of sources whose number is known before they are prepared.
TRAIN_SAMPLES = {"digits": 1438, "mnist": 60_000, "kaggle-mnist": 37_800}

# MobileNet v2 has 6.7 million convolution outputs for 224 px (Sandler et al. 2018, arXiv 1801.04381, Table 2), of each
# of which training keeps that, its normalized value and its activation.
KEPT_VALUES = 3 * 6.7e6
VALUE_BYTES = {"fp64": 8, "fp32": 4, "fp16": 4, "bf16": 4}


class Vision(Workload):
    """Image classification with MobileNet v2."""

    name, order = "vision", 10
    parameters = VisionParameters
    program = "multicard.workloads.vision.train"
    inputs: ClassVar[Inputs] = {"dataset": ImageSource}
    method, methods = "strategy", STRATEGIES
    has_epochs = True
    unit = Unit("image", "samples", "throughput_samples_per_s", "energy_per_sample_j")
    assumption = f"{IMAGES_PER_S['fp32']:g} images of {REFERENCE_PX} px per second in fp32"
    implied: ClassVar[Mapping[str, tuple[str, ...]]] = {"preset": tuple(TUNED)}

    def unsupported_reason(self, p: VisionParameters, machine: Machine, inputs: Inputs) -> str | None:
        """Ask the strategy, then the loader and the compiler."""
        if refused := STRATEGIES[p.strategy].unsupported_reason(p):
            return refused
        if p.scaling == "strong" and p.batch_size % p.devices:
            return f"a batch of {p.batch_size} cannot be shared equally by {p.devices} devices"
        if p.cuda_graphs and p.device == "cpu":
            return "CUDA graphs need a GPU"
        if p.cuda_graphs and not machine.compiler:
            return "torch.compile needs a C++ compiler, none found"
        if p.loader == "dali" and not machine.dali:
            return 'the loader dali needs the package nvidia-dali-cuda130 (pip install "multicard[dali]")'
        return None

    def prepare(self, name: str, definition: Any, folder: Path, resources: Path) -> None:
        """Prepare a set of images."""
        from multicard.workloads.vision.prepare import prepare

        prepare(name, definition, folder)

    def rank_memory_mb(self, p: VisionParameters, inputs: Inputs) -> float:
        """Batches that are loaded ahead, and on a CPU what autograd keeps."""
        size = VALUE_BYTES[p.precision]
        image = 3 * p.image_size**2 * size
        batches = p.num_workers * p.prefetch_factor + 2  # loaded ahead; in use; being copied
        kept = KEPT_VALUES * p.width_mult * (p.image_size / REFERENCE_PX) ** 2 * size if p.device == "cpu" else 0
        return p.batch_of_rank * (batches * image + kept) / 1e6

    def training_s(self, p: VisionParameters, inputs: Inputs) -> float | None:
        """Images over the assumed rate; None where the data set's size is not known."""
        dataset = inputs["dataset"]
        samples = getattr(dataset, "samples", None) or TRAIN_SAMPLES.get(dataset.source)
        samples = min(samples, getattr(dataset, "limit", None) or samples) if samples else None
        if samples is None and p.steps_per_epoch is None:
            return None
        steps = min(
            samples // p.distinct_samples_of_step if samples else p.steps_per_epoch, p.steps_per_epoch or 1 << 30
        )
        images = p.epochs * steps * p.batch_of_device
        return images / (IMAGES_PER_S[p.precision] / p.width_mult * (REFERENCE_PX / p.image_size) ** 2)

    @property
    def measures(self) -> Mapping[str, str]:
        """Of the tests after each epoch."""
        from multicard.workloads.vision.measures import MEASURES

        return MEASURES

    def measure(self, record: Mapping[str, Any], common: Mapping[str, Any], steps: Any, epochs: Any) -> dict[str, Any]:
        """Results of the tests after each epoch."""
        from multicard.workloads.vision.measures import measure

        return measure(epochs)

    def distinct_share(self, parameters: Mapping[str, Any]) -> float:
        """Ranks that each pass over all the data repeat one another's samples."""
        p = VisionParameters.model_validate(parameters)
        return p.distinct_samples_of_step / p.samples_of_step

    def job(self, values: Mapping[str, Any]) -> str:
        """Same images in the same size, same model."""
        width = "" if values["width_mult"] == 1 else f" of width {values['width_mult']}"
        return f"{values['dataset']}, {values['image_size']} px, {values['model']}{width}"

    def baselines(self, method: str) -> Sequence[str]:
        """As the strategy says."""
        return STRATEGIES[method].baselines()

    def tuning_applies(self, changes: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
        """Ask the strategies, and leave out what has no effect under the other parameters."""
        if "bucket_cap_mb" in changes and not STRATEGIES[values["strategy"]].has_buckets:
            return False
        if "strategy" in changes and not STRATEGIES[changes["strategy"]].improves(
            values["strategy"], values["devices"]
        ):
            return False
        if "prefetch_factor" in changes and not values["num_workers"]:
            return False
        return "num_workers" not in changes or "loader" in changes or values["loader"] != "dali"


WORKLOAD = Vision()
