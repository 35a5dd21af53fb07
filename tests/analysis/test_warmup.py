"""The end of the warm-up is found from the times of the steps."""

import numpy as np
import pandas as pd
import pytest

from multicard.analysis.runs.warmup import transient_steps, without_transient
from multicard.experiment.parameters import AUTO_WARMUP, run_id
from multicard.workloads.vision.parameters import VisionParameters


def test_steps_that_were_slower_at_first_are_left_out() -> None:
    # Two levels without scatter: the rest has no variance from there on, and the shortest such truncation is taken.
    for slow in (0, 5, 20, 45):
        assert transient_steps(np.array([2.0] * slow + [1.0] * (100 - slow))) == slow
    # At most half of the steps.
    assert transient_steps(np.array([2.0] * 80 + [1.0] * 20)) <= 50
    assert transient_steps(np.linspace(2, 1, 100)) == 50
    assert transient_steps(np.array([9.0] + [1.0] * 3)) == 0  # too few to tell


@pytest.mark.parametrize("count", [5, 14, 29])
def test_nothing_is_left_out_of_so_few_steps_that_their_variance_says_nothing(count: int) -> None:
    rng = np.random.default_rng(1)
    assert {transient_steps(rng.normal(1, 0.05, count)) for _ in range(50)} == {0}


@pytest.mark.parametrize(("count", "share", "times_longer"), [(60, 0.03, 10), (200, 0.03, 10)])
def test_rare_long_steps_of_a_steady_run_are_kept(count: int, share: float, times_longer: float) -> None:
    rng = np.random.default_rng(2)
    rest, whole = [], []
    for _ in range(600):
        times = np.where(rng.random(count) < share, times_longer, 1.0) * rng.normal(1, 0.05, count)
        rest.append(times[transient_steps(times) :].mean())
        whole.append(times.mean())
    # Of the same steps, so chance is in both: the truncation with means would make the rest 5% and more faster.
    assert np.mean(rest) == pytest.approx(np.mean(whole), rel=0.02)


def test_a_transient_is_found_among_rare_long_steps() -> None:
    rng = np.random.default_rng(3)
    found = []
    for _ in range(100):
        times = np.where(rng.random(100) < 0.03, 10.0, 1.0) * rng.normal(1, 0.05, 100)
        times[:20] += 1.0
        found.append(transient_steps(times))
    assert np.mean([left_out >= 20 for left_out in found]) > 0.96


def test_the_rule_is_the_least_standard_error_of_the_mean_of_the_rest() -> None:
    # Of the batches, the sum of squared deviations over the square of their number: of all (27 - 121/6)/36 = 0.190,
    # without the first (11 - 49/5)/25 = 0.048, without two (10 - 9)/16 = 0.063, without three (6 - 16/3)/9 = 0.074.
    assert transient_steps(np.repeat([4.0, 1, 2, 1, 2, 1], 5)) == 5


def test_the_mean_of_the_rest_is_less_biased_and_steps_without_a_transient_keep_theirs() -> None:
    rng = np.random.default_rng(20250101)
    decay = np.exp(-np.arange(200) / 10)
    bias: dict[str, list[float]] = {"raw": [], "rest": [], "steady": []}
    for _ in range(200):
        steady = rng.gamma(100, 0.01, 200)  # mean 1, standard deviation 0.1
        slow = steady + decay  # raises the mean by 0.0525, the sum of the decay over 200
        bias["raw"].append(slow.mean() - 1)
        bias["rest"].append(slow[transient_steps(slow) :].mean() - 1)
        bias["steady"].append(steady[transient_steps(steady) :].mean() - 1)
    assert np.mean(bias["raw"]) == pytest.approx(0.0525, abs=0.002)
    assert abs(np.mean(bias["rest"])) < 0.01
    assert abs(np.mean(bias["steady"])) < 0.002


def steps_of_two_ranks() -> pd.DataFrame:
    """Rank 1 is slow in its first ten measured steps; 3 warm-up steps go before, 2 profiled ones come after."""
    windows = ["warmup"] * 3 + ["measured"] * 40 + ["profiled"] * 2
    rows = []
    for rank in (0, 1):
        now = 0.0
        for step, window in enumerate(windows, start=1):
            lasts = 3.0 if rank == 1 and 4 <= step < 14 else 1.0
            rows.append({"rank": rank, "epoch": 1, "step": step, "window": window, "start_s": now, "duration_s": lasts})
            now += lasts
    return pd.DataFrame(rows)


def test_a_run_that_states_its_warmup_keeps_it_and_one_that_does_not_has_it_from_its_slowest_rank() -> None:
    steps = steps_of_two_ranks()
    assert without_transient(steps, {"warmup_steps": 3}) is steps
    found = without_transient(steps, {"warmup_steps": "auto"})
    for _, rank in found.groupby("rank"):
        assert rank["window"].tolist() == ["warmup"] * 13 + ["measured"] * 30 + ["profiled"] * 2
    pd.testing.assert_frame_equal(found.drop(columns="window"), steps.drop(columns="window"))


def test_a_run_that_leaves_it_to_its_steps_warms_up_for_ten_and_has_a_name_of_its_own() -> None:
    p = VisionParameters(warmup_steps="auto")
    assert p.least_warmup_steps == AUTO_WARMUP == 10
    assert run_id(p) != run_id(VisionParameters())
    assert VisionParameters(warmup_steps=3).least_warmup_steps == 3
    with pytest.raises(ValueError, match="warmup_steps"):
        VisionParameters(warmup_steps=-1)
