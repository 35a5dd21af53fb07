"""The workload `vision`: image-classification training."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from multicard.core.text import counted
from multicard.core.values import Row
from multicard.experiment.datasets import GrayscaleSource, ImageDataset, ImageFolder, ImageSource, Synthetic
from multicard.experiment.machine import Machine
from multicard.experiment.workload import BATCH, InputRecords, Inputs, Resources, Unit, Workload
from multicard.record.profiled_window import place_window
from multicard.runs.record import DataRecord, RunRecord
from multicard.workloads.provenance import ImageProvenance, files_of_record, read_provenance
from multicard.workloads.vision.parameters import TUNED, VisionParameters, read_ahead
from multicard.workloads.vision.strategies import STRATEGIES

# Images per second, of 224 × 224 px, on which one current data-centre GPU trains MobileNet v2 of width 1: assumed, not
# measured. The time of an image is assumed to grow in proportion to its pixels and to the width. An estimate of the
# right order is enough for a budget.
IMAGES_PER_S = {"fp64": 150.0, "fp32": 1500.0, "fp16": 2500.0, "bf16": 2500.0}
REFERENCE_PX = 224

# Seconds that one worker takes to load an image: a constant, plus seconds for each pixel of the resized image. "array":
# it resizes a small array; "jpeg": it decodes a file. Fitted to the CPU time of a worker for edges of 100 to 500 px on
# a core of an Intel Xeon virtual machine (benchmarks/loading.py). On a GPU, DALI is assumed to take no time.
LOADING_S = {"array": (0.1e-3, 22e-9), "jpeg": (0.5e-3, 30e-9)}

# For each pixel of an input image, autograd keeps KEPT_VALUES + KEPT_VALUES_OF_WIDTH × width multiplier values for the
# backward pass.
KEPT_VALUES = 45
KEPT_VALUES_OF_WIDTH = 355

# Numbers of training and of test samples, for the sources that always have as many.
SAMPLES = {"digits": (1438, 359), "mnist": (60_000, 10_000), "kaggle-mnist": (37_800, 4_200)}

MANY_STEPS = 1 << 30  # steps of a pass over a data set of unknown size


class Vision(Workload):
    """Image classification with MobileNet v2."""

    name = "vision"
    parameters = VisionParameters
    program = "multicard.workloads.vision.train"
    inputs: ClassVar[Mapping[str, type]] = {"dataset": ImageSource}
    method, methods = "strategy", STRATEGIES
    has_epochs = True
    unit = Unit("image", "samples", "throughput_samples_per_s", "energy_per_sample_j")
    implied: ClassVar[Mapping[str, tuple[str, ...]]] = {"preset": tuple(TUNED)}

    def unsupported_reason(self, p: VisionParameters, machine: Machine, inputs: Inputs) -> str | None:
        """Return why a run cannot run on `machine`: by its packages, the strategy or the parameters; None if it can."""
        if machine.vision:
            return machine.vision
        if refused := STRATEGIES[p.strategy].unsupported_reason(p):
            return refused
        if p.scaling == "strong" and p.batch_size % p.devices:
            return f"a batch of {p.batch_size} cannot be shared equally by {p.devices} devices"
        samples = self.sample_count(inputs["dataset"]) if "dataset" in inputs else None
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
        """Return the number of training images; None where that is not known before the data set is prepared."""
        training, _ = samples_of(definition)
        return training

    def data_error(self, p: VisionParameters, samples: int) -> str | None:
        """Return why a run with `samples` training samples has no full batch, or no step to measure; else None.

        The reason includes values of parameters with which the run would have them, if there are such values.
        """
        samples_of_rank = samples // p.ranks if STRATEGIES[p.strategy].distributed_sampler else samples
        batches = samples_of_rank // p.batch_of_rank
        smaller_batch = _smaller_batch(p, samples_of_rank)
        if not batches:
            needed = f"batch_size: {p.batch_size} needs {p.batch_of_rank} training samples per rank"
            remedy = f"; set {smaller_batch}" if smaller_batch else ""
            return f"{needed}, found {samples_of_rank}{remedy}"
        steps_of_epoch = min(batches, p.steps_per_epoch or batches)
        steps = p.epochs * steps_of_epoch
        if steps > p.warmup_steps:
            return None
        remedies = [f"epochs: {p.warmup_steps // steps_of_epoch + 1} or more"]
        if smaller_batch:
            remedies.append(smaller_batch)
        too_few = f"warmup_steps: {p.warmup_steps}, but the run has only {counted(steps, 'step')}"
        return f"{too_few}; set {', or '.join(remedies)}"

    def prepare(self, name: str, definition: Any, folder: Path, resources: Path) -> None:
        """Prepare a set of images."""
        from multicard.workloads.vision.prepare import prepare

        prepare(name, definition, folder)

    def input_facts(self, data: Path, model: Path | None) -> InputRecords:
        """Return the record of the data set."""
        provenance = read_provenance(data, ImageProvenance)
        record = DataRecord(
            dataset=provenance.dataset,
            source=provenance.source,
            train_samples=provenance.train_samples,
            test_samples=provenance.test_samples,
            classes=len(provenance.classes),
            files=files_of_record(provenance),
        )
        return {"data": record}

    def resources(self, p: VisionParameters, inputs: Inputs) -> Resources:
        """Estimate durations, and the host's memory: loaded batches and, on a CPU, the values that autograd keeps."""
        pixels = p.batch_of_rank * p.image_size**2
        bytes_per_value = 8 if p.precision == "fp64" else 4
        batches = p.workers_of_rank * p.prefetch_factor + 2  # those loaded ahead, one in use, and one being copied
        kept_values = KEPT_VALUES + KEPT_VALUES_OF_WIDTH * p.width_mult if p.device == "cpu" else 0
        values_per_pixel = 3 * batches + kept_values
        dataset = inputs.get("dataset")
        durations = self._durations_s(p, dataset) if dataset else None
        return Resources(pixels * bytes_per_value * values_per_pixel / 1e6, durations_s=durations)

    def _durations_s(self, p: VisionParameters, dataset: ImageDataset) -> dict[str, float] | None:
        """Return seconds of training, tests and profiled window; None if the steps of an epoch are not known."""
        samples, test_samples = samples_of(dataset)
        if samples is None and p.steps_per_epoch is None:
            return None
        steps_of_pass = MANY_STEPS if samples is None else samples // p.distinct_samples_of_step
        steps = p.epochs * min(steps_of_pass, p.steps_per_epoch or steps_of_pass)
        ahead = read_ahead(p, synthetic=isinstance(dataset, Synthetic))
        # It may have more than `profiled_steps`: steps before and after the start of the profiler, and enough to show
        # the bursts of a loader that reads ahead.
        window = place_window(ahead, max(1, steps_of_pass), 0, p.profiled_steps)

        # GPU and loader work at the same time, and the slower one determines how long a step or a test takes. Without
        # processes that load, the training process does both in turn, and the times add up.
        together = sum if self.loads_in_step(p) else max
        gpu_s, loading_s = _gpu_s(p), _loading_s(p, dataset)
        step_s = together((p.batch_of_device * gpu_s, p.batch_of_rank * loading_s))
        # A test makes only forward passes, a third of the operations of training, on one GPU of each training process.
        tests_of_rank = math.ceil((test_samples or 0) / p.ranks)
        test_s = together((tests_of_rank * (gpu_s / 3), tests_of_rank * loading_s))
        return {
            "training": steps * step_s,
            "tests": p.epochs * test_s,
            "profiled window": window.steps * step_s,
        }

    def loads_in_step(self, p: VisionParameters) -> bool:
        """Return whether the training process loads, too: with PyTorch's loader and no workers."""
        return p.loader == "torch" and not p.num_workers

    def distinct_share(self, record: RunRecord) -> float:
        """Return the share of distinct samples: 1 / ranks where each rank iterates over all the data, else 1."""
        p = record.parameters
        assert isinstance(p, VisionParameters)
        return p.distinct_samples_of_step / p.samples_of_step

    def job(self, values: Mapping[str, Any]) -> str:
        """Return data set, image size and model: runs that agree in these do the same job."""
        width = "" if values["width_mult"] == 1 else f" of width {values['width_mult']}"
        return f"{values['dataset']}, {values['image_size']} px, {values['model']}{width}"

    def learning(self, values: Mapping[str, Any]) -> Row:
        """Return global batch size, precision, learning rate and, on GPUs, the setting of TF32.

        The batch size is `distinct_samples_of_step`: where each rank iterates over all the data, that of one rank. A
        pass over the data then has as many steps as on one device with that batch, although the ranks, which shuffle
        differently, average the gradients of more samples.
        """
        p = self.stated_in(values)
        names = ["precision", "tf32", "learning_rate"] if p.device == "cuda" else ["precision", "learning_rate"]
        return {BATCH: p.distinct_samples_of_step} | {name: values[name] for name in names}

    def baselines(self, method: str) -> Sequence[str]:
        """Return the strategies whose runs on one device are baselines of a strategy's runs, the preferred first."""
        return STRATEGIES[method].baselines()

    def tuning_applies(self, changes: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
        """Return whether `changes` may improve a run with these `values`.

        They may not if the strategy has no gradient buckets to size, if the new strategy does not improve on the
        present one, or if a change has no effect: prefetching without workers, or workers with DALI.
        """
        strategy = STRATEGIES[values["strategy"]]
        if "bucket_cap_mb" in changes and not strategy.has_buckets:
            return False
        if "strategy" in changes:
            new_strategy = STRATEGIES[changes["strategy"]]
            if not new_strategy.improves(values["strategy"], values["devices"]):
                return False
        if "prefetch_factor" in changes and not values["num_workers"]:
            return False
        return "num_workers" not in changes or "loader" in changes or values["loader"] != "dali"


def _gpu_s(p: VisionParameters) -> float:
    """Return the seconds that one GPU takes to train on one image."""
    return p.width_mult / IMAGES_PER_S[p.precision] * p.image_size**2 / REFERENCE_PX**2


def _loading_s(p: VisionParameters, dataset: ImageDataset) -> float:
    """Return the seconds per image for a process and its workers to load it; 0 for random images and DALI on a GPU."""
    if isinstance(dataset, Synthetic) or (p.loader == "dali" and p.device == "cuda"):
        return 0.0
    is_stored_as_files = isinstance(dataset, GrayscaleSource) and dataset.stored_size
    has_files = isinstance(dataset, ImageFolder) or is_stored_as_files
    fixed_s, s_per_pixel = LOADING_S["jpeg" if has_files else "array"]
    image_s = fixed_s + s_per_pixel * p.image_size**2
    return image_s / max(1, p.workers_of_rank)


def _smaller_batch(p: VisionParameters, samples_of_rank: int) -> str | None:
    """Return the largest batch size with which the run has steps after the warm-up, in words of a message.

    The words name `steps_per_epoch`, too, if that has to be larger. None if even the smallest batch is too large.

    `samples_of_rank`: training samples of one rank in an epoch.
    """
    steps_of_epoch = p.warmup_steps // p.epochs + 1
    batch_of_rank = samples_of_rank // steps_of_epoch
    batch_of_device = batch_of_rank * p.ranks // p.devices
    largest = batch_of_device * p.devices if p.scaling == "strong" else batch_of_device
    if not largest:
        return None
    remedy = f"batch_size: {largest} or less"
    if p.steps_per_epoch and p.steps_per_epoch < steps_of_epoch:
        remedy += f" and steps_per_epoch: {steps_of_epoch} or more"
    return remedy


def samples_of(dataset: ImageDataset) -> tuple[int | None, int | None]:
    """Return the numbers of training and of test images that a definition implies; both None for a user's folder."""
    if isinstance(dataset, Synthetic):
        return dataset.samples, max(1, dataset.samples // 10)
    if not isinstance(dataset, GrayscaleSource):
        return None, None
    train, test = SAMPLES[dataset.source]
    if dataset.limit:
        return min(train, dataset.limit), min(test, max(1, dataset.limit // 5))
    return train, test


WORKLOAD = Vision()
