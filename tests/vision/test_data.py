"""Data sets are prepared completely, checked, and shared out as the strategy says."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from preparing import made
from sklearn.datasets import load_digits

from conftest import refused
from multicard.core.errors import UserError
from multicard.programs.provenance import ImageProvenance, read_unchanged
from multicard.programs.vision.data import open_split

SIZE = 16


def test_the_digits_are_all_there_once_and_normalized(digits: Path) -> None:
    provenance = read_unchanged(digits, ImageProvenance)
    assert provenance.train_samples + provenance.test_samples == 1797
    source = load_digits()
    images = np.concatenate([np.load(digits / f"{split}_images.npy") for split in ("train", "test")])
    labels = np.concatenate([np.load(digits / f"{split}_labels.npy") for split in ("train", "test")])
    assert np.bincount(labels).tolist() == np.bincount(source.target).tolist()
    assert images.astype(int).sum() == np.round(source.images * 255 / 16).sum()

    image, label = open_split(digits, provenance, "train", SIZE)[0]
    assert (image.shape, image.dtype) == ((3, SIZE, SIZE), torch.float32)
    assert torch.equal(image[0], image[1])
    assert label == int(np.load(digits / "train_labels.npy")[0])
    data = open_split(digits, provenance, "train", 8)
    pixels = torch.stack([data[i][0] for i in range(len(data))])
    assert pixels.mean().item() == pytest.approx(0, abs=1e-4)
    assert pixels.std().item() == pytest.approx(1, abs=1e-3)


def picture_folder(folder: Path, classes: dict[str, list[str]] | None = None, count: int = 12) -> Path:
    """Pictures of 20 × 30 pixels, by default in the parts train and test of two classes."""
    for split, names in (classes or {"train": ["cat", "dog"], "test": ["cat", "dog"]}).items():
        for number, name in enumerate(names):
            (folder / split / name).mkdir(parents=True)
            for index in range(count):
                colour = (number * 120, 10 * index, 0)
                Image.new("RGB", (20, 30), colour).save(folder / split / name / f"{index}.png")
    return folder


def prepared(folder: Path, out: Path, **more: Any) -> ImageProvenance:
    return made(out, source="imagefolder", folder=str(folder), **more)


def refusal(folder: Path, out: Path, **more: Any) -> str:
    line = refused(out, lambda: prepared(folder, out, **more))
    assert line.startswith("datasets.mine.folder: ")
    return line


def test_a_folder_of_pictures_is_read_where_it_is(tmp_path: Path) -> None:
    folder = picture_folder(tmp_path / "in")
    out = tmp_path / "out"
    provenance = prepared(folder, out)
    assert (provenance.train_samples, provenance.test_samples, provenance.classes) == (24, 24, ("cat", "dog"))
    image, label = open_split(out, provenance, "test", SIZE)[23]
    assert image.shape == (3, SIZE, SIZE)
    assert label == 1
    # Red 120 of 255, with the mean and deviation of red that the folder is normalized by.
    assert image[0].mean().item() == pytest.approx((120 / 255 - 0.485) / 0.229, abs=1e-3)

    # It may not change afterwards.
    (folder / "train" / "cat" / "0.png").unlink()
    with pytest.raises(UserError, match=r"in/train: found 23 train images of 2 classes, expected the 24 of 2 "):
        open_split(out, provenance, "train", SIZE)
    shutil.rmtree(folder)
    with pytest.raises(UserError, match=r"in/test: cannot be read"):
        open_split(out, provenance, "test", SIZE)


def test_of_test_and_val_the_one_with_class_folders_is_taken(tmp_path: Path) -> None:
    folder = picture_folder(tmp_path / "in", {"train": ["cat", "dog"], "val": ["cat", "dog"]}, count=3)
    (folder / "test").mkdir()
    Image.new("RGB", (20, 30)).save(folder / "test" / "no-label.png")
    out = tmp_path / "out"
    provenance = prepared(folder, out)
    assert (provenance.split, provenance.parts) == ("the folders train and val", {"train": "train", "test": "val"})
    assert {Path(path).parents[1] for path, _ in open_split(out, provenance, "test", SIZE).samples} == {folder / "val"}


def test_of_class_folders_alone_every_tenth_image_is_a_test_image(tmp_path: Path) -> None:
    folder = picture_folder(tmp_path, {"in": ["cat", "train"]}, count=22) / "in"  # a class may be called train
    (folder / "cat" / "1.png").write_text("not an image")
    out = tmp_path / "out"
    provenance = prepared(folder, out, unreadable="skip")
    assert provenance.classes == ("cat", "train")
    assert provenance.split.startswith("of every 10 readable images of a class, in the order of their names, the first")
    names = {
        split: [
            Path(path).relative_to(folder).as_posix() for path, _ in open_split(out, provenance, split, SIZE).samples
        ]
        for split in ("train", "test")
    }
    # In the order of their names: 0, (1), 10 to 19, 2, 20, 21, 3 to 9.
    assert names["test"] == ["cat/0.png", "cat/19.png", "cat/9.png", "train/0.png", "train/18.png", "train/8.png"]
    everything = {f"{label}/{index}.png" for label in ("cat", "train") for index in range(22)}
    assert sorted(names["train"] + names["test"]) == sorted(everything - {"cat/1.png"})
    counts = (len(names["train"]), len(names["test"]))
    assert (provenance.train_samples, provenance.test_samples) == counts == (37, 6)


@pytest.mark.parametrize(
    ("classes", "says"),
    [
        ({"train": ["cat", "dog"]}, "no such folder: {folder}/test"),
        ({"val": ["cat", "dog"]}, "no such folder: {folder}/train"),
        ({"train": ["cat", "dog"], "test": ["cat"]}, "expected the same class folders"),
        ({"train": [], "test": []}, "Couldn't find any class folder in {folder}/train"),
        ({".": []}, "found no folders in {folder}, expected train and test or val, or one per class"),
    ],
)
def test_a_folder_whose_parts_or_classes_do_not_fit_is_refused(
    tmp_path: Path, classes: dict[str, list[str]], says: str
) -> None:
    folder = picture_folder(tmp_path / "in", classes, count=2)
    for part in classes:
        (folder / part).mkdir(parents=True, exist_ok=True)
    assert says.format(folder=folder) in refusal(folder, tmp_path / "out")


def test_a_class_without_enough_images_is_refused(tmp_path: Path) -> None:
    folder, out = picture_folder(tmp_path / "in", count=2), tmp_path / "out"
    dogs = list((folder / "test" / "dog").iterdir())
    for file in dogs:
        file.write_text("not an image")
    assert f"no readable images in {folder}/test/dog" in refusal(folder, out, unreadable="skip")
    for file in dogs:
        file.unlink()
    assert "no valid file for the classes dog" in refusal(folder, out)
    alone = picture_folder(tmp_path, {"alone": ["dog"]}, count=1) / "alone"
    said = f"no readable images in {alone}/dog that could be of the train part"
    assert said in refusal(alone, out)


def test_pictures_that_cannot_be_read_are_refused_or_left_out_when_asked(tmp_path: Path) -> None:
    # 48 pictures, of which one is cut and one is a text; and files that are no images by their names.
    folder, out = picture_folder(tmp_path / "in"), tmp_path / "out"
    noise = np.random.default_rng(0).integers(0, 256, (40, 40, 3), np.uint8)
    cut = folder / "train" / "cat" / "3.jpg"
    Image.fromarray(noise).save(cut)
    cut.with_suffix(".png").unlink()
    cut.write_bytes(cut.read_bytes()[:-500])
    for name in ("test/dog/5.png", "train/dog/Thumbs.db", "train/readme.txt"):
        (folder / name).write_text("not an image")

    line = refusal(folder, out)
    assert f": 2 of 48 images cannot be read, the first is {cut} (" in line and "truncated" in line
    assert line.endswith("; unreadable: skip would leave them out")

    provenance = prepared(folder, out, unreadable="skip")
    assert [image.name for image in provenance.unreadable] == ["train/cat/3.jpg", "test/dog/5.png"]
    assert (provenance.train_samples, provenance.test_samples) == (23, 23)
    for split in ("train", "test"):
        data = open_split(out, provenance, split, SIZE)
        assert len([data[index] for index in range(len(data))]) == len(data.targets) == 23


@pytest.mark.parametrize("kind", [{}, {"progressive": True}, {"subsampling": 0}])
def test_a_jpeg_file_that_is_cut_anywhere_is_found(tmp_path: Path, kind: dict[str, Any]) -> None:
    folder = picture_folder(tmp_path / "in", count=1)
    noise = np.random.default_rng(0).integers(0, 256, (150, 200, 3), np.uint8)
    file = folder / "train" / "cat" / "cut.jpg"
    Image.fromarray(noise).save(file, **kind)
    whole = file.read_bytes()
    for cut in (len(whole) // 20, len(whole) // 2, len(whole) - 100, len(whole) - 2):
        file.write_bytes(whole[:cut])
        assert f"1 of 5 images cannot be read, the first is {file} " in refusal(folder, tmp_path / "out")
    file.write_bytes(whole)
    prepared(folder, tmp_path / "out")


def test_pictures_of_mixed_sizes_and_kinds_in_subfolders_are_read(tmp_path: Path) -> None:
    folder = picture_folder(tmp_path / "in", count=1)
    (folder / "train" / "cat" / "more").mkdir()
    Image.new("L", (9, 200), 7).save(folder / "train" / "cat" / "more" / "grey.JPEG")
    Image.new("RGBA", (300, 5), 7).save(folder / "train" / "cat" / "clear.png")
    Image.new("P", (1, 1), 7).save(folder / "train" / "cat" / "palette.bmp")
    data = open_split(tmp_path / "out", prepared(folder, tmp_path / "out"), "train", SIZE)
    assert [tuple(data[index][0].shape) for index in range(len(data))] == [(3, SIZE, SIZE)] * 5
