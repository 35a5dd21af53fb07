"""Figures show what the measures say, in every format."""

import re
from collections.abc import Callable
from importlib import import_module
from itertools import chain
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from figures.measured import (
    adopted,
    closed,
    drawn,
    explained,
    gathered,
    group_names,
    heading,
    lines,
    measured,
    pictures,
    said,
    scripts,
    texts,
    words,
)
from multicard import figures
from multicard.answers.comparison.comparisons import ORDER
from multicard.answers.notes import notes
from multicard.config.figures import FIGURES, FigureEntry
from multicard.figures.catalog import Drawing, load_drawing
from multicard.figures.draw import draw, draw_scenario
from multicard.figures.style import styled
from multicard.results.measure import MEASURES_OF
from multicard.results.results import Results
from multicard.results.tables import OUTCOME_TABLE

TABLES = (("vision", pictures), ("llm", texts), ("script", scripts), ("script", adopted))
# Figures of which measures alone give a row per configuration.
OF_CONFIGURATIONS = {"iteration_time", "step_breakdown", "speedup", "image_size_scaling", "techniques"}
LOST: tuple[list[int], ...] = ([], [0], [0, 1], list(range(2, 10)), list(range(9)))  # of ten runs


def test_the_catalog_lists_every_drawing_once() -> None:
    drawings = []
    for path in Path(figures.__file__).parent.glob("[a-z]*.py"):
        module = import_module(f"multicard.figures.{path.stem}")
        drawings += [(path.stem, name) for name, value in vars(module).items() if isinstance(value, Drawing)]
    assert sorted(drawings) == sorted((entry.module, entry.name) for entry in FIGURES.values())
    assert {f"gain_{parameter}" for parameter in ORDER} <= set(FIGURES)


@pytest.mark.parametrize("entry", FIGURES.values(), ids=FIGURES)
def test_a_figure_that_a_configuration_may_ask_for_says_how_it_is_read(entry: FigureEntry) -> None:
    assert entry.workloads, "a program has what it needs"
    drawing = load_drawing(entry.name)
    assert drawing.draw.__name__ == entry.name
    assert drawing.question.endswith("?") and drawing.caption.endswith(".")
    assert not re.search(r"[`*]|\]\(|  ", drawing.caption), "plain text, as the report shows it"
    # All whiskers are the same interval.
    for sentence in drawing.caption.split(". "):
        if "Whiskers" in sentence:
            assert "95% confidence interval" in sentence and "range" not in sentence


@pytest.mark.slow
@pytest.mark.parametrize(("name", "measures"), [("speedup", pictures), ("techniques", texts)])
def test_a_figure_is_written_in_every_format_and_the_same_measures_give_the_same_files(
    name: str, measures: Callable[[], pd.DataFrame], tmp_path: Path
) -> None:
    for folder in ("a", "b"):
        scenario = tmp_path / "scenario" / folder
        gathered(scenario, measures())
        draw_scenario([name], scenario, tmp_path / folder)
    files = {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()}
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "b").iterdir()}
    begins = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF", "csv": b"series,", "txt": b"What does each"}
    assert {f"{name}.{suffix}" for suffix in begins} == set(files)
    assert all(files[f"{name}.{suffix}"].startswith(first) for suffix, first in begins.items())


@pytest.mark.slow
@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_drawn_of_what_completed_and_was_recorded(name: str, tmp_path: Path) -> None:
    """Each of the tables that it may draw, in turn, has lost something else."""
    # A configuration is refused that asks for a figure which its workload cannot have.
    tables = [(work, table) for work, table in TABLES if work in FIGURES[name].workloads]
    for number, lost in enumerate(chain(LOST, ("repeats", "measures"))):
        work, table = tables[number % len(tables)]
        measures = table()
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
    def shown(measures: pd.DataFrame) -> tuple[dict[str, list[list[float]]], list[float]]:
        left, _ = drawn("iteration_time", measures)[0].axes
        bars = [container.lines[2][0] for container in left.containers]
        return lines(left), [float(ends[1, 1] - ends[0, 1]) for bar in bars for ends in bar.get_segments() if len(ends)]

    # All second repeats take a tenth longer: log 1.1 / 2 to each side, times t of one degree of freedom.
    means, reach = 1.1**0.5 * np.array([100, 200, 120, 140, 300]), 12.7062 * np.log(1.1) / 2
    found, widths = shown(pictures())
    assert found["ddp, fp32"][1] == pytest.approx(means[:2])
    assert widths == pytest.approx(means * 2 * np.sinh(reach), rel=1e-4)
    assert shown(pictures()[lambda m: m["repeat"] == 1])[1] == []


def test_speed_up_and_efficiency_have_a_panel_each_with_the_ideal_and_the_kind_of_scaling() -> None:
    left, right = drawn("speedup", pictures().assign(scaling="strong"))[0].axes
    assert lines(left)["ideal"] == [[1, 2], [1, 2]] and lines(right)["ideal"] == [[1, 2], [1, 1]]
    assert left.get_xlabel() == "CPU processes\n(strong scaling: one batch shared)"
    # 64 samples in 120 ms on one, 128 in 140 ms on two.
    assert lines(left)["ddp-ds, fp32"][1] == pytest.approx([1, 2 * 120 / 140])
    assert lines(right)["ddp-ds, fp32"][1] == pytest.approx([1, 120 / 140])


def rates(*counts: int) -> pd.DataFrame:
    """One run per number of devices, of which each adds 10 samples per second."""
    return measured(
        "vision",
        *(
            {"strategy": "ddp-ds", "devices": n, "throughput_samples_per_s": 10.0 * n, "iteration_time_s": 1.0}
            for n in counts
        ),
    )


def test_axes_are_logarithmic_where_numbers_of_devices_double() -> None:
    for counts, scale in (((1, 2, 4), "log"), ((1, 2, 4, 8, 16), "log"), ((1, 2, 3), "linear"), ((1, 2), "linear")):
        left, right = drawn("speedup", rates(*counts))[0].axes
        assert (left.get_xscale(), left.get_yscale()) == (scale, scale)
        # Efficiencies do not double, and shares of the whole begin at zero.
        assert (right.get_xscale(), right.get_yscale()) == (scale, "linear") and right.get_ylim()[0] == 0
        time, rate = drawn("iteration_time", rates(*counts))[0].axes
        assert (time.get_yscale(), rate.get_yscale()) == ("linear", scale)
        for axes in (left, right, time, rate):
            assert axes.get_xticks().tolist() == list(counts)


def test_throughput_per_device_is_level_if_scaling_is_ideal() -> None:
    figure, data = drawn("throughput_per_device", rates(1, 2, 4))
    [axes] = figure.axes
    assert lines(axes)["_"] == [[1, 2, 4], [10, 10, 10]]
    assert axes.get_ylabel() == "Distinct samples per second\nand CPU process"
    assert data["throughput_samples_per_s_per_device"].tolist() == [10, 10, 10]
    tokens = drawn("throughput_per_device", texts())[1]
    # 100 tokens in 100 ms on one, 200 in 160 ms on two, for each of which 625 per second; a tenth slower is a repeat.
    lora = tokens[(tokens["technique"] == "lora") & (tokens["dataset"] == "preferences")]
    assert lora["tokens_per_s_per_device"].tolist() == pytest.approx([1000, 625])


def test_strong_and_weak_scaling_are_two_lines_of_one_plot_with_one_ideal() -> None:
    """Each of two devices does 10 steps of 64 samples per second under weak, and 16 of half as many under strong."""
    runs = [
        {"strategy": "ddp-ds", "scaling": scaling, "devices": n, "throughput_samples_per_s": rate}
        for scaling, rates_by_count in (("weak", (640.0, 1280.0, 2560.0)), ("strong", (640.0, 1024.0, 1280.0)))
        for n, rate in zip((1, 2, 4), rates_by_count, strict=True)
    ]
    figure, data = drawn("speedup", measured("vision", *runs))
    left, right = figure.axes
    drawn_lines = lines(left)
    assert drawn_lines["weak scaling"][1] == pytest.approx([1, 2, 4])
    assert drawn_lines["strong scaling"][1] == pytest.approx([1, 1.6, 2])
    assert drawn_lines["ideal"] == [[1, 2, 4], [1, 2, 4]]
    assert lines(right)["strong scaling"][1] == pytest.approx([1, 0.8, 0.5])
    # The axis does not call both by one name.
    assert left.get_xlabel() == "CPU processes"
    assert data["scaling"].tolist() == ["weak"] * 3 + ["strong"] * 3


def test_two_numbers_of_devices_are_not_joined_by_a_line() -> None:
    styles = [
        drawn("speedup", rates(*counts))[0].axes[0].containers[0].lines[0].get_linestyle()
        for counts in ((1, 2), (1, 2, 4))
    ]
    assert styles == ["None", "-"]


def test_marks_that_coincide_lie_side_by_side() -> None:
    rows = [
        {"strategy": "ddp-ds", "num_workers": workers, "devices": n, "throughput_samples_per_s": 10.0 * n}
        for workers in (1, 2, 3, 4, 5)
        for n in (1, 2, 4)
    ]
    figure, _ = draw("speedup", Results(measured("vision", *rows)), "column")
    with styled("column"):
        closed(figure).draw_without_rendering()
    axes = figure.axes[0]
    places = np.array([container.lines[0].get_data() for container in axes.containers])
    pixels = [axes.transData.transform(place.T.astype(float))[0, 0] for place in places]
    marker_width = 5 / 72 * figure.dpi
    assert min(np.diff(pixels)) > 0.7 * marker_width
    # The marks of one number of devices stay nearer to it than to the next.
    assert places[:, 0].max(axis=0)[0] < 2**0.5 and places[:, 0].min(axis=0)[1] > 2**0.5


def test_long_whiskers_of_two_repeats_are_cut_at_the_edge_of_the_panel() -> None:
    rows = [
        {"strategy": "ddp-ds", "devices": n, "repeat": repeat, "throughput_samples_per_s": rate}
        for n, rates in ((1, (10.0, 10.0)), (2, (10.0, 40.0)))
        for repeat, rate in enumerate(rates, start=1)
    ]
    figure, data = drawn("speedup", measured("vision", *rows))
    assert data["speedup_high"].iloc[1] > 1000
    assert figure.axes[0].get_ylim() == (0, pytest.approx(1.07 * 2 * 4))  # twice the highest repeat
    arrows = [line.get_data() for line in figure.axes[0].get_lines() if line.get_marker() == "^"]
    assert [(list(x), list(y)) for x, y in arrows] == [([2], [pytest.approx(1.07 * 2 * 4)])]
    assert not [line for line in figure.axes[0].get_lines() if line.get_marker() == "v"]
    assert [text.get_text() for text in figure.axes[0].texts] == [f"{data['speedup_high'].iloc[1]:,.0f}"]
    # Of the efficiency, which is half of it, in per cent as on the axis.
    assert [text.get_text() for text in figure.axes[1].texts] == [f"{100 * data['speedup_high'].iloc[1] / 2:.0f}%"]


def test_axes_carry_units_and_the_kind_of_device() -> None:
    left, right = drawn("iteration_time", pictures())[0].axes
    assert left.get_ylabel() == "Time per step (ms)"
    assert left.get_xlabel() == "CPU processes\n(weak scaling: one batch each)"
    assert right.get_ylabel() == "Distinct samples per second"
    left, right = drawn("iteration_time", texts())[0].axes
    assert (heading(right), right.get_ylabel()) == ("Throughput, without padding", "Tokens per second")
    assert lines(right)["preferences, LoRA"][1] == pytest.approx([1000, 1250])  # 100 tokens in 100 ms, 200 in 160 ms
    slow = pictures().assign(**{name: pictures()[name] * 10 for name in ("iteration_time_s", "forward_s")})
    assert drawn("iteration_time", slow)[0].axes[0].get_ylabel() == "Time per step (s)"
    # On one number of devices each series has a row, which the left panel names.
    left, right = drawn("iteration_time", pictures()[lambda m: m["devices"] == 2])[0].axes
    assert group_names(left) == ["ddp, fp32", "ddp-ds, fp32", "ddp-ds, fp64"]
    assert left.get_xlabel() == "Time per step (ms)"


def test_steps_per_second_stand_for_samples_that_are_not_known() -> None:
    unknown = scripts().assign(throughput_samples_per_s=None, speedup=None, efficiency=None)
    _, right = drawn("iteration_time", unknown)[0].axes
    assert (heading(right), right.get_ylabel()) == ("Throughput in steps", "Steps per second")
    assert "state samples_per_step" in drawn("speedup", unknown)[1]["nothing_to_show"].iloc[0]


def test_sizes_are_lines_of_time_and_efficiency_a_row_of_panels_per_precision() -> None:
    def sized(size: int, devices: int, precision: str = "fp32") -> dict[str, object]:
        """A run on GPUs whose pass takes a second per pixel of edge, divided by the devices."""
        return {
            "strategy": "ddp-ds", "device": "cuda", "image_size": size, "devices": devices, "precision": precision,
            "estimated_epoch_time_s": size / devices, "throughput_samples_per_s": 10 * devices / size,
        }  # fmt: skip

    rows = [sized(size, n, p) for p in ("fp64", "fp32") for size in (300, 100) for n in (1, 2)]
    panels = drawn("image_size_scaling", measured("vision", *rows))[0].axes
    assert [heading(axes) for axes in panels] == ["fp64: time", "fp64: efficiency", "fp32: time", "fp32: efficiency"]
    assert [axes.get_ylabel() for axes in panels[:2]] == ["Time per pass (min)", "Speed-up per device"]
    assert lines(panels[0])["100 px"][1] == pytest.approx([100 / 60, 50 / 60])
    # The last line that is drawn: of 300 px, from its time on one device on.
    assert lines(panels[0])["ideal"] == [[1, 2], pytest.approx([5, 2.5])]
    assert lines(panels[0])["300 px"][1] == pytest.approx([5, 2.5])
    assert lines(panels[1])["100 px"][1] == pytest.approx([1, 1])
    _, right = drawn("image_size_scaling", measured("vision", sized(100, 2), sized(300, 2)))[0].axes
    assert words(right) == ["completed runs on 2 GPUs only:\nno efficiency"]


def test_runs_that_did_not_complete_or_cannot_run_here_are_counted_in_the_caption(tmp_path: Path) -> None:
    measures = pictures()
    measures.loc[0, "outcome"] = "out_of_memory"
    scenario = gathered(tmp_path, measures)
    assert "Runs without numbers: 1 out of memory." in explained("step_breakdown", scenario)
    outcomes = pd.DataFrame({"run": ["a", "b", "c"], "outcome": ["completed", "not run", "not run"], "reason": None})
    outcomes.to_csv(tmp_path / OUTCOME_TABLE, index=False)
    assert "Runs without numbers: 1 out of memory, 2 cannot run here" in explained(
        "step_breakdown", gathered(tmp_path, measures)
    )


def test_a_figure_with_nothing_to_show_says_why(tmp_path: Path) -> None:
    failed = gathered(tmp_path / "failed", pictures().assign(outcome="failed"))
    assert said("speedup", failed) == "No run completed"
    shown = explained("speedup", failed)
    assert "Nothing to show: No run completed. Runs without numbers: 10 failed." in shown
    assert draw("speedup", failed)[1].to_dict("list") == {"nothing_to_show": ["No run completed"]}
    ablated = gathered(tmp_path / "ablated", pictures().assign(ablate="loader"))
    assert "No run completed" in said("step_breakdown", ablated)
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


def test_runs_of_several_machines_or_versions_are_marked_in_the_caption_and_not_in_the_picture(tmp_path: Path) -> None:
    measures = pictures()[:2]
    info = {"machine": "4 × H100", "versions": "python 3.11, torch 2.10", "variables": '{"NCCL_DEBUG": "WARN"}'}
    other = {"machine": "1 × H$200$", "versions": "python 3.11, torch 2.11"}
    tuned = {"variables": '{"NCCL_DEBUG": "WARN", "NCCL_ALGO": "Ring"}'}
    machines = ["2 machines: H$200$; H100", "2 sets of versions: torch 2.10, torch 2.11"]
    for number, (changes, lines_above) in enumerate(
        (
            ({}, []),
            ({"machine": "1 × H100"}, []),
            (other, machines),
            (tuned, ["2 sets of environment variables: NCCL_ALGO not set or Ring"]),
        )
    ):
        runs = [info | {"run": "run0"}, info | {"run": "run1"} | changes]
        scenario = gathered(tmp_path / str(number), measures, runs_info=runs)
        assert notes(scenario) == lines_above
        for line in lines_above:
            assert f"{line}." in explained("step_breakdown", scenario)
            assert "2 " not in said("step_breakdown", scenario)


def test_a_caption_says_what_was_trained_on_which_machine_and_how_often(tmp_path: Path) -> None:
    runs = [{"run": f"run{n}", "machine": "4 × H100, EPYC", "versions": "torch 2.10, profiler nsys"} for n in range(2)]
    scenario = gathered(tmp_path, pictures()[:2], runs_info=runs)
    text = explained("iteration_time", scenario)
    assert text.startswith(
        "How long does a step take, and how much work is done per second, as devices are added? "
        "Measured: digits, 32 px, mobilenet_v2; ddp; 4 × H100, EPYC; torch 2.10. "
    )
    assert text.endswith("n=2 repeats, 95% CI.")
    single = gathered(tmp_path / "single", pictures()[:1])
    assert explained("iteration_time", single).endswith("n=1: a single repeat of each, so no intervals.")


def test_a_figure_of_synthetic_runs_says_so(tmp_path: Path) -> None:
    made = {"run": "run0", "machine": "4 × synthetic GPU", "versions": "python 3.11"}
    real = {"run": "run1", "machine": "4 × H100", "versions": "python 3.11"}
    for which, info in (("all", [made]), ("some", [made, real])):
        scenario = gathered(tmp_path / which, pictures()[:2], runs_info=info)
        assert f"Synthetic timings, from no real machine: {which} runs." in explained("step_breakdown", scenario)
        # A picture may be shown without its caption.
        in_picture = {"all": "synthetic data", "some": "some data are synthetic"}[which]
        assert in_picture in said("step_breakdown", scenario)
        assert set(draw("step_breakdown", scenario)[1]["synthetic"]) == {which}
    assert "synthetic" not in draw("step_breakdown", gathered(tmp_path / "real", pictures()[:2], runs_info=[real]))[1]
