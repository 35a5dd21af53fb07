"""What multicard's training loop costs over a plain one, and how near it comes to a loop without a loader.

    python benchmarks/vision.py [--device cuda] [--image-size 64] [--repeats 5]

In turns, on the machine at hand: a plain loop written straight from PyTorch's documentation; the same training as a run
of multicard; and multicard on synthetic batches that lie on the device. All are timed over whole epochs by the wall
clock, so that the steps' own clocks count as cost.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision.models.mobilenetv2 import MobileNetV2

from multicard.experiment.config import Digits, Synthetic
from multicard.experiment.parameters import VisionParameters
from multicard.record.capture import Capture
from multicard.record.recorder import Recorder
from multicard.vision.data import open_split, read_provenance
from multicard.vision.loaders import training_loader
from multicard.vision.precision import memory_format
from multicard.vision.prepare import prepare


def plain(p: VisionParameters, data: Path, device: torch.device) -> float:
    """Seconds per step of the loop that a tutorial would show."""
    dataset = open_split(data, read_provenance(data), "train", p.image_size)
    loader = DataLoader(dataset, batch_size=p.batch_size, shuffle=True, drop_last=True, num_workers=p.workers)
    model = MobileNetV2(num_classes=10, width_mult=p.width).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=p.learning_rate, momentum=0.9)
    loss_of = nn.CrossEntropyLoss()
    times = []
    for _ in range(1 + p.epochs):
        synchronize(device)
        started = time.perf_counter()
        for images, labels in loader:
            images, labels = images.to(device), labels.to(device)
            loss = loss_of(model(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        synchronize(device)
        times.append((time.perf_counter() - started) / len(loader))
    return statistics.median(times[1:])  # the first epoch warms up


def ours(p: VisionParameters, data: Path, device: torch.device) -> float:
    """Seconds per step with multicard's loader, recorder and phases, as its training program has them."""
    facts = read_provenance(data)
    loader = training_loader(open_split(data, facts, "train", p.image_size), facts, p, 0, device)
    layout = memory_format(p.layout)
    model = MobileNetV2(num_classes=10, width_mult=p.width).to(device, memory_format=layout)
    optimizer = torch.optim.SGD(model.parameters(), lr=p.learning_rate, momentum=0.9, fused=p.fused_optimizer)
    loss_of = nn.CrossEntropyLoss()
    recorder = Recorder(0, device, Capture("none", Path(), 0, device))
    times = []
    for epoch in range(1 + p.epochs):
        synchronize(device)
        started = time.perf_counter()
        batches = iter(loader)
        for _ in range(len(loader)):
            with recorder.step(epoch, "measured") as step:
                with recorder.phase("data"):
                    images, labels = next(batches)
                with recorder.phase("transfer"):
                    images = images.to(device, non_blocking=p.non_blocking, memory_format=layout)
                    labels = labels.to(device, non_blocking=p.non_blocking)
                with recorder.phase("forward"):
                    loss = loss_of(model(images), labels)
                with recorder.phase("backward"):
                    loss.backward()
                with recorder.phase("optimizer"):
                    optimizer.step()
                    optimizer.zero_grad()
                step.finish(len(labels), loss)
        recorder.settle()
        times.append((time.perf_counter() - started) / len(loader))
    return statistics.median(times[1:])


def synchronize(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--width", type=float, default=0.35)
    parser.add_argument("--repeats", type=int, default=5)
    chosen = parser.parse_args()
    device = torch.device(chosen.device)
    torch.set_num_threads(1)
    common: dict[str, Any] = {
        "device": chosen.device, "image_size": chosen.image_size, "batch_size": chosen.batch_size,
        "width": chosen.width, "epochs": 1,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as scratch:
        digits, synthetic = Path(scratch) / "digits", Path(scratch) / "synthetic"
        prepare("digits", Digits(source="digits"), digits)
        prepare("synthetic", Synthetic(source="synthetic", samples=1438), synthetic)
        methods = {
            "plain loop": lambda: plain(VisionParameters(**common), digits, device),
            "multicard": lambda: ours(VisionParameters(**common), digits, device),
            "multicard, tuned": lambda: ours(VisionParameters(**common, preset="tuned"), digits, device),
            "multicard, synthetic batches": lambda: ours(VisionParameters(**common), synthetic, device),
            "multicard, tuned, synthetic batches": lambda: ours(
                VisionParameters(**common, preset="tuned"), synthetic, device
            ),
        }
        times: dict[str, list[float]] = {name: [] for name in methods}
        for _ in range(chosen.repeats):
            for name, method in methods.items():
                times[name].append(method())
    print(f"| loop | ms per step (median of {chosen.repeats}) | range | over the plain loop |\n|---|---|---|---|")
    base = times["plain loop"]
    for name, found in times.items():
        # Each repeat is compared with the plain loop of the same turn, since machines drift.
        ratio = statistics.median(own / plain_time for own, plain_time in zip(found, base, strict=True))
        spread = f"{min(found) * 1e3:.2f}–{max(found) * 1e3:.2f}"
        print(f"| {name} | {statistics.median(found) * 1e3:.2f} | {spread} | {ratio - 1:+.1%} |")


if __name__ == "__main__":
    main()
