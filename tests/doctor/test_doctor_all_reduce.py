"""The all-reduce between the GPUs of a node: between two processes over gloo here, and its judgement without any."""

import json
from pathlib import Path
from typing import Any

import pytest

from multicard.doctor import all_reduce
from multicard.doctor.all_reduce import Exchange, exchange
from multicard.doctor.checks import Check
from multicard.doctor.probe import MARK
from multicard.launch.process import Ended

PATIENT_S = 1200.0  # on a busy machine two processes take long to import PyTorch
# Put before a rank's own program by Python itself. A rank that nothing ends goes on before PATIENT_S is over, with a
# wrong sum.
HANGS = """
import os, time
if os.environ.get("RANK") == "1":
    import torch.distributed
    torch.distributed.all_reduce = lambda *a, **k: time.sleep(600)
"""
SUMS_WRONGLY = """
import os
if os.environ.get("RANK"):
    import torch.distributed
    summed = torch.distributed.all_reduce
    def wrongly(tensor, *a, **k):
        summed(tensor, *a, **k)
        tensor.view(-1)[-1] += 1 if tensor.numel() > 1 else 0
    torch.distributed.all_reduce = wrongly
"""


@pytest.mark.slow
def test_two_processes_exchange_and_the_bus_bandwidth_is_that_of_nccl_tests() -> None:
    ended = exchange("cpu", 2, 1 << 20, PATIENT_S, start_s=PATIENT_S)
    assert (ended.problem, ended.hung) == (None, False)
    # doc/PERFORMANCE.md of nccl-tests: algbw * 2 (n - 1) / n, which is algbw for two ranks.
    assert ended.bus_bandwidth_bytes_per_s == pytest.approx((1 << 20) / ended.result["time_s"])
    assert "bus bandwidth: 1.05 MB between 2 ranks in " in ended.words()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "limit_s", "hung", "says"),
    [
        (HANGS, 3.0, True, "all 2 ranks hang in the first all-reduce: no end within 3 s"),
        (SUMS_WRONGLY, PATIENT_S, False, "ArithmeticError: 1 of 262144 sums are wrong"),
    ],
)
def test_a_hang_and_a_wrong_sum_are_told_as_what_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, limit_s: float, hung: bool, says: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(program)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    ended = exchange("cpu", 2, 1 << 20, limit_s, start_s=PATIENT_S)
    assert ended.hung == hung
    assert ended.problem.endswith(says)


def test_the_bus_bandwidth_of_four_ranks_is_one_and_a_half_of_bytes_over_time() -> None:
    assert Exchange(4, result={"bytes": 8000, "time_s": 0.001}).bus_bandwidth_bytes_per_s == pytest.approx(12e6)


def test_lines_of_two_ranks_that_are_mixed_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(*arguments: Any) -> Ended:
        done = [MARK + json.dumps({"rank": rank, "stage": "done", "time_s": 1.0 + rank, "bytes": 4}) for rank in (0, 1)]
        for line in ("a warning", f"{done[0]}{done[1]}", "", f'{MARK}{{"rank": 0, "sta'):
            arguments[4](line)
        return Ended(0, False, 1.0)

    monkeypatch.setattr(all_reduce, "run", fake)
    ended = exchange("cpu", 2, 4, 60.0)
    assert (ended.problem, ended.stages, ended.result["time_s"]) == (None, {"done": {0, 1}}, 2.0)


@pytest.mark.parametrize(
    ("failed_first", "hung", "problem"),
    [(True, False, "rank 1: RuntimeError: link down"), (False, True, "2 of 3 ranks (not 2) connected, and then hang")],
)
def test_what_came_first_is_told_a_failure_whose_process_does_not_end_or_a_hang_that_others_fail_of(
    monkeypatch: pytest.MonkeyPatch, failed_first: bool, hung: bool, problem: str
) -> None:
    failed = MARK + json.dumps({"rank": 1, "stage": "failed", "error": "RuntimeError: link down"})
    ended = [failed, "Timeout (0:00:05)!"]  # as faulthandler writes it, in each rank
    connected = [MARK + json.dumps({"rank": rank, "stage": "connected"}) for rank in (0, 1)]

    def fake(*arguments: Any) -> Ended:
        for line in connected + (ended if failed_first else ended[::-1]):
            arguments[4](line)
        return Ended(1, False, 5.0)

    monkeypatch.setattr(all_reduce, "run", fake)
    found = exchange("cpu", 3, 4, 5.0)
    assert found.hung == hung
    assert found.problem.startswith(problem)


def test_ranks_that_did_not_come_as_far_are_named() -> None:
    assert all_reduce._hang(Exchange(4, {"started": {0, 1, 3}}), 60.0) == (
        "3 of 4 ranks (not 2) hang in the first all-reduce: no end within 60 s"
    )
    assert all_reduce._hang(Exchange(2), 60.0) == "none of 2 ranks started in time"


def judged(monkeypatch: pytest.MonkeyPatch, outcomes: list[Exchange], **facts: Any) -> tuple[list[Check], list[Any]]:
    asked = []

    def fake(*arguments: Any) -> Exchange:
        asked.append(arguments)
        return outcomes[len(asked) - 1]

    monkeypatch.setattr(all_reduce, "exchange", fake)
    monkeypatch.delenv("NCCL_P2P_DISABLE", raising=False)
    seen = {"gpus": [["H100", 1, "a"], ["H100", 1, "b"]], "started": True, "distributed_nccl": True}
    return all_reduce.checks(seen | facts), asked


FINE = {"bytes": 10**8, "time_s": 1e-3}  # of two ranks: 100 GB/s
HUNG = "all 2 ranks hang in the first all-reduce: no end within 60 s"


def test_a_hang_is_put_down_to_peer_to_peer_where_it_passes_without(monkeypatch: pytest.MonkeyPatch) -> None:
    [found], asked = judged(monkeypatch, [Exchange(2, problem=HUNG, hung=True), Exchange(2, result=FINE)])
    assert found.verdict == "error"
    assert found.found == f"{HUNG}; with NCCL_P2P_DISABLE=1: 100 GB/s bus bandwidth: 100 MB between 2 ranks in 1.00 ms"
    assert "ACS" in found.do and "IOMMU" in found.do
    assert [arguments[4:] for arguments in asked] == [(), ({"NCCL_P2P_DISABLE": "1"},)]


def test_a_hang_with_and_without_peer_to_peer_is_answered_with_what_else_to_try(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    [found], _ = judged(monkeypatch, [Exchange(2, problem=HUNG, hung=True)] * 2)
    assert (found.verdict, found.found) == ("error", f"{HUNG}; with NCCL_P2P_DISABLE=1 as well")
    assert "NCCL_DEBUG=INFO" in found.do


@pytest.mark.parametrize(("links", "time_s", "verdict"), [(12, 1e-3, "ok"), (12, 1e-2, "warning"), (0, 1e-2, "ok")])
def test_nvlinks_that_are_not_used_are_a_warning(
    monkeypatch: pytest.MonkeyPatch, links: int, time_s: float, verdict: str
) -> None:
    # 10 GB/s is less than the 15.75 GB/s of PCIe 3.0 x16, and a single NVLink has more.
    fact = [{"index": index, "nvlinks": links} for index in range(2)]
    [found], _ = judged(monkeypatch, [Exchange(2, result=FINE | {"time_s": time_s})], nvml_gpus=fact)
    assert found.verdict == verdict


@pytest.mark.parametrize("facts", [{"gpus": [["H100", 1, "a"]]}, {"started": None}, {"distributed_nccl": False}])
def test_without_two_gpus_that_start_nothing_is_tried(monkeypatch: pytest.MonkeyPatch, facts: dict[str, Any]) -> None:
    assert judged(monkeypatch, [], **facts) == ([], [])
