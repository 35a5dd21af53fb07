"""Scaling models: known parameters come back from synthetic times."""

from collections.abc import Callable

import numpy as np
import pytest
from scipy.optimize import curve_fit
from scipy.stats import f as fisher
from scipy.stats import t as student

from multicard.analysis.scaling.models import Scaling, fit_scaling_models, karp_flatt

N = np.array([1, 2, 3, 4, 6, 8], dtype=float)


def amdahl(n: np.ndarray, t1: float, p: float) -> np.ndarray:
    return t1 * (1 - p + p / n)


# Formula of the model, scaling, place among the fits, times for true parameters, these.
TRUTHS: list[tuple[str, Scaling, int, Callable[[np.ndarray], np.ndarray], dict[str, float]]] = [
    ("T1 (1 − p + p/n)", "strong", 0, lambda n: amdahl(n, 0.2, 0.9), {"one_device_s": 0.2, "parallel_share": 0.9}),
    (
        "T1 (1 − p + p/n) + c (n − 1)", "strong", 1, lambda n: amdahl(n, 0.2, 0.9) + 0.003 * (n - 1),
        {"one_device_s": 0.2, "parallel_share": 0.9, "communication_s": 0.003},
    ),
    (
        "T1 (1 − p + p/n) + c log2 n", "strong", 1, lambda n: amdahl(n, 0.2, 0.9) + 0.02 * np.log2(n),
        {"one_device_s": 0.2, "parallel_share": 0.9, "communication_s": 0.02},
    ),
    (
        "T1 n / (n − s (n − 1))", "weak", 0, lambda n: 0.1 * n / (n - 0.25 * (n - 1)),
        {"one_device_s": 0.1, "serial_share": 0.25},
    ),
    ("T1 + c (n − 1)", "weak", 1, lambda n: 0.1 + 0.004 * (n - 1), {"one_device_s": 0.1, "communication_s": 0.004}),
    ("T1 + c log2 n", "weak", 1, lambda n: 0.1 + 0.01 * np.log2(n), {"one_device_s": 0.1, "communication_s": 0.01}),
    ("T1 + c (1 − 1/n)", "weak", 1, lambda n: 0.1 + 0.03 * (1 - 1 / n), {"one_device_s": 0.1, "communication_s": 0.03}),
]  # fmt: skip


@pytest.mark.parametrize(("formula", "scaling", "place", "times", "truth"), TRUTHS)
def test_times_without_noise_give_the_true_parameters(
    formula: str, scaling: Scaling, place: int, times: Callable, truth: dict[str, float]
) -> None:
    measured = times(N)
    fit = fit_scaling_models(N, measured, scaling)[place]
    assert fit.model.formula == formula
    assert fit.parameters == pytest.approx(truth, rel=1e-9)
    assert fit.residual == pytest.approx(0, abs=1e-12)
    assert fit.times([5, 16]) == pytest.approx(times(np.array([5.0, 16.0])))
    assert (fit.points, fit.degrees_of_freedom, fit.reason) == (6, 6 - len(truth), None)
    assert all(residual > 1e-3 for residual in fit.others.values())
    # The largest number of devices is predicted from the others.
    assert fit.prediction_error == pytest.approx(0, abs=1e-9)
    # A quarter more time on eight devices than the model says: the others know nothing of it.
    measured[-1] *= 1.25
    assert fit_scaling_models(N, measured, scaling)[place].prediction_error == pytest.approx(1 / 1.25 - 1)


@pytest.mark.rare
@pytest.mark.parametrize("repeats", [1, 3])
@pytest.mark.parametrize(("formula", "scaling", "place", "times", "truth"), TRUTHS)
def test_intervals_contain_the_true_parameters_as_often_as_stated(
    formula: str, scaling: Scaling, place: int, times: Callable, truth: dict[str, float], repeats: int
) -> None:
    generator = np.random.default_rng(repeats)
    inside: list[bool] = []
    rejected: list[bool] = []
    n = np.repeat(N, repeats)
    for _ in range(1000):
        fit = fit_scaling_models(n, times(n) * generator.normal(1, 0.002, len(n)), scaling)[place]
        if fit.model.formula == formula:
            bounds = [(fit.intervals[name], true) for name, true in truth.items() if fit.intervals[name]]
            inside += [low <= true <= high for (low, high), true in bounds]
            rejected += [fit.lack_of_fit_p_value <= 0.05] if repeats > 1 else []
    assert len(inside) > 1700
    # 1000 fits have a standard error of 0.7%.
    assert np.mean(inside) == pytest.approx(0.95, abs=0.02)
    # A model that holds is rejected in one of twenty fits.
    assert repeats == 1 or np.mean(rejected) == pytest.approx(0.05, abs=0.025)


@pytest.mark.rare
@pytest.mark.parametrize(("scatter", "doubtful"), [(0.002, False), (0.03, True)])
def test_intervals_cover_less_where_the_choice_of_the_communication_term_is_in_doubt(
    scatter: float, doubtful: bool
) -> None:
    generator = np.random.default_rng(5)
    n = np.repeat([1.0, 2.0, 4.0], 3)
    fits = [
        fit_scaling_models(n, (0.1 + 0.01 * np.log2(n)) * generator.normal(1, scatter, len(n)), "weak")[1]
        for _ in range(2000)
    ]
    right = np.mean([fit.model.formula == "T1 + c log2 n" for fit in fits])
    covered = np.mean([low <= 0.1 <= high for fit in fits for low, high in [fit.intervals["one_device_s"]]])
    # The standard error of the coverage is 0.6%. Docs say between 90 and 95%.
    assert (0.90 <= covered <= 0.94 and right < 0.7) if doubtful else (0.935 <= covered <= 0.965 and right > 0.99)


@pytest.mark.parametrize("n", [N, np.repeat(N, 4)], ids=["one repeat", "four repeats"])
def test_intervals_are_those_of_curve_fit_with_students_t(n: np.ndarray) -> None:
    times = amdahl(n, 0.2, 0.8) * np.random.default_rng(2).normal(1, 0.01, len(n))
    fit = fit_scaling_models(n, times, "strong")[0]
    means = np.array([times[n == count].mean() for count in n])
    found, covariance = curve_fit(amdahl, n, times, p0=(0.2, 0.5), sigma=means)
    reach = student.ppf(0.975, len(n) - 2) * np.sqrt(np.diag(covariance))
    assert list(fit.parameters.values()) == pytest.approx(found, rel=1e-5)
    assert np.array(list(fit.intervals.values())) == pytest.approx(
        np.stack([found - reach, found + reach], 1), rel=1e-3
    )
    assert fit.residual == pytest.approx(np.sqrt(np.mean((amdahl(n, *found) / times - 1) ** 2)))
    assert (fit.points, fit.device_counts, fit.degrees_of_freedom) == (len(n), 6, len(n) - 2)


def test_every_run_is_a_point_that_counts_by_its_error_relative_to_the_mean() -> None:
    # Means 0.2, 0.1 and 0.05 lie on the model; what scatters around them is no reason to leave it.
    fit = fit_scaling_models([1, 1, 2, 4, 4], [0.18, 0.22, 0.1, 0.04, 0.06], "strong")[0]
    assert (fit.points, fit.device_counts, fit.degrees_of_freedom) == (5, 3, 3)
    assert fit.parameters == pytest.approx({"one_device_s": 0.2, "parallel_share": 1.0})


def test_the_lack_of_fit_is_that_of_the_f_test() -> None:
    n = np.repeat(N, 3)
    times = (amdahl(n, 0.2, 0.9) + 0.0005 * (n - 1)) * np.random.default_rng(4).normal(1, 0.01, len(n))
    fit = fit_scaling_models(n, times, "strong")[0]
    means = np.array([times[n == count].mean() for count in n])
    (t1, p), _ = curve_fit(amdahl, n, times, p0=(0.2, 0.5), sigma=means)
    pure = ((times / means - 1) ** 2).sum()
    lack = ((amdahl(n, t1, p) / means - 1) ** 2).sum()
    # Six numbers of devices less two parameters; 18 runs less six means.
    assert fit.lack_of_fit_p_value == pytest.approx(fisher.sf((lack / 4) / (pure / 12), 4, 12), rel=1e-3)


def test_a_model_that_does_not_hold_is_rejected_and_said_so() -> None:
    n = np.repeat(N, 3)
    times = (amdahl(n, 0.2, 0.9) + 0.003 * (n - 1)) * np.random.default_rng(6).normal(1, 0.005, len(n))
    without, with_communication = fit_scaling_models(n, times, "strong")
    assert without.lack_of_fit_p_value < 0.001
    assert without.caveats == ["does not fit: deviates by more than the scatter of repeats"]
    assert with_communication.lack_of_fit_p_value > 0.05 and with_communication.caveats == []
    # Equal repeats show any deviation.
    n = np.repeat(N, 2)
    assert fit_scaling_models(n, amdahl(n, 0.2, 0.9), "strong")[0].lack_of_fit_p_value == 1
    assert fit_scaling_models(n, amdahl(n, 0.2, 0.9) + 0.003 * n, "strong")[0].lack_of_fit_p_value == 0


def test_what_was_not_tested_is_said() -> None:
    two, _ = fit_scaling_models([1, 2], [0.2, 0.12], "strong")
    assert (two.prediction_error, two.lack_of_fit_p_value) == (None, None)
    assert two.caveats == ["not tested: as many parameters as device counts", "too few device counts for a prediction"]
    three, with_communication = fit_scaling_models([1, 2, 4], [0.2, 0.12, 0.08], "strong")
    # On one and two devices 0.04 + 0.16 / n, so 0.08 on four.
    assert three.prediction_error == pytest.approx(0, abs=1e-9)
    assert three.caveats == ["not tested: no repeats"]
    assert with_communication.prediction_error is None


def test_shares_and_their_intervals_stay_between_none_and_all() -> None:
    better_than_ideal = fit_scaling_models([1, 2, 4], [0.4, 0.15, 0.05], "strong")[0]
    assert better_than_ideal.parameters["parallel_share"] == 1.0
    assert better_than_ideal.intervals["parallel_share"] is None
    low, high = better_than_ideal.intervals["one_device_s"]
    assert low < better_than_ideal.parameters["one_device_s"] < high
    assert better_than_ideal.residual > 0.05
    assert fit_scaling_models([1, 2, 4], [0.1, 0.3, 0.9], "weak")[0].parameters["serial_share"] == 1.0
    assert fit_scaling_models([1, 2, 4], [0.1, 0.09, 0.08], "weak")[0].parameters["serial_share"] == 0.0
    times = amdahl(N, 0.2, 0.99) * np.array([1.05, 0.95, 1.03, 0.97, 1.0, 1.02])
    low, high = fit_scaling_models(N, times, "strong")[0].intervals["parallel_share"]
    assert 0 < low < 0.99 and high == 1
    # Communication that is not there is zero without an interval.
    fit = fit_scaling_models(N, amdahl(N, 0.2, 0.9) * (1 - 0.03 * N), "strong")[1]
    assert (fit.parameters["communication_s"], fit.intervals["communication_s"]) == (0.0, None)


def test_what_cannot_be_fitted_is_refused_with_the_reason() -> None:
    for scaling in ("strong", "weak"):
        for fit in fit_scaling_models([2, 2, 2], [0.1, 0.11, 0.12], scaling):
            assert fit.reason == "one device count only: no efficiency claim"
            assert (fit.parameters, fit.residual) == ({}, None)
    for times in ([], [float("nan")] * 2, [0.0, -1.0]):
        reasons = {fit.reason for fit in fit_scaling_models([1, 2][: len(times)], times, "weak")}
        assert reasons == {"no measured time"}
    assert {fit.reason for fit in fit_scaling_models([1, 2, 4], [0.1, float("nan"), 0.2], "weak")} == {None}
    assert fit_scaling_models([2, 4, 8], [0.001, 0.1, 10.0], "weak")[1].reason == (
        "the times leave none for one device"
    )
    amdahls, with_communication = fit_scaling_models([1, 2], [0.2, 0.12], "strong")
    assert amdahls.parameters == pytest.approx({"one_device_s": 0.2, "parallel_share": 0.8})
    assert amdahls.degrees_of_freedom == 0 and set(amdahls.intervals.values()) == {None}
    assert with_communication.reason == "2 device counts only, the model has 3 parameters"


def test_terms_that_go_through_all_points_keep_their_order_and_no_unit_matters() -> None:
    for seconds in np.random.default_rng(1).uniform(0.1, 0.2, 20):
        assert fit_scaling_models([1, 2], [0.1, seconds], "weak")[1].model.formula == "T1 + c (n − 1)"
    times = amdahl(N, 0.2, 0.9) + 0.003 * (N - 1)
    for unit in (1e-9, 1e9):
        fit = fit_scaling_models(N, times * unit, "strong")[1]
        assert fit.parameters["communication_s"] / unit == pytest.approx(0.003, rel=1e-6)


def test_the_serial_fraction_of_amdahls_speedup_is_the_serial_share() -> None:
    n = np.array([2, 4, 64])
    for share in (0.0, 0.1, 1.0):
        assert karp_flatt(1 / (share + (1 - share) / n), n) == pytest.approx([share] * 3)
    # Slow-downs and more than ideal.
    assert karp_flatt([0.5, 5.0], [4, 4]) == pytest.approx([(2 - 0.25) / 0.75, (0.2 - 0.25) / 0.75])
    assert np.isnan(karp_flatt([1.0, np.nan, 0.0], [1, 2, 2])).all()
