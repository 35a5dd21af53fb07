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
from multicard.record import surroundings
from multicard.record.capture import Capture
from multicard.record.job import PROGRESS
from multicard.record.names import EPOCH_COLUMNS, EPOCHS, STEPS, rank_file
from multicard.record.recorder import Diverged, Recorder
from multicard.vision.data import evaluation_loader, open_split, read_provenance, training_loader
from multicard.vision.precision import autocast, gradient_scaler, parameter_dtype
from multicard.vision.strategy import distribute, joined, sum_over_ranks


def train(job: dict[str, Any], p: VisionParameters, rank: int, device: torch.device, facts: dict[str, Any]) -> int:
    """Train, evaluate after every epoch, then run the profiled window; leave steps and epochs in the scratch.

    Returns the number of steps that this rank needs for one pass over its training data.
    """
    scratch = Path(job["scratch"])
    torch.set_num_threads(p.threads)
    torch.manual_seed(p.seed + p.repeat - 1)

    dtype = parameter_dtype(p.precision)
    model = MobileNetV2(num_classes=len(facts["classes"]), width_mult=p.width).to(device, dtype)
    model = distribute(model, p, device)
    optimizer = torch.optim.SGD(model.parameters(), lr=p.learning_rate, momentum=0.9)
    scaler = gradient_scaler(p.precision, device)
    loss_of = nn.CrossEntropyLoss()

    data = Path(job["data"])
    training = training_loader(open_split(data, facts, "train", p.image_size), p, rank)
    testing = evaluation_loader(open_split(data, facts, "test", p.image_size), p, rank)
    steps_per_epoch = min(len(training), p.steps_per_epoch or len(training))
    if p.epochs * steps_per_epoch <= p.warmup_steps:
        raise UserError(f"warmup_steps: {p.warmup_steps}, but the run has only {p.epochs * steps_per_epoch} steps")

    capture = Capture(job["profiler"], scratch, rank, device)
    recorder = Recorder(rank, device, capture)
    epochs: list[dict[str, float]] = []

    def run_step(batches: Iterator[Any], epoch: int, window: str) -> None:
        with recorder.step(epoch, window) as step:
            with recorder.phase("data"):
                images, labels = next(batches)
            with recorder.phase("transfer"):
                images, labels = images.to(device, dtype), labels.to(device)
            with recorder.phase("forward"), autocast(p.precision, device):
                loss = loss_of(model(images), labels)
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
                run_step(batches, epoch, "warmup" if done < p.warmup_steps else "measured")
                done += 1
                if rank == 0 and number in (steps_per_epoch // 2, steps_per_epoch):
                    say(f"epoch {epoch} of {p.epochs}, step {number} of {steps_per_epoch}")
            losses = [row["loss"] for row in recorder.settle()]
            epoch_time = time.perf_counter() - started
            test_loss, test_accuracy = evaluate(model, testing, p.precision, device, dtype)
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
    return len(training)


def shuffled(loader: DataLoader, epoch: int) -> Iterator[Any]:
    """Begin a pass over the data, in an order of its own."""
    if hasattr(loader.sampler, "set_epoch"):
        loader.sampler.set_epoch(epoch)
    return iter(loader)


@torch.no_grad()
def evaluate(
    model: nn.Module, loader: DataLoader, precision: str, device: torch.device, dtype: torch.dtype
) -> tuple[float, float]:
    """Mean cross-entropy and accuracy over the whole test set, all ranks taken together."""
    model.eval()
    total_loss = correct = count = 0.0
    for images, labels in loader:
        images, labels = images.to(device, dtype), labels.to(device)
        with autocast(precision, device):
            scores = model(images)
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
        with joined(p) as (rank, device):
            record["steps_per_pass"] = train(job, p, rank, device, facts)
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
