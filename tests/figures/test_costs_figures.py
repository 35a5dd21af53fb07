"""What techniques, whole trainings, energy and memory cost, as their figures show it; all numbers are synthetic."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from figures.measured import closed, drawn, gathered, group_names, heading, legend, lengths, lines, measured, words
from multicard.figures.draw import draw

GB = 10**9


def run(technique: str, devices: int = 1, seconds: float = 0.1, **more: Any) -> dict[str, Any]:
    known = {"iteration_time_s": seconds, "peak_memory_bytes": 900_000_000}
    return {"technique": technique, "devices": devices, **known, **more}


def lost(technique: str, devices: int, outcome: str, **more: Any) -> dict[str, Any]:
    return {"technique": technique, "devices": devices, "outcome": outcome, **more}


def techniques(*rows: dict[str, Any]) -> tuple:
    figure, data = drawn("techniques", measured("llm", *rows))
    return figure, *figure.axes, data


def test_each_technique_has_a_bar_per_number_of_devices() -> None:
    rows = [run("lora", 1, 0.1), run("lora", 2, 0.2), run("full", 1, 0.3), run("full", 2, 0.4)]
    _, time, memory, _ = techniques(*rows)
    assert group_names(time) == ["LoRA", "Full fine-tuning"]
    series = {"1 CPU process": [100, 300], "2 CPU processes": [200, 400]}
    assert lengths(time) == {name: pytest.approx(each) for name, each in series.items()}
    assert lengths(memory)["1 CPU process"] == pytest.approx([900, 900])
    # One that was not asked for on some devices has no bar there.
    _, time, *_ = techniques(run("lora", 1, 0.1), run("lora", 3, 0.2), run("qlora", 1, 0.3))
    assert lengths(time) == {"1 CPU process": pytest.approx([100, 300]), "3 CPU processes": pytest.approx([200])}
    assert words(time) == []


def test_bars_are_geometric_means_with_whiskers_over_their_interval() -> None:
    rows = [run("lora", 1, seconds, repeat=i) for i, seconds in enumerate((0.1, 0.12, 0.2), start=1)]
    _, time, *_ = techniques(*rows, run("dpo", 1, 0.3))
    assert lengths(time)["1 CPU process"] == pytest.approx([(100 * 120 * 200) ** (1 / 3), 300])
    [whiskers] = [each.lines[2][0] for each in time.containers if hasattr(each, "lines")]
    # One repeat has no interval; of three, by Student's t on the logarithms.
    logs = np.log([100, 120, 200])
    [ends] = [segment[:, 0].tolist() for segment in whiskers.get_segments() if len(segment)]
    reach = 4.302653 * logs.std(ddof=1) / 3**0.5
    assert ends == pytest.approx(np.exp([logs.mean() - reach, logs.mean() + reach]).tolist())


def test_a_whisker_that_would_hide_the_bars_is_cut_and_its_interval_written() -> None:
    # Two repeats that differ by a factor of four: their interval has a thousandfold range.
    rows = [run("lora", 1, seconds, repeat=i) for i, seconds in enumerate((0.1, 0.4), start=1)]
    _, time, *_ = techniques(*rows, run("dpo", 1, 0.3))
    assert time.get_xlim()[1] < 3 * 400
    assert any(text.get_text().startswith("200 [") for text in time.texts)


def test_a_run_without_a_result_shows_its_outcome_in_its_place() -> None:
    rows = [run("lora", 1, 0.1), run("lora", 2, 0.2), lost("full", 1, "out_of_memory"), run("full", 2, 0.4)]
    _, *panels, data = techniques(*rows)
    assert group_names(panels[0]) == ["LoRA", "Full fine-tuning"]
    assert [words(axes) for axes in panels] == [["out of memory"]] * 2
    # Bars are 0.4 wide and share the place of their group.
    [outcome] = [text for text in panels[0].texts if text.get_text() == "out of memory"]
    assert outcome.xy[1] == pytest.approx(1 - 0.2)
    assert data["outcome"].tolist().count("out_of_memory") == 1
    # One completed repeat is enough.
    _, time, *_ = techniques(run("lora", 1, 0.1), lost("lora", 1, "failed", repeat=2), run("dpo", 1, 0.2))
    assert words(time) == []
    # What was not recorded is no bar of no length.
    _, time, memory, _ = techniques(run("lora", peak_memory_bytes=float("nan")), run("dpo"))
    assert (words(time), words(memory)) == ([], ["not recorded"])


def test_what_else_varies_is_in_the_names_of_the_series_and_what_qat_trains_in_that_of_its_bars() -> None:
    figure, *_ = techniques(*(run(name, packed=packed) for name in ("lora", "full") for packed in (True, False)))
    assert legend(figure)[0] == ["packed, 1 CPU process", "not packed, 1 CPU process"]
    rows = [run("lora"), run("qat", qat_of="adapters"), run("qat", qat_of="weights"), run("full")]
    figure, time, *_ = techniques(*(row | {"devices": devices} for devices in (1, 2) for row in rows))
    assert group_names(time) == ["LoRA", "QAT of adapters", "QAT of weights", "Full fine-tuning"]
    assert legend(figure)[0] == ["1 CPU process", "2 CPU processes"]


def test_a_gpu_has_a_bar_for_each_kind_of_memory_and_a_failed_run_its_outcome() -> None:
    gpu = {"device": "cuda", "strategy": "ddp-ds"}
    known = {"peak_memory_bytes": 4 * GB, "peak_reserved_bytes": 5 * GB, "device_memory_used_bytes": 6 * GB}
    measures = measured(
        "vision", gpu | known, gpu | known | {"repeat": 2, "peak_memory_bytes": 2 * GB},
        gpu | {"devices": 2, "outcome": "out_of_memory"},
    )  # fmt: skip
    figure, data = drawn("memory", measures)
    [axes] = figure.axes
    assert group_names(axes) == ["ddp-ds, 1 GPU", "ddp-ds, 2 GPUs"]
    assert axes.get_xlabel() == "Peak memory (GB)"
    kinds = ["allocated (PyTorch)", "reserved (PyTorch)", "used by everything (NVML)"]
    assert legend(figure) == [[*kinds, "single repeat"]]
    # The geometric mean of 4 and 2 GB.
    assert [lengths(axes)[kind][0] for kind in kinds] == pytest.approx([8**0.5, 5, 6])
    assert words(axes) == ["out of memory"]
    # log 2 / 2 times t of one degree of freedom below it.
    assert data["peak_memory_bytes_low"].tolist()[0] == pytest.approx(8**0.5 * GB / 2 ** (12.7062 / 2), rel=1e-4)
    [axes] = drawn("memory", measured("vision", {"peak_memory_bytes": 500_000_000}))[0].axes
    assert lengths(axes) == {"resident (CPU process)": [500]}
    assert drawn("memory", measured("vision", {}))[1]["nothing_to_show"].tolist() == ["no memory was recorded"]


@pytest.mark.parametrize(
    ("workload", "of", "measure", "value"),
    [("vision", "image", "energy_per_sample_j", 0.2), ("llm", "token", "energy_per_token_j", 0.002)],
)
def test_energy_is_per_image_or_token_in_joules(workload: str, of: str, measure: str, value: float) -> None:
    rows = [{"device": "cuda", "devices": n, measure: value * n} for n in (1, 2)]
    if workload == "vision":
        rows = [row | {"strategy": "ddp-ds"} for row in rows]
    [axes] = drawn("energy", measured(workload, *rows))[0].axes
    assert axes.get_ylabel() == f"Energy per {of} (mJ)"
    assert lines(axes)["_"][1] == pytest.approx([1000 * value, 2000 * value])


def training(devices: int, rate: float, **others: Any) -> list[dict[str, Any]]:
    """Repeats of a job with a batch of 64 for all devices, whose pass has 36,000 images."""
    stated = {"strategy": "ddp-ds", "scaling": "strong", "batch_size": 64, "epochs": 1, "devices": devices} | others
    return [
        stated | {"repeat": n, "throughput_samples_per_s": rate * f, "estimated_epoch_time_s": 36_000 / (rate * f)}
        for n, f in enumerate((0.999, 1.0, 1.001), 1)
    ]


def test_points_lie_at_the_hours_and_time_of_the_training(tmp_path: Path) -> None:
    rows = training(1, 100) + training(2, 180) + training(2, 90, num_workers=2) + training(2, 240, precision="bf16")
    figure, data = draw("tradeoff", gathered(tmp_path, measured("vision", *rows)))
    [axes] = closed(figure).axes
    # 36,000 images at 100, 180, 90 and 240 per second: 6, 3.33, 6.67 and 2.5 minutes.
    points = {(round(x, 2), round(y, 2)) for x, y in axes.collections[0].get_offsets().tolist()}
    assert points == {(6.0, 6.0), (6.67, 3.33), (13.33, 6.67), (5.0, 2.5)}
    assert axes.get_ylabel() == "Time of the training (min)"
    assert axes.get_xlabel() == "Process-minutes of the training"
    trainings = ["reference training", "precision: fp32 → bf16"]
    assert legend(figure) == [[*trainings, "0 workers", "2 workers"]]
    assert data["time_s"].tolist() == pytest.approx([360, 200, 400, 150], rel=1e-4)


def test_the_fastest_are_joined_and_what_another_beats_in_time_and_hours_is_hollow(tmp_path: Path) -> None:
    rows = training(1, 100) + training(2, 180) + training(2, 90, num_workers=2) + training(2, 240, precision="bf16")
    figure, data = draw("tradeoff", gathered(tmp_path, measured("vision", *rows)))
    [axes] = closed(figure).axes
    marks = axes.collections[0]
    hollow = {
        round(x, 2)
        for (x, _), fill in zip(marks.get_offsets().tolist(), marks.get_facecolors().tolist(), strict=True)
        if fill == [1.0, 1.0, 1.0, 1.0]
    }
    assert [1.0, 1.0, 1.0, 1.0] not in marks.get_edgecolors().tolist()
    # 6 minutes on one process beat 6.67 minutes on two; what bf16 takes is another training's.
    assert hollow == {13.33}
    joined = [[round(x, 2) for x in line.get_xdata()] for line in axes.lines]
    assert [6.0, 6.67] in joined and [5.0] in joined
    # Hours are devices × time, so the ends of a whisker lie on the ray from the origin through its mark.
    of_pair = data[(data["devices"] == 2) & (data["time_s"].round() == 200)].iloc[0]
    ends = [of_pair["time_s_low"] * 2 / 60, of_pair["time_s_high"] * 2 / 60]
    whiskers = [line.get_xdata() for line in axes.lines if len(line.get_xdata()) == 2]
    assert any(list(xs) == pytest.approx(ends) for xs in whiskers)


def test_marks_lie_on_the_ray_of_their_number_of_devices(tmp_path: Path) -> None:
    rows = training(1, 100) + training(2, 180) + training(4, 300)
    figure, data = draw("tradeoff", gathered(tmp_path, measured("vision", *rows)))
    [axes] = closed(figure).axes
    names = {text.get_text(): text.xy for text in axes.texts}
    assert list(names) == ["1 CPU process", "2 CPU processes", "4 CPU processes"]
    assert legend(figure) == []  # nothing but the number of devices differs
    # A minute of two processes is two process-minutes.
    for (x, y), slope in zip(names.values(), (1, 1 / 2, 1 / 4), strict=True):
        assert y / x == pytest.approx(slope)
    rays = [line for line in axes.lines if line.get_xdata()[0] == 0]
    ends = [(line.get_xdata()[1], line.get_ydata()[1]) for line in rays]
    assert [y / x for x, y in ends] == pytest.approx([1, 1 / 2, 1 / 4])
    marks = axes.collections[0].get_offsets().tolist()
    assert [y / x for x, y in marks] == pytest.approx(1 / data["devices"])


def test_settings_have_markers_and_names(tmp_path: Path) -> None:
    rows = training(1, 100) + training(2, 180) + training(2, 90, num_workers=2)
    figure, _ = draw("tradeoff", gathered(tmp_path, measured("vision", *rows)))
    [axes] = closed(figure).axes
    assert legend(figure) == [["0 workers", "2 workers"]]
    shapes = [path.vertices.shape for path in axes.collections[0].get_paths()]
    assert shapes[0] == shapes[1] != shapes[2]


def test_marks_that_lie_on_each_other_are_counted(tmp_path: Path) -> None:
    rows = training(1, 100) + training(1, 100.01, num_workers=2) + training(1, 99.99, num_workers=3) + training(2, 180)
    figure, _ = draw("tradeoff", gathered(tmp_path, measured("vision", *rows)))
    assert "3 marks" in words(closed(figure).axes[0])


def test_each_machine_has_a_panel(tmp_path: Path) -> None:
    measures = measured("vision", *training(1, 100), *training(2, 180))
    info = [
        {"run": f"run{n}", "machine": f"{'Xeon' if n < 3 else 'EPYC'}, 8 CPUs", "versions": "torch 2.11.0"}
        for n in range(6)
    ]
    figure, _ = draw("tradeoff", gathered(tmp_path, measures, runs_info=info))
    panels = closed(figure).axes
    assert [len(axes.collections[0].get_offsets()) for axes in panels] == [1, 1]
    assert heading(panels[0]).endswith("(EPYC)") and heading(panels[1]).endswith("(Xeon)")
