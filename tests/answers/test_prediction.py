"""Series of runs are sorted, predicted, checked and refused as they should be, and the command says so."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from factories import Row, make_results, vision_runs, with_provenance, write_results
from multicard.answers.scaling.prediction import CONTRADICTING_WAITS, NEVER_WAITED, predict
from multicard.answers.scaling.series import Series, series
from multicard.answers.scaling.series_tables import checked_line, checks_table, predictions_table
from multicard.answers.scaling.step_model import ScalingPoint
from multicard.api.results import Predictions
from multicard.cli import main
from multicard.results.gathering import store

SCATTER = (0.99, 1.0, 1.01)


def test_without_runs_the_table_has_its_headings_and_no_machine_was_checked() -> None:
    assert list(predictions_table([], [2]).columns)[:3] == ["configuration", "machine", "versions"]
    assert checked_line([]).startswith("Never checked")


def runs(times: dict[int, float], strategy: str = "ddp-ds", **others: Any) -> list[Row]:
    """Three repeats on each number of devices, of 64 images on each device."""
    return [
        row
        for devices, seconds in times.items()
        for row in vision_runs(
            64 * devices / seconds, SCATTER, strategy=strategy, devices=devices, iteration_time_s=seconds,
            processed_samples_per_s=64 * devices / seconds, **others,
        )
    ]  # fmt: skip


def only(folder: Path, *scenarios: list[Row], **others: Any) -> Series:
    [found] = series(make_results(folder, *scenarios, **others))
    return found


def test_runs_of_a_strategy_go_with_its_baseline_on_one_device(tmp_path: Path) -> None:
    found = only(tmp_path, runs({1: 0.1}, "single") + runs({2: 0.12, 4: 0.14}))
    forecast = found.forecast(8)
    step_s = forecast.step_s.value
    assert forecast.throughput.value == pytest.approx(8 * 64 / step_s, rel=1e-3)
    assert forecast.speedup.value == pytest.approx(8 * 0.1 / step_s, rel=0.02)
    assert forecast.speedup.low < forecast.speedup.value < forecast.speedup.high < 8
    assert forecast.measured == (1, 2, 4)
    table = checks_table([found]).set_index("devices")
    assert table.index.tolist() == [4]  # two are not predicted from one
    assert table.loc[4, "measured_s"] == pytest.approx(0.14, rel=1e-3) and table.loc[4, "inside"]
    assert found.forecast(4).reason == "measured: 140 ms per step"
    # More GPUs than a node of the records had, which list four, are a caveat.
    why = "more GPUs than the runs saw of their node, 4: a network between nodes was not measured"
    assert why in forecast.caveats and "more GPUs" not in str(found.forecast(3).caveats)


def test_ranks_that_repeat_samples_do_no_more_work_on_more_devices(tmp_path: Path) -> None:
    rows = [row | {"throughput_samples_per_s": row["throughput_samples_per_s"] / row["devices"]} for row in
            runs({1: 0.1, 2: 0.12}, "ddp")]  # fmt: skip
    forecast = only(tmp_path, rows).forecast(4)
    assert forecast.throughput.value == pytest.approx(64 / forecast.step_s.value, rel=1e-3)


def test_runs_that_cannot_be_compared_are_refused_with_the_reason(tmp_path: Path) -> None:
    lost = only(tmp_path / "a", runs({1: 0.1}) + [row | {"outcome": "out_of_memory"} for row in runs({2: 0.12})])
    single = only(tmp_path / "b", runs({1: 0.1}, "single"))
    uncounted = ("throughput_samples_per_s", "processed_samples_per_s")
    bare = [{name: value for name, value in row.items() if name not in uncounted} for row in runs({1: 0.1, 2: 0.12})]
    varied = [row | {"processed_samples_per_s": row["devices"] ** 2 * 500} for row in runs({1: 0.1, 2: 0.1})]
    for found, devices, why in (
        (lost, 4, "runs on one number of devices only"),
        (single, 2, "the strategy single uses one device, not 2"),
        (only(tmp_path / "c", bare), 4, "the samples of a device in a step are not known"),
        (only(tmp_path / "d", varied), 8, "or neither stay nor shrink with the number of devices"),
    ):
        assert why in found.forecast(devices).reason


def test_hardware_and_versions_are_kept_apart_but_not_parts_of_a_machine_or_profilers(tmp_path: Path) -> None:
    evidence = with_provenance(
        make_results(tmp_path, runs({1: 0.1, 2: 0.12, 4: 0.14}) + runs({1: 0.1, 2: 0.12}, "fsdp")),
        machine=lambda run: f"{run.values['devices']} × NVIDIA H100, AMD EPYC 9334, 128 CPUs",
        versions=lambda run: f"torch 2.11.0, profiler {'nsys' if run.values['devices'] == 1 else 'none'}",
    )
    assert [list(each.configurations) for each in series(evidence)] == [[1, 2, 4], [1, 2]]
    [verdict] = Predictions(evidence, [8]).verdicts
    assert verdict.startswith("NVIDIA H100, AMD EPYC 9334, 128 CPUs: Checked on this machine: 1 prediction")
    other = with_provenance(evidence, machine=lambda run: f"1 × {'A100' if run.values['devices'] == 2 else 'H100'}")
    assert sorted(tuple(each.configurations) for each in series(other)) == [(1,), (1, 4), (2,), (2,)]


def test_runs_on_several_nodes_predict_more_nodes(tmp_path: Path) -> None:
    found = only(tmp_path, runs({4: 0.14}) + runs({8: 0.16}, nodes=2) + runs({16: 0.18}, nodes=4))
    forecast = found.forecast(32)
    step_s = forecast.step_s
    assert step_s.value == pytest.approx(0.2, rel=0.02) and step_s.low < 0.2 < step_s.high  # 20 ms for each doubling
    assert forecast.speedup is None and forecast.measured == (4, 8, 16)
    assert not any("more GPUs" in each for each in forecast.caveats)


def predicted(results: Path, capsys: pytest.CaptureFixture[str], devices: str = "4,8") -> list[str]:
    """The lines that the command prints."""
    main(["recommend", "--devices", devices, str(results)])
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def test_the_command_tells_versions_apart_and_names_checks_and_caveats(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = runs({1: 0.1, 2: 0.12, 4: 0.14})
    folder = write_results(tmp_path, rows + [row | {"repeat": row["repeat"] + 3} for row in rows])
    info = pq.read_table(folder / "scenarios/s0/runs_info.parquet")
    versions = [
        "torch 2.10.0" if run.endswith(("_r4", "_r5", "_r6")) else "torch 2.11.0" for run in info["run"].to_pylist()
    ]
    column = info.column_names.index("versions")
    store({"runs_info": info.set_column(column, "versions", pa.array(versions))}, folder / "scenarios/s0")
    printed = "\n".join(predicted(folder, capsys, "8"))
    # The title of its table, and a row of the checks.
    assert [printed.count(f"torch {version}") for version in ("2.10.0", "2.11.0")] == [2, 2]
    # 64 images each in about 160 ms (20 ms for each doubling), where one took 100: 5 times as fast.
    answers = re.findall(
        r"  8 GPUs: ([\d.]+)× \(95% CI ([\d.]+) to ([\d.]+)\) of one, \d+% efficient, from 1, 2 and 4", printed
    )
    assert len(answers) == 2 and all(float(low) < 5 < float(high) for _, low, high in answers)
    assert "Checked on this machine: 2 predictions of measured runs" in printed
    assert printed.count(" images/s\n") == 2 and "Caveat: the loader never made a rank wait" in printed


def test_processes_that_would_compete_for_cpus_are_checked_but_not_predicted(tmp_path: Path) -> None:
    def on_four_cpus(name: str, rows: list[Row]) -> Series:
        [found] = series(with_provenance(make_results(tmp_path / name, rows, gpu=None), usable_cpus=lambda _: 4))
        return found

    found = on_four_cpus("a", runs({1: 0.1, 2: 0.12, 4: 0.14, 8: 0.3}, device="cpu"))
    assert "processes would compete for the machine's 4 CPUs" in found.forecast(16).reason
    assert found.forecast(3).reason is None  # as many as there are CPUs, or fewer
    # 20 ms for each doubling: 160 ms, of which the eight processes on four CPUs take 300.
    error = checks_table([found]).set_index("devices").loc[8, "prediction_error"]
    assert error == pytest.approx(160 / 300 - 1, abs=0.02)
    found = on_four_cpus("b", runs({1: 0.1, 2: 0.12}, device="cpu", threads=2))
    assert "would compete" in found.forecast(3).reason


def test_a_caveat_of_some_numbers_of_devices_names_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Devices share a batch of 64: four get 16 each, between the runs; sixteen get 4.
    rows = [
        row | {"processed_samples_per_s": 64 / row["iteration_time_s"], "scaling": "strong"}
        for row in runs({1: 0.1, 2: 0.06, 8: 0.03})
    ]
    printed = predicted(write_results(tmp_path, rows), capsys, "4,16")
    assert any("Caveat: each of 16 devices gets fewer or more samples" in line for line in printed)


def test_waits_that_faster_runs_contradict_are_not_called_missing() -> None:
    """The loader needs the whole second of a step on one device, yet two devices wait for nothing in 0.1 s."""
    waiting = ScalingPoint(1, 1, 64.0, (1.0, 1.0), (0.9, 0.9))
    fast = ScalingPoint(2, 2, 64.0, (0.1, 0.1), (0.0, 0.0))
    assert CONTRADICTING_WAITS in predict([waiting, fast], 4, 4, 64.0).caveats
    assert NEVER_WAITED not in predict([waiting, fast], 4, 4, 64.0).caveats
    slow = replace(fast, devices=1, devices_per_node=1)
    assert NEVER_WAITED in predict([slow, fast], 4, 4, 64.0).caveats
