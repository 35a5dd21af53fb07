"""What disturbed a run is said in words."""

from typing import Any

import numpy as np
import pytest

from multicard.results.conditions import disturbance
from multicard.runs.record import CpuUse, GpuConditions, GpuState, NodeConditions, RankRecord


def host(
    others: float | None = 0.0, stolen: float | None = 0.0, wall: float = 100.0, cpus: int | None = 2, **more: Any
) -> NodeConditions:
    return NodeConditions(others_cpu_s=others, stolen_cpu_s=stolen, wall_s=wall, usable_cpus=cpus, **more)


def gpu(*reasons: str, limit: float = 700.0) -> GpuConditions:
    state = GpuState(sm_clock_mhz=1700, temperature_c=60, power_limit_w=limit, default_power_limit_w=700.0)
    return GpuConditions(before=state, after=state, clock_reasons=reasons)


def on_rank(rank: int, conditions: GpuConditions | None) -> list[RankRecord]:
    """The ranks of a run, of which one has the conditions of its GPU."""
    return [RankRecord(rank=rank, gpu_conditions=(conditions,))]


@pytest.mark.parametrize(
    ("nodes", "ranks", "words"),
    [
        ([], [], None),
        ([None, host()], on_rank(0, None), None),
        ([host(None, None)], [], None),
        # Of up to ten CPUs, or of an unknown number, a tenth of one is the most that counts as undisturbed.
        ([host(others=10.0)], [], None),
        ([host(others=10.1, cpus=10)], [], "other processes: 0.1 CPUs"),
        ([host(others=10.1, cpus=None)], [], "other processes: 0.1 CPUs"),
        # Of more CPUs, 1% of them: 1.28 of 128, so 128 s of 100 s.
        ([host(others=128.0, stolen=127.0, cpus=128)], [], None),
        # Of two unlike nodes the small one was disturbed, though others used more of the large one.
        ([host(others=100.0, cpus=128), host(others=50.0)], [], "other processes: 0.5 CPUs"),
        ([host(others=160.0, stolen=25.0)], [], "other processes: 1.6 CPUs; hypervisor: 0.25 CPUs"),
        ([host(others=100.0)], [], "other processes: 1 CPU"),
        # Waiting for work and running at its own power limit are not throttling.
        ([], on_rank(0, gpu("gpu_idle", "sw_power_cap")), None),
        (
            [],
            on_rank(0, gpu("sw_power_cap", limit=400.0)),
            "GPU throttled (power limit of 400 W instead of 700 W): seen on rank 0",
        ),
        ([], on_rank(1, gpu("gpu_idle", "hw_power_brake_slowdown")), "GPU throttled (power brake): seen on rank 1"),
        ([], on_rank(3, gpu("sw_thermal_slowdown", "hw_thermal_slowdown")), "GPU throttled (thermal): seen on rank 3"),
    ],
)
def test_what_disturbed_a_run_in_words(
    nodes: list[NodeConditions | None], ranks: list[RankRecord], words: str | None
) -> None:
    assert disturbance(nodes, ranks) == words


def test_only_measured_steps_are_disturbed_where_they_were_metered() -> None:
    for run_s, steps_s, words in (
        (60.0, 0.0, None),  # before and after its measured steps, of 100 s
        (1.0, 2.0, "other processes: 0.2 CPUs"),  # of 10 s of these
        (1.0, None, None),
        (60.0, None, "other processes: 0.6 CPUs"),
    ):
        measured = None if steps_s is None else CpuUse(others_cpu_s=steps_s, stolen_cpu_s=0.0, wall_s=10.0)
        assert disturbance([host(others=run_s, measured_steps=measured)], []) == words


def test_what_ticks_of_the_clock_cannot_tell_disturbs_nothing() -> None:
    # Two CPUs idle or busy at random: the ticks of 1 s count as much busy time that was not, or miss as much that was.
    rng = np.random.default_rng(0)
    errors_s = 0.01 * (rng.binomial(200, 0.5, 10_000) - 100)
    marked = [disturbance([host(others=error_s, wall=1.0)], []) is not None for error_s in np.abs(errors_s)]
    assert 0 < np.mean(marked) < 0.006
