"""The GPUs and an all-reduce between them are judged. No GPU is here: what PyTorch says of them is stated."""

import json
from dataclasses import replace
from typing import Any

import pytest

from multicard.core.system import Answer
from multicard.machine import Check, gpus, probe
from multicard.machine.all_reduce import Exchange
from multicard.machine.facts import MARK
from multicard.machine.probe import TorchFacts, TorchGpu, facts_here
from multicard.programs.machine import Machine

GIB = 1024**3
HUNG = "python did not end within 120 s"


@pytest.fixture(autouse=True)
def exchanges(monkeypatch: pytest.MonkeyPatch) -> list[Exchange]:
    """How the all-reduces end that are tried, each of 100 GB/s unless it is told otherwise."""
    outcomes: list[Exchange] = []
    fine = Exchange(2, {10**8: [1e-3]})
    monkeypatch.setattr(gpus, "exchange", lambda *_: outcomes.pop(0) if outcomes else fine)
    return outcomes


def look(planned: int | None = None, hidden: str | None = None, **facts: Any) -> dict[str, Check]:
    """Checks of a machine with four GPUs that PyTorch can use, but for such facts."""
    fine = TorchFacts(
        torch="2.11.0", cuda="13.0", gpus=(TorchGpu("H100", 79 * GIB),) * 4, can_compute=True, has_nccl=True
    )
    found = replace(fine, **facts)
    machine = Machine(cpus=8, gpus=len(found.gpus) if planned is None else planned, hidden_gpus=hidden)
    return {check.check: check for check in gpus.checks(found, machine)}


def judged(check: Check) -> tuple[str, str]:
    return check.verdict, check.found


def test_gpus_that_pytorch_can_use_are_fine() -> None:
    found = look()
    assert judged(found["GPUs"]) == ("ok", "4 x H100, the smallest with 79.0 GiB")
    says = "100 GB/s bus bandwidth: 100 MB between 2 ranks in 1.00 ms"
    assert judged(found["all-reduce"]) == ("ok", says)


SLICE = "CUDA shows a process one slice of a partitioned GPU (MIG) and no other GPU; select whole GPUs"


@pytest.mark.parametrize(
    ("changes", "verdict", "says"),
    [
        ({"planned": 8}, "error", "4 x H100, the smallest with 79.0 GiB; runs are planned for 8, as nvidia-smi lists"),
        ({"hidden": SLICE}, "warning", "4 x H100, the smallest with 79.0 GiB"),
        ({"gpus": ()}, "warning", "none found"),
        ({"gpus": (), "planned": 4}, "error", "torch sees none"),
        ({"gpus": (), "planned": 4, "cuda": None}, "error", "torch sees none: it is built for CPUs only"),
        ({"gpus": (), "planned": 4, "cuda_problem": "driver too old"}, "error", "torch sees none: driver too old"),
        ({"gpus": (), "hidden": "nvidia-smi is missing"}, "error", "torch sees none: nvidia-smi is missing"),
        ({"compute_problem": "RuntimeError: unknown"}, "error", "RuntimeError: unknown"),
        ({"unanswered": HUNG}, "error", HUNG),
    ],
)
def test_gpus_in_torch_are_compared_with_those_that_runs_are_planned_for(
    changes: dict[str, Any], verdict: str, says: str
) -> None:
    assert judged(look(**changes)["GPUs"]) == (verdict, says)


def test_facts_known_before_a_hang_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    said = f'{MARK}{{"asking": "torch"}}\n{MARK}{{"torch": "2.11.0"}}\nnoise\n{MARK}{{"asking": "gpus"}}'
    monkeypatch.setattr(probe, "ask", lambda *_: Answer(said, HUNG))
    assert facts_here() == TorchFacts(torch="2.11.0", unanswered=f"{HUNG}, asked for gpus")
    facts = [{"torch": "2.11.0"}, {"gpus": [["H100", 1]]}, {"all": True}]
    monkeypatch.setattr(probe, "ask", lambda *_: Answer("\n".join(MARK + json.dumps(fact) for fact in facts)))
    assert facts_here() == TorchFacts(torch="2.11.0", gpus=(TorchGpu("H100", 1),))


STUCK = Exchange(2, problem="no end within 60 s: of 2 ranks 2 started, 0 connected, 0 measured")


@pytest.mark.parametrize(
    ("version", "verdict"),
    [("2.28.2", "ok"), ("2.28.3", "warning"), ("2.28.8", "warning"), ("2.28.9", "ok"), ("2.30.7", "ok"), (None, "ok")],
)
def test_versions_of_nccl_that_nvidia_advises_against_are_named(version: str | None, verdict: str) -> None:
    assert look(nccl=version, has_distributed=True)["NCCL"].verdict == verdict


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


@pytest.mark.parametrize("facts", [{"gpus": (TorchGpu("H100", 1),)}, {"can_compute": False}, {"has_nccl": False}])
def test_without_two_gpus_that_start_no_all_reduce_is_tried(facts: dict[str, Any]) -> None:
    assert "all-reduce" not in look(**facts)


@pytest.mark.gpu
def test_the_gpus_of_this_machine_are_told() -> None:
    found = {check.check: check for check in gpus.checks(facts_here(), Machine.here())}
    assert found["GPUs"].verdict in ("ok", "warning"), found
