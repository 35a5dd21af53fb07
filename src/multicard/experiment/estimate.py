"""About how long an experiment will take on GPUs, for planning."""

from collections.abc import Iterable

from multicard.experiment.config import Dataset
from multicard.experiment.runs import Run

# Assumed, not measured: what one current data-centre card trains of MobileNet v2 per second, in images of 224 px. Cost
# grows with the number of pixels. An estimate of the right order is what a budget needs.
IMAGES_PER_S = {"fp64": 150.0, "fp32": 1500.0, "fp16": 2500.0, "bf16": 2500.0}
REFERENCE_PX = 224
START_S = 60.0  # starting processes, the profiled window, writing the trace

# Training samples of sources whose number is known before they are prepared.
TRAIN_SAMPLES = {"digits": 1438, "mnist": 60_000, "kaggle-mnist": 37_800}


def gpu_hours(runs: Iterable[Run], datasets: dict[str, Dataset], time_limit_min: int) -> tuple[float, int]:
    """Estimated hours summed over cards, and the number of GPU runs whose data set has no known size.

    A run counts its cards for as long as it takes, at most its time limit.
    """
    total, unknown = 0.0, 0
    for run in runs:
        p = run.parameters
        if p.device != "cuda":
            continue
        dataset = datasets[p.dataset]
        samples = getattr(dataset, "samples", None) or TRAIN_SAMPLES.get(dataset.source)
        samples = min(samples, getattr(dataset, "limit", None) or samples) if samples else None
        if samples is None and p.steps_per_epoch is None:
            unknown += 1
            continue
        share = p.batch_of_device * (1 if p.strategy == "ddp" else p.devices)
        steps = min(samples // share if samples else p.steps_per_epoch, p.steps_per_epoch or 1 << 30)
        images = p.epochs * steps * p.batch_of_device
        speed = IMAGES_PER_S[p.precision] / p.width * (REFERENCE_PX / p.image_size) ** 2
        seconds = min(START_S + images / speed, 60.0 * time_limit_min)
        total += p.devices * seconds / 3600
    return total, unknown
