"""The driver, the GPUs and an all-reduce between them are judged. No GPU is here: NVML and nsys's like are fakes."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from multicard.core.facts import MARK
from multicard.core.system import Answer
from multicard.experiment.machine import Machine
from multicard.machine import gpus, probe
from multicard.machine.all_reduce import Exchange
from multicard.machine.checks import Check
from multicard.machine.probe import facts_here, of_gpu

GIB = 1024**3
HUNG = "python did not end within 120 s"
WELL = {
    "nvmlDeviceGetHandleByIndex": 7, "nvmlDeviceGetUUID": "GPU-7", "nvmlDeviceGetName": "H100",
    "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=80 << 30), "nvmlDeviceGetMigMode": [0, 0],
    "nvmlDeviceGetClockInfo": 210,
    "nvmlDeviceGetCurrentClocksEventReasons": 0x1, "nvmlDeviceGetTemperature": 31, "nvmlDeviceGetPowerUsage": 52_000,
    "nvmlDeviceGetEnforcedPowerLimit": 400_000, "nvmlDeviceGetPowerManagementDefaultLimit": 400_000,
}  # fmt: skip


class FakeNvml:
    """The module pynvml of one GPU; what it is not told, it does not support. Constants are those of nvml.h."""

    class NVMLError(RuntimeError):
        """Any error."""

    class NVMLError_NoPermission(NVMLError):  # noqa: N801
        """Error 4: this process may not talk to the GPU."""

    def __init__(self, **answers: Any):
        self._answers = WELL | answers

    def __getattr__(self, function: str) -> Any:
        def answer(*arguments: Any) -> Any:
            told = self._answers.get(function)
            told = told(*arguments) if callable(told) else told
            if told is None:
                raise self.NVMLError("Not Supported")
            return told

        return answer


def listed(count: int, **answers: Any) -> list[dict[str, Any]]:
    """What NVML tells of GPUs, the last of which answers otherwise."""
    return [of_gpu(FakeNvml(**(answers if index == count - 1 else {})), index) for index in range(count)]


@pytest.fixture(autouse=True)
def exchanges(monkeypatch: pytest.MonkeyPatch) -> list[Exchange]:
    """How the all-reduces end that are tried, each of 100 GB/s unless it is told otherwise."""
    outcomes: list[Exchange] = []
    fine = Exchange(2, {10**8: [1e-3]})
    monkeypatch.setattr(gpus, "exchange", lambda *_: outcomes.pop(0) if outcomes else fine)
    return outcomes


def look(planned: int | None = None, hidden: str | None = None, **facts: Any) -> dict[str, Check]:
    """Checks of a machine with four GPUs and a driver of their time, but for such facts."""
    facts = {
        "torch": "2.11.0", "cuda": "13.0", "driver": "580.82.07", "driver_cuda": 13000, "nvml_gpus": listed(4),
        "gpus": [["H100", 79 * GIB]] * 4, "started": True, "distributed_nccl": True,
    } | facts  # fmt: skip
    machine = Machine(cpus=8, gpus=len(facts["gpus"]) if planned is None else planned, hidden_gpus=hidden)
    return {check.check: check for check in gpus.checks(facts, machine)}


def judged(check: Check) -> tuple[str, str]:
    return check.verdict, check.found


def test_gpus_with_a_driver_of_their_time_are_fine() -> None:
    found = look()
    assert found["GPUs"].found == "4 x H100 (80 GiB)"
    assert found["driver"].found == "580.82.07 (CUDA 13.0), torch's CUDA 13.0"
    assert look(cuda=None)["driver"].verdict == "error"
    assert found["GPUs in torch"].found == "4, the smallest with 79.0 GiB"
    assert found["all-reduce"].found == "100 GB/s bus bandwidth: 100 MB between 2 ranks in 1.00 ms"
    assert {check.verdict for check in found.values()} == {"ok"}


@pytest.mark.parametrize(
    ("changes", "verdict", "says"),
    [
        ({"planned": 8}, "error", "4, the smallest with 79.0 GiB; runs are planned for 8, as nvidia-smi lists"),
        ({"hidden": "CUDA_VISIBLE_DEVICES hides them"}, "warning", "4, the smallest with 79.0 GiB, of 4"),
        ({"gpus": []}, "error", "torch sees no GPU"),
        ({"gpus": [], "cuda_init_problem": "unknown"}, "error", "torch sees no GPU: unknown"),
        ({"started_problem": "RuntimeError: unknown"}, "error", "RuntimeError: unknown"),
        ({"unanswered": HUNG}, "error", HUNG),
    ],
)
def test_gpus_in_torch_are_compared_with_those_that_runs_are_planned_for(
    changes: dict[str, Any], verdict: str, says: str
) -> None:
    assert judged(look(**changes)["GPUs in torch"]) == (verdict, says)


@pytest.mark.parametrize(
    ("facts", "verdict", "says"),
    [
        ({"nvml_gpus": listed(2, nvmlDeviceGetMigMode=[1, 1])}, "warning", "1 x H100 (80 GiB, partitioned (MIG)); a "),
        ({"nvml_gpus": listed(2, nvmlDeviceGetUUID=None)}, "error", "1 x GPU 1 that does not answer (Not Supported)"),
        ({"nvml_gpus": listed(1, nvmlDeviceGetMemoryInfo=None)}, "ok", "1 x H100 (memory unknown)"),
        ({"nvml_gpus": None, "nvml_problem": "NVMLError_DriverNotLoaded: Driver Not Loaded"}, "warning", "lists none"),
        ({"nvml_gpus": None, "nvml_problem": "an NVML/RM version mismatch."}, "warning", "version mismatch"),
        ({"nvml_gpus": None, "nvml_problem": "NVMLError_LibraryNotFound", "gpus": []}, "warning", "no NVIDIA driver"),
    ],
)
def test_gpus_and_drivers_that_cannot_be_used_are_named(facts: dict[str, Any], verdict: str, says: str) -> None:
    found = look(**facts)["GPUs"]
    assert (found.verdict, says in found.found) == (verdict, True), found.found


def test_facts_known_before_a_hang_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    said = f'{MARK}{{"asking": "torch"}}\n{MARK}{{"torch": "2.11.0"}}\nnoise\n{MARK}{{"asking": "gpus"}}'
    monkeypatch.setattr(probe, "ask", lambda *_: Answer(said, HUNG))
    assert facts_here() == {"asking": "gpus", "torch": "2.11.0", "unanswered": f"{HUNG}, asked for gpus"}
    facts = [{"torch": "2.11.0"}, {"gpus": [["H100", 1]]}, {"all": True}]
    monkeypatch.setattr(probe, "ask", lambda *_: Answer("\n".join(MARK + json.dumps(fact) for fact in facts)))
    assert "unanswered" not in facts_here()


@pytest.mark.slow
def test_an_nvml_that_ends_the_process_leaves_what_torch_is_built_for(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pynvml.py").write_text("import os\n\ndef nvmlInit():\n    os._exit(7)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(probe, "LIMIT_S", 1200.0)
    facts = facts_here()
    assert (facts["torch"], facts["cuda"]) == (torch.__version__, torch.version.cuda)
    assert facts["unanswered"].startswith("python ended with 7")
    assert facts["unanswered"].endswith(", asked for nvml")
    assert "torch_problem" not in facts


# Bits of nvml.h: 0x40 hardware thermal slowdown, 0x80 hardware power brake.
@pytest.mark.parametrize(
    ("answers", "says"),
    [
        (
            {"nvmlDeviceGetCurrentClocksEventReasons": 0x40, "nvmlDeviceGetTemperature": 91},
            "GPU 1: slowed down by thermal (hw_thermal_slowdown), 91 °C",
        ),
        (
            {"nvmlDeviceGetCurrentClocksEventReasons": None, "nvmlDeviceGetCurrentClocksThrottleReasons": 0x80},
            "GPU 1: slowed down by power brake (hw_power_brake_slowdown), 31 °C",
        ),
        ({"nvmlDeviceGetEnforcedPowerLimit": 250_000}, "GPU 1: power limit 250 W, by default 400 W, 31 °C"),
    ],
)
def test_a_gpu_that_is_held_back_is_a_warning(answers: dict[str, Any], says: str) -> None:
    assert judged(look(nvml_gpus=listed(2, **answers))["GPU clocks"]) == ("warning", says)


def test_what_nvml_does_not_tell_is_no_fault() -> None:
    nothing = dict.fromkeys(set(WELL) - {"nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID"})
    found = look(nvml_gpus=listed(1, **nothing))
    assert {check.verdict for check in found.values()} == {"ok"}


def test_gpus_that_a_cgroup_hides_from_a_job_are_none_of_its_own() -> None:
    # NVML counts them and then refuses to open them (nvml.h, nvmlDeviceGetCount_v2); those of others are no fault.
    def handle(index: int) -> int:
        if index in (0, 3):
            raise FakeNvml.NVMLError_NoPermission("Insufficient Permissions")
        return index

    shown = [of_gpu(FakeNvml(nvmlDeviceGetHandleByIndex=handle), index) for index in range(4)]
    assert [gpu and "problem" in gpu for gpu in shown] == [None, False, False, None]


STUCK = Exchange(2, problem="no end within 60 s: of 2 ranks 2 started, 0 connected, 0 measured")


def test_a_hang_is_put_down_to_peer_to_peer_where_it_passes_without(exchanges: list[Exchange]) -> None:
    exchanges += [STUCK]
    found = look()["all-reduce"]
    without = "with NCCL_P2P_DISABLE=1: 100 GB/s bus bandwidth: 100 MB between 2 ranks in 1.00 ms"
    assert judged(found) == ("error", f"{STUCK.problem}; {without}")
    assert "ACS" in found.do and "IOMMU" in found.do
    # Where it hangs without as well, something else is to be tried.
    exchanges += [STUCK, STUCK]
    found = look()["all-reduce"]
    assert judged(found) == ("error", f"{STUCK.problem}; with NCCL_P2P_DISABLE=1: {STUCK.problem}")
    assert "NCCL_DEBUG=INFO" in found.do


@pytest.mark.parametrize("facts", [{"gpus": [["H100", 1]]}, {"started": None}, {"distributed_nccl": False}])
def test_without_two_gpus_that_start_no_all_reduce_is_tried(facts: dict[str, Any]) -> None:
    assert "all-reduce" not in look(**facts)


@pytest.mark.gpu
def test_the_gpus_of_this_machine_are_told() -> None:
    found = {check.check: check for check in gpus.checks(facts_here(), Machine.here())}
    assert set(found) >= {"GPUs", "driver", "GPUs in torch"}
    assert found["GPUs in torch"].verdict in ("ok", "warning"), found
