"""Train MobileNet v2 on images: `python -m multicard.workloads.vision.train --job FILE`, alone or under torchrun.

FILE is job.json of `multicard.launch.job`; of it this program takes `parameters`, `data`, and what a checkpoint needs.
"""

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
from multicard.core.prepared import read_unchanged
from multicard.record.binding import bind_rank
from multicard.record.compilation import allow_compilations
from multicard.workloads._program import run_program
from multicard.workloads.vision.checkpoint import load_checkpoint, save_checkpoint
from multicard.workloads.vision.data import open_split
from multicard.workloads.vision.loaders import SEEDS, evaluation_loader, evaluation_passes, set_epoch, training_loader
from multicard.workloads.vision.parameters import VisionParameters, read_ahead
from multicard.workloads.vision.precision import autocast, choose_fp32, gradient_scaler, place, to_device
from multicard.workloads.vision.ranks import join, sum_over_ranks
from multicard.workloads.vision.strategies import STRATEGIES


def train(job: dict[str, Any], p: VisionParameters, rank: int, device: torch.device, facts: dict[str, Any]) -> None:
    """Train and evaluate for all epochs, then train on for as long as it is observed."""
    torch.set_num_threads(p.threads)
    seed = p.seed + p.repeat - 1
    torch.manual_seed(seed)
    choose_fp32(p.tf32)
    model = MobileNetV2(num_classes=len(facts["classes"]), width_mult=p.width_mult)
    if p.compiled:
        allow_compilations(len(model.features))
    model = STRATEGIES[p.strategy].wrap(place(model, p, device), p, device)
    forward = torch.compile(model, mode="reduce-overhead" if p.cuda_graphs else None) if p.compiled else model
    optimizer = make_optimizer(model, p)
    scaler = gradient_scaler(p.precision, device)
    loss_of = nn.CrossEntropyLoss()

    training_data, test_data = (open_split(Path(job["data"]), facts, part, p.image_size) for part in ("train", "test"))
    training = training_loader(training_data, facts, p, rank, device)
    testing = evaluation_loader(test_data, p, rank)
    loader = marks.wrap_loader(training, ahead=read_ahead(p, synthetic=getattr(training_data, "synthetic", False)))
    steps_per_epoch = min(len(training), p.steps_per_epoch or len(training))

    state = {"model": model, "optimizer": optimizer, "scaler": scaler}
    of = {"parameters": p.model_dump(), "files": facts["files"]}
    epochs = load_checkpoint(job, of, state)  # that are done: their losses and accuracies
    first = len(epochs) + 1
    is_observed = marks.training(steps=(p.epochs - first + 1) * steps_per_epoch, epoch=first)
    for row in epochs if rank == 0 else ():
        marks.log(**row)
    for epoch in itertools.count(first) if is_observed else range(first, p.epochs + 1):
        began, losses = time.perf_counter(), []
        model.train()
        set_epoch(training, epoch)
        batches = iter(loader)  # draws a random number
        if epoch > 1:  # so that a run which resumes here learns the same
            torch.manual_seed(seed + epoch * SEEDS)
        for batch in itertools.islice(batches, steps_per_epoch if epoch <= p.epochs else None):
            with marks.phase("transfer"):
                images, labels = to_device(batch, p, device)
            with marks.phase("forward"), autocast(p.precision, device):
                loss = loss_of(forward(images), labels)
            with marks.phase("backward"):
                scaler.scale(loss).backward()
            with marks.phase("optimizer"):
                scaler.step(optimizer)  # with fp16 this waits for the GPU: whether to step is decided on the host
                scaler.update()
                optimizer.zero_grad()
            losses.append(loss.detach())
            marks.log(loss=loss)
            marks.step(samples=len(labels))
        if epoch > p.epochs:
            continue
        train_loss = torch.stack(losses).double().mean().item()  # waits for the GPU, so the epoch has ended
        epoch_time_s = time.perf_counter() - began
        # To compile for other batches than those of training would cost more than it gains.
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
            # Else what is left would be the warm-up of the attempt that resumes.
            if STRATEGIES[p.strategy].has_checkpoints and (p.epochs - epoch) * steps_per_epoch > p.warmup_steps:
                save_checkpoint(job, of, state, epochs)
        sum_over_ranks([0.0], device)  # the next epoch begins on all ranks at once


def make_optimizer(model: nn.Module, p: VisionParameters) -> torch.optim.SGD:
    """SGD with momentum; unless the fused one is asked for PyTorch chooses, on a GPU the multi-tensor one."""
    # False would be an answer: PyTorch would then update weight by weight.
    optimizer = torch.optim.SGD(model.parameters(), lr=p.learning_rate, momentum=0.9, fused=p.fused_optimizer or None)
    if p.fused_optimizer:
        # PyTorch 2.11 allocates momentum in the first step and leaves it uninitialized where that step overflows in
        # fp16. From zeros the first step gives the same as plain SGD, whose momentum is then the gradient.
        for weight in model.parameters():
            optimizer.state[weight]["momentum_buffer"] = torch.zeros_like(weight)
    return optimizer


@torch.no_grad()
def evaluate(
    model: nn.Module, loader: DataLoader, p: VisionParameters, device: torch.device, passes: int
) -> tuple[float, float]:
    """Mean cross-entropy and accuracy over the whole test set, all ranks taken together.

    Every rank makes `passes` forward passes, since those of a sharded model need all ranks; a rank with less to
    evaluate repeats its last batch, one without test samples an image of zeros; neither counts.
    """
    model.eval()
    total_loss = correct = count = 0.0
    images, labels = to_device((torch.zeros(1, 3, p.image_size, p.image_size), torch.zeros(1)), p, device)
    for batch in itertools.islice(itertools.chain(loader, itertools.repeat(None)), passes):
        if batch is not None:
            images, labels = to_device(batch, p, device)
        with autocast(p.precision, device):
            scores = model(images)
        if batch is not None:
            total_loss += nn.functional.cross_entropy(scores.double(), labels, reduction="sum").item()
            correct += (scores.argmax(1) == labels).sum().item()
            count += len(labels)
    total_loss, correct, count = sum_over_ranks([total_loss, correct, count], device)
    return total_loss / count, correct / count


def main(job: dict[str, Any]) -> None:
    """Be one rank of a job."""
    p = VisionParameters.model_validate(job["parameters"])
    facts = read_unchanged(Path(job["data"]), "data set")
    bind_rank(p)
    rank, device = join(p)
    train(job, p, rank, device, facts)


if __name__ == "__main__":
    run_program(main)
