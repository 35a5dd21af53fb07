"""Bottlenecks of synthetic jobs, where they are known, and the best of these jobs for a goal."""

from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import pytest
from synthetic_results import GPU, OTHERWISE, SCATTERED, Row, images, made, make_results, texts

from multicard.analysis.bottlenecks.bottlenecks import Kind, bottlenecks
from multicard.analysis.bottlenecks.options import Neighbours, advice
from multicard.analysis.bottlenecks.options import options as all_options
from multicard.analysis.choice.choices import Choice, choices
from multicard.analysis.choice.demand import Demand, Goal
from multicard.analysis.choice.recommend import advise, as_markdown, recommendations
from multicard.analysis.evidence import Configuration, Evidence, read_evidence
from multicard.cli import main
from multicard.core.errors import UserError
from multicard.experiment.config import PARAMETERS
from multicard.trace.timeline import CAUSES

SCRIPT = {"workload": "script", "command": ["train.py"], "device": "cuda"}
ADOPTED = {"workload": "adopted", "program": "theirs", "device": "cuda"}


def timeline(of: int, span: float = 1.0, **shares: float) -> Row:
    """Profiled steps in which a GPU spends so much of its time in each way; computing is what is left."""
    parts = {"communication": 0.0, "memory": 0.0, "overlapped": 0.0, "exposed_communication": 0.0, "idle": 0.0}
    parts |= dict.fromkeys(CAUSES, 0.0) | shares
    parts["idle"] = sum(parts[cause] for cause in CAUSES)
    busy = 1.0 - parts["idle"]
    parts |= {"span": 1.0, "busy": busy, "compute": busy - parts["exposed_communication"] - parts["memory"]}
    seconds = {f"{name}_s": share * span for name, share in parts.items()}
    return {"at": of, "process": 1, "device": 0, "scope": "steps", "step": None} | seconds


def held_back(evidence: Evidence) -> list[tuple[str, float]]:
    [report] = bottlenecks(evidence)
    return [(each.kind, pytest.approx(each.share, abs=1e-6)) for each in report.bottlenecks]


def one(folder: Path, measures: dict[str, Any] | None = None, **shares: float) -> Evidence:
    """Three repeats of a configuration with known shares."""
    rows = images(100, scatter=(1.0, 1.0, 1.0), devices=4, **(measures or {}))
    return made(folder, rows, tables={"timeline": [timeline(run, **shares) for run in range(3)]} if shares else None)


def waiting(data_s: float, step_s: float = 1.0, **others: Any) -> dict[str, Any]:
    """Measures of a run whose profiled steps wait so long for data, by default as the measured ones do."""
    profiled = {"profiled_data_s": data_s, "trace_iteration_time_s": step_s}
    return {"data_share": data_s / step_s} | profiled | others


@pytest.mark.parametrize(
    ("measures", "shares", "expected"),
    [
        (  # what takes most comes first
            waiting(0.06),
            {"exposed_communication": 0.3, "memory": 0.2, "idle_host_bound": 0.16, "idle_collective": 0.08},
            [
                ("exposed communication", 0.3),
                ("compute", 0.26),
                ("memory operations", 0.2),
                ("launch overhead", 0.10),
                ("waiting for other ranks", 0.08),
                ("data loading", 0.06),
            ],
        ),
        (  # the trace divides what is no wait for data
            {"data_share": 0.4},
            {"exposed_communication": 0.2, "memory": 0.4},
            [("data loading", 0.4), ("compute", 0.24), ("memory operations", 0.24), ("exposed communication", 0.12)],
        ),
        (  # a GPU that idles while the host waits for data is not bound by launches
            waiting(0.4),
            {"idle_host_bound": 0.41},
            [("compute", 0.59), ("data loading", 0.4)],
        ),
        (  # a host that launches nothing is busy elsewhere, such as with the wait for data
            waiting(0.3),
            {"idle_host_elsewhere": 0.4, "idle_host_bound": 0.1},
            [("compute", 0.5), ("data loading", 0.3), ("host busy elsewhere", 0.1), ("launch overhead", 0.1)],
        ),
        (  # that is a share of the trace's own time: 0.2 of 0.6 s by the record, while its steps last 0.8 s
            {"profiled_data_share": 1 / 3, "profiled_data_s": 0.2, "trace_iteration_time_s": 0.8},
            {"idle_host_bound": 0.4},
            [("compute", 0.6), ("data loading", 0.25), ("launch overhead", 0.15)],
        ),
        (  # without a trace the phases show copies and computation
            {"mean_iteration_time_s": 1.0, "transfer_s": 0.2, "forward_s": 0.3, "backward_s": 0.4},
            {},
            [("compute or communication", 0.7), ("memory operations", 0.2), ("other", 0.1)],
        ),
    ],
)
def test_bottlenecks_are_the_parts_of_the_step_by_their_shares(
    measures: dict[str, Any], shares: dict[str, float], expected: list[tuple[str, float]], tmp_path: Path
) -> None:
    assert held_back(one(tmp_path, measures, **shares)) == expected


def test_doubts_are_caveats(tmp_path: Path) -> None:
    for measures, said in (
        ({"disturbance": "other processes: 1.6 CPUs"}, "disturbed (3 of 3 repeats): other processes: 1.6 CPUs"),
        ({"drift": -0.3, "stationary": False}, "not stationary (3 of 3 repeats): step time -30%"),
        ({"profiler_overhead": 0.3}, "30% more time than measured ones"),
    ):
        [report] = bottlenecks(one(tmp_path / next(iter(measures)), measures, idle_other=0.2))
        [caveat] = report.caveats
        assert said in caveat


def test_idle_time_is_explained_by_the_wait_for_data_of_the_same_steps(tmp_path: Path) -> None:
    # Batches piled up before the profiled steps: these are idle 30% of their time, and wait for data 5%.
    piled_up = {"profiled_data_share": 0.05, "profiler_overhead": -0.2}
    evidence = one(tmp_path, waiting(0.05, **piled_up, data_share=0.26), idle_host_bound=0.3)
    # Of the 0.95 that are no wait there, 0.25 are idle: so are 0.25 / 0.95 of the 0.74 that are none when measured.
    assert held_back(evidence) == [
        ("compute", 0.7 / 0.95 * 0.74), ("data loading", 0.26), ("launch overhead", 0.25 / 0.95 * 0.74),
    ]  # fmt: skip
    assert "profiled window unlike the measured one (3 of 3 repeats)" in bottlenecks(evidence)[0].caveats[1]


def test_shares_below_a_twentieth_are_not_bottlenecks(tmp_path: Path) -> None:
    evidence = one(tmp_path / "a", {"data_share": 0.04}, exposed_communication=0.03)
    assert held_back(evidence) == [("compute", 0.97 * 0.96)]
    assert "largest other cost data loading (4.0%)" in as_markdown(evidence)
    # Nor are options named against what takes almost no time.
    assert "`precision: bf16`" not in as_markdown(one(tmp_path / "b", exposed_communication=0.99))


def test_no_bound_is_given_on_computing_or_nearly_the_whole_step(tmp_path: Path) -> None:
    computing = as_markdown(made(tmp_path / "a", images(100, data_share=0.01, devices=2)))
    assert "Untried: `precision: bf16`" in computing and "times as fast if" not in computing
    assert "times as fast if" not in as_markdown(made(tmp_path / "b", images(100, (1.0, 1.0), data_share=0.95)))


def test_time_of_a_capture_in_no_phase_and_in_stalls_is_named(tmp_path: Path) -> None:
    def first(name: str, row: Row, **others: Any) -> str:
        text = as_markdown(made(tmp_path / name, [row | {"devices": 1}], **others))
        return next(line for line in text.splitlines() if line.startswith("- Largest part of the step: "))

    of_capture = {"timeline": [timeline(0, idle_other=0.6) | {"scope": "capture"}]}
    assert first("a", ADOPTED, tables=of_capture) == (
        "- Largest part of the step: 1 GPU: 60% of the capture is idle for a reason that the trace does not show; "
        "then compute (40%)"
    )
    unseen = {"device": "cpu", "other_share": 0.99, "compute_share": 0.01}
    assert first("b", SCRIPT | unseen).endswith(
        "1 CPU process: 99% of the step is in none of the phases seen; then compute (1.0%)"
    )
    stalls = {"device": "cpu", "devices": 1, "stalls_share": 0.42, "compute_share": 0.58}
    text = as_markdown(made(tmp_path / "c", [SCRIPT | stalls | {"stalled_steps": "4 of 200: 50, 100, 150, 200"}]))
    assert "42% of the step: stalls" in text and "4 of 200: 50, 100, 150, 200" in text


def test_each_number_says_which_table_it_is_from(tmp_path: Path) -> None:
    evidence = one(tmp_path, {"data_share": 0.4, "iteration_time_s": 0.1}, exposed_communication=0.3)
    [report] = bottlenecks(evidence)
    computing, loading, communicating = (each.evidence for each in report.bottlenecks)
    assert computing == "42% of the step (42.0 ms): the GPU computes (timeline)"
    assert loading.startswith("40% of the step (40.0 ms): waiting for the data loader")
    assert loading.endswith("(measures.csv)")
    assert communicating == "18% of the step (18.0 ms): the GPU communicates without computing (timeline)"


def test_steps_count_and_not_the_capture_around_them(tmp_path: Path) -> None:
    rows = images(100, scatter=(1.0, 1.0))
    around = [timeline(run, span=10.0, idle_host_bound=0.9) | {"scope": "capture"} for run in range(2)]
    steps = [timeline(run, exposed_communication=0.2) for run in range(2)]
    assert held_back(made(tmp_path, rows, tables={"timeline": around + steps})) == [
        ("compute", 0.8), ("exposed communication", 0.2),
    ]  # fmt: skip


def test_waiting_calls_and_waiting_ranks_are_evidence_beside_what_they_explain(tmp_path: Path) -> None:
    rows = images(100, scatter=(1.0,), devices=2)
    lines = [timeline(0, idle_host_bound=0.3, exposed_communication=0.2) | {"scope": s} for s in ("steps", "capture")]
    tables = {
        "timeline": lines,
        "stragglers": [{"at": 0, "waited_s": 0.15}],
        "shares": [
            {"at": 0, "share": "synchronizations", "total_s": 0.6, "of_s": 0.8},
            {"at": 0, "share": "nccl", "total_s": 0.1, "of_s": 0.2},
        ],
    }
    [report] = bottlenecks(made(tmp_path, rows, tables=tables))
    found = {each.kind: each for each in report.bottlenecks}
    assert "take 75% of the time in CUDA calls (shares)" in found["launch overhead"].evidence
    # Of the 0.2 without computing, 0.15 are waits for the last rank.
    assert found["exposed communication"].share == pytest.approx(0.05)
    assert found["waiting for other ranks"].share == pytest.approx(0.15)
    assert "15% of the profiled time inside collectives" in found["waiting for other ranks"].evidence


def test_packing_is_advised_against_padding(tmp_path: Path) -> None:
    evidence = made(tmp_path, texts(1.0, padding_share=0.5), texts(0.5, packed=True))
    padded, packed = recommendations(evidence)
    [(bottleneck, [advised])] = padded.advised
    assert bottleneck.kind == "padding" and advised.option.name == "packed: true"
    assert advised.tried[0].speed.value == pytest.approx(2.0)
    assert packed.advised == []


def test_out_of_memory_comes_first_with_options_to_need_less(tmp_path: Path) -> None:
    evidence = made(tmp_path, [row | {"outcome": "out_of_memory"} for row in texts(1.0, technique="lora")])
    [(bottleneck, advised)] = recommendations(evidence)[0].advised
    assert (bottleneck.kind, bottleneck.evidence) == ("memory", "3 of 3 runs ran out of memory (measures.csv)")
    assert {each.option.name for each in advised} == {
        "lower batch_size", "activation_checkpointing: true", "technique: qlora",
    }  # fmt: skip
    assert "- Untried: `lower batch_size`" in as_markdown(evidence)


def test_a_nearly_full_gpu_is_a_bottleneck(tmp_path: Path) -> None:
    for used, kinds in ((0.95, ["memory"]), (0.5, [])):
        [report] = bottlenecks(one(tmp_path / str(used), {"peak_reserved_bytes": used * GPU["memory_bytes"]}))
        assert [each.kind for each in report.bottlenecks] == kinds


def test_a_measured_option_comes_with_its_gain(tmp_path: Path) -> None:
    rows = images(100, num_workers=2, data_share=0.6) + images(90, num_workers=1)
    rows += images(150, (1.003, 1.0, 0.997), num_workers=8)
    rows += images(120, num_workers=2, loader="dali") + images(300, num_workers=2, loader="dali", layout="nhwc")
    evidence = made(tmp_path / "a", rows)
    found = advice(evidence.configurations[0], "data loading", Neighbours(evidence.configurations))
    gains = {each.option.name: [tried.speed.value for tried in each.tried] for each in found}
    assert gains["higher num_workers"] == [pytest.approx(1.5)]
    assert gains["loader: dali"] == [pytest.approx(1.2)]
    assert gains["binding: numa"] == []
    # Ratios 1.5 × 1.006, 1.5 and 1.5 × 0.994, by the scatter of all five configurations.
    [line] = [line for line in as_markdown(evidence).splitlines() if "`higher num_workers` (loads in more" in line]
    assert "50% faster (95% CI +49% to +51%, n=3) with num\\_workers: 8" in line
    # A gain within the spread of repeats is not one.
    rows = images(100, SCATTERED, num_workers=2, data_share=0.5) + images(105, OTHERWISE, num_workers=8)
    # By blocks 105 × 1.25 / 80, 105 / 100 and 105 × 0.8 / 125: the mean is 1.05, and logarithms scatter by 0.446.
    text = as_markdown(made(tmp_path / "b", rows))
    assert "inconclusive: +5.0% (95% CI -65% to +218%, n=3)" in text and "no difference" not in text
    # A preset is compared although it sets several options.
    evidence = made(tmp_path / "c", images(100) + images(140, preset="tuned"))
    found = advice(evidence.configurations[0], "compute", Neighbours(evidence.configurations))
    tried = {each.option.name: len(each.tried) for each in found}
    assert (tried["preset: tuned"], tried["layout: nhwc"]) == (1, 0)


def test_an_option_that_was_not_tried_carries_the_most_it_can_gain(tmp_path: Path) -> None:
    # Amdahl: a wait of 30% that vanishes leaves 0.7 of the time, 1 / 0.7 = 1.4286; of 7%, 1 / 0.93 = 1.0753.
    evidence = one(tmp_path, {"data_share": 0.3}, exposed_communication=0.1)
    lines = [line.strip() for line in as_markdown(evidence).splitlines()]
    computing, waiting, communication, *_ = [line for line in lines if line.startswith("- Untried")]
    assert computing.startswith("- Untried: `precision: bf16`")
    assert waiting.startswith("- Untried (about 1.43 times as fast if it took no time): `higher num_workers`")
    assert communication.startswith("- Untried (about 1.08 times as fast if it took no time): `different bucket_cap")


def options(configuration: Configuration, kind: Kind, *others: Configuration) -> set[str]:
    """Names of what is advised."""
    return {each.option.name for each in advice(configuration, kind, Neighbours([configuration, *others]))}


def test_what_is_impossible_is_not_advised(tmp_path: Path) -> None:
    rows = images(100, strategy="fsdp", devices=2) + images(100, strategy="single", device="cpu")
    fsdp, cpu = made(tmp_path / "a", rows).configurations
    assert "preset: tuned" in options(fsdp, "compute", cpu) and "layout: nhwc" not in options(fsdp, "compute", cpu)
    assert options(cpu, "memory operations", fsdp) == {"binding: numa"}
    assert "cuda_graphs: true" not in options(fsdp, "launch overhead", cpu)
    [several] = made(tmp_path / "b", images(100, strategy="ddp-ds", devices=8, nodes=2)).configurations
    assert "layout: nhwc" in options(several, "compute")


def test_binding_is_advised_only_where_there_are_several_numa_nodes(tmp_path: Path) -> None:
    for device, nodes in (("cpu", ()), ("cpu", (0, 1)), ("cuda", (0,)), ("cuda", ())):
        rows = images(100, device=device, data_share=0.5, devices=2)
        text = as_markdown(made(tmp_path / f"{device} {len(nodes)}", rows, nodes=nodes))
        # Unknown nodes may be several where there are GPUs.
        assert ("`binding: numa`" in text) is (len(nodes) > 1 or (device == "cuda" and not nodes))


def test_options_name_parameters_and_each_bottleneck_has_some() -> None:
    parameters, programs = all_options()
    assert {name for of in parameters.values() for option in of for name in option.changes} <= set(PARAMETERS)
    assert set(parameters) < set(programs) == set(get_args(Kind))
    assert all(programs.values())


GENERALLY = "To change in the program"


def test_programs_with_options_of_their_own_get_general_advice_with_its_bound(tmp_path: Path) -> None:
    # Without a share of 0.3 a step takes 0.7 of its time, and 1 / 0.7 = 1.43; 1 / 0.8 = 1.25.
    lines = {"timeline": [timeline(0, exposed_communication=0.2 / 0.7, memory=0.1, idle_host_bound=0.15)]}
    text = as_markdown(made(tmp_path, [ADOPTED | {"devices": 2, "data_share": 0.3}], tables=lines))
    found = {
        line.partition("**")[2].partition("**")[0]: advised
        for line, advised in pairwise(text.splitlines())
        if advised.startswith(f"   - {GENERALLY}")
    }
    for kind, *said in (
        ("Data loading", f"{GENERALLY} (about 1.43 times as fast if it took no time): ", "`num_workers`"),
        ("Exposed communication", "about 1.25 times as fast", "`no_sync()`"),
        ("Launch overhead", "`torch.compile`"),
        ("Memory operations", "`non_blocking=True`"),
        ("Compute", f"{GENERALLY}: `torch.autocast`"),
    ):
        assert all(each in found[kind] for each in said), found[kind]


def test_pinned_memory_is_advised_where_copies_come_from_pageable_memory(tmp_path: Path) -> None:
    for pageable in (0, 4000):
        copies = [
            {"at": 0, "operation": operation, "host_memory": memory, "bytes": count, "total_s": 1.0}
            for operation, memory, count in (
                ("host_to_device", "pageable", pageable),
                ("host_to_device", "pinned", 6000),
                ("device_to_host", "pageable", 900),
            )
        ]
        tables = {"timeline": [timeline(0, memory=0.4)], "memory_operations": copies}
        row = ADOPTED | {"devices": 1, "data_share": 0.2}
        evidence = made(tmp_path / str(pageable), [row], tables=tables)
        text = as_markdown(evidence)
        assert "`non_blocking=True`" in text and ("pin_memory" in text) is bool(pageable)
    [copied] = [each for each in bottlenecks(evidence)[0].bottlenecks if each.kind == "memory operations"]
    assert "40% of their bytes come from pageable memory" in copied.evidence


def test_general_advice_fits_the_devices(tmp_path: Path) -> None:
    def general(name: str, *rows: Row, **others: Any) -> str:
        text = as_markdown(made(tmp_path / name, rows, **{"gpu": None} | others))
        assert not any(word in text for word in ("Untried", "precision:", "layout:")), "which a script does not have"
        return "\n".join(line for line in text.splitlines() if GENERALLY in line)

    cpu = SCRIPT | {"device": "cpu", "devices": 1, "data_share": 0.3, "transfer_s": 0.0}
    text = general("cpu", cpu)
    assert "`num_workers`" in text and "pin_memory" not in text
    lost = general("lost", SCRIPT | {"devices": 1, "outcome": "out_of_memory"}, gpu=GPU)
    assert f"{GENERALLY}: a smaller batch per device" in lost and "sharded" not in lost


def best_of(evidence: Evidence, goal: Goal = "throughput", **demand: float) -> list[Choice]:
    """The best of each training on each number of devices."""
    return [row for job in choices(evidence, Demand(goal=goal, **demand)) for row in job.rows if row.is_best]


def test_the_best_for_each_goal_is_found_per_number_of_devices(tmp_path: Path) -> None:
    measures = {"energy_per_sample_j": 2.0, "processed_samples_per_s": 100.0, "peak_memory_bytes": 20e9}
    rows = images(100, time_to_accuracy_s=50.0, **measures)
    rows += images(150, layout="nhwc", time_to_accuracy_s=70.0, **measures | {"peak_memory_bytes": 10e9})
    # One of whose repeats reached the accuracy soonest, and the others never.
    never = images(90, num_workers=4, time_to_accuracy_s=10.0, peak_memory_bytes=30e9)
    rows += [row | ({"time_to_accuracy_s": None} if row["repeat"] > 1 else {}) for row in never]
    rows += images(300, devices=4) + images(200, devices=4, layout="nhwc")
    evidence = made(tmp_path, rows)
    goals: tuple[Goal, ...] = ("throughput", "time_to_accuracy", "memory")
    best = {(goal, row.devices): row for goal in goals for row in best_of(evidence, goal)}
    assert {key: row.configuration["layout"] for key, row in best.items()} == {
        ("throughput", 1): "nhwc", ("throughput", 4): "nchw", ("time_to_accuracy", 1): "nchw", ("memory", 1): "nhwc",
    }  # fmt: skip
    assert best["throughput", 1].value.value == pytest.approx(150, rel=1e-4)
    for goal in goals:
        rivals = [row for job in choices(evidence, Demand(goal=goal)) for row in job.rows if row.ratio]
        assert rivals and all(row.is_worse for row in rivals)


def test_a_training_that_learns_otherwise_stands_beside_and_does_not_compete(tmp_path: Path) -> None:
    evidence = made(tmp_path, images(100) + images(110, layout="nhwc") + images(150, precision="fp16"))
    first, second = best_of(evidence)
    assert (first.configuration["layout"], first.changes, first.rivals) == ("nhwc", {}, 2)
    assert (second.changes, second.rivals) == ({"precision": ("fp32", "fp16")}, 1)
    text = as_markdown(evidence).replace("\\", "")
    assert "fastest of 2 on 1 GPU: layout: nhwc, 110 images per second" in text
    assert "- If you may change: precision: fp32 → fp16: 1.36× as fast (95% CI" in text


def test_options_that_change_what_is_learned_say_so(tmp_path: Path) -> None:
    [configuration] = made(tmp_path, images(100, forward_s=0.5, mean_iteration_time_s=0.6)).configurations
    found = advice(configuration, "compute", Neighbours([configuration]))
    changing = {each.option.name for each in found if each.learns_otherwise}
    assert changing == {"precision: bf16", "precision: fp16", "tf32: on", "preset: tuned"}  # which sets tf32
    assert {"layout: nhwc", "compile: true"} <= {each.option.name for each in found} - changing
    options = advice(configuration, "memory", Neighbours([configuration]))
    assert [each.learns_otherwise for each in options if "batch_size" in each.option.name] == [True]


def test_what_did_not_learn_enough_is_not_the_best(tmp_path: Path) -> None:
    rows = images(100, test_accuracy=0.99) + images(150, layout="nhwc", test_accuracy=0.6) + images(200, compile=True)
    rows = [row | {"estimated_epoch_time_s": 6000 / row["throughput_samples_per_s"]} for row in rows]
    evidence = made(tmp_path, rows)
    [row] = best_of(evidence, min_accuracy=0.98)
    assert (row.configuration["layout"], row.configuration["compile"], row.rivals) == ("nchw", False, 1)
    text = as_markdown(evidence, Demand(min_accuracy=0.98))
    assert "| excluded: accuracy 0.598 |" in text and "| unknown: accuracy not recorded |" in text


def test_energy_counts_samples_that_ranks_repeat_once(tmp_path: Path) -> None:
    factors = (1.0, 1.0)
    same = {"devices": 4, "energy_per_sample_j": 1.0, "processed_samples_per_s": 400.0}
    rows = images(100, factors, strategy="ddp", **same) + images(400, factors, strategy="ddp-ds", **same)
    found = {row.configuration["strategy"]: row.value.value for row in best_of(made(tmp_path / "a", rows), "energy")}
    assert found == pytest.approx({"ddp": 4.0, "ddp-ds": 1.0})
    # A meter that did not move gives no energy.
    rows = texts(1.0, energy_per_token_j=0.0) + texts(2.0, technique="qlora", energy_per_token_j=5.0)
    evidence = made(tmp_path / "b", rows)
    assert [row.configuration["technique"] for row in best_of(evidence, "energy")] == ["qlora"]
    assert "# Recommendations" in as_markdown(evidence, Demand(samples=1e6))


def test_a_rival_without_an_interval_is_reported(tmp_path: Path) -> None:
    rival, overlapping = images(95, (1.0,), layout="nhwc"), images(99, OTHERWISE, num_workers=4)
    for name, rows, standings in (
        ("one", images(100) + rival, ["best of 2", "one repeat, so not compared"]),
        ("overlapping", images(100, SCATTERED) + overlapping, ["best of 2", "not significantly worse than the best"]),
    ):
        [job] = advise(made(tmp_path / name, rows)).jobs
        assert [row[-1] for row in job.table.rows] == standings


def test_the_best_of_many_has_to_differ_more_than_the_better_of_two(tmp_path: Path) -> None:
    # Logarithms of ratios to one rival: 0.345, 0.182 and 0.259, so t is 5.6 and p 3%.
    slow = (0.85, 1.0, 1.0)
    rows = images(100, slow) + images(120, (1.0, 1.0, 1.08), num_workers=1)
    [job] = choices(made(tmp_path / "two", rows), Demand())
    assert [row.is_worse for row in job.rows] == [False, True]
    # Others that scatter as far, as far behind: each pair of four may be the one that is compared.
    for layout, workers in (("nchw", 2), ("nhwc", 0), ("nhwc", 1)):
        scatter = (1.1, 1.0, 0.9) if layout == "nhwc" else slow
        rows += images(99, scatter, num_workers=workers, layout=layout)
    [job] = choices(made(tmp_path / "four", rows), Demand())
    assert job.rows[0].rivals == 5 and not all(row.is_worse for row in job.rows[1:])


def test_results_without_runs_say_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such folder"):
        read_evidence(tmp_path / "nothing")
    assert "No run completed, so there is nothing to recommend." in as_markdown(read_evidence(tmp_path))
    failed = [row | {"outcome": "failed"} for row in images(100)]
    assert "No run completed" in as_markdown(made(tmp_path / "failed", failed))


def test_cpu_and_synthetic_timings_are_marked(tmp_path: Path) -> None:
    processor = "<script>|*x*\n# y"
    text = as_markdown(made(tmp_path / "a", images(100, device="cpu"), gpu=None, processor=processor))
    assert "say nothing about GPUs" in text
    assert r"\<script\>\|\*x\* \# y" in text
    gpu = GPU | {"name": "synthetic GPU"}
    assert "All runs have synthetic timings" in as_markdown(made(tmp_path / "b", images(100), gpu=gpu))
    # Those of synthetic images on a GPU are real.
    rows = images(100, dataset="synthetic", estimated_epoch_time_s=60.0)
    text = as_markdown(made(tmp_path / "c", rows, source="synthetic"), Demand(epochs=2))
    assert "synthetic timings" not in text and "no answer" not in text


def test_candidates_differ_in_a_choice_and_do_the_same_work(tmp_path: Path) -> None:
    def found(name: str, rows: list[Row]) -> list[Choice]:
        [job] = choices(made(tmp_path / name, rows))
        return job.rows

    # Not in how they were observed.
    [row] = found("one", images(100, (0.9, 1, 1.1), profiler="none") + images(101, (1.1, 0.9, 1), profiler="nsys"))
    assert row.rivals == 1
    # One is compared as the others were observed, although it was faster otherwise.
    rows = images(100, profiler="nsys") + images(120, profiler="none") + images(110, layout="nhwc", profiler="nsys")
    best, other = found("two", rows)
    assert (best.configuration["layout"], other.configuration["profiler"], other.is_worse) == ("nhwc", "nsys", True)
    # Not in how long they are.
    rows = images(100, steps_per_epoch=50) + images(100, steps_per_epoch=60)
    evidence = made(tmp_path / "length", rows + images(90, num_workers=4, steps_per_epoch=50))
    [job] = choices(evidence)
    assert job.recipe_names == ("num_workers",) and [row.is_worse for row in job.rows] == [False, True]
    # Preference tuning is other work.
    rows = texts(1.0) + texts(2.0, technique="dpo") + texts(3.0, technique="qlora")
    jobs = choices(made(tmp_path / "texts", rows))
    assert [[row.configuration["technique"] for row in job.rows] for job in jobs] == [["lora", "qlora"], ["dpo"]]


def test_a_rival_that_is_better_in_the_blocks_of_both_is_not_beaten(tmp_path: Path) -> None:
    # The best of all repeats has its lead from a block that the rival lacks.
    rows = images(100, (1.0, 1.01, 0.99, 3.0)) + images(120, (1.0, 1.01, 0.99), layout="nhwc")
    [job] = choices(made(tmp_path, rows))
    assert [(row.configuration["layout"], row.is_worse) for row in job.rows] == [("nchw", False), ("nhwc", False)]


def test_the_answer_has_few_lines_however_many_jobs_there_are(tmp_path: Path) -> None:
    rows = [
        row
        for size in (32, 64, 128, 224)
        for devices, rate in ((1, 100), (2, 190))
        for workers in (0, 4)
        for row in images(
            rate + workers,
            image_size=size,
            devices=devices,
            num_workers=workers,
            data_share=0.3,
            estimated_epoch_time_s=1e4 / rate,
        )
    ]
    rows += images(300, precision="bf16", image_size=32) + images(80, precision="fp16", image_size=32)
    lines = as_markdown(made(tmp_path, rows), Demand(deadline_s=60, gpu_hour_cost=1), verbose=False).splitlines()
    assert len(lines) <= 25 and lines[-1] == "2 more: `--verbose`."
    said = "".join(lines)
    for each in (
        "as fast as 1 GPU (95% CI",
        "Largest part of the step: 2 GPUs:",
        "Try next: ",
        "Deadline: ",
        "How sure: ",
    ):
        assert each in said


def test_the_command_prints_recommendations_for_one_goal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = SCRIPT | {"command": ["train.py", "{batch_size}"], "args": {"batch_size": 8}, "devices": 1}
    results = make_results(
        tmp_path,
        images(100, peak_memory_bytes=2e9) + images(150, layout="nhwc", peak_memory_bytes=4e9),
        [row | {"throughput_samples_per_s": 9.0, "data_share": 0.3, "profiler_overhead": 0.2}],
    )
    main(["recommend", str(results), "--goal", "memory", "--verbose"])
    printed = capsys.readouterr().out
    assert "least memory of 2 on 1 GPU: layout: nchw, 2.00 GB of peak memory per device (95% CI 1.99 to 2.01" in printed
    assert "worse: layout: nhwc, 2.00× the memory" in printed
    # The terminal shows no escapes of Markdown.
    assert "(profiler_overhead)" in printed and "\\" not in printed
    assert r"(profiler\_overhead)" in as_markdown(read_evidence(results))


def test_names_in_braces_of_a_command_are_no_part_of_what_is_printed(tmp_path: Path) -> None:
    command = SCRIPT | {"command": ["train.py", "--workers", "{workers}", "--json={{}}"], "devices": 1}
    rows = [
        command | {"args": {"workers": workers}, "throughput_samples_per_s": speed}
        for workers, speed in ((2, 100.0), (4, 120.0))
    ]
    found = as_markdown(made(tmp_path, rows)).replace("\\", "")
    assert "train.py --workers … '--json={{}}'" in found and "workers 4" in found and "{workers}" not in found
