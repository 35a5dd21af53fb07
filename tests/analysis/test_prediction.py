"""Series of runs are sorted, predicted, checked and refused as they should be, and the command says so."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from synthetic_results import GPU, Row, images, made, make_results, repeated, with_provenance

from machine.machine_record import SIZES, all_reduce
from machine.machine_record import record as machine_record
from multicard.analysis.machine.limits import MachineLimits
from multicard.analysis.scaling.alpha_beta import AlphaBeta
from multicard.analysis.scaling.prediction_groups import series
from multicard.analysis.scaling.prediction_series import Series, checked_line
from multicard.analysis.scaling.prediction_tables import checks_table, predictions_table
from multicard.analysis.statistics import Interval
from multicard.api.predictions import Predictions
from multicard.cli import main
from multicard.core.files import write_json
from multicard.experiment.workload import Traffic
from multicard.trace.collectives import bus_bytes
from multicard.workloads.vision.memory_estimate import gradient_bytes
from multicard.workloads.vision.parameters import VisionParameters
from multicard.workloads.vision.strategy import STRATEGIES

SCATTER = (0.99, 1.0, 1.01)


def exact(value: float) -> Interval:
    return Interval(value, value, value, 7, coverage=0.95)


def test_without_runs_the_table_has_its_headings_and_no_machine_was_checked() -> None:
    assert list(predictions_table([], [2]).columns)[:3] == ["configuration", "machine", "versions"]
    assert checked_line([]).startswith("Never checked")


def test_strategies_say_what_a_step_exchanges() -> None:
    def exchanged(strategy: str, devices: int = 4) -> list[tuple[str, float]]:
        p = VisionParameters(strategy=strategy, devices=devices, batch_size=64, image_size=100)
        return [(each.collective, each.bytes) for each in STRATEGIES[strategy].traffic(1e6, p)]

    assert exchanged("single", 1) == []
    assert exchanged("ddp") == exchanged("ddp-ds") == [("all_reduce", 1e6)]
    assert exchanged("fsdp") == [("all_gather", 2e6), ("reduce_scatter", 1e6)]
    # Three of four GPUs get 64 images each, of 3 × 100 × 100 values of 4 bytes.
    assert exchanged("dp") == [("broadcast", 1e6), ("reduce", 1e6), ("broadcast", 3 * 64 * 3 * 100 * 100 * 4)]
    # Rajbhandari et al. 2020 (ZeRO), section 7: 2 Ψ of data parallelism, 3 Ψ of fully sharded, at (n - 1) / n.
    assert bus_bytes("all_reduce", 1e6, 4) == pytest.approx(1.5e6)
    assert bus_bytes("all_gather", 2e6, 4) + bus_bytes("reduce_scatter", 1e6, 4) == pytest.approx(2.25e6)
    # MobileNetV2 has 3 504 872 weights with 1000 classes, by torchvision's documentation.
    assert gradient_bytes(VisionParameters(strategy="ddp"), classes=1000) == 4 * 3_504_872


def runs(times: dict[int, float], strategy: str = "ddp-ds", **others: Any) -> list[Row]:
    """Three repeats on each number of devices, of 64 images on each device."""
    return [
        row
        for devices, seconds in times.items()
        for row in images(
            64 * devices / seconds, SCATTER, strategy=strategy, devices=devices, iteration_time_s=seconds,
            processed_samples_per_s=64 * devices / seconds, peak_memory_bytes=2_000_000_000, **others,
        )
    ]  # fmt: skip


def only(folder: Path, *scenarios: list[Row], **others: Any) -> Series:
    [found] = series(made(folder, *scenarios, **others))
    return found


def test_runs_of_a_strategy_go_with_its_baseline_on_one_device(tmp_path: Path) -> None:
    found = only(tmp_path, runs({1: 0.1}, "single") + runs({2: 0.12, 4: 0.14}))
    forecast = found.forecast(8)
    step_s = forecast.prediction.step_s.value
    assert forecast.throughput.value == pytest.approx(8 * 64 / step_s, rel=1e-3)
    assert forecast.speedup.value == pytest.approx(8 * 0.1 / step_s, rel=0.02)
    assert forecast.efficiency.value == pytest.approx(forecast.speedup.value / 8)
    assert forecast.speedup.low < forecast.speedup.value < forecast.speedup.high < 8
    assert forecast.measured == (1, 2, 4)
    assert forecast.memory_bytes == pytest.approx(2.02e9)  # the repeat with the highest
    table = checks_table([found]).set_index("devices")
    assert table.loc[4, "measured_s"] == pytest.approx(0.14, rel=1e-3) and table.loc[4, "inside"]
    assert table.loc[2, "reason"].startswith("runs on one number of devices only")
    assert found.forecast(4).prediction.reason == "measured: 140 ms per step"
    # More GPUs than a node of the records had, which list four, are a caveat.
    why = "more GPUs on one node than runs were recorded with, where 4 could be used"
    assert why in forecast.prediction.caveats and "could be used" not in str(found.forecast(3).prediction.caveats)


def test_ranks_that_repeat_samples_do_no_more_work_on_more_devices(tmp_path: Path) -> None:
    rows = [row | {"throughput_samples_per_s": row["throughput_samples_per_s"] / row["devices"]} for row in
            runs({1: 0.1, 2: 0.12}, "ddp")]  # fmt: skip
    forecast = only(tmp_path, rows).forecast(4)
    assert forecast.throughput.value == pytest.approx(64 / forecast.prediction.step_s.value, rel=1e-3)


def test_runs_that_cannot_be_compared_are_refused_with_the_reason(tmp_path: Path) -> None:
    lost = only(tmp_path / "a", runs({1: 0.1}) + [row | {"outcome": "out_of_memory"} for row in runs({2: 0.12})])
    single = only(tmp_path / "b", runs({1: 0.1}, "single"))
    pair = only(tmp_path / "c", runs({1: 0.1, 2: 0.12}))
    split = only(tmp_path / "d", runs({4: 0.1}, nodes=2))
    for found, devices, nodes, why in (
        (lost, 4, 1, "runs on one number of devices only"),
        (single, 2, 1, "the strategy single uses one device, not 2"),
        (pair, 3, 2, "3 devices cannot be shared equally by 2 nodes"),
        (pair, 4, 2, "the network between nodes is not measured: run 2 devices per node on two nodes"),
        (split, 8, 4, "runs with 2 devices per node on one number of nodes only: run one node"),
        (split, 12, 4, "run 3 devices per node on one and on two nodes"),
    ):
        assert why in found.forecast(devices, nodes).prediction.reason


def test_what_is_not_known_of_samples_and_bytes_is_told_apart(tmp_path: Path) -> None:
    uncounted = ("throughput_samples_per_s", "processed_samples_per_s")
    bare = [{name: value for name, value in row.items() if name not in uncounted} for row in runs({1: 0.1, 2: 0.12})]
    varied = [row | {"processed_samples_per_s": row["devices"] ** 2 * 500} for row in runs({1: 0.1, 2: 0.1})]
    script = {"workload": "script", "command": ["train.py"], "device": "cuda", "devices": 1, "iteration_time_s": 0.1}
    of_script = repeated(script | {"throughput_samples_per_s": 640.0}, SCATTER)
    for name, rows, why in (
        ("bare", bare, "the samples of a step were not counted"),
        ("varied", varied, "the samples of a device in a step neither stay nor shrink"),
        ("script", of_script, "whether devices share a batch or have one each is not known"),
    ):
        found = only(tmp_path / name, rows)
        assert found.forecast(8).prediction.reason.startswith(why)
    links = {2: AlphaBeta(exact(1e-9), exact(1e9), 0.0)}
    assert replace(found, links={})._no_network(1) == "no α–β of this machine (see multicard doctor --measure)"
    assert replace(found, links=links)._no_network(1) == "the bytes of a step are not known (a trace has them)"


def test_other_hardware_is_named_where_it_has_the_other_counts(tmp_path: Path) -> None:
    evidence = with_provenance(
        made(tmp_path, runs({1: 0.1, 2: 0.12})),
        gpu=lambda run: "NVIDIA A100" if run.values["devices"] == 2 else run.provenance.gpu,
        machine=lambda run: "A100s" if run.values["devices"] == 2 else run.provenance.machine,
    )
    reasons = [each.forecast(4).prediction.reason for each in series(evidence)]
    assert "2 devices ran on other hardware or versions (A100s)" in reasons[0]


@pytest.mark.parametrize(
    ("last", "seconds", "found"),
    [
        # One kind of machine, of which the last repeat was given four GPUs: three repeats.
        ("4 × H100, EPYC 9334, 128 CPUs", 0.12, [[3, 3]]),
        # Beside another processor: two repeats on the one machine, one on the other.
        ("2 × H100, Xeon 8480C, 112 CPUs", 0.3, [[3, 2], [1]]),
    ],
)
def test_repeats_on_machines_of_one_kind_are_joined_and_others_kept_apart(
    last: str, seconds: float, found: list[list[int]], tmp_path: Path
) -> None:
    *rows, third = runs({2: 0.12})
    rows = [row | {"iteration_time_s": 0.12} for row in rows] + [third | {"iteration_time_s": seconds}]
    evidence = made(tmp_path, runs({1: 0.1}) + rows)
    moved = evidence.runs[-1]
    evidence = with_provenance(
        evidence, machine=lambda run: last if run.run == moved.run else "2 × H100, EPYC 9334, 128 CPUs"
    )
    every = series(evidence)
    assert [[len(one.completed) for one in each.configurations.values()] for each in every] == found
    assert every[0].forecast(2).prediction.reason == "measured: 120 ms per step"


def test_repeats_on_parts_of_one_machine_are_joined_on_one_device_and_of_other_batches_too(tmp_path: Path) -> None:
    smaller = [
        row | {"batch_size": 16, "processed_samples_per_s": 16 / row["iteration_time_s"]}
        for row in runs({1: 0.03}, "single")
    ]
    evidence = with_provenance(
        made(tmp_path, runs({1: 0.1}, "single") + runs({2: 0.12}) + smaller),
        machine=lambda run: f"{4 if run.repeat == 3 else run.values['devices']} × H100, EPYC 9334, 128 CPUs",
    )
    [found] = [each for each in series(evidence) if (1, 2) in each.configurations]
    assert {count: len(each.completed) for count, each in found.configurations.items()} == {(1, 1): 3, (1, 2): 3}
    assert [len(each.completed) for each in found.batches] == [3]


def test_another_profiler_is_no_other_version(tmp_path: Path) -> None:
    evidence = with_provenance(
        made(tmp_path, runs({1: 0.1, 2: 0.12})),
        versions=lambda run: f"torch 2.11.0, profiler {'nsys' if run.values['devices'] == 1 else 'none'}",
    )
    [found] = series(evidence)
    assert list(found.configurations) == [(1, 1), (1, 2)] and found.elsewhere is None


def test_jobs_that_see_only_their_own_gpus_are_checked_on_one_machine(tmp_path: Path) -> None:
    evidence = with_provenance(
        made(tmp_path, runs({1: 0.1, 2: 0.12, 4: 0.14}) + runs({1: 0.1, 2: 0.12}, "fsdp")),
        machine=lambda run: f"{run.values['devices']} × NVIDIA H100, AMD EPYC 9334, 128 CPUs",
    )
    [verdict] = Predictions(evidence, [], [8]).verdicts
    assert verdict.startswith("NVIDIA H100, AMD EPYC 9334, 128 CPUs: Checked on this machine: 1 prediction")


def test_links_are_of_the_newest_record_of_the_kind_of_machine_that_has_them(tmp_path: Path) -> None:
    evidence = made(tmp_path, runs({1: 0.1}))

    def limits(hour: int, devices: int | None, processor: str = "AMD EPYC 9334") -> MachineLimits:
        """A record of two of the four GPUs, told by the number of devices of its all-reduces."""
        record = machine_record() | {"started": f"2026-11-22T{hour}:00:00+00:00"}
        record["hardware"] = {"gpus": [GPU] * 2, "processor": processor, "logical_cpus": 128}
        record["parts"][1]["rows"] = [all_reduce(devices, size) for size in SIZES] if devices else []
        return MachineLimits.model_validate(record)

    other = limits(14, 8, "Intel Xeon 8480C")
    [found] = series(evidence, [other, limits(11, 2), limits(12, 4), limits(13, None)])
    assert list(found.links) == [4]
    [found] = series(evidence, [other])
    assert not found.links


def predicted(results: Path, capsys: pytest.CaptureFixture[str], devices: str = "4,8") -> list[str]:
    """The lines that the command prints."""
    main(["recommend", "--devices", devices, str(results)])
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def test_the_command_tells_versions_apart_and_names_checks_and_caveats(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = runs({1: 0.1, 2: 0.12, 4: 0.14})
    folder = make_results(tmp_path, rows + [row | {"repeat": row["repeat"] + 3} for row in rows])
    for record in folder.glob("runs/*_r[456]/run.json"):
        write_json(record, json.loads(record.read_text()) | {"versions": {"torch": "2.10.0"}})
    printed = "\n".join(predicted(folder, capsys, "8"))
    # The title of its table, and a row of the checks.
    assert [printed.count(f"torch {version}") for version in ("2.10.0", "2.11.0")] == [2, 2]
    # 64 images each in about 160 ms (20 ms for each doubling), where one took 100: 5 times as fast.
    answers = re.findall(
        r"  8 GPUs: ([\d.]+)× \(95% CI ([\d.]+) to ([\d.]+)\) of one, \d+% efficient, from 1, 2 and 4", printed
    )
    assert len(answers) == 2 and all(float(low) < 5 < float(high) for _, low, high in answers)
    assert "Checked on this machine: 2 predictions of measured runs" in printed and "Caveat: " in printed


def test_processes_that_would_compete_for_cpus_are_checked_but_not_predicted(tmp_path: Path) -> None:
    def on_four_cpus(name: str, rows: list[Row]) -> Series:
        [found] = series(with_provenance(made(tmp_path / name, rows, gpu=None), usable_cpus=lambda _: 4))
        return found

    found = on_four_cpus("a", runs({1: 0.1, 2: 0.12, 4: 0.14, 8: 0.3}, device="cpu"))
    assert "would compete for the machine's 4 CPUs" in found.forecast(16).prediction.reason
    assert found.forecast(3).prediction.reason is None  # as many as there are CPUs, or fewer
    # 20 ms for each doubling: 160 ms, of which the eight processes on four CPUs take 300.
    error = checks_table([found]).set_index("devices").loc[8, "prediction_error"]
    assert error == pytest.approx(160 / 300 - 1, abs=0.02)
    found = on_four_cpus("b", runs({1: 0.1, 2: 0.12}, device="cpu", threads=2))
    assert "processes of 2 threads would compete" in found.forecast(3).prediction.reason


def test_without_a_run_on_one_device_the_trace_says_what_computes(tmp_path: Path) -> None:
    # A quarter of the step is exposed communication, by the trace: 0.09 s computing.
    step = {"span_s": 1.0, "busy_s": 1.0, "compute_s": 0.75, "communication_s": 0.25, "overlapped_s": 0.0}
    step |= {"memory_s": 0.0, "exposed_communication_s": 0.25, "idle_s": 0.0}
    step |= {"idle_host_bound_s": 0.0, "idle_collective_s": 0.0, "idle_other_s": 0.0}
    shares = [{"at": run, "process": 1, "device": 0, "scope": "steps", **step} for run in range(3)]
    found = only(tmp_path, runs({2: 0.12, 4: 0.14}), tables={"timeline": shares})
    predicted = found.forecast(8).prediction
    assert predicted.compute_s == pytest.approx(0.09, rel=0.02)
    assert predicted.caveats[-1].startswith("no run on one device: computing is the smallest run less")


def test_a_trace_says_what_is_exchanged_where_the_workload_does_not(tmp_path: Path) -> None:
    # Two processes with a GPU each, five traced steps: in each step of a GPU two messages of 25 MB and a shard of 1 MB.
    messages = [
        {"at": 3, "report": "r", "process": process, "device": 0}
        | {"collective": kind, "size_bytes": size, "calls": calls}
        for process in (1, 2)
        for kind, size, calls in (("all_reduce", 25_000_000, 10), ("all_gather", 1_000_000, 5))
    ]
    tables = {"message_sizes": messages, "runs_info": [{"at": 3, "traced_steps": 5.0}]}
    found = only(tmp_path, runs({1: 0.1, 2: 0.12}), tables=tables).collectives
    assert found == [Traffic("all_gather", 2_000_000.0, 1.0), Traffic("all_reduce", 50_000_000.0, 2.0)]


def test_nodes_are_predicted_from_runs_on_fewer_nodes(tmp_path: Path) -> None:
    rows = runs({4: 0.14}) + runs({8: 0.16}, nodes=2) + runs({16: 0.18}, nodes=4)
    found = only(tmp_path, rows)
    forecast = found.forecast(32, nodes=8)
    step_s = forecast.prediction.step_s
    assert step_s.value == pytest.approx(0.2, rel=0.02) and step_s.low < 0.2 < step_s.high  # 20 ms for each doubling
    assert forecast.speedup is None and forecast.measured == (1, 2, 4)
    assert [(devices, nodes) for devices, nodes, check in found.checks if check.error is not None] == [(16, 4)]
    alone = only(tmp_path / "alone", rows + runs({1: 0.1}))
    speedup = alone.forecast(32, nodes=8).speedup
    assert speedup.low < 16 < speedup.high and speedup.value == pytest.approx(32 * 0.1 / 0.2, rel=0.05)


def test_the_command_has_a_table_for_each_configuration_and_says_everything_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = runs({1: 0.1, 2: 0.12}, batch_size=32, epochs=3, warmup_steps=5)
    rows += runs({1: 0.2, 2: 0.22}, "single")[:3]
    make_results(tmp_path, rows, [row | {"batch_size": 64} for row in rows])
    lines = predicted(tmp_path, capsys)
    for batch in (32, 64):
        assert lines.count(f"mnist, 224 px, ddp-ds, fp32, batch_size: {batch}") == 1
    assert sum(" images/s, 2.02 GB per device, mostly compute" in line for line in lines) == 4
    assert sum(line.startswith("  Caveat: the loader never made a rank wait") for line in lines) == 2
    assert [sum(line.startswith(f"  {n} GPUs: ") for line in lines) for n in (4, 8)] == [2, 2]


def test_a_caveat_of_some_numbers_of_devices_names_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Devices share a batch of 64: four get 16 each, as many as one was run with; eight get 8.
    rows = [
        row | {"processed_samples_per_s": batch / row["iteration_time_s"], "batch_size": batch, "scaling": "strong"}
        for batch, times in ((64, {1: 0.1, 2: 0.06}), (16, {1: 0.03}))
        for row in runs(times)
    ]
    printed = predicted(make_results(tmp_path, rows), capsys)
    assert any("Caveat, 8 devices: a device gets fewer or more samples" in line for line in printed)


def test_what_the_command_does_not_predict_is_named_once_for_each_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = make_results(tmp_path, runs({1: 0.1}, "single") + runs({1: 0.2}, "single", layout="nhwc"))
    assert predicted(results, capsys)[:3] == [
        "Not predicted on 4 and 8 devices: the strategy single uses one device",
        "  mnist, 224 px, single, fp32, layout: nchw",
        "  mnist, 224 px, single, fp32, layout: nhwc",
    ]
    # Numbers that no job has are refused.
    for devices, nodes, found, expected in (
        ("6,8", "3", "8", "multiples of 3"),
        ("9" * 20, "1", "9" * 20, "at most 1000000 devices"),
    ):
        with pytest.raises(SystemExit, match=f"^--devices: found {found}, expected {expected}[^\n]*$"):
            main(["recommend", "--devices", devices, "--nodes", nodes, str(results)])


def test_limits_of_the_machine_let_one_device_predict_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = make_results(tmp_path, runs({1: 0.1}, device="cpu"), gpu=None)
    record = machine_record() | {"device": "cpu"}
    record["hardware"] = {"gpus": [], "processor": "AMD EPYC 9334", "logical_cpus": 128}
    write_json(results / "machine" / "node07-cpu.json", record)
    printed = "\n".join(predicted(results, capsys, "2"))
    assert "  2 CPU processes: " in printed and "of one, " in printed and "from 1 measured" in printed
    assert "Never checked on this machine" in printed
