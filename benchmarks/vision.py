"""What multicard's training loop costs over a plain one, and how near it comes to a loop without a loader.

    python benchmarks/vision.py [--device cuda] [--image-size 64] [--workers 0] [--loader torch] [--repeats 5]

In turns, on the machine at hand: a plain loop written straight from PyTorch's documentation; multicard's own training
program, as runs of `single` make it without a profiler; and the same on synthetic batches that lie on the device: the
bound that a loader can reach. All are timed over whole epochs by the wall clock, so that the steps' own clocks count as
cost; `benchmarks/observer.py` measures these alone.
"""

import argparse
import contextlib
import csv
import io
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision.models.mobilenetv2 import MobileNetV2

from multicard.core.layout import EPOCHS
from multicard.launch.job import run_job
from multicard.programs.datasets import Digits, Synthetic
from multicard.programs.provenance import ImageProvenance, read_unchanged
from multicard.programs.vision.data import open_split
from multicard.programs.vision.parameters import VisionParameters
from multicard.programs.vision.prepare import prepare

PLAIN = "plain loop"
BOUND = ", synthetic batches"
LIMIT_S = 3600


def plain(p: VisionParameters, data: Path, device: torch.device) -> float:
    """Seconds per step of the loop that a tutorial would show."""
    dataset = open_split(data, read_unchanged(data, ImageProvenance), "train", p.image_size)
    loader = DataLoader(
        dataset,
        batch_size=p.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=p.num_workers,
        persistent_workers=p.num_workers
        > 0,  # as multicard does: epochs are short here, and it is loops that are compared
    )
    model = MobileNetV2(num_classes=10, width_mult=p.width_mult).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=p.learning_rate, momentum=0.9)
    loss_of = nn.CrossEntropyLoss()
    times = []
    for _ in range(p.epochs):
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
    """Seconds per step of multicard's training program, by the epoch times that it records."""
    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stderr(io.StringIO()):
        folder = Path(name)
        steps = run_job(p, data, folder, LIMIT_S).steps_per_pass
        with (folder / EPOCHS).open(newline="") as file:
            times = [float(row["epoch_time_s"]) / steps for row in csv.DictReader(file)]
    return statistics.median(times[1:])


def synchronize(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def ratio(of: list[float], to: list[float]) -> float:
    """Median of the ratios turn by turn, since machines drift."""
    return statistics.median(own / other for own, other in zip(of, to, strict=True))


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--width", type=float, default=0.35)
    parser.add_argument("--workers", type=int, default=0, help="processes that load, of the plain loop and of ours")
    parser.add_argument("--loader", choices=["torch", "dali"], default="torch", help="of ours")
    parser.add_argument("--repeats", type=int, default=5)
    chosen = parser.parse_args()
    device = torch.device(chosen.device)
    torch.set_num_threads(1)
    common: dict[str, Any] = {
        "device": chosen.device, "image_size": chosen.image_size, "batch_size": chosen.batch_size,
        "width_mult": chosen.width, "num_workers": chosen.workers, "loader": chosen.loader,
        "epochs": 2, "profiled_steps": 1, "profiler": "none",
    }  # fmt: skip
    paper, tuned = VisionParameters(**common), VisionParameters(**common, preset="tuned")
    # Training chooses how fp32 is computed for the whole process; the plain loop does not.
    places = (torch.backends.cuda.matmul, torch.backends.cudnn.conv)
    defaults = [place.fp32_precision for place in places]
    with tempfile.TemporaryDirectory() as scratch:
        digits, synthetic = Path(scratch) / "digits", Path(scratch) / "synthetic"
        prepare("digits", Digits(source="digits"), digits)
        prepare("synthetic", Synthetic(source="synthetic", samples=1438), synthetic)
        methods = {
            PLAIN: (plain, paper, digits),
            "multicard": (ours, paper, digits),
            "multicard, tuned": (ours, tuned, digits),
            f"multicard{BOUND}": (ours, paper, synthetic),
            f"multicard, tuned{BOUND}": (ours, tuned, synthetic),
        }
        times: dict[str, list[float]] = {name: [] for name in methods}
        for turn in range(chosen.repeats):
            # In another order each time: what ran before leaves memory and caches in a state.
            for name in random.Random(turn).sample(list(methods), len(methods)):
                method, p, data = methods[name]
                for place, default in zip(places, defaults, strict=True):
                    place.fp32_precision = default
                times[name].append(method(p, data, device))
    print(f"| loop | ms per step (median of {chosen.repeats}) | range | over the plain loop | speed, of the bound's |")
    print("|---|---|---|---|---|")
    for name, found in times.items():
        spread = f"{min(found) * 1e3:.2f}–{max(found) * 1e3:.2f}"
        more = "" if name == PLAIN else f"{ratio(found, times[PLAIN]) - 1:+.1%}"
        bound = times.get(("multicard" if name == PLAIN else name) + BOUND)
        share = f"{ratio(bound, found):.1%}" if bound else ""
        print(f"| {name} | {statistics.median(found) * 1e3:.2f} | {spread} | {more} | {share} |")


if __name__ == "__main__":
    main()
