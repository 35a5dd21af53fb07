"""MNIST as Kaggle ships it: one CSV file, or a folder of JPEG files per digit."""

import csv
import re
from pathlib import Path
from typing import Any

import numpy as np

from multicard.core.errors import UserError
from multicard.core.files import described
from multicard.core.text import counted
from multicard.workloads.vision.images import in_threads
from multicard.workloads.vision.sources import CLASSES, GrayscaleSplits, Samples, every_nth_is_a_test_image

EDGE = 28
COLUMNS = ["label", *(f"pixel{i}" for i in range(EDGE * EDGE))]
LARGEST = {"label": 9}  # of a pixel: 255
JPEG_SUFFIXES = {".jpeg", ".jpg"}
TEST_EVERY = 10
BYTES = {str(value) for value in range(256)}


def read_kaggle(path: Path) -> GrayscaleSplits:
    """Read train.csv, a folder that holds it, or a folder of JPEG files, whichever `path` is.

    Raises
    ------
    UserError
        If it is none of these, or is damaged.
    """
    if path.is_dir() and (path / "train.csv").is_file():
        path = path / "train.csv"
    samples, facts = _read_folder(path) if path.is_dir() else _read_csv(path)
    if len(samples) < TEST_EVERY:
        raise UserError(f"{path}: found {counted(len(samples), 'sample')}, expected {TEST_EVERY} or more")
    facts["split"] = f"every {TEST_EVERY}th sample is a test image, as Kaggle publishes no labels of its test.csv"
    return every_nth_is_a_test_image(samples, TEST_EVERY, facts)


def _read_csv(path: Path) -> tuple[Samples, dict[str, Any]]:
    """Read the labels and pixels of a CSV file, fast; only a bad file is read again to locate its error."""
    import pyarrow as pa
    import pyarrow.csv

    try:
        problem = _header_error(path)
        if problem is None:
            table = pa.csv.read_csv(
                path,
                convert_options=pa.csv.ConvertOptions(
                    column_types={column: pa.uint8() for column in COLUMNS},
                    include_columns=COLUMNS,
                    null_values=[],
                ),
            )
            labels = table["label"].to_numpy().astype(np.int64)
            if not len(labels) or labels.max() <= LARGEST["label"]:
                pixels = np.empty((len(COLUMNS) - 1, len(labels)), np.uint8)
                for row, column in zip(pixels, COLUMNS[1:], strict=True):
                    row[:] = table[column].to_numpy()
                images = np.ascontiguousarray(pixels.T).reshape(-1, EDGE, EDGE)
                origin = "MNIST in the form of Kaggle's competition Digit Recognizer, a CSV file of the user"
                return Samples(images, labels), {"origin": origin, "source_files": [described(path)]}
            problem = _row_error(path)
    except pa.ArrowInvalid as error:
        problem = _row_error(path) or ": " + " ".join(str(error).split())[:200]
    except (OSError, csv.Error) as error:
        problem = f": cannot be read: {getattr(error, 'strerror', None) or error}"
    raise UserError(f"{path}{problem}")


def _header_error(path: Path) -> str | None:
    """What is wrong with the first line."""
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        header = next(csv.reader(file), [])
    for column in COLUMNS:
        if column not in header:
            return f", line 1, column {column}: missing, expected label and pixel0 to pixel{EDGE * EDGE - 1}"
    if len(header) != len(COLUMNS):
        return f", line 1: found {counted(len(header), 'column')}, expected {len(COLUMNS)}"
    return None


def _row_error(path: Path) -> str | None:
    """Find the first line that is not a label and 784 pixels, and why."""
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        reader = csv.reader(file)
        header = next(reader)
        label = header.index("label")
        for row in filter(None, reader):
            if len(row) == len(header) and row[label] in CLASSES and BYTES.issuperset(row):
                continue  # nearly every row: judged at once
            where = f", line {reader.line_num}"
            if len(row) != len(header):
                return f"{where}: found {counted(len(row), 'column')}, expected {len(header)}"
            for column, value in zip(header, row, strict=True):
                highest = LARGEST.get(column, 255)
                if not re.fullmatch(r"\s*-?[0-9]+\s*", value):
                    return f"{where}, column {column}: found {value[:40]!r}, expected an integer from 0 to {highest}"
                if not 0 <= float(value) <= highest:  # an integer too long for int() has a float
                    return f"{where}, column {column}: found {value.strip()[:40]}, expected 0 to {highest}"
    return None


def _read_folder(path: Path) -> tuple[Samples, dict[str, Any]]:
    """Read JPEG files of 28×28 pixels from one folder per digit, in the order of their numbers."""
    places = [path, path / "trainingSet" / "trainingSet", path / "trainingSet"]
    root = next((place for place in places if any((place / label).is_dir() for label in CLASSES)), None)
    if root is None:
        raise UserError(f"{path}: found neither train.csv nor the folders 0 to 9 of JPEG files, expected one of them")
    files = []
    for label in CLASSES:
        folder = root / label
        images = [f for f in folder.iterdir() if f.suffix.lower() in JPEG_SUFFIXES] if folder.is_dir() else []
        if not images:
            raise UserError(f"{folder}: found no JPEG file, expected those of the digit {label}")
        files += images
    # The copies on Kaggle number the files as the rows of train.csv, across the digits.
    files.sort(key=_in_numerical_order)
    images = np.stack(list(in_threads(_decode, files)))
    labels = np.array([int(file.parent.name) for file in files], np.int64)
    origin = "MNIST in the form of JPEG files, from Kaggle, a folder of the user"
    return Samples(images, labels), {"origin": origin, "folder": str(root.absolute())}


def _in_numerical_order(file: Path) -> tuple[list[int], str, str]:
    return [int(number) for number in re.findall(r"[0-9]+", file.stem)], file.name, file.parent.name


def _decode(file: Path) -> np.ndarray:
    """Gray values of one file, uint8 of shape (28, 28)."""
    from PIL import Image

    try:
        with Image.open(file) as image:
            size, gray = image.size, np.asarray(image.convert("L"))
    except Exception as error:  # decoders of damaged files raise whatever they stumble over
        raise UserError(f"{file}: found no readable image ({error}), expected a JPEG file") from error
    if size != (EDGE, EDGE):
        raise UserError(f"{file}: found {size[0]}×{size[1]} pixels, expected {EDGE}×{EDGE}")
    return gray
