"""CPU time that a loader worker takes for an image, which planning assumes (LOADING_S of programs/vision/estimate.py).

    python benchmarks/loading.py [--sizes 100 300 500] [--batches 8]

A real DataLoader with one worker makes batches of 64 images, as training reads them: small arrays that are resized, and
JPEG files of the size that is trained on. CPU time of the worker's process is counted, so other work on the machine
disturbs little; on an idle core it is the wall time.
"""

import argparse
import os
import tempfile
from pathlib import Path

import torch
from torch.utils.data import DataLoader

from multicard.programs.datasets import Digits
from multicard.programs.provenance import ImageProvenance, read_unchanged
from multicard.programs.vision.data import open_split
from multicard.programs.vision.prepare import prepare

BATCH = 64


def main() -> None:
    """Print a line per kind of image and size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 300, 500], help="edge lengths in pixels")
    parser.add_argument("--batches", type=int, default=8, help="batches that are timed")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for size in arguments.sizes:
        for kind, stored in (("array", None), ("jpeg", size)):
            with tempfile.TemporaryDirectory() as folder:
                prepare("digits", Digits(source="digits", stored_size=stored), Path(folder))
                dataset = open_split(Path(folder), read_unchanged(Path(folder), ImageProvenance), "train", size)
                print(
                    f"{kind:<5} {size:>4} px {1e3 * _cpu_s_per_image(dataset, arguments.batches):6.2f} ms", flush=True
                )


def _cpu_s_per_image(dataset: torch.utils.data.Dataset, batches: int) -> float:
    loader = DataLoader(dataset, BATCH, sampler=[n % len(dataset) for n in range((batches + 4) * BATCH)], num_workers=1)
    loaded = iter(loader)
    next(loaded)  # the worker has started
    worker = loaded._workers[0].pid
    before = _cpu_s(worker)
    for _ in range(batches):
        next(loaded)
    return (_cpu_s(worker) - before) / batches / BATCH


def _cpu_s(process: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
