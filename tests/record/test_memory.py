"""Peaks of memory are those that PyTorch, or the system, tells."""

import pytest
import torch

from multicard.record.recorder import peak_memory

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


def test_a_cpu_process_has_a_resident_peak_and_reserves_nothing() -> None:
    before = peak_memory(CPU)
    block = bytearray(200 * 2**20)
    block[:: 2**12] = b"x" * len(block[:: 2**12])
    after = peak_memory(CPU)
    assert before.reserved is None
    assert after.reserved is None
    assert after.allocated >= 200 * 2**20
    assert after.allocated >= before.allocated


def test_of_several_gpus_the_fullest_counts_and_each_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [torch.device("cuda", 0), torch.device("cuda", 1)]
    counters = {
        gpus[0]: {"allocated_bytes": {"all": {"peak": 5}}, "reserved_bytes": {"all": {"peak": 6}}},
        gpus[1]: {"allocated_bytes": {"all": {"peak": 3}}, "reserved_bytes": {"all": {"peak": 9}}},
    }
    asked, reset = [], []
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda gpu: asked.append(gpu) or counters[gpu])
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", reset.append)
    assert peak_memory(*gpus) == (5, 9)
    assert asked == reset == gpus


@pytest.fixture
def on_gpu() -> None:
    """CUDA is initialized, as in a rank when it begins to measure; no test needs another one before it."""
    torch.cuda.init()


@pytest.mark.gpu
@pytest.mark.usefixtures("on_gpu")
def test_peaks_are_those_that_pytorch_reports() -> None:
    peak_memory(CUDA)
    torch.empty(64 * 2**20, dtype=torch.uint8, device=CUDA)
    told = (torch.cuda.max_memory_allocated(CUDA), torch.cuda.max_memory_reserved(CUDA))
    assert told[0] >= 64 * 2**20
    assert peak_memory(CUDA) == told
