"""Data sets are prepared whole, checked, and shared out as the strategy says."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from conftest import TINY
from multicard.errors import UserError
from multicard.experiment.config import ImageFolder
from multicard.experiment.parameters import VisionParameters
from multicard.vision.data import evaluation_loader, open_split, read_provenance, training_loader
from multicard.vision.prepare import prepare

SIZE = 16


def parameters(**changes: object) -> VisionParameters:
    return VisionParameters(**(TINY | {"steps_per_epoch": None} | changes))


class Numbers(torch.utils.data.Dataset):
    """Items that are their own index."""

    def __init__(self, count: int):
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        return index


def seen(loader: torch.utils.data.DataLoader) -> list[int]:
    return [int(i) for batch in loader for i in batch]


def test_the_digits_are_all_there_once(digits: Path) -> None:
    facts = read_provenance(digits)
    assert facts["train_samples"] + facts["test_samples"] == 1797
    source = load_digits()
    images = np.concatenate([np.load(digits / f"{split}_images.npy") for split in ("train", "test")])
    labels = np.concatenate([np.load(digits / f"{split}_labels.npy") for split in ("train", "test")])
    assert np.bincount(labels).tolist() == np.bincount(source.target).tolist()
    assert images.astype(int).sum() == np.round(source.images * 255 / 16).sum()


def test_an_image_has_three_equal_channels_of_the_asked_size(digits: Path) -> None:
    facts = read_provenance(digits)
    data = open_split(digits, facts, "train", SIZE)
    image, label = data[0]
    assert image.shape == (3, SIZE, SIZE)
    assert image.dtype == torch.float32
    assert torch.equal(image[0], image[1])
    assert label == int(np.load(digits / "train_labels.npy")[0])


def test_training_images_are_normalized(digits: Path) -> None:
    data = open_split(digits, read_provenance(digits), "train", 8)
    pixels = torch.stack([data[i][0] for i in range(len(data))])
    assert pixels.mean().item() == pytest.approx(0, abs=1e-4)
    assert pixels.std().item() == pytest.approx(1, abs=1e-3)


def test_with_a_distributed_sampler_ranks_share_the_data() -> None:
    loaders = [training_loader(Numbers(100), parameters(strategy="ddp-ds", devices=2), rank) for rank in (0, 1)]
    shares = [seen(loader) for loader in loaders]
    assert not set(shares[0]) & set(shares[1])
    # 50 samples a rank, in full batches of 8.
    assert [len(share) for share in shares] == [48, 48]


def test_without_one_every_rank_sees_all_the_data_in_an_order_of_its_own() -> None:
    orders = [seen(training_loader(Numbers(96), parameters(strategy="ddp", devices=2), rank)) for rank in (0, 1)]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(96))
    assert orders[0] != orders[1]


def test_ranks_test_every_sample_once() -> None:
    loaders = [evaluation_loader(Numbers(101), parameters(strategy="ddp", devices=3), rank) for rank in range(3)]
    assert sorted(i for loader in loaders for i in seen(loader)) == list(range(101))


def picture_folder(folder: Path, classes: dict[str, list[str]]) -> Path:
    for split, names in classes.items():
        for number, name in enumerate(names):
            (folder / split / name).mkdir(parents=True)
            for index in range(12):
                colour = (number * 120, 10 * index, 0)
                Image.new("RGB", (20, 30), colour).save(folder / split / name / f"{index}.png")
    return folder


def prepared(folder: Path, out: Path) -> Path:
    prepare("pictures", ImageFolder(source="imagefolder", folder=str(folder)), out)
    return out


def test_a_folder_of_pictures_is_read_where_it_is(tmp_path: Path) -> None:
    folder = picture_folder(tmp_path / "in", {"train": ["cat", "dog"], "test": ["cat", "dog"]})
    out = prepared(folder, tmp_path / "out")
    facts = read_provenance(out)
    assert (facts["train_samples"], facts["test_samples"], facts["classes"]) == (24, 24, ["cat", "dog"])
    image, label = open_split(out, facts, "test", SIZE)[23]
    assert image.shape == (3, SIZE, SIZE)
    assert label == 1
    # Red 120 of 255, with the mean and deviation of red that the folder is normalized by.
    assert image[0].mean().item() == pytest.approx((120 / 255 - 0.485) / 0.229, abs=1e-3)


@pytest.mark.parametrize(
    ("classes", "says"),
    [
        ({"train": ["cat", "dog"], "test": ["cat"]}, "expected the same class folders"),
        ({"train": [], "test": []}, "expected the same class folders"),
    ],
)
def test_a_folder_whose_classes_differ_is_refused(tmp_path: Path, classes: dict[str, list[str]], says: str) -> None:
    folder = picture_folder(tmp_path / "in", classes)
    for split in ("train", "test"):
        (folder / split).mkdir(parents=True, exist_ok=True)
    with pytest.raises(UserError, match=says):
        prepared(folder, tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())


def test_an_empty_class_is_refused(tmp_path: Path) -> None:
    folder = picture_folder(tmp_path / "in", {"train": ["cat", "dog"], "test": ["cat", "dog"]})
    for file in (folder / "test" / "dog").iterdir():
        file.unlink()
    with pytest.raises(UserError, match=r"datasets\.pictures\.folder: no images in .*test/dog"):
        prepared(folder, tmp_path / "out")
