"""The outcome of a rank that fails is recorded, whatever happens to the others."""

import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from conftest import TINY
from forked_ranks import forked_ranks
from multicard.core.reasons import Reason, describe_reason
from multicard.launch.job import run_job
from multicard.programs import PROGRAMS
from multicard.programs.vision.parameters import VisionParameters
from multicard.runs.record import RunRecord
from stand_ins import standing_in

pytestmark = pytest.mark.slow

# A program that stands in for training. Its last rank has a fault, and there neither would taking down the process
# group end, nor Python itself, as under NCCL they may not.
STAND_IN = """
import argparse, atexit, os, signal, time
from pathlib import Path
import torch
import torch.distributed as dist
from multicard.core.errors import UserError
from multicard.programs.main import run_program
from multicard.programs.options import parse_options
from multicard.programs.vision.parameters import VisionParameters
from multicard.observe.record.recorder import Diverged
from multicard.programs.vision.ranks import join

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data")
    parser.add_argument("--checkpoint")
    p, _ = parse_options(parser, VisionParameters)
    rank, device = join(p)
    if rank == p.ranks - 1:
        dist.destroy_process_group = lambda: time.sleep(1000)
        atexit.register(time.sleep, 1000)
        {fault}
    dist.barrier()
    time.sleep(1000)

run_program(main)
"""
# Real training, with little more memory than its imports take.
CONFINED = """
import resource
from multicard.programs.main import run_program
from multicard.programs.vision.train import main

pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + 400 * 2**20
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
run_program(main)
"""


@pytest.fixture
def run_instead(digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a job whose ranks run another program than vision training."""

    def run_program(program: str, forked: bool = False, **changes: Any) -> RunRecord:
        (tmp_path / "stand_in.py").write_text(program)
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
        monkeypatch.setitem(PROGRAMS, "vision", standing_in("stand_in"))
        parameters = VisionParameters(**(TINY | {"profiler": "none"} | changes))
        with forked_ranks() if forked else nullcontext():
            return run_job(parameters, digits, tmp_path / "run", time_limit_s=600)

    return run_program


@pytest.mark.parametrize(
    ("fault", "outcome", "reason"),
    [
        ("raise RuntimeError('the second of two')", "failed", "rank 1: RuntimeError: the second of two"),
        ("raise UserError('batch_size: too much')", "failed", "rank 1: batch_size: too much"),
        ("raise Diverged(float('nan'), 3)", "diverged", "rank 1: the loss is nan at step 3"),
        # Simulated: no GPU of this machine runs out of memory.
        ("raise torch.OutOfMemoryError('CUDA')", "out_of_memory", "rank 1: OutOfMemoryError: CUDA"),
    ],
)
def test_the_outcome_is_that_of_the_rank_that_failed_and_nothing_waits(
    run_instead: Any, fault: str, outcome: str, reason: str
) -> None:
    # Of the others torchrun sees what it sees of the first, an exit code of 1.
    record = run_instead(STAND_IN.format(fault=fault), "RuntimeError" not in fault, strategy="ddp", devices=2)
    assert (record.outcome, describe_reason(record.reason)) == (outcome, reason)
    assert record.wall_time_s < 240  # torchrun waits 300 s at its end, Gloo half an hour, the rank itself 1000 s


@pytest.mark.parametrize("strategy", ["ddp", "single"])
def test_a_rank_that_the_system_kills_is_named_with_its_signal(run_instead: Any, strategy: str) -> None:
    devices = 2 if strategy == "ddp" else 1
    program = STAND_IN.format(fault="os.kill(os.getpid(), signal.SIGKILL)")
    record = run_instead(program, forked=devices == 1, strategy=strategy, devices=devices)
    assert record.outcome == "failed"
    assert record.reason == Reason("killed", rank=devices - 1, signal="SIGKILL")


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and a limit of the address space that holds")
def test_a_job_that_needs_more_memory_than_there_is_ends_as_out_of_memory(run_instead: Any) -> None:
    record = run_instead(CONFINED, forked=True, image_size=512, batch_size=64)
    assert record.outcome == "out_of_memory", record.reason
