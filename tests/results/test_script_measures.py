"""Measures, tables, notices and comparisons of scripts, from synthetic runs whose rates follow by hand."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from vision_records import change_steps

from multicard.answers.notes import notes
from multicard.answers.outputs import write_scenario
from multicard.answers.overview import measures_shown, overview
from multicard.answers.scaling.speedup_tables import speedup_table, throughputs_of
from multicard.cli.status import run_status
from multicard.core.files import write_json
from multicard.programs.script.parameters import ScriptParameters
from multicard.results.measure import measure_run
from multicard.results.notices import notices
from multicard.results.results import Results
from script_runs import MEASURED, configuration, parameters_of_all, speeds, write_all, write_script_run

UNSCALED: dict[str, Any] = {"figures": ["step_breakdown"]}  # the others need several numbers of devices
FEW = configuration(vary={"devices": [1, 2], "args": {"batch_size": [32], "amp": ["none"]}})


def p(**changes: Any) -> ScriptParameters:
    own = {"batch_size": 32, "amp": "none"}
    command = ["train.py", "{batch_size}", "{amp}"]
    return ScriptParameters(**{"command": command, "args": own, "device": "cpu"} | changes)


def measured(folder: Path, parameters: ScriptParameters, *arguments: Any, **changes: Any) -> dict[str, Any]:
    return measure_run(write_script_run(folder, parameters, *arguments, **changes))


def scenario(folder: Path, config: dict[str, Any] | None = None, **changes: Any) -> Results:
    write_scenario(write_all(folder, config, **changes), {}, folder / "scenarios" / "ours")
    return Results.read_scenario(folder / "scenarios" / "ours")


def test_rates_are_those_of_all_ranks_over_the_time_of_a_step(tmp_path: Path) -> None:
    row = measured(tmp_path / "own", p(devices=2), 0.05, samples=32)
    assert (row["iteration_time_s"], row["steps_per_s"]) == pytest.approx((0.05, 20))
    assert row["throughput_samples_per_s"] == row["processed_samples_per_s"] == pytest.approx(2 * 32 / 0.05)
    assert (row["args.batch_size"], row["args.amp"]) == (32, "none")
    assert row["command"] == "train.py '{batch_size}' '{amp}'"
    assert (row["measured_steps"], row["distinct_share"], notices(row)) == (MEASURED, 1, [])
    # Samples that every rank draws count once.
    row = measured(tmp_path / "same", p(devices=2), 0.05, samples=32, distinct=False)
    assert row["throughput_samples_per_s"] == pytest.approx(32 / 0.05)
    assert row["processed_samples_per_s"] == pytest.approx(64 / 0.05)
    [notice] = notices(row)
    assert "ranks saw the same samples" in notice and "DistributedSampler" in notice


@pytest.mark.slow
def test_where_ranks_may_draw_the_same_samples_a_notice_says_so(tmp_path: Path) -> None:
    row = measured(tmp_path, p(devices=2), 0.05, samples=32, distinct=None)
    assert row["throughput_samples_per_s"] == pytest.approx(64 / 0.05) and row["distinct_share"] is None
    [notice] = notices(row)
    assert "ranks may have seen the same samples" in notice and "counted as distinct" in notice
    # With tokens, which the table of a scenario has where they are known.
    tables = scenario(tmp_path / "all", FEW, tokens=400, distinct=None)
    [line] = [line for line in notes(tables) if "same samples" in line]
    assert line.startswith("Ranks may have seen the same samples: 1 of 2 runs (their loaders do not show it")
    assert measures_shown(tables)[:3] == ["iteration_time_s", "throughput_samples_per_s", "tokens_per_s"]
    first = parameters_of_all(FEW)[0]
    assert overview(tables)["tokens_per_s"].iloc[0] == pytest.approx(first.devices * 400 / speeds(first))


def observed(*loaders: list[bool | int | None]) -> dict[str, Any]:
    """Ranks whose loaders say so of their samples."""
    said = [[{"kind": "DataLoader", "distinct": distinct} for distinct in each] for each in loaders]
    return {"ranks": [{"rank": rank, "pid": 1, "observed": {"loaders": each}} for rank, each in enumerate(said)]}


def test_ranks_repeat_samples_where_all_their_loaders_say_so(tmp_path: Path) -> None:
    for number, (loaders, share) in enumerate(
        (
            (([True], [True]), 1),
            (([False], [False]), 0.5),
            (4 * ([2],), 0.5),  # two shares of four ranks
            (([False, True], [False, True]), None),  # loaders of two kinds in a step
            (([False], [None]), None),
            (([False], []), None),  # as where one rank draws for all
            (([None],), 1),
        )
    ):
        row = measured(tmp_path / str(number), p(devices=len(loaders)), 0.05, **observed(*loaders))
        assert row["distinct_share"] == share


@pytest.mark.parametrize(
    ("distinct", "batches", "share"),
    [
        (None, [(0, 1, 2), (0, 1, 2)], 0.5),
        (None, [(0, 1, 2), (3, 4, 5)], None),
        (None, [(0, 1, 2), (0, 1, 3)], None),
        (None, [(0, 0, 0), (0, 0, 0)], None),  # constant data
        (None, [(0, 1), (0, 1)], None),
        (None, [(), ()], None),
        (True, [(0, 1, 2), (0, 1, 2)], 1),  # the loader knows; synthetic data may be the same by their seed
        (None, [(0, 1, 2), (0, 1, 2), (3, 4, 5), (3, 4, 5)], None),  # two ranks that share a model
    ],
)
def test_the_first_batches_show_that_all_ranks_read_the_same_samples(
    distinct: bool | None, batches: list[tuple[int, ...]], share: float | None, tmp_path: Path
) -> None:
    changes = observed(*([distinct] for _ in batches))
    for rank, first in zip(changes["ranks"], batches, strict=True):
        rank["observed"]["first_batches"] = first
    assert measured(tmp_path, p(devices=len(batches)), 0.05, **changes)["distinct_share"] == share


def test_tokens_are_counted_as_samples_are(tmp_path: Path) -> None:
    def tokens_per_s(name: str, **changes: Any) -> float | None:
        stated = {name: changes.pop(name) for name in ("samples_per_step",) if name in changes}
        return measured(tmp_path / name, p(devices=2, **stated), 0.05, **changes)["tokens_per_s"]

    assert tokens_per_s("own", tokens=400) == pytest.approx(2 * 400 / 0.05)
    assert tokens_per_s("same", tokens=400, distinct=False) == pytest.approx(400 / 0.05)
    assert tokens_per_s("untold", tokens=400, distinct=None) == pytest.approx(2 * 400 / 0.05)
    assert tokens_per_s("images") is None
    # A stated number of samples is of all ranks, and says nothing of who repeats tokens.
    assert tokens_per_s("stated", tokens=400, samples_per_step=64) == pytest.approx(2 * 400 / 0.05)
    assert tokens_per_s("stated, untold", tokens=400, samples_per_step=64, distinct=None) is None


def test_a_stated_number_of_samples_takes_the_place_of_what_loaders_gave(tmp_path: Path) -> None:
    of_step = measured(tmp_path / "step", p(devices=2, samples_per_step=100), 0.05, samples=32, distinct=False)
    assert of_step["throughput_samples_per_s"] == of_step["processed_samples_per_s"] == pytest.approx(100 / 0.05)
    # Of a script without a loader whose ranks compute on 12 samples each.
    for devices in (1, 2):
        stated = p(devices=devices, samples_per_device=12)
        of_device = measured(tmp_path / str(devices), stated, 0.05, samples=None)
        assert of_device["throughput_samples_per_s"] == pytest.approx(devices * 240)
        assert of_device["distinct_share"] == 1 and notices(of_device) == notices(of_step) == []
    with pytest.raises(ValueError, match="samples_per_device: samples_per_step is stated too"):
        p(samples_per_step=12, samples_per_device=12)


def test_without_samples_there_is_no_throughput_but_steps(tmp_path: Path) -> None:
    row = measured(tmp_path / "none", p(devices=2), 0.05, samples=None)
    assert row["steps_per_s"] == pytest.approx(20)
    rates = ("throughput_samples_per_s", "processed_samples_per_s")
    assert all(math.isnan(row[name]) for name in rates)
    assert "samples_per_step or samples_per_device" in notices(row)[0]
    # Samples that are not known of one step are not counted as none.
    folder = write_script_run(tmp_path / "one", p(), 0.05, samples=32)
    change_steps(folder, lambda steps: steps.assign(samples=steps["samples"].mask(steps["step"] == 6)))
    assert math.isnan(measure_run(folder)["throughput_samples_per_s"])


def test_phases_may_be_missing_and_need_not_add_up_to_the_step(tmp_path: Path) -> None:
    folder = write_script_run(tmp_path / "missing", p(), 0.1, phases={"backward": 0.5, "optimizer": 0.1})
    row = measure_run(folder)
    assert (row["backward_s"], row["optimizer_s"], row["other_s"]) == pytest.approx((0.05, 0.01, 0.04))
    assert row["forward_s"] is None and row["data_share"] is None
    assert row["inconsistency"] is None
    assert run_status(None, folder, None, row) == ("completed", ["no trace: no profiler"], True)
    # A phase that some steps are without counts over all steps: one batch for four updates.
    folder = write_script_run(tmp_path / "some", p(), 0.1, phases={"backward": 0.5})
    change_steps(folder, lambda steps: steps.assign(data_s=steps["data_s"].mask(steps["step"] % 4 == 0, 0.01)))
    row = measure_run(folder)
    assert row["data_s"] == pytest.approx(0.0025)
    assert (row["data_share"], row["profiled_data_share"]) == pytest.approx((0.025, 0.025))
    assert row["data_s"] + row["backward_s"] + row["other_s"] == pytest.approx(row["mean_iteration_time_s"])
    # Evaluation in every fourth step of 50 ms lasts 20 ms, so 5 ms a step; of the other 45 ms, 20 are of forward.
    folder = write_script_run(tmp_path / "evaluation", p(), 0.05, phases={"forward": 0.4})
    assert math.isnan(measure_run(folder)["evaluation_s"] or math.nan)
    change_steps(folder, lambda steps: steps.assign(evaluation_s=np.where(steps["step"] % 4 == 0, 0.02, np.nan)))
    row = measure_run(folder)
    assert (row["evaluation_s"], row["other_s"]) == pytest.approx((0.005, 0.025))
    assert row["iteration_time_s"] == pytest.approx(0.05)  # it stays in the elapsed time
    assert row["measured_passes"] == 1 and not any("pass" in notice for notice in notices(row))


def test_a_pass_that_is_shorter_than_the_windows_is_noticed(tmp_path: Path) -> None:
    row = measured(tmp_path, p(), 0.05, steps_per_pass=8)  # steps 3 to 22 are of passes 1, 2 and 3
    assert (row["measured_passes"], row["estimated_epoch_time_s"]) == (3, pytest.approx(8 * 0.05))
    assert row["between_passes_s"] == pytest.approx(0, abs=1e-9)
    assert not any("pass" in notice for notice in notices(row))  # nothing of the script's time is left out
    # A checkpoint of 0.4 s after each pass of 0.4 s.
    folder = write_script_run(tmp_path / "saving", p(), 0.05, steps_per_pass=8)
    change_steps(folder, lambda steps: steps.assign(start_s=steps["start_s"] + 0.4 * (steps["epoch"] - 1)))
    row = measure_run(folder)
    assert row["between_passes_s"] == pytest.approx(0.4)
    told = "the measured steps span 3 passes of 8 steps; the 400 ms between two passes are in no step"
    assert told in notices(row)[-1]


def test_steps_that_are_backward_passes_are_told_of(tmp_path: Path) -> None:
    folder = write_script_run(tmp_path, p(), 0.05)
    assert not any("backward" in notice for notice in notices(measure_run(folder)))
    record = json.loads((folder / "run.json").read_text())
    record["ranks"][0]["observed"]["steps_by"] = "backward passes"
    write_json(folder / "run.json", record)
    assert "each backward pass counts as a step" in " ".join(notices(measure_run(folder)))


def test_threads_are_those_that_the_ranks_had(tmp_path: Path) -> None:
    folder = write_script_run(tmp_path, p(), 0.05)
    record = json.loads((folder / "run.json").read_text())
    record["ranks"][0]["intraop_threads"] = 8
    write_json(folder / "run.json", record | {"hardware": {"usable_cpus": 2}})
    row = measure_run(folder)
    assert (row["threads"], row["intraop_threads"], row["usable_cpus"]) == (1, 8, 2)


def test_measured_steps_of_a_run_that_did_not_complete_have_numbers(tmp_path: Path) -> None:
    folder = write_script_run(tmp_path, p(), 0.05)
    record = json.loads((folder / "run.json").read_text())
    reason = {"code": "timed_out", "time_limit_s": 480.0, "measured_steps": 8, "step_s": 13.6}
    write_json(folder / "run.json", record | {"outcome": "timed_out", "reason": reason})
    row = measure_run(folder)
    assert (row["outcome"], row["measured_steps"], row["iteration_time_s"]) == ("timed_out", 8, 13.6)
    assert row["reason"] == "exceeded its time limit of 8 min; its 8 measured steps took 13.6 s each"
    assert row["throughput_samples_per_s"] is None and notices(row) == []


@pytest.mark.slow
@pytest.mark.parametrize(("share", "kind"), [(0.5, "strong"), (0.75, "unknown")])
def test_the_kind_of_scaling_follows_from_the_samples_of_a_step(tmp_path: Path, share: float, kind: str) -> None:
    one, two = parameters_of_all(FEW)
    folders = [
        write_script_run(tmp_path, one, 0.04, samples=32),
        write_script_run(tmp_path, two, 0.04, samples=32 * share),
    ]
    write_scenario(folders, {}, tmp_path / "ours")
    assert set(speedup_table(Results.read_scenario(tmp_path / "ours"))["scaling"]) == {kind}


@pytest.mark.slow
def test_tables_of_scripts_without_samples_are_in_steps_and_say_what_to_do(tmp_path: Path) -> None:
    results = scenario(tmp_path, FEW, samples=None)
    measures = results.measures
    assert throughputs_of(measures) == ["steps_per_s"]
    assert measures["steps_per_s"].tolist() == pytest.approx([1 / speeds(p) for p in parameters_of_all(FEW)])
    assert speedup_table(results)["speedup"].isna().all()


@pytest.mark.slow
def test_words_that_mean_nothing_to_pandas_stay_words(tmp_path: Path) -> None:
    values = ["None", "NA", True, 0.5]
    config = configuration(vary={"args": {"batch_size": [32], "amp": values}}, **UNSCALED)
    assert scenario(tmp_path, config).measures["args.amp"].tolist() == values


CHANGED = {"file": "train.py", "sha256": "cd" * 32, "commit": None, "modified": None}


@pytest.mark.slow
def test_a_script_that_changed_between_runs_is_noticed_and_its_runs_are_not_pooled(tmp_path: Path) -> None:
    config = configuration(vary={"args": {"batch_size": [32], "amp": ["none"]}}, repeats=2, **UNSCALED)
    first, second = parameters_of_all(config)
    folders = [write_script_run(tmp_path, first, 0.1), write_script_run(tmp_path, second, 0.1, script=CHANGED)]
    write_scenario(folders, {}, tmp_path / "scenarios" / "ours")
    assert "2 sets of versions: train.py abababababab, train.py cdcdcdcdcdcd" in notes(
        Results.read_scenario(tmp_path / "scenarios" / "ours")
    )
    assert len(Results.read(tmp_path).configurations()) == 2
