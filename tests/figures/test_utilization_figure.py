"""How far runs are from the limits, as the figure shows it; all numbers are synthetic."""

from pathlib import Path

import pytest

from figures.measured import closed, gathered, legend, lengths, measured, words
from multicard.analysis.machine.utilization import MEASURES as UTILIZATION
from multicard.figures.draw import draw


def test_a_bar_of_mfu_stands_beside_the_parts_of_the_step(tmp_path: Path) -> None:
    common = {"technique": "lora", "device": "cuda", "mfu_of": "measured", "achieved_flop_per_s": 1e14}
    one = {"compute_share": 0.7, "launch_overhead_share": 0.2, "data_loading_share": 0.1}
    two = {"compute_share": 0.7, "exposed_communication_share": 0.15, "waiting_for_other_ranks_share": 0.05}
    two |= {"memory_operations_share": 0.1}
    measures = measured(
        "llm",
        common | one | {"mfu": 0.25, "hfu": 0.25},
        common | two | {"mfu": 0.4, "hfu": 0.5, "activation_checkpointing": True, "devices": 2},
    )
    figure, data = draw("utilization", gathered(tmp_path, measures))
    left, right = closed(figure).axes
    assert lengths(left) == {"HFU": [25, 50], "MFU": [25, 40]}
    assert left.get_xlabel() == "Of the measured peak (%)"
    assert lengths(right) == {
        "compute": pytest.approx([70, 70]),
        "exposed communication": pytest.approx([0, 15]),
        "waiting for other ranks": pytest.approx([0, 5]),
        "memory operations": pytest.approx([0, 10]),
        "launch overhead": pytest.approx([20, 0]),
        "data loading": pytest.approx([10, 0]),
    }
    assert data[["mfu", "compute"]].to_numpy().tolist() == [[0.25, pytest.approx(0.7)], [0.4, pytest.approx(0.7)]]


def test_without_a_trace_phases_tell_and_without_a_peak_the_rate(tmp_path: Path) -> None:
    parts = {"data_loading_share": 0.2, "memory_operations_share": 0.1, "compute_share": 0.6, "other_share": 0.1}
    measures = measured("vision", {"device": "cpu", "achieved_flop_per_s": 2e9} | parts)
    left, right = closed(draw("utilization", gathered(tmp_path, measures))[0]).axes
    assert lengths(left) == {"_": [2.0]}
    assert left.get_xlabel() == "Rate per device (GFLOP/s);\nfor the peak: multicard doctor --measure"
    assert lengths(right) == {
        "compute": pytest.approx([60]), "memory operations": pytest.approx([10]), "data loading": pytest.approx([20]),
        "other": pytest.approx([10]),
    }  # fmt: skip
    # Tables of an earlier version show the parts alone.
    [axes] = closed(draw("utilization", gathered(tmp_path / "old", measures.drop(columns=[*UTILIZATION])))[0]).axes
    assert lengths(axes) == lengths(right)


def test_parts_are_means_over_repeats_so_that_they_add_up(tmp_path: Path) -> None:
    # In one of three repeats the loader was slow: medians would add up to 0.6 + 0.1 and not to 1.
    repeats = [
        {"repeat": number, "compute_share": compute, "data_loading_share": data, "launch_overhead_share": other}
        for number, (compute, data, other) in enumerate(((0.6, 0.1, 0.3), (0.1, 0.8, 0.1), (0.8, 0.1, 0.1)), 1)
    ]
    *_, axes = closed(draw("utilization", gathered(tmp_path, measured("vision", *repeats)))[0]).axes
    assert lengths(axes) == {
        "compute": pytest.approx([50]), "launch overhead": pytest.approx([50 / 3]),
        "data loading": pytest.approx([100 / 3]),
    }  # fmt: skip


def test_a_configuration_whose_peak_is_not_known_says_so(tmp_path: Path) -> None:
    common = {"device": "cuda", "achieved_flop_per_s": 1e12}
    measures = measured("vision", common | {"mfu": 0.5, "hfu": 0.5, "mfu_of": "vendor"}, common | {"precision": "fp64"})
    figure = closed(draw("utilization", gathered(tmp_path, measures))[0])
    left, right = figure.axes
    assert words(left) == ["peak unknown"]
    assert words(right) == ["no parts of steps were recorded"]
    assert left.get_xlabel() == "Of the vendor's peak (%)"
    assert legend(figure) == [["MFU"]]


def test_labels_of_the_panels_stay_apart_where_names_are_long(tmp_path: Path) -> None:
    common = {"technique": "lora", "device": "cuda", "mfu_of": "measured, disturbed", "achieved_flop_per_s": 1e14}
    measures = measured(
        "llm",
        common | {"mfu": 0.25, "precision": "bf16", "sequence_length": 2048, "batch_size": 16},
        common | {"mfu": 0.4, "precision": "fp32", "sequence_length": 4096, "batch_size": 8, "devices": 2}
        | {"activation_checkpointing": True},
    )  # fmt: skip
    phases = {"data_s": 0.1, "forward_s": 0.4, "backward_s": 0.5, "mean_iteration_time_s": 1.0}
    figure = closed(draw("utilization", gathered(tmp_path, measures.assign(**phases)))[0])
    figure.draw_without_rendering()
    left, right = figure.axes
    assert left.get_xlabel() == "Of the measured,\ndisturbed peak (%)"
    for one, other in ((left.xaxis.label, right.xaxis.label), (left._left_title, right._left_title)):
        assert one.get_window_extent().x1 + 5 < other.get_window_extent().x0
