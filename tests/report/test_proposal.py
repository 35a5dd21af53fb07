"""The page for an application for computing time: its numbers by hand, and what it says where nothing was measured."""

import hashlib
import json
import math
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import ran, refusal
from factories import GPU, STEADY, Row, repeats_of, vision_runs, write_results
from multicard.answers.choice.applied import Request
from multicard.api.results import read_results
from multicard.cli import main
from multicard.core.text import without_escapes
from multicard.report.proposal.document import check_markdown

RATES = {1: 100.0, 2: 190.0, 4: 340.0}  # images per second: 95% and 85% efficient
BATCH = 64
MILLION = Request(1e6, "samples")


def trained(devices: int, rate: float, scaling: str = "strong", factors: tuple[float, ...] = STEADY) -> list[Row]:
    batch = BATCH * (devices if scaling == "weak" else 1)
    times = [
        {"iteration_time_s": batch / (rate * factor), "estimated_epoch_time_s": 10_000 / (rate * factor)}
        for factor in factors
    ]
    rows = vision_runs(rate, factors, devices=devices, scaling=scaling, batch_size=BATCH)
    return [row | time | {"data_share": 0.25} for row, time in zip(rows, times, strict=True)]


def scaled(scaling: str = "strong", factors: tuple[float, ...] = STEADY) -> list[Row]:
    return [row for devices, rate in RATES.items() for row in trained(devices, rate, scaling, factors)]


@pytest.fixture
def page(tmp_path: Path) -> Callable[..., str]:
    """Write the page of some runs in Markdown, and read it as a reader does."""

    def write(rows: list[Row], request: Request = MILLION, **others: Any) -> str:
        results = write_results(tmp_path / f"results{len(list(tmp_path.glob('results*')))}", rows, **others)
        read_results(results).proposal(tmp_path / "page.md", request)
        return without_escapes((tmp_path / "page.md").read_text())

    return write


def block(page: str, title: str) -> str:
    return page.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def cells(page: str, title: str) -> list[list[str]]:
    """The rows of the table of a part of the page."""
    lines = [line for line in block(page, title).splitlines() if line.startswith("|")]
    return [[cell.strip(" *") for cell in line.strip("| ").split("|")] for line in lines[2:]]


# Numbers --------------------------------------------------------------------------------------------------------------


def test_the_request_follows_from_the_throughput_by_hand(page: Callable[..., str]) -> None:
    _, _, request, _, reason, *_ = page(scaled(), Request(1e6, "samples", runs=3)).splitlines()
    # 1,000,000 / 340 = 2941.2 s = 0.81699 h, three times 2.451 h on a node of four GPUs, 9.804 GPU-hours.
    assert request.startswith("**2.45 node-hours (9.8 GPU-hours): 3 runs of 1,000,000 images on 4 GPUs at 340 images ")
    # The interval of a mean of three whose logarithms have a deviation of 0.003 reaches 4.303 / √3 of that.
    low, high = (340 * math.exp(sign * 0.003 * 4.303 / math.sqrt(3)) for sign in (-1, 1))
    assert f"340 images per second (95% CI {low:.0f} to {high:.0f}, n=3), 85% efficient (95% CI " in request
    assert reason.startswith("4 GPUs: the most of those measured (1, 2 and 4) that are at least 70% efficient")


def test_the_table_of_scaling_is_what_a_hand_computes(page: Callable[..., str]) -> None:
    rows = cells(page(scaled(factors=(0.99, 1.0, 1 / 0.99))), "Strong scaling")
    shown = [[float(re.match(r"[\d.,]+", cell)[0].replace(",", "")) for cell in row] for row in rows]
    assert shown == [
        [devices, pytest.approx(1e3 * BATCH / rate, 5e-3), rate, rate / 100, pytest.approx(rate / devices, 1e-3), 3]
        for devices, rate in RATES.items()
    ]  # per cent: 100 × (rate / 100) / devices


def test_resources_of_every_number_of_devices_are_by_hand(page: Callable[..., str]) -> None:
    found = page(scaled(), Request(7.2e6, "samples", runs=10, gpus_per_node=2))
    rows = cells(found, "Resources")
    # 7,200,000 images take 20 h on one GPU, 10.526 on two, 5.8824 on four, which are two nodes.
    assert [[row[0], row[1], row[2].split()[0], row[4], row[5]] for row in rows] == [
        ["1", "1", "20.0", "200", "200"], ["2", "1", "10.5", "211", "105"], ["4", "2", "5.88", "235", "118"],
    ]  # fmt: skip
    assert "GPUs of a node: 2 × " in block(found, "The machine")  # as stated, though the jobs saw four


@pytest.mark.parametrize(
    ("request_", "hours"),
    [
        (Request(18_000, "steps"), 18_000 * BATCH / 340 / 3600),
        (Request(90, "epochs"), 90 * 10_000 / 340 / 3600),
        (Request(1e6, "samples", devices=2), 2 * 1e6 / 190 / 3600),  # on two of four GPUs of a node
    ],
)
def test_work_is_counted_in_steps_passes_or_samples(page: Callable[..., str], request_: Request, hours: float) -> None:
    found = page(scaled(), request_)
    expected = hours * (4 if request_.devices is None else 1)
    assert float(re.search(r"\(([\d.]+) GPU-hours\)", found)[1]) == pytest.approx(expected, rel=5e-3)


def test_parts_of_the_step_and_memory_are_those_of_the_devices_applied_for(page: Callable[..., str]) -> None:
    rows = [row | {"peak_reserved_bytes": 23.5e9 if row["devices"] == 4 else 80e9} for row in scaled()]
    found = page(rows)
    # A quarter of 64 / 340 s.
    assert ["data loading", "25%", "47.1 ms"] in cells(found, "A step on 4 GPUs")
    assert "Peak memory: 23.5 GB per GPU, 25% of its 94.0 GB" in found


# How many devices -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("least", "devices"), [(0.9, "2 GPUs"), (0.97, "1 GPU"), (0.5, "4 GPUs")])
def test_the_most_devices_that_are_efficient_are_recommended(
    page: Callable[..., str], least: float, devices: str
) -> None:
    found = page(scaled(), Request(1e6, "samples", least_efficiency=least))
    assert f" images on {devices} at " in found and f"\n{devices}: " in found
    assert found.count("\n| ") >= 9  # all that was measured is shown, whatever is applied for


def test_a_number_of_devices_as_stated_is_told_from_the_recommended_one(page: Callable[..., str]) -> None:
    found = page(scaled(), Request(1e6, "samples", devices=2))
    assert "images on 2 GPUs at" in found and "2 GPUs as stated; recommended: 4 GPUs, the most of" in found


def test_no_more_devices_are_recommended_where_none_is_shown_to_be_faster(page: Callable[..., str]) -> None:
    noisy = [*trained(1, 100.0, factors=(0.5, 1.0, 2.0)), *trained(2, 150.0, factors=(2.0, 1.0, 0.5))]
    found = page(noisy)
    assert "images on 1 GPU at" in found and "(2: 75%, not shown to be faster)" in found


# What was measured, and what was not ----------------------------------------------------------------------------------


def test_both_kinds_of_scaling_have_a_table_and_say_what_is_constant(page: Callable[..., str]) -> None:
    found = page([*scaled("strong"), *scaled("weak")])
    assert "The total batch is constant" in block(found, "Strong scaling")
    assert "The batch per GPU is constant" in block(found, "Weak scaling")
    assert len(cells(found, "Strong scaling")) == len(cells(found, "Weak scaling")) == 3


def test_steps_of_weak_scaling_are_not_the_same_work(page: Callable[..., str]) -> None:
    found = page(scaled("weak"), Request(1000, "steps"))
    assert "Strong scaling: not measured." in block(found, "Weak scaling")
    assert "the rows are not the same work" in block(found, "Resources")
    assert "256 images per step, 64 per GPU" in found


def test_a_single_number_of_devices_has_no_scaling_and_says_how_to_get_it(
    page: Callable[..., str], tmp_path: Path
) -> None:
    found = page(trained(2, 190.0))
    [line] = [line for line in found.splitlines() if line.startswith("Scaling: ")]
    assert "not measured" in line and "multicard scale --devices 1,2,4" in line
    assert "efficient" not in found and not list(tmp_path.glob("*.svg"))


def test_without_a_run_on_one_device_there_is_no_efficiency(page: Callable[..., str]) -> None:
    found = page([*trained(2, 190.0), *trained(4, 340.0)])
    assert {cell for row in cells(found, "Strong scaling") for cell in row[3:5]} == {"not measured"}
    assert "% efficient" not in found


def test_a_single_repeat_has_no_interval(page: Callable[..., str]) -> None:
    found = page(scaled(factors=(1.0,)))
    assert "95% CI" not in found and "(n=1)" in found and "multicard scale --repeats 3" in found


def test_node_hours_need_the_gpus_of_a_node(page: Callable[..., str], tmp_path: Path) -> None:
    found = page(scaled(), gpu=None)
    assert "node-hours (" not in found and "state --gpus-per-node" in found
    read_results(tmp_path / "results0").proposal(tmp_path / "page.md", Request(3.6e6, "samples", gpus_per_node=1))
    # 3,600,000 / 340 s on four nodes of one GPU each.
    assert "**11.8 node-hours (11.8 GPU-hours)" in (tmp_path / "page.md").read_text()


def test_a_node_has_as_many_gpus_as_ran_on_it_though_each_rank_is_shown_one(tmp_path: Path) -> None:
    results = write_results(tmp_path / "results", scaled())
    for file in results.glob("runs/*/run.json"):
        record = json.loads(file.read_text())
        record["hardware"]["gpus"] = record["hardware"]["gpus"][:1]  # as by Slurm's --gpus-per-task=1
        file.write_text(json.dumps(record))
    read_results(results).proposal(tmp_path / "page.md", Request(1e6, "samples", runs=3))
    found = without_escapes((tmp_path / "page.md").read_text())
    assert "**2.45 node-hours (9.8 GPU-hours)" in found and "GPUs of a node: 4 × " in block(found, "The machine")


def test_more_nodes_than_were_measured_are_a_caveat(page: Callable[..., str]) -> None:
    assert "applied for on 2: that was not measured" in page(scaled(), Request(1e6, "samples", gpus_per_node=2))
    assert "applied for on" not in page(scaled())


def test_numbers_of_nodes_are_told_apart(page: Callable[..., str]) -> None:
    rows = [row | {"nodes": 2} for row in trained(4, 300.0)]
    found = page([*scaled(), *rows], Request(1e6, "samples", devices=4))
    assert [row[0] for row in cells(found, "Strong scaling")][2:] == ["4 on 1 node", "4 on 2 nodes"]
    assert [row[1] for row in cells(found, "Resources")][2:] == ["1", "2"]
    assert "at 340 images per second" in found and "applied for on" not in found  # the fastest


def test_that_fewer_devices_run_out_of_memory_is_said(page: Callable[..., str]) -> None:
    lost = [row | {"outcome": "out_of_memory", "throughput_samples_per_s": None} for row in trained(1, 100.0)]
    found = page([*lost, *trained(2, 190.0), *trained(4, 340.0)])
    assert "- On 1 GPU: out of memory in 3 of 3 runs." in block(found, "Caveats")


def test_synthetic_timings_are_said_to_be_so(page: Callable[..., str]) -> None:
    found = page(scaled(), processor="synthetic processor")
    assert "synthetic" in found.splitlines()[0] and "no machine takes these times" in block(found, "Caveats")
    assert "ynthetic" not in page(scaled())


def test_a_strategy_of_one_device_is_the_baseline_of_the_others(page: Callable[..., str]) -> None:
    rows = scaled()
    single = [row | {"strategy": "single"} if row["devices"] == 1 else row for row in rows]
    for request in (MILLION, Request(1e6, "samples", devices=1)):
        assert [row[0] for row in cells(page(single, request), "Strong scaling")] == ["1", "2", "4"]


def test_the_command_of_a_script_has_its_values(page: Callable[..., str]) -> None:
    def script(devices: int, seconds: float) -> list[Row]:
        row = {"workload": "script", "command": ["train.py", "-b", "{batch}"], "device": "cuda", "devices": devices}
        measures = {"iteration_time_s": seconds, "throughput_samples_per_s": 128 / seconds, "tokens_per_s": 1e3}
        return repeats_of(row | {"args": {"batch": 128}} | measures, (1.0, 1.0, 1.0))

    found = page([*script(1, 0.2), *script(2, 0.11)], Request(3.6e6, "tokens", devices=2))
    assert "- Command: train.py -b 128" in found and "128 samples per step, 64 per GPU" in found
    assert "**1 node-hours (2 GPU-hours): 1 run of 3,600,000 tokens on 2 GPUs at 1,000 tokens" in found.replace(
        ".00", ""
    )


def test_an_archive_of_real_runs_is_named_with_its_checksum(recorded_archive: Path, tmp_path: Path) -> None:
    read_results(recorded_archive).proposal(tmp_path / "page.md", Request(1e6, "samples"))
    found = without_escapes((tmp_path / "page.md").read_text())
    named = f"- Archive: two.tar.gz, sha256 {hashlib.sha256(recorded_archive.read_bytes()).hexdigest()[:12]}"
    assert named in block(found, "How it was measured")
    assert " warm-up, 6 measured, 3 profiled" in found  # eight steps, of which two are warm-up
    assert "Measured on CPU processes, which says nothing about GPUs." in block(found, "Caveats")
    assert "- Profiler: kineto" in found and "PyTorch" in block(found, "The machine")
    assert (
        "Peak memory: " in found
        and "Scaling: not measured, all runs of this configuration are on 2 CPU processes." in found
    )


# Its files ------------------------------------------------------------------------------------------------------------

HOSTILE = r"EPYC <script>alert(1)</script> \input{x} 100% $a_b$ {#& --x"


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """The page of both kinds of scaling, on a processor with a hostile name, and its figure."""
    results = write_results(tmp_path / "results", [*scaled("strong"), *scaled("weak")], processor=HOSTILE)
    return read_results(results).proposal(tmp_path / "page.md", MILLION)


def test_the_figure_is_a_file_beside_the_page(files: list[Path]) -> None:
    page, figure = files
    assert (page.name, figure.name) == ("page.md", "page-scaling.svg")
    assert "](<page-scaling.svg>)" in page.read_text() and "<svg" in figure.read_text()


def test_text_from_files_is_shown_as_it_is(files: list[Path]) -> None:
    text = files[0].read_text()
    assert r"EPYC \<script\>alert(1)\</script\> \\input{x} 100% \$a\_b\$ {\#\& --x" in text
    assert HOSTILE in without_escapes(text)


@pytest.mark.skipif(shutil.which("pandoc") is None, reason="needs pandoc")
def test_pandoc_converts_the_page_as_the_refusal_says(files: list[Path]) -> None:
    page = files[0]
    said = refusal(lambda: check_markdown(page.with_suffix(".html")))
    done = ran(*shlex.split(said.rpartition(": ")[2]), cwd=page.parent)
    assert done.returncode == 0, done.stderr
    html = page.with_suffix(".html").read_text()
    assert "<script>" not in html and html.count("<table") == 4 and 'src="page-scaling.svg"' in html
    assert "3.27 GPU-hours" in html and "<strong>4</strong>" in html


# The command ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--proposal", "page.md"], "the work of a run is not stated"),
        (["--samples", "1e6"], "without --proposal"),
        (["--proposal", "page.tex", "--samples", "1e6"], "pandoc --standalone page.md -o page.tex$"),
        (["--proposal", "page.md", "--samples", "1e6", "--devices", "3"], "expected a number on which .*: 1, 2 or 4"),
        (["--proposal", "page.md", "--samples", "1e6", "--efficiency", "70"], "found 70, expected a share"),
        (["--proposal", "page.md", "--tokens", "1e6"], "tells tokens_per_s"),
        (["--proposal", "results", "--samples", "1e6"], "found 'results', expected a name that ends in .md"),
        (["--proposal", "page.md", "--samples", "1e6", "--scenario", "other"], "expected one of s0"),
    ],
)
def test_a_request_that_cannot_be_met_is_one_line_and_leaves_nothing(
    arguments: list[str], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_results(tmp_path / "results", scaled())
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["report", "results", *arguments])
    assert ended.value.code
    [said] = (capsys.readouterr().err + str(ended.value.code) * isinstance(ended.value.code, str)).strip().splitlines()
    assert re.search(line, said)
    assert [path.name for path in tmp_path.iterdir()] == ["results"]


def test_the_command_names_what_it_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_results(tmp_path / "results", scaled(), gpu=GPU)
    monkeypatch.chdir(tmp_path)
    main(["report", "results", "--proposal", "--samples", "1e6", "--runs", "2e0"])
    assert capsys.readouterr().out.strip() == "proposal: proposal.md, proposal-scaling.svg"
    assert "2 runs of 1,000,000 images" in (tmp_path / "proposal.md").read_text()


def test_a_page_that_was_edited_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_results(tmp_path / "results", scaled(), gpu=GPU)
    monkeypatch.chdir(tmp_path)
    Path("proposal.md").write_text("my words")
    with pytest.raises(SystemExit) as stopped:
        main(["report", "results", "--proposal", "--samples", "1e6"])
    assert str(stopped.value).startswith("--proposal: proposal.md exists, expected a new name")
    assert Path("proposal.md").read_text() == "my words"
    Path("other-scaling.svg").write_text("my picture")
    with pytest.raises(SystemExit, match=r"--proposal: other-scaling\.svg exists, expected a new name"):
        main(["report", "results", "--proposal", "other.md", "--samples", "1e6"])
    assert Path("other-scaling.svg").read_text() == "my picture"
