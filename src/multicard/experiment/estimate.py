"""About how long an experiment will take on GPUs, for planning."""

from collections.abc import Iterable

from multicard.experiment.architectures import Architecture
from multicard.experiment.config import Experiment
from multicard.experiment.datasets import Dataset
from multicard.experiment.llm_parameters import LlmParameters
from multicard.experiment.runs import Run
from multicard.experiment.vision_parameters import VisionParameters

# Assumed, not measured: what one current data-centre card trains of MobileNet v2 per second, in images of 224 px. Cost
# grows with the number of pixels. An estimate of the right order is what a budget needs.
IMAGES_PER_S = {"fp64": 150.0, "fp32": 1500.0, "fp16": 2500.0, "bf16": 2500.0}
REFERENCE_PX = 224
START_S = 60.0  # starting processes, the profiled window, writing the trace

# Training samples of sources whose number is known before they are prepared.
TRAIN_SAMPLES = {"digits": 1438, "mnist": 60_000, "kaggle-mnist": 37_800}


# Likewise, of the arithmetic of a language model: about a third of what such a card's data sheet gives for dense bf16.
FLOPS = {"bf16": 3e14, "fp32": 3e13}

# Floating-point operations per weight and token: 2 for a forward pass, 2 for the gradients of what came in, 2 for those
# of the weights (Kaplan et al. 2020, arXiv 2001.08361). Frozen weights need no gradients, DPO asks the model twice.
FLOP_PER_WEIGHT = {"lora": 4, "qlora": 4, "qat": 4, "dpo": 6, "full": 6}


def gpu_hours(runs: Iterable[Run], experiment: Experiment) -> tuple[float, int]:
    """Estimated hours summed over cards, and the number of GPU runs whose data set has no known size.

    A run counts its cards for as long as it takes, at most its time limit.
    """
    total, unknown = 0.0, 0
    for run in runs:
        p = run.parameters
        if p.device != "cuda":
            continue
        if isinstance(p, LlmParameters):
            seconds = _tuning_s(p, experiment.models[p.model].shape)
        else:
            seconds = _training_s(p, experiment.datasets[p.dataset])
        if seconds is None:
            unknown += 1
            continue
        total += p.devices * min(START_S + seconds, 60.0 * experiment.time_limit_min) / 3600
    return total, unknown


def _training_s(p: VisionParameters, dataset: Dataset) -> float | None:
    samples = getattr(dataset, "samples", None) or TRAIN_SAMPLES.get(dataset.source)
    samples = min(samples, getattr(dataset, "limit", None) or samples) if samples else None
    if samples is None and p.steps_per_epoch is None:
        return None
    share = p.batch_of_device * (1 if p.strategy == "ddp" else p.devices)
    steps = min(samples // share if samples else p.steps_per_epoch, p.steps_per_epoch or 1 << 30)
    images = p.epochs * steps * p.batch_of_device
    return images / (IMAGES_PER_S[p.precision] / p.width_mult * (REFERENCE_PX / p.image_size) ** 2)


def _tuning_s(p: LlmParameters, shape: Architecture) -> float:
    """Seconds of all steps, as if every sequence were full."""
    sequences = 2 if p.technique == "dpo" else 1  # of a sample
    tokens = p.total_steps * p.gradient_accumulation_steps * p.batch_size * sequences * p.sequence_length
    per_weight = FLOP_PER_WEIGHT["full" if not p.adapted else p.technique]
    return tokens * per_weight * shape.parameters / FLOPS[p.precision]
