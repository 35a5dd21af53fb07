"""The estimate of GPU hours, against one worked out by hand."""

import pytest

from multicard.experiment.config import Experiment, Fixed, Scenario
from multicard.experiment.datasets import Digits, ImageFolder
from multicard.experiment.estimate import START_S, gpu_hours
from multicard.experiment.models import Model
from multicard.experiment.runs import Run
from multicard.experiment.workload import parameters_of
from multicard.workloads.llm.workload import FLOPS
from multicard.workloads.vision.workload import IMAGES_PER_S

DATASETS = {"digits": Digits(source="digits"), "folder": ImageFolder(source="imagefolder", folder="/x")}
MODELS = {"llama": Model(architecture="llama3_8b", folder="/x")}
SCENARIO = Scenario(question="?", fixed=Fixed(device="cuda"), figures=["step_breakdown"])


def hours(limit_min: int = 600, **parameters: object) -> tuple[float, int]:
    experiment = Experiment(datasets=DATASETS, models=MODELS, scenarios={"a": SCENARIO})
    return gpu_hours([Run.of(parameters_of(parameters), experiment)], limit_min)


def test_gpus_share_the_images_and_all_count() -> None:
    # 100 steps of 10 images on each of 2 GPUs, at a quarter of the pixels: twice 1000 images at 4 times the speed.
    found, unknown = hours(strategy="ddp-ds", devices=2, batch_size=10, epochs=4, steps_per_epoch=25, image_size=112)
    assert found == pytest.approx(2 * (START_S + 1000 / (4 * IMAGES_PER_S["fp32"])) / 3600)
    assert unknown == 0


def test_an_epoch_is_as_long_as_its_data() -> None:
    # 1438 digits make 22 batches of 64; fp64 at 224 px.
    found, _ = hours(precision="fp64", image_size=224, epochs=1)
    assert found == pytest.approx((START_S + 22 * 64 / IMAGES_PER_S["fp64"]) / 3600)


def test_no_run_takes_longer_than_its_limit() -> None:
    assert hours(limit_min=3, image_size=4000)[0] == pytest.approx(3 / 60)


def test_runs_of_unknown_length_are_counted_apart() -> None:
    assert hours(dataset="folder") == (0, 1)
    assert hours(dataset="folder", steps_per_epoch=1, epochs=1)[1] == 0


def test_tuning_takes_as_long_as_its_arithmetic() -> None:
    # 10 steps of 4 sequences of 1000 tokens on each of 2 GPUs; 4 operations for each of 8.03e9 weights.
    steps = {"warmup_steps": 2, "steps": 5, "profiled_steps": 3, "batch_size": 2, "gradient_accumulation_steps": 2}
    found, _ = hours(workload="llm", model="llama", devices=2, sequence_length=1000, **steps)
    assert found == pytest.approx(2 * (START_S + 40_000 * 4 * 8.03e9 / FLOPS["bf16"]) / 3600, rel=1e-3)


def test_preferences_are_two_sequences_and_two_forward_passes() -> None:
    lora, _ = hours(workload="llm", model="llama")
    dpo, _ = hours(workload="llm", model="llama", technique="dpo")
    start = START_S / 3600
    assert dpo - start == pytest.approx(2 * 1.5 * (lora - start))


def test_runs_on_the_cpu_cost_no_gpu_hours() -> None:
    assert hours(device="cpu") == (0, 0)
