"""Disk space is judged against what runs leave and hand over."""

import os
import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from multicard.config.runs import Run
from multicard.machine import disk
from multicard.programs.llm.parameters import LlmParameters
from multicard.programs.vision.parameters import VisionParameters

Usage = namedtuple("Usage", "total used free")


def with_room(monkeypatch: pytest.MonkeyPatch, free: float, shm: float = 1e12) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(*(3 * [shm if Path(path) == disk.SHM else free])))


def verdicts(results: Path, planned: int = 0, runs: list[Run] | None = None) -> dict[str, str]:
    return {check.check: check.verdict for check in disk.checks(results, planned, runs or [])}


def test_room_for_results_grows_with_the_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_room(monkeypatch, 5e9)
    assert verdicts(tmp_path)["results folder"] == "ok"
    assert verdicts(tmp_path, planned=60)["results folder"] == "error"
    assert verdicts(tmp_path, planned=60)["temporary folder"] == "ok"
    with_room(monkeypatch, 9e8)  # less than the floor
    found = verdicts(tmp_path)
    assert [found[key] for key in ("results folder", "temporary folder")] == ["error"] * 2


def test_loader_workers_may_hold_all_that_they_load_ahead() -> None:
    p = VisionParameters(
        device="cuda", strategy="ddp", devices=4, num_workers=8, prefetch_factor=2, batch_size=64, image_size=500
    )
    # 4 ranks x 8 workers x 2 batches x 64 images x 3 channels x 500 x 500 px x 4 bytes
    assert p.shared_memory_bytes == 4 * 8 * 2 * 64 * 3 * 500 * 500 * 4
    assert p.model_copy(update={"num_workers": 0}).shared_memory_bytes == 0
    assert LlmParameters(dataset="x").shared_memory_bytes == 0


def test_shared_memory_too_small_for_the_workers_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run("a", VisionParameters(device="cpu", num_workers=2, batch_size=64, image_size=224))
    with_room(monkeypatch, 1e12, shm=64 * 1024**2)
    assert verdicts(tmp_path)["shared memory"] == "warning"
    assert verdicts(tmp_path, 1, [run])["shared memory"] == "error"
    with_room(monkeypatch, 1e12, shm=1e9)
    assert verdicts(tmp_path, 1, [run])["shared memory"] == "ok"


def test_a_results_folder_that_cannot_be_made_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert verdicts(tmp_path / "file" / "results")["results folder"] == "error"
    assert verdicts(tmp_path / "not" / "yet")["results folder"] == "ok"
    assert os.listdir(tmp_path) == ["file"]  # noqa: PTH208
