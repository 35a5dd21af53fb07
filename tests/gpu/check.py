"""All that needs a GPU, in one call: `make gpu-check`. Takes less than 10 minutes on one card.

Runs the vision matrix in small through the real launcher, each run in a folder of its own, prints a table, and then
runs the tests that are marked `gpu`. `--device cpu` tries the script itself where there is no card.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from multicard.analysis.measures import measure_run
from multicard.experiment.config import Digits, Synthetic
from multicard.experiment.machine import Machine
from multicard.experiment.parameters import VisionParameters
from multicard.experiment.runs import Run, run_id
from multicard.record.job import run_job
from multicard.terminal import quantity
from multicard.trace.export import export_run
from multicard.trace.extract import extract_run
from multicard.vision.prepare import prepare

ROOT = Path(__file__).parents[2]

SMALL: dict[str, Any] = {
    "image_size": 64, "batch_size": 32, "epochs": 1, "steps_per_epoch": 12, "warmup_steps": 4, "profiled_steps": 3,
}  # fmt: skip

# What differs from a single card in fp32. Two ranks on one card talk over gloo, since NCCL refuses to.
MATRIX: dict[str, dict[str, Any]] = {
    "single": {},
    "fp64": {"precision": "fp64"},
    "fp16": {"precision": "fp16"},
    "bf16": {"precision": "bf16"},
    "ddp, one rank": {"strategy": "ddp"},
    "ddp-ds, one rank": {"strategy": "ddp-ds"},
    "fsdp, one rank": {"strategy": "fsdp"},
    "ddp-ds, two ranks": {"strategy": "ddp-ds", "devices": 2},
    "dp, two cards": {"strategy": "dp", "devices": 2},
    "pinned memory": {"pin_memory": True, "workers": 2},
    "nhwc": {"layout": "nhwc"},
    "DALI": {"loader": "dali"},
    "synthetic batches": {"dataset": "synthetic"},
    "tuned": {"preset": "tuned"},
    "compiled": {"compile": True},
    "CUDA graphs": {"cuda_graphs": True},
    "bound to NUMA node": {"binding": "numa"},
    "PyTorch's profiler": {"profiler": "kineto"},
}


def main() -> None:
    """Run the matrix, print its table, run the tests; exit with 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--only", nargs="*", help="names of rows to run, all by default")
    chosen = parser.parse_args()
    machine = Machine.here()
    if chosen.device == "cuda" and machine.gpus == 0:
        parser.error("no CUDA GPU found")
    started = time.monotonic()
    table = Table("Run", "Outcome", "Iteration time", "Peak memory", "Kernels", "Remarks")
    failed = False
    with tempfile.TemporaryDirectory() as scratch:
        data = {name: Path(scratch) / name for name in ("digits", "synthetic")}
        prepare("digits", Digits(source="digits"), data["digits"])
        prepare("synthetic", Synthetic(source="synthetic", samples=2000), data["synthetic"])
        for name, changes in MATRIX.items():
            if chosen.only and name not in chosen.only:
                continue
            p = VisionParameters(**(SMALL | {"device": chosen.device} | changes))
            obstacle = Run(run_id(p), p).obstacle(machine)
            if obstacle and not (obstacle.startswith("needs 2 devices") and p.strategy == "ddp-ds"):
                table.add_row(name, "not run", "", "", "", obstacle)
                continue
            folder = Path(scratch) / "runs" / run_id(p)
            record = run_job(p, data[p.dataset], folder, time_limit_s=180)
            export_run(folder)
            extract_run(folder)
            found = measure_run(folder)
            kernels = _kernels(folder)
            failed |= record["outcome"] != "completed" or (chosen.device == "cuda" and not kernels)
            times = (quantity("x_s", found["iteration_time_s"])[1], quantity("bytes", found["peak_memory_bytes"])[1])
            remarks = record["reason"] or record["profiler"]["trace_missing"] or ""
            table.add_row(name, record["outcome"], *times, str(kernels or ""), remarks)
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    print(f"{time.monotonic() - started:.0f} s")
    if chosen.device == "cuda":
        tests = subprocess.run([sys.executable, "-m", "pytest", "-q", "-m", "gpu", ROOT / "tests"], check=False)
        failed |= tests.returncode != 0
    sys.exit(1 if failed else 0)


def _kernels(folder: Path) -> int:
    """Kernels that the trace of a run shows."""
    import pandas as pd

    return int(pd.read_parquet(folder / "activity" / "kernel_classes.parquet")["calls"].sum())


if __name__ == "__main__":
    main()
