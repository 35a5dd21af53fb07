"""Numbers, units and headings read the same everywhere."""

import math

import pytest

from multicard.core.units import BYTES, SECONDS, heading, number_in, show, unit_for, units_of


@pytest.mark.parametrize(
    ("values", "units", "expected"),
    [
        ([0.02, 0.3], SECONDS, (1e3, "ms")),
        ([math.nan, 1e-5], SECONDS, (1e6, "µs")),
        ([5e8, None], BYTES, (1e-6, "MB")),
        ([5e8, 2e9], BYTES, (1e-9, "GB")),
        ([math.nan], BYTES, (1e-12, "TB")),
        ([], SECONDS, (1, "s")),
    ],
)
def test_the_largest_value_chooses_the_unit(values: list, units: tuple, expected: tuple[float, str]) -> None:
    assert unit_for(values, units) == (pytest.approx(expected[0]), expected[1])


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ((5.0, 4.9999999999, 5.0000000001), "5.00 [5.00, 5.00]"),
        ((-0.5, -1.0, 0.25), "−0.500 [−1.000, 0.250]"),
        ((0.0,), "0"),
        ((1e-17,), "0"),
        ((float("nan"),), "–"),
        ((3.0, float("nan"), float("nan")), "3.00"),
    ],
)
def test_a_number_has_three_digits_or_as_many_as_its_interval_needs(given: tuple[float, ...], text: str) -> None:
    assert number_in(*given) == text


@pytest.mark.parametrize(
    ("column", "value", "headed", "text"),
    [
        ("peak_memory_bytes", 1.5e9, "peak memory", "1.50 GB"),
        ("bytes", 0, "bytes", "0 B"),
        ("bandwidth_bytes_per_s", 2.5e12, "bandwidth", "2.50 TB/s"),
        ("throughput_samples_per_s", 12345.6, "throughput samples per second", "12,346"),
        ("energy_per_token_j", 0.002, "energy per token", "2.00 mJ"),
        ("test_accuracy", 0.981, "test accuracy", "98.1%"),
        ("profiler_overhead", -0.02, "profiler overhead", "-2.0%"),
        ("median_s", None, "median", ""),
        ("devices", 4, "devices", "4"),
        ("kernel", "gemm", "kernel", "gemm"),
    ],
)
def test_the_end_of_a_columns_name_gives_its_unit(column: str, value: object, headed: str, text: str) -> None:
    assert (heading(column), show(column, value)) == (headed, text)


def test_no_unit_is_read_out_of_a_name_that_only_looks_like_one() -> None:
    assert [units_of(name) for name in ("devices", "precision", "repeats", "strategy")] == [None] * 4
