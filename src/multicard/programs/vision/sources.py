"""Read and check sets of small grayscale images: scikit-learn's digits, MNIST's files or Kaggle's."""

import fcntl
import gzip
import hashlib
import http.client
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NotRequired, TypedDict

import numpy as np

from multicard.core.errors import UserError, in_one_line
from multicard.core.tables import read_csv
from multicard.core.text import counted
from multicard.programs.datasets import Mnist
from multicard.programs.provenance import PreparedFile

CLASSES = [str(digit) for digit in range(10)]

# First four bytes of an IDX file: two zeros, 8 for unsigned bytes, and the number of dimensions.
IMAGES_MAGIC, LABELS_MAGIC = 0x00000803, 0x00000801

EDGE = 28  # edge length in pixels of MNIST's images

# Columns of Kaggle's train.csv, and the largest value of each.
COLUMNS = ["label", *(f"pixel{i}" for i in range(EDGE * EDGE))]
LARGEST = np.array([9] + [255] * EDGE * EDGE)
TEST_EVERY = 10  # every tenth of Kaggle's samples is a test image

# MD5 digests of MNIST's published files after unpacking, because the same content can be packed in many ways.
# torchvision lists the digests of the packed files instead; several other projects list both.
MNIST_MD5 = {
    "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
}


@dataclass(frozen=True)
class Samples:
    """Images of one split, uint8 of shape (N, H, W), and their classes, int64 of shape (N,)."""

    images: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def first(self, count: int) -> "Samples":
        """Return the first `count` samples, or all where there are fewer."""
        return Samples(self.images[:count], self.labels[:count])


class ImageOrigin(TypedDict):
    """The fields of `ImageProvenance` that say where images come from."""

    origin: str
    split: str
    verified: NotRequired[bool]
    folder: NotRequired[str]
    source_files: NotRequired[tuple[PreparedFile, ...]]


@dataclass(frozen=True)
class GrayscaleSplits:
    """Both splits of a set."""

    train: Samples
    test: Samples
    origin: ImageOrigin


def every_nth_is_a_test_image(samples: Samples, n: int, origin: ImageOrigin) -> GrayscaleSplits:
    """Return the splits of a set that has no test part: samples n, 2n, … are test images."""
    position_among_n = np.arange(len(samples)) % n
    is_test = position_among_n == n - 1
    train = Samples(samples.images[~is_test], samples.labels[~is_test])
    test = Samples(samples.images[is_test], samples.labels[is_test])
    return GrayscaleSplits(train, test, origin)


def read_digits() -> GrayscaleSplits:
    """Read scikit-learn's handwritten digits."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    # The 17 gray levels, from 0 to 16, stay distinct.
    images = np.round(digits.images * (255 / 16)).astype(np.uint8)
    origin: ImageOrigin = {
        "origin": "scikit-learn's copy of the test set of the UCI Optical Recognition of Handwritten Digits "
        "data (E. Alpaydin, C. Kaynak, 1998; doi 10.24432/C50P49; CC BY 4.0)",
        "split": "every fifth image is a test image",
    }
    return every_nth_is_a_test_image(Samples(images, digits.target.astype(np.int64)), 5, origin)


def read_mnist(dataset: Mnist, dataset_name: str, published: Mapping[str, str] = MNIST_MD5) -> GrayscaleSplits:
    """Read MNIST from its four IDX files. If one is missing and `download` is set, download all files first.

    `published`: MD5 digest of each unpacked file. If a file has another digest, all four are used as they are, but the
    returned `origin` says that they are not MNIST's.

    Raises `UserError` if a file is missing or cannot be fetched or read, or if the files do not hold 28 × 28 images and
    their labels.
    """
    if dataset.download and None in dataset.files().values():
        _download_mnist(dataset, dataset_name)
    paths = dataset.files()
    files = {name: path for name, path in paths.items() if path}
    missing = [name for name in paths if name not in files]
    if missing:
        raise UserError(f"datasets.{dataset_name}.folder: {dataset.folder} does not contain {', '.join(missing)}")
    contents = {name: _unpacked(path) for name, path in files.items()}
    train = _mnist_samples("train", files, contents)
    test = _mnist_samples("t10k", files, contents)
    verified = all(hashlib.md5(contents[name]).hexdigest() == published[name] for name in files)
    words = "a folder of the user, with IDX files that are not MNIST's as published"
    if verified:
        words = "MNIST (Y. LeCun, C. Cortes, C. J. C. Burges), in the IDX files of a folder of the user"
    origin: ImageOrigin = {
        "origin": words,
        "verified": verified,
        "split": "as the files are named",
        "folder": str(Path(dataset.folder).absolute()),
        "source_files": tuple(PreparedFile.of(path) for path in files.values()),
    }
    return GrayscaleSplits(train, test, origin)


def _mnist_samples(prefix: str, files: dict[str, Path], contents: dict[str, bytes]) -> Samples:
    """Return images and labels of one of MNIST's parts, checked against each other."""
    image_name = f"{prefix}-images-idx3-ubyte"
    image_file = files[image_name]
    images = _idx_values(image_file, contents[image_name], IMAGES_MAGIC)
    label_name = f"{prefix}-labels-idx1-ubyte"
    label_file = files[label_name]
    labels = _idx_values(label_file, contents[label_name], LABELS_MAGIC)
    shape = images.shape[1:]
    if shape != (EDGE, EDGE):
        raise UserError(f"{image_file}: found images of shape {shape}, expected {(EDGE, EDGE)}")
    largest = labels.max()
    if len(labels) != len(images) or largest > 9:
        actual = f"found {len(labels)} labels up to {largest}"
        raise UserError(f"{label_file}: {actual}, expected {len(images)} from 0 to 9")
    return Samples(images, labels.astype(np.int64))


def read_kaggle(path: Path) -> GrayscaleSplits:
    """Read MNIST from Kaggle's train.csv; `path`: the file, or the folder that holds it.

    Raises `UserError` if the file is missing, has other columns or values, or fewer than `TEST_EVERY` samples.
    """
    path = path / "train.csv" if path.is_dir() else path
    table = read_csv(path, form="CSV of whole numbers", dtype=np.int64)
    if list(table.columns) != COLUMNS:
        raise UserError(f"{path}: found other columns than label and pixel0 to pixel{EDGE * EDGE - 1}")
    if len(table) < TEST_EVERY:
        raise UserError(f"{path}: found {counted(len(table), 'sample')}, expected {TEST_EVERY} or more")
    numbers = table.to_numpy()
    if ((numbers < 0) | (numbers > LARGEST)).any():
        raise UserError(f"{path}: found other values than labels from 0 to 9 and pixels from 0 to 255")
    origin: ImageOrigin = {
        "origin": "MNIST in the form of Kaggle's competition Digit Recognizer, a CSV file of the user",
        "source_files": (PreparedFile.of(path),),
        "split": f"every {TEST_EVERY}th sample is a test image, as Kaggle publishes no labels of its test.csv",
    }
    images = numbers[:, 1:].astype(np.uint8).reshape(-1, EDGE, EDGE)
    return every_nth_is_a_test_image(Samples(images, numbers[:, 0]), TEST_EVERY, origin)


def _download_mnist(dataset: Mnist, name: str) -> None:
    """Let torchvision download MNIST into the folder's MNIST/raw and verify the checksums.

    Several data sets may be prepared from one folder at the same time: the first downloads, the others wait for it and
    then find the files. Raises `UserError` if the download fails.
    """
    from torchvision.datasets import MNIST

    folder = Path(dataset.folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / ".download.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if None in dataset.files().values():
                MNIST(str(folder), download=True)
    except (OSError, RuntimeError, http.client.HTTPException) as error:
        raise UserError(f"datasets.{name}.download: cannot fetch MNIST into {folder}: {in_one_line(error)}") from error


def _unpacked(path: Path) -> bytes:
    try:
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read: {in_one_line(error)}; expected a complete IDX file") from error


def _idx_values(path: Path, content: bytes, magic: int) -> np.ndarray:
    """Return the values of an IDX file of unsigned bytes, in the shape that the file states.

    The format (http://yann.lecun.com/exdb/mnist/): a magic number of 4 bytes, the size of each dimension as a
    big-endian 32-bit integer, and the values. The last byte of the magic number is the number of dimensions.

    Raises `UserError` if the content has another magic number, or not as many values as its shape, or none.
    """
    dimensions = magic & 0xFF
    start = 4 + 4 * dimensions
    shape = [int.from_bytes(content[offset : offset + 4], "big") for offset in range(4, start, 4)]
    found_magic = content[:4]
    is_of_kind = found_magic == magic.to_bytes(4, "big")
    is_complete = len(content) == start + math.prod(shape)
    has_values = len(content) > start
    if not (is_of_kind and is_complete and has_values):
        what = "images" if magic == IMAGES_MAGIC else "labels"
        raise UserError(
            f"{path}: found {len(content)} bytes from {found_magic.hex() or 'none'} on, expected an IDX file of "
            f"{what}: {magic:08x}, its shape and all its values"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)
