"""Sets of small grey images, read whole and checked: scikit-learn's digits and MNIST in its own files."""

import fcntl
import gzip
import http.client
import math
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from multicard.errors import UserError
from multicard.experiment.config import Mnist
from multicard.files import described

CLASSES = [str(digit) for digit in range(10)]

# First four bytes of an IDX file: two zeros, 8 for unsigned bytes, and the number of dimensions.
IMAGES_MAGIC, LABELS_MAGIC = 0x00000803, 0x00000801


@dataclass(frozen=True)
class Samples:
    """Images of one split, uint8 of shape (N, H, W), and their classes, int64 of shape (N,)."""

    images: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def first(self, count: int) -> "Samples":
        """The first `count` samples, or all where there are fewer."""
        return Samples(self.images[:count], self.labels[:count])


@dataclass(frozen=True)
class GreySet:
    """Both splits of a set, and what its provenance says of where they come from."""

    train: Samples
    test: Samples
    facts: dict[str, Any]


def every_nth_is_a_test_image(samples: Samples, n: int, facts: dict[str, Any]) -> GreySet:
    """Split a set that has no test part: samples n, 2n, … are test images."""
    is_test = np.arange(len(samples)) % n == n - 1
    train, test = (Samples(samples.images[chosen], samples.labels[chosen]) for chosen in (~is_test, is_test))
    return GreySet(train, test, facts)


def read_digits() -> GreySet:
    """Scikit-learn's handwritten digits."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = np.round(digits.images * (255 / 16)).astype(np.uint8)  # 17 grey levels, kept apart
    facts = {
        "origin": "scikit-learn's copy of the test set of the UCI Optical Recognition of Handwritten Digits "
        "data (E. Alpaydin, C. Kaynak, 1998; doi 10.24432/C50P49; CC BY 4.0)",
        "split": "every fifth image is a test image",
    }
    return every_nth_is_a_test_image(Samples(images, digits.target.astype(np.int64)), 5, facts)


def read_mnist(dataset: Mnist, name: str) -> GreySet:
    """MNIST from its four IDX files, fetched first where that is wanted and needed.

    Raises
    ------
    UserError
        If files are missing, cannot be fetched, or are not what MNIST's files are.
    """
    if dataset.download and None in dataset.files().values():
        _download_mnist(dataset, name)
    files = {short: path for short, path in dataset.files().items() if path}
    parts = {}
    for split, prefix in (("train", "train"), ("test", "t10k")):
        image_file, label_file = files[f"{prefix}-images-idx3-ubyte"], files[f"{prefix}-labels-idx1-ubyte"]
        images, labels = _read_idx(image_file, IMAGES_MAGIC), _read_idx(label_file, LABELS_MAGIC)
        if len(labels) != len(images):
            raise UserError(f"{label_file}: found {len(labels)} labels, expected {len(images)} as {image_file} has")
        if labels.max() > 9:
            where = int(np.argmax(labels > 9)) + 1
            raise UserError(f"{label_file}: found the label {labels[where - 1]} of sample {where}, expected 0 to 9")
        parts[split] = Samples(images, labels.astype(np.int64))
    return GreySet(
        **parts,
        facts={
            "origin": "MNIST (Y. LeCun, C. Cortes, C. J. C. Burges), in the IDX files of a folder of the user",
            "split": "as MNIST is published",
            "folder": str(Path(dataset.folder).absolute()),
            "source_files": [described(path) for path in files.values()],
        },
    )


def _download_mnist(dataset: Mnist, name: str) -> None:
    """Let torchvision fetch MNIST into the folder's MNIST/raw, with the checksums it knows.

    Several data sets may be made of one folder at the same time: one of them fetches, the others wait.
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
        reason = " ".join(str(error).split())
        raise UserError(f"datasets.{name}.download: cannot fetch MNIST into {folder}: {reason}") from error


def _read_idx(path: Path, magic: int) -> np.ndarray:
    """Values of an IDX file of unsigned bytes (http://yann.lecun.com/exdb/mnist/), of the file's own shape."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        found = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise UserError(f"{path}: cannot be read: {found}; expected a whole IDX file") from error
    found = int.from_bytes(content[:4], "big")
    kind = "images" if magic == IMAGES_MAGIC else "labels"
    if len(content) < 4 or found != magic:
        raise UserError(f"{path}: found the first bytes {content[:4].hex() or 'none'}, expected {magic:08x} ({kind})")
    start = 4 + 4 * (magic & 0xFF)
    shape = [int.from_bytes(content[at : at + 4], "big") for at in range(4, start, 4)]
    expected = start + math.prod(shape)
    if len(content) != max(start, expected):
        wanted = f"{expected} for {'×'.join(str(n) for n in shape)}" if len(content) >= start else f"{start} or more"
        raise UserError(f"{path}: found {len(content)} bytes, expected {wanted} {kind}")
    if expected == start:
        raise UserError(f"{path}: found no {kind}, expected some")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)
