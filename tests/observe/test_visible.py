"""Each rank drives GPUs of its own, or refuses in one line that says what to do."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from multicard.core.errors import UserError
from multicard.observe.record import visible
from multicard.observe.record.environment import driver, hardware
from multicard.programs.llm.parameters import LlmParameters
from multicard.programs.vision.parameters import VisionParameters
from multicard.programs.vision.ranks import join


@pytest.fixture
def torch_sees(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let torch see GPUs: some that the driver lists, of which CUDA starts the first ones."""

    def see(listed: int, started: int, selected: str | None = None, local_rank: int = 0) -> None:
        def properties(device: Any) -> SimpleNamespace:
            index = torch.device(device).index if not isinstance(device, int) else device
            if index >= listed:
                raise AssertionError("Invalid device id")  # as torch.cuda
            if index >= started:
                raise RuntimeError("device >= 0 && device < num_gpus INTERNAL ASSERT FAILED")  # as its C++ side
            return SimpleNamespace(name="H100", uuid=f"0000000{index}-1111", total_memory=85 * 10**9, major=9, minor=0)

        monkeypatch.setattr(torch.cuda, "device_count", lambda: listed)
        monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
        monkeypatch.setenv("LOCAL_RANK", str(local_rank))
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.delenv("MULTICARD_SHARED_GPU", raising=False)
        if selected is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", selected)

    return see


def gpus(*numbers: int) -> list[torch.device]:
    return [torch.device("cuda", number) for number in numbers]


FOUR = VisionParameters(strategy="ddp", devices=4)


def test_each_rank_has_a_gpu_of_its_own_and_dp_all_of_them(torch_sees: Any) -> None:
    for rank in range(4):
        torch_sees(4, 4, local_rank=rank)
        assert visible.rank_devices(FOUR) == gpus(rank)
    torch_sees(4, 4)
    assert visible.rank_devices(VisionParameters(strategy="dp", devices=3)) == gpus(0, 1, 2)
    assert visible.rank_devices(VisionParameters()) == gpus(0)
    assert visible.rank_devices(VisionParameters(device="cpu", strategy="ddp", devices=9)) == [torch.device("cpu")]
    torch_sees(4, 4, local_rank=1)  # of the second of two nodes
    assert visible.rank_devices(VisionParameters(strategy="ddp", devices=8, nodes=2)) == gpus(1)


@pytest.mark.parametrize(
    ("listed", "started", "selected", "found", "says"),
    [
        (2, 2, None, 2, ": lower `devices`, or see `multicard doctor` if the machine has more"),
        (4, 3, None, 3, " of the 4 that the driver lists: others are partitioned (MIG) or have failed: lower"),
        (4, 0, None, 0, " of the 4 that the driver lists: others are partitioned (MIG) or have failed: lower"),
        (0, 0, "", 0, ': CUDA_VISIBLE_DEVICES is ""; lower `devices`'),
        (1, 1, "MIG-aaaa,MIG-bbbb", 1, ': CUDA_VISIBLE_DEVICES is "MIG-aaaa,MIG-bbbb"; lower `devices`'),
    ],
)
def test_ranks_refuse_fewer_gpus_than_they_drive(
    listed: int, started: int, selected: str | None, found: int, says: str, torch_sees: Any
) -> None:
    torch_sees(listed, started, selected)
    for p in (FOUR, VisionParameters(strategy="dp", devices=4), LlmParameters(devices=4)):
        with pytest.raises(UserError) as refused:
            visible.rank_devices(p)
        [line] = str(refused.value).splitlines()
        assert line.startswith(f"this machine's ranks need 4 GPUs, CUDA shows {found}{says}")


def test_ranks_share_a_gpu_only_where_a_variable_of_the_checks_says_so(
    torch_sees: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = VisionParameters(strategy="ddp", devices=2)
    torch_sees(1, 1, local_rank=1)
    for value in ("0", "true", ""):
        monkeypatch.setenv("MULTICARD_SHARED_GPU", value)
        with pytest.raises(UserError):
            visible.rank_devices(two)
    monkeypatch.setenv("MULTICARD_SHARED_GPU", "1")
    assert visible.rank_devices(two) == gpus(0)
    with pytest.raises(UserError):  # one rank that needs two
        visible.rank_devices(VisionParameters(strategy="dp", devices=2))
    torch_sees(0, 0)
    monkeypatch.setenv("MULTICARD_SHARED_GPU", "1")
    with pytest.raises(UserError):
        visible.rank_devices(two)


def test_gpus_are_recorded_by_uuid_and_only_those_that_cuda_starts(torch_sees: Any) -> None:
    torch_sees(8, 1, "MIG-aaaa,MIG-bbbb")
    assert [gpu.name for gpu in hardware().gpus] == ["H100"]
    assert visible.identities(gpus(0)) == [{"uuid": "GPU-00000000-1111", "name": "H100"}]
    assert visible.identities([torch.device("cpu")]) is None


@pytest.mark.parametrize(("seen", "backend"), [(2, "nccl"), (1, "gloo")])
def test_ranks_communicate_by_nccl_unless_they_share_a_gpu(
    seen: int, backend: str, torch_sees: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch_sees(seen, seen, local_rank=1)
    taken, joined = [], []
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    monkeypatch.setattr(dist, "init_process_group", lambda name, **_: joined.append(name))
    monkeypatch.setenv("MULTICARD_SHARED_GPU", "1")
    monkeypatch.setenv("RANK", "1")
    assert join(VisionParameters(strategy="ddp", devices=2)) == (1, *gpus(seen - 1))
    assert (taken, joined) == (gpus(seen - 1), [backend])


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023", "535.104.05"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (dvs@host)", "580.65.06"),
        ("something else", None),
        (None, None),
    ],
)
def test_the_driver_is_the_one_that_linux_shows(line: str | None, version: str | None, tmp_path: Path) -> None:
    if line:
        (tmp_path / "version").write_text(f"{line}\nGCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n")
    assert driver(tmp_path / "version") == version
