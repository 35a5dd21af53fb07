"""Everything that needs a GPU, in one call: `make gpu-check`.

Runs the vision matrix in small through the real launcher, each run in a folder of its own; then language models, with
the estimate of their memory beside its measured peak; prints a table of each, and runs the tests that are marked `gpu`.
`--part` runs one of these (the first takes less than 10 minutes on one GPU), `--device cpu` tries the script itself
where there is no GPU.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from once import ROOT, run_once, show
from rich.table import Table
from tuning import check_tuning

from multicard.core.reasons import describe_reason
from multicard.core.units import BYTES, SECONDS, with_unit
from multicard.experiment.datasets import Digits, Synthetic
from multicard.experiment.machine import Machine
from multicard.experiment.parameters import run_id
from multicard.experiment.runs import Run
from multicard.workloads.vision.parameters import VisionParameters
from multicard.workloads.vision.prepare import prepare

SMALL: dict[str, Any] = {
    "image_size": 64, "batch_size": 32, "epochs": 1, "steps_per_epoch": 12, "warmup_steps": 4, "profiled_steps": 3,
}  # fmt: skip

# Two ranks on one GPU talk over gloo, since NCCL refuses to.
ON_ONE_GPU = "ddp-ds, two ranks on one GPU"

# What differs from a single GPU in fp32.
MATRIX: dict[str, dict[str, Any]] = {
    "single": {},
    "fp64": {"precision": "fp64"},
    "224 px": {"image_size": 224},
    "fp16": {"precision": "fp16"},
    "bf16": {"precision": "bf16"},
    "ddp, one rank": {"strategy": "ddp"},
    "ddp-ds, one rank": {"strategy": "ddp-ds"},
    "fsdp, one rank": {"strategy": "fsdp"},
    ON_ONE_GPU: {"strategy": "ddp-ds", "devices": 2},
    "dp, two GPUs": {"strategy": "dp", "devices": 2},
    "dp, two GPUs, bf16": {"strategy": "dp", "devices": 2, "precision": "bf16"},
    "pinned memory": {"pin_memory": True, "num_workers": 2},
    "nhwc": {"layout": "nhwc"},
    "DALI": {"loader": "dali"},
    "synthetic batches": {"dataset": "synthetic"},
    "tuned": {"preset": "tuned"},
    "fsdp, tuned": {"strategy": "fsdp", "preset": "tuned"},
    "compiled": {"compile": True},
    "CUDA graphs": {"cuda_graphs": True},
    "bound to NUMA node": {"binding": "numa"},
    "PyTorch's profiler": {"profiler": "kineto"},
}


def main() -> None:
    """Run the parts, print their tables; exit with 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--part", choices=["vision", "llm", "tests"], help="all by default")
    parser.add_argument("--only", nargs="*", help="names of rows to run, all by default")
    chosen = parser.parse_args()
    machine = Machine.here()
    if chosen.device == "cuda" and machine.gpus == 0:
        parser.error("no CUDA GPU found")
    started, sound = time.monotonic(), True
    with tempfile.TemporaryDirectory() as scratch:
        if chosen.part in (None, "vision"):
            sound &= check_vision(chosen.device, chosen.only, machine, Path(scratch))
        if chosen.part in (None, "llm"):
            sound &= check_tuning(chosen.device, chosen.only, machine, Path(scratch))
    print(f"{time.monotonic() - started:.0f} s")
    if chosen.device == "cuda" and chosen.part in (None, "tests"):
        tests = subprocess.run([sys.executable, "-m", "pytest", "-q", "-m", "gpu", ROOT / "tests"], check=False)
        sound &= tests.returncode == 0
    sys.exit(0 if sound else 1)


def check_vision(device: str, only: list[str] | None, machine: Machine, scratch: Path) -> bool:
    """Run the vision matrix and print its table; return whether all that could run did."""
    table = Table("Run", "Outcome", "Iteration time", "Peak memory", "Estimate", "Kernels", "Remarks")
    data = {name: scratch / name for name in ("digits", "synthetic")}
    prepare("digits", Digits(source="digits"), data["digits"])
    prepare("synthetic", Synthetic(source="synthetic", samples=2000), data["synthetic"])
    sound = True
    for name, changes in MATRIX.items():
        if only and name not in only:
            continue
        p = VisionParameters(**(SMALL | {"device": device} | changes))
        run = Run(run_id(p), p)
        reason = run.unsupported_reason(machine)
        if reason and not (reason.startswith("needs 2 devices") and name == ON_ONE_GPU):
            table.add_row(name, "not run", "", "", "", "", reason)
            continue
        with first_gpu_only() if name == ON_ONE_GPU else nullcontext():
            record, found, kernels = run_once(p, data[p.dataset], scratch)
        sound &= record["outcome"] == "completed" and (device == "cpu" or bool(kernels))
        times = (with_unit(found["iteration_time_s"], SECONDS), with_unit(found["peak_memory_bytes"], BYTES))
        remarks = describe_reason(record["reason"]) or record["profiler"]["trace_missing"] or ""
        estimate = run.device_memory_bytes()  # without what cuDNN takes to compute, so it is only shown
        shown = with_unit(estimate, BYTES) if estimate else ""
        table.add_row(name, record["outcome"], *times, shown, str(kernels or ""), remarks)
    show(table)
    return sound


@contextmanager
def first_gpu_only() -> Iterator[None]:
    """Let the jobs of the block see the first GPU only."""
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ["CUDA_VISIBLE_DEVICES"] = (before or "0").split(",")[0]
    try:
        yield
    finally:
        del os.environ["CUDA_VISIBLE_DEVICES"]
        if before is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = before


if __name__ == "__main__":
    main()
