"""Predicted step times follow closed forms, and their intervals hold the truth as often as stated, or none is given."""

import sys
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom, norm

from conftest import ROOT
from multicard.analysis.scaling.posterior import Prior, draw
from multicard.analysis.scaling.prediction import PRIOR, Point, checks, predict, superlinear
from multicard.analysis.statistics import Interval

sys.path.insert(0, str(ROOT / "benchmarks"))
import public_scaling
from simulated_scaling import LAWS, LAWS_OUTSIDE, trial

SCATTER = (0.99, 1.0, 1.01)


def point(count: int, seconds: float, samples: float = 64.0, waited: float = 0.0) -> Point:
    steps = tuple(seconds * factor for factor in SCATTER)
    return Point(count, count, samples, steps, tuple(waited * factor for factor in SCATTER))


def holds(interval: Interval, truth: float, within: float) -> bool:
    """Whether an interval holds the truth, and its value is that near."""
    return interval.low < truth < interval.high and abs(interval.value / truth - 1) < within


def test_draws_have_the_mean_and_the_width_of_the_normal_model() -> None:
    """With a flat curve, noise that is known and a walk that is known, level and extrapolation have closed forms."""
    prior = Prior(deviation=0.02, deviation_spread=1e-9, noise=0.01, noise_freedom=1e6)
    repeats = [np.exp([0.00, 0.01, 0.02]), np.exp([0.03, 0.04, 0.05])]
    place = np.array([0.0, 1.0, 3.0])
    found = draw(repeats, lambda z: np.zeros((len(z), 3)), [place], 0, prior)
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


def test_an_interval_is_the_wider_the_further_it_reaches() -> None:
    points = [point(1, 0.1), point(2, 0.102), point(4, 0.104)]
    widths = [np.log(found.high / found.low) for n in (8, 16, 64) if (found := predict(points, n, n, 64.0).step_s)]
    assert widths[0] < widths[1] < widths[2]
    # The walk alone has 1.5% over a doubling in the median.
    assert widths[0] > 2 * norm.ppf(0.975) * PRIOR.deviation


@pytest.mark.parametrize("law", [lambda n: n - 1, np.log2, lambda n: 2 - 2 / n])
def test_without_a_known_network_the_shape_of_the_growth_is_fitted(law: object) -> None:
    points = [point(n, 0.1 + 0.01 * law(n)) for n in (1, 2, 4, 8)]
    assert holds(predict(points, 16, 16, 64.0).step_s, 0.1 + 0.01 * law(16), within=0.06)
    [*_, last] = checks(points)
    assert last.predicted.count == 8 and last.inside and last.error == pytest.approx(0, abs=0.06)


def test_two_counts_tell_no_law() -> None:
    # 0.02 s on two devices are on eight 7/4, 3 or 7 times as much.
    found = predict([point(1, 0.1), point(2, 0.12)], 8, 8, 64.0).step_s
    assert found.low < 0.135 < found.value < 0.24 < found.high


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
    known = Prior(
        growth=1e-5, growth_spread=1e-6, hidden=0.5, hidden_spread=1e-6, deviation=1e-5, deviation_spread=1e-6,
        noise=1e-5, noise_freedom=1e6,
    )  # fmt: skip
    alike = [Point(count, count, 64.0, (0.1, 0.1, 0.1), (0.0, 0.0, 0.0)) for count in (1, 2)]
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


@pytest.mark.slow
def test_the_public_benchmark_flags_an_artefact_and_counts_the_rest(
    tmp_path: object, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        f"{job},node{node},{count},{count * rate * (1.4 if (job, count) == ('odd', 8) else 1) * (1 + node / 200)}"
        for job, rate in (("plain", 100), ("odd", 50))
        for count in (1, 2, 4, 8)
        for node in range(4)
    ]
    table = tmp_path / "table.csv"
    table.write_text("job,node,devices,tokens_per_s\n" + "\n".join(rows))
    command = ["public_scaling.py", str(table), "--from", "1,2,4", "--to", "8", "--resamplings", "5"]
    monkeypatch.setattr(sys, "argv", command)
    monkeypatch.setattr(public_scaling, "CHOOSING", 3)
    public_scaling.main()
    _, odd, plain, last = capsys.readouterr().out.splitlines()
    assert odd.startswith("odd: 1, 2, 4 → 8: ") and "; flagged: 1.40 times as fast per device on 8 as on fewer" in odd
    assert "coverage 100 %" in plain and "flagged" not in plain
    assert last.startswith("median error ") and last.endswith(" %, coverage 100 %")
