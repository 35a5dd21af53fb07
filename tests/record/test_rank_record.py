"""A rank leaves a record of what it ran on, and of how it ended, whatever happens."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from multicard.record import rank, visible
from multicard.record.out_of_memory import GpuMemory, fullest_gpu
from multicard.workloads.vision.parameters import VisionParameters

GPUS = [{"uuid": "GPU-a", "name": "H100"}]
HITS = [{"limit": "recompile_limit", "value": 8, "functions": 1}]


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run this process as a rank on a full GPU; give what it recorded."""
    monkeypatch.setattr(visible, "identities", lambda devices: GPUS)
    monkeypatch.setattr(rank, "limits_hit", lambda: HITS)
    monkeypatch.setattr(rank, "fullest_gpu", lambda: GpuMemory(1, free=20_000_000, total=80_000_000_000))
    monkeypatch.setattr(sys, "argv", ["program", "--job", str(tmp_path / "job.json")])
    monkeypatch.setenv("RANK", "0")
    (tmp_path / "job.json").write_text(json.dumps({"parameters": {}, "scratch": str(tmp_path)}))

    def run(training: Any) -> dict[str, Any]:
        rank.run_rank(lambda stated: VisionParameters(device="cpu"), training)
        return record()

    def record() -> dict[str, Any]:
        return json.loads((tmp_path / "rank.json.rank0").read_text())

    return SimpleNamespace(run=run, record=record)


def test_gpus_and_what_was_left_uncompiled_are_recorded(recorded: Any) -> None:
    record = recorded.run(lambda job, p, record: {"steps_per_pass": 7})
    assert (record["outcome"], record["steps_per_pass"]) == ("completed", 7)
    assert (record["gpus"], record["compile_limits_hit"]) == (GPUS, HITS)


def test_an_error_is_judged_by_the_memory_at_that_moment(recorded: Any) -> None:
    def training(job: Any, p: Any, record: Any) -> dict[str, Any]:
        raise RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`")

    with pytest.raises(SystemExit):
        recorded.run(training)
    record = recorded.record()
    assert (record["outcome"], record["reason"]["code"]) == ("out_of_memory", "out_of_memory")
    assert record["reason"]["message"].endswith("; 20.0 MB of 80.0 GB free on GPU 1")
    assert (record["gpus"], record["compile_limits_hit"]) == (GPUS, HITS)


def test_the_fullest_gpu_is_one_that_this_process_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    free, reserved = [500, 50, 5], [0, 1, 0]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(free))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda gpu: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda gpu: reserved[gpu])
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda gpu: (free[gpu], 1000))
    assert fullest_gpu() == GpuMemory(1, free=50, total=1000)
    reserved[1] = 0
    assert fullest_gpu() == GpuMemory(0, free=500, total=1000)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert fullest_gpu() is None
