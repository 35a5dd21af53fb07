"""Bottlenecks of synthetic jobs, whose shares of a step are known, and the options against them."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from factories import (
    GPU,
    Row,
    make_results,
    recommendations,
    tuning_runs,
    vision_runs,
)
from multicard.answers.bottlenecks.bottlenecks import BottleneckReport, report_of
from multicard.answers.bottlenecks.options import options_against
from multicard.answers.choice.recommend import as_markdown
from multicard.results.per_run import trace_shares
from multicard.results.results import Results
from multicard.trace.idle import CAUSES

SCRIPT = {"workload": "script", "command": ["train.py"], "device": "cuda"}
ADOPTED = {"workload": "script", "command": ["theirs"], "launcher": "traces", "device": "cuda"}


def timeline(of: int, span: float = 1.0, **shares: float) -> Row:
    """Profiled steps in which a GPU spends so much of its time in each way; computing is what is left."""
    parts = {"communication": 0.0, "memory": 0.0, "overlapped": 0.0, "exposed_communication": 0.0, "idle": 0.0}
    parts |= dict.fromkeys(CAUSES, 0.0) | shares
    parts["idle"] = sum(parts[cause] for cause in CAUSES)
    busy = 1.0 - parts["idle"]
    parts |= {"span": 1.0, "busy": busy, "compute": busy - parts["exposed_communication"] - parts["memory"]}
    seconds = {f"{name}_s": share * span for name, share in parts.items()}
    return {"at": of, "process": 1, "device": 0, "scope": "steps", "step": None} | seconds


def report(evidence: Results) -> BottleneckReport:
    [configuration] = evidence.configurations()
    return report_of(configuration, trace_shares(evidence).to_dict("index"))


def held_back(evidence: Results) -> list[tuple[str, float]]:
    return [(each.name, pytest.approx(each.share, abs=1e-6)) for each in report(evidence).bottlenecks]


def one(folder: Path, measures: dict[str, Any] | None = None, **shares: float) -> Results:
    """Three repeats of a configuration with known shares."""
    rows = vision_runs(100, factors=(1.0, 1.0, 1.0), devices=4, **(measures or {}))
    return make_results(
        folder, rows, tables={"timeline": [timeline(run, **shares) for run in range(3)]} if shares else None
    )


def test_bottlenecks_are_the_parts_of_the_step_by_their_shares(tmp_path: Path) -> None:
    # What takes most comes first; the wait for data is of the record, the rest is divided by the trace.
    shares = {"exposed_communication": 0.3, "memory": 0.2, "idle_launching": 0.16, "idle_queued": 0.08}
    measures = {"data_share": 0.06, "profiled_data_s": 0.06, "trace_iteration_time_s": 1.0}
    assert held_back(one(tmp_path / "a", measures, **shares)) == [
        ("exposed communication", 0.3),
        ("compute", 0.26),
        ("memory operations", 0.2),
        ("launch overhead", 0.10),
        ("queued on the GPU", 0.08),
        ("data loading", 0.06),
    ]
    # Without a trace the phases show copies and computation.
    phases = {"mean_iteration_time_s": 1.0, "transfer_s": 0.2, "forward_s": 0.3, "backward_s": 0.4}
    assert held_back(one(tmp_path / "b", phases)) == [
        ("compute or communication", 0.7), ("memory operations", 0.2), ("other", 0.1),
    ]  # fmt: skip
    # A GPU that idles while the host waits for data is not bound by launches: of the 0.95 that are no wait in the
    # profiled steps, 0.25 are idle, and so are 0.25 / 0.95 of the 0.74 that are none in the measured ones.
    profiled = {"profiled_data_share": 0.05, "profiled_data_s": 0.05, "trace_iteration_time_s": 1.0}
    assert held_back(one(tmp_path / "c", profiled | {"data_share": 0.26}, idle_launching=0.3)) == [
        ("compute", 0.7 / 0.95 * 0.74), ("data loading", 0.26), ("launch overhead", 0.25 / 0.95 * 0.74),
    ]  # fmt: skip


def test_shares_below_a_twentieth_are_not_bottlenecks_and_each_number_says_its_table(tmp_path: Path) -> None:
    evidence = one(tmp_path / "a", {"data_share": 0.04}, exposed_communication=0.03)
    assert held_back(evidence) == [("compute", 0.97 * 0.96)]
    assert "next: data loading (4.0%)" in recommendations(evidence)
    found = report(one(tmp_path, {"data_share": 0.4, "iteration_time_s": 0.1}, exposed_communication=0.3))
    computing, loading, communicating = (each.evidence for each in found.bottlenecks)
    assert computing == "42% of the step (42.0 ms): the GPU computes (timeline)"
    assert loading.startswith("40% of the step (40.0 ms): waiting for the data loader")
    assert loading.endswith("(measures.csv)")
    assert communicating == "18% of the step (18.0 ms): the GPU communicates without computing (timeline)"


def test_where_a_capture_goes_and_stalls_are_named(tmp_path: Path) -> None:
    of_capture = {"timeline": [timeline(0, idle_unknown=0.6) | {"scope": "capture"}]}
    first = "60% of the capture is idle for a reason that the trace does not show; next: compute (40%)"
    assert f"- Where the step goes: 1 GPU: {first}\n" in recommendations(
        make_results(tmp_path, [ADOPTED | {"devices": 1}], tables=of_capture)
    )
    stalls = {"device": "cpu", "devices": 1, "stalls_share": 0.42, "compute_share": 0.58}
    text = recommendations(
        make_results(tmp_path / "c", [SCRIPT | stalls | {"stalled_steps": "4 of 200: 50, 100, 150, 200"}])
    )
    assert "42% of the step: stalls" in text and "4 of 200: 50, 100, 150, 200" in text


def test_out_of_memory_comes_first_with_options_to_need_less(tmp_path: Path) -> None:
    evidence = make_results(
        tmp_path, [row | {"outcome": "out_of_memory"} for row in tuning_runs(1.0, technique="lora")]
    )
    [found] = report(evidence).bottlenecks
    assert (found.name, found.evidence) == ("memory", "3 of 3 runs ran out of memory (measures.csv)")
    named = options_against(evidence.configurations()[0], found, evidence.configurations()).untried
    assert {each.partition("`")[2].partition("`")[0] for each in named} == {
        "reduce batch_size", "activation_checkpointing: true", "technique: qlora",
    }  # fmt: skip
    for used, kinds in ((0.95, ["memory"]), (0.5, [])):
        nearly = one(tmp_path / str(used), {"peak_reserved_bytes": used * GPU["memory_bytes"]})
        assert [each.name for each in report(nearly).bottlenecks] == kinds


# Options --------------------------------------------------------------------------------------------------------------


def test_an_option_carries_the_most_it_can_gain_where_there_is_a_bound(tmp_path: Path) -> None:
    # Amdahl: a wait of 30% that vanishes leaves 0.7 of the time, 1 / 0.7 = 1.4286; of 7%, 1 / 0.93 = 1.0753.
    evidence = one(tmp_path, {"data_share": 0.3}, exposed_communication=0.1)
    lines = [line.strip() for line in recommendations(evidence).splitlines()]
    computing, loading, communication, *_ = [line for line in lines if line.startswith("- To try")]
    assert computing.startswith("- To try: `layout: nhwc`") and "`precision: bf16` (may change accuracy)" in computing
    assert loading.startswith("- To try (up to 1.43× as fast if it took no time): `raise num_workers`")
    assert communication.startswith("- To try (up to 1.08× as fast if it took no time): `vary bucket_cap")
    assert "times as fast if" not in recommendations(
        make_results(tmp_path / "b", vision_runs(100, (1.0, 1.0), data_share=0.95))
    )


def test_programs_with_options_of_their_own_get_general_advice_with_its_bound(tmp_path: Path) -> None:
    # Without a share of 0.3 a step takes 0.7 of its time, and 1 / 0.7 = 1.43; 1 / 0.8 = 1.25.
    lines = {"timeline": [timeline(0, exposed_communication=0.2 / 0.7, memory=0.1, idle_launching=0.15)]}
    text = as_markdown(make_results(tmp_path, [ADOPTED | {"devices": 2, "data_share": 0.3}], tables=lines))
    found = {
        line.partition("**")[2].partition("**")[0]: advised
        for line, advised in pairwise(text.splitlines())
        if advised.startswith("   - To try")
    }
    for kind, *advice in (
        ("Data loading", "(up to 1.43× as fast if it took no time): ", "`num_workers`"),
        ("Exposed communication", "up to 1.25× as fast", "`no_sync()`"),
        ("Launch overhead", "`torch.compile`"),
        ("Memory operations", "`non_blocking=True`"),
        ("Compute", "`torch.autocast`"),
    ):
        assert all(each in found[kind] for each in advice), found[kind]


def test_a_gpu_that_is_idle_in_allocations_is_held_back_by_them(tmp_path: Path) -> None:
    # Without a share of 0.3 a step takes 0.7 of its time, and 1 / 0.7 = 1.43.
    lines = {"timeline": [timeline(0, idle_allocating=0.3, idle_waiting=0.1)]}
    evidence = make_results(tmp_path, [ADOPTED | {"devices": 1}], tables=lines)
    assert held_back(evidence) == [("compute", 0.6), ("memory allocation", 0.3), ("synchronization", 0.1)]
    text = as_markdown(evidence)
    assert "30% of the step: the GPU is idle while the host allocates, frees or registers memory (timeline)" in text
    assert "To try (up to 1.43× as fast if it took no time): memory allocated once and kept" in text


def test_general_advice_fits_the_devices_and_where_copies_come_from(tmp_path: Path) -> None:
    def general(name: str, *rows: Row, **others: Any) -> str:
        text = as_markdown(make_results(tmp_path / name, rows, **{"gpu": None} | others))
        assert not any(word in text for word in ("precision:", "layout:")), "which a script does not have"
        return "\n".join(line for line in text.splitlines() if "To try" in line)

    lost = general("lost", SCRIPT | {"devices": 1, "outcome": "out_of_memory"}, gpu=GPU)
    assert "activation checkpointing" in lost and "sharded" not in lost
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
        evidence = make_results(tmp_path / str(pageable), [ADOPTED | {"devices": 1, "data_share": 0.2}], tables=tables)
        text = as_markdown(evidence)
        assert "`non_blocking=True`" in text and ("pin_memory" in text) is bool(pageable)
    [copied] = [each for each in report(evidence).bottlenecks if each.name == "memory operations"]
    assert "40% of the bytes copied to it come from pageable memory" in copied.evidence
