"""Losses and rewards, as their figures show them; all tables are synthetic."""

from pathlib import Path
from typing import Any

import pandas as pd
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


def test_language_models_have_no_panel_of_tests(tmp_path: Path) -> None:
    figure, _ = draw("loss", gathered(tmp_path, measured("llm", {}), steps=steps("run0", [2, 1])))
    [axes] = closed(figure).axes
    assert curves(axes) == {"1 CPU process": [[1, 2], [2, 1]]}


def test_losses_that_cannot_be_compared_have_a_panel_each(tmp_path: Path) -> None:
    measures = measured("llm", *({"technique": t, "devices": n} for t in ("lora", "dpo", "full") for n in (1, 2)))
    rows = [row for number in range(6) for row in steps(f"run{number}", [7 - number, 1])]
    figure, data = draw("loss", gathered(tmp_path, measures, steps=rows))
    panels = closed(figure).axes
    assert [heading(axes) for axes in panels] == [
        "Training loss, LoRA", "Training loss, DPO", "Training loss, full",
    ]  # fmt: skip
    assert curves(panels[1]) == {"1 CPU process": [[1, 2], [5, 1]], "2 CPU processes": [[1, 2], [4, 1]]}
    assert legend(figure) == [["1 CPU process", "2 CPU processes"]]
    assert data["technique"].tolist()[::4] == ["lora", "dpo", "full"]


def test_panels_of_techniques_are_in_the_order_of_their_registry(tmp_path: Path) -> None:
    measures = measured("llm", *({"technique": name} for name in ("full", "dpo", "lora")))
    rows = [row for number in range(3) for row in steps(f"run{number}", [2, 1])]
    figure, _ = draw("loss", gathered(tmp_path, measures, steps=rows))
    assert [heading(axes).split(", ")[1] for axes in closed(figure).axes] == ["LoRA", "DPO", "full"]


def test_only_qat_is_named_by_what_is_quantized(tmp_path: Path) -> None:
    kinds = [{"technique": name} for name in ("lora", "full", "qat")] + [{"technique": "qat", "qat_of": "weights"}]
    rows = [row for number in range(4) for row in steps(f"run{number}", [2, 1])]
    figure, data = draw("loss", gathered(tmp_path, measured("llm", *kinds), steps=rows))
    assert legend(closed(figure)) == [["LoRA", "QAT of adapters", "QAT of weights", "full"]]  # as the panels
    assert data["series"].tolist()[::2] == ["LoRA", "full", "QAT of adapters", "QAT of weights"]


def test_where_panels_name_the_technique_the_legend_names_the_devices(tmp_path: Path) -> None:
    kinds = [{"technique": "lora"}, {"technique": "qat"}, {"technique": "qat", "qat_of": "weights"}]
    measures = measured("llm", *(kind | {"devices": n} for kind in kinds for n in (1, 2)))
    rows = [row for number in range(6) for row in steps(f"run{number}", [2, 1])]
    figure, _ = draw("loss", gathered(tmp_path, measures, steps=rows))
    qat = [f"{n}, QAT of {what}" for what in ("adapters", "weights") for n in ("1 CPU process", "2 CPU processes")]
    assert legend(closed(figure)) == [["1 CPU process", "2 CPU processes", *qat]]


def test_of_a_long_run_neighbouring_steps_are_averaged(tmp_path: Path) -> None:
    falling = [float(1000 - n) for n in range(1000)]
    figure, data = draw("loss", gathered(tmp_path, measured("llm", {}), steps=steps("run0", falling)))
    closed(figure)
    # 200 points of five steps each: the first is the mean of steps 1 to 5, whose losses are 1000 to 996.
    assert data["step"].tolist() == [3 + 5 * n for n in range(200)]
    assert data["loss"].tolist() == [998 - 5 * n for n in range(200)]


def test_without_losses_the_figure_says_so(tmp_path: Path) -> None:
    _, data = draw("loss", gathered(tmp_path, measured("llm", {})))
    assert data["nothing_to_show"].tolist() == ["no losses were recorded"]


def test_rewards_have_a_panel_each_and_only_dpo_is_shown(tmp_path: Path) -> None:
    measures = measured("llm", {"technique": "lora"}, {"technique": "dpo"}, {"technique": "dpo", "repeat": 2})
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


def test_without_dpo_there_are_no_rewards(tmp_path: Path) -> None:
    _, data = draw("dpo_rewards", gathered(tmp_path, measured("llm", {}), steps=steps("run0", [2, 1])))
    assert data["nothing_to_show"].tolist() == ["no rewards were recorded: only DPO has them"]


def test_runs_without_rewards_take_none_of_the_names(tmp_path: Path) -> None:
    measures = measured("llm", {"technique": "lora", "devices": 2}, {"technique": "dpo", "learning_rate": 0.1})
    rewards = {"reward_chosen": [0.0], "reward_rejected": [0.0], "reward_accuracy": [0.0]}
    rows = [*steps("run0", [2]), *steps("run1", [2], **rewards)]
    figure, data = draw("dpo_rewards", gathered(tmp_path, measures, steps=rows))
    closed(figure)
    assert set(data["series"]) == {"1 CPU process"}
    assert isinstance(data, pd.DataFrame)
