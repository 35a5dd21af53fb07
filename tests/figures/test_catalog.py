"""Figures show what the measures say, in every format."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd
import pytest

from figures.measured import (
    adopted,
    closed,
    gathered,
    group_names,
    heading,
    lengths,
    measured,
    pictures,
    scripts,
    texts,
    words,
)
from multicard.analysis.comparisons import varied
from multicard.analysis.measures import MEASURES_OF
from multicard.analysis.provenance import notes
from multicard.analysis.scenario_tables import OUTCOME_TABLE
from multicard.experiment.config import PARAMETERS, FigureName
from multicard.experiment.figures import FIGURES
from multicard.experiment.workload import WORKLOADS
from multicard.figures.draw import draw, write
from multicard.figures.gains import precision
from multicard.figures.scaling import iteration_time, speedup
from multicard.figures.series import labels
from multicard.figures.steps import step_breakdown
from multicard.figures.style import styled

TABLES = {"vision": pictures, "llm": texts, "script": scripts, "adopted": adopted}
# Figures of which measures alone give a row per configuration.
OF_CONFIGURATIONS = {
    "iteration_time", "step_breakdown", "speedup", "image_size_scaling", "precision", "techniques", "text_datasets",
}  # fmt: skip
# A configuration is refused that asks for a figure of a parameter which its workload does not have.
DRAWN = [
    (name, work)
    for name, entry in FIGURES.items()
    for work in WORKLOADS
    if entry.workload in (None, work) and entry.axis in (None, *WORKLOADS[work].parameters.model_fields)
]


def drawn(name: str, measures: pd.DataFrame, folder: Path) -> str:
    """Draw a figure of measures alone into `folder` and give the words in it."""
    write(name, gathered(folder / "scenario", measures), folder / name)
    return words_of(folder / f"{name}.svg")


def words_of(svg: Path) -> str:
    """Text of an SVG on one line."""
    return " ".join(re.sub(r"<[^>]+>", " ", svg.read_text()).split())


def test_the_catalog_is_what_a_configuration_may_ask_for() -> None:
    assert list(FIGURES) == list(get_args(FigureName))
    assert {entry.axis for entry in FIGURES.values()} <= {None, *PARAMETERS}
    assert {entry.workload for entry in FIGURES.values()} <= {None, *WORKLOADS}


def test_a_configuration_knows_the_figures_without_loading_what_draws_them() -> None:
    loaded = "import sys, multicard.experiment.load; print({'matplotlib', 'pandas', 'numpy'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_every_figure_says_what_it_asks_and_how_it_is_read() -> None:
    for entry in FIGURES.values():
        assert entry.question.endswith("?")
        assert entry.caption.endswith(".")
        assert "  " not in entry.caption
    assert FIGURES["image_size_scaling"].answers == "A, figure 2"
    assert FIGURES["step_breakdown"].answers is None


def test_all_whiskers_are_the_same_interval() -> None:
    for entry in FIGURES.values():
        for sentence in entry.caption.split(". "):
            if "Whiskers" in sentence or (entry.name == "tradeoff" and sentence.startswith("Bars")):
                assert "95% confidence interval" in sentence and "range" not in sentence
    for name in ("speedup", "gain_layout", "profiler_overhead"):
        assert "medians" not in FIGURES[name].caption and "geometric means" in FIGURES[name].caption


@pytest.mark.parametrize(("name", "workload"), DRAWN)
def test_a_figure_is_drawn_in_every_format_with_its_numbers(name: str, workload: str, tmp_path: Path) -> None:
    write(name, gathered(tmp_path, TABLES[workload]()), tmp_path / "drawn" / name)
    files = {path.name for path in (tmp_path / "drawn").iterdir()}
    assert files == {f"{name}.{suffix}" for suffix in ("png", "svg", "pdf", "csv")}
    assert (tmp_path / "drawn" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "drawn" / f"{name}.pdf").read_bytes().startswith(b"%PDF")
    if name in OF_CONFIGURATIONS:
        assert len(pd.read_csv(tmp_path / "drawn" / f"{name}.csv")) == 5


@pytest.mark.parametrize(("name", "measures"), [("speedup", pictures), ("text_datasets", texts)])
def test_the_same_measures_give_the_same_files(name: str, measures: Callable[[], pd.DataFrame], tmp_path: Path) -> None:
    for folder in ("a", "b"):
        drawn(name, measures(), tmp_path / folder)
    for suffix in ("png", "svg", "pdf", "csv"):
        assert (tmp_path / f"a/{name}.{suffix}").read_bytes() == (tmp_path / f"b/{name}.{suffix}").read_bytes()


@pytest.mark.parametrize(("name", "workload"), DRAWN)
def test_a_figure_is_drawn_of_what_completed_and_was_recorded(name: str, workload: str, tmp_path: Path) -> None:
    measured = TABLES[workload]()
    recorded = [*MEASURES_OF[workload], "speedup", "efficiency"]
    failed = [measured.copy() for _ in range(4)]
    for measures, lost in zip(failed, ([0], [0, 1], range(2, 10), range(9)), strict=True):
        measures.loc[list(lost), "outcome"] = "failed"
        measures.loc[list(lost), recorded] = float("nan")
    alone = measured[(measured["devices"] == 1) & (measured["repeat"] == 1)]
    for number, measures in enumerate((*failed, alone, measured.assign(**dict.fromkeys(recorded)), measured[:0])):
        figure, _ = draw(name, gathered(tmp_path / str(number), measures))
        with styled():
            figure.draw_without_rendering()
            closed(figure)


def test_lines_pass_through_the_geometric_means_of_the_repeats() -> None:
    figure = closed(iteration_time(pictures())[0])
    drawn = {container.get_label(): container.lines[0].get_ydata().tolist() for container in figure.axes[0].containers}
    assert drawn["ddp, fp32"] == pytest.approx([100 * 1.1**0.5, 200 * 1.1**0.5])


def test_an_interval_is_drawn_only_where_there_are_repeats() -> None:
    def widths(measures: pd.DataFrame) -> list[float]:
        figure = closed(iteration_time(measures)[0])
        bars = [container.lines[2][0] for container in figure.axes[0].containers]
        return [float(ends[1, 1] - ends[0, 1]) for each in bars for ends in each.get_segments() if len(ends)]

    # All second repeats take a tenth longer: log 1.1 / 2 to each side, times t of one degree of freedom.
    means, reach = 1.1**0.5 * np.array([100, 200, 120, 140, 300]), 12.7062 * np.log(1.1) / 2
    assert widths(pictures()) == pytest.approx(means * 2 * np.sinh(reach), rel=1e-4)
    assert widths(pictures()[lambda m: m["repeat"] == 1]) == []


def test_the_ideal_speedup_is_drawn() -> None:
    figure = closed(speedup(pictures())[0])
    [ideal] = [line for line in figure.axes[0].get_lines() if line.get_label() == "ideal"]
    assert list(ideal.get_xdata()) == list(ideal.get_ydata()) == [1, 2]


def test_long_whiskers_of_two_repeats_are_cut_at_the_edge_of_the_panel() -> None:
    rows = [
        {"strategy": "ddp-ds", "devices": n, "repeat": repeat, "throughput_samples_per_s": rate}
        for n, rates in ((1, (10.0, 10.0)), (2, (10.0, 40.0)))
        for repeat, rate in enumerate(rates, start=1)
    ]
    figure, data = speedup(measured("vision", *rows))
    left, _ = closed(figure).axes
    assert data["speedup_high"].iloc[1] > 1000
    assert left.get_ylim() == (0, pytest.approx(1.07 * 2 * 2))
    [two] = left.containers
    assert all(artist.get_clip_on() for artist in (*two.lines[1], *two.lines[2]))
    assert not two.lines[0].get_clip_on()


def test_axes_carry_units_and_the_kind_of_device(tmp_path: Path) -> None:
    text = drawn("iteration_time", pictures(), tmp_path)
    for label in ("Time per step (ms)", "Distinct samples per second", "CPU processes"):
        assert label in text


def test_throughput_of_texts_is_in_tokens() -> None:
    left, right = closed(iteration_time(texts())[0]).axes
    assert right.get_ylabel() == "Tokens per second"
    assert heading(right) == "Throughput, without padding"
    # 100 tokens in 100 ms, 200 in 160 ms.
    assert right.containers[0].lines[0].get_ydata().tolist() == pytest.approx([1000, 1250])
    assert left.containers[0].get_label() == "preferences, LoRA"


def test_an_axis_of_times_counts_in_seconds_where_steps_take_that_long() -> None:
    slow = pictures().assign(**{name: pictures()[name] * 10 for name in ("iteration_time_s", "forward_s")})
    assert closed(iteration_time(slow)[0]).axes[0].get_ylabel() == "Time per step (s)"
    assert closed(precision(slow)[0]).axes[0].get_ylabel() == "Time per step (s)"
    assert closed(step_breakdown(slow)[0]).axes[0].get_xlabel() == "Mean time per step (s)"
    assert closed(step_breakdown(pictures())[0]).axes[0].get_xlabel() == "Mean time per step (ms)"


def test_the_parts_of_a_step_add_up_to_it() -> None:
    [axes] = closed(step_breakdown(texts())[0]).axes
    assert group_names(axes, horizontal=True) == [
        "preferences, LoRA, 1 CPU process", "preferences, LoRA, 2 CPU processes",
        "preferences, DPO, 1 CPU process", "preferences, DPO, 2 CPU processes",
        "articles, LoRA, 1 CPU process",
    ]  # fmt: skip
    parts = lengths(axes)
    assert list(parts) == ["forward", "backward", "other"]
    # Medians of two repeats: 105 ms, 168 ms, …
    assert [sum(bar) for bar in zip(*parts.values(), strict=True)] == pytest.approx([105, 168, 210, 315, 525])


def test_jobs_of_which_nothing_varies_are_named_by_strategy_or_technique() -> None:
    for measures, name in ((pictures(), "ddp, 1 CPU process"), (texts(), "LoRA, 1 CPU process")):
        [axes] = closed(step_breakdown(measures[:2])[0]).axes
        assert group_names(axes, horizontal=True) == [name]


def test_a_precision_that_did_not_complete_keeps_its_place() -> None:
    measures = pictures()[lambda m: m["strategy"] == "ddp-ds"].reset_index(drop=True)
    measures.loc[measures["precision"] == "fp64", "outcome"] = "diverged"
    left, right = closed(precision(measures)[0]).axes
    assert group_names(left) == group_names(right) == ["fp32", "fp64"]
    assert words(left) == words(right) == ["diverged"]


def test_runs_that_did_not_complete_are_counted_over_the_figure(tmp_path: Path) -> None:
    measures = pictures()
    measures.loc[0, "outcome"] = "out_of_memory"
    assert "Without numbers: 1 out of memory" in drawn("step_breakdown", measures, tmp_path)


def test_runs_that_cannot_run_here_are_counted_over_the_figure(tmp_path: Path) -> None:
    measures = pictures()
    measures.loc[0, "outcome"] = "diverged"
    scenario = gathered(tmp_path, measures)
    outcomes = pd.DataFrame({"run": ["a", "b", "c"], "outcome": ["completed", "not run", "not run"], "reason": None})
    outcomes.to_csv(tmp_path / OUTCOME_TABLE, index=False)
    write("step_breakdown", scenario, tmp_path / "f")
    assert "Without numbers: 1 diverged, 2 not run here" in words_of(tmp_path / "f.svg")


def test_when_no_run_completed_the_figure_says_so(tmp_path: Path) -> None:
    svg = drawn("speedup", pictures().assign(outcome="failed"), tmp_path)
    assert "No run completed" in svg
    assert "Without numbers: 10 failed" in svg
    assert (tmp_path / "speedup.csv").read_text().splitlines() == ["nothing_to_show", "No run completed"]


def test_a_figure_of_cuda_says_of_runs_on_cpus_why_it_is_empty(tmp_path: Path) -> None:
    for name, what in (
        ("cuda_api", "CUDA calls"),
        ("kernel_classes", "kernels"),
        ("device_time", "activity of devices"),
    ):
        assert f"No {what} were recorded (runs on CPUs)" in drawn(name, pictures(), tmp_path)
    assert "No energy was recorded (a CPU has no meter)" in drawn("energy", pictures(), tmp_path)


def test_one_number_of_devices_gives_no_efficiency(tmp_path: Path) -> None:
    alone = pictures()[lambda m: m["devices"] == 2]
    assert "Completed runs on 2 CPU processes only: neither speed-up nor efficiency" in drawn(
        "speedup", alone, tmp_path
    )
    svg = drawn("image_size_scaling", alone, tmp_path)
    assert "no efficiency" in svg
    assert "Speed-up per device" in svg


def test_runs_of_several_machines_or_versions_are_marked_over_the_figure(tmp_path: Path) -> None:
    measures = pictures()[:2]
    info = [{"run": "run0", "machine": "4 × H100", "versions": "python 3.11, torch 2.10"}]
    same = gathered(tmp_path / "same", measures, runs_info=[*info, info[0] | {"run": "run1"}])
    assert notes(same) == []
    other = {"run": "run1", "machine": "1 × H$200$", "versions": "python 3.11, torch 2.11"}
    both = gathered(tmp_path / "both", measures, runs_info=[*info, other])
    assert notes(both) == ["2 machines: 4 × H100; 1 × H$200$", "2 sets of versions: torch 2.10, torch 2.11"]
    plain = {"NCCL_DEBUG": "WARN"}
    tuned = info[0] | {"variables": json.dumps(plain | {"NCCL_ALGO": "Ring"})}
    untuned = info[0] | {"run": "run1", "variables": json.dumps(plain)}
    set_apart = gathered(tmp_path / "apart", measures, runs_info=[tuned, untuned])
    assert notes(set_apart) == ["2 sets of environment variables: NCCL_ALGO Ring or not set"]
    write("step_breakdown", both, tmp_path / "f")
    assert "2 machines: 4 × H100; 1 × H$200$" in words_of(tmp_path / "f.svg")


def test_a_figure_says_how_many_of_its_runs_were_disturbed_and_by_what(tmp_path: Path) -> None:
    measures = pictures()[:2]
    measures["disturbance"] = [None, "other processes: 1.6 CPUs; GPU throttled (thermal): seen on rank 0"]
    tables = gathered(tmp_path, measures)
    [line] = notes(tables)
    assert line == "Disturbed: 1 of 2 runs (other processes: 1.6 CPUs; GPU throttled (thermal): seen on rank 0)"
    write("step_breakdown", tables, tmp_path / "f")
    assert line in words_of(tmp_path / "f.svg")


def test_a_figure_of_synthetic_runs_says_so(tmp_path: Path) -> None:
    info = [{"run": "run0", "machine": "4 × synthetic GPU", "versions": "python 3.11"}]
    write("step_breakdown", gathered(tmp_path, pictures()[:2], runs_info=info), tmp_path / "f")
    assert "Synthetic: all runs, on no real machine" in words_of(tmp_path / "f.svg")
    assert set(pd.read_csv(tmp_path / "f.csv")["synthetic"]) == {"all"}
    real = {"run": "run1", "machine": "4 × H100", "versions": "python 3.11"}
    write("step_breakdown", gathered(tmp_path, pictures()[:2], runs_info=[*info, real]), tmp_path / "f")
    assert "Synthetic: some runs, on no real machine" in words_of(tmp_path / "f.svg")
    assert set(pd.read_csv(tmp_path / "f.csv")["synthetic"]) == {"some"}
    write("step_breakdown", gathered(tmp_path, pictures()[:2], runs_info=[real]), tmp_path / "f")
    assert "synthetic" not in pd.read_csv(tmp_path / "f.csv")


def named(*changes: dict[str, Any], workload: str = "vision") -> list[str]:
    rows = pd.DataFrame([WORKLOADS[workload].parameters(**change).model_dump() for change in changes])
    return labels(rows, varied(rows, besides=("devices", "repeat")))


def test_series_are_named_by_what_varies_in_words() -> None:
    assert named({"loader": "torch"}, {"loader": "dali"}) == ["DataLoader", "DALI"]
    assert named({"layout": "nchw"}, {"layout": "nhwc"}) == ["NCHW", "NHWC"]
    assert named({"pin_memory": True}, {"pin_memory": False}) == ["pinned memory", "pageable memory"]
    assert named({"image_size": 100, "precision": "fp64"}, {"image_size": 200}) == ["100 px, fp64", "200 px, fp32"]


def test_series_of_language_models_are_named_in_words() -> None:
    for name, values, expected in (
        ("technique", ("lora", "qlora", "qat", "dpo", "full"), ["LoRA", "QLoRA", "QAT", "DPO", "full"]),
        ("packed", (True, False), ["packed", "not packed"]),
        ("activation_checkpointing", (True, False), ["recomputed activations", "kept activations"]),
        ("sequence_length", (256, 2048), ["256 tokens", "2048 tokens"]),
        ("gradient_accumulation_steps", (1, 4), ["1 batch per step", "4 batches per step"]),
        ("model", ("tiny", "llama3-8b"), ["tiny", "llama3-8b"]),
        ("dataset", ("articles", "chats"), ["articles", "chats"]),
        ("lora_rank", (8, 16), ["rank 8", "rank 16"]),
    ):
        assert named(*({name: value} for value in values), workload="llm") == expected
    kinds = ({"technique": "qat", "qat_of": of} for of in ("adapters", "weights"))
    assert named(*kinds, workload="llm") == ["QAT of adapters", "QAT of weights"]


def test_what_only_one_technique_has_is_not_named_of_others() -> None:
    kinds = ({"technique": "lora"}, {"technique": "qat"}, {"technique": "qat", "qat_of": "weights"})
    assert named(*kinds, workload="llm") == ["LoRA", "QAT of adapters", "QAT of weights"]


def test_techniques_to_which_nothing_named_applies_have_their_own_name() -> None:
    kinds = [{"technique": name} for name in ("lora", "qlora", "dpo", "full", "qat")]
    kinds.append({"technique": "qat", "qat_of": "weights"})
    rows = pd.DataFrame([WORKLOADS["llm"].parameters(**kind).model_dump() for kind in kinds])
    assert labels(rows, ["qat_of"]) == ["LoRA", "QLoRA", "DPO", "full", "QAT of adapters", "QAT of weights"]


def test_steps_of_an_epoch_read_from_csv_are_whole_numbers_or_all() -> None:
    rows = pd.DataFrame({"workload": "vision", "strategy": "ddp", "steps_per_epoch": [100.0, float("nan")]})
    assert labels(rows, ["steps_per_epoch"]) == ["100 steps per epoch", "full epochs"]


def test_what_a_preset_brings_is_not_named_again() -> None:
    assert named({}, {"preset": "tuned"}) == ["paper settings", "tuned settings"]
    both = named({}, {"preset": "tuned"}, {"preset": "tuned", "layout": "nchw"})
    assert both == ["NCHW, paper settings", "NHWC, tuned settings", "NCHW, tuned settings"]


def test_an_axis_says_when_devices_share_a_batch() -> None:
    figure = closed(speedup(pictures().assign(scaling="strong"))[0])
    assert figure.axes[0].get_xlabel() == "CPU processes, sharing one batch"


def test_captions_are_plain_text_as_the_report_shows_them() -> None:
    assert [name for name, entry in FIGURES.items() if re.search(r"[`*]|\]\(", entry.caption)] == []
