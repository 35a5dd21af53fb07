"""The estimate of GPU hours, against one worked out by hand."""

import pytest

from multicard.experiment.config import Digits, ImageFolder
from multicard.experiment.estimate import IMAGES_PER_S, START_S, gpu_hours
from multicard.experiment.parameters import VisionParameters
from multicard.experiment.runs import Run, run_id

DATASETS = {"digits": Digits(source="digits"), "folder": ImageFolder(source="imagefolder", folder="/x")}


def hours(limit_min: int = 600, **parameters: object) -> tuple[float, int]:
    chosen = VisionParameters(**parameters)
    return gpu_hours([Run(run_id(chosen), chosen)], DATASETS, limit_min)


def test_cards_share_the_images_and_all_count() -> None:
    # 100 steps of 10 images on each of 2 cards, at a quarter of the pixels: twice 1000 images at 4 times the speed.
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


def test_runs_on_the_cpu_cost_no_gpu_hours() -> None:
    assert hours(device="cpu") == (0, 0)
