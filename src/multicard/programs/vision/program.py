"""The program `vision`: image-classification training."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from multicard.core.job_file import JobPaths
from multicard.core.text import counted
from multicard.core.values import Row
from multicard.programs.datasets import ImageSource
from multicard.programs.machine import Machine
from multicard.programs.options import options_of
from multicard.programs.program import (
    BATCH,
    Checks,
    Comparison,
    Input,
    InputRecords,
    Inputs,
    Program,
    RankCommand,
    Unit,
)
from multicard.programs.provenance import ImageProvenance, files_of_record, read_provenance
from multicard.programs.vision.estimate import resources, training_samples
from multicard.programs.vision.measures import VISION_MEASURES
from multicard.programs.vision.parameters import VisionParameters
from multicard.programs.vision.strategies import STRATEGIES
from multicard.runs.record import DataRecord


def _command(p: VisionParameters, paths: JobPaths) -> RankCommand:
    """Return the command of a rank: `programs.vision.train`, with the parameters as its options."""
    words = ["-m", "multicard.programs.vision.train", *options_of(p)]
    if paths.data is not None:
        words.append(f"--data={paths.data}")
    if paths.checkpoint is not None:
        words.append(f"--checkpoint={paths.checkpoint}")
    return RankCommand(words)


def _unsupported_reason(p: VisionParameters, machine: Machine, inputs: Inputs) -> str | None:
    """Return why a run cannot run on `machine`: by its packages, the strategy or the parameters; None if it can."""
    if machine.vision:
        return machine.vision
    if refused := STRATEGIES[p.strategy].unsupported_reason(p):
        return refused
    if p.scaling == "strong" and p.batch_size % p.devices:
        return f"a batch of {p.batch_size} cannot be shared equally by {p.devices} devices"
    samples = training_samples(inputs["dataset"]) if "dataset" in inputs else None
    if samples is not None and samples < p.distinct_samples_of_step:
        return _data_error(p, samples)
    if p.cuda_graphs and p.device == "cpu":
        return "CUDA graphs need a GPU"
    if p.loader == "dali" and not machine.dali:
        return 'the loader dali needs the package nvidia-dali-cuda130 (pip install "multicard[dali]")'
    return None


def _data_error(p: VisionParameters, samples: int) -> str | None:
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


def _prepare(name: str, definition: Any, folder: Path, resources: Path) -> None:
    """Prepare a set of images."""
    # Imported here because planning does not need NumPy.
    from multicard.programs.vision.prepare import prepare

    prepare(name, definition, folder)


def _data_record(folder: Path) -> InputRecords:
    """Return the record of a prepared set of images."""
    provenance = read_provenance(folder, ImageProvenance)
    record = DataRecord(
        dataset=provenance.dataset,
        source=provenance.source,
        train_samples=provenance.train_samples,
        test_samples=provenance.test_samples,
        classes=len(provenance.classes),
        files=files_of_record(provenance),
    )
    return {"data": record}


def _job(values: Mapping[str, Any]) -> str:
    """Return data set, image size and model: runs that agree in these do the same job."""
    width = "" if values["width_mult"] == 1 else f" of width {values['width_mult']}"
    return f"{values['dataset']}, {values['image_size']} px, {values['model']}{width}"


def _learning(values: Mapping[str, Any]) -> Row:
    """Return global batch size, precision, learning rate and, on GPUs, the setting of TF32.

    The batch size is `distinct_samples_of_step`: where each rank iterates over all the data, that of one rank. A
    pass over the data then has as many steps as on one device with that batch, although the ranks, which shuffle
    differently, average the gradients of more samples.
    """
    p = VISION.parameters_in(values)
    names = ["precision", "tf32", "learning_rate"] if p.device == "cuda" else ["precision", "learning_rate"]
    return {BATCH: p.distinct_samples_of_step} | {name: values[name] for name in names}


def _baselines(method: str) -> Sequence[str]:
    """Return the strategies whose runs on one device are baselines of a strategy's runs, the preferred first."""
    return STRATEGIES[method].baselines()


def _tuning_applies(changes: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
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


VISION = Program(
    name="vision",
    parameters=VisionParameters,
    command=_command,
    unit=Unit("image", "samples", "throughput_samples_per_s", "energy_per_sample_j"),
    method="strategy",
    methods=STRATEGIES,
    inputs={"dataset": Input(ImageSource, _prepare, _data_record, training_samples)},
    checks=Checks(unsupported_reason=_unsupported_reason, data_error=_data_error),
    resources=resources,
    measures=VISION_MEASURES,
    comparison=Comparison(
        job=_job,
        learning=_learning,
        default_label="strategy",
        scaling=lambda values: values.get("scaling") or "weak",
        baselines=_baselines,
        tuning_applies=_tuning_applies,
    ),
    paper="A",
)
