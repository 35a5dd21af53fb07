"""The driver and the GPUs are judged against torch's CUDA. No GPU is here: nvidia-smi is a fake."""

from pathlib import Path
from typing import Any

import pytest
from faked_tools import GARBAGE, HANG, nvidia_smi, place

from multicard.core import system
from multicard.doctor import gpu
from multicard.doctor.checks import Check, torch_facts

H100 = "NVIDIA H100 80GB HBM3, 81559"
GIB = 1024**3


def looked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, cuda: str | None = "13.0", **facts: Any
) -> dict[str, Check]:
    fake = place(tmp_path, monkeypatch, "nvidia-smi")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if script:
        fake("nvidia-smi", script)
    seen = {"gpus": [["H100", 79 * GIB]] * 4}
    return {check.check: check for check in gpu.checks({"torch": "2.11.0", "cuda": cuda} | seen | facts)}


def test_cards_with_a_driver_of_their_time_are_fine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = looked(tmp_path, monkeypatch, nvidia_smi("580.82.07", "13.0", [H100] * 4))
    assert found["GPU"].found == "4 x NVIDIA H100 80GB HBM3 (80 GiB)"
    assert found["driver"].found == "580.82.07 (CUDA 13.0), torch's CUDA 13.0"
    assert found["GPUs in torch"].found == "4, the smallest with 79.0 GiB"
    assert {check.verdict for check in found.values()} == {"ok"}


# NVIDIA's table of minor version compatibility: CUDA 13 from driver 580 on, CUDA 12 from 525 on.
@pytest.mark.parametrize(
    ("driver", "told", "cuda", "verdict", "says"),
    [
        ("550.54.15", "12.4", "13.0", "error", "550.54.15 (CUDA 12.4) is too old for torch's CUDA 13.0"),
        ("535.104.05", "12.2", "12.8", "warning", "535.104.05 (CUDA 12.2) is older than torch's CUDA 12.8"),
        ("590.44.01", "13.1", "12.8", "ok", "590.44.01 (CUDA 13.1), torch's CUDA 12.8"),
        ("550.54.15", "N/A", "13.0", "error", "550.54.15 is too old for torch's CUDA 13.0"),
        ("580.82.07", "N/A", "13.0", "ok", "580.82.07, torch's CUDA 13.0"),
        ("580.82.07", "N/A", "99.1", "warning", "580.82.07; cannot tell which CUDA it supports"),
        ("580.82.07", "13.0", None, "error", "580.82.07, but torch is built for CPUs only"),
    ],
)
def test_a_driver_is_judged_by_the_cuda_it_supports(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    driver: str,
    told: str,
    cuda: str | None,
    verdict: str,
    says: str,
) -> None:
    found = looked(tmp_path, monkeypatch, nvidia_smi(driver, told, [H100]), cuda)["driver"]
    assert (found.verdict, found.found) == (verdict, says)


def test_too_old_a_driver_is_answered_with_the_first_that_would_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = looked(tmp_path, monkeypatch, nvidia_smi("550.54.15", "12.4", [H100]))
    assert found["driver"].do == "a driver from 580 on, or a torch built for its CUDA"


def test_an_old_driver_on_which_torch_starts_is_noted_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = looked(tmp_path, monkeypatch, nvidia_smi("550.54.15", "12.4", [H100] * 4), started=True)
    assert [check.verdict for check in found.values()] == ["ok", "warning", "ok"]


def test_where_nvidia_smi_is_of_no_use_nvml_tells_of_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = looked(tmp_path, monkeypatch, "exit 9", driver="580.82.07", driver_cuda=13000)
    assert [check.verdict for check in found.values()] == ["warning", "ok", "ok"]


def test_what_nvml_tells_counts_more_than_the_head_of_nvidia_smi(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = looked(tmp_path, monkeypatch, nvidia_smi("580.1", "12.4", [H100]), driver="580.82.07", driver_cuda=13010)
    assert found["driver"].found == "580.82.07 (CUDA 13.1), torch's CUDA 13.0"


def test_a_card_in_slices_may_keep_its_memory_to_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = looked(tmp_path, monkeypatch, nvidia_smi("580.82.07", "13.0", ["NVIDIA H100, [N/A]"]))
    assert found["GPU"].found == "1 x NVIDIA H100 (memory unknown)"


def test_cards_that_torch_does_not_see_are_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = nvidia_smi("580.82.07", "13.0", [H100])
    assert looked(tmp_path, monkeypatch, script, gpus=[])["GPUs in torch"].found == "torch sees no GPU"
    fails = looked(tmp_path, monkeypatch, script, started_problem="RuntimeError: unknown error")["GPUs in torch"]
    assert (fails.verdict, fails.found) == ("error", "RuntimeError: unknown error")


def test_cards_hidden_from_torch_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = looked(tmp_path, monkeypatch, nvidia_smi("580.82.07", "13.0", [H100] * 8))["GPUs in torch"]
    assert (found.verdict, found.found) == ("warning", "4, the smallest with 79.0 GiB, of 8")


def test_a_machine_without_a_driver_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = looked(tmp_path, monkeypatch, None, gpus=[])
    assert [(check.check, check.verdict) for check in found.values()] == [("GPU", "warning")]


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (GARBAGE, "cannot tell: an answer that makes no sense"),
        (HANG, "cannot tell: nvidia-smi did not end within 0.3 s"),
        (
            "echo NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver.; exit 9",
            "cannot tell: nvidia-smi ended with 9, saying: "
            "NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver.",
        ),
        (
            "echo 'No devices were found' >&2; exit 6",
            "cannot tell: nvidia-smi ended with 6, saying: No devices were found",
        ),
    ],
)
def test_an_nvidia_smi_that_is_of_no_use_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, says: str
) -> None:
    monkeypatch.setattr(system, "LIMIT_S", 0.3 if script == HANG else 20)
    [only] = looked(tmp_path, monkeypatch, script).values()
    assert (only.check, only.verdict, only.found) == ("GPU", "warning", says)


@pytest.mark.gpu
def test_the_cards_of_this_machine_are_told() -> None:
    found = {check.check: check for check in gpu.checks(torch_facts())}
    assert set(found) == {"GPU", "driver", "GPUs in torch"}
    assert found["GPUs in torch"].verdict in ("ok", "warning"), found
