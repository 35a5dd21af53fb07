"""The entry of image-classification training."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from multicard.core.prepared import read_prepared
from multicard.core.text import counted
from multicard.experiment.datasets import ImageSource
from multicard.experiment.machine import Machine
from multicard.experiment.workload import BATCH, Inputs, Resources, Unit, Workload
from multicard.record.profiled_window import place_window
from multicard.workloads.vision.parameters import TUNED, VisionParameters, read_ahead
from multicard.workloads.vision.strategies import STRATEGIES

# Assumed, not measured: what one current data-centre GPU trains of MobileNet v2 per second, in images of 224 px. Cost
# grows with the number of pixels. An estimate of the right order is what a budget needs.
IMAGES_PER_S = {"fp64": 150.0, "fp32": 1500.0, "fp16": 2500.0, "bf16": 2500.0}
REFERENCE_PX = 224

# Seconds that one worker takes for an image, and for each of its pixels: resizing a small array, decoding a JPEG file.
# Fitted to its CPU time for 100 to 500 px on a core of an Intel Xeon virtual machine (benchmarks/loading.py). DALI is
# assumed to keep up with the GPU.
LOADING_S = {"array": (0.1e-3, 22e-9), "jpeg": (0.5e-3, 30e-9)}

# Values that autograd keeps of an image for the backward pass, for each of its pixels: some, and more with the width.
KEPT_VALUES = 45, 355

# Training and test samples of sources whose number is known before they are prepared.
SAMPLES = {"digits": (1438, 359), "mnist": (60_000, 10_000), "kaggle-mnist": (37_800, 4_200)}


class Vision(Workload):
    """Image classification with MobileNet v2."""

    name = "vision"
    parameters = VisionParameters
    program = "multicard.workloads.vision.train"
    inputs: ClassVar[Inputs] = {"dataset": ImageSource}
    method, methods = "strategy", STRATEGIES
    has_epochs = True
    unit = Unit("image", "samples", "throughput_samples_per_s", "energy_per_sample_j")
    implied: ClassVar[Mapping[str, tuple[str, ...]]] = {"preset": tuple(TUNED)}

    def unsupported_reason(self, p: VisionParameters, machine: Machine, inputs: Inputs) -> str | None:
        """Ask for PyTorch, the strategy, then the loader."""
        if machine.vision:
            return machine.vision
        if refused := STRATEGIES[p.strategy].unsupported_reason(p):
            return refused
        if p.scaling == "strong" and p.batch_size % p.devices:
            return f"a batch of {p.batch_size} cannot be shared equally by {p.devices} devices"
        samples = samples_of(inputs["dataset"])[0] if "dataset" in inputs else None
        if samples is not None and samples < p.distinct_samples_of_step:
            return f"the data set has {samples} training samples, fewer than a step"
        if p.cuda_graphs and "host" in p.ablated:
            return "ablate: cuda_graphs leaves the host's work out already"
        if p.cuda_graphs and p.device == "cpu":
            return "CUDA graphs need a GPU"
        if p.loader == "dali" and not machine.dali:
            return 'the loader dali needs the package nvidia-dali-cuda130 (pip install "multicard[dali]")'
        return None

    def sample_count(self, definition: Any) -> int | None:
        """Return the number of training images, where the source or the definition states it."""
        return samples_of(definition)[0]

    def data_error(self, p: VisionParameters, samples: int) -> str | None:
        """Return why a run has no full batch, or no step to measure, and the values with which it would have some."""
        share = samples // p.ranks if STRATEGIES[p.strategy].distributed_sampler else samples
        batches = share // p.batch_of_rank
        if not batches:
            found = f"batch_size: {p.batch_size} needs {p.batch_of_rank} training samples per rank, found {share}"
            remedy = _smaller_batch(p, share)
            return f"{found}; set {remedy}" if remedy else found
        in_epoch = min(batches, p.steps_per_epoch or batches)
        steps = p.epochs * in_epoch
        if steps > p.warmup_steps:
            return None
        found = f"warmup_steps: {p.warmup_steps}, but the run has only {counted(steps, 'step')}"
        remedies = (f"epochs: {p.warmup_steps // in_epoch + 1} or more", _smaller_batch(p, share))
        return f"{found}; set {', or '.join(filter(None, remedies))}"

    def prepare(self, name: str, definition: Any, folder: Path, resources: Path) -> None:
        """Prepare a set of images."""
        from multicard.workloads.vision.prepare import prepare

        prepare(name, definition, folder)

    def observed(self, p: VisionParameters) -> dict[str, Any]:
        """The program states its number of steps."""
        return super().observed(p) | {"measured_steps": None}

    def input_facts(self, data: Path, model: Path | None) -> dict[str, Any]:
        """Of the data set."""
        facts = read_prepared(data, "data set")
        names = ("dataset", "source", "train_samples", "test_samples", "files")
        return {"data": {name: facts[name] for name in names} | {"classes": len(facts["classes"])}}

    def resources(self, p: VisionParameters, inputs: Inputs) -> Resources:
        """On the host batches that are loaded ahead, and on a CPU what autograd keeps."""
        pixels, size = p.batch_of_rank * p.image_size**2, 8 if p.precision == "fp64" else 4
        batches = p.workers_of_rank * p.prefetch_factor + 2  # loaded ahead; in use; being copied
        kept = (KEPT_VALUES[0] + KEPT_VALUES[1] * p.width_mult) if p.device == "cpu" else 0
        dataset = inputs.get("dataset")
        durations = self._durations_s(p, dataset) if dataset else None
        return Resources(pixels * size * (3 * batches + kept) / 1e6, durations_s=durations)

    def _durations_s(self, p: VisionParameters, dataset: Any) -> dict[str, float] | None:
        """Steps and tests, by the slower of GPU and loader; None where the data set's size is not known."""
        samples, tested = samples_of(dataset)
        if samples is None and p.steps_per_epoch is None:
            return None
        in_pass = 1 << 30 if samples is None else samples // p.distinct_samples_of_step
        steps = p.epochs * min(in_pass, p.steps_per_epoch or in_pass)
        ahead = read_ahead(p, synthetic=dataset.source == "synthetic")
        window = place_window(ahead, max(1, in_pass), 0, p.profiled_steps)
        on_gpu, loading = self._image_s(p, dataset)
        step = p.batch_of_device * on_gpu, p.batch_of_rank * loading
        passes = math.ceil((tested or 0) / p.ranks)
        # A test is a forward pass, a third of the operations of training, on one GPU of each process.
        test = passes * (on_gpu / 3), passes * loading
        together = sum if self.loads_in_step(p) else max
        return {
            "training": steps * together(step),
            "tests": p.epochs * together(test),
            "profiled window": window.steps * together(step),
        }

    def loads_in_step(self, p: VisionParameters) -> bool:
        """Without workers PyTorch's loader has no process of its own."""
        return p.loader == "torch" and not p.num_workers

    def _image_s(self, p: VisionParameters, dataset: Any) -> tuple[float, float]:
        """Seconds that a GPU trains on an image, and that a process with its workers loads one."""
        pixels = p.image_size**2
        on_gpu = p.width_mult / IMAGES_PER_S[p.precision] * pixels / REFERENCE_PX**2
        if dataset.source == "synthetic" or (p.loader == "dali" and p.device == "cuda"):
            return on_gpu, 0.0
        decodes = dataset.source == "imagefolder" or getattr(dataset, "stored_size", None)
        fixed, per_pixel = LOADING_S["jpeg" if decodes else "array"]
        return on_gpu, (fixed + per_pixel * pixels) / max(1, p.workers_of_rank)

    def distinct_share(self, record: Mapping[str, Any]) -> float:
        """Ranks that each pass over all the data repeat one another's samples."""
        p = VisionParameters.model_validate(record["parameters"])
        return p.distinct_samples_of_step / p.samples_of_step

    def job(self, values: Mapping[str, Any]) -> str:
        """Same images in the same size, same model."""
        width = "" if values["width_mult"] == 1 else f" of width {values['width_mult']}"
        return f"{values['dataset']}, {values['image_size']} px, {values['model']}{width}"

    def learning(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Samples that every rank sees count once: they make the same gradient."""
        p = self.stated_in(values)
        names = ("precision", *(["tf32"] if p.device == "cuda" else []), "learning_rate")
        return {BATCH: p.distinct_samples_of_step} | {name: values[name] for name in names}

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


def _smaller_batch(p: VisionParameters, share: int) -> str | None:
    """Name the largest batch size with which a rank's `share` of the samples outlasts the warm-up, if there is one."""
    steps_in_epoch = p.warmup_steps // p.epochs + 1
    of_device = share // steps_in_epoch * p.ranks // p.devices
    largest = of_device * p.devices if p.scaling == "strong" else of_device
    if not largest:
        return None
    remedy = f"batch_size: {largest} or less"
    if p.steps_per_epoch and p.steps_per_epoch < steps_in_epoch:
        remedy += f" and steps_per_epoch: {steps_in_epoch} or more"
    return remedy


def samples_of(dataset: ImageSource) -> tuple[int | None, int | None]:
    """Number of training and of test images of a data set; None where that is not known before it is prepared."""
    if dataset.source == "synthetic":
        return dataset.samples, max(1, dataset.samples // 10)
    if dataset.source not in SAMPLES:
        return None, None
    train, test = SAMPLES[dataset.source]
    limit = getattr(dataset, "limit", None)
    return (min(train, limit), min(test, max(1, limit // 5))) if limit else (train, test)


WORKLOAD = Vision()
