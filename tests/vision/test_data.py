"""Data sets are prepared whole, checked, and shared out as the strategy says."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from multicard.errors import UserError
from multicard.experiment.config import ImageFolder
from multicard.vision import pictures
from multicard.vision.data import open_split, read_provenance
from multicard.vision.prepare import prepare

SIZE = 16


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


def picture_folder(folder: Path, classes: dict[str, list[str]]) -> Path:
    for split, names in classes.items():
        for number, name in enumerate(names):
            (folder / split / name).mkdir(parents=True)
            for index in range(12):
                colour = (number * 120, 10 * index, 0)
                Image.new("RGB", (20, 30), colour).save(folder / split / name / f"{index}.png")
    return folder


def prepared(folder: Path, out: Path, **more: Any) -> Path:
    prepare("pictures", ImageFolder(source="imagefolder", folder=str(folder), **more), out)
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


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """48 pictures, of which one is cut and one is a text; and files that are no pictures by their names."""
    folder = picture_folder(tmp_path / "in", {"train": ["cat", "dog"], "test": ["cat", "dog"]})
    noise = np.random.default_rng(0).integers(0, 256, (40, 40, 3), np.uint8)
    cut = folder / "train" / "cat" / "3.jpg"
    Image.fromarray(noise).save(cut)
    cut.with_suffix(".png").unlink()
    cut.write_bytes(cut.read_bytes()[:-500])
    (folder / "test" / "dog" / "5.png").write_text("no picture")
    (folder / "train" / "dog" / "Thumbs.db").write_text("no picture")
    (folder / "train" / "readme.txt").write_text("no picture")
    return folder


def test_pictures_that_cannot_be_read_are_refused(damaged: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        prepared(damaged, tmp_path / "out")
    [line] = str(caught.value).splitlines()
    assert line.startswith(
        f"datasets.pictures.folder: 2 of 48 images cannot be read, the first is {damaged}/train/cat/3.jpg ("
    )
    assert "truncated" in line
    assert line.endswith("; unreadable: skip would leave them out")
    assert not list((tmp_path / "out").iterdir())


def test_pictures_that_cannot_be_read_are_left_out_when_asked(damaged: Path, tmp_path: Path) -> None:
    out = prepared(damaged, tmp_path / "out", unreadable="skip")
    facts = read_provenance(out)
    assert [entry["name"] for entry in facts["unreadable"]] == ["train/cat/3.jpg", "test/dog/5.png"]
    assert (facts["train_samples"], facts["test_samples"]) == (23, 23)
    for split in ("train", "test"):
        data = open_split(out, facts, split, SIZE)
        assert len([data[index] for index in range(len(data))]) == len(data.targets) == 23


def test_of_a_very_large_folder_only_the_headers_are_read(
    damaged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pictures, "DECODE_AT_MOST", 47)
    facts = read_provenance(prepared(damaged, tmp_path / "out", unreadable="skip"))
    # The header of the cut picture is whole.
    assert [entry["name"] for entry in facts["unreadable"]] == ["test/dog/5.png"]
    assert facts["checked"] == "the header of every image"


def test_a_class_of_which_nothing_can_be_read_is_refused(tmp_path: Path) -> None:
    folder = picture_folder(tmp_path / "in", {"train": ["cat", "dog"], "test": ["cat", "dog"]})
    for file in (folder / "test" / "dog").iterdir():
        file.write_text("no picture")
    with pytest.raises(UserError, match=r"datasets\.pictures\.folder: no readable images in .*test/dog"):
        prepared(folder, tmp_path / "out", unreadable="skip")


def test_pictures_of_mixed_sizes_and_kinds_in_subfolders_are_read(tmp_path: Path) -> None:
    folder = picture_folder(tmp_path / "in", {"train": ["cat", "dog"], "test": ["cat", "dog"]})
    (folder / "train" / "cat" / "more").mkdir()
    Image.new("L", (9, 200), 7).save(folder / "train" / "cat" / "more" / "grey.JPEG")
    Image.new("RGBA", (300, 5), 7).save(folder / "train" / "cat" / "clear.png")
    Image.new("P", (1, 1), 7).save(folder / "train" / "cat" / "palette.bmp")
    out = prepared(folder, tmp_path / "out")
    data = open_split(out, read_provenance(out), "train", SIZE)
    assert len(data) == 27
    assert {tuple(data[index][0].shape) for index in range(27)} == {(3, SIZE, SIZE)}


def test_a_folder_that_changed_since_is_refused(tmp_path: Path) -> None:
    folder = picture_folder(tmp_path / "in", {"train": ["cat", "dog"], "test": ["cat", "dog"]})
    out = prepared(folder, tmp_path / "out")
    facts = read_provenance(out)
    (folder / "train" / "cat" / "0.png").unlink()
    with pytest.raises(UserError, match=r"in/train: found 23 images of 2 classes, expected the 24 of 2 classes"):
        open_split(out, facts, "train", SIZE)
    shutil.rmtree(folder)
    with pytest.raises(UserError, match=r"in/test: cannot be read"):
        open_split(out, facts, "test", SIZE)
