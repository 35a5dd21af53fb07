"""Losses and rewards, as their figures show them; all tables are synthetic."""

from pathlib import Path
from typing import Any

import pytest

from figures.measured import closed, gathered, heading, legend, measured
from multicard.figures.draw import draw

Rows = list[dict[str, Any]]


def steps(run: str, losses: list[float], ranks: int = 1, **columns: list[float]) -> Rows:
    """Steps of a run, whose ranks differ from the given loss by ±0.1, ±0.2, …, so that their mean is it."""
    return [
        {"run": run, "rank": rank, "step": number + 1, "window": "measured"}
        | {"loss": loss + 0.1 * (rank - (ranks - 1) / 2)}
        | {name: values[number] for name, values in columns.items()}
        for rank in range(ranks)
        for number, loss in enumerate(losses)
    ]


def curves(axes: Any) -> dict[str, list[list[float]]]:
    """Points of the labelled lines of a panel."""
    lines = [line for line in axes.get_lines() if not line.get_label().startswith("_")]
    return {line.get_label(): [list(map(float, values)) for values in line.get_data()] for line in lines}


def test_losses_are_means_over_ranks_and_tests_are_over_epochs(tmp_path: Path) -> None:
    measures = measured("vision", {"strategy": "ddp-ds", "devices": 1}, {"strategy": "ddp-ds", "devices": 2})
    rows = [*steps("run0", [3, 2, 1]), *steps("run1", [3, 1.5], ranks=2)]
    epochs = [{"run": "run0", "epoch": n, "test_loss": 1 / n} for n in (1, 2)]
    figure, data = draw("loss", gathered(tmp_path, measures, steps=rows, epochs=epochs))
    left, right = closed(figure).axes
    assert (heading(left), heading(right)) == ("Training loss", "Test loss")
    assert curves(left) == {
        "1 CPU process": [[1, 2, 3], pytest.approx([3, 2, 1])],
        "2 CPU processes": [[1, 2], pytest.approx([3, 1.5])],
    }
    assert curves(right) == {"1 CPU process": [[1, 2], [1, 0.5]]}
    assert legend(figure) == [["1 CPU process", "2 CPU processes"]]
    assert len(data) == 7


def test_losses_that_cannot_be_compared_have_a_panel_each(tmp_path: Path) -> None:
    measures = measured("llm", *({"technique": t, "devices": n} for t in ("full", "lora", "dpo") for n in (1, 2)))
    rows = [row for number in range(6) for row in steps(f"run{number}", [7 - number, 1])]
    figure, data = draw("loss", gathered(tmp_path, measures, steps=rows))
    panels = closed(figure).axes  # in the order of the registry of techniques
    assert [heading(axes) for axes in panels] == [
        "Training loss, LoRA", "Training loss, DPO", "Training loss, full",
    ]  # fmt: skip
    assert curves(panels[0]) == {"1 CPU process": [[1, 2], [5, 1]], "2 CPU processes": [[1, 2], [4, 1]]}
    assert legend(figure) == [["1 CPU process", "2 CPU processes"]]
    assert data["technique"].tolist()[::4] == ["full", "lora", "dpo"]


def test_only_qat_is_named_by_what_is_quantized(tmp_path: Path) -> None:
    kinds = [{"technique": name} for name in ("lora", "full", "qat")] + [{"technique": "qat", "qat_of": "weights"}]
    rows = [row for number in range(4) for row in steps(f"run{number}", [2, 1])]
    figure, data = draw("loss", gathered(tmp_path, measured("llm", *kinds), steps=rows))
    assert legend(closed(figure)) == [["LoRA", "QAT of adapters", "QAT of weights", "full"]]  # as the panels
    assert data["series"].tolist()[::2] == ["LoRA", "full", "QAT of adapters", "QAT of weights"]
    # Where panels name the technique, the legend names the devices.
    measures = measured("llm", *(kind | {"devices": n} for kind in kinds[:1] + kinds[2:] for n in (1, 2)))
    rows = [row for number in range(6) for row in steps(f"run{number}", [2, 1])]
    figure, _ = draw("loss", gathered(tmp_path / "devices", measures, steps=rows))
    qat = [f"{n}, QAT of {what}" for what in ("adapters", "weights") for n in ("1 CPU process", "2 CPU processes")]
    assert legend(closed(figure)) == [["1 CPU process", "2 CPU processes", *qat]]


def test_of_a_long_run_neighbouring_steps_are_averaged(tmp_path: Path) -> None:
    falling = [float(1000 - n) for n in range(1000)]
    figure, data = draw("loss", gathered(tmp_path, measured("llm", {}), steps=steps("run0", falling)))
    closed(figure)
    # 200 points of five steps each: the first is the mean of steps 1 to 5, whose losses are 1000 to 996.
    assert data["step"].tolist() == [3 + 5 * n for n in range(200)]
    assert data["loss"].tolist() == [998 - 5 * n for n in range(200)]


def test_rewards_have_a_panel_each_and_only_dpo_is_shown(tmp_path: Path) -> None:
    measures = measured(  # what else varies of LoRA alone takes no name
        "llm", {"technique": "lora", "devices": 2}, {"technique": "dpo"}, {"technique": "dpo", "repeat": 2}
    )
    rewards = {"reward_chosen": [0.0, 0.3], "reward_rejected": [0.0, -0.1], "reward_accuracy": [0.0, 0.75]}
    rows = [*steps("run0", [2, 1]), *steps("run1", [2, 1], ranks=2, **rewards), *steps("run2", [2, 1], **rewards)]
    figure, data = draw("dpo_rewards", gathered(tmp_path, measures, steps=rows))
    panels = closed(figure).axes
    assert [heading(axes) for axes in panels] == ["Chosen answers", "Rejected answers", "Margin", "Accuracy"]
    shown = [curves(axes)["1 CPU process"][1] for axes in panels]
    assert shown == [[0, 0.3], [0, -0.1], pytest.approx([0, 0.4]), [0, 75]]
    assert panels[0].get_ylim() == panels[1].get_ylim()
    assert legend(figure) == [["1 CPU process"]]
    assert set(data["run"]) == {"run1", "run2"}


def test_without_losses_or_dpo_the_figures_say_so(tmp_path: Path) -> None:
    for name, rows, why in (
        ("loss", [], "no losses were recorded"),
        ("dpo_rewards", steps("run0", [2, 1]), "no rewards were recorded: only DPO has them"),
    ):
        _, data = draw(name, gathered(tmp_path / name, measured("llm", {}), steps=rows))
        assert data["nothing_to_show"].tolist() == [why]
