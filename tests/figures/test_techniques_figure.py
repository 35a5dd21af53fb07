"""What each technique costs, as its figure shows it."""

from typing import Any

import numpy as np
import pytest

from figures.measured import closed, group_names, heading, legend, lengths, measured, words
from multicard.figures.llm import techniques

GB = 1_000_000_000
PARTS = ("weights_bytes", "adapters_bytes", "gradients_bytes", "optimizer_bytes")


def run(technique: str, devices: int = 1, seconds: float = 0.1, **more: Any) -> dict[str, Any]:
    """Synthetic run: 100 tokens per step, 0.9 GB at most, 20 + 1 + 2 + 4 MB of the model."""
    known = dict(zip(PARTS, (20_000_000, 1_000_000, 2_000_000, 4_000_000), strict=True))
    known |= {"iteration_time_s": seconds, "tokens_per_s": 100 / seconds, "peak_memory_bytes": 900_000_000}
    return {"technique": technique, "devices": devices, **known, **more}


def lost(technique: str, devices: int, outcome: str, **more: Any) -> dict[str, Any]:
    """Synthetic run that did not complete."""
    return {"technique": technique, "devices": devices, "outcome": outcome, **more}


def drawn(*rows: dict[str, Any]) -> tuple:
    """Draw the runs: the figure and its panels."""
    figure = closed(techniques(measured("llm", *rows))[0])
    return figure, *figure.axes


def test_panels_say_what_they_show_and_in_which_unit() -> None:
    figure, *panels = drawn(run("lora"), run("lora", 4), run("dpo"), run("dpo", 4))
    assert [(heading(axes), axes.get_ylabel()) for axes in panels] == [
        ("Iteration time", "Time per step (ms)"),
        ("Throughput, without padding", "Tokens per second"),
        ("Peak memory per rank", "Resident, CPU process (MB)"),
        ("Model-state memory", "Per rank (MB)"),
    ]
    state = ["weights", "adapters", "gradients", "optimizer state"]
    assert legend(figure) == [["1 CPU process", "4 CPU processes"], state]
    # Stacked bars carry their number of devices.
    assert [text.get_text() for text in panels[3].get_xticklabels(minor=True)] == ["1", "4", "1", "4"]


def test_on_gpus_memory_is_what_is_allocated_on_each() -> None:
    big = {"device": "cuda", "peak_memory_bytes": 20 * GB, "weights_bytes": 16 * GB}
    figure, time, _, peak, held = drawn(run("lora", 1, 2.0, **big), run("dpo", 1, 4.0, **big))
    assert [axes.get_ylabel() for axes in (peak, held, time)] == [
        "Allocated, per GPU (GB)", "Per rank (GB)", "Time per step (s)",
    ]  # fmt: skip
    assert legend(figure)[0] == ["1 GPU"]
    figure, _, _, peak, _ = drawn(*(run(name, device=kind) for name in ("lora", "dpo") for kind in ("cpu", "cuda")))
    assert peak.get_ylabel() == "Resident (CPU), allocated (GPU) (MB)"
    assert legend(figure)[0] == ["cpu", "cuda"]


def test_each_technique_has_a_bar_per_number_of_devices() -> None:
    rows = [run("lora", 1, 0.1), run("lora", 2, 0.2), run("full", 1, 0.3), run("full", 2, 0.4)]
    _, time, rate, peak, _ = drawn(*rows)
    assert group_names(time) == ["LoRA", "full"]
    series = {"1 CPU process": [100, 300], "2 CPU processes": [200, 400]}
    assert lengths(time) == {name: pytest.approx(each) for name, each in series.items()}
    assert lengths(rate)["2 CPU processes"] == pytest.approx([500, 250])
    assert lengths(peak)["1 CPU process"] == pytest.approx([900, 900])
    # One that was not asked for on some devices has no bar there.
    _, time, *_ = drawn(run("lora", 1, 0.1), run("lora", 3, 0.2), run("qlora", 1, 0.3))
    assert lengths(time) == {"1 CPU process": pytest.approx([100, 300]), "3 CPU processes": pytest.approx([200])}
    assert words(time) == []


def test_bars_are_geometric_means_with_whiskers_over_their_interval() -> None:
    rows = [run("lora", 1, seconds, repeat=i) for i, seconds in enumerate((0.1, 0.12, 0.2), start=1)]
    _, time, *_ = drawn(*rows, run("dpo", 1, 0.3))
    assert lengths(time)["1 CPU process"] == pytest.approx([(100 * 120 * 200) ** (1 / 3), 300])
    [whiskers] = [each.lines[2][0] for each in time.containers if hasattr(each, "lines")]
    # One repeat has no interval; of three, by Student's t on the logarithms.
    logs = np.log([100, 120, 200])
    [ends] = [segment[:, 1].tolist() for segment in whiskers.get_segments() if len(segment)]
    reach = 4.302653 * logs.std(ddof=1) / 3**0.5
    assert ends == pytest.approx(np.exp([logs.mean() - reach, logs.mean() + reach]).tolist())


def test_the_bytes_of_a_rank_are_stacked() -> None:
    *_, held = drawn(run("lora"), run("full", adapters_bytes=0, gradients_bytes=20_000_000))
    first = {part: bars[0] for part, bars in lengths(held).items()}
    assert first == pytest.approx({"weights": 20, "adapters": 1, "gradients": 2, "optimizer state": 4})
    tops = [bar.get_y() + bar.get_height() for bar in held.containers[-1]]
    assert tops == pytest.approx([27, 44])


def test_a_run_without_a_result_shows_its_outcome_in_its_place() -> None:
    rows = [run("lora", 1, 0.1), run("lora", 2, 0.2), lost("full", 1, "out_of_memory"), run("full", 2, 0.4)]
    _, *panels = drawn(*rows)
    for axes in panels:
        assert group_names(axes) == ["LoRA", "full"]
        assert words(axes) == ["out of memory"]
    # Bars are 0.4 wide and share the place of their group.
    assert panels[0].texts[0].xy[0] == pytest.approx(1 - 0.2)
    figure, time, *_ = drawn(run("lora"), lost("qat", 1, "failed"), lost("qat", 1, "timed_out", repeat=2), run("dpo"))
    assert (group_names(time), words(time)) == (["LoRA", "QAT", "DPO"], ["failed"])
    assert legend(figure)[0] == ["1 CPU process"]
    # One completed repeat is enough.
    _, time, *_ = drawn(run("lora", 1, 0.1), lost("lora", 1, "failed", repeat=2), run("dpo", 1, 0.2))
    assert words(time) == []
    assert lengths(time) == {"1 CPU process": pytest.approx([100, 200])}


def test_memory_that_was_not_recorded_is_no_bar_of_no_height() -> None:
    unknown = dict.fromkeys(PARTS)
    _, time, _, peak, held = drawn(run("lora", peak_memory_bytes=float("nan")), run("dpo", **unknown))
    assert words(time) == []
    assert words(peak) == words(held) == ["not recorded"]
    # Where nothing is known, the axis has no numbers.
    _, _, _, peak, held = drawn(*(run(name, peak_memory_bytes=None, **unknown) for name in ("lora", "dpo")))
    assert list(peak.get_yticks()) == list(held.get_yticks()) == []
    assert words(peak) == words(held) == ["not recorded"] * 2


def test_what_else_varies_is_in_the_names_of_the_series_and_what_qat_trains_in_that_of_its_bars() -> None:
    figure, *_, held = drawn(*(run(name, packed=packed) for name in ("lora", "full") for packed in (True, False)))
    assert legend(figure)[0] == ["packed", "not packed"]
    assert held.get_xlabel() == "Bars in the order of the legend"
    rows = [run("lora"), run("qat", qat_of="adapters"), run("qat", qat_of="weights"), run("full")]
    figure, time, *_ = drawn(*(row | {"devices": devices} for devices in (1, 2) for row in rows))
    assert group_names(time) == ["LoRA", "QAT\nof\nadapters", "QAT\nof\nweights", "full"]
    assert legend(figure)[0] == ["1 CPU process", "2 CPU processes"]


def test_the_numbers_have_a_row_also_for_runs_without_a_result() -> None:
    _, data = techniques(measured("llm", run("lora"), run("lora", repeat=2), lost("full", 1, "out_of_memory")))
    assert data["technique"].tolist() == ["lora", "full"]
    assert data["outcome"].tolist() == ["completed", "out_of_memory"]
    assert data["repeats"].tolist() == [2, 0]
    assert data["iteration_time_s"].isna().tolist() == [False, True]
