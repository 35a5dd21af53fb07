"""MNIST in Kaggle's CSV file is read as it is shipped, and checked."""

import csv
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
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
        ([*kaggle_rows()[:5], [*kaggle_rows()[5], 1]], ": cannot be read as CSV of whole numbers: "),
        *((changed_rows(7, 3, value), ": cannot be read as CSV of whole numbers: ") for value in ("1.5", "x", "")),
        (changed_rows(7, 3, 256), ": found other values than labels from 0 to 9 and pixels from 0 to 255"),
        (changed_rows(13, 0, 10), ": found other values than labels from 0 to 9"),
        (kaggle_rows()[:1], ": found 0 samples"),
        ([], ": cannot be read as CSV of whole numbers: "),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_bad_csv_is_refused_with_its_place(tmp_path: Path, rows: list[list[Any]], says: str) -> None:
    path = write_rows(tmp_path / "train.csv", rows)
    assert refusal(tmp_path / "out", source="kaggle-mnist", path=str(path)).startswith(f"{path}{says}")
