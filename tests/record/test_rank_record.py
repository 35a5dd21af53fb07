"""A rank leaves a record of what it ran on, and of how it ended, whatever happens."""

import pytest
import torch

from multicard.record.observe import failure
from multicard.record.observe.failure import describe_failure
from multicard.record.observe.ranks import RANKS, SIZES, rank_of_process, world_size
from multicard.record.out_of_memory import GpuMemory, fullest_gpu


def test_an_error_is_judged_by_the_memory_at_that_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure, "fullest_gpu", lambda: GpuMemory(1, free=20_000_000, total=80_000_000_000))
    error = RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`")
    found = describe_failure(error, 2)
    assert (found["outcome"], found["reason"]["code"], found["reason"]["rank"]) == ("out_of_memory", "out_of_memory", 2)
    assert found["reason"]["message"].endswith("; 20.0 MB of 80.0 GB free on GPU 1")


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


@pytest.mark.parametrize(
    ("told", "rank", "size"),
    [
        ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, 3, 4),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, 1, 2),
        ({"SLURM_PROCID": "5", "SLURM_NTASKS": "6"}, 5, 6),
        ({"RANK": "1", "WORLD_SIZE": "2", "PMI_RANK": "0", "PMI_SIZE": "1"}, 1, 2),  # torchrun on each node of an MPI
        ({"RANK": "", "SLURM_PROCID": "-1"}, 0, 1),
    ],
)
def test_without_a_process_group_ranks_are_those_that_the_launcher_told(
    told: dict[str, str], rank: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Variables by the manuals of Open MPI (mpirun), MPICH (PMI) and Slurm (srun)."""
    for name in (*RANKS, *SIZES):
        monkeypatch.delenv(name, raising=False)
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    assert (rank_of_process(), world_size()) == (rank, size)
