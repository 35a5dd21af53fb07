"""Training program of one rank: `python -m multicard.workloads.vision.train --job FILE`, alone or under torchrun."""

import itertools
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision.models.mobilenetv2 import MobileNetV2

from multicard.core.errors import UserError
from multicard.core.files import write_csv
from multicard.core.layout import EPOCH_COLUMNS, EPOCHS, STEPS, rank_file
from multicard.record.capture import Capture
from multicard.record.compilation import allow_compilations
from multicard.record.others import OthersMeter
from multicard.record.profiled_window import place_window
from multicard.record.rank import bind_rank, log_progress, run_rank
from multicard.record.recorder import Recorder
from multicard.record.visible import rank_devices
from multicard.workloads.vision.checkpoint import Checkpoints, State
from multicard.workloads.vision.data import open_split, read_provenance
from multicard.workloads.vision.loaders import endless, evaluation_loader, evaluation_passes, shuffled, training_loader
from multicard.workloads.vision.parameters import VisionParameters, read_ahead
from multicard.workloads.vision.precision import (
    autocast,
    choose_fp32,
    gradient_scaler,
    memory_format,
    parameter_dtype,
    to_device,
)
from multicard.workloads.vision.ranks import join, sum_over_ranks
from multicard.workloads.vision.strategy import STRATEGIES


def train(
    job: dict[str, Any], p: VisionParameters, rank: int, device: torch.device, facts: dict[str, Any]
) -> dict[str, Any]:
    """Train, evaluate after every epoch, then run the profiled window; leave steps and epochs in the scratch.

    The profiled steps lie in a pass of their own (`place_window`). A run that resumes from a checkpoint warms up again.

    Returns what else is to be recorded: `steps_per_pass`, the steps that this rank needs for one pass over its
    training data; `profiled_window`; `windows`, when measured steps ran; `resumed`, from where the run resumed.
    """
    scratch = Path(job["scratch"])
    torch.set_num_threads(p.threads)
    torch.manual_seed(p.seed + p.repeat - 1)

    dtype, layout = parameter_dtype(p.precision), memory_format(p.layout)
    choose_fp32(p.tf32)
    model = MobileNetV2(num_classes=len(facts["classes"]), width_mult=p.width_mult)
    if p.compiled:
        allow_compilations(len(model.features))
    model = STRATEGIES[p.strategy].wrap(model.to(device, dtype, memory_format=layout), p, device)
    optimizer = make_optimizer(model, p)
    scaler = gradient_scaler(p.precision, device)
    loss_of = nn.CrossEntropyLoss()
    forward = model
    if p.compiled:
        forward = torch.compile(model, mode="reduce-overhead" if p.cuda_graphs else None)

    data = Path(job["data"])
    training_data, test_data = (open_split(data, facts, split, p.image_size) for split in ("train", "test"))
    training = training_loader(training_data, facts, p, rank, device)
    testing = evaluation_loader(test_data, p, rank)
    steps_per_epoch = min(len(training), p.steps_per_epoch or len(training))
    if p.epochs * steps_per_epoch <= p.warmup_steps:
        raise UserError(f"warmup_steps: {p.warmup_steps}, but the run has only {p.epochs * steps_per_epoch} steps")

    gpus = rank_devices(p)
    others = OthersMeter(job.get("launcher") if rank % p.ranks_per_node == 0 else None)
    capture = Capture(job["profiler"], scratch, rank, device, gpus)
    recorder = Recorder(rank, device, capture, gpus)
    epochs: list[dict[str, float]] = []

    def run_step(batches: Iterator[Any], epoch: int, window: str) -> None:
        with recorder.step(epoch, window) as step:
            with recorder.phase("data"):
                images, labels = next(batches)
            with recorder.phase("transfer"):
                images = to_device(images, device, dtype, layout, p.non_blocking)
                labels = labels.to(device, non_blocking=p.non_blocking)
            with recorder.phase("forward"), autocast(p.precision, device):
                loss = loss_of(forward(images), labels)
            with recorder.phase("backward"):
                scaler.scale(loss).backward()
            with recorder.phase("optimizer"):
                scaler.step(optimizer)  # with fp16 this waits for the GPU: whether to step is decided on the host
                scaler.update()
                optimizer.zero_grad()
            step.add(len(labels), loss)

    state = State(model, optimizer, scaler, training, recorder, epochs)
    checkpoints = Checkpoints(job, p, rank, device, facts, state)
    resumed = checkpoints.resume()
    recorder.clock.reserve(steps_per_epoch)
    try:
        done = len(epochs) * steps_per_epoch
        warm = done + p.warmup_steps
        for epoch in range(len(epochs) + 1, p.epochs + 1):
            started = time.perf_counter()
            model.train()
            batches = shuffled(training, epoch)
            for number in range(1, steps_per_epoch + 1):
                if done == warm - 1:  # the last step of the warm-up makes up for the time that this takes
                    others.start()
                run_step(batches, epoch, "warmup" if done < warm else "measured")
                done += 1
                if rank == 0 and number in (steps_per_epoch // 2, steps_per_epoch):
                    log_progress(f"epoch {epoch} of {p.epochs}, step {number} of {steps_per_epoch}")
            losses = [row["loss"] for row in recorder.settle()]
            others.stop()
            epoch_time = time.perf_counter() - started
            # To compile for other batches than those of training would cost more than it gains.
            with torch.compiler.set_stance("force_eager") if forward is not model else nullcontext():
                test_loss, test_accuracy = evaluate(model, testing, p, device, evaluation_passes(test_data, p))
            if done >= warm and epoch < p.epochs:
                others.start()
            train_loss, count, due = sum_over_ranks([sum(losses), len(losses), checkpoints.due()], device)
            epochs.append(
                {
                    "epoch": epoch,
                    "train_loss": train_loss / count,
                    "test_loss": test_loss,
                    "test_accuracy": test_accuracy,
                    "epoch_time_s": epoch_time,
                }
            )
            if due:
                checkpoints.write()

        model.train()
        passes = endless(training, p.epochs + 1)
        ahead = read_ahead(p, synthetic=getattr(training_data, "synthetic", False))
        window = place_window(ahead, len(training), warm - done, p.profiled_steps)
        for _ in range(window.warmup_steps):
            run_step(passes, p.epochs + 1, "warmup")
        with capture.window():
            for _ in range(window.settling_steps):
                run_step(passes, p.epochs + 1, "warmup")
            for _ in range(window.profiled_steps):
                run_step(passes, p.epochs + 1, "profiled")
        recorder.settle()
    finally:
        recorder.write(scratch / rank_file(STEPS, rank))
        if rank == 0:
            write_csv(scratch / rank_file(EPOCHS, rank), EPOCH_COLUMNS, epochs)
    if rank == 0:
        log_progress(f"test accuracy {epochs[-1]['test_accuracy']:.1%}")
    return {
        "steps_per_pass": len(training),
        "profiled_window": window._asdict(),
        "windows": recorder.windows,
        "host_conditions": others.record(),
        "resumed": resumed,
    }


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
    dtype, layout = parameter_dtype(p.precision), memory_format(p.layout)
    images = torch.zeros(1, 3, p.image_size, p.image_size, dtype=dtype, device=device)
    for batch in itertools.islice(itertools.chain(loader, itertools.repeat(None)), passes):
        if batch is not None:
            images, labels = to_device(batch[0], device, dtype, layout, False), batch[1].to(device)
        with autocast(p.precision, device):
            scores = model(images)
        if batch is not None:
            total_loss += nn.functional.cross_entropy(scores.double(), labels, reduction="sum").item()
            correct += (scores.argmax(1) == labels).sum().item()
            count += len(labels)
    total_loss, correct, count = sum_over_ranks([total_loss, correct, count], device)
    return total_loss / count, correct / count


def _train_rank(job: dict[str, Any], p: VisionParameters, record: dict[str, Any]) -> dict[str, Any]:
    """Run one rank; give what is to be recorded of it."""
    facts = read_provenance(Path(job["data"]))
    record["data"] = {key: facts[key] for key in ("dataset", "source", "train_samples", "test_samples", "files")}
    record["data"]["classes"] = len(facts["classes"])
    record["binding"] = bind_rank(p)
    rank, device = join(p)
    return train(job, p, rank, device, facts)


if __name__ == "__main__":
    run_rank(VisionParameters.model_validate, _train_rank)
