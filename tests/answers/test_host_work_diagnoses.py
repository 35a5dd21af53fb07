"""Causes that the host's work shows, of synthetic runs whose work is stated: how long, where, and what to do."""

from pathlib import Path
from typing import Any

import pytest

from factories import STEADY, Row, make_results, recommendations, vision_runs
from multicard.answers.diagnoses.host.host_work import diagnoses, work_of
from multicard.results.breakdown import StepPart
from multicard.results.results import Results
from multicard.runs.record import TrainingSetup

STEPS = 50
TIMES = ("iteration_time_s", "mean_iteration_time_s", "measured_steps")


def runs(devices: int, step_s: float, device: str = "cpu", **phases_s: float) -> list[Row]:
    """Repeats of runs whose devices compute 64 images each in a step."""
    times = {"iteration_time_s": step_s, "mean_iteration_time_s": step_s, "measured_steps": STEPS}
    return vision_runs(devices * 64 / step_s, devices=devices, device=device, **times | phases_s)


def work(at: int, kind: str, function: str, calls_a_step: float, seconds_a_step: float, **others: Any) -> Row:
    """Work of rank 0 in the run number `at`, so much in each of the steps that are measured."""
    row = {"rank": 0, "steps": STEPS, "first_steps": "11, 12", "site": "train.py:12", "bytes": 0} | others
    totals = {"calls": round(calls_a_step * STEPS), "seconds": seconds_a_step * STEPS}
    return {"at": at, "kind": kind, "function": function, **totals, **row}


def steps_with_long_ones(long_steps: range) -> list[Row]:
    """The measured steps of `STEADY` repeats, of 50 ms each but for long ones of 250 ms."""
    return [
        {"at": at, "rank": 0, "step": step, "window": "measured", "duration_s": 0.250 if step in long_steps else 0.050}
        for at in range(len(STEADY))
        for step in range(11, 61)
    ]


def results_of(folder: Path, rows: list[Row], work_rows: list[Row], **tables: list[Row]) -> Results:
    return make_results(folder, rows, gpu=None, tables={"host_work": work_rows} | tables)


def test_collections_of_garbage_are_told_with_their_line_and_gain(tmp_path: Path) -> None:
    # 60 of 80 ms: without them a step takes a fourth of the time.
    rows = [work(at, "garbage collection", "gc.collect", 1, 0.060) for at in range(3)]
    results = results_of(tmp_path, runs(1, 0.080), rows)
    [found] = diagnoses(results.configurations()[0], results)
    assert found.share == pytest.approx(0.75, rel=0.01)
    assert found.gain == pytest.approx(4.0, rel=0.02)
    said = recommendations(results)
    assert (
        "- Try next: no `gc.collect()` in the loop, or one in some hundred steps, since `gc.collect` (train.py, "
        "line 12) collects garbage for 60.0 ms of a step (75%); up to 4.00× as fast without it"
    ) in said
    assert "channels_last" not in said and "layout: nhwc" not in said.partition("## Details")[0]


def test_a_collection_now_and_then_is_no_cause(tmp_path: Path) -> None:
    rows = [work(at, "garbage collection", "automatic", 0.1, 0.002) for at in range(3)]
    results = results_of(tmp_path, runs(1, 0.080, forward_s=0.080), rows)
    assert diagnoses(results.configurations()[0], results) == []
    [found] = work_of(results.configurations()[0], results)
    assert found.calls == pytest.approx(0.1, rel=1e-3)
    assert "`compile: true`" in recommendations(results).partition("## Details")[0]


def test_a_single_collection_of_all_garbage_in_a_short_window_is_no_cause(tmp_path: Path) -> None:
    # In 20 steps of 15 ms one takes 300 ms longer for garbage: half of the time, by chance. Collections of young
    # objects take 0.1 ms in each step.
    steps = [
        {"at": at, "rank": 0, "step": step, "window": "measured", "duration_s": 0.315 if step == 17 else 0.015}
        for at in range(len(STEADY))
        for step in range(11, 31)
    ]
    shape = {"measured_steps": 20, "iteration_time_s": 0.030, "mean_iteration_time_s": 0.030}
    rows = vision_runs(100.0, devices=1, device="cpu", **shape)
    seconds = 0.300 + 20 * 0.0001
    collections = {"calls": 20, "seconds": seconds, "steps": 20}
    work_rows = [work(at, "garbage collection", "automatic", 0, 0) | collections for at in range(len(STEADY))]
    single = results_of(tmp_path / "single", rows, work_rows, steps=steps)
    assert diagnoses(single.configurations()[0], single) == []
    # Five collections of 60 ms take as much, and are no chance.
    several = [
        step | {"duration_s": 0.075 if step["step"] in (12, 16, 20, 24, 28) else 0.015} for step in steps
    ]  # fmt: skip
    results = results_of(tmp_path / "several", rows, work_rows, steps=several)
    [found] = diagnoses(results.configurations()[0], results)
    assert found.share == pytest.approx(0.5, rel=0.02)


@pytest.mark.parametrize("function", ["automatic", "gc.collect"])
def test_collections_in_two_steps_are_too_few(function: str, tmp_path: Path) -> None:
    rows = [work(at, "garbage collection", function, 0.1, 0.030, steps=2) for at in range(len(STEADY))]
    results = results_of(tmp_path, runs(1, 0.080), rows)
    assert diagnoses(results.configurations()[0], results) == []


def test_collectives_of_the_program_explain_what_grew(tmp_path: Path) -> None:
    # Both ranks exchange 100 tensors one by one, in 120 of the 200 ms that the step takes instead of 60.
    one = runs(1, 0.060, forward_s=0.02, backward_s=0.03, optimizer_s=0.01)
    two = runs(2, 0.200, forward_s=0.02, backward_s=0.04, optimizer_s=0.01)
    rows = [work(at, "collective", "all_reduce", 100, 0.120, rank=rank) for at in (3, 4, 5) for rank in (0, 1)]
    said = recommendations(results_of(tmp_path, one + two, rows))
    assert "130 ms outside of forward, backward and optimizer, in 100 all_reduce a step (train.py, line 12)" in said
    assert (
        "- Try next: on 2 CPU processes: fewer and larger exchanges, as by `DistributedDataParallel` or of one flat "
        "tensor, since 100 all_reduce a step (train.py, line 12) take 120 ms of a step (60%); up to 2.50× as fast "
        "without it"
    ) in said


def test_collectives_within_the_model_have_another_remedy_and_on_gpus_their_time_is_not_known(tmp_path: Path) -> None:
    rows = [
        work(at, "collective", "all_reduce", 30, 0.030, phase=phase)
        for at in range(3)
        for phase in ("forward", "backward")
    ]
    on_cpus = results_of(tmp_path / "cpu", runs(2, 0.100), [row | {"rank": rank} for row in rows for rank in (0, 1)])
    [found] = diagnoses(on_cpus.configurations()[0], on_cpus)
    assert found.share == pytest.approx(0.6, rel=0.01)
    assert found.remedy == "fewer or larger exchanges between a batch and its update"
    synchronized = diagnoses(on_cpus.configurations()[0], on_cpus, TrainingSetup(synchronized_norms=15))
    assert [cause.remedy.endswith("or fewer synchronized layers") for cause in synchronized] == [True]
    on_gpus = results_of(tmp_path / "cuda", runs(2, 0.100, device="cuda"), rows)
    assert diagnoses(on_gpus.configurations()[0], on_gpus) == []


def test_exchanges_of_sharded_weights_have_a_remedy_of_their_own(tmp_path: Path) -> None:
    functions = {"all_gather_into_tensor": 0.03, "reduce_scatter_tensor": 0.01}
    rows = [
        work(at, "collective", function, 3, seconds, phase="forward", site=None)
        for at in range(3)
        for function, seconds in functions.items()
    ]
    results = results_of(tmp_path, runs(2, 0.100), rows)
    [found] = diagnoses(results.configurations()[0], results)
    assert found.sentence == (
        "weights that are not sharded, if they fit, or larger shards, since 3 all_gather_into_tensor a step and 3 "
        "reduce_scatter_tensor a step take 40.0 ms of a step (40%); up to 1.67× as fast without it"
    )


@pytest.mark.parametrize(
    ("wrapper", "remedies"),
    [
        ("FSDP", ["weights that are not sharded, if they fit, or larger shards"]),
        (
            "DistributedDataParallel",
            ["fewer or larger exchanges between a batch and its update"],
        ),
    ],
)
def test_the_same_functions_are_of_shards_only_if_the_model_is_sharded(
    wrapper: str, remedies: list[str], tmp_path: Path
) -> None:
    rows = [work(at, "collective", "all_gather_into_tensor", 30, 0.030, phase="forward") for at in range(3)]
    results = results_of(tmp_path, runs(2, 0.100), rows)
    found = diagnoses(results.configurations()[0], results, TrainingSetup(wrapper=wrapper))
    assert [cause.remedy for cause in found] == remedies


def test_exchanges_of_buckets_by_a_hook_are_not_those_of_layers(tmp_path: Path) -> None:
    rows = [work(at, "collective", "all_reduce", 104, 0.030, phase="backward") for at in range(3)]
    results = results_of(tmp_path, runs(2, 0.100), rows)
    for buckets, count in ((104, 0), (3, 1)):
        setup = TrainingSetup(wrapper="DistributedDataParallel", exchanged_passes=1.0, buckets=buckets)
        assert len(diagnoses(results.configurations()[0], results, setup)) == count


def test_work_of_some_steps_is_told_by_how_much_longer_these_are(tmp_path: Path) -> None:
    # Every tenth step takes 250 in place of 50 ms: 5 × 200 of 5 × 250 + 45 × 50 ms.
    working = range(20, 61, 10)
    rows = [
        work(at, "saving", "torch.save", 0.1, 0.0001, steps=5, first_steps=", ".join(map(str, working)))
        for at in range(len(STEADY))
    ]
    results = results_of(tmp_path, runs(1, 0.070), rows, steps=steps_with_long_ones(working))
    [found] = diagnoses(results.configurations()[0], results)
    assert found.share == pytest.approx(1.0 / 3.5)
    assert found.evidence == (
        "`torch.save` (train.py, line 12) saves in every 10th step, which then takes 200 ms longer (29% of the time; "
        "1.00 ms of it within the call)"
    )


def test_an_evaluation_in_steps_that_save_is_not_counted_and_saving_in_each_step_takes_its_calls(
    tmp_path: Path,
) -> None:
    # Every tenth step also evaluates for 2 s, which is a part of the step of its own.
    steps = [
        {
            "at": at, "rank": 0, "step": step, "window": "measured",
            "duration_s": 2.060 if step % 10 == 0 else 0.050,
            "evaluation_s": 2.0 if step % 10 == 0 else None,
        }
        for at in range(len(STEADY))
        for step in range(11, 61)
    ]  # fmt: skip
    rare = [
        work(at, "saving", "torch.save", 0.1, 0.001, steps=5, first_steps="20, 30, 40, 50, 60")
        for at in range(len(STEADY))
    ]
    evaluated = results_of(tmp_path / "a", runs(1, 0.250), rare, steps=steps)
    assert diagnoses(evaluated.configurations()[0], evaluated) == []  # 1 of 51 ms
    numbers = ", ".join(map(str, range(11, 43)))  # those that are kept
    always = [work(at, "saving", "torch.save", 1, 0.050, first_steps=numbers) for at in range(len(STEADY))]
    each = results_of(tmp_path / "b", runs(1, 0.100), always, steps=steps)
    [found] = diagnoses(each.configurations()[0], each)
    assert found.evidence == "`torch.save` (train.py, line 12) saves in each step, for 50.0 ms (50% of the time)"


def test_work_that_ranks_do_in_different_phases_is_that_of_one_rank(tmp_path: Path) -> None:
    rows = [
        work(at, "garbage collection", "automatic", 0.1, 0.004, rank=rank, phase=phase)
        for at in range(3)
        for rank, phase in enumerate(("forward", "backward", "optimizer", "data"))
    ]
    results = results_of(tmp_path, runs(4, 0.100), rows)
    assert diagnoses(results.configurations()[0], results) == []  # 4 of 100 ms, not 16


def test_on_gpus_garbage_counts_as_far_as_they_are_idle_for_the_host(tmp_path: Path) -> None:
    rows = [work(at, "garbage collection", "automatic", 1, 0.040) for at in range(3)]
    parts = {StepPart.COMPUTE: 0.9, StepPart.LAUNCHES: 0.1}
    hidden = runs(1, 0.100, device="cuda", **{part.column: share for part, share in parts.items()})
    results = results_of(tmp_path / "hidden", hidden, rows)
    [found] = diagnoses(results.configurations()[0], results)
    assert found.share == pytest.approx(0.1, rel=0.01)
    assert found.evidence == "Python collects garbage for 40.0 ms of a step (40%)"
    unknown = results_of(tmp_path / "unknown", runs(1, 0.100, device="cuda"), rows)
    assert diagnoses(unknown.configurations()[0], unknown) == []


def test_of_a_collective_the_shortest_rank_counts_and_few_of_them_have_another_remedy(tmp_path: Path) -> None:
    # Rank 0 comes late by 30 ms, for which rank 1 waits in the collective.
    rows = [
        work(at, "collective", "all_gather_object", 1, seconds, rank=rank)
        for at in range(3)
        for rank, seconds in ((0, 0.010), (1, 0.040))
    ]
    results = results_of(tmp_path, runs(2, 0.100), rows)
    [found] = diagnoses(results.configurations()[0], results)
    assert found.share == pytest.approx(0.1, rel=0.01)
    assert found.remedy == "an exchange in one of many steps, if it is for logging"
    # 100 ms less 9.5 and less 10.
    assert found.cause.endswith("; at least 1.10× as fast with a 20th of it, up to 1.11× without it")


@pytest.mark.parametrize(
    ("steps", "remedy"),
    [
        (
            STEPS,
            "`torch.compile(dynamic=True)`, or batches padded to a few different shapes (`TORCH_LOGS=recompiles` shows "
            "what differs)",
        ),
        (2, "a longer warm-up (`warmup_steps`, `--warmup`), so that nothing is compiled in measured steps"),
    ],
)
def test_compilations_in_each_step_are_told_from_a_warm_up_that_is_too_short(
    steps: int, remedy: str, tmp_path: Path
) -> None:
    rows = [work(at, "compiling", "torch.compile", 1, 0.075, phase="forward", steps=steps) for at in range(3)]
    results = results_of(tmp_path, runs(1, 0.100), rows)
    [found] = diagnoses(results.configurations()[0], results)
    assert found.remedy == remedy
    assert found.gain == pytest.approx(4, rel=0.01)
    assert found.evidence == f"`torch.compile` compiles in {steps} of 50 measured steps, 75.0 ms of a step (75%)"
    # More than the compiler's own time is lost by compiling.
    assert found.cause.endswith("; at least 4.00× as fast without it")


def test_compilations_may_be_hidden_behind_a_gpu(tmp_path: Path) -> None:
    rows = [work(at, "compiling", "torch.compile", 1, 0.075, phase="forward") for at in range(3)]
    results = results_of(tmp_path, runs(1, 0.100, device="cuda"), rows)
    [found] = diagnoses(results.configurations()[0], results)
    assert found.cause.endswith("; up to 4.00× as fast without it")


def test_compilations_in_some_steps_take_the_time_by_which_these_are_longer(tmp_path: Path) -> None:
    # Every tenth step takes 250 in place of 50 ms, of which the compiler knows 150: 5 × 200 of 5 × 250 + 45 × 50 ms.
    working = range(20, 61, 10)
    numbers = ", ".join(map(str, working))
    rows = [
        work(at, "compiling", "torch.compile", 0.1, 0.015, steps=5, first_steps=numbers) for at in range(len(STEADY))
    ]
    results = results_of(tmp_path, runs(1, 0.070), rows, steps=steps_with_long_ones(working))
    [found] = diagnoses(results.configurations()[0], results)
    assert found.share == pytest.approx(1.0 / 3.5)
    assert found.evidence == "`torch.compile` compiles in 5 of 50 measured steps, 20.0 ms of a step (29%)"
    assert found.cause.endswith("; up to 1.40× as fast without it")


@pytest.mark.parametrize(("seconds", "first"), [(0.030, "no `gc.collect()`"), (0.010, "more loader workers")])
def test_a_cause_comes_before_a_wait_of_which_it_may_be_half(seconds: float, first: str, tmp_path: Path) -> None:
    # 40 of 100 ms are waits for data.
    waiting = {"workload": "script", "command": ["train.py"], "folder": ".", "data_share": 0.4}
    rows = [
        waiting | {name: value for name, value in row.items() if name in ("repeat", "device", "devices", *TIMES)}
        for row in runs(1, 0.100)
    ]
    causes = [work(at, "garbage collection", "gc.collect", 1, seconds) for at in range(3)]
    said = recommendations(results_of(tmp_path, rows, causes))
    assert said.partition("- Try next: ")[2].startswith(first)
