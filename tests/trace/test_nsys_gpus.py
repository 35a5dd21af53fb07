"""GPUs of an export: those that can run CUDA, and which of them processes use."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from multicard.trace.nsys_sqlite import read
from synthetic import nsys_export, put

COLUMNS = "id INT, name TEXT, uuid TEXT, smCount INT, computeMajor INT"
ADA = (0, "NVIDIA RTX 5000 Ada Generation Laptop GPU", "e6cbab79", 76, 8)
ADAPTERS = [
    (1, "Intel(R) Iris(R) Xe Graphics", "00000000-0000-0000-0000-000000000000", 0, 0),
    (2, "Microsoft Basic Render Driver", "00000000-0000-0000-0000-000000000000", 0, 0),
]


def export(path: Path, gpus: list[tuple], columns: str = COLUMNS, devices: list[tuple] | None = None) -> Path:
    nsys_export(path)
    with closing(sqlite3.connect(path)) as db:
        put(db, "TARGET_INFO_GPU", columns, gpus)
        if devices is not None:
            put(db, "TARGET_INFO_CUDA_DEVICE", "gpuId INT, cudaId INT, pid INT", devices)
        db.commit()
    return path


@pytest.mark.parametrize("devices", [None, [], [(0, 0, 4242)]])
def test_display_adapters_are_no_gpus(tmp_path: Path, devices: list[tuple] | None) -> None:
    trace = read(export(tmp_path / "a.sqlite", [ADA, *ADAPTERS], devices=devices))
    assert (trace.gpus, trace.gpu_count) == ((ADA[1],), 1)
    assert trace.gpu_identities == ({(4242, 0): "e6cbab79"} if devices else {})


def test_a_device_of_two_processes_is_one_gpu_and_other_gpus_are_not_named(tmp_path: Path) -> None:
    gpus = [(0, "NVIDIA A100", "x", 108, 8), (1, "NVIDIA A100", "y", 108, 8), (2, "NVIDIA T4", "z", 40, 7)]
    devices = [(1, 0, 4242), (1, 0, 4243), (0, 1, 4243), (None, 0, 1), (7, 0, 2)]
    trace = read(export(tmp_path / "a.sqlite", gpus, devices=devices))
    assert (trace.gpus, trace.gpu_count) == (("NVIDIA A100",), 3)
    assert trace.gpu_identities == {(4242, 0): "y", (4243, 0): "y", (4243, 1): "x"}


def test_old_exports_tell_less(tmp_path: Path) -> None:
    trace = read(
        export(tmp_path / "a.sqlite", [(3, "Tesla T4"), (4, None)], "id INT, name TEXT", [(3, 0, 5), (4, 1, 5)])
    )
    assert (trace.gpus, trace.gpu_count) == (("Tesla T4",), 2)
    assert len(set(trace.gpu_identities.values())) == 2
    nameless = read(export(tmp_path / "c.sqlite", [(3,), (4,)], "id INT"))
    assert (nameless.gpus, nameless.gpu_count, nameless.gpu_identities) == ((), None, {})
    bare = read(nsys_export(tmp_path / "b.sqlite"))
    assert (bare.gpus, bare.gpu_count, bare.gpu_identities) == ((), None, {})
