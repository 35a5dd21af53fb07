"""The page as text: what stands in it, and what input it refuses."""

import base64
import hashlib
import re
import shutil
from html import escape
from pathlib import Path

import pandas as pd
import pytest
from made import HARDWARE, HOSTILE, PLANS, RUNS, bars, judged, lines, record, results

from conftest import refusal
from factories import Row, tuning_runs, vision_runs, write_results
from machine.machine_record import record as machine_record
from multicard.answers.choice.recommend import advise
from multicard.config.figures import FIGURES
from multicard.core.files import write_json
from multicard.figures.catalog import load_drawing
from multicard.figures.draw import draw, save
from multicard.figures.search import draw_search
from multicard.report.environment import environment
from multicard.report.page import for_the_dark, write_report
from multicard.report.results import ScenarioPlan, read_contents
from multicard.report.tables import common_to, numbers_table, run_table
from multicard.results.results import Results
from multicard.stats.interval import Interval

ESCAPED = "&lt;script&gt;document.title=&#39;taken&#39;&lt;/script&gt;"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return judged(results(tmp_path_factory.mktemp("made") / "results"))


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "results"))


@pytest.fixture(scope="module")
def page(folder: Path) -> str:
    return written(folder)


FEW = {"gpus": PLANS["gpus"]}  # which has no figure


def written(folder: Path, plans: dict[str, ScenarioPlan] = PLANS) -> str:
    write_report(folder, folder / "report.html", plans)
    return (folder / "report.html").read_text(encoding="utf-8")


def section(page: str, name: str) -> str:
    return page.partition(f'<section id="{name}"')[2].partition("</section>")[0]


def test_text_from_files_never_stands_unescaped_and_no_script_can_run(page: str) -> None:
    assert "<script>document" not in page and "<img src=x" not in page
    assert page.count(ESCAPED) > 10
    policy = page.partition('Content-Security-Policy" content="')[2].partition('"')[0]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert (rules["default-src"], rules["img-src"]) == ("'none'", "data:")
    # One script may run: the page's own, by its digest.
    [script] = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert rules["script-src"] == f"'sha256-{digest}'"


def test_the_same_input_gives_the_same_bytes(page: str, copy: Path) -> None:
    assert page == written(copy)


def measured(folder: Path, *scenarios: list[Row]) -> str:
    """The page of synthetic runs."""
    results = write_results(folder, *scenarios)
    return written(results, {path.name: ScenarioPlan() for path in sorted((results / "scenarios").iterdir())})


def test_the_first_screen_says_how_much_faster_where_the_step_goes_and_how_sure_that_is(tmp_path: Path) -> None:
    speeds = {1: 100.0, 2: 180.0, 4: 250.0}
    # Three repeats whose ratios scatter by about 0.1%.
    ones = [row for n, speed in speeds.items() for row in vision_runs(speed, devices=n, data_share=0.1)]
    alone = vision_runs(
        50.0, precision="bf16", iteration_time_s=0.02, data_share=0.3, disturbance="other processes: 1.6 CPUs"
    )
    overview = section(measured(tmp_path, alone, ones), "overview")
    tiles = re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd><dd class=\"more\">(.*?)</dd>", overview)
    assert [(title, value) for title, value, _ in tiles] == [
        ("Fastest measured: 4 GPUs", "2.500× as fast"),
        ("Largest part of the step", "90% compute or communication"), ("Is the speed-up shown?", "Yes"),
    ]  # fmt: skip
    assert re.match(r"as 1 GPU \(95% CI 2\.49\d to 2\.50\d, n=3; 62% efficient\); 250 images per second", tiles[0][2])
    assert "disturbed in 3 of" in tiles[2][2]
    # Under each question is its answer.
    answers = re.findall(r"<li><a href=\"#scenario-(\d)\">.*?</a>\s*<p>(.*?)</p>", overview)
    assert [number for number, _ in answers] == ["1", "2"]
    assert answers[0][1].startswith("20.0 ms (95% CI ")
    assert answers[1][1].startswith("4 GPUs 2.500× as fast as 1 GPU (95% CI 2.49")
    assert answers[1][1].endswith(", n=3), 62% efficient.")
    assert 'class="badge completed"' not in overview


def test_numbers_on_the_page_are_those_of_the_recommendations(tmp_path: Path) -> None:
    rows = (
        vision_runs(100) + vision_runs(150, num_workers=8) + vision_runs(190, devices=2, num_workers=8, data_share=0.4)
    )
    page = measured(tmp_path, rows)
    [job] = advise(Results.read(tmp_path)).jobs
    for row in job.table.rows:
        assert re.search(r"\s*".join(f"<t[hd][^>]*>{re.escape(escape(cell))}</t[hd]>" for cell in row), page)
    for text in [answer.sentence for answer in job.first_screen]:
        assert re.sub("`(.*?)`", r"<code>\1</code>", escape(text)) in page
    assert "<code>raise num_workers</code> (more loader processes)" in page


def test_a_gain_of_another_scenario_is_told_with_the_answer_of_the_one_that_lacks_it(tmp_path: Path) -> None:
    one = vision_runs(100)
    page = measured(tmp_path, one + vision_runs(180, devices=2), one + vision_runs(150, layout="nhwc"))
    [first, second] = section(page, "overview").partition('class="questions"')[2].split("<li>")[1:]
    told = "Try next, not run yet: 2 GPUs with layout: nhwc; measured on 1 GPU: layout: nhwc 1.50× as fast as"
    assert told in first and "<code>layout: [nchw, nhwc]</code> under vary (not fixed) of scenario s0.</p>" in first
    assert "not run yet" not in second
    # The evidence of the scenario does not repeat it; the section of all choices has it among what to try.
    assert "not run yet" not in page.partition('id="figures"')[2].partition('id="recommendations"')[0]
    assert section(page, "recommendations").count("not run yet") == 1


def test_short_names_are_explained_below_the_answers_as_the_programs_state_them(tmp_path: Path) -> None:
    layouts = vision_runs(100) + vision_runs(150, layout="nhwc")
    answers = section(measured(tmp_path, layouts, tuning_runs(0.2, technique="full")), "overview")
    assert re.findall(r"<code>([\w-]+)</code>: ([^<]*)", answers.partition("Names: ")[2]) == [
        ("ddp-ds", "DistributedDataParallel with a distributed sampler, each rank sees its share of the data; "),
        ("layout", "Memory layout of the model and its batches; "),
        ("full", "all weights are trained."),
    ]


def test_what_all_runs_share_is_said_once_below_their_table(tmp_path: Path) -> None:
    rows = vision_runs(100, (1.0, 1.0)) + vision_runs(150, (1.0, 1.0), num_workers=8)
    runs = section(measured(tmp_path, rows), "runs")
    names = re.findall(r"<th scope=\"row\"[^>]*>(.*?)</th>", runs.replace("<wbr>", ""))
    assert names == ["r1", "r2", "workers8 r1", "workers8 r2"]  # what tells them apart; on pointing, all of it
    assert re.search(r'title="vision_\S+_workers8\S*_r2">workers8', runs)
    assert "outcome completed" in runs and '<th scope="col">Outcome</th>' not in runs


def test_without_claims_or_workloads_there_are_no_such_sections(copy: Path) -> None:
    assert 'id="claims"' in written(copy, FEW)
    table = pd.read_csv(copy / "claims.csv").assign(verdict="not measured here")
    table.to_csv(copy / "claims.csv", index=False)
    page = written(copy, FEW)
    assert "claims" not in page.partition("<main")[2].lower()
    assert "No recommendations were made." in page


@pytest.mark.slow
def test_limits_of_a_machine_are_shown_where_they_were_measured(copy: Path) -> None:
    assert "Limits of the machine" not in written(copy, FEW)
    write_json(copy / "machine" / "node07-cuda.json", machine_record(HOSTILE))
    limits = section(written(copy, FEW), "machines")
    disturbed = "Disturbed: all-reduce between 2 devices: other processes: 1.5 CPUs."
    assert all(words in limits for words in ("500 TFLOP/s", " GB/s", disturbed, "torch 2.11.0"))
    assert ESCAPED in limits and "<script>" not in limits


@pytest.mark.slow
def test_a_search_is_shown_with_what_each_of_its_runs_gave(copy: Path) -> None:
    assert "Searches" not in written(copy, FEW)
    trials = pd.DataFrame({"run": ["a_r1", HOSTILE], "repeat": 1, "outcome": ["completed", "oom"], "synthetic": False})
    trials = trials.assign(throughput_samples_per_s=[100.0, None], best_so_far=100.0, cost_s=5.0, spent_s=[5.0, 10.0])
    drawn = draw_search(trials, "throughput_samples_per_s", Interval(100.0, None, None, 1), "Fast?")
    save(*drawn, copy / "search" / "options")
    searches = section(written(copy, FEW), "searches")
    assert searches.count("data:image/svg+xml;base64,") == 1 and "<h3>options</h3>" in searches
    assert ESCAPED in searches and "<script>" not in searches


def test_runs_that_were_not_run_are_listed_once_per_reason(page: str) -> None:
    incomplete = section(page, "runs").partition("<h3>Not run here</h3>")[2]
    assert incomplete.count(f"needs 8 GPUs, this machine has 0 {ESCAPED}") == 1
    assert "out of memory" in incomplete and "cuda8" in incomplete


def test_a_run_that_scenarios_share_has_one_row(copy: Path) -> None:
    shared = copy / "scenarios" / "again"
    shutil.copytree(copy / "scenarios" / "techniques", shared)
    table = run_table(read_contents(copy, {**PLANS, "again": ScenarioPlan()}))
    assert len(table.rows) == len(RUNS)
    lora = table.rows[table.full_names.index("llm_tiny_lora_chats_cpu1_bf16_r1")]
    assert lora[table.headings.index("Scenario")] == "techniques, again"


def test_a_run_with_a_default_is_named_by_it_beside_those_that_differ(tmp_path: Path) -> None:
    """An id leaves the default out: r1 beside nhwc r1 says nothing."""
    rows = [row for layout in ("nchw", "nhwc") for row in vision_runs(90.0, layout=layout, device="cpu")]
    runs = [f"vision_digits_cpu1{'_nhwc' if at >= 3 else ''}_r{at % 3 + 1}" for at in range(6)]
    write_results(tmp_path, rows, gpu=None)
    for name in ("measures.csv", "runs.csv"):
        path = tmp_path / "scenarios/s0" / name
        table = pd.read_csv(path)
        table.assign(run=runs).to_csv(path, index=False)
    named = [row[0] for row in run_table(read_contents(tmp_path, {"s0": ScenarioPlan()})).rows]
    assert named == ["nchw r1", "nchw r2", "nchw r3", "nhwc r1", "nhwc r2", "nhwc r3"]


@pytest.mark.parametrize("workload", ["vision", "script"])
def test_figures_of_the_papers_own_jobs_name_the_paper_and_link_to_it(tmp_path: Path, workload: str) -> None:
    own = {"strategy": "ddp"} if workload == "vision" else {"command": ["train.py"], "steps": 1}
    rows = [{"workload": workload, "device": "cpu", "devices": n, "iteration_time_s": 0.1 / n, **own} for n in (1, 2)]
    write_results(tmp_path, rows, gpu=None)
    drawn = draw("iteration_time", Results.read_scenario(tmp_path / "scenarios/s0"))
    save(*drawn, tmp_path / "figures/s0/iteration_time")
    text = section(written(tmp_path, {"s0": ScenarioPlan(question="?", figures=["iteration_time"])}), "figures")
    link = '<a href="https://arxiv.org/abs/2503.15252">Lawenda et al., arXiv 2503.15252</a>'
    assert (f"Compare figures 1 and 4 of {link}." in text) is (workload == "vision")
    assert "paper A" not in text


def test_a_claim_names_its_papers_and_links_to_them(copy: Path) -> None:
    table = pd.read_csv(copy / "claims.csv", keep_default_na=False)
    table.assign(paper=["B", "A, B", "another"]).to_csv(copy / "claims.csv", index=False)
    claims = section(written(copy, FEW), "claims")
    assert re.findall(r"Claimed by (.*?)\.</p>", claims) == [
        '<a href="https://arxiv.org/abs/2505.22905">Lawenda et al., arXiv 2505.22905</a>',
        '<a href="https://arxiv.org/abs/2503.15252">Lawenda et al., arXiv 2503.15252</a> and '
        '<a href="https://arxiv.org/abs/2505.22905">Lawenda et al., arXiv 2505.22905</a>',
    ]


def test_a_run_named_like_a_path_is_not_followed(copy: Path) -> None:
    path = copy / "scenarios" / "techniques" / "runs.csv"
    path.write_text(
        path.read_text().replace("llm_tiny_lora_chats_cpu1_bf16_r1", "../runs/llm_tiny_lora_chats_cpu1_bf16_r1")
    )
    assert "../runs/llm_tiny_lora_chats_cpu1_bf16_r1" not in read_contents(copy, PLANS).records


def test_a_run_links_to_its_files_that_exist_and_to_no_other(copy: Path, tmp_path: Path) -> None:
    run = copy / "runs" / "llm_tiny_lora_chats_cpu1_bf16_r1"
    (run / "log.txt").write_text("step 1")
    (run / "trace").mkdir()
    (run / "trace/captured.json").write_text("{}")  # states that nothing was captured
    assert _addresses(written(copy, {"techniques": PLANS["techniques"]}), "runs") == [
        "runs/llm_tiny_lora_chats_cpu1_bf16_r1/log.txt", "runs/llm_tiny_lora_chats_cpu1_bf16_r1/",
        "runs/llm_tiny_dpo_chats_cpu1_bf16_r1/",
    ]  # fmt: skip
    (run / "trace/rank0.json.gz").write_bytes(b"")
    write_report(copy, tmp_path / "else where/page.html", {"techniques": PLANS["techniques"]})
    addresses = _addresses((tmp_path / "else where/page.html").read_text(), "runs")
    assert addresses[1] == "../results/runs/llm_tiny_lora_chats_cpu1_bf16_r1/trace/"
    assert len(addresses) == 4


def test_a_figure_links_to_its_files_that_exist(page: str) -> None:
    assert _addresses(page, "figures")[:3] == [
        f"figures/processes/iteration_time.{suffix}" for suffix in ("svg", "png", "csv")
    ]


def test_a_run_named_like_a_path_has_no_links(copy: Path) -> None:
    path = copy / "scenarios" / "gpus" / "runs.csv"
    path.write_text(path.read_text().replace("vision_digits_32px_ddp-ds_cuda8_fp32_r1", "../runs"))
    assert _addresses(written(copy, FEW), "runs") == []


def _addresses(page: str, name: str) -> list[str]:
    """Return the addresses of all links of a section that lead out of the page."""
    whole = page.partition(f'<section id="{name}"')[2].partition('<section id="claims"')[0]
    return re.findall(r'<a href="([^#"h][^"]*)"', whole)


@pytest.mark.parametrize(
    ("file", "content", "line"),
    [
        ("scenarios/gpus/runs.csv", None, "scenarios/gpus/runs.csv: missing"),
        ("scenarios/gpus/runs.csv", b"", "scenarios/gpus/runs.csv: empty, expected a header"),
        ("scenarios/gpus/runs.csv", b"run,reason\n", "scenarios/gpus/runs.csv: no column outcome"),
        ("scenarios/gpus/measures.csv", b"run\n\xff", "scenarios/gpus/measures.csv: does not parse as CSV"),
        ("runs/llm_tiny_lora_chats_cpu1_bf16_r1/run.json", b"{", "run.json: does not parse as JSON"),
        ("runs/llm_tiny_lora_chats_cpu1_bf16_r1/run.json", b"[]", "run.json: found list, expected an object"),
        ("claims.csv", b"claim,verdict\n", "claims.csv: no column claim_text"),
        ("claims_tests.csv", b"claim,test\n", "claims_tests.csv: no column finding"),
    ],
)
def test_a_broken_file_is_named_in_one_line(copy: Path, file: str, content: bytes | None, line: str) -> None:
    if content is None:
        (copy / file).unlink()
    else:
        (copy / file).write_bytes(content)
    assert line in refusal(lambda: read_contents(copy, PLANS))


def test_machines_and_versions_are_told_once_with_the_number_of_runs() -> None:
    run = RUNS[0][0]
    records = [record(run), record(run), record(run, versions={"torch": "2.10.0"})]
    records.append(record(run, "failed", host=None, hardware=None, versions=None))  # ended before it could say
    found = environment(records)
    assert [count for _, count in found.machines] == [3]
    assert [(pairs["torch"], count) for pairs, count in found.versions] == [("2.11.0", 2), ("2.10.0", 1)]
    assert found.mixed == "2 sets of versions"
    assert environment(records[:2]).mixed is None
    records[:2] = record(run, variables={"NCCL_ALGO": "Ring"}), record(run, variables={})
    found = environment(records)
    assert found.variables == [({"NCCL_ALGO": "Ring"}, 1), ({"Set": "none"}, 1)]
    assert found.mixed == "2 sets of versions and 2 sets of environment variables"


def test_a_machine_is_one_whatever_part_of_it_each_run_was_given() -> None:
    records = []
    for count, name in ((2, "H100"), (4, "H100"), (1, "H100"), (1, "H200")):
        gpus = [{"name": name, "memory_bytes": 80_000_000_000, "capability": "9.0"}] * count
        records.append(record(RUNS[0][0], hardware=HARDWARE | {"gpus": gpus, "usable_cpus": count}))
    found = environment(records).machines
    assert [(facts["GPUs"], facts["CPUs"], count) for facts, count in found] == [
        ("4 × H100, 80.0 GB", "4 usable of 4", 3),
        ("1 × H200, 80.0 GB", "1 usable of 4", 1),
    ]


def test_numbers_have_units_that_fit_and_intervals_in_brackets() -> None:
    table = numbers_table(lines())
    assert table.headings == ["Series", "Devices", "Repeats", "Iteration time (ms)"]
    assert table.same == [("Device", "cpu")]
    assert numbers_table(lines().assign(synthetic="all")).same[-1] == ("Synthetic", "all")
    assert table.rows[0] == ["ddp-ds", "1", "2", "110 [100, 120]"]
    assert table.rows[1] == ["ddp-ds", "2", "1", "80"]  # one repeat has no interval
    table = numbers_table(bars())
    assert table.headings[-1] == "Peak memory (GB)"
    assert table.rows[-1] == ["2 CPU processes", "DPO", "2", "out of memory", "0", "", ""]


def test_a_cell_is_padded_by_what_it_lacks_behind_its_whole_number() -> None:
    table = numbers_table(lines().assign(iteration_time_s=[0.1217, 0.263, 0.2975, 1.29725]).drop(columns="series"))
    column = table.headings.index("Iteration time (s)")
    cells = [row[column] for row in table.rows]
    assert cells == ["0.1217 [0.1, 0.12]", "0.263", "0.2975 [0.18, 0.25]", "1.297 [0.29, 0.31]"]
    lengths = [len(cell) + len(row[column]) for cell, row in zip(cells, table.paddings, strict=True)]
    assert set(lengths) == {len("0.2975 [0.18, 0.25]")}
    # Names of rows, text and what is empty have no paddings.
    assert all(row[:column] == [""] * column for row in table.paddings)


def test_what_all_tables_of_a_scenario_share_is_said_once() -> None:
    first, second = (
        numbers_table(lines().assign(image_size=32)),
        numbers_table(lines().assign(image_size=[32, 32, 64, 64])),
    )
    third = numbers_table(lines().drop(columns="device").assign(batch_size=16))
    assert first.same == [("Device", "cpu"), ("Image size", "32")]
    # The second has a column of image sizes; the third states nothing of devices.
    common = common_to([first, second, third])
    assert common == [("Device", "cpu"), ("Batch size", "16")]
    assert [table.without_same(common).same for table in (first, second, third)] == [[("Image size", "32")], [], []]
    assert common_to([first, numbers_table(lines().assign(device="cuda"))]) == [("Image size", "32")]


def test_every_figure_has_the_lines_about_runs_without_numbers(page: str, folder: Path) -> None:
    notes = {each.name: each.notes for each in read_contents(folder, PLANS).scenarios}
    assert notes == {
        "processes": ["Runs without numbers: 1 out of memory"], "techniques": [],
        "gpus": ["Runs without numbers: 1 cannot run here"],
    }  # fmt: skip
    assert page.count("<li>Runs without numbers: 1 out of memory.</li>") == 1
    assert '<span class="badge out-of-memory">1 out of memory</span>' in section(page, "overview")


def test_how_figures_are_read_stands_once_and_below_each_is_what_is_its_own(page: str) -> None:
    assert page.count("95% confidence intervals from the variance pooled over all configurations") == 1
    captions = re.findall(r"<figcaption>\s*(.*?)\n", page)
    assert (
        captions[0] == "Time is elapsed time per optimizer step. Throughput counts every sample once, and no padding."
    )
    [described] = re.findall(r'alt="(Iteration time.*?)">', page)
    assert "no padding" not in described  # a screen reader reads the caption once


def test_captions_of_the_page_have_a_third_of_the_words_of_full_ones() -> None:
    drawings = [load_drawing(name) for name in FIGURES]
    words = [(len(drawing.brief.split()), len(drawing.caption.split())) for drawing in drawings]
    assert sum(brief for brief, _ in words) < sum(full for _, full in words) / 3
    assert all(brief < full for brief, full in words)


def test_a_picture_has_greys_for_the_dark_and_keeps_its_hues(page: str) -> None:
    svg = '<svg><path style="fill: #ffffff"/><path style="fill: #0173b2; stroke: #000000"/><text>a</text></svg>'
    dark = for_the_dark(svg).partition("@media (prefers-color-scheme: dark)")[2]
    # White is the page's surface, black is its text.
    assert '[style*="fill: #ffffff"]{fill:#1a1f25 !important}' in dark
    assert '[style*="stroke: #000000"]{stroke:#e6e9ee !important}' in dark and "0173b2" not in dark


def test_each_claim_says_its_verdict_its_tests_and_what_would_refute_it_those_not_measured_last(page: str) -> None:
    shown = section(page, "claims")
    badges = re.findall(r'<h3><span class="badge [\w-]+">(.*?)</span>', shown.replace("\n", ""))
    assert badges == ["confirmed", "refuted", "not measured here"]
    assert "It is faster. <strong>Confirmed: 1.2 (95% CI 1.1 to 1.3, n=3).</strong>" in shown
    assert "It gains nothing." in shown and HOSTILE not in shown
