"""Verdicts on claims, by synthetic experiments whose truth is known."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from claim_worlds import FALSE, OPEN, TRUE, Experiment, accuracy, calls, precisions, sizes, strategies, techniques
from synthetic_results import GPU, Row, images, made, make_results, texts

from conftest import ROOT
from multicard.analysis.claims import (
    COLUMNS,
    TEST_COLUMNS,
    Claim,
    JudgedClaim,
    claims_table,
    comparisons_table,
    judge,
    pooled_table,
    read_claims,
)
from multicard.analysis.evidence import OBSERVATION, Evidence, read_evidence
from multicard.cli import main
from multicard.core.errors import UserError
from multicard.experiment.load import read_experiment
from multicard.experiment.machine import Machine
from multicard.experiment.runs import expand

CLAIMS = read_claims(ROOT / "resources" / "claims.yaml")

# One of the experiments that refute each claim.
REFUTING = {claim: experiment for claim, numbers, experiment in FALSE if 0 in numbers}

PROFILERS = ("none", "kineto", "nsys")


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
    assert {claim.id for claim in CLAIMS} == TRUE.keys() == OPEN.keys()
    assert len(CLAIMS) == 12
    assert all(re.search(r"arXiv 25\d\d\.\d{5}", claim.source) for claim in CLAIMS)


def test_every_test_of_every_claim_can_be_refuted() -> None:
    refuted = {(claim, number) for claim, numbers, _ in FALSE for number in numbers}
    assert refuted == {(claim.id, number) for claim in CLAIMS for number in range(len(claim.tests))}


@pytest.mark.parametrize("claim", TRUE)
def test_a_claim_that_is_true_of_the_synthetic_data_is_confirmed(claim: str, tmp_path: Path) -> None:
    judged = verdict_on(claim, evidence_of(tmp_path, TRUE[claim]))
    assert judged.verdict == "confirmed", judged.finding
    assert {each.verdict for each in judged.tests} == {"confirmed"}
    assert "NVIDIA H100" in judged.conditions and "repeats: 3" in judged.conditions
    assert judged.can_be_judged == "yes" and judged.other_evidence == ""


@pytest.mark.parametrize(
    ("claim", "numbers", "experiment"), FALSE, ids=[f"{claim}-{i}" for i, (claim, *_) in enumerate(FALSE)]
)
def test_a_claim_that_is_false_of_the_synthetic_data_is_refuted(
    claim: str, numbers: set[int], experiment: Experiment, tmp_path: Path
) -> None:
    judged = verdict_on(claim, evidence_of(tmp_path, experiment))
    assert {number for number, each in enumerate(judged.tests) if each.verdict == "refuted"} == numbers, judged.finding
    decides = any(judged.tests[number].test.decides for number in numbers)
    assert judged.verdict == ("refuted" if decides else "confirmed")


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
    assert judged.can_be_judged == "no: one repeat only, which has no interval"


@pytest.mark.parametrize("claim", [claim.id for claim in CLAIMS if claim.hardware != "any"])
@pytest.mark.parametrize("truth", ["true", "false"])
def test_cpu_data_decides_no_claim_about_gpus_but_is_reported(claim: str, truth: str, tmp_path: Path) -> None:
    experiment = (TRUE if truth == "true" else REFUTING)[claim]
    judged = verdict_on(claim, evidence_of(tmp_path, on_cpu(experiment), gpu=None))
    assert judged.verdict == "not measured here"
    assert "CPU processes" in judged.can_be_judged
    assert re.search(r"Not judged \(CPU processes\): .* Found: \d", judged.other_evidence)
    assert judged.conditions == ""


@pytest.mark.parametrize("claim", TRUE)
@pytest.mark.parametrize(
    "made_up", [{"gpu": GPU | {"name": "synthetic GPU"}}, {"source": "synthetic"}, {"processor": "Synthetic CPU"}]
)
def test_what_is_called_synthetic_decides_nothing(claim: str, made_up: dict[str, Any], tmp_path: Path) -> None:
    judged = verdict_on(claim, evidence_of(tmp_path, TRUE[claim], **made_up))
    assert judged.verdict == "not measured here"
    if claim != "mnist_accuracy" or "source" not in made_up:
        assert "synthetic data" in judged.other_evidence and "synthetic data" in judged.can_be_judged


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
    assert "too small a workload" in judged.other_evidence


@pytest.mark.parametrize("reached", [0.9, 0.99])
def test_runs_of_fewer_epochs_count_neither_against_the_accuracy_nor_for_it(reached: float, tmp_path: Path) -> None:
    judged = verdict_on("mnist_accuracy", evidence_of(tmp_path, accuracy(reached, reached, reached, epochs=3)))
    assert judged.verdict == "not measured here"


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
    for dataset, factor in (("a", 0.5), ("b", 1.0), ("c", 2.0)):
        is_vision += images(100, dataset=dataset) + images(100 * vision * factor, dataset=dataset, devices=4)
        is_llm += texts(1.0, dataset=dataset) + texts(4 / (llm * factor), dataset=dataset, devices=4)
    judged = verdict_on("llm_scaling_is_smaller", made(tmp_path, is_vision, is_llm))
    assert judged.verdict == verdict, judged.finding
    [(comparison, found)] = judged.tests[0].pooled.single
    assert found.value == pytest.approx(llm / vision)
    assert found.repeats == 3 and len(comparison.runs()) == 36


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
    assert judged.tests[0].pooled.found.value == pytest.approx(750 / 800)


@pytest.mark.parametrize("order", [None, ["s0", "s1", "s2"], ["s2", "s1", "s0"]])
@pytest.mark.parametrize("truth", ["true", "false"])
def test_the_order_of_scenarios_that_share_runs_changes_no_verdict(
    order: list[str] | None, truth: str, tmp_path: Path
) -> None:
    is_vision, is_llm = (TRUE if truth == "true" else REFUTING)["llm_scaling_is_smaller"][0]
    at_four = [row for row in is_llm if row.get("devices") == 4]
    results = make_results(tmp_path, at_four, is_vision, is_llm)
    judged = verdict_on("llm_scaling_is_smaller", read_evidence(results, order))
    assert judged.verdict == ("confirmed" if truth == "true" else "refuted")


def test_configurations_that_contradict_each_other_are_pooled_and_their_range_is_stated(tmp_path: Path) -> None:
    rows = images(100) + images(150, layout="nhwc")
    rows += images(100, image_size=500) + images(96, image_size=500, layout="nhwc")
    judged = verdict_on("nhwc_gain", made(tmp_path, rows))
    assert judged.verdict == "confirmed"  # 1.2, the root of 1.5 × 0.96
    assert "1.2 [1.2, 1.2], pooled from 2 comparisons, which vary from 0.96 (" in judged.finding
    assert "500 px" in judged.finding and "to 1.5 (" in judged.finding


def test_a_pooled_ratio_has_the_t_interval_of_its_blocks(tmp_path: Path) -> None:
    rows = images(100, (1, 1, 1)) + images(100, (1.10, 1.21, 1.331), layout="nhwc")
    [row] = pooled_table([verdict_on("nhwc_gain", made(tmp_path, rows))]).to_dict("records")
    assert row["value"] == pytest.approx(1.21)
    half = 4.302653 * math.log(1.1) / math.sqrt(3)  # Student's t of two degrees of freedom; logs are ln 1.1 apart
    assert (row["low"], row["high"]) == (pytest.approx(1.21 * math.exp(-half)), pytest.approx(1.21 * math.exp(half)))
    assert (row["level"], row["blocks"], row["comparisons"]) == (0.95, 3, 1)
    assert row["verdict"] == "not decided"


def test_every_comparison_is_listed_with_its_runs(tmp_path: Path) -> None:
    table = comparisons_table([verdict_on("nhwc_gain", evidence_of(tmp_path, TRUE["nhwc_gain"]))])
    [row] = table.to_dict("records")
    assert row["value"] == pytest.approx(1.2)
    assert row["pooled"] and row["not_judged_because"] == "" and len(row["runs"].split()) == 6


def test_runs_that_did_not_complete_are_not_compared(tmp_path: Path) -> None:
    rows = images(100) + [row | {"outcome": "out_of_memory"} for row in images(120, layout="nhwc")]
    assert verdict_on("nhwc_gain", made(tmp_path, rows)).verdict == "not measured here"


def test_results_without_any_run_give_a_row_per_claim(tmp_path: Path) -> None:
    table = claims_table(judge(CLAIMS, read_evidence(tmp_path)))
    assert list(table.columns) == list(COLUMNS)
    assert set(table["verdict"]) == {"not measured here"} and len(table) == 12
    assert table["can_be_judged"].str.match(r"no: (.* \()?not measured on ").all()
    tests = pooled_table(judge(CLAIMS, read_evidence(tmp_path)))
    assert list(tests.columns) == list(TEST_COLUMNS) and tests["not_judged_because"].all()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("claims: 3", "expected a list of claims, found dict"),
        ([{"id": "a"}], "a.claim: missing"),
        ({"tests": [{"kind": "compare"}]}, "a.tests.0.statement: missing"),
        ({"tests": [{"kind": "guess"}]}, "tests.0"),
        ({"hardware": "tpu"}, "a.hardware: found 'tpu'"),
        ({"size": {"audio": {}}}, "a.size.audio"),
        ({"refuted_if": ""}, "a.refuted_if: found ''"),
        ({"max_data_share": 10}, "a.tests.0.max_data_share: found 10"),
        ({"colour": "red"}, "a.colour: unknown key"),
        ({"above": None}, "expected a limit"),
        ({"above": 2.0, "below": 1.0}, "above (2.0) must be less than below (1.0)"),
        ({"where": {"colour": 1}}, "'colour' is neither a parameter nor a measure"),
        ({"kind": "api_time", "functions": "("}, "is not a regular expression"),
    ],
)
def test_a_faulty_claims_file_is_refused_by_lines_that_name_the_key(content: Any, said: str, tmp_path: Path) -> None:
    test = {"statement": "s", "kind": "efficiency", "where": {}, "above": 1.0}
    claim = {"id": "a", "claim": "c", "paper": "A", "source": "s", "hardware": "gpu", "refuted_if": "r"}
    if isinstance(content, dict):
        keys = ("above", "below", "where", "kind", "functions", "max_data_share")
        in_test = {key: value for key, value in content.items() if key in keys}
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


# What claims must not be decided by.


@pytest.mark.parametrize(("ddp", "reading"), [(0.95, "confirmed"), (0.5, "refuted")])
def test_plain_ddp_whose_scaling_follows_from_its_definition_decides_nothing(
    ddp: float, reading: str, tmp_path: Path
) -> None:
    # By distinct samples its efficiency is at most 1 / devices, which no measurement could change.
    judged = verdict_on("ddp_ds_scales", evidence_of(tmp_path, strategies(ddp=ddp)))
    assert judged.verdict == "confirmed"
    [beside] = [each for each in judged.tests if "plain ddp" in each.test.statement]
    assert (beside.test.decides, beside.verdict) == (False, reading)
    assert beside.pooled.found.value == pytest.approx(ddp)


def test_strategies_are_compared_where_each_was_measured(tmp_path: Path) -> None:
    [rows], _ = strategies()
    for other in ({"image_size": 100}, {"dataset": "mnist-300px"}, {"binding": "numa"}, {"preset": "tuned"}):
        more = {"layout": "nchw", "pin_memory": False} | other
        rows += images(100, strategy="single", **more) + images(80, devices=4, **more)  # 0.2 of four GPUs
    judged = verdict_on("ddp_ds_scales", made(tmp_path, rows))
    assert [each.under for each, _ in judged.tests[0].pooled.single] == [
        f"mnist, 224 px, ddp-ds, {devices} GPUs, fp32" for devices in (2, 4)
    ]
    assert judged.verdict == "confirmed"


def test_dp_that_waits_for_its_loader_is_not_judged(tmp_path: Path) -> None:
    judged = verdict_on("ddp_ds_scales", evidence_of(tmp_path, strategies(dp_waits=0.5)))
    assert judged.verdict == "not decided" and judged.tests[1].verdict == "not judged"
    assert judged.can_be_judged == (
        "in part; not judged: dp keeps less than 75% of the distinct samples per second of one device, per device (the "
        "loader sets the pace (data share above 10%))"
    )
    assert "the loader sets the pace (data share above 10%)" in judged.can_be_judged
    assert "Not judged (the loader sets the pace (data share above 10%)): dp keeps less" in judged.other_evidence


@pytest.mark.parametrize(
    ("claim", "switch"),
    [
        ("nhwc_gain", {"layout": "nhwc"}),
        ("fp16_speedup", {"precision": "fp16"}),
        ("pin_memory_gain", {"pin_memory": True}),
    ],
)
def test_runs_whose_pace_the_loader_sets_do_not_refute_what_speeds_up_the_gpu(
    claim: str, switch: Row, tmp_path: Path
) -> None:
    base = {"precision": "fp64"} if "precision" in switch else {}
    rows = images(100, data_share=0.4, **base) + images(100, data_share=0.6, **switch)
    judged = verdict_on(claim, made(tmp_path, rows))
    assert judged.verdict == "not judged"
    assert "the loader sets the pace" in judged.can_be_judged
    assert "Found: 1 [1, 1]" in judged.other_evidence


def test_a_gain_is_judged_by_the_runs_that_do_not_wait_for_data(tmp_path: Path) -> None:
    rows = images(100, data_share=0.02) + images(120, data_share=0.08, layout="nhwc")
    rows += images(100, data_share=0.3, devices=2) + images(100, data_share=0.5, devices=2, layout="nhwc")
    judged = verdict_on("nhwc_gain", made(tmp_path, rows))
    assert judged.verdict == "confirmed" and judged.tests[0].pooled.found.value == pytest.approx(1.2)
    [beside] = judged.tests[0].others
    assert beside.by_block == pytest.approx({1: 1.0, 2: 1.0, 3: 1.0})


def test_the_largest_of_many_gains_does_not_show_that_fp16_reaches_it(tmp_path: Path) -> None:
    scenarios, _ = precisions(largest=2.5)
    lucky = images(100, precision="fp64", image_size=100) + images(350, precision="fp16", image_size=100)
    judged = verdict_on("fp16_speedup", made(tmp_path, *scenarios, [row | {"steps_per_epoch": 200} for row in lucky]))
    assert judged.tests[2].verdict == "refuted" and judged.verdict == "refuted"


def test_gains_of_pinned_memory_may_vary_beyond_the_range_that_they_have_together(tmp_path: Path) -> None:
    rows = []
    for size, one, four in ((224, 1.36, 1.28), (500, 1.20, 1.10)):
        for devices, gain in ((1, one), (4, four)):
            rows += images(100, image_size=size, devices=devices)
            rows += images(100 * gain, image_size=size, devices=devices, pin_memory=True)
    judged = verdict_on("pin_memory_gain", made(tmp_path, rows))
    assert judged.verdict == "confirmed", judged.finding
    assert judged.tests[0].pooled.found.value == pytest.approx((1.36 * 1.28 * 1.20 * 1.10) ** 0.25)


def test_a_gpu_that_is_always_busy_is_not_bound_by_launches_though_its_host_waits_in_synchronization(
    tmp_path: Path,
) -> None:
    judged = verdict_on("llm_bound_by_launch_and_sync", evidence_of(tmp_path, calls(0.0, 0.0, 0.0, late=0.0)))
    assert [each.verdict for each in judged.tests] == ["confirmed", "refuted", "confirmed"]
    assert judged.verdict == "confirmed" and "Another reading: For more than 10%" in judged.finding


def test_runs_that_profiling_made_longer_do_not_show_that_launches_are_late(tmp_path: Path) -> None:
    judged = verdict_on("llm_bound_by_launch_and_sync", evidence_of(tmp_path, calls(0.1, 0.1, 0.1, overhead=0.4)))
    assert [each.verdict for each in judged.tests] == ["confirmed", "not judged", "not judged"]


def test_a_timeline_without_causes_of_idle_time_does_not_say_that_launches_are_in_time(tmp_path: Path) -> None:
    scenarios, tables = calls(0.1, 0.1, 0.1)
    unknown = [row | {"idle_host_bound_s": None} for row in tables["timeline"]]
    tables |= {"timeline": unknown}
    judged = verdict_on("llm_bound_by_launch_and_sync", made(tmp_path, *scenarios, tables=tables))
    assert judged.tests[1].verdict == "not measured here"


def test_small_images_in_fp64_scale_and_do_not_refute_that_only_large_ones_do(tmp_path: Path) -> None:
    [rows], _ = sizes(0.9, 0.5)
    rows += images(10, image_size=100, precision="fp64") + images(39, image_size=100, precision="fp64", devices=4)
    assert verdict_on("large_images_scale", made(tmp_path, rows)).verdict == "confirmed"


def test_qat_of_adapters_that_is_lighter_than_dpo_does_not_refute_that_qat_is_heaviest(tmp_path: Path) -> None:
    judged = verdict_on("qat_heaviest", evidence_of(tmp_path, techniques(qat_adapters=(1.2, 22.0))))
    assert judged.verdict == "confirmed"
    assert [each.verdict for each in judged.tests if not each.test.decides] == ["refuted", "refuted"]


def test_qat_of_adapters_alone_does_not_decide_about_qat_of_all_weights(tmp_path: Path) -> None:
    [rows], _ = techniques()
    judged = verdict_on("qat_heaviest", made(tmp_path, [row for row in rows if row["qat_of"] != "weights"]))
    assert judged.verdict == "not measured here"
    assert "that differ in technique and at most in learning_rate besides: qat with qat_of weights against lora" in (
        judged.can_be_judged
    )


def test_disturbed_runs_are_counted_among_the_conditions(tmp_path: Path) -> None:
    busy = {"disturbance": "other processes: 1.6 CPUs"}
    experiment = changed(TRUE["mnist_accuracy"], lambda row: row | (busy if row["repeat"] == 1 else {}))
    judged = verdict_on("mnist_accuracy", evidence_of(tmp_path, experiment))
    assert judged.conditions.endswith("repeats: 3; disturbed runs: 1 of 3 (other processes)")


@pytest.mark.parametrize(
    ("doubt", "reason"),
    [
        ({"stationary": False, "drift": 0.2}, "not stationary"),
        ({"disturbance": "other processes: 2 CPUs"}, "disturbed"),
    ],
)
def test_runs_that_were_disturbed_or_not_stationary_are_left_out_of_times(
    doubt: Row, reason: str, tmp_path: Path
) -> None:
    slow = doubt | {"throughput_samples_per_s": 50}
    rows = images(100) + [row | (slow if row["repeat"] == 1 else {}) for row in images(120, layout="nhwc")]
    judged = verdict_on("nhwc_gain", made(tmp_path / "one", rows))
    assert judged.verdict == "confirmed" and "repeats: 2" in judged.conditions
    assert judged.tests[0].pooled.found.value == pytest.approx(1.2)
    judged = verdict_on("nhwc_gain", made(tmp_path / "all", [row | doubt for row in rows]))
    assert judged.verdict == "not judged" and reason in judged.can_be_judged


def test_accuracy_and_memory_are_judged_whatever_disturbed_the_run(tmp_path: Path) -> None:
    doubt = {"disturbance": "other processes: 2 CPUs", "stationary": False, "drift": 0.2}
    disturbed = [changed(TRUE[claim], lambda row: row | doubt) for claim in ("mnist_accuracy", "qlora_smallest")]
    assert verdict_on("mnist_accuracy", evidence_of(tmp_path / "a", disturbed[0])).verdict == "confirmed"
    judged = verdict_on("qlora_smallest", evidence_of(tmp_path / "b", disturbed[1]))
    assert [each.verdict for each in judged.tests] == ["confirmed"] * 3 + ["not judged"]


# How runs are observed makes no further evidence.


@pytest.mark.parametrize("profiler", PROFILERS)
def test_a_configuration_that_was_observed_in_several_ways_counts_once(profiler: str, tmp_path: Path) -> None:
    # 1.2 and 0.9 have the geometric mean 1.04; with the second one counted three times it is 0.97.
    rows = images(100, image_size=300) + images(120, image_size=300, layout="nhwc")
    for by in ("auto", *PROFILERS):
        extra = {"profiler": by, "profiled_steps": 30 if by == profiler else 10}
        rows += images(100, **extra) + images(90, layout="nhwc", **extra)
    judged = verdict_on("nhwc_gain", made(tmp_path, rows))
    [test] = judged.tests
    assert test.pooled.found.value == pytest.approx(math.sqrt(1.2 * 0.9)) and judged.verdict == "confirmed"
    assert {each["profiler"] for one, _ in test.pooled.single for each in one.sides} == {"auto"}
    assert [one.why_not for one in test.others] == [
        "counted once, though measured with several values of profiled_steps or profiler or save"
    ] * 3


def test_of_runs_observed_in_several_ways_those_that_may_be_judged_count(tmp_path: Path) -> None:
    rows = images(100, data_share=0.5) + images(100, data_share=0.5, layout="nhwc")
    rows += images(100, profiler="none") + images(120, layout="nhwc", profiler="none")
    judged = verdict_on("nhwc_gain", made(tmp_path, rows))
    assert judged.verdict == "confirmed" and judged.tests[0].pooled.found.value == pytest.approx(1.2)
    [beside] = judged.tests[0].others
    assert "the loader sets the pace" in beside.why_not


def test_efficiencies_speed_ups_and_trends_count_each_job_once_too(tmp_path: Path) -> None:
    def with_controls(experiment: Experiment) -> Experiment:
        [*scenarios], tables = experiment
        controls = [[row | {"profiler": by} for row in scenario] for scenario in scenarios for by in PROFILERS]
        return [*scenarios, *controls], tables

    for claim, number in (("large_images_scale", 0), ("pin_memory_gain", 1)):
        judged = verdict_on(claim, evidence_of(tmp_path / claim, with_controls(TRUE[claim])))
        assert len(judged.tests[number].pooled.single) == 1 and judged.verdict == "confirmed"
    # The geometric mean of speed-ups 2 and 3.8 is 2.76; with the control of the first counted three times, 2.35.
    fast, slow = {"dataset": "a"}, {"dataset": "b"}
    is_vision = images(100, **fast) + images(380, **fast, devices=4)
    for by in ("auto", *PROFILERS):
        is_vision += images(100, **slow, profiler=by) + images(200, **slow, profiler=by, devices=4)
    judged = verdict_on(
        "llm_scaling_is_smaller", made(tmp_path / "speed-ups", is_vision, texts(1.0) + texts(2, devices=4))
    )
    assert judged.tests[0].pooled.found.value == pytest.approx(2 / math.sqrt(2 * 3.8))


def test_a_trend_whose_one_end_waits_for_data_says_so(tmp_path: Path) -> None:
    rows = []
    for devices, waits in ((1, 0.02), (4, 0.5)):
        rows += images(100, devices=devices, data_share=waits)
        rows += images(120, devices=devices, data_share=waits, pin_memory=True)
    judged = verdict_on("pin_memory_gain", made(tmp_path, rows))
    trend = judged.tests[1]
    assert trend.verdict == "not judged"
    assert trend.not_judged_because == "the loader sets the pace (data share above 10%)"
    [beside] = trend.others
    assert "4 over 1 devices" in beside.what and beside.by_block == pytest.approx({1: 1.0, 2: 1.0, 3: 1.0})


def test_a_trend_is_judged_by_the_ends_that_may_be_judged_and_that_of_all_is_told_beside(tmp_path: Path) -> None:
    rows = []
    for devices, gain, waits in ((1, 1.28, 0.02), (2, 1.18, 0.02), (4, 1.0, 0.5)):
        rows += images(100, devices=devices, data_share=waits)
        rows += images(100 * gain, devices=devices, data_share=waits, pin_memory=True)
    trend = verdict_on("pin_memory_gain", made(tmp_path, rows)).tests[1]
    [(judged, _)], [beside] = trend.pooled.single, trend.others
    assert trend.verdict == "confirmed" and "2 over 1 devices" in judged.what and "4 over 1 devices" in beside.what


def test_a_share_is_worded_as_one_wherever_it_stands_and_its_interval_ends_at_100_per_cent(tmp_path: Path) -> None:
    # Mean 0.98 and standard error 0.01: the t interval would reach 0.98 + 4.303 × 0.01 = 1.023.
    scatter = 0.01 * math.sqrt(3)
    judged = verdict_on("mnist_accuracy", evidence_of(tmp_path, accuracy(0.98 - scatter, 0.98, 0.98 + scatter)))
    assert "Not decided: 98% [93.7%, 100%] (" in judged.finding
    [row] = pooled_table([judged]).to_dict("records")
    assert (row["low"], row["high"]) == (pytest.approx(0.98 - 0.01 * 4.302653), 1.0)
    assert row["refuted_if"] == "The interval of the pooled share is wholly below 98%."


def test_conditions_count_the_runs_that_are_behind_the_pooled_number(tmp_path: Path) -> None:
    # A further repeat of one of the sides has no partner, and one of a pair has none in the other pairs.
    rows = images(100, (1.0, 1.0)) + images(120, (1.0, 1.0), layout="nhwc")
    rows += images(100, (1.0, 1.0, 1.0, 1.0), devices=2) + images(120, (1.0, 1.0, 1.0), layout="nhwc", devices=2)
    judged = verdict_on("nhwc_gain", made(tmp_path, rows))
    assert "8 runs, repeats: 2" in judged.conditions
    table = comparisons_table([judged])
    assert table["pooled"].all() and [len(runs.split()) for runs in table["runs"]] == [4, 4]
    assert table["repeats"].tolist() == [2, 2]


def test_why_a_claim_cannot_be_judged_names_the_tests_where_these_differ(tmp_path: Path) -> None:
    rows = images(100, devices=1, data_share=0.5) + images(120, devices=1, data_share=0.5, pin_memory=True)
    judged = verdict_on("pin_memory_gain", made(tmp_path, rows))
    assert judged.verdict == "not judged"
    waits = "the loader sets the pace (data share above 10%)"
    missing = (
        "not measured on GPUs whose names are recorded: there are no completed runs with throughput_samples_per_s that "
        "differ in pin_memory alone: true against false, on two numbers of devices"
    )
    assert judged.can_be_judged == (
        f"no: With pin_memory training is 16 to 30% faster, all configurations pooled ({waits}); The gain is smaller "
        f"on the most GPUs than on the fewest ({missing})"
    )


# The matrix of the papers.


@pytest.fixture(scope="module")
def papers_runs(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    """All runs of the papers' configurations that a machine could run, with equal numbers."""
    machine = Machine.here().hypothetical()
    shares = dict.fromkeys(("communication_s", "overlapped_s", "exposed_communication_s", "memory_s"), 0.0)
    idle = dict.fromkeys(("idle_s", "idle_host_bound_s", "idle_collective_s", "idle_other_s"), 0.0)
    scenarios: list[list[Row]] = []
    tables: dict[str, list[Row]] = {"cuda_api": [], "timeline": [], "epochs": []}
    for config in ("paper-vision", "paper-llm"):
        for runs in expand(read_experiment(ROOT / "config" / f"{config}.yaml", outside=False)).values():
            start = sum(map(len, scenarios))
            scenarios.append([])
            for run in runs:
                if run.unsupported_reason(machine) is not None:
                    continue
                at = {"at": start + len(scenarios[-1])}
                speeds = ("throughput_samples_per_s", "processed_samples_per_s", "tokens_per_s", "iteration_time_s")
                measures = dict.fromkeys((*speeds, "test_accuracy", "peak_memory_bytes"), 1.0)
                measures |= {"data_share": 0.02, "profiler_overhead": 0.02, "parameters": 8_030_000_000}
                scenarios[-1].append(run.parameters.model_dump() | measures)
                tables["cuda_api"].append(at | {"api": "runtime", "function": "cudaLaunchKernel", "total_s": 1.0})
                tables["epochs"].append(at | {"epoch": 1, "test_accuracy": 0.99})
                spans = {"scope": "steps", "span_s": 1.0, "busy_s": 1.0, "compute_s": 1.0}
                tables["timeline"].append(at | spans | shares | idle)
    return made(tmp_path_factory.mktemp("papers"), *scenarios, tables=tables)


@pytest.mark.parametrize("claim", CLAIMS, ids=[claim.id for claim in CLAIMS])
def test_the_papers_matrix_has_what_every_test_of_a_claim_needs(claim: Claim, papers_runs: Evidence) -> None:
    [judged] = judge([claim], papers_runs)
    assert judged.can_be_judged == "yes"
    for each in judged.tests:
        assert each.pooled.found.repeats >= 3, each.test.statement
        # A baseline may be of another strategy.
        besides = (*OBSERVATION, "strategy") if each.test.kind == "efficiency" else OBSERVATION
        alike = [tuple(side.rest(besides) for side in one.sides) for one, _ in each.pooled.single]
        assert len(set(alike)) == len(alike), each.test.statement


def test_the_papers_matrix_judges_all_strategies_by_the_same_jobs(papers_runs: Evidence) -> None:
    judged = verdict_on("ddp_ds_scales", papers_runs)
    for each in judged.tests:
        sides = [one.sides[0] for one, _ in each.pooled.single]
        assert [(side["image_size"], side["dataset"], side["devices"]) for side in sides] == [
            (300, "mnist", devices) for devices in (2, 3, 4)
        ]
