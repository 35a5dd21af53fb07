"""Which configuration counts of those that differ only in how their runs are observed."""

import pytest

from multicard.analysis.claim_limits import job_of
from multicard.analysis.evidence import Configuration, Provenance
from multicard.analysis.observation import observed_once

NSYS = {"profiler": "nsys", "profiled_steps": 10}
NONE, LONG = NSYS | {"profiler": "none"}, NSYS | {"profiled_steps": 30}


def chosen(*entries: tuple[str, dict[str, object], int, bool]) -> list[int]:
    """Entries are a job, how it is observed, its blocks, and whether it may be judged."""
    sides = [[Configuration({"workload": "vision", **how}, Provenance(), ())] for _, how, _, _ in entries]
    jobs, _, blocks, judged = zip(*entries, strict=True)
    return observed_once(sides, jobs, blocks, judged)


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        pytest.param([("a", NSYS, 3, True), ("b", NONE, 3, True)], [0, 1], id="different jobs count both"),
        pytest.param([("a", NSYS, 5, False), ("a", NONE, 2, True)], [1], id="one that may be judged"),
        pytest.param(
            [("a", NONE, 5, True), ("a", NSYS, 3, True), ("b", NSYS, 3, True)], [1, 2], id="as most are observed"
        ),
        pytest.param([("a", NSYS, 3, True), ("a", NONE, 5, True)], [1], id="the one with the most blocks"),
        pytest.param([("a", LONG, 3, True), ("a", NSYS, 3, True)], [1], id="the one with the most defaults"),
    ],
)
def test_of_a_job_counts(entries: list[tuple[str, dict[str, object], int, bool]], expected: list[int]) -> None:
    assert chosen(*entries) == expected
    # Not by the order of the runs.
    turned = chosen(*entries[::-1])
    assert sorted(len(entries) - 1 - index for index in turned) == expected


def test_the_profiler_that_was_used_is_part_of_how_a_run_is_observed() -> None:
    nsys, none, other = (
        Configuration({"workload": "vision", **NSYS}, Provenance(versions=versions), ())
        for versions in ("torch 2.11.0, profiler nsys", "torch 2.11.0, profiler none", "torch 2.10.0, profiler nsys")
    )
    assert job_of(nsys) == job_of(none) != job_of(other)
    assert nsys.rest(["devices"]) != none.rest(["devices"])  # compared by another parameter, observed alike
