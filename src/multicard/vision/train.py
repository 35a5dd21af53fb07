"""The training program of one rank: `python -m multicard.vision.train --job FILE`, alone or under torchrun."""

import argparse
import itertools
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision.models.mobilenetv2 import MobileNetV2

from multicard.errors import UserError
from multicard.experiment.parameters import VisionParameters
from multicard.files import read_json, write_csv, write_json
from multicard.launch.binding import bind, bound
from multicard.record import surroundings
from multicard.record.capture import Capture
from multicard.record.energy import EnergyMeter, device_memory_used_bytes
from multicard.record.job import PROGRESS
from multicard.record.names import EPOCH_COLUMNS, EPOCHS, STEPS, rank_file
from multicard.record.recorder import Diverged, Recorder
from multicard.vision.data import open_split, read_provenance
from multicard.vision.loaders import evaluation_loader, evaluation_passes, training_loader
from multicard.vision.precision import autocast, choose_fp32, gradient_scaler, memory_format, parameter_dtype
from multicard.vision.strategy import distribute, joined, sum_over_ranks


def train(
    job: dict[str, Any], p: VisionParameters, rank: int, device: torch.device, facts: dict[str, Any]
) -> dict[str, Any]:
    """Train, evaluate after every epoch, then run the profiled window; leave steps and epochs in the scratch.

    Returns what else is to be recorded: `steps_per_pass`, the steps that this rank needs for one pass over its
    training data; energy and memory of each of its cards.
    """
    scratch = Path(job["scratch"])
    torch.set_num_threads(p.threads)
    torch.manual_seed(p.seed + p.repeat - 1)

    dtype, layout = parameter_dtype(p.precision), memory_format(p.layout)
    choose_fp32(p.tf32)
    model = MobileNetV2(num_classes=len(facts["classes"]), width_mult=p.width)
    model = distribute(model.to(device, dtype, memory_format=layout), p, device)
    optimizer = torch.optim.SGD(model.parameters(), lr=p.learning_rate, momentum=0.9, fused=p.fused_optimizer)
    scaler = gradient_scaler(p.precision, device)
    loss_of = nn.CrossEntropyLoss()
    forward = model
    if p.compile or p.cuda_graphs:
        forward = torch.compile(model, mode="reduce-overhead" if p.cuda_graphs else None)

    data = Path(job["data"])
    training_data, test_data = (open_split(data, facts, split, p.image_size) for split in ("train", "test"))
    training = training_loader(training_data, facts, p, rank, device)
    testing = evaluation_loader(test_data, p, rank)
    steps_per_epoch = min(len(training), p.steps_per_epoch or len(training))
    if p.epochs * steps_per_epoch <= p.warmup_steps:
        raise UserError(f"warmup_steps: {p.warmup_steps}, but the run has only {p.epochs * steps_per_epoch} steps")

    cards = [torch.device("cuda", i) for i in range(p.devices)] if p.strategy == "dp" else [device]
    meters = [EnergyMeter(card) for card in cards]
    capture = Capture(job["profiler"], scratch, rank, device)
    recorder = Recorder(rank, device, capture)
    epochs: list[dict[str, float]] = []

    def run_step(batches: Iterator[Any], epoch: int, window: str) -> None:
        with recorder.step(epoch, window) as step:
            with recorder.phase("data"):
                images, labels = next(batches)
            with recorder.phase("transfer"):
                images = images.to(device, dtype, non_blocking=p.non_blocking, memory_format=layout)
                labels = labels.to(device, non_blocking=p.non_blocking)
            with recorder.phase("forward"), autocast(p.precision, device):
                loss = loss_of(forward(images), labels)
            with recorder.phase("backward"):
                scaler.scale(loss).backward()
            with recorder.phase("optimizer"):
                scaler.step(optimizer)  # with fp16 this waits for the GPU: whether to step is decided on the host
                scaler.update()
                optimizer.zero_grad()
            step.finish(len(labels), loss)

    try:
        done = 0
        for epoch in range(1, p.epochs + 1):
            started = time.perf_counter()
            model.train()
            batches = shuffled(training, epoch)
            for number in range(1, steps_per_epoch + 1):
                if done == max(p.warmup_steps, (epoch - 1) * steps_per_epoch):  # the first measured step of an epoch
                    for meter in meters:
                        meter.start()
                run_step(batches, epoch, "warmup" if done < p.warmup_steps else "measured")
                done += 1
                if rank == 0 and number in (steps_per_epoch // 2, steps_per_epoch):
                    say(f"epoch {epoch} of {p.epochs}, step {number} of {steps_per_epoch}")
            losses = [row["loss"] for row in recorder.settle()]
            for meter in meters:
                meter.stop()
            epoch_time = time.perf_counter() - started
            passes = evaluation_passes(test_data, p)
            test_loss, test_accuracy = evaluate(model, testing, p.precision, device, dtype, passes)
            train_loss, count = sum_over_ranks([sum(losses), len(losses)], device)
            epochs.append(
                {
                    "epoch": epoch,
                    "train_loss": train_loss / count,
                    "test_loss": test_loss,
                    "test_accuracy": test_accuracy,
                    "epoch_time_s": epoch_time,
                }
            )

        model.train()
        endless = itertools.chain.from_iterable(shuffled(training, p.epochs + 1 + again) for again in itertools.count())
        with capture.window():
            for _ in range(p.profiled_steps):
                run_step(endless, p.epochs + 1, "profiled")
        recorder.settle()
    finally:
        recorder.write(scratch / rank_file(STEPS, rank))
        if rank == 0:
            write_csv(scratch / rank_file(EPOCHS, rank), EPOCH_COLUMNS, epochs)
    if rank == 0:
        say(f"test accuracy {epochs[-1]['test_accuracy']:.1%}")
    return {
        "steps_per_pass": len(training),
        "energy": [meter.record() for meter in meters],
        "device_memory_used_bytes": [device_memory_used_bytes(card) for card in cards],
    }


def shuffled(loader: Any, epoch: int) -> Iterator[Any]:
    """Begin a pass over the data, in an order of its own."""
    if hasattr(loader.sampler, "set_epoch"):
        loader.sampler.set_epoch(epoch)
    return iter(loader)


@torch.no_grad()
def evaluate(
    model: nn.Module, loader: DataLoader, precision: str, device: torch.device, dtype: torch.dtype, passes: int
) -> tuple[float, float]:
    """Mean cross-entropy and accuracy over the whole test set, all ranks taken together.

    Every rank makes `passes` forward passes, since those of a sharded model need all ranks; a rank with less to
    evaluate repeats its last batch, which then counts for nothing.
    """
    model.eval()
    total_loss = correct = count = 0.0
    images = None
    for batch in itertools.islice(itertools.chain(loader, itertools.repeat(None)), passes):
        if batch is not None:
            images, labels = batch[0].to(device, dtype), batch[1].to(device)
        with autocast(precision, device):
            scores = model(images)
        if batch is not None:
            total_loss += nn.functional.cross_entropy(scores.double(), labels, reduction="sum").item()
            correct += (scores.argmax(1) == labels).sum().item()
            count += len(labels)
    total_loss, correct, count = sum_over_ranks([total_loss, correct, count], device)
    return total_loss / count, correct / count


def say(text: str) -> None:
    """Print a line of progress."""
    print(f"{PROGRESS}  {text}", flush=True)


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error means that memory ran out, on the GPU or on the host."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def main() -> None:
    """Run one rank, and write down what became of it whatever that is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--job", type=Path, required=True, help="job.json in the scratch folder of the run")
    job = read_json(parser.parse_args().job)
    p = VisionParameters.model_validate(job["parameters"])
    record = {
        "outcome": "completed",
        "reason": None,
        "pid": os.getpid(),
        "rank": int(os.environ.get("RANK", "0")),
    }
    try:
        facts = read_provenance(Path(job["data"]))
        record |= {
            "host": surroundings.host(),
            "hardware": surroundings.hardware(),
            "versions": surroundings.versions(),
            "data": {key: facts[key] for key in ("dataset", "source", "train_samples", "test_samples", "files")},
        }
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        cards = [] if p.device == "cpu" else list(range(p.devices)) if p.strategy == "dp" else [local_rank]
        note = bind(local_rank, p.ranks, cards) if p.binding == "numa" else None
        record["binding"] = bound() | {"note": note}
        with joined(p) as (rank, device):
            record |= train(job, p, rank, device, facts)
    except (Exception, KeyboardInterrupt) as error:
        if is_out_of_memory(error):
            record["outcome"] = "out_of_memory"
        else:
            record["outcome"] = "diverged" if isinstance(error, Diverged) else "failed"
        known = isinstance(error, Diverged | UserError)
        said = " ".join(str(error).split())[:300]
        record["reason"] = said if known else f"{type(error).__name__}: {said}"
        if known:
            sys.exit(said)
        raise
    finally:
        write_json(Path(job["scratch"]) / rank_file("rank.json", record["rank"]), record)


if __name__ == "__main__":
    main()
