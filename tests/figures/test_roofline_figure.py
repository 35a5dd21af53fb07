"""The roofline, against numbers worked out by hand; all are synthetic."""

from pathlib import Path
from typing import Any

import pytest

from figures.measured import closed, gathered, legend, measured, two_repeats, words
from multicard.figures.draw import draw

# Ten operations per byte at 2 TFLOP/s, below 100 TFLOP/s and 1 TB/s.
KNOWN = {
    "device": "cuda", "operational_intensity_flop_per_byte": 10.0, "hardware_flop_per_step": 4e11,
    "iteration_time_s": 0.2, "memory_bandwidth_bytes_per_s": 1e12, "peak_flop_per_s": 1e14, "mfu_of": "measured",
}  # fmt: skip


def test_a_point_lies_below_the_roofs_of_its_precision(tmp_path: Path) -> None:
    half = KNOWN | {"precision": "bf16", "operational_intensity_flop_per_byte": 20.0, "peak_flop_per_s": 2e14}
    uncounted = KNOWN | {"compile": True, "operational_intensity_flop_per_byte": None}
    figure, data = draw("roofline", gathered(tmp_path, measured("vision", *two_repeats(**KNOWN), half, uncounted)))
    [axes] = closed(figure).axes
    # The second repeat takes a tenth longer: the geometric mean of both rates.
    rates = [pytest.approx(2e12 / 1.1**0.5), pytest.approx(2e12)]
    assert data[["operational_intensity_flop_per_byte", "hardware_flop_per_s"]].to_numpy().tolist() == [
        [pytest.approx(10), rates[0]], [pytest.approx(20), rates[1]],
    ]  # fmt: skip
    assert legend(figure) == [data["configuration"].tolist()]
    points = [each.lines[0].get_xydata().tolist() for each in axes.containers]
    assert points == [[[pytest.approx(10), rates[0]]], [[pytest.approx(20), rates[1]]]]
    # The roofs meet where the peak is the bandwidth times the intensity.
    knees = [line.get_xydata()[1].tolist() for line in axes.lines if len(line.get_xdata()) == 3]
    assert knees == [pytest.approx([200, 2e14]), pytest.approx([100, 1e14])]
    assert words(axes) == [
        "bf16: 200 TFLOP/s, measured peak", "fp32: 100 TFLOP/s, measured peak", "memory: 1.00 TB/s, measured",
    ]  # fmt: skip
    assert axes.get_title(loc="left") == "1 configuration without a point: bytes, operations or limits are not known"


def test_nodes_of_a_kind_have_one_roof_and_each_roof_says_whose_it_is(tmp_path: Path) -> None:
    vendors = {"precision": "bf16", "peak_flop_per_s": 4e14, "mfu_of": "vendor"}
    vendors["memory_bandwidth_bytes_per_s"] = 1.02e12
    rows = [
        KNOWN | {"batch_size": 8},
        KNOWN | {"batch_size": 16, "peak_flop_per_s": 1.02e14, "memory_bandwidth_bytes_per_s": 1.04e12},
        KNOWN | vendors,
    ]
    figure, _ = draw("roofline", gathered(tmp_path, measured("vision", *rows)))
    [axes] = closed(figure).axes
    assert words(axes) == [
        "bf16: 400 TFLOP/s, vendor peak", "fp32: 101 TFLOP/s, measured peak", "memory: 1.02 TB/s, measured",
    ]  # fmt: skip
    assert len([line for line in axes.lines if len(line.get_xdata()) == 3]) == 2
    assert not axes.get_title(loc="left")


@pytest.mark.parametrize(
    ("missing", "reason"),
    [
        ("operational_intensity_flop_per_byte", "no run has the bytes of a step counted"),
        ("hardware_flop_per_step", "the operations of these runs are not known"),
        ("memory_bandwidth_bytes_per_s", "the memory bandwidth of these devices is not known, which multicard machine"),
        ("peak_flop_per_s", "the peak of these devices is not known, which multicard machine measures, on CPUs"),
    ],
)
def test_without_counts_or_limits_there_is_no_roofline(tmp_path: Path, missing: str, reason: str) -> None:
    measures: Any = measured("vision", KNOWN).drop(columns=missing)  # as in a table of an earlier version
    _, data = draw("roofline", gathered(tmp_path, measures))
    assert data["nothing_to_show"].item().startswith(reason)
