"""A rank that is slower than the others: what they lose by it follows from what each rank computes."""

from pathlib import Path

import numpy as np
import pytest

from factories import Row, make_results, vision_runs
from multicard.answers.diagnoses.causes import causes_of
from rank_steps import FIRST, REPEATS, causes, noise, results_of, steps_of

STEPS = 100


def slow_since(step: int, slow_s: float, ranks: int = 2, scatter: float = 0.01) -> np.ndarray:
    """Forward passes of 10 ms, of the last rank `slow_s` longer from a step on, counted from 0."""
    forward_s = 0.010 * noise(step, STEPS, ranks, scatter)
    forward_s[step:, -1] += slow_s
    return forward_s


def test_a_rank_that_becomes_slow_is_told_with_its_step_and_what_the_others_lose(tmp_path: Path) -> None:
    # Rank 1 needs 15 ms more in 40 of 100 steps of 30 ms: 600 of 60 × 30 + 40 × 45 ms.
    repeats = [steps_of(at, slow_since(60, 0.015), 0.020 * np.ones((STEPS, 2))) for at in REPEATS]
    [found] = causes(results_of(tmp_path, repeats, 0.036))
    assert found.share == pytest.approx(600 / 3600, rel=0.03)
    assert found.evidence.startswith(f"rank 1 is the slowest in nearly all steps since step {FIRST + 60}: 25.")
    assert "in its forward pass, the others at most 10." in found.evidence
    assert found.evidence.endswith("(17% of the time)")
    assert found.remedy == "a device and CPUs for rank 1 that are as fast as the others', and no more work for it"


def test_a_rank_that_is_always_slow_may_be_as_much_slower_in_its_backward_pass(tmp_path: Path) -> None:
    # It computes 3 times as long: 45 and 90 ms in place of 15 and 30. The others wait 90 of 135 ms, of which 30 ms are
    # seen, and the rest is not.
    factors = noise(1, STEPS, 4, 0.01)
    factors[:, 2] = 3
    repeats = [steps_of(at, 0.015 * factors, 0.030 * factors) for at in REPEATS]
    [found] = causes(results_of(tmp_path, repeats, 0.135))
    assert found.share == pytest.approx(90 / 135, rel=0.03)
    assert found.evidence.startswith("rank 2 is the slowest in nearly all steps: 45.0 ms in its forward pass")
    assert "(22% of the time), or " in found.evidence
    assert "if its backward pass is as much slower" in found.evidence


def test_work_of_one_rank_outside_of_phases_is_waited_for_exactly(tmp_path: Path) -> None:
    # Rank 0 logs for 10 ms in each step: 10 of 40 ms.
    outside_s = np.tile([0.010, 0.0], (STEPS, 1))
    passes_s = (0.010 * noise(1, STEPS, 2, 0.01), 0.020 * np.ones((STEPS, 2)))
    [found] = causes(results_of(tmp_path, [steps_of(at, *passes_s, outside_s) for at in REPEATS], 0.040))
    assert found.share == pytest.approx(0.25, rel=0.03)
    assert "10.0 ms outside of forward, backward and optimizer, the others at most 0 s" in found.evidence
    assert found.remedy.startswith("on rank 0 no more work in each step than on the others, such as logging")


def test_a_rank_with_more_samples_is_to_have_as_many_as_the_others(tmp_path: Path) -> None:
    samples = np.tile([64, 64, 96], (STEPS, 1))
    work_s = samples / 64 * noise(2, STEPS, 3, 0.01)
    steps = [steps_of(at, 0.010 * work_s, 0.020 * work_s, samples=samples) for at in REPEATS]
    [found] = causes(results_of(tmp_path, steps, 0.045))
    assert found.remedy == "as many samples on rank 2 as on the others"
    assert found.share == pytest.approx(1 / 3, rel=0.05)


@pytest.mark.parametrize("scatter", [0.02, 0.2, 0.5])
@pytest.mark.parametrize("ranks", [2, 4])
def test_noise_makes_no_rank_slow(ranks: int, scatter: float, tmp_path: Path) -> None:
    # A slow fluctuation in addition, which is alike on all ranks.
    wave = 1 + 0.3 * np.sin(np.arange(STEPS) / 8)[:, None]
    repeats = [
        steps_of(at, 0.010 * wave * noise(at, STEPS, ranks, scatter), 0.020 * noise(9 + at, STEPS, ranks, scatter))
        for at in REPEATS
    ]
    assert causes(results_of(tmp_path, repeats, 0.030)) == []


def test_a_rank_that_is_slow_in_one_of_three_repeats_is_none(tmp_path: Path) -> None:
    repeats = [steps_of(at, slow_since(0, 0.015 if at == 1 else 0.0), 0.020 * noise(at, STEPS)) for at in REPEATS]
    assert causes(results_of(tmp_path / "one", repeats, 0.036)) == []
    repeats[2] = steps_of(2, slow_since(0, 0.015), 0.020 * noise(2, STEPS))
    [found] = causes(results_of(tmp_path / "two", repeats, 0.040))
    assert "rank 1 is the slowest in nearly all steps in 2 of 3 repeats" in found.evidence


def test_ranks_that_do_not_wait_for_each_other_lose_nothing(tmp_path: Path) -> None:
    # Each rank's steps take what it computes, as without an exchange of gradients.
    forward_s = slow_since(0, 0.015)
    rows = steps_of(0, forward_s, 0.020 * np.ones((STEPS, 2)))
    for row in rows:
        row["backward_s"] = 0.020
        row["duration_s"] = row["forward_s"] + 0.020
    assert causes(results_of(tmp_path, [rows], 0.040)) == []


def test_collectives_within_forward_passes_are_waits_and_no_own_work(tmp_path: Path) -> None:
    # Sharded weights are gathered in forward passes, which are longer on the rank that waits.
    repeats = [steps_of(at, slow_since(0, 0.015), 0.020 * np.ones((STEPS, 2))) for at in REPEATS]
    gathers = [
        {
            "at": at, "rank": rank, "kind": "collective", "function": "all_gather_into_tensor", "phase": "forward",
            "calls": 1, "seconds": 0.001, "bytes": 8, "steps": STEPS, "first_steps": "11",
        }
        for at in REPEATS
        for rank in (0, 1)
    ]  # fmt: skip
    assert causes(results_of(tmp_path, repeats, 0.045, host_work=gathers)) == []


def test_clocks_of_the_slow_rank_are_told_if_they_were_recorded(tmp_path: Path) -> None:
    rows = vision_runs(
        100.0, (1.0,), devices=2, iteration_time_s=0.045, mean_iteration_time_s=0.045,
        disturbance="GPU throttled (thermal): seen on rank 1",
    )  # fmt: skip
    steps = steps_of(0, slow_since(0, 0.015), 0.020 * np.ones((STEPS, 2)))
    results = make_results(tmp_path, rows, tables={"steps": steps})
    [found] = causes_of(results.configurations()[0], results)
    assert found.evidence.endswith("; also recorded: GPU throttled (thermal): seen on rank 1")
    assert "`CUDA_VISIBLE_DEVICES` in another order" in found.remedy


@pytest.mark.parametrize(("slow_s", "count"), [(0.008, 0), (0.020, 1)])
def test_on_cpus_that_others_use_a_rank_is_slow_only_if_it_takes_more_than_twice_as_long(
    slow_s: float, count: int, tmp_path: Path
) -> None:
    # Another process on the CPU of rank 1 may be the reason of 18 in place of 10 ms, but not of 30.
    rows = steps_of(0, slow_since(0, slow_s), 0.020 * np.ones((STEPS, 2)))
    results = results_of(tmp_path, [rows], 0.040, disturbance="other processes: 1.4 CPUs")
    found = causes(results)
    assert len(found) == count
    assert all(cause.evidence.endswith("; also recorded: other processes: 1.4 CPUs") for cause in found)


def test_traces_of_gpus_name_the_late_rank_where_no_phase_was_recorded(tmp_path: Path) -> None:
    # In 10 profiled steps of 0.1 s, rank 1 is last in 95 of 100 collectives, and rank 0 waits 0.2 s of 1 s.
    shared: Row = {"at": 0, "report": "a", "collective": "all_reduce", "calls": 100, "together_s": 0.1, "group": "0"}
    stragglers = [
        shared | {"process": 7, "device": 0, "rank": 0, "times_last": 5, "waited_s": 0.2},
        shared | {"process": 8, "device": 1, "rank": 1, "times_last": 95, "waited_s": 0.001},
    ]
    rows = vision_runs(100.0, (1.0,), devices=2, iteration_time_s=0.1, trace_iteration_time_s=0.1)
    tables = {"stragglers": stragglers, "runs_info": [{"at": 0, "traced_steps": 10.0}]}
    results = make_results(tmp_path, rows, tables=tables)
    [found] = causes_of(results.configurations()[0], results)
    assert found.evidence == "in the trace rank 1 is late in 95 of 100 collectives; rank 0 waits 20.0 ms per step"
    assert found.share == pytest.approx(0.2)
