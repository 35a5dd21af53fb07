"""Train MobileNet v2 on images, alone or under torchrun.

    python -m multicard.programs.vision.train --data=data/digits-01234567 --device=cpu --batch-size=16 --epochs=2
    torchrun --nproc-per-node=2 -m multicard.programs.vision.train --data=… --devices=2 --strategy=ddp-ds

`--data` is the folder of a prepared data set; the other options are the parameters of docs/parameters.md.
"""

import argparse
import itertools
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision.models.mobilenetv2 import MobileNetV2

from multicard import marks
from multicard.core.values import JsonObject
from multicard.observe.record.binding import bind_rank
from multicard.observe.record.compilation import allow_compilations
from multicard.programs.main import run_program
from multicard.programs.options import parse_options
from multicard.programs.provenance import ImageProvenance, read_unchanged
from multicard.programs.tf32 import choose_fp32
from multicard.programs.vision.checkpoint import load_checkpoint, save_checkpoint
from multicard.programs.vision.data import SyntheticDataset, open_split
from multicard.programs.vision.loaders import (
    EPOCH_SEED_STEP,
    evaluation_loader,
    evaluation_passes,
    set_epoch,
    training_loader,
)
from multicard.programs.vision.parameters import VisionParameters, read_ahead
from multicard.programs.vision.precision import (
    autocast,
    batch_to_device,
    gradient_scaler,
    move_to_device,
)
from multicard.programs.vision.ranks import join, sum_over_ranks
from multicard.programs.vision.strategies import STRATEGIES


def train(
    p: VisionParameters,
    rank: int,
    device: torch.device,
    data: Path,
    provenance: ImageProvenance,
    checkpoint: Path | None,
) -> None:
    """Train and evaluate for all epochs, then train on for as long as the observer records.

    `data`: the folder of the data set, with its `provenance`. `checkpoint`: the file that the state is saved to after
    each epoch, and from which an interrupted training resumes; None for none.
    """
    torch.set_num_threads(p.threads)
    seed = p.seed + p.repeat - 1
    torch.manual_seed(seed)
    choose_fp32(p.tf32)
    model = MobileNetV2(num_classes=len(provenance.classes), width_mult=p.width_mult)
    if p.compiled:
        # By default PyTorch leaves all blocks after the eighth uncompiled if it compiles them one by one.
        allow_compilations(len(model.features))
    model = STRATEGIES[p.strategy].wrap(move_to_device(model, p, device), p, device)
    forward = torch.compile(model, mode="reduce-overhead" if p.cuda_graphs else None) if p.compiled else model
    optimizer = make_optimizer(model, p)
    scaler = gradient_scaler(p.precision, device)
    loss_of = nn.CrossEntropyLoss()

    training_data = open_split(data, provenance, "train", p.image_size)
    test_data = open_split(data, provenance, "test", p.image_size)
    training = training_loader(training_data, provenance, p, rank, device)
    testing = evaluation_loader(test_data, p, rank)
    ahead = read_ahead(p, synthetic=isinstance(training_data, SyntheticDataset))
    loader = marks.wrap_loader(training, ahead=ahead)
    steps_per_epoch = min(len(training), p.steps_per_epoch or len(training))

    state = {"model": model, "optimizer": optimizer, "scaler": scaler}
    identity: JsonObject = {"parameters": p.model_dump(), "files": provenance.as_json()["files"]}
    # Rows of the epochs that an interrupted attempt finished.
    epochs = load_checkpoint(checkpoint, identity, state)
    first = len(epochs) + 1
    is_observed = marks.training(steps=(p.epochs - first + 1) * steps_per_epoch, epoch=first)
    if rank == 0:
        for row in epochs:
            marks.log(**row)
    # The observer ends the program when it has profiled enough steps after the last epoch.
    for epoch in itertools.count(first) if is_observed else range(first, p.epochs + 1):
        began = time.perf_counter()
        losses: list[torch.Tensor] = []
        model.train()
        set_epoch(training, epoch)
        batches = iter(loader)
        # Making the iterator draws a random number. The generator is seeded after that, so that a run that resumes at
        # this epoch draws the same numbers from here on as a run that trained all epochs before it.
        if epoch > 1:
            torch.manual_seed(seed + epoch * EPOCH_SEED_STEP)
        for batch in itertools.islice(batches, steps_per_epoch if epoch <= p.epochs else None):
            with marks.phase("transfer"):
                images, labels = batch_to_device(batch, p, device)
            with marks.phase("forward"), autocast(p.precision, device):
                loss = loss_of(forward(images), labels)
            with marks.phase("backward"):
                scaler.scale(loss).backward()
            with marks.phase("optimizer"):
                # With fp16 this waits for the GPU: the host decides whether to step.
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
            losses.append(loss.detach())
            marks.log(loss=loss)
            marks.step(samples=len(labels))
        if epoch > p.epochs:
            continue
        # This waits for the GPU, so that the time below includes all work of the epoch.
        train_loss = torch.stack(losses).double().mean().item()
        epoch_time_s = time.perf_counter() - began
        # The tests run without compilation: compiling once more, for batches of other sizes, would take more time than
        # it saves.
        with torch.compiler.set_stance("force_eager") if p.compiled else nullcontext():
            test_loss, accuracy = evaluate(model, testing, p, device, evaluation_passes(test_data, p))
        row = {
            "epoch": epoch,
            "train_loss": sum_over_ranks([train_loss], device)[0] / p.ranks,
            "test_loss": test_loss,
            "test_accuracy": accuracy,
            "epoch_time_s": epoch_time_s,
        }
        epochs.append(row)
        if rank == 0:
            marks.log(**row)
            # A resumed attempt warms up again. If no more steps than those of the warm-up are left, it would measure
            # none, so no checkpoint is saved.
            steps_after = (p.epochs - epoch) * steps_per_epoch
            if checkpoint is not None and STRATEGIES[p.strategy].has_checkpoints and steps_after > p.warmup_steps:
                save_checkpoint(checkpoint, identity, state, epochs)
        # This waits for all ranks, so that they begin the next epoch at the same time.
        sum_over_ranks([0.0], device)


def make_optimizer(model: nn.Module, p: VisionParameters) -> torch.optim.SGD:
    """Return SGD with momentum 0.9: fused if the run states it, else in the implementation that PyTorch chooses."""
    # With fused=None PyTorch chooses: on a GPU it updates many tensors at once. With False it would update one by one.
    optimizer = torch.optim.SGD(model.parameters(), lr=p.learning_rate, momentum=0.9, fused=p.fused_optimizer or None)
    if p.fused_optimizer:
        # PyTorch 2.11 allocates the momentum in the first step, and leaves it uninitialized if that step overflows in
        # fp16. With momentum 0 from the start, the first step sets the momentum to the gradient, as plain SGD does.
        for weight in model.parameters():
            optimizer.state[weight]["momentum_buffer"] = torch.zeros_like(weight)
    return optimizer


@torch.no_grad()
def evaluate(
    model: nn.Module, loader: DataLoader[Any], p: VisionParameters, device: torch.device, passes: int
) -> tuple[float, float]:
    """Return the mean cross-entropy and the accuracy (0 to 1) over the whole test set, of all ranks together.

    Every rank makes `passes` forward passes, because a forward pass of a sharded model needs all ranks. A rank with
    fewer batches repeats its last batch; a rank without test samples uses an image of zeros. These passes do not count.
    """
    model.eval()
    total_loss = correct = count = 0.0
    images, labels = batch_to_device((torch.zeros(1, 3, p.image_size, p.image_size), torch.zeros(1)), p, device)
    for batch in itertools.islice(itertools.chain(loader, itertools.repeat(None)), passes):
        if batch is not None:
            images, labels = batch_to_device(batch, p, device)
        with autocast(p.precision, device):
            scores = model(images)
        if batch is not None:
            total_loss += nn.functional.cross_entropy(scores.double(), labels, reduction="sum").item()
            correct += (scores.argmax(1) == labels).sum().item()
            count += len(labels)
    total_loss, correct, count = sum_over_ranks([total_loss, correct, count], device)
    return total_loss / count, correct / count


def main() -> None:
    """Run one rank."""
    parser = argparse.ArgumentParser(description="Train MobileNet v2 on images.")
    parser.add_argument("--data", type=Path, required=True, help="folder of a prepared data set")
    parser.add_argument("--checkpoint", type=Path, help="file to resume from, and to save the state to")
    p, arguments = parse_options(parser, VisionParameters)
    # Raises `UserError` if a file is missing or has changed since the data set was prepared.
    provenance = read_unchanged(arguments.data, ImageProvenance)
    bind_rank(p)
    rank, device = join(p)
    train(p, rank, device, arguments.data, provenance, arguments.checkpoint)


if __name__ == "__main__":
    run_program(main)
