"""Verdicts on claims, by synthetic experiments whose truth is known."""

import json
import re
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from scipy.stats import ttest_1samp
from synthetic_results import GPU, SCATTERED, STEADY, Row, images, made, make_results, texts

from conftest import ROOT
from multicard.analysis.claims import COLUMNS, JudgedClaim, claims_table, comparisons_table, judge, read_claims
from multicard.analysis.evidence import Evidence, read_evidence
from multicard.cli import main
from multicard.core.errors import UserError

CLAIMS = read_claims(ROOT / "resources" / "claims.yaml")

# What each claim is about, made with numbers that are true, false, or so scattered that the limit lies inside.
Experiment = tuple[list[list[Row]], dict[str, list[Row]]]


def strategies(ddp_ds: float, others: float, scatter: Any = STEADY) -> Experiment:
    """Efficiency of ddp-ds, and of dp and ddp, on two and four devices."""
    rows = images(100, strategy="single")
    for devices in (2, 4):
        rows += images(100 * devices * ddp_ds, scatter, devices=devices)
        for strategy in ("dp", "ddp"):
            rows += images(100 * devices * others, strategy=strategy, devices=devices)
    return [rows], {}


def precisions(fp32: float, fp16: float, accuracy: float = 1.0, scatter: Any = STEADY) -> Experiment:
    """Speed over that of FP64, and accuracy of FP16 over that of FP32."""
    rows = images(100, precision="fp64") + images(100 * fp32, precision="fp32")
    rows += images(100 * fp16, scatter, precision="fp16")
    for precision, reached in (("fp32", 0.9), ("fp16", 0.9 * accuracy)):
        rows += images(100, precision=precision, epochs=19, test_accuracy=reached)
    short = [row | ({} if row.get("epochs") else {"steps_per_epoch": 200}) for row in rows]
    return [short], {}


def pinned(one: float, four: float, scatter: Any = STEADY) -> Experiment:
    """Speed with pinned memory over that without, on one and on four devices."""
    rows = []
    for devices, gain in ((1, one), (4, four)):
        rows += images(100, devices=devices) + images(100 * gain, scatter, devices=devices, pin_memory=True)
    return [rows], {}


def two_kinds(llm: float, vision: float, scatter: Any = STEADY) -> Experiment:
    """Speed-up on four devices."""
    is_vision = images(100) + images(100 * vision, devices=4)
    return [is_vision, texts(1.0) + texts(4 / llm, scatter, devices=4)], {}


def calls(*memory: float) -> Experiment:
    """Part of the time of CUDA calls that copies take, of each repeat; three quarters of the rest are launches."""
    rows = texts(1.0, scatter=(1.0,) * len(memory))
    table = []
    for run, part in enumerate(memory):
        for function, seconds in (
            ("cudaLaunchKernel", 0.75 * (1 - part)), ("cudaStreamSynchronize", 0.25 * (1 - part)),
            ("cudaMemcpyAsync", part),
        ):  # fmt: skip
            table.append({"at": run, "api": "runtime", "function": function, "total_s": seconds})
        table.append({"at": run, "api": "backtrace", "function": "cudaMemcpyAsync", "total_s": 100.0})
    return [rows], {"cuda_api": table}


def sizes(large: float, small: float, scatter: Any = STEADY) -> Experiment:
    """Efficiency on four devices at 500 px and at 100 px."""
    rows = []
    for size, efficiency in ((500, large), (100, small)):
        rows += images(100, image_size=size) + images(400 * efficiency, scatter, image_size=size, devices=4)
    return [rows], {}


def switched(gain: float, scatter: Any = STEADY, **switch: Any) -> Experiment:
    """Speed with a switch over that without."""
    return [images(100) + images(100 * gain, scatter, **switch)], {}


def techniques(time: dict[str, float], memory: dict[str, float], scatter: Any = STEADY) -> Experiment:
    """Iteration times and peaks of memory."""
    rows = [texts(time[name], scatter, technique=name, peak_memory_bytes=1e9 * memory[name]) for name in time]
    return [list(chain.from_iterable(rows))], {}


def accuracy(*reached: float, epochs: int = 20) -> Experiment:
    """Accuracy after the second epoch, of each repeat; it falls afterwards."""
    rows = images(100, scatter=(1.0,) * len(reached), epochs=epochs, test_accuracy=0.5)
    table = [
        {"at": run, "epoch": epoch, "test_accuracy": value}
        for run, best in enumerate(reached)
        for epoch, value in ((1, 0.4), (2, best), (3, 0.5), (21, 0.999))
    ]
    return [rows], {"epochs": table}


USUAL = {"lora": 1.0, "qlora": 1.4, "dpo": 2.0, "qat": 3.0}
PEAKS = {"lora": 20.0, "qlora": 10.0, "dpo": 30.0, "qat": 40.0}

TRUE: dict[str, Experiment] = {
    "ddp_ds_scales": strategies(0.9, 0.3),
    "fp16_speedup": precisions(1.6, 3.3),
    "pin_memory_gain": pinned(1.28, 1.18),
    "llm_scaling_is_smaller": two_kinds(2.5, 3.8),
    "llm_bound_by_launch_and_sync": calls(0.1, 0.12, 0.11),
    "large_images_scale": sizes(0.9, 0.5),
    "nhwc_gain": switched(1.2, layout="nhwc"),
    "dali_gain": switched(1.4, loader="dali"),
    "lora_faster_and_smaller_than_dpo": techniques(USUAL, PEAKS),
    "qlora_smallest": techniques(USUAL, PEAKS),
    "qat_heaviest": techniques(USUAL, PEAKS),
    "mnist_accuracy": accuracy(0.985, 0.986, 0.984),
}
FALSE: list[tuple[str, Experiment]] = [
    ("ddp_ds_scales", strategies(0.4, 0.3)),
    ("ddp_ds_scales", strategies(0.9, 0.9)),
    ("fp16_speedup", precisions(1.6, 2.0)),
    ("fp16_speedup", precisions(1.05, 1.1)),
    ("fp16_speedup", precisions(1.6, 3.3, accuracy=0.9)),
    ("pin_memory_gain", pinned(1.05, 1.02)),
    ("pin_memory_gain", pinned(1.5, 1.4)),
    ("pin_memory_gain", pinned(1.18, 1.28)),
    ("llm_scaling_is_smaller", two_kinds(3.8, 2.5)),
    ("llm_bound_by_launch_and_sync", calls(0.8, 0.82, 0.81)),
    ("large_images_scale", sizes(0.9, 0.9)),
    ("large_images_scale", sizes(0.5, 0.5)),
    ("nhwc_gain", switched(0.9, layout="nhwc")),
    ("dali_gain", switched(0.8, loader="dali")),
    ("lora_faster_and_smaller_than_dpo", techniques(USUAL | {"lora": 2.2}, PEAKS)),
    ("lora_faster_and_smaller_than_dpo", techniques(USUAL, PEAKS | {"lora": 35.0})),
    ("qlora_smallest", techniques(USUAL, PEAKS | {"qlora": 50.0})),
    ("qlora_smallest", techniques(USUAL | {"qlora": 0.8}, PEAKS)),
    ("qat_heaviest", techniques(USUAL | {"qat": 0.5}, PEAKS)),
    ("qat_heaviest", techniques(USUAL, PEAKS | {"qat": 5.0})),
    ("mnist_accuracy", accuracy(0.97, 0.972, 0.971)),
]
OPEN: dict[str, Experiment] = {
    "ddp_ds_scales": strategies(0.75, 0.3, SCATTERED),
    "fp16_speedup": precisions(1.6, 3.1, scatter=SCATTERED),
    "pin_memory_gain": pinned(1.23, 1.2, SCATTERED),
    "llm_scaling_is_smaller": two_kinds(3.0, 3.0, SCATTERED),
    "llm_bound_by_launch_and_sync": calls(0.4, 0.5, 0.6),
    "large_images_scale": sizes(0.75, 0.75, SCATTERED),
    "nhwc_gain": switched(1.0, SCATTERED, layout="nhwc"),
    "dali_gain": switched(1.0, SCATTERED, loader="dali"),
    "lora_faster_and_smaller_than_dpo": techniques(dict.fromkeys(USUAL, 1.0), PEAKS, SCATTERED),
    "qlora_smallest": techniques(dict.fromkeys(USUAL, 1.0), PEAKS, SCATTERED),
    "qat_heaviest": techniques(dict.fromkeys(USUAL, 1.0), PEAKS, SCATTERED),
    "mnist_accuracy": accuracy(0.97, 0.98, 0.99),
}


def verdict_on(claim: str, evidence: Evidence) -> JudgedClaim:
    [judged] = judge([each for each in CLAIMS if each.id == claim], evidence)
    return judged


def evidence_of(folder: Path, experiment: Experiment, **others: Any) -> Evidence:
    scenarios, tables = experiment
    return made(folder, *scenarios, tables=tables, **others)


def changed(experiment: Experiment, change: Callable[[Row], Row]) -> Experiment:
    scenarios, tables = experiment
    return [[change(row) for row in rows] for rows in scenarios], tables


def on_cpu(experiment: Experiment) -> Experiment:
    """The same by CPU processes; `dp` exists on GPUs only."""
    return changed(experiment, lambda row: row | {"device": "cpu"})


def test_every_claim_of_the_papers_is_there() -> None:
    assert {claim.id for claim in CLAIMS} == TRUE.keys() == OPEN.keys() == {claim for claim, _ in FALSE}
    assert len(CLAIMS) == 12
    assert all(re.search(r"arXiv 25\d\d\.\d{5}", claim.source) for claim in CLAIMS)


@pytest.mark.parametrize("claim", TRUE)
def test_a_claim_that_is_true_of_the_synthetic_data_is_confirmed(claim: str, tmp_path: Path) -> None:
    judged = verdict_on(claim, evidence_of(tmp_path, TRUE[claim]))
    assert judged.verdict == "confirmed", judged.finding
    assert "NVIDIA H100" in judged.conditions and "repeats: 3" in judged.conditions
    assert judged.aside == ""


@pytest.mark.parametrize(("claim", "experiment"), FALSE, ids=[f"{claim}-{i}" for i, (claim, _) in enumerate(FALSE)])
def test_a_claim_that_is_false_of_the_synthetic_data_is_refuted(
    claim: str, experiment: Experiment, tmp_path: Path
) -> None:
    judged = verdict_on(claim, evidence_of(tmp_path, experiment))
    assert judged.verdict == "refuted", judged.finding


@pytest.mark.parametrize("claim", OPEN)
def test_a_limit_inside_the_interval_decides_nothing(claim: str, tmp_path: Path) -> None:
    judged = verdict_on(claim, evidence_of(tmp_path, OPEN[claim]))
    assert judged.verdict == "not decided", judged.finding


@pytest.mark.parametrize("claim", TRUE)
def test_one_repeat_decides_nothing(claim: str, tmp_path: Path) -> None:
    scenarios, tables = TRUE[claim]
    ids = [row for rows in scenarios for row in rows]
    single = [[row for row in rows if row["repeat"] == 1] for rows in scenarios]
    kept = [row for rows in single for row in rows]
    renumbered = {i: kept.index(row) for i, row in enumerate(ids) if row in kept}
    tables = {
        name: [row | {"at": renumbered[row["at"]]} for row in rows if row["at"] in renumbered]
        for name, rows in tables.items()
    }
    judged = verdict_on(claim, made(tmp_path, *single, tables=tables))
    assert judged.verdict == "not decided"
    assert "one repeat" in judged.finding


@pytest.mark.parametrize("claim", [claim.id for claim in CLAIMS if claim.hardware != "any"])
@pytest.mark.parametrize("truth", ["true", "false"])
def test_cpu_data_decides_no_claim_about_gpus_but_is_reported(claim: str, truth: str, tmp_path: Path) -> None:
    experiment = TRUE[claim] if truth == "true" else dict(FALSE)[claim]
    judged = verdict_on(claim, evidence_of(tmp_path, on_cpu(experiment), gpu=None))
    assert judged.verdict == "not measured here"
    assert "CPU processes" in judged.aside and re.search(r"\d\.\d+ \[", judged.aside)
    assert judged.conditions == ""


@pytest.mark.parametrize("claim", TRUE)
@pytest.mark.parametrize(
    "made_up", [{"gpu": GPU | {"name": "synthetic GPU"}}, {"source": "synthetic"}, {"processor": "Synthetic CPU"}]
)
def test_what_is_called_synthetic_decides_nothing(claim: str, made_up: dict[str, Any], tmp_path: Path) -> None:
    judged = verdict_on(claim, evidence_of(tmp_path, TRUE[claim], **made_up))
    assert judged.verdict == "not measured here"
    if claim != "mnist_accuracy" or "source" not in made_up:
        assert "synthetic data" in judged.aside


def test_a_run_on_a_gpu_without_its_name_decides_nothing(tmp_path: Path) -> None:
    assert verdict_on("nhwc_gain", evidence_of(tmp_path / "a", TRUE["nhwc_gain"], gpu=None)).verdict == (
        "not measured here"
    )
    unrecorded = evidence_of(tmp_path / "b", TRUE["nhwc_gain"], recorded=False)
    assert verdict_on("nhwc_gain", unrecorded).verdict == "not measured here"


def test_one_numa_node_decides_nothing_about_a_numa_machine(tmp_path: Path) -> None:
    judged = verdict_on("dali_gain", evidence_of(tmp_path, TRUE["dali_gain"], nodes=(0,)))
    assert judged.verdict == "not measured here"
    assert "two or more NUMA nodes" in judged.finding


@pytest.mark.parametrize("claim", ["qlora_smallest", "llm_bound_by_launch_and_sync", "llm_scaling_is_smaller"])
def test_a_tiny_language_model_on_a_gpu_decides_nothing(claim: str, tmp_path: Path) -> None:
    small = changed(TRUE[claim], lambda row: row | ({"parameters": 6_000_000} if row["workload"] == "llm" else {}))
    assert verdict_on(claim, evidence_of(tmp_path, small)).verdict == "not measured here"


def test_small_images_decide_nothing_about_precisions(tmp_path: Path) -> None:
    small = changed(TRUE["fp16_speedup"], lambda row: row | {"image_size": 32})
    judged = verdict_on("fp16_speedup", evidence_of(tmp_path, small))
    assert judged.verdict == "not measured here"
    assert "too small a workload" in judged.aside


def test_fewer_epochs_that_stay_below_the_accuracy_do_not_refute_it(tmp_path: Path) -> None:
    judged = verdict_on("mnist_accuracy", evidence_of(tmp_path, accuracy(0.9, 0.91, 0.9, epochs=3)))
    assert judged.verdict == "not decided"


def test_accuracy_on_a_cpu_counts_since_that_claim_is_not_about_gpus(tmp_path: Path) -> None:
    judged = verdict_on("mnist_accuracy", evidence_of(tmp_path, on_cpu(TRUE["mnist_accuracy"]), gpu=None))
    assert judged.verdict == "confirmed"


def test_runs_that_differ_in_more_than_the_compared_parameter_are_not_compared(tmp_path: Path) -> None:
    rows = images(100) + images(120, layout="nhwc", batch_size=128)
    assert verdict_on("nhwc_gain", made(tmp_path, rows)).verdict == "not measured here"


def test_runs_of_two_machines_are_not_compared(tmp_path: Path) -> None:
    make_results(tmp_path, images(100))
    other = make_results(tmp_path / "other", images(120, layout="nhwc"), gpu=GPU | {"name": "NVIDIA A100"})
    (other / "scenarios" / "s0").rename(tmp_path / "scenarios" / "s1")
    for run in (other / "runs").iterdir():
        run.rename(tmp_path / "runs" / run.name)
    assert verdict_on("nhwc_gain", read_evidence(tmp_path)).verdict == "not measured here"


def test_runs_of_several_configurations_are_no_repeats_of_each_other(tmp_path: Path) -> None:
    is_vision, is_llm = [], []
    for dataset in ("mnist", "mnist-500px"):
        is_vision += images(100, (1.0,), dataset=dataset) + images(380, (1.0,), dataset=dataset, devices=4)
    for dataset in ("alpaca", "samsum"):
        is_llm += texts(1.0, (1.0,), dataset=dataset) + texts(1.6, (1.0,), dataset=dataset, devices=4)
    judged = verdict_on("llm_scaling_is_smaller", made(tmp_path, is_vision, is_llm))
    assert judged.verdict == "not decided"
    assert "one repeat" in judged.finding and "repeats: 1" in judged.conditions


@pytest.mark.parametrize(("llm", "vision", "verdict"), [(2.5, 3.8, "confirmed"), (3.8, 2.5, "refuted")])
def test_speed_ups_of_several_configurations_are_compared_by_their_geometric_means(
    llm: float, vision: float, verdict: str, tmp_path: Path
) -> None:
    is_vision, is_llm = [], []
    slower = (1.0, 1.01, 1.02)  # repeats of language models on one device, so their speed-up
    for dataset, factor in (("a", 0.9), ("b", 1.0), ("c", 1.3)):
        is_vision += images(100, dataset=dataset) + images(100 * vision * factor, dataset=dataset, devices=4)
        is_llm += texts(1.0, [own * 1 / each for own, each in zip(STEADY, slower, strict=True)], dataset=dataset)
        is_llm += texts(4 / (llm * factor), dataset=dataset, devices=4)
    judged = verdict_on("llm_scaling_is_smaller", made(tmp_path, is_vision, is_llm))
    assert judged.verdict == verdict, judged.finding
    [comparison] = judged.tests[0].comparisons
    expected = ttest_1samp(np.log([llm / vision * each for each in slower]), 0).confidence_interval()
    assert (comparison.found.low, comparison.found.high) == pytest.approx(tuple(np.exp(expected)))
    assert comparison.found.repeats == 3 and len(comparison.runs) == 36


@pytest.mark.parametrize("changed_in", ["hardware", "versions"])
def test_a_speed_up_is_over_one_device_of_the_same_machine_with_the_same_versions(
    changed_in: str, tmp_path: Path
) -> None:
    scenarios, _ = TRUE["llm_scaling_is_smaller"]
    results = make_results(tmp_path, *scenarios)
    changed = 0
    for path in results.glob("runs/llm_*_cuda1_*/run.json"):
        record = json.loads(path.read_text())
        record[changed_in] |= {"processor": "another"} if changed_in == "hardware" else {"torch": "2.10.0"}
        path.write_text(json.dumps(record))
        changed += 1
    assert changed == 3
    assert verdict_on("llm_scaling_is_smaller", read_evidence(results)).verdict == "not measured here"


def test_a_run_on_several_nodes_is_compared_with_one_device(tmp_path: Path) -> None:
    rows = images(100, image_size=500) + images(750, image_size=500, devices=8, nodes=2)
    judged = verdict_on("large_images_scale", made(tmp_path, rows))
    [comparison] = judged.tests[0].comparisons
    assert comparison.found.value == pytest.approx(750 / 800)


@pytest.mark.parametrize("order", [None, ["s0", "s1", "s2"], ["s2", "s1", "s0"]])
@pytest.mark.parametrize("truth", ["true", "false"])
def test_the_order_of_scenarios_that_share_runs_changes_no_verdict(
    order: list[str] | None, truth: str, tmp_path: Path
) -> None:
    is_vision, is_llm = (TRUE if truth == "true" else dict(FALSE))["llm_scaling_is_smaller"][0]
    at_four = [row for row in is_llm if row.get("devices") == 4]
    results = make_results(tmp_path, at_four, is_vision, is_llm)
    judged = verdict_on("llm_scaling_is_smaller", read_evidence(results, order))
    assert judged.verdict == ("confirmed" if truth == "true" else "refuted")


def test_configurations_that_contradict_each_other_decide_nothing(tmp_path: Path) -> None:
    rows = images(100) + images(120, layout="nhwc")
    rows += images(100, image_size=500) + images(90, image_size=500, layout="nhwc")
    judged = verdict_on("nhwc_gain", made(tmp_path, rows))
    assert judged.verdict == "not decided"
    assert "2 comparisons, 1 support it, 1 contradict it, 0 are open" in judged.finding


def test_a_ratio_is_paired_by_repeat_and_is_listed_with_its_runs(tmp_path: Path) -> None:
    faster = images(120, (0.99, 1.01), layout="nhwc")
    table = comparisons_table([verdict_on("nhwc_gain", made(tmp_path, images(100, (1.1, 1.0)) + faster))])
    [row] = table.to_dict("records")
    ratios = np.log([1.2 * 0.99 / 1.1, 1.2 * 1.01 / 1.0])
    assert row["value"] == pytest.approx(np.exp(ratios.mean()))
    assert (row["low"], row["high"]) == pytest.approx(tuple(np.exp(ttest_1samp(ratios, 0).confidence_interval())))
    table = comparisons_table([verdict_on("nhwc_gain", evidence_of(tmp_path / "same", TRUE["nhwc_gain"]))])
    [row] = table.to_dict("records")
    assert (row["value"], row["low"], row["high"]) == pytest.approx((1.2, 1.2, 1.2))
    assert row["answer"] == "yes" and row["decides"] and len(row["runs"].split()) == 6


def test_runs_that_did_not_complete_are_not_compared(tmp_path: Path) -> None:
    rows = images(100) + [row | {"outcome": "out_of_memory"} for row in images(120, layout="nhwc")]
    assert verdict_on("nhwc_gain", made(tmp_path, rows)).verdict == "not measured here"


def test_results_without_any_run_give_a_row_per_claim(tmp_path: Path) -> None:
    table = claims_table(judge(CLAIMS, read_evidence(tmp_path)))
    assert list(table.columns) == list(COLUMNS)
    assert set(table["verdict"]) == {"not measured here"} and len(table) == 12


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("claims: 3", "expected a list of claims, found dict"),
        ([{"id": "a"}], "a.claim: missing"),
        ({"tests": [{"kind": "compare"}]}, "a.tests.0.statement: missing"),
        ({"tests": [{"kind": "guess"}]}, "tests.0"),
        ({"hardware": "tpu"}, "a.hardware: found 'tpu'"),
        ({"colour": "red"}, "a.colour: unknown key"),
        ({"above": None}, "expected a limit"),
        ({"above": 2.0, "below": 1.0}, "above (2.0) must be less than below (1.0)"),
        ({"where": {"colour": 1}}, "'colour' is neither a parameter nor a measure"),
        ({"kind": "api_time", "functions": "("}, "is not a regular expression"),
    ],
)
def test_a_faulty_claims_file_is_refused_by_lines_that_name_the_key(content: Any, said: str, tmp_path: Path) -> None:
    test = {"statement": "s", "kind": "efficiency", "where": {}, "above": 1.0}
    claim = {"id": "a", "claim": "c", "paper": "A", "source": "s", "hardware": "gpu"}
    if isinstance(content, dict):
        in_test = {
            key: value for key, value in content.items() if key in ("above", "below", "where", "kind", "functions")
        }
        content = [claim | {"tests": [test | in_test]} | {k: v for k, v in content.items() if k not in in_test}]
    path = tmp_path / "claims.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    with pytest.raises(UserError) as refused:
        read_claims(path)
    lines = str(refused.value).splitlines()
    assert all(line.startswith(f"{path}: ") for line in lines)
    assert any(said in line for line in lines), lines


def test_a_claim_that_is_listed_twice_is_refused(tmp_path: Path) -> None:
    text = (ROOT / "resources" / "claims.yaml").read_text(encoding="utf-8")
    path = tmp_path / "claims.yaml"
    path.write_text(text + "\n" + text[text.index("- id: mnist_accuracy") :])
    with pytest.raises(UserError, match="mnist_accuracy is listed twice"):
        read_claims(path)


def test_a_damaged_measures_file_is_named(tmp_path: Path) -> None:
    results = make_results(tmp_path, images(100))
    (results / "scenarios" / "s0" / "measures.csv").write_text("run,outcome\nx,completed\n")
    with pytest.raises(UserError, match=r"measures\.csv: found no column workload"):
        read_evidence(results)


def test_the_command_prints_every_verdict_and_counts_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scenarios, tables = TRUE["nhwc_gain"]
    results = make_results(tmp_path, *scenarios, tables=tables)
    main(["claims", str(results), "--claims", str(ROOT / "resources" / "claims.yaml")])
    printed = capsys.readouterr().out
    assert "nhwc_gain: confirmed" in printed
    assert printed.splitlines()[-1] == "11 not measured here, 1 confirmed"
