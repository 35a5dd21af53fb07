"""Memory, as its figures show it; all tables are synthetic."""

from pathlib import Path
from typing import Any

import pytest

from figures.measured import closed, gathered, group_names, heading, legend, lengths, measured, words
from multicard.figures.draw import draw
from multicard.figures.memory import memory

GB = 10**9


def test_a_gpu_has_a_bar_for_each_kind_of_memory_and_a_failed_run_its_outcome() -> None:
    gpu = {"device": "cuda", "strategy": "ddp-ds"}
    known = {"peak_memory_bytes": 4 * GB, "peak_reserved_bytes": 5 * GB, "device_memory_used_bytes": 6 * GB}
    measures = measured(
        "vision", gpu | known, gpu | known | {"repeat": 2, "peak_memory_bytes": 2 * GB},
        gpu | {"devices": 2, "outcome": "out_of_memory"},
    )  # fmt: skip
    figure, data = memory(measures)
    [axes] = closed(figure).axes
    assert group_names(axes, horizontal=True) == ["ddp-ds, 1 GPU", "ddp-ds, 2 GPUs"]
    assert axes.get_xlabel() == "Peak memory (GB)"
    kinds = ["allocated (PyTorch)", "reserved (PyTorch)", "used by everything (NVML)"]
    assert legend(figure) == [[*kinds, "single repeat"]]
    # The geometric mean of 4 and 2 GB.
    assert [lengths(axes)[kind][0] for kind in kinds] == pytest.approx([8**0.5, 5, 6])
    assert words(axes) == ["out of memory"]
    assert heading(axes) == "Peak memory on the fullest GPU"  # dp has one rank for several
    # log 2 / 2 times t of one degree of freedom below it.
    assert data["peak_memory_bytes_low"].tolist()[0] == pytest.approx(8**0.5 * GB / 2 ** (12.7062 / 2), rel=1e-4)
    [axes] = closed(memory(measured("vision", {"peak_memory_bytes": 500_000_000}))[0]).axes
    assert lengths(axes) == {"resident (CPU process)": [500]}
    assert (heading(axes), axes.get_xlabel()) == ("Peak memory of the largest process", "Peak memory (MB)")


def steps(run: str, rank: int, *peaks: int, reserved: int | None = None) -> list[dict[str, Any]]:
    """Steps that begin every two seconds."""
    return [
        {"run": run, "rank": rank, "step": n + 1, "start_s": 2.0 * n, "peak_memory_bytes": peak}
        | {"peak_reserved_bytes": reserved}
        for n, peak in enumerate(peaks)
    ]


def test_memory_over_time_is_that_of_the_rank_and_gpu_with_the_most(tmp_path: Path) -> None:
    gpu = {"device": "cuda", "strategy": "ddp-ds", "devices": 2}
    measures = measured("vision", gpu, gpu | {"repeat": 2})
    rows = [*steps("run0", 0, GB, 2 * GB, reserved=4 * GB), *steps("run0", 1, GB, 3 * GB, reserved=5 * GB)]
    rows += steps("run1", 0, 9 * GB, 9 * GB, reserved=9 * GB)
    figure, data = draw("memory_over_time", gathered(tmp_path, measures, steps=rows))
    panels = closed(figure).axes
    assert [heading(axes) for axes in panels] == ["Allocated (PyTorch)", "Reserved (PyTorch)"]
    shown = [[list(map(float, values)) for values in axes.get_lines()[0].get_data()] for axes in panels]
    assert shown == [[[0, 2], [1, 3]], [[0, 2], [5, 5]]]
    assert legend(figure) == [["2 GPUs"]]
    assert set(data["run"]) == {"run0"}


def test_many_configurations_have_panels_by_devices_that_are_taller_than_the_legend(tmp_path: Path) -> None:
    kinds = [
        {"device": "cuda", "strategy": "ddp-ds", "devices": n, "precision": precision, "image_size": size}
        for n in (1, 2, 4) for precision in ("fp64", "fp32", "fp16") for size in (100, 300)
    ]  # fmt: skip
    rows = [row for n in range(18) for row in steps(f"run{n}", 0, GB, 2 * GB, reserved=4 * GB)]
    figure, data = draw("memory_over_time", gathered(tmp_path, measured("vision", *kinds), steps=rows))
    figure.draw_without_rendering()
    panels = closed(figure).axes
    assert [axes.get_ylabel() for axes in panels[::2]] == [f"{n}\nMemory (GB)" for n in ("1 GPU", "2 GPUs", "4 GPUs")]
    assert [len(axes.get_lines()) for axes in panels] == [6] * 6
    # Lines that coincide are of different widths, the thinnest on top.
    widths = [line.get_linewidth() for line in panels[0].get_lines()]
    assert widths == sorted(set(widths), reverse=True)
    tallest = max(each.get_window_extent().height for each in figure.legends)
    assert all(axes.get_window_extent().height > tallest for axes in panels)
    assert data["series"].nunique() == 18


def test_a_long_run_shows_the_highest_of_neighbouring_steps(tmp_path: Path) -> None:
    rows = steps("run0", 0, *[GB] * 999, 7 * GB)
    figure, data = draw("memory_over_time", gathered(tmp_path, measured("vision", {}), steps=rows))
    [axes] = closed(figure).axes
    assert heading(axes) == "Resident (CPU process)"
    assert data["peak_memory_bytes"].tolist() == [GB] * 499 + [7 * GB]
    assert data["time_s"].tolist() == [4.0 * n for n in range(500)]


def test_without_memory_the_figures_say_so(tmp_path: Path) -> None:
    for name, why in (("memory", "no memory was recorded"), ("memory_over_time", "no memory over time was recorded")):
        _, data = draw(name, gathered(tmp_path / name, measured("vision", {})))
        assert data["nothing_to_show"].tolist() == [why]
