"""MNIST as Kaggle ships it: one CSV file, or a folder of JPEG files per digit."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from multicard.core.errors import UserError, in_one_line
from multicard.core.files import described
from multicard.core.text import counted, natural
from multicard.workloads.vision.images import in_threads
from multicard.workloads.vision.sources import CLASSES, GrayscaleSplits, Samples, every_nth_is_a_test_image

EDGE = 28
COLUMNS = ["label", *(f"pixel{i}" for i in range(EDGE * EDGE))]
LARGEST = np.array([9] + [255] * EDGE * EDGE)  # in each column
JPEG_SUFFIXES = {".jpeg", ".jpg"}
TEST_EVERY = 10


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
    """Read the labels and pixels of a CSV file."""
    try:
        table = pd.read_csv(path, encoding="utf-8-sig", encoding_errors="replace")
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as CSV: {in_one_line(error)}") from error
    # Where lines have a value more than the first one, pandas takes their first value for an index.
    if list(table.columns) != COLUMNS or not isinstance(table.index, pd.RangeIndex):
        raise UserError(f"{path}: found other columns than label and pixel0 to pixel{EDGE * EDGE - 1}")
    numbers = table.apply(pd.to_numeric, errors="coerce").to_numpy(float)
    bad = np.argwhere(~((numbers >= 0) & (numbers <= LARGEST) & (numbers % 1 == 0)))
    if len(bad):
        row, column = bad[0]
        raise UserError(
            f"{path}, row {row + 1} below the header, column {COLUMNS[column]}: found "
            f"{str(table.iat[row, column])[:40]}, expected an integer from 0 to {LARGEST[column]}"
        )
    images = numbers[:, 1:].astype(np.uint8).reshape(-1, EDGE, EDGE)
    origin = "MNIST in the form of Kaggle's competition Digit Recognizer, a CSV file of the user"
    facts = {"origin": origin, "source_files": [described(path)]}
    return Samples(images, numbers[:, 0].astype(np.int64)), facts


def _read_folder(path: Path) -> tuple[Samples, dict[str, Any]]:
    """Read JPEG files of 28×28 pixels from one folder per digit, in the order of their numbers."""
    places = [path, path / "trainingSet" / "trainingSet", path / "trainingSet"]
    root = next((place for place in places if any((place / label).is_dir() for label in CLASSES)), None)
    if root is None:
        raise UserError(f"{path}: found neither train.csv nor the folders 0 to 9 of JPEG files, expected one of them")
    files = []
    for label in CLASSES:
        images = [file for file in root.glob(f"{label}/*") if file.suffix.lower() in JPEG_SUFFIXES]
        if not images:
            raise UserError(f"{root / label}: found no JPEG file, expected those of the digit {label}")
        files += images
    # The copies on Kaggle number the files as the rows of train.csv, across the digits.
    files.sort(key=lambda file: natural(file.name))
    images = np.stack(list(in_threads(_decode, files)))
    labels = np.array([int(file.parent.name) for file in files], np.int64)
    origin = "MNIST in the form of JPEG files, from Kaggle, a folder of the user"
    return Samples(images, labels), {"origin": origin, "folder": str(root.absolute())}


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
