"""Which message each communication kernel carries. Bandwidths are those of nccl-tests, doc/PERFORMANCE.md, by hand."""

from pathlib import Path
from typing import Any

import pytest

from communicating import Call, Launched, NcclCall, nccl_export, note, pytorch_rank
from multicard.trace.files import open_trace
from multicard.trace.tables import activity_tables

Rows = list[dict[str, Any]]
GENERIC = "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)"
SEND_RECEIVE = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"


def tables_of(path: Path) -> dict[str, Rows]:
    return activity_tables([open_trace(path)], only=["collectives", "message_sizes"]).rows


def by_size(rows: Rows, *names: str) -> dict[int, tuple[Any, ...]]:
    return {row["size_bytes"]: tuple(row[name] for name in names) for row in rows}


def test_a_kernel_of_pytorch_carries_the_message_noted_on_it_whatever_the_order(tmp_path: Path) -> None:
    # Launched in turn, the large message of one group first, but run in the other order.
    large, small = note("allreduce", 100_000_000, 2, "TP"), note("allreduce", 1000, 2, "DP")
    calls: list[Call] = []
    for step in range(10):
        calls.append(Call(100_000 * step + 30_000, 20_000, large, stream=20))
        calls.append(Call(100_000 * step + 1_000, 100, small, stream=21))
    rows = tables_of(pytorch_rank(tmp_path / "t.json", calls))["message_sizes"]
    found = by_size(rows, "group", "calls", "total_s", "ranks")
    assert found == {1000: ("DP", 10, 0.001, 2), 100_000_000: ("TP", 10, 0.2, 2)}
    # Among 2 ranks bus and algorithm bandwidth are the same: 100 MB in 20 ms.
    rates = by_size(rows, "bus_bandwidth_bytes_per_s")
    assert rates == {1000: (pytest.approx(10e6),), 100_000_000: (pytest.approx(5.0e9),)}


def test_the_collective_that_the_event_names_decides_over_the_name_of_the_kernel(tmp_path: Path) -> None:
    reduced = [note("allreduce", size, 4) for size in (4_000_000, 4_000_000, 2_000_000, 2_000_000)]
    gathered = [note("_allgather_base", 1_000_000, 4)] * 2
    calls = [Call(100 * i, 10, notes, GENERIC) for i, notes in enumerate([*reduced, *gathered])]
    calls += [Call(100 * i, 10, note("all_to_allv", 2_000_000, 8), SEND_RECEIVE) for i in range(6, 10)]
    rows = {row["collective"]: row for row in tables_of(pytorch_rank(tmp_path / "t.json", calls))["collectives"]}
    names = ("calls", "messages", "message_bytes", "ranks")
    assert {kind: tuple(row[name] for name in names) for kind, row in rows.items()} == {
        "all_reduce": (4, 4, 12_000_000, 4),
        "all_gather": (2, 2, 2_000_000, 4),
        "all_to_all": (4, 4, 8_000_000, 8),
    }
    assert rows["all_reduce"]["bus_bandwidth_bytes_per_s"] == pytest.approx(12e6 * 1.5 / 40e-6)
    assert rows["all_to_all"]["bus_bandwidth_bytes_per_s"] == pytest.approx(2e6 * 7 / 8 / 10e-6)
    # To nccl-tests the size of an all-gather is that of all ranks together: 4 MB each time, of which links carry 3/4.
    assert rows["all_gather"]["bus_bandwidth_bytes_per_s"] == pytest.approx(4e6 * 3 / 4 / 10e-6)


def test_a_kernel_without_a_message_counts_without_size(tmp_path: Path) -> None:
    calls = [Call(0, 10, note("allreduce", 1_000_000, 2)), Call(100, 10, note("allreduce", 1_000_000, 2))]
    calls += [Call(200, 1000, {}), Call(2000, 1000, note("allreduce", 1_000_000, 2) | {"dtype": "unheard of"})]
    [row] = tables_of(pytorch_rank(tmp_path / "t.json", calls))["collectives"]
    assert (row["calls"], row["messages"], row["message_bytes"]) == (4, 2, 2_000_000)
    assert row["bus_bandwidth_bytes_per_s"] == pytest.approx(2e6 / 20e-6)  # of those two alone


def test_a_kernel_of_nsys_carries_the_message_of_the_call_that_launched_it(tmp_path: Path) -> None:
    calls = [NcclCall(100, 190, 7, 1000), NcclCall(200, 290, 8, 9000), NcclCall(100, 290, 9, 5, thread=2)]
    # The first to be launched is the last to run; a third is launched by another thread at the same time.
    kernels = [Launched(150, 5000, 7000, 20), Launched(250, 400, 500, 21), Launched(151, 300, 301, 22, thread=2)]
    rows = tables_of(nccl_export(tmp_path / "t.sqlite", calls, kernels, {7: 2, 8: 4, 9: 2}))["message_sizes"]
    found = by_size(rows, "group", "ranks", "total_s")
    assert found == {1000: ("0x7", 2, 2e-6), 9000: ("0x8", 4, 1e-7), 5: ("0x9", 2, 1e-9)}


def test_kernels_launched_at_the_end_of_a_group_of_calls_are_matched_by_order_in_their_communicator(
    tmp_path: Path,
) -> None:
    # One call of each communicator launches at once, which shows its stream; two more of each launch at 600.
    calls = [NcclCall(100, 190, 7, 1000), NcclCall(200, 290, 8, 9000)]
    calls += [NcclCall(500, 510, 7, 2000), NcclCall(520, 530, 8, 8000)]
    calls += [NcclCall(540, 550, 7, 3000), NcclCall(560, 570, 8, 7000)]
    kernels = [Launched(150, 300, 301, 20), Launched(250, 400, 404, 21)]
    kernels += [Launched(600, 700, 702, 20), Launched(601, 705, 708, 20)]
    kernels += [Launched(602, 650, 655, 21), Launched(603, 660, 666, 21)]
    rows = tables_of(nccl_export(tmp_path / "t.sqlite", calls, kernels, {7: 2, 8: 2}))["message_sizes"]
    durations = {size: round(total_s * 1e9) for size, (total_s,) in by_size(rows, "total_s").items()}
    assert durations == {1000: 1, 2000: 2, 3000: 3, 9000: 4, 8000: 5, 7000: 6}


def test_without_launches_the_calls_of_two_communicators_are_not_guessed_from_their_order(tmp_path: Path) -> None:
    calls = [NcclCall(100, 190, 7, 1000), NcclCall(200, 290, 8, 9000)]
    kernels = [Launched(None, 5000, 7000, 20), Launched(None, 400, 500, 21)]
    path = nccl_export(tmp_path / "two.sqlite", calls, kernels, {7: 2, 8: 2})
    found = activity_tables([open_trace(path)], only=["collectives", "message_sizes"])
    assert "message_sizes" in found.absent
    assert [(row["calls"], row["messages"]) for row in found.rows["collectives"]] == [(2, None)]
    # Those of one communicator run in the order of its calls.
    one = [call._replace(communicator=7) for call in calls]
    rows = tables_of(nccl_export(tmp_path / "one.sqlite", one, kernels, {7: 2}))["message_sizes"]
    assert {size: round(total_s * 1e9) for size, (total_s,) in by_size(rows, "total_s").items()} == {
        1000: 100,
        9000: 2000,
    }


def test_calls_and_kernels_that_the_capture_cut_off_have_no_partner(tmp_path: Path) -> None:
    # The first kernel was launched before the capture began; the last call launched after it ended.
    calls = [NcclCall(100, 190, 7, 1000), NcclCall(200, 290, 7, 2000), NcclCall(900, 990, 7, 4000)]
    kernels = [Launched(None, 50, 99, 20), Launched(None, 300, 303, 20), Launched(None, 400, 405, 20)]
    found = tables_of(nccl_export(tmp_path / "t.sqlite", calls, kernels, {7: 2}))
    durations = {size: round(total_s * 1e9) for size, (total_s,) in by_size(found["message_sizes"], "total_s").items()}
    assert durations == {1000: 3, 2000: 5}
    assert [(row["calls"], row["messages"]) for row in found["collectives"]] == [(3, 2)]


def test_the_bytes_of_a_call_that_launched_several_kernels_are_not_those_of_each(tmp_path: Path) -> None:
    calls = [NcclCall(100, 190, 7, 1000), NcclCall(200, 290, 7, 2000)]
    kernels = [Launched(110, 300, 303, 20), Launched(210, 400, 405, 20), Launched(220, 410, 417, 20)]
    found = tables_of(nccl_export(tmp_path / "t.sqlite", calls, kernels, {7: 2}))
    assert list(by_size(found["message_sizes"])) == [1000]
    assert [(row["calls"], row["messages"]) for row in found["collectives"]] == [(3, 1)]
