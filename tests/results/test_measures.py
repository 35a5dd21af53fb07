"""A run's measures against a record small enough to work out by hand."""

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pandas as pd
import pytest
from vision_records import ELAPSED, change_steps, record, with_activity

from conftest import refusal
from multicard.core.errors import UserError
from multicard.core.files import write_json
from multicard.core.layout import PHASES
from multicard.core.units import (
    BYTES,
    BYTES_PER_S,
    JOULES,
    ONE,
    OPERATIONS,
    OPERATIONS_PER_S,
    PERCENT,
    SECONDS,
    units_of,
)
from multicard.programs import PROGRAMS
from multicard.programs.llm.parameters import LlmParameters
from multicard.programs.vision.measures import time_to_accuracy
from multicard.results.breakdown import StepPart
from multicard.results.measure import measure_run, runs_table
from multicard.results.notices import notices
from multicard.results.outcomes import outcome_of, outcome_table
from multicard.runs.measures import COMMON, Measures
from multicard.runs.record import Energy, ModelRecord, Place, RankRecord
from multicard.trace.tables import ACTIVITIES


def test_iteration_time_is_the_elapsed_time_of_the_slowest_rank_per_step(tmp_path: Path) -> None:
    row = measure_run(record(tmp_path, "ddp-ds"))
    assert (row["elapsed_s"], row["measured_steps"]) == (pytest.approx(ELAPSED), 3)
    assert row["iteration_time_s"] == pytest.approx(ELAPSED / 3)
    assert row["estimated_epoch_time_s"] == pytest.approx(10 * ELAPSED / 3)
    assert row["median_iteration_time_s"] == 3.0  # of 2, 4 and 3
    assert (row["test_accuracy"], row["peak_memory_bytes"]) == (0.6, 2000)  # of the last epoch, of the largest rank
    # Phases and the rest add up to the mean step.
    assert row["forward_s"] == pytest.approx((0.4 + 0.9 + 1.5 + 1.2 + 1.0 + 1.0) / 6)
    assert row["mean_iteration_time_s"] == pytest.approx(16 / 6)
    assert row["forward_s"] + row["backward_s"] + row["other_s"] == pytest.approx(16 / 6)
    assert all(row[f"{phase}_s"] is None for phase in set(PHASES) - {"forward", "backward"})
    # The profiled window by the same definitions, and the profiler's cost.
    assert row["profiled_iteration_time_s"] == row["trace_iteration_time_s"] == 6.0
    assert row["profiler_overhead"] == pytest.approx(6.0 / (ELAPSED / 3) - 1)
    assert row["stationary"] is None  # too few steps to tell
    assert pd.isna(row["profiled_data_s"])  # these steps have no such phase


def test_samples_that_every_rank_sees_count_once(tmp_path: Path) -> None:
    for strategy, distinct in (("ddp-ds", 60), ("ddp", 30)):
        row = measure_run(record(tmp_path / strategy, strategy))
        assert row["throughput_samples_per_s"] == pytest.approx(3 * distinct / ELAPSED)
        assert row["processed_samples_per_s"] == pytest.approx(3 * 60 / ELAPSED)
    # They are those that were processed, not those of full batches.
    folder = record(tmp_path / "last", "ddp-ds")
    change_steps(folder, lambda steps: steps.assign(samples=steps["samples"].mask(steps["step"] == 4, 12)))
    assert measure_run(folder)["throughput_samples_per_s"] == pytest.approx((60 + 60 + 24) / ELAPSED)


def test_tokens_are_counted_over_the_same_time(tmp_path: Path) -> None:
    parameters = LlmParameters(device="cpu", devices=2, dataset="chats", model="tiny", technique="lora")
    folder = record(tmp_path, "ddp", parameters=parameters, model=ModelRecord(architecture="tiny"))
    steps = pd.read_csv(folder / "steps.csv").assign(padded_tokens=1000)
    steps["tokens"] = 100 * steps["step"] + steps["rank"]  # 3 measured steps: 2 × 900 and 3 of rank 1
    steps.to_csv(folder / "steps.csv", index=False)
    row = measure_run(folder)
    assert row["tokens_per_s"] == pytest.approx(1803 / ELAPSED)
    assert row["tokens_per_s_per_device"] == pytest.approx(1803 / ELAPSED / 2)
    assert row["tokens_per_s"] * row["iteration_time_s"] == pytest.approx(row["tokens_per_step"])
    assert row["throughput_samples_per_s"] == row["processed_samples_per_s"] == pytest.approx(180 / ELAPSED)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda steps: steps.drop(columns="start_s"), "found no column start_s"),
        (lambda steps: steps.replace({"duration_s": {6.0: -1}}), "found -1 in the column duration_s, .* above 0"),
        (lambda steps: steps.assign(duration_s=None), "found nan in the column duration_s, .*"),
        (lambda steps: steps.assign(start_s=None), "found a step without start_s, .*"),
    ],
)
def test_a_record_that_does_not_say_when_steps_began_is_refused(
    tmp_path: Path, spoil: Callable[[pd.DataFrame], pd.DataFrame], message: str
) -> None:
    folder = record(tmp_path, "ddp")
    change_steps(folder, spoil)
    with pytest.raises(UserError, match=rf"steps\.csv: {message}$"):
        measure_run(folder)


def test_time_to_accuracy_ends_with_the_first_epoch_that_reaches_it() -> None:
    epochs = pd.DataFrame({"test_accuracy": [0.9, 0.98, 0.97, 0.99], "epoch_time_s": [10, 20, 30, 40]})
    assert time_to_accuracy(epochs) == 30
    assert time_to_accuracy(epochs.head(1)) is None


def test_a_vision_run_without_an_epoch_is_refused(tmp_path: Path) -> None:
    folder = record(tmp_path, "ddp-ds")
    (folder / "epochs.csv").write_text("epoch,train_loss,test_loss,test_accuracy,epoch_time_s\n")
    why = "not a complete record of a completed run: found no epoch in epochs.csv"
    assert refusal(lambda: measure_run(folder)) == f"{folder}/run.json: {why}"


def test_energy_is_that_of_all_cards_or_none(tmp_path: Path) -> None:
    for second, expected in ((60.0, (30 + 60) / 180), (None, None)):
        ranks = tuple(
            RankRecord(rank=rank, energy=(Energy(energy_j=joules),), device_memory_used_bytes=(joules and int(joules),))
            for rank, joules in enumerate((30.0, second))
        )
        # 3 measured steps of 30 samples on each of 2 ranks.
        row = measure_run(record(tmp_path / str(second), "ddp", ranks=ranks))
        assert row["energy_per_sample_j"] == (None if expected is None else pytest.approx(expected))
        assert row["device_memory_used_bytes"] == (second or 30)
    row = measure_run(
        record(tmp_path / "lost", "ddp", outcome="diverged", reason={"code": "diverged", "loss": "nan", "step": 7})
    )
    assert (row["outcome"], row["reason"], row["iteration_time_s"]) == ("diverged", "the loss is nan at step 7", None)


def test_the_table_of_runs_has_the_planned_order_and_what_could_not_run(tmp_path: Path) -> None:
    folders = []
    for name, position, minute in (("a", 2, 30), ("b", 5, 10)):
        order = Place(seed=0, group=("a",), block=1, position=position)
        folders.append(record(tmp_path / name, "ddp", order=order, started=f"2026-01-01T00:{minute}:00+00:00"))
    rows = outcome_table(map(outcome_of, folders), {"c": "needs 4 devices, 2 found"})
    assert rows["planned_position"].tolist()[:2] == [2, 5] and rows["planned_position"].isna().iloc[2]
    assert rows["outcome"].tolist() == ["completed", "completed", "not run"]
    assert rows["reason"].iloc[2] == "needs 4 devices, 2 found"
    assert "iteration_time_s" in runs_table([])


def test_a_record_is_checked_against_its_trace(tmp_path: Path) -> None:
    assert measure_run(record(tmp_path / "sound", "ddp"))["inconsistency"] is None
    folder = record(tmp_path / "trace", "ddp", trace_seconds=7.0)
    assert measure_run(folder)["inconsistency"] == "the trace's steps last 116.7% of the record's"


def test_what_was_set_right_in_a_trace_is_told_of_its_run(tmp_path: Path) -> None:
    folder = record(tmp_path, "ddp")
    assert measure_run(folder)["trace_notice"] is None
    write_json(folder / "activity/tables.json", {"tables": {}, "notices": ["clocks differ", "no kernel"]})
    row = measure_run(folder)
    assert row["trace_notice"] == "clocks differ; no kernel"
    assert notices(row) == ["trace incomplete or corrected: clocks differ; no kernel"]


@pytest.mark.parametrize(
    ("extents", "told"), [(["device", "host"], True), (["device", "device"], False), ([None, None], None)]
)
def test_steps_on_a_gpu_that_only_the_host_tells_are_known(
    tmp_path: Path, extents: list[str | None], told: bool | None
) -> None:
    folder = record(tmp_path, "ddp")
    with_activity(folder)
    scopes = ["capture" if extent is None else "steps" for extent in extents]
    rows = pd.DataFrame({"scope": scopes, "extent": extents, "device": [0, 1]})
    rows.reindex(columns=ACTIVITIES["timeline"].schema.names).to_parquet(folder / "activity" / "timeline.parquet")
    assert measure_run(folder)["trace_host_extents"] == told


def test_the_shares_of_parts_are_measures_in_the_order_of_the_parts() -> None:
    first = COMMON.index(next(iter(StepPart)).column)
    assert COMMON[first : first + len(StepPart)] == tuple(part.column for part in StepPart)


def test_the_unit_of_a_measure_is_that_of_its_name() -> None:
    of_names = {"s": SECONDS, "bytes": BYTES, "J": JOULES, "1/s": ONE, "operations": OPERATIONS}
    of_names |= {"operations/s": OPERATIONS_PER_S, "bytes/s": BYTES_PER_S, "": None}
    of_names |= {"share, 0 to 1": PERCENT, "relative change": PERCENT}
    definitions = {measure.name: measure.metadata["definition"] for measure in fields(Measures)}
    for program in PROGRAMS.values():
        definitions |= program.measures.definitions
    # A unit is found by the end of a name, and this one ends in what its rate is divided by.
    del definitions["tokens_per_s_per_device"]
    stated = {name: of_names[definition.unit] for name, definition in definitions.items()}
    assert stated == {name: units_of(name) for name in definitions}
