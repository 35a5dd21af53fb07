"""Choices and recommendations of synthetic jobs, whose speed is known."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from factories import (
    GPU,
    OTHERWISE,
    Row,
    make_results,
    recommendations,
    repeats_of,
    strong_scaling_runs,
    vision_runs,
    with_provenance,
    write_results,
)
from multicard.answers.answer import HOW_MANY, HOW_SURE, WHICH
from multicard.answers.choice.answers import standing
from multicard.answers.choice.choice import Choice
from multicard.answers.choice.choices import as_table, choices
from multicard.answers.choice.recommend import advise, as_markdown
from multicard.answers.scaling.headline import headline
from multicard.cli import main
from multicard.core.errors import UserError
from multicard.core.files import write_json
from multicard.results.results import Results
from multicard.stats.interval import Interval

RATES = {1: 100.0, 2: 190.0, 4: 340.0}  # images per second on so many GPUs
SCRIPT = {"workload": "script", "command": ["train.py"], "device": "cuda"}


def scaled_runs(**others: Any) -> list[Row]:
    return [row for devices, rate in RATES.items() for row in strong_scaling_runs(devices, rate, **others)]


def best_of(evidence: Results) -> list[Choice]:
    """The best of each training on each number of devices."""
    return [row for job in choices(evidence) for row in job.rows if row.ratio is None]


# The table of choices -------------------------------------------------------------------------------------------------


def test_time_and_hours_follow_from_the_rates(tmp_path: Path) -> None:
    [job] = choices(make_results(tmp_path, scaled_runs(epochs=20, factors=(0.996, 1.0, 1.004))))
    # 200,000 images at 100, 190 and 340 per second.
    assert {each.devices: each.time_s.value for each in job.rows} == {
        1: pytest.approx(2000, rel=1e-4), 2: pytest.approx(1052.63, rel=1e-4), 4: pytest.approx(588.235, rel=1e-4),
    }  # fmt: skip
    assert job.rows[2].device_hours == pytest.approx(4 * 588.235 / 3600, rel=1e-4)
    # Logarithms of 0.996, 1 and 1.004 have a deviation of 0.004, and a mean of three reaches 4.303 / √3 of it. All rows
    # show the same blocks.
    assert job.rows[0].time_s.high == pytest.approx(2000 * (1 + 0.004 * 4.303 / 3**0.5), rel=1e-4)
    assert all(each.ratio is None for each in job.rows)


def test_what_never_completed_is_named_with_its_reason(tmp_path: Path) -> None:
    rows = (
        strong_scaling_runs(1, 100, disturbance="other processes: 1.6 CPUs")
        + strong_scaling_runs(2, 190)
        + strong_scaling_runs(4, 340)
    )
    for row in rows[5:]:
        row["outcome"] = "out_of_memory"
    rows[6]["outcome"] = "failed"
    evidence = make_results(tmp_path, rows)
    why = "failed in 1 of 3 runs, out of memory in 2 of 3 runs"
    [lost] = [line for line in recommendations(evidence).splitlines() if "4 GPUs" in line and why in line]
    assert lost.startswith("- mnist, 224 px")
    # Of two GPUs a repeat is lost.
    doubts = "; disturbed in 3 of 5 runs; 3 runs of 1 configuration never completed"
    # The repeats scatter by 0.1%, so that 2% is 20 standard deviations.
    small = "the repeats would show a difference of 2% (2 to 3 of each configuration, scatter 0.1%)"
    repeats = f"the only comparison is decided; {small}"
    assert f"How sure: {repeats}{doubts}" in recommendations(evidence).replace("\n  ", " ")
    table = as_table(choices(evidence)).set_index("devices")
    assert table.loc[4, ["lost", "repeats"]].tolist() == [why, 0] and table["speedup"].isna().tolist() == [0, 0, 1]
    for run in evidence.runs[6:]:  # SIGKILL leaves neither hardware nor versions
        record = tmp_path / "runs" / run.run / "run.json"
        write_json(record, json.loads(record.read_text()) | {"hardware": None, "versions": None, "ranks": []})
    assert why in recommendations(Results.read(tmp_path))


def test_versions_and_machines_are_kept_apart_but_not_profilers_or_parts_of_a_machine(tmp_path: Path) -> None:
    evidence = make_results(tmp_path, scaled_runs() + scaled_runs(profiled_steps=3))
    second = {run.run for run in evidence.runs[9:]}
    same, other = (
        with_provenance(
            evidence,
            versions=lambda run, torch=torch: (
                f"torch {torch}, profiler none" if run.run in second else "torch 2.11.0, profiler nsys"
            ),
            machine=lambda run: f"{run.values['devices']} × NVIDIA H100, AMD EPYC 9334, 128 CPUs",
        )
        for torch in ("2.11.0", "2.10.0")
    )
    [job] = choices(same)  # who observes is no choice
    assert [each.devices for each in job.rows] == [1, 2, 4]
    assert [len(job.rows) for job in choices(other)] == [3, 3]
    heads = [line for line in recommendations(other).splitlines() if line.startswith("## mnist")]
    assert [head.split(", on ")[1] for head in heads] == ["torch 2.10.0", "torch 2.11.0"]
    moved = with_provenance(evidence, machine=lambda run: f"1 × {'A100' if run is evidence.runs[0] else 'H100'}")
    assert len(choices(moved)) == 2


def test_only_what_is_shown_to_be_slower_is_called_slower(tmp_path: Path) -> None:
    rows = (
        strong_scaling_runs(2, 100)
        + strong_scaling_runs(2, 60, num_workers=1)
        + strong_scaling_runs(2, 99, OTHERWISE, num_workers=2)
    )
    rows += strong_scaling_runs(2, 50, (1.0,), num_workers=3) + strong_scaling_runs(1, 120, num_workers=4)
    [job] = choices(make_results(tmp_path, rows))
    slower = {(each.devices, each.configuration["num_workers"]): each.is_worse for each in job.rows}
    # A single repeat has the scatter of the others.
    assert slower == {(1, 4): False, (2, 0): False, (2, 1): True, (2, 2): False, (2, 3): True}
    text = recommendations(
        make_results(
            tmp_path / "two", strong_scaling_runs(2, 100) + strong_scaling_runs(2, 99, OTHERWISE, num_workers=2)
        )
    )
    assert "on 2 GPUs, num_workers: 0 against num_workers: 2: too scattered to tell (" in text
    assert "| 2 GPUs | num_workers: 2 | 99.0 (95% CI " in text and " | not significantly slower |" in text
    # Its own interval excludes 1, and that of the fastest of many would not.
    [second] = [row for row in job.rows if row.ratio and not row.is_worse]
    one_of_many = replace(second, ratio=Interval(0.9, 0.85, 0.95, 2, p_value=0.2))
    assert standing(one_of_many) == "not significantly slower among so many comparisons"


def test_a_second_that_is_not_shown_to_be_slower_is_worded_as_in_a_headline(tmp_path: Path) -> None:
    less, more = (1.04, 1.0, 0.96), (0.96, 1.0, 1.04)
    rows = vision_runs(100, less, devices=2) + vision_runs(101, more, devices=2, layout="nhwc")
    evidence = make_results(tmp_path, rows)
    [which] = [answer for answer in advise(evidence).jobs[0].answers if answer.question == WHICH]
    assert which.sentence.startswith("on 2 GPUs, no difference shown between layout: nhwc and layout: nchw: 1.01× (")
    assert headline(evidence).sentence.startswith("no difference shown between layout nhwc and nchw: 1.01× (")


def test_precision_and_batch_are_never_traded_silently(tmp_path: Path) -> None:
    rows = scaled_runs() + strong_scaling_runs(2, 400, precision="bf16") + strong_scaling_runs(2, 500, batch_size=128)
    evidence = make_results(tmp_path, rows)
    text = recommendations(evidence)
    # 500 and 400 images per second in place of 190.
    assert "- If you may change: global batch size: 64 → 128: 2.63× as fast (95% CI" in text
    assert "; precision: fp32 → bf16: 2.105× as fast (95% CI" in text
    for name, rows_of, title in (("same", [], "measured"), ("other", [600], "of the same training")):
        faster = [row for rate in rows_of for row in strong_scaling_runs(4, rate, precision="bf16")]
        found = advise(make_results(tmp_path / name, scaled_runs() + faster))
        assert found.jobs[0].tiles[0].title == f"Fastest {title}: 4 GPUs"
    [job] = choices(evidence)
    assert not any(each.is_worse for each in job.rows)  # none is slower than one that learns otherwise
    first, second = best_of(
        make_results(tmp_path / "b", vision_runs(100) + vision_runs(110, layout="nhwc") + vision_runs(150, tf32="on"))
    )
    assert (first.configuration["layout"], first.changes, first.rivals) == ("nhwc", {}, 2)
    assert second.changes and second.rivals == 1


def test_measured_batches_that_differ_by_a_last_one_are_equal(tmp_path: Path) -> None:
    def script(devices: int, batch: float, rate: float) -> list[Row]:
        row = {"workload": "script", "command": ["train.py", "{b}"], "args": {"b": 64}, "device": "cuda"}
        times = {"iteration_time_s": batch / rate, "throughput_samples_per_s": rate, "steps_per_s": rate / batch}
        return repeats_of(row | {"devices": devices} | times, (1.0, 1.0))

    [job] = choices(make_results(tmp_path, script(1, 64, 100) + script(2, 63.2, 190) + script(4, 128, 300)))
    assert [each.learning["global batch size"] for each in job.rows] == [64, 64, 128]


def test_candidates_differ_in_a_choice(tmp_path: Path) -> None:
    def found(name: str, rows: list[Row]) -> list[Choice]:
        [job] = choices(make_results(tmp_path / name, rows))
        return job.rows

    # Not in how they were observed.
    [row] = found(
        "one", vision_runs(100, (0.9, 1, 1.1), profiler="none") + vision_runs(101, (1.1, 0.9, 1), profiler="nsys")
    )
    assert row.rivals == 1
    # Not in how long they are.
    rows = vision_runs(100, steps_per_epoch=50) + vision_runs(100, steps_per_epoch=60)
    evidence = make_results(tmp_path / "length", rows + vision_runs(90, num_workers=4, steps_per_epoch=50))
    [job] = choices(evidence)
    assert job.recipe_names == ("num_workers",) and [row.is_worse for row in job.rows] == [False, True]


def test_the_best_of_many_has_to_differ_more_than_the_better_of_two(tmp_path: Path) -> None:
    # Logarithms of ratios to one rival: 0.345, 0.182 and 0.259, so t is 5.6 and p 3%.
    slow = (0.85, 1.0, 1.0)
    rows = vision_runs(100, slow) + vision_runs(120, (1.0, 1.0, 1.08), num_workers=1)
    [job] = choices(make_results(tmp_path / "two", rows))
    assert [row.is_worse for row in job.rows] == [False, True]
    # Others that scatter as far, as far behind: each pair of four may be the one that is compared.
    for layout, workers in (("nchw", 2), ("nhwc", 0), ("nhwc", 1)):
        scatter = (1.1, 1.0, 0.9) if layout == "nhwc" else slow
        rows += vision_runs(99, scatter, num_workers=workers, layout=layout)
    [job] = choices(make_results(tmp_path / "four", rows))
    assert job.rows[0].rivals == 5 and not all(row.is_worse for row in job.rows[1:])
    # The best of all repeats has its lead from a block that the rival lacks.
    rows = vision_runs(100, (1.0, 1.01, 0.99, 3.0)) + vision_runs(120, (1.0, 1.01, 0.99), layout="nhwc")
    [job] = choices(make_results(tmp_path / "blocks", rows))
    assert [(row.configuration["layout"], row.is_worse) for row in job.rows] == [("nchw", False), ("nhwc", False)]


# What is printed ------------------------------------------------------------------------------------------------------


def test_results_without_an_answer_say_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such folder"):
        Results.read(tmp_path / "nothing")
    assert "No run completed, so there is nothing to recommend." in as_markdown(Results.read(tmp_path))
    failed = [row | {"outcome": "failed"} for row in vision_runs(100)]
    assert "No run completed" in as_markdown(make_results(tmp_path / "failed", failed))
    assert "not known: only 4 GPUs were measured" in recommendations(
        make_results(tmp_path / "four", strong_scaling_runs(4, 100))
    )
    without = make_results(tmp_path / "without", strong_scaling_runs(2, 100) + strong_scaling_runs(4, 180))
    assert "not known: no run on one device to compare with" in recommendations(without)
    other = strong_scaling_runs(2, 100) + strong_scaling_runs(4, 180) + strong_scaling_runs(1, 60, strategy="fsdp")
    words = recommendations(make_results(tmp_path / "other", other))
    assert "not known: no run on one device of the same training and parameters to compare with" in words


def test_cpu_and_synthetic_timings_are_marked_and_text_from_files_is_escaped(tmp_path: Path) -> None:
    processor = "<script>|*x*\n# y"
    two = vision_runs(100, device="cpu") + vision_runs(100, device="cpu", image_size=32)
    text = as_markdown(make_results(tmp_path / "a", two[:3], gpu=None, processor=processor))
    assert "say nothing about GPUs" in text and "GPU-hours" not in text
    evidence = make_results(tmp_path / "e", two, gpu=None)
    hostile = with_provenance(evidence, machine=lambda run: processor if run.values["image_size"] == 32 else "A")
    assert r"\<script\>\|\*x\* \# y" in as_markdown(hostile)
    gpu = GPU | {"name": "synthetic GPU"}
    assert "All runs have synthetic timings" in as_markdown(make_results(tmp_path / "b", vision_runs(100), gpu=gpu))
    # Those of synthetic images on a GPU are real.
    rows = vision_runs(100, dataset="synthetic", estimated_epoch_time_s=60.0)
    assert "synthetic timings" not in as_markdown(make_results(tmp_path / "c", rows, source="synthetic"))


def test_what_is_code_is_code_wherever_it_is_read(tmp_path: Path) -> None:
    rows = vision_runs(100, devices=1, data_share=0.3) + vision_runs(190, devices=2, data_share=0.3)
    text = as_markdown(make_results(tmp_path, rows))
    assert "- Try next: `" in text
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    pieces = [piece for token in tokens for piece in token.children or ()]
    assert any("num_workers" in piece.content for piece in pieces if piece.type == "code_inline")
    assert [piece.content for piece in pieces if piece.type == "text" and "`" in piece.content] == []


def test_the_answer_has_few_lines_however_many_jobs_there_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        row
        for size in (32, 64, 128, 224)
        for devices, rate in ((1, 100), (2, 190))
        for workers in (0, 4)
        for row in vision_runs(rate + workers, image_size=size, devices=devices, num_workers=workers, data_share=0.3)
    ]
    rows += vision_runs(300, precision="bf16", image_size=32) + vision_runs(80, precision="fp16", image_size=32)
    results = write_results(tmp_path, rows)
    main(["recommend", str(results)])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 25 and lines[-1] == "2 more: `--verbose`."
    assert lines[1].startswith("- How many devices: 2 GPUs")
    found = "".join(lines)
    for each in ("as fast as 1 GPU (95% CI", "Where the step goes: 2 GPUs (", "Try next: ", "How sure: "):
        assert each in found
    main(["recommend", "--verbose", str(results)])
    printed = capsys.readouterr().out  # the terminal shows no escapes of Markdown
    assert "| Devices | Recipe | Changes | Images per second | Speed-up |" in printed and "\\" not in printed
    main(["recommend", "--json", str(results)])
    table = json.loads(capsys.readouterr().out)["configurations"]
    assert [row["speedup"] for row in table[:2]] == pytest.approx([1.0, 1.0], rel=1e-3)


def test_names_in_braces_of_a_command_are_no_part_of_what_is_printed(tmp_path: Path) -> None:
    command = SCRIPT | {"command": ["train.py", "--workers", "{workers}", "--json={{}}"], "devices": 1}
    rows = [
        command | {"args": {"workers": workers}, "throughput_samples_per_s": speed}
        for workers, speed in ((2, 100.0), (4, 120.0))
    ]
    found = recommendations(make_results(tmp_path, rows))
    assert "train.py --workers … '--json={{}}'" in found and "workers: 2 → 4" in found and "{workers}" not in found


def test_the_number_of_devices_is_the_first_question_where_it_was_varied(tmp_path: Path) -> None:
    layouts = strong_scaling_runs(1, 100) + strong_scaling_runs(1, 120, layout="nhwc")
    scaled = layouts + strong_scaling_runs(2, 180) + strong_scaling_runs(2, 210, layout="nhwc")
    for name, rows, questions in (("one", layouts, [WHICH, HOW_MANY]), ("two", scaled, [HOW_MANY, WHICH])):
        [job] = advise(make_results(tmp_path / name, rows)).jobs
        assert [answer.question for answer in job.first_screen if answer.question in questions] == questions


def test_an_answer_has_the_numbers_that_its_sentence_rests_on(tmp_path: Path) -> None:
    [job] = advise(make_results(tmp_path, strong_scaling_runs(1, 100) + strong_scaling_runs(2, 180))).jobs
    how_many = job.first_screen[0]
    [row] = how_many.rows
    assert how_many.sentence.startswith("2 GPUs: 1.800× as fast as 1 GPU (95% CI ") and how_many.figure == "speedup"
    assert row["devices"] == 2 and row["repeats"] == 3
    assert (row["speedup"], row["efficiency"]) == (pytest.approx(1.8, rel=1e-3), pytest.approx(0.9, rel=1e-3))
    assert row["speedup_low"] < row["speedup"] < row["speedup_high"]
    # The repeats scatter by 0.1%, so that 2% is 20 standard deviations.
    needed = "the repeats would show a difference of 2% (3 of each configuration, scatter 0.1%)"
    assert how_many.caveats == ("the only comparison is decided", needed)
    assert how_many.table()["devices"].tolist() == [2]


def test_how_sure_begins_with_what_is_decided_and_the_repeats_that_would_decide(tmp_path: Path) -> None:
    def sure(name: str, *rows: list[Row]) -> str:
        [job] = advise(make_results(tmp_path / name, [row for runs in rows for row in runs])).jobs
        return next(answer.sentence for answer in job.others if answer.question == HOW_SURE)

    one, two = strong_scaling_runs(1, 100), strong_scaling_runs(2, 180)
    assert sure("a", one, two, strong_scaling_runs(1, 50, layout="nhwc")).startswith("both comparisons are decided; ")
    scattered = strong_scaling_runs(1, 99, OTHERWISE, layout="nhwc")
    words = sure("b", one, two, scattered)
    assert words.startswith("1 of 2 comparisons is not decided; ")
    assert " repeats would decide a difference of 2% (now 3 of each configuration, scatter " in words
    once = strong_scaling_runs(1, 100, (1.0,)), strong_scaling_runs(2, 180, (1.0,))
    assert sure("c", *once) == "the only comparison is not decided; 1 repeat of each configuration"


def test_a_profiled_window_in_doubt_is_told_with_what_it_affects_and_what_helps(tmp_path: Path) -> None:
    rows = strong_scaling_runs(1, 100) + strong_scaling_runs(2, 180)
    rows[0]["profiler_overhead"], rows[4]["profiler_overhead"] = -0.13, -0.21
    [job] = advise(make_results(tmp_path, rows)).jobs
    assert job.others[-1].sentence.endswith(
        "profiled window unlike the measured one in 2 of 6 runs (e.g. steps 13% shorter): "
        "step times hold, but the trace's shares of a step may be off by as much; raise profiled_steps"
    )
    # It says nothing about the speed-up.
    assert "profiled window" not in job.tiles[-1].notes


def test_the_tile_of_the_fastest_names_its_baseline_and_how_much_faster_it_is(tmp_path: Path) -> None:
    def tile(name: str, *runs: list[Row]) -> tuple[str, ...]:
        return advise(make_results(tmp_path / name, [row for rows in runs for row in rows])).jobs[0].tiles[0]

    one, two = strong_scaling_runs(1, 100, strategy="single"), strong_scaling_runs(2, 180)
    title, value, notes = tile("devices", one, two)
    assert (title, value) == ("Fastest measured: 2 GPUs", "1.800× as fast")
    assert notes.startswith("as 1 GPU with strategy: single (95% CI 1.79")
    assert notes.endswith("n=3; 90% efficient); 180 images per second")
    title, value, notes = tile("layouts", strong_scaling_runs(1, 100), strong_scaling_runs(1, 150, layout="nhwc"))
    assert (title, value) == ("Fastest measured", "1 GPU")
    assert notes.startswith("layout: nhwc, 1.50× as fast as layout: nchw (95% CI 1.49 to 1.51, n=3)")
    assert tile("alone", strong_scaling_runs(1, 100)) == ("Fastest measured", "1 GPU", "100 images per second")


def test_without_throughput_advice_is_about_the_most_devices(tmp_path: Path) -> None:
    script = {"workload": "script", "command": ["train.py"], "folder": ".", "device": "cpu", "iteration_time_s": 0.1}
    rows = [script | {"devices": devices, "measured_steps": 50, "other_share": 0.6} for devices in (1, 4, 2)]
    [job] = advise(make_results(tmp_path, rows, gpu=None)).jobs
    assert job.others[0].sentence.startswith("4 CPU processes: ")
