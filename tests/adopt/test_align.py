"""Ranks whose captures begin or end on other steps: what is compared of them are the same steps."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from adopted_traces import GEMM, UPDATE, Kernels, trace
from multicard.adopt.archive import gather
from multicard.adopt.table import read_table

# Milliseconds of iterations, which all ranks make together. A step is told from one update to the next, so of all but
# the last one of a capture.
LENGTHS = [10.0, 14.0, 9.0, 17.0, 11.0, 23.0, 12.0]
EVEN = [10.0] * 7
WITHOUT_COLLECTIVES: Kernels = ((1.0, GEMM), (2.0, GEMM), (4.0, UPDATE))


def common(folder: Path, pattern: str, devices: int) -> list[list[tuple[float, float]]]:
    """Start and duration in milliseconds of the steps of each rank that are taken as the same."""
    (folder / "ours.csv").write_text(f"trace,devices\n{pattern},{devices}\n")
    [found], errors = gather(read_table(folder / "ours.csv"), None)
    assert errors == []
    steps = [found.steps[owner] for owner in sorted(found.ranks, key=lambda owner: found.ranks[owner])]
    return [
        [(start / 1e6, (end - start) / 1e6) for start, end in zip(own.starts.tolist(), own.ends.tolist(), strict=True)]
        for own in steps
    ]


@pytest.mark.parametrize(
    ("captured", "shared"),
    [
        ([LENGTHS[1:], LENGTHS], LENGTHS[1:-1]),
        ([LENGTHS, LENGTHS[:-1]], LENGTHS[:-2]),
        ([LENGTHS[:-1], LENGTHS[1:]], LENGTHS[1:-2]),  # as many steps each, and not the same ones
        ([LENGTHS[:-1], LENGTHS, LENGTHS[1:]], LENGTHS[1:-2]),
    ],
)
def test_on_clocks_of_their_own_the_distances_of_collectives_tell_which_steps_are_the_same(
    captured: Sequence[Sequence[float]], shared: Sequence[float], tmp_path: Path
) -> None:
    for rank, lengths in enumerate(captured):
        trace(tmp_path / f"rank{rank}.json", lengths)  # each counts from its own beginning
    for own in common(tmp_path, "*.json", len(captured)):
        assert [duration for _, duration in own] == pytest.approx(shared)


@pytest.mark.parametrize("first", [EVEN, EVEN[1:]])
def test_on_one_clock_the_times_of_collectives_do(first: Sequence[float], tmp_path: Path) -> None:
    """Steps of equal length, of which one capture begins an iteration later: nothing but their times tells."""
    trace(tmp_path / "both.sqlite", first, EVEN[1:], begins=[0.0, 10.0])
    one, other = common(tmp_path, "both.sqlite", 2)
    assert one == other and len(one) == len(first) - 2


def test_ranks_without_collectives_are_compared_from_their_first_steps_on(tmp_path: Path) -> None:
    for rank, lengths in enumerate([LENGTHS, LENGTHS[1:]]):
        trace(tmp_path / f"rank{rank}.json", lengths, kernels=WITHOUT_COLLECTIVES)
    durations = [[duration for _, duration in own] for own in common(tmp_path, "*.json", 2)]
    assert durations == [pytest.approx(LENGTHS[:-2]), pytest.approx(LENGTHS[1:-1])]
