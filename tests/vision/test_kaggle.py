"""MNIST in Kaggle's forms, a CSV file or JPEG files, is read as it is shipped, and checked."""

import csv
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from preparing import made, numbered, refusal


def kaggle_rows(count: int = 12) -> list[list[Any]]:
    images, labels = numbered(count)
    header = ["label", *(f"pixel{i}" for i in range(784))]
    pairs = zip(labels.tolist(), images.reshape(count, -1).tolist(), strict=True)
    return [header, *([label, *pixels] for label, pixels in pairs)]


def write_rows(path: Path, rows: list[list[Any]]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return path


@pytest.mark.parametrize("by_folder", [False, True])
def test_every_tenth_row_of_kaggles_csv_is_a_test_image(tmp_path: Path, by_folder: bool) -> None:
    path = write_rows(tmp_path / "train.csv", kaggle_rows(30))
    out = tmp_path / "out"
    facts = made(out, source="kaggle-mnist", path=str(tmp_path if by_folder else path))
    images, labels = numbered(30)
    tenth = [9, 19, 29]
    assert np.array_equal(np.load(out / "test_images.npy"), images[tenth])
    assert np.array_equal(np.load(out / "train_images.npy"), np.delete(images, tenth, axis=0))
    assert np.array_equal(np.load(out / "train_labels.npy"), np.delete(labels, tenth))
    assert (facts["train_samples"], facts["test_samples"]) == (27, 3)
    assert "every 10th sample is a test image" in facts["split"]
    [source] = facts["source_files"]
    assert source["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()


def changed_rows(line: int, column: int, value: Any) -> list[list[Any]]:
    rows = kaggle_rows()
    rows[line - 1][column] = value
    return rows


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (changed_rows(1, 6, "pixel"), ": found other columns than label and pixel0 to pixel783"),
        ([[*row, 1] for row in kaggle_rows()], ": found other columns"),
        ([kaggle_rows()[0], *([*row, 1] for row in kaggle_rows()[1:])], ": found other columns"),
        ([*kaggle_rows()[:5], [*kaggle_rows()[5], 1]], ": cannot be read as CSV: "),
        (changed_rows(7, 3, "1.5"), ", row 6 below the header, column pixel2: found 1.5, expected an integer from 0"),
        (changed_rows(7, 3, "x"), ", row 6 below the header, column pixel2: found x"),
        (changed_rows(7, 3, ""), ", row 6 below the header, column pixel2: found nan"),
        (changed_rows(7, 3, 256), ", row 6 below the header, column pixel2: found 256, expected an integer"),
        (changed_rows(13, 0, 10), ", row 12 below the header, column label: found 10, expected an integer from 0 to 9"),
        (kaggle_rows()[:1], ": found 0 samples"),
        ([], ": cannot be read as CSV: "),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_bad_csv_is_refused_with_its_place(tmp_path: Path, rows: list[list[Any]], says: str) -> None:
    path = write_rows(tmp_path / "train.csv", rows)
    assert refusal(tmp_path / "out", source="kaggle-mnist", path=str(path)).startswith(f"{path}{says}")


def write_jpegs(root: Path, count: int = 40) -> Path:
    """Images of one gray each, 6 × their number in the set; their labels count from 0 to 9 again and again."""
    for number in range(count):
        file = root / str(number % 10) / f"img_{number + 1}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (28, 28), 6 * number).save(file)
    return root


@pytest.mark.parametrize("place", ["", "trainingSet/trainingSet"])
def test_kaggles_jpeg_files_are_taken_in_the_order_of_their_numbers(tmp_path: Path, place: str) -> None:
    write_jpegs(tmp_path / "in" / place)
    out = tmp_path / "out"
    facts = made(out, source="kaggle-mnist", path=str(tmp_path / "in"))
    assert (facts["train_samples"], facts["test_samples"]) == (36, 4)
    assert np.load(out / "test_labels.npy").tolist() == [9, 9, 9, 9]
    # A flat image survives JPEG as it is, up to a rounding.
    assert np.abs(np.load(out / "test_images.npy").mean((1, 2)) - [54, 114, 174, 234]).max() <= 1


def test_a_folder_that_is_no_whole_set_of_jpeg_files_is_refused(tmp_path: Path) -> None:
    def said(folder: Path) -> str:
        return refusal(tmp_path / "out", source="kaggle-mnist", path=str(folder))

    empty = tmp_path / "empty"
    empty.mkdir()
    assert "found neither train.csv nor the folders 0 to 9" in said(empty)
    few = write_jpegs(tmp_path / "few", 3)
    assert said(few).startswith(f"{few}/3: found no JPEG file")
    root = write_jpegs(tmp_path / "whole")
    file = root / "4" / "img_5.jpg"
    file.write_bytes(file.read_bytes()[:-30])
    assert said(root).startswith(f"{file}: found no readable")
    Image.new("L", (28, 30)).save(file)
    assert said(root) == f"{file}: found 28×30 pixels, expected 28×28"
