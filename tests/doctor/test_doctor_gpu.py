"""The driver and the GPUs are judged against torch's CUDA. No GPU is here: nvidia-smi and NVML are fakes."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from faked_tools import GARBAGE, HANG, nvidia_smi, place

from multicard.core import system
from multicard.core.facts import MARK
from multicard.core.system import Answer
from multicard.doctor import checks, gpu
from multicard.doctor.checks import Check, torch_facts

H100 = "NVIDIA H100 80GB HBM3, 81559"
OF_ITS_TIME = nvidia_smi("580.82.07", "13.0", [H100] * 4)
GIB = 1024**3
HUNG = "python did not end within 120 s"

Look = Callable[..., dict[str, Check]]


@pytest.fixture
def look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Look:
    """Give checks with a fake nvidia-smi, None for none, and such facts besides four GPUs that torch sees."""

    def looked(
        script: str | None = OF_ITS_TIME, visible: str | None = None, cuda: str | None = "13.0", **facts: Any
    ) -> dict[str, Check]:
        folder = tmp_path / f"tools{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        fake = place(folder, monkeypatch, "nvidia-smi")
        if script:
            fake("nvidia-smi", script)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        seen = {"gpus": [["H100", 79 * GIB, "unknown"]] * 4}
        return {check.check: check for check in gpu.checks({"torch": "2.11.0", "cuda": cuda} | seen | facts)}

    return looked


def of_nvml(index: int, instances: list[str] | None = None) -> dict[str, Any]:
    memory = 81559 * 1024**2
    return {"index": index, "uuid": f"GPU-{index}", "name": "H100", "memory_bytes": memory, "instances": instances}


def by_nvml(*gpus: dict[str, Any]) -> dict[str, Any]:
    return {"driver": "580.82.07", "driver_cuda": 13000, "started": True, "nvml_gpus": list(gpus)}


def judged(check: Check) -> tuple[str, str]:
    return check.verdict, check.found


def test_cards_with_a_driver_of_their_time_are_fine(look: Look) -> None:
    found = look()
    assert found["GPU"].found == "4 x NVIDIA H100 80GB HBM3 (80 GiB)"
    assert found["driver"].found == "580.82.07 (CUDA 13.0), torch's CUDA 13.0"
    assert found["GPUs in torch"].found == "4, the smallest with 79.0 GiB"
    assert {check.verdict for check in found.values()} == {"ok"}
    # One in slices may keep its memory to itself.
    in_slices = look(nvidia_smi("580.82.07", "13.0", ["NVIDIA H100, [N/A]"]))
    assert in_slices["GPU"].found == "1 x NVIDIA H100 (memory unknown)"


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
    look: Look, driver: str, told: str, cuda: str | None, verdict: str, says: str
) -> None:
    found = look(nvidia_smi(driver, told, [H100]), cuda=cuda)["driver"]
    assert judged(found) == (verdict, says)
    assert "too old" not in says or found.do == "a driver from 580 on, or a torch built for its CUDA"


def test_what_torch_and_nvml_tell_counts_more_than_nvidia_smi(look: Look) -> None:
    found = look(nvidia_smi("550.54.15", "12.4", [H100] * 4), started=True)
    assert [check.verdict for check in found.values()] == ["ok", "warning", "ok"]
    found = look("exit 9", driver="580.82.07", driver_cuda=13000)
    assert [check.verdict for check in found.values()] == ["warning", "ok", "ok"]
    found = look(nvidia_smi("580.1", "12.4", [H100]), driver="580.82.07", driver_cuda=13010)
    assert found["driver"].found == "580.82.07 (CUDA 13.1), torch's CUDA 13.0"


# What CUDA makes of CUDA_VISIBLE_DEVICES on 8 GPUs (CUDA C++ Programming Guide, "CUDA Environment Variables"): entries
# before the first that is not there.
@pytest.mark.parametrize(
    ("visible", "seen", "verdict", "says"),
    [
        ("0,1,2,3", 4, "warning", "4, the smallest with 79.0 GiB (CUDA_VISIBLE_DEVICES=0,1,2,3), of 8: 0, 1, 2, 3"),
        ("GPU-1", 1, "warning", "1, the smallest with 79.0 GiB (CUDA_VISIBLE_DEVICES=GPU-1), of 8: 1"),
        ("0,1,8,3", 2, "error", "2, but 4 named in CUDA_VISIBLE_DEVICES=0,1,8,3"),
        ("", 0, "error", "torch sees no GPU (CUDA_VISIBLE_DEVICES=)"),
        (None, 4, "error", "4, the smallest with 79.0 GiB, of 8: 0, 1, 2, 3"),  # nothing hides the others
    ],
)
def test_gpus_in_torch_are_compared_with_those_named_and_those_listed(
    look: Look, visible: str | None, seen: int, verdict: str, says: str
) -> None:
    first = 1 if visible == "GPU-1" else 0
    gpus = [["H100", 79 * GIB, str(first + index)] for index in range(seen)]
    facts = by_nvml(*[of_nvml(index) for index in range(8)]) | {"gpus": gpus}
    found = look(nvidia_smi("580.82.07", "13.0", [H100] * 8), visible, **facts)
    assert judged(found["GPUs in torch"]) == (verdict, says)


def test_cards_that_torch_does_not_see_or_start_are_wrong(look: Look) -> None:
    assert judged(look(gpus=[])["GPUs in torch"]) == ("error", "torch sees no GPU")
    for fact in ("started_problem", "unanswered"):
        assert judged(look(**{fact: "RuntimeError: unknown"})["GPUs in torch"]) == ("error", "RuntimeError: unknown")


def test_a_partitioned_gpu_is_no_place_for_runs_on_several_devices(look: Look) -> None:
    facts = by_nvml(of_nvml(0, instances=["MIG-a", "MIG-b"]), of_nvml(1))
    script = nvidia_smi("580.82.07", "13.0", [H100] * 2)
    found = look(script, **facts | {"gpus": [["H100 MIG 1g.10gb", 9 * GIB, "a"]]})
    assert "partitioned (MIG), instances: 2" in found["GPU"].found
    assert (found["MIG"].verdict, found["MIG"].found.partition(";")[0]) == ("warning", "partitioned: GPU 0")
    assert (found["GPUs in torch"].verdict, found["GPUs in torch"].found[-4:]) == ("warning", "of 2")


def test_a_gpu_that_fell_off_the_bus_is_an_error(look: Look) -> None:
    facts = by_nvml(of_nvml(0), {"index": 1, "problem": "GPU is lost"}) | {"gpus": [["H100", 79 * GIB, "0"]]}
    found = look(nvidia_smi("580.82.07", "13.0", [H100]), **facts)
    assert found["GPUs that do not answer"].found == "GPU 1: GPU is lost"
    assert {found[name].verdict for name in ("GPUs that do not answer", "nvidia-smi", "GPUs in torch")} == {"error"}


def test_parts_of_the_driver_that_differ_are_an_error_and_torch_is_asked_all_the_same(
    look: Look, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # nvidia-smi's words and exit code where the driver was updated under a loaded kernel module (NVML error 18).
    said = "echo 'Failed to initialize NVML: Driver/library version mismatch'; echo 'NVML library version: 550.90'"
    nvml = "NVMLError_LibRmVersionMismatch: RM has detected an NVML/RM version mismatch."
    why = "RuntimeError: Unexpected error from cudaGetDeviceCount()"
    monkeypatch.setattr(gpu, "KERNEL_MODULE", tmp_path / "version")
    (tmp_path / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu Feb 22\n")
    for script, facts in ((f"{said}; exit 18", {}), ("exit 9", {"nvml_problem": nvml})):
        found = look(script, gpus=[], cuda_init_problem=why, **facts)
        assert found["driver"].verdict == "error"
        assert "Driver/library version mismatch" in found["driver"].found
        assert "kernel module is 550.54.14" in found["driver"].found
        assert ("libraries are 550.90" in found["driver"].found) == (script != "exit 9")
        assert judged(found["GPUs in torch"]) == ("error", f"torch sees no GPU: {why}")


def test_facts_known_before_a_hang_are_kept_and_a_dali_that_crashes_is_no_fault_of_the_gpus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = f'{MARK}{{"asking": "torch"}}\n{MARK}{{"torch": "2.11.0"}}\nnoise\n{MARK}{{"asking": "gpus"}}'
    monkeypatch.setattr(checks, "ask", lambda *_: Answer(said, HUNG))
    assert torch_facts() == {"asking": "gpus", "torch": "2.11.0", "unanswered": f"{HUNG}, asked for gpus"}
    facts = [{"torch": "2.11.0"}, {"gpus": [["H100", 1, "a"]]}, {"started": True}, {"asking": "dali"}]
    output = "\n".join(MARK + json.dumps(fact) for fact in facts)
    monkeypatch.setattr(checks, "ask", lambda *_: Answer(output, "python ended with -11, saying: nothing"))
    assert torch_facts()["dali_problem"] == "python ended with -11, saying: nothing"
    assert "unanswered" not in torch_facts()


@pytest.mark.slow
def test_an_nvml_that_ends_the_process_leaves_what_torch_is_built_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pynvml.py").write_text("import os\n\ndef nvmlInit():\n    os._exit(7)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(checks, "TORCH_LIMIT_S", 1200.0)
    facts = torch_facts()
    assert (facts["torch"], facts["cuda"]) == (torch.__version__, torch.version.cuda)
    assert facts["unanswered"].startswith("python ended with 7")
    assert facts["unanswered"].endswith(", asked for nvml")
    assert "torch_problem" not in facts


def test_a_machine_without_a_driver_is_noted(look: Look) -> None:
    found = look(None, gpus=[])
    assert [(check.check, check.verdict) for check in found.values()] == [("GPU", "warning")]


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (GARBAGE, "an answer that makes no sense"),
        (HANG, "nvidia-smi did not end within 0.3 s"),
        ("echo 'No devices were found' >&2; exit 6", "nvidia-smi ended with 6, saying: No devices were found"),
    ],
)
def test_an_nvidia_smi_that_is_of_no_use_is_one_line(
    look: Look, monkeypatch: pytest.MonkeyPatch, script: str, says: str
) -> None:
    monkeypatch.setattr(system, "LIMIT_S", 0.3 if script == HANG else 20)
    gpus, in_torch = look(script).values()
    assert (gpus.check, *judged(gpus)) == ("GPU", "warning", f"cannot tell: {says}")
    assert (in_torch.check, in_torch.verdict) == ("GPUs in torch", "ok")


@pytest.mark.gpu
def test_the_cards_of_this_machine_are_told() -> None:
    found = {check.check: check for check in gpu.checks(torch_facts())}
    assert set(found) >= {"GPU", "driver", "GPUs in torch"}
    assert found["GPUs in torch"].verdict in ("ok", "warning"), found
