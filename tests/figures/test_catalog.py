"""Figures show what the measures say, in every format."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from itertools import chain
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
    said,
    scripts,
    texts,
    words,
)
from multicard.analysis.comparison.comparisons import varied
from multicard.analysis.provenance import notes
from multicard.analysis.runs.measures import MEASURES_OF
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
LOST: tuple[list[int], ...] = ([], [0], [0, 1], list(range(2, 10)), list(range(9)))  # of ten runs


def test_the_catalog_is_what_a_configuration_may_ask_for_and_says_how_each_is_read() -> None:
    assert list(FIGURES) == list(get_args(FigureName))
    assert {entry.axis for entry in FIGURES.values()} <= {None, *PARAMETERS}
    assert {entry.workload for entry in FIGURES.values()} <= {None, *WORKLOADS}
    for entry in FIGURES.values():
        assert entry.question.endswith("?") and entry.caption.endswith(".")
        assert not re.search(r"[`*]|\]\(|  ", entry.caption), "plain text, as the report shows it"
        for sentence in entry.caption.split(". "):  # all whiskers are the same interval
            if "Whiskers" in sentence or (entry.name == "tradeoff" and sentence.startswith("Bars")):
                assert "95% confidence interval" in sentence and "range" not in sentence
    for name in ("speedup", "gain_layout", "profiler_overhead"):
        assert "medians" not in FIGURES[name].caption and "geometric means" in FIGURES[name].caption


@pytest.mark.slow
def test_a_configuration_knows_the_figures_without_loading_what_draws_them() -> None:
    loaded = "import sys, multicard.experiment.load; print({'matplotlib', 'pandas', 'numpy'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "measures"), [("speedup", pictures), ("text_datasets", texts)])
def test_a_figure_is_written_in_every_format_and_the_same_measures_give_the_same_files(
    name: str, measures: Callable[[], pd.DataFrame], tmp_path: Path
) -> None:
    for folder in ("a", "b"):
        write(name, gathered(tmp_path / "scenario" / folder, measures()), tmp_path / folder / name)
    files = {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()}
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "b").iterdir()}
    begins = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF", "csv": b"series,"}
    assert {f"{name}.{suffix}" for suffix in begins} == set(files)
    assert all(files[f"{name}.{suffix}"].startswith(first) for suffix, first in begins.items())


@pytest.mark.slow
@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_drawn_of_what_completed_and_was_recorded(name: str, tmp_path: Path) -> None:
    """Each of its workloads, in turn, has lost something else."""
    entry = FIGURES[name]
    # A configuration is refused that asks for a figure of a parameter which its workload does not have.
    allowed = [work for work in WORKLOADS if entry.workload in (None, work)]
    works = [work for work in allowed if entry.axis in (None, *WORKLOADS[work].parameters.model_fields)]
    for number, lost in enumerate(chain(LOST, ("repeats", "measures"))):
        work = works[number % len(works)]
        measures = TABLES[work]()
        recorded = [*MEASURES_OF[work], "speedup", "efficiency"]
        if lost == "repeats":
            measures = measures[(measures["devices"] == 1) & (measures["repeat"] == 1)]
        elif lost == "measures":
            measures = measures.assign(**dict.fromkeys(recorded))
        else:
            measures.loc[lost, "outcome"] = "failed"
            measures.loc[lost, recorded] = float("nan")
        figure, data = draw(name, gathered(tmp_path / str(number), measures))
        assert number or name not in OF_CONFIGURATIONS or len(data) == 5
        if number in (0, len(LOST)):
            with styled():
                figure.draw_without_rendering()
        closed(figure)


def test_lines_pass_through_the_geometric_means_and_intervals_are_drawn_where_there_are_repeats() -> None:
    def drawn(measures: pd.DataFrame) -> tuple[dict[str, list[float]], list[float]]:
        containers = closed(iteration_time(measures)[0]).axes[0].containers
        bars = [container.lines[2][0] for container in containers]
        widths = [float(ends[1, 1] - ends[0, 1]) for each in bars for ends in each.get_segments() if len(ends)]
        return {each.get_label(): each.lines[0].get_ydata().tolist() for each in containers}, widths

    # All second repeats take a tenth longer: log 1.1 / 2 to each side, times t of one degree of freedom.
    means, reach = 1.1**0.5 * np.array([100, 200, 120, 140, 300]), 12.7062 * np.log(1.1) / 2
    lines, widths = drawn(pictures())
    assert lines["ddp, fp32"] == pytest.approx(means[:2])
    assert widths == pytest.approx(means * 2 * np.sinh(reach), rel=1e-4)
    assert drawn(pictures()[lambda m: m["repeat"] == 1])[1] == []


def test_the_ideal_speedup_is_drawn_and_an_axis_says_when_devices_share_a_batch() -> None:
    axes = closed(speedup(pictures().assign(scaling="strong"))[0]).axes[0]
    [ideal] = [line for line in axes.get_lines() if line.get_label() == "ideal"]
    assert list(ideal.get_xdata()) == list(ideal.get_ydata()) == [1, 2]
    assert axes.get_xlabel() == "CPU processes\n(strong scaling: one batch shared)"


def test_long_whiskers_of_two_repeats_are_cut_at_the_edge_of_the_panel() -> None:
    rows = [
        {"strategy": "ddp-ds", "devices": n, "repeat": repeat, "throughput_samples_per_s": rate}
        for n, rates in ((1, (10.0, 10.0)), (2, (10.0, 40.0)))
        for repeat, rate in enumerate(rates, start=1)
    ]
    figure, data = speedup(measured("vision", *rows))
    [left] = closed(figure).axes
    assert data["speedup_high"].iloc[1] > 1000
    assert left.get_ylim() == (0, pytest.approx(1.07 * 2 * 2))
    [two] = left.containers
    assert all(artist.get_clip_on() for artist in (*two.lines[1], *two.lines[2]))
    assert not two.lines[0].get_clip_on()


def test_axes_carry_units_and_the_kind_of_device() -> None:
    left, right = closed(iteration_time(pictures())[0]).axes
    assert left.get_ylabel() == "Time per step (ms)"
    assert left.get_xlabel() == "CPU processes\n(weak scaling: a batch on each)"
    assert right.get_ylabel() == "Distinct samples per second"
    left, right = closed(iteration_time(texts())[0]).axes
    assert (heading(right), right.get_ylabel()) == ("Throughput, without padding", "Tokens per second")
    # 100 tokens in 100 ms, 200 in 160 ms.
    assert right.containers[0].lines[0].get_ydata().tolist() == pytest.approx([1000, 1250])
    assert left.containers[0].get_label() == "preferences, LoRA"
    slow = pictures().assign(**{name: pictures()[name] * 10 for name in ("iteration_time_s", "forward_s")})
    assert closed(iteration_time(slow)[0]).axes[0].get_ylabel() == "Time per step (s)"
    assert closed(step_breakdown(slow)[0]).axes[0].get_xlabel() == "Mean time per step (s)"


def test_the_parts_of_a_step_add_up_to_it() -> None:
    [axes] = closed(step_breakdown(texts())[0]).axes
    assert group_names(axes, horizontal=True) == [
        "preferences, LoRA, 1 CPU process", "preferences, LoRA, 2 CPU processes",
        "preferences, DPO, 1 CPU process", "preferences, DPO, 2 CPU processes",
        "articles, LoRA, 1 CPU process",
    ]  # fmt: skip
    parts = lengths(axes)
    assert list(parts) == ["forward", "backward", "other"]
    # Means of two repeats: 105 ms, 168 ms, …
    assert [sum(bar) for bar in zip(*parts.values(), strict=True)] == pytest.approx([105, 168, 210, 315, 525])
    for measures, name in ((pictures(), "ddp, 1 CPU process"), (texts(), "LoRA, 1 CPU process")):  # nothing varies
        [axes] = closed(step_breakdown(measures[:2])[0]).axes
        assert group_names(axes, horizontal=True) == [name]


def test_a_precision_that_did_not_complete_keeps_its_place() -> None:
    measures = pictures()[lambda m: m["strategy"] == "ddp-ds"].reset_index(drop=True)
    measures.loc[measures["precision"] == "fp64", "outcome"] = "diverged"
    left, right = closed(precision(measures)[0]).axes
    assert group_names(left) == group_names(right) == ["fp32", "fp64"]
    assert words(left) == words(right) == ["diverged"]


def test_runs_that_did_not_complete_or_cannot_run_here_are_counted_over_the_figure(tmp_path: Path) -> None:
    measures = pictures()
    measures.loc[0, "outcome"] = "out_of_memory"
    scenario = gathered(tmp_path, measures)
    assert "Without numbers: 1 out of memory" in said("step_breakdown", scenario)
    outcomes = pd.DataFrame({"run": ["a", "b", "c"], "outcome": ["completed", "not run", "not run"], "reason": None})
    outcomes.to_csv(tmp_path / OUTCOME_TABLE, index=False)
    assert "Without numbers: 1 out of memory, 2 not run here" in said("step_breakdown", gathered(tmp_path, measures))


def test_a_figure_with_nothing_to_show_says_why(tmp_path: Path) -> None:
    failed = gathered(tmp_path / "failed", pictures().assign(outcome="failed"))
    shown = said("speedup", failed)
    assert "No run completed" in shown and "Without numbers: 10 failed" in shown
    assert draw("speedup", failed)[1].to_dict("list") == {"nothing_to_show": ["No run completed"]}
    on_cpus = gathered(tmp_path / "cpus", pictures())
    for name, what in (
        ("cuda_api", "CUDA calls"),
        ("kernel_classes", "kernels"),
        ("device_time", "activity of devices"),
    ):
        assert f"No {what} were recorded (runs on CPUs)" in said(name, on_cpus)
    assert "No energy was recorded (a CPU has no meter)" in said("energy", on_cpus)
    two = gathered(tmp_path / "two", pictures()[lambda m: m["devices"] == 2])
    assert "Completed runs on 2 CPU processes only: neither speed-up nor efficiency" in said("speedup", two)


def test_runs_of_several_machines_or_versions_are_marked_over_the_figure(tmp_path: Path) -> None:
    measures = pictures()[:2]
    info = {"run": "run0", "machine": "4 × H100", "versions": "python 3.11, torch 2.10"}
    same = gathered(tmp_path / "same", measures, runs_info=[info, info | {"run": "run1"}])
    assert notes(same) == []
    other = {"run": "run1", "machine": "1 × H$200$", "versions": "python 3.11, torch 2.11"}
    both = gathered(tmp_path / "both", measures, runs_info=[info, other])
    assert notes(both) == ["2 machines: 4 × H100; 1 × H$200$", "2 sets of versions: torch 2.10, torch 2.11"]
    assert r"2 machines: 4 × H100; 1 × H\$200\$" in said("step_breakdown", both)  # no formula
    plain = {"NCCL_DEBUG": "WARN"}
    tuned = info | {"variables": json.dumps(plain | {"NCCL_ALGO": "Ring"})}
    untuned = info | {"run": "run1", "variables": json.dumps(plain)}
    set_apart = gathered(tmp_path / "apart", measures, runs_info=[tuned, untuned])
    assert notes(set_apart) == ["2 sets of environment variables: NCCL_ALGO Ring or not set"]
    measures["disturbance"] = [None, "other processes: 1.6 CPUs; GPU throttled (thermal): seen on rank 0"]
    disturbed = gathered(tmp_path / "disturbed", measures)
    [line] = notes(disturbed)
    assert line == "Disturbed: 1 of 2 runs (other processes: 1.6 CPUs; GPU throttled (thermal): seen on rank 0)"
    assert line in said("step_breakdown", disturbed)


def test_a_figure_of_synthetic_runs_says_so(tmp_path: Path) -> None:
    made = {"run": "run0", "machine": "4 × synthetic GPU", "versions": "python 3.11"}
    real = {"run": "run1", "machine": "4 × H100", "versions": "python 3.11"}
    for which, info in (("all", [made]), ("some", [made, real])):
        scenario = gathered(tmp_path / which, pictures()[:2], runs_info=info)
        assert f"Synthetic: {which} runs, on no real machine" in said("step_breakdown", scenario)
        assert set(draw("step_breakdown", scenario)[1]["synthetic"]) == {which}
    assert "synthetic" not in draw("step_breakdown", gathered(tmp_path / "real", pictures()[:2], runs_info=[real]))[1]


def named(*changes: dict[str, Any], workload: str = "vision") -> list[str]:
    rows = pd.DataFrame([WORKLOADS[workload].parameters(**change).model_dump() for change in changes])
    return labels(rows, varied(rows, besides=("devices", "repeat")))


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ([{"loader": "torch"}, {"loader": "dali"}], ["DataLoader", "DALI"]),
        ([{"layout": "nchw"}, {"layout": "nhwc"}], ["NCHW", "NHWC"]),
        ([{"pin_memory": True}, {"pin_memory": False}], ["pinned memory", "pageable memory"]),
        ([{"image_size": 100, "precision": "fp64"}, {"image_size": 200}], ["100 px, fp64", "200 px, fp32"]),
        # What a preset brings is not named again.
        (
            [{}, {"preset": "tuned"}, {"preset": "tuned", "layout": "nchw"}],
            ["NCHW, paper settings", "NHWC, tuned settings", "NCHW, tuned settings"],
        ),
    ],
)
def test_series_are_named_by_what_varies_in_words(changes: list[dict[str, Any]], names: list[str]) -> None:
    assert named(*changes) == names


def test_series_of_language_models_are_named_in_words() -> None:
    for name, values, expected in (
        ("packed", (True, False), ["packed", "not packed"]),
        ("activation_checkpointing", (True, False), ["recomputed activations", "kept activations"]),
        ("sequence_length", (256, 2048), ["256 tokens", "2048 tokens"]),
        ("gradient_accumulation_steps", (1, 4), ["1 batch per step", "4 batches per step"]),
        ("dataset", ("articles", "chats"), ["articles", "chats"]),
        ("lora_rank", (8, 16), ["rank 8", "rank 16"]),
    ):
        assert named(*({name: value} for value in values), workload="llm") == expected
    # What only one technique has is not named of others.
    kinds = [{"technique": name} for name in ("lora", "qlora", "dpo", "full", "qat")]
    kinds.append({"technique": "qat", "qat_of": "weights"})
    expected = ["LoRA", "QLoRA", "DPO", "full", "QAT of adapters", "QAT of weights"]
    assert named(*kinds, workload="llm") == expected
    rows = pd.DataFrame([WORKLOADS["llm"].parameters(**kind).model_dump() for kind in kinds])
    assert labels(rows, ["qat_of"]) == expected  # a technique to which nothing named applies has its own name


def test_steps_of_an_epoch_read_from_csv_are_whole_numbers_or_all() -> None:
    rows = pd.DataFrame({"workload": "vision", "strategy": "ddp", "steps_per_epoch": [100.0, float("nan")]})
    assert labels(rows, ["steps_per_epoch"]) == ["100 steps per epoch", "full epochs"]
