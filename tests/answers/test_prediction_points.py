"""Predicted step times follow closed forms, and their intervals hold the truth as often as stated, or none is given."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom, norm

from conftest import ROOT
from multicard.answers.scaling.posterior import ScalingPrior, draw_posterior
from multicard.answers.scaling.prediction import PRIOR, checks, predict, superlinear
from multicard.answers.scaling.step_model import ScalingPoint
from multicard.stats.interval import Interval

sys.path.insert(0, str(ROOT / "benchmarks"))
import public_scaling
from simulated_scaling import LAWS, LAWS_OUTSIDE, trial

SCATTER = (0.99, 1.0, 1.01)


def point(count: int, seconds: float, samples: float = 64.0, waited: float = 0.0) -> ScalingPoint:
    steps = tuple(seconds * factor for factor in SCATTER)
    return ScalingPoint(count, count, samples, steps, tuple(waited * factor for factor in SCATTER))


def holds(interval: Interval, truth: float, within: float) -> bool:
    """Whether an interval holds the truth, and its value is that near."""
    return interval.low < truth < interval.high and abs(interval.value / truth - 1) < within


def test_draws_have_the_mean_and_the_width_of_the_normal_model() -> None:
    """With a flat curve, noise that is known and a walk that is known, level and extrapolation have closed forms."""
    prior = ScalingPrior(deviation=0.02, deviation_spread=1e-9, noise=0.01, noise_freedom=1e6, freedom_beyond=1e9)
    repeats = [np.exp([0.00, 0.01, 0.02]), np.exp([0.03, 0.04, 0.05])]
    place = np.array([0.0, 1.0, 3.0])
    found = draw_posterior(repeats, lambda z: np.zeros((len(z), 3)), [place], 0, prior)
    # The later point is nearer to what is asked: by Gauss, of level a and walk b at it.
    noise, walk = 0.01**2 / 3, 0.02**2 + 0.01**2  # the scatter of repeats adds to the walk
    covariance = np.array([[noise, 0], [0, noise + walk]])
    level = np.array([0.01, 0.04]) @ np.linalg.inv(covariance).sum(axis=1) / np.linalg.inv(covariance).sum()
    at_two = level + walk / (walk + noise) * (0.04 - level)
    unsure = (
        (1 - walk / (walk + noise)) ** 2 / np.linalg.inv(covariance).sum() + walk * noise / (walk + noise) + 2 * walk
    )
    assert found.target.mean() == pytest.approx(at_two, abs=2e-3)
    assert found.target.std() == pytest.approx(np.sqrt(unsure), rel=0.05)


def test_beyond_the_runs_the_walk_has_the_tails_of_a_t_distribution() -> None:
    prior = ScalingPrior(deviation=0.02, deviation_spread=1e-9, noise=1e-6, noise_freedom=1e6, freedom_beyond=2.0)
    repeats = [np.exp([0.0, 0.0]), np.exp([0.1, 0.1])]
    found = draw_posterior(repeats, lambda z: np.zeros((len(z), 3)), [np.array([0.0, 1.0, 3.0])], 0, prior)
    # Two doublings beyond the last point, each with 2%; the quantile of 97.5% with two degrees of freedom is 4.303.
    low, value, high = np.quantile(found.target, [0.025, 0.5, 0.975])
    assert value == pytest.approx(0.1, abs=2e-3)
    assert (high - low) / 2 == pytest.approx(4.303 * 0.02 * np.sqrt(2), rel=0.1)


def test_an_interval_is_the_wider_the_further_it_reaches() -> None:
    points = [point(1, 0.1), point(2, 0.102), point(4, 0.104)]
    widths = [np.log(found.high / found.low) for n in (8, 16, 64) if (found := predict(points, n, n, 64.0).step_s)]
    assert widths[0] < widths[1] < widths[2]
    # The walk alone has 1.1% over a doubling in the median: 0.5% beside a scatter of 1%.
    assert widths[0] > 2 * norm.ppf(0.975) * 0.011


@pytest.mark.parametrize("law", [lambda n: n - 1, np.log2, lambda n: 2 - 2 / n])
def test_without_a_known_network_the_shape_of_the_growth_is_fitted(law: object) -> None:
    points = [point(n, 0.1 + 0.01 * law(n)) for n in (1, 2, 4, 8)]
    assert holds(predict(points, 16, 16, 64.0).step_s, 0.1 + 0.01 * law(16), within=0.06)
    [*_, last] = checks(points)
    assert last.predicted.devices == 8 and last.inside and last.error == pytest.approx(0, abs=0.06)


def test_two_counts_tell_no_law() -> None:
    # 0.02 s on two devices are on eight 7/4, 3 or 7 times as much.
    found = predict([point(1, 0.1), point(2, 0.12)], 8, 8, 64.0).step_s
    assert found.low < 0.135 < found.value < 0.24 < found.high


def test_two_counts_say_which_third_one_narrows_the_interval() -> None:
    points = [point(1, 0.1), point(2, 0.12), point(4, 0.13)]
    from_two, from_three = (predict(points[:number], 8, 8, 64.0) for number in (2, 3))
    assert "two numbers of devices leave the interval wide: run 4 devices, too" in from_two.caveats
    assert not any("leave the interval wide" in caveat for caveat in from_three.caveats)
    apart = predict([point(1, 0.1), point(8, 0.12)], 16, 16, 64.0)
    assert "two numbers of devices leave the interval wide: run 2 devices, too" in apart.caveats
    assert from_three.step_s.high / from_three.step_s.low < from_two.step_s.high / from_two.step_s.low
    shared = predict([point(1, 0.1), point(2, 0.06, 32.0)], 8, 8, 8.0)
    assert any("do not show communication that both hide: run 4 devices, too" in each for each in shared.caveats)


def test_a_shared_batch_is_computed_by_the_samples_of_a_device() -> None:
    # 10 ms, and 1 ms per sample.
    found = predict([point(n, 0.010 + 0.064 / n, 64 / n) for n in (1, 2, 4)], 8, 8, 8.0)
    assert holds(found.step_s, 0.018, within=0.1)
    assert found.caveats[-1] == "each of 8 devices gets fewer or more samples than in any run: its time is extrapolated"
    assert holds(found.gain, 0.074 / 0.018, within=0.1)


def test_fewer_devices_than_any_run_had_are_predicted_too() -> None:
    found = predict([point(4, 0.12), point(8, 0.14)], 2, 2, 64.0).step_s
    assert holds(found, 0.1, within=0.06) and found.high < 0.14  # 20 ms for each doubling


def test_ranks_that_share_a_loader_wait_longer_the_more_they_are() -> None:
    # The node loads 800 samples/s; a device computes 64 in 0.1 s.
    shared = [point(1, 0.1), point(2, 0.16, waited=0.06), point(4, 0.32, waited=0.22)]
    found = predict(shared, 8, 8, 64.0)
    assert holds(found.step_s, 0.64, within=0.05)
    own = predict([point(n, 0.16, waited=0.06) for n in (1, 2, 4)], 8, 8, 64.0)
    assert holds(own.step_s, 0.16, within=0.05)


def test_the_ranks_of_a_node_share_its_loader_and_not_those_of_others() -> None:
    # Each node loads 800 samples/s: of eight devices on two nodes four share a loader, as four on one node do.
    shared = [point(1, 0.1), point(2, 0.16, waited=0.06), point(4, 0.32, waited=0.22)]
    assert holds(predict(shared, 8, 4, 64.0).step_s, 0.32, within=0.05)


def test_communication_that_two_counts_hide_shows_beyond_two_thirds_of_the_compute() -> None:
    # A ring's communication of 1/2 of the compute on two devices is (1 - 1/8) of it on eight, of which 2/3 are hidden.
    known = ScalingPrior(
        growth=1e-5, growth_spread=1e-6, hidden=0.5, hidden_spread=1e-6, deviation=1e-5, deviation_spread=1e-6,
        noise=1e-5, noise_freedom=1e6,
    )  # fmt: skip
    alike = [ScalingPoint(count, count, 64.0, (0.1, 0.1, 0.1), (0.0, 0.0, 0.0)) for count in (1, 2)]
    found = predict(alike, 8, 8, 64.0, known).step_s
    assert found.value == pytest.approx(0.1 * (1 + 7 / 8 - 2 / 3), rel=1e-3)


def test_one_run_of_each_count_has_an_interval_by_the_scatter_of_public_tables_and_says_so() -> None:
    single = [replace(point(n, 0.1), step_s=(0.1,), waited_s=(0.0,)) for n in (1, 2, 4)]
    found = predict(single, 8, 8, 64.0)
    assert found.caveats[0].startswith("no repeats: their scatter is taken to be about 1.0%")
    repeated = predict([point(n, 0.1) for n in (1, 2, 4)], 8, 8, 64.0)
    assert found.step_s.high / found.step_s.low > repeated.step_s.high / repeated.step_s.low
    assert not any("no repeats" in each for each in repeated.caveats)


def test_runs_that_no_curve_follows_say_so_and_widen_the_interval() -> None:
    # A jump at four devices, which two do not show.
    found = predict([point(1, 0.1), point(2, 0.1), point(4, 0.2)], 8, 8, 64.0)
    assert found.caveats[0].startswith("the runs deviate from every curve of the model, by ")
    assert found.step_s.low < 0.2 and found.step_s.high > 0.4


def test_devices_that_are_faster_together_than_alone_are_flagged() -> None:
    assert superlinear([point(n, 0.1) for n in (1, 2, 4)], PRIOR) == {}
    # Three per cent, and any gain within the scatter of repeats, are nothing.
    assert superlinear([point(1, 0.1), point(2, 0.097)], PRIOR) == {}
    noisy = [replace(point(n, 0.1), step_s=(0.08 / n, 0.1 / n, 0.14 / n)) for n in (1, 1.2)]
    assert superlinear(noisy, PRIOR) == {}
    found = superlinear([point(1, 0.1), point(2, 0.1), point(4, 0.08)], PRIOR)
    assert found == {4: pytest.approx(1.25)}
    predicted = predict([point(1, 0.1), point(2, 0.1), point(4, 0.08)], 8, 8, 64.0)
    assert predicted.caveats[0].startswith("super-linear: on 4 devices each is 1.25 times as fast as on fewer")


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS)
def test_intervals_hold_the_truth_of_simulated_jobs_as_often_as_stated(law: str) -> None:
    trials = 20
    held = [trial(LAWS[law], (1, 2, 4), 8, seed)[2] for seed in range(trials)]
    # At 95%, all but one of a thousand sets has as many.
    assert sum(held) >= binom.ppf(0.001, trials, 0.95)


@pytest.mark.slow
@pytest.mark.parametrize("law", ["overlap", *LAWS_OUTSIDE])
def test_intervals_hold_what_two_counts_do_not_show(law: str) -> None:
    """Costs that communication does not have, and communication that only more devices expose."""
    trials = 20
    for smaller, asked in (((1, 2), 4), ((1, 2), 8), ((1, 2, 4), 8)):
        held = [trial((LAWS | LAWS_OUTSIDE)[law], smaller, asked, seed)[2] for seed in range(trials)]
        assert sum(held) >= 0.85 * trials


def published(folder: Path, rows: str) -> list[public_scaling.Job]:
    """Jobs of a table of measurements."""
    path = folder / "table.csv"
    path.write_text(rows)
    return public_scaling.read(path)


def test_the_public_benchmark_leaves_out_nothing_because_of_what_came_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        f"{job},node{node},{count},{count * rate * (1.4 if (job, count) == ('odd', 8) else 1) * (1 + node / 200)}"
        for job, rate in (("plain", 100), ("odd", 50))
        for count in (1, 2, 4, 8)
        for node in range(4)
    ]
    published(tmp_path, "job,node,devices,tokens_per_s\n" + "\n".join(rows))
    monkeypatch.setattr(sys, "argv", ["public_scaling.py", str(tmp_path), "--resamplings", "2"])
    public_scaling.main()
    by_tool = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if "| multicard |" in line]
    # From two numbers of devices 1, 2 → 4 and 2, 4 → 8, and 1, 2 → 8; from three 1, 2, 4 → 8, of which one is odd.
    assert [row[2:4] for row in by_tool] == [["4", "2"], ["2", "2"], ["2", "2"]]
    assert by_tool[2][5:8] == ["50.0%", "0.0%", "50.0%"]


def test_the_public_benchmark_gives_the_tool_the_samples_of_a_device(tmp_path: Path) -> None:
    rows = "job,scaling,batch_size_per_device,devices,tokens_per_s\n"
    rows += "weak,weak,8,1,10\nweak,weak,8,2,16\n"
    rows += "shared,strong,8,1,10\nshared,strong,4,2,16\n"
    rows += "neither,strong,8,1,10\nneither,strong,6,2,16\n"
    shared, weak = sorted(published(tmp_path, rows), key=lambda job: job.name)
    assert (shared.name, shared.samples) == ("shared strong", {1: 8.0, 2: 4.0})
    # Eight samples at ten and at sixteen in a second.
    assert [shared.step_s[count].tolist() for count in (1, 2)] == [[0.8], [0.5]]
    assert weak.samples == {1: 1.0, 2: 1.0} and weak.step_s[2].tolist() == [2 / 16]


def test_simple_predictors_and_scores_have_their_closed_forms(tmp_path: Path) -> None:
    # 100 ms and 20 ms more by a ring's law; measured on eight is another 10% more.
    times = {1: 0.1, 2: 0.11, 4: 0.115, 8: 1.1 * 0.1175}
    rows = "".join(f"job,{count},{count / seconds}\n" for count, seconds in times.items())
    jobs = published(tmp_path, "job,devices,tokens_per_s\n" + rows)
    [case] = public_scaling.cases(jobs, 3, 1)
    expected = {"ring": 0.1175, "last": 0.115}
    for method, seconds in expected.items():
        assert np.exp(public_scaling.simply(case, method)) == pytest.approx(seconds)
    # Two points of a line are on it: 0.11 + 2 * 0.005 for each of four more devices.
    [_, _, from_two] = public_scaling.cases(jobs, 2, 1)
    assert np.exp(public_scaling.simply(from_two, "Amdahl")) == pytest.approx(0.115 + 4 * 0.0025)
    truth = case.truth
    standard = public_scaling.Outcome(case, truth - norm.ppf(0.975), truth, truth + norm.ppf(0.975))
    assert standard.crps == pytest.approx((np.sqrt(2) - 1) / np.sqrt(np.pi), rel=0.02)
    assert standard.interval_score == pytest.approx(2 * norm.ppf(0.975))
    # 0.1 beyond an interval of 0.2 costs 2 / 5% of that.
    missed = public_scaling.Outcome(case, truth - 0.3, truth - 0.2, truth - 0.1)
    assert missed.interval_score == pytest.approx(0.2 + 40 * 0.1)
