"""The figure of time against device-hours shows what follows from the rates by hand."""

from pathlib import Path
from typing import Any

import pytest

from figures.measured import closed, gathered, legend, measured, words
from multicard.figures.costs import tradeoff


def row(devices: int, rate: float, **others: Any) -> list[dict[str, Any]]:
    """Repeats of a job with a batch of 64 for all devices, whose pass has 36,000 images."""
    stated = {"strategy": "ddp-ds", "scaling": "strong", "batch_size": 64, "epochs": 1, "devices": devices} | others
    return [
        stated | {"repeat": n, "throughput_samples_per_s": rate * f, "estimated_epoch_time_s": 36_000 / (rate * f)}
        for n, f in enumerate((0.999, 1.0, 1.001), 1)
    ]


def test_points_lie_at_the_hours_and_time_of_the_training(tmp_path: Path) -> None:
    rows = row(1, 100) + row(2, 180) + row(2, 90, num_workers=2) + row(2, 240, precision="bf16")
    figure, data = tradeoff(gathered(tmp_path, measured("vision", *rows)))
    [axes] = closed(figure).axes
    # 36,000 images at 100, 180, 90 and 240 per second: 6, 3.33, 6.67 and 2.5 minutes.
    points = {
        (round(x, 4), round(y, 2)): line.get_markerfacecolor() == "white"
        for line, *_ in axes.containers
        for x, y in line.get_xydata()
    }
    assert points == {(0.1, 6.0): False, (0.1111, 3.33): False, (0.2222, 6.67): True, (0.0833, 2.5): False}
    assert axes.get_ylabel() == "Time of the training (min)"
    assert axes.get_xlabel() == "Process-hours of the training"
    names = {"1 CPU process", "2 CPU processes, 0 workers", "2 CPU processes, 2 workers", "2 CPU processes"}
    assert set(words(axes)) == names
    assert legend(figure) == [["precision: fp32", "precision: bf16", "hollow: another is better"]]
    assert data["not_worse"].tolist() == [True, True, False, True]
    assert data["time_s"].tolist() == pytest.approx([360, 200, 400, 150], rel=1e-4)


def test_the_legend_has_a_line_only_where_one_is_drawn(tmp_path: Path) -> None:
    both = measured("vision", *row(1, 100), *row(2, 180))
    assert legend(closed(tradeoff(gathered(tmp_path, both))[0])) == [["best on each number"]]
    one = measured("vision", *row(1, 100), *row(1, 90, num_workers=2))
    figure = closed(tradeoff(gathered(tmp_path / "one", one))[0])
    assert legend(figure) == [["hollow: another is better"]]


def test_the_legend_leaves_out_what_follows_from_the_rest(tmp_path: Path) -> None:
    rows = [row(1, rate, precision=p, learning_rate=r) for rate, p, r in ((100, "fp32", 0.1), (200, "bf16", 0.2))]
    measures = measured("vision", *rows[0], *rows[1], *row(1, 150, precision="fp16", learning_rate=0.1))
    assert legend(closed(tradeoff(gathered(tmp_path, measures))[0])) == [
        ["precision: fp32", "precision: fp16", "precision: bf16"]
    ]


def test_each_machine_has_a_panel(tmp_path: Path) -> None:
    measures = measured("vision", *row(1, 100), *row(2, 180))
    info = [
        {"run": f"run{n}", "machine": f"{'Xeon' if n < 3 else 'EPYC'}, 8 CPUs", "versions": "torch 2.11.0"}
        for n in range(6)
    ]
    figure, data = tradeoff(gathered(tmp_path, measures, runs_info=info))
    assert [axes.get_title().splitlines()[0] for axes in closed(figure).axes] == ["EPYC", "Xeon"]
    assert [len(axes.containers) for axes in figure.axes] == [1, 1]
    assert data[["machine", "devices"]].to_numpy().tolist() == [["EPYC, 8 CPUs", 2], ["Xeon, 8 CPUs", 1]]


def test_a_line_joins_the_best_of_what_learns_alike(tmp_path: Path) -> None:
    rows = row(1, 100, scaling="weak") + row(2, 180, scaling="weak") + row(4, 300, scaling="weak", batch_size=32)
    rows += row(2, 170, scaling="weak", num_workers=2)
    [axes] = closed(tradeoff(gathered(tmp_path, measured("vision", *rows)))[0]).axes
    joined = [
        [round(y, 2) for y in line.get_ydata()]
        for line in axes.get_lines()
        if line.get_linestyle() == "-" and len(line.get_xdata()) > 1
    ]
    # Two and four devices have a batch of 128.
    assert joined == [[2.0, 3.33]]
