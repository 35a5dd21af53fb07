"""How the all-reduce between the GPUs of a node is judged, without any."""

from typing import Any

import pytest

from multicard.doctor import all_reduce
from multicard.doctor.checks import Check
from multicard.limits.all_reduce import Exchange


def judged(monkeypatch: pytest.MonkeyPatch, outcomes: list[Exchange], **facts: Any) -> tuple[list[Check], list[Any]]:
    asked = []

    def fake(*arguments: Any) -> Exchange:
        asked.append(arguments)
        return outcomes[len(asked) - 1]

    monkeypatch.setattr(all_reduce, "exchange", fake)
    monkeypatch.delenv("NCCL_P2P_DISABLE", raising=False)
    seen = {"gpus": [["H100", 1, "a"], ["H100", 1, "b"]], "started": True, "distributed_nccl": True}
    return all_reduce.checks(seen | facts), asked


FINE = {10**8: [1e-3]}  # of two ranks: 100 GB/s
HUNG = "all 2 ranks hang in the first all-reduce: no end within 60 s"


def test_a_hang_is_put_down_to_peer_to_peer_where_it_passes_without(monkeypatch: pytest.MonkeyPatch) -> None:
    [found], asked = judged(monkeypatch, [Exchange(2, problem=HUNG, hung=True), Exchange(2, sizes=FINE)])
    assert found.verdict == "error"
    assert found.found == f"{HUNG}; with NCCL_P2P_DISABLE=1: 100 GB/s bus bandwidth: 100 MB between 2 ranks in 1.00 ms"
    assert "ACS" in found.do and "IOMMU" in found.do
    assert [arguments[4:] for arguments in asked] == [(), ({"NCCL_P2P_DISABLE": "1"},)]
    # Where it hangs without as well, something else is to be tried.
    [found], _ = judged(monkeypatch, [Exchange(2, problem=HUNG, hung=True)] * 2)
    assert (found.verdict, found.found) == ("error", f"{HUNG}; with NCCL_P2P_DISABLE=1 as well")
    assert "NCCL_DEBUG=INFO" in found.do


@pytest.mark.parametrize(("links", "time_s", "verdict"), [(12, 1e-3, "ok"), (12, 1e-2, "warning"), (0, 1e-2, "ok")])
def test_nvlinks_that_are_not_used_are_a_warning(
    monkeypatch: pytest.MonkeyPatch, links: int, time_s: float, verdict: str
) -> None:
    # 10 GB/s is less than the 15.75 GB/s of PCIe 3.0 x16, and a single NVLink has more.
    fact = [{"index": index, "nvlinks": links} for index in range(2)]
    [found], _ = judged(monkeypatch, [Exchange(2, sizes={10**8: [time_s]})], nvml_gpus=fact)
    assert found.verdict == verdict


@pytest.mark.parametrize("facts", [{"gpus": [["H100", 1, "a"]]}, {"started": None}, {"distributed_nccl": False}])
def test_without_two_gpus_that_start_nothing_is_tried(monkeypatch: pytest.MonkeyPatch, facts: dict[str, Any]) -> None:
    assert judged(monkeypatch, [], **facts) == ([], [])
