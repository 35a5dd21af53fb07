"""MNIST in Kaggle's forms, a CSV file or JPEG files, is read as it is shipped, and checked."""

import csv
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from preparing import made, numbered, refusal

# Kaggle's CSV


def kaggle_rows(count: int = 30) -> list[list[Any]]:
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
    rows = kaggle_rows(12)
    rows[line - 1][column] = value
    return rows


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (changed_rows(1, 6, "pixel"), ", line 1, column pixel5: missing, expected label and pixel0 to pixel783"),
        (
            [row[1:] for row in kaggle_rows(12)],
            ", line 1, column label: missing, expected label and pixel0 to pixel783",
        ),
        ([[*row, 1] for row in kaggle_rows(12)], ", line 1: found 786 columns, expected 785"),
        ([*kaggle_rows(12)[:5], [1, 2, 3]], ", line 6: found 3 columns, expected 785"),
        (changed_rows(7, 3, "1.5"), ", line 7, column pixel2: found '1.5', expected an integer from 0 to 255"),
        (changed_rows(7, 3, ""), ", line 7, column pixel2: found '', expected an integer from 0 to 255"),
        (changed_rows(7, 3, 256), ", line 7, column pixel2: found 256, expected 0 to 255"),
        (changed_rows(7, 3, -1), ", line 7, column pixel2: found -1, expected 0 to 255"),
        (changed_rows(13, 0, 10), ", line 13, column label: found 10, expected 0 to 9"),
        (changed_rows(13, 0, "NA"), ", line 13, column label: found 'NA', expected an integer from 0 to 9"),
        (kaggle_rows(12)[:1], ": found 0 samples, expected 10 or more"),
        ([], ", line 1, column label: missing, expected label and pixel0 to pixel783"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_bad_csv_is_refused_with_its_place(tmp_path: Path, rows: list[list[Any]], says: str) -> None:
    path = write_rows(tmp_path / "train.csv", rows)
    assert refusal(tmp_path / "out", source="kaggle-mnist", path=str(path)) == f"{path}{says}"


@pytest.mark.parametrize("content", [b"\x00\xff" * 5000, b"PK\x03\x04", b'"label' + b"x" * 200_000])
def test_what_is_no_csv_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "train.csv").write_bytes(content)
    line = refusal(tmp_path / "out", source="kaggle-mnist", path=str(tmp_path / "train.csv"))
    assert line.startswith(f"{tmp_path}/train.csv")


# Kaggle's JPEG files


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


def test_a_digit_without_files_is_refused(tmp_path: Path) -> None:
    root = write_jpegs(tmp_path / "in", 3)
    line = refusal(tmp_path / "out", source="kaggle-mnist", path=str(root))
    assert line == f"{root}/3: found no JPEG file, expected those of the digit 3"


def test_a_folder_that_is_neither_form_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    line = refusal(tmp_path / "out", source="kaggle-mnist", path=str(tmp_path / "in"))
    assert line.endswith("found neither train.csv nor the folders 0 to 9 of JPEG files, expected one of them")


def test_a_jpeg_file_that_is_cut_or_too_large_is_refused(tmp_path: Path) -> None:
    root = write_jpegs(tmp_path / "in")
    file = root / "4" / "img_5.jpg"
    whole = file.read_bytes()
    file.write_bytes(whole[:-30])
    assert refusal(tmp_path / "out", source="kaggle-mnist", path=str(root)).startswith(f"{file}: found no readable")
    Image.new("L", (28, 30)).save(file)
    line = refusal(tmp_path / "out", source="kaggle-mnist", path=str(root))
    assert line == f"{file}: found 28×30 pixels, expected 28×28"
