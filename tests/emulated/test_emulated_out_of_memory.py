"""A rank on emulated GPUs runs out of memory: its outcome says what held it, and PyTorch reads the snapshot."""

from pathlib import Path
from typing import Any

import pytest
import torch
from emulated_jobs import LLM, VISION, Job, run_on_gpus

from conftest import ROOT, TINY, ran
from emulated_gpu.fixtures import EmulatedGpus
from multicard.config.read_run import read_run
from multicard.core.layout import MEMORY_SNAPSHOT
from multicard.core.reasons import LargestUse, describe_reason
from multicard.programs.datasets import Digits, ShippedText
from multicard.programs.llm.prepare_model import prepare_model
from multicard.programs.llm.prepare_texts import prepare_texts
from multicard.programs.models import Model
from multicard.programs.vision.prepare import prepare
from script.equipment import Script

pytestmark = [pytest.mark.emulated, pytest.mark.slow]

VIEWER = Path(torch.cuda.__file__).with_name("_memory_viz.py")
MIB = 2**20
CONTEXT = 300 * MIB  # of the emulation
# Of cuBLAS for each thread: ":4096:2:16:8", PyTorch's default on an A100. A PyTorch in which its size can be chosen
# gives it back after each product.
KEEPS_WORKSPACES = not hasattr(torch.backends.cuda, "cublas_workspace_size")
PRODUCT = (2 * 4096 + 8 * 16) * 1024
WORKSPACE = PRODUCT if KEEPS_WORKSPACES else 0
WEIGHT = 2 * MIB  # of one layer below: 512 × 1024 numbers of 4 bytes, in a segment of PyTorch's or a part of one

# Three blocks of two weights each. In the seventh step the last rank has a batch whose activations are too large.
SCRIPT = """
import os
import torch
import torch.distributed as dist
from torch import nn
rank = int(os.environ["RANK"])
gpu = torch.device("cuda", rank)
torch.cuda.set_device(gpu)
dist.init_process_group("nccl")
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(512, 1024, bias=False), nn.Linear(1024, 512, bias=False)
    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))
model = nn.parallel.DistributedDataParallel(nn.Sequential(*(Block() for _ in range(3))).to(gpu))
optimizer = torch.optim.Adam(model.parameters())
for step in range(20):
    batch = torch.ones(8192 * 2 if rank == 1 and step == 6 else 8, 512).to(gpu)
    optimizer.zero_grad()
    model(batch).mean().backward()
    optimizer.step()
"""
BATCH = 32 * MIB  # of that step: 16384 × 512 numbers


def opened(file: Path, python: Path) -> str:
    """What PyTorch's own viewer says of a snapshot."""
    done = ran(python, VIEWER, "stats", file)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_script_that_runs_out_of_memory_on_one_gpu(emulated: EmulatedGpus, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    machine = emulated.environment(gpus=2, gpu_gib="1,0.5")
    run = Script(
        tmp_path / "run", machine, command=("train.py",), folder=str(tmp_path), python=str(emulated.python),
        device="cuda", devices=2, profiler="none", memory_snapshot=True,
    )  # fmt: skip
    reason = run.record.reason
    assert (run.record.outcome, reason.rank, reason.held.gpu) == ("out_of_memory", 1, 1), run.log
    held = reason.held.bytes
    assert sum(held.values()) == reason.held.total_bytes == 512 * MIB
    assert held["parameters"] == 6 * WEIGHT
    assert held["gradients"] == 6 * WEIGHT + WORKSPACE  # buckets of DDP; those of the parameters are gone
    # Four weights fit where a workspace was that was given back. The rest of it is too small for a block of its own.
    rest = 0 if KEEPS_WORKSPACES else PRODUCT - 4 * WEIGHT
    assert held["optimizer_state"] == pytest.approx(2 * 6 * WEIGHT + rest, rel=0.001)  # and the numbers of steps
    assert held["outside_pytorch"] == CONTEXT
    assert held["activations"] == 2 * BATCH + WORKSPACE  # what the first layer gave; the next function wants as much
    most = reason.held.most
    assert (most["activations"].where, most["activations"].modules) == ("Block", 3)
    assert most["other_tensors"] == LargestUse(BATCH, where="train.py:19")
    told = describe_reason(reason)
    assert "\n" not in told and "in forward of Block, 3 modules" in told
    reserved = 512 * MIB - CONTEXT - held["free"]
    assert f"total_reserved: {reserved / MIB:.1f}MiB" in opened(run.folder / MEMORY_SNAPSHOT, emulated.python)


@pytest.mark.rare
@pytest.mark.torchtune
def test_images_and_language_models_that_run_out_of_memory(emulated: EmulatedGpus, tmp_path: Path) -> None:
    digits, texts, model = tmp_path / "digits", tmp_path / "preferences", tmp_path / "tiny"
    prepare("digits", Digits(source="digits", limit=200), digits)
    prepare_texts("preferences", ShippedText(source="shipped-text", texts="preferences"), texts, ROOT / "resources")
    prepare_model("tiny", Model(architecture="tiny"), model, ROOT / "resources")
    on_gpu = {"device": "cuda", "profiler": "none", "memory_snapshot": True}
    images = TINY | on_gpu | {"image_size": 224, "batch_size": 64}
    language: dict[str, Any] = on_gpu | {
        "workload": "llm", "dataset": "preferences", "library": "torchtune", "technique": "full", "batch_size": 32,
        "sequence_length": 512, "precision": "fp32", "warmup_steps": 1, "steps": 2, "profiled_steps": 1,
    }  # fmt: skip
    jobs = [Job(images, digits, tmp_path / "images"), Job(language, texts, tmp_path / "language", model)]
    run_on_gpus(emulated, jobs, [*VISION, *LLM], gpu_gib="0.4")
    for job, module in zip(jobs, ("MobileNetV2", "MultiHeadAttention"), strict=True):
        record = read_run(job.folder)
        assert record.outcome == "out_of_memory", describe_reason(record.reason)
        held = record.reason.held
        assert sum(held.bytes.values()) == held.total_bytes
        assert held.most["activations"].where == module, describe_reason(record.reason)
        assert "total_reserved" in opened(job.folder / MEMORY_SNAPSHOT, emulated.python)
