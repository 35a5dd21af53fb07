"""The estimate of what runs cost, against hours worked out by hand."""

from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest

from factories import make_run, write_run
from multicard.config.estimate import START_S, TRACE_S, Cost, EarlierTimes, estimate_cost, times_by_earlier_runs
from multicard.config.experiment import Experiment, Fixed, Scenario, Vary
from multicard.config.plan import Plan
from multicard.config.runs import Run
from multicard.programs import PROGRAMS, parameters_of
from multicard.programs.datasets import Digits, ImageFolder, Mnist, Synthetic
from multicard.programs.llm.estimate import FLOP_PER_S, LIBRARIES_S, STORAGE_BYTES_PER_S
from multicard.programs.models import Model
from multicard.programs.vision.estimate import IMAGES_PER_S, LOADING_S

DATASETS = {
    "digits": Digits(source="digits"),
    "folder": ImageFolder(source="imagefolder", folder="/x"),
    "mnist": Mnist(source="mnist", folder="/x", limit=20_000),
    "files": Mnist(source="mnist", folder="/x", stored_size=112),
    "random": Synthetic(source="synthetic", samples=64_000),
}
MODELS = {"llama": Model(architecture="llama3_8b", folder="/x")}
SCENARIO = Scenario(question="?", fixed=Fixed(device="cuda"), figures=["step_breakdown"])
ARRAY_S, JPEG_S = (fixed + pixel * 112**2 for fixed, pixel in (LOADING_S["array"], LOADING_S["jpeg"]))
GPU_S = 1 / (4 * IMAGES_PER_S["fp32"])  # of an image of 112 px, a quarter of the pixels of 224


def run(**parameters: Any) -> Run:
    experiment = Experiment(datasets=DATASETS, models=MODELS, scenarios={"a": SCENARIO})
    return Run.of(parameters_of(parameters), experiment)


def cost(limit_min: int = 600, gpus: int = 4, **parameters: Any) -> Cost:
    return estimate_cost([run(**parameters)], limit_min, gpus)


def seconds(**parameters: Any) -> dict[str, float]:
    of = run(**parameters)
    return PROGRAMS[of.parameters.workload].resources(of.parameters, of.inputs).durations_s


def test_a_run_trains_tests_and_is_profiled_and_holds_the_whole_node() -> None:
    # No loading. 2 GPUs: 4 epochs of 25 steps of 10 images; 6400 tests, a third of the work, 3200 each; 13 steps.
    shape = {"dataset": "random", "image_size": 112, "batch_size": 10, "epochs": 4, "steps_per_epoch": 25}
    parts = {"training": 1000 * GPU_S, "tests": 4 * 3200 * GPU_S / 3, "profiled window": 130 * GPU_S}
    assert seconds(strategy="ddp-ds", devices=2, **shape) == pytest.approx(parts)
    hours = (START_S + sum(parts.values()) + TRACE_S) / 3600
    assert astuple(cost(strategy="ddp-ds", devices=2, **shape)) == pytest.approx((hours, 4 * hours, 0))


def test_an_epoch_is_as_long_as_its_data() -> None:
    # 20 000 images on 4 GPUs make 78 steps of 4 x 64, of which ranks of plain ddp each pass over all: 312.
    shape = {"dataset": "mnist", "image_size": 112, "epochs": 1, "devices": 4, "num_workers": 100}
    assert seconds(strategy="ddp-ds", **shape)["training"] == pytest.approx(78 * 64 * GPU_S)
    assert seconds(strategy="ddp", **shape)["training"] == pytest.approx(312 * 64 * GPU_S)
    # A fifth as many tests, 1000 on each.
    assert seconds(strategy="ddp-ds", **shape)["tests"] == pytest.approx(1000 * GPU_S / 3)


def test_a_slow_loader_sets_the_pace_and_lengthens_the_profiled_window() -> None:
    # One worker loads 2 batches ahead: 8 steps are dropped, 10 are recorded; eight load 16 ahead: 64 and 64.
    shape = {"dataset": "mnist", "image_size": 112, "precision": "fp16", "epochs": 1, "steps_per_epoch": 100}
    slow, fast = seconds(num_workers=1, **shape), seconds(num_workers=8, **shape)
    fp16_s = 1 / (4 * IMAGES_PER_S["fp16"])
    assert ARRAY_S > fp16_s > ARRAY_S / 8
    assert slow["training"] == pytest.approx(6400 * ARRAY_S)
    assert slow["profiled window"] == pytest.approx((8 + 10) * 64 * ARRAY_S)
    assert fast["training"] == pytest.approx(6400 * fp16_s)
    assert fast["profiled window"] == pytest.approx((64 + 64) * 64 * fp16_s)


def test_a_process_without_workers_loads_and_trains_in_turn() -> None:
    shape = {"dataset": "files", "image_size": 112, "epochs": 1, "steps_per_epoch": 10}
    assert seconds(**shape)["training"] == pytest.approx(640 * (JPEG_S + GPU_S))
    assert seconds(loader="dali", **shape)["training"] == pytest.approx(640 * GPU_S)


def test_one_process_with_several_gpus_has_the_workers_of_several() -> None:
    shape = {"dataset": "mnist", "image_size": 112, "epochs": 1, "steps_per_epoch": 10, "num_workers": 3, "devices": 4}
    assert seconds(strategy="dp", **shape)["training"] == pytest.approx(640 * max(GPU_S, ARRAY_S / 3))


def test_no_run_takes_longer_than_its_limit_and_its_trace() -> None:
    found = cost(limit_min=3, image_size=4000)
    assert found.wall_h == pytest.approx(3 / 60 + TRACE_S / 3600)


def test_what_leaves_no_trace_needs_no_gpu_or_is_not_known_is_not_counted() -> None:
    shape = {"dataset": "random", "steps_per_epoch": 1, "epochs": 1}
    assert cost(**shape).wall_h - cost(profiler="none", **shape).wall_h == pytest.approx(TRACE_S / 3600)
    assert cost(dataset="folder") == Cost(0, 0, 1)
    assert cost(dataset="folder", steps_per_epoch=1, epochs=1).unknown == 0
    assert cost(device="cpu") == Cost(0, 0, 0)


def test_tuning_takes_as_long_as_its_arithmetic_and_reads_its_weights() -> None:
    # 12 steps of 4 sequences of 1000 tokens on each of 2 GPUs; 4 operations for each of 8.03e9 weights of 2 bytes.
    steps = {"warmup_steps": 2, "steps": 5, "profiled_steps": 3, "batch_size": 2, "gradient_accumulation_steps": 2}
    shape = {"workload": "llm", "model": "llama", "devices": 2, "sequence_length": 1000, **steps}
    step, reading = 4000 * 4 * 8.03e9 / FLOP_PER_S["bf16"], 2 * 8.03e9 / STORAGE_BYTES_PER_S
    expected = {
        "loading weights": LIBRARIES_S + reading, "training": 7 * step, "profiled window": 5 * step,
    }  # fmt: skip
    assert seconds(**shape) == pytest.approx(expected, rel=1e-3)
    # Half as much again to compute what was not kept; all weights take half as much again too.
    again = seconds(**shape, activation_checkpointing=True)
    assert again["training"] == pytest.approx(1.5 * 7 * step, rel=1e-3)
    full = seconds(**shape, technique="full")
    assert full["training"] == pytest.approx(1.5 * 7 * step, rel=1e-3)


def test_preferences_are_two_sequences_and_two_forward_passes() -> None:
    lora, dpo = (seconds(workload="llm", model="llama", technique=name) for name in ("lora", "dpo"))
    assert dpo["training"] == pytest.approx(2 * 1.5 * lora["training"])


def test_of_an_unknown_node_the_largest_run_says_how_many_gpus_it_has() -> None:
    for gpus, held in ((0, 3), (8, 8)):
        found = cost(gpus=gpus, strategy="ddp-ds", devices=6, nodes=2, dataset="random", epochs=1)
        assert found.node_gpu_h == pytest.approx(2 * held * found.wall_h)


def planned(results: Path) -> Plan:
    """Two scenarios on CPUs, each with two configurations; of the first there are two repeats."""
    fixed = Fixed(device="cpu", strategy="ddp")
    many = Scenario(question="?", fixed=fixed, vary=Vary(batch_size=[8, 16]), repeats=2, figures=["step_breakdown"])
    other = Scenario(question="?", fixed=fixed, vary=Vary(image_size=[48, 64]), figures=["step_breakdown"])
    scenarios = {"batches": many, "sizes": other}
    return Plan.make(Experiment(datasets=DATASETS, models=MODELS, scenarios=scenarios, results=str(results)))


def test_runs_take_as_long_as_their_repeats_or_as_others_of_their_scenario(tmp_path: Path) -> None:
    plan = planned(tmp_path)

    def recorded(run: Run, wall_time_s: float, outcome: str = "completed") -> None:
        write_run(tmp_path / "runs", make_run(run.parameters, outcome=outcome, wall_time_s=wall_time_s))

    first, first_again, second, second_again = plan.scenarios["batches"]
    others = plan.scenarios["sizes"]
    missing = [first_again.id, second.id, second_again.id, *(run.id for run in others)]
    assert times_by_earlier_runs(plan, missing) is None
    recorded(others[0], 500.0, "failed")
    assert times_by_earlier_runs(plan, missing) is None, "a failed run may have ended early"
    # Three runs of the scenario as long as its only run.
    recorded(first, 10.0)
    assert times_by_earlier_runs(plan, missing) == EarlierTimes(30.0, 3, 2)
    # One by its own repeat, one by its own.
    recorded(second, 40.0)
    missing.remove(second.id)
    assert times_by_earlier_runs(plan, missing) == EarlierTimes(50.0, 2, 2)
    assert times_by_earlier_runs(plan, []) is None
    (tmp_path / "runs" / second.id / "run.json").write_text("{")
    assert times_by_earlier_runs(plan, missing) == EarlierTimes(20.0, 2, 2), "a damaged record has no time"
