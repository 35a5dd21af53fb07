"""Estimates about a run before it starts: its samples, the host's memory, and how long it takes on GPUs."""

import math

from multicard.observe.record.profiled_window import place_window
from multicard.programs.datasets import GrayscaleSource, ImageDataset, ImageFolder, Synthetic
from multicard.programs.program import Inputs, Resources
from multicard.programs.vision.parameters import VisionParameters, read_ahead

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

# Stands for the steps of a pass over a data set of unknown size.
MANY_STEPS = 1 << 30


def samples_of(dataset: ImageDataset) -> tuple[int | None, int | None]:
    """Return the numbers of training and of test images that a definition implies; both None for a user's folder.

    They are the numbers that `programs.vision.prepare` makes.
    """
    if isinstance(dataset, Synthetic):
        return dataset.samples, max(1, dataset.samples // 10)
    if not isinstance(dataset, GrayscaleSource):
        return None, None
    train, test = SAMPLES[dataset.source]
    if dataset.limit:
        return min(train, dataset.limit), min(test, max(1, dataset.limit // 5))
    return train, test


def training_samples(dataset: ImageDataset) -> int | None:
    """Return the number of training images; None where that is not known before the data set is prepared."""
    training, _ = samples_of(dataset)
    return training


def resources(p: VisionParameters, inputs: Inputs) -> Resources:
    """Estimate durations, and the host's memory: loaded batches and, on a CPU, the values that autograd keeps."""
    # Batches that are loaded ahead, one in use, and one being copied.
    batches = p.workers_of_rank * p.prefetch_factor + 2
    kept_values = KEPT_VALUES + KEPT_VALUES_OF_WIDTH * p.width_mult if p.device == "cpu" else 0
    # An image has three values for each of its pixels.
    values_per_pixel = 3 * batches + kept_values
    pixels = p.batch_of_rank * p.image_size**2
    bytes_per_value = 8 if p.precision == "fp64" else 4
    memory_bytes = pixels * bytes_per_value * values_per_pixel
    dataset = inputs.get("dataset")
    durations_s = _durations_s(p, dataset) if dataset else None
    return Resources(rank_memory_mb=memory_bytes / 1e6, durations_s=durations_s)


def _durations_s(p: VisionParameters, dataset: ImageDataset) -> dict[str, float] | None:
    """Return seconds of training, tests and profiled window; None if the steps of an epoch are not known."""
    samples, test_samples = samples_of(dataset)
    if samples is None and p.steps_per_epoch is None:
        return None
    steps_of_pass = MANY_STEPS if samples is None else samples // p.distinct_samples_of_step
    # An epoch has fewer steps than a pass over the data if `steps_per_epoch` states fewer.
    steps_of_epoch = min(steps_of_pass, p.steps_per_epoch or steps_of_pass)
    gpu_s, loading_s = _gpu_s(p), _loading_s(p, dataset)
    step_s = _elapsed_s(p, p.batch_of_device * gpu_s, p.batch_of_rank * loading_s)

    # A test makes only forward passes, a third of the operations of training, on one GPU of each training process.
    tests_of_rank = math.ceil((test_samples or 0) / p.ranks)
    test_s = _elapsed_s(p, tests_of_rank * (gpu_s / 3), tests_of_rank * loading_s)

    # The window may have more than `profiled_steps`: steps before and after the start of the profiler, and enough to
    # show the bursts of a loader that reads ahead.
    ahead = read_ahead(p, synthetic=isinstance(dataset, Synthetic))
    window = place_window(ahead, max(1, steps_of_pass), 0, p.profiled_steps)
    return {
        "training": p.epochs * steps_of_epoch * step_s,
        "tests": p.epochs * test_s,
        "profiled window": window.steps * step_s,
    }


def _elapsed_s(p: VisionParameters, gpu_s: float, loading_s: float) -> float:
    """Return the seconds in which a GPU computes and its loader loads.

    Both work at the same time, and the slower one determines how long it takes. Without processes that load, the
    training process does both in turn, and the times add up.
    """
    return gpu_s + loading_s if p.loads_in_step else max(gpu_s, loading_s)


def _gpu_s(p: VisionParameters) -> float:
    """Return the seconds that one GPU takes to train on one image."""
    reference_s = p.width_mult / IMAGES_PER_S[p.precision]
    return reference_s * p.image_size**2 / REFERENCE_PX**2


def _loading_s(p: VisionParameters, dataset: ImageDataset) -> float:
    """Return the seconds per image for a process and its workers to load it; 0 for random images and DALI on a GPU."""
    if isinstance(dataset, Synthetic) or (p.loader == "dali" and p.device == "cuda"):
        return 0.0
    is_stored_as_files = isinstance(dataset, GrayscaleSource) and dataset.stored_size
    has_files = isinstance(dataset, ImageFolder) or is_stored_as_files
    fixed_s, s_per_pixel = LOADING_S["jpeg" if has_files else "array"]
    image_s = fixed_s + s_per_pixel * p.image_size**2
    return image_s / max(1, p.workers_of_rank)
