"""Prepare a data set of images for training, with checksums and a statement of its origin."""

import shutil
from pathlib import Path

import numpy as np

from multicard.core.errors import UserError
from multicard.core.files import atomic_write
from multicard.programs.datasets import Dataset, Digits, ImageFolder, KaggleMnist, Mnist, Synthetic
from multicard.programs.provenance import ImageProvenance, PreparedFile, Split, write_provenance
from multicard.programs.vision.images import SPLITS, index_folder, write_tree
from multicard.programs.vision.sources import CLASSES, GrayscaleSplits, Samples, read_digits, read_kaggle, read_mnist


def prepare(name: str, dataset: Dataset, folder: Path) -> None:
    """Prepare the data set `name` in `folder`; provenance.json is written last and lists the files.

    Raises `UserError` if files of the user are missing or not valid.
    """
    if missing := dataset.missing_files():
        raise UserError(f"datasets.{name}.{missing}")
    folder.mkdir(parents=True, exist_ok=True)
    match dataset:
        case ImageFolder():
            provenance = index_folder(dataset, name)
        case Synthetic():
            provenance = _describe_synthetic(name, dataset)
        case Digits():
            provenance = _write_splits(read_digits(), name, dataset, folder)
        case Mnist():
            provenance = _write_splits(read_mnist(dataset, name), name, dataset, folder)
        case KaggleMnist():
            provenance = _write_splits(read_kaggle(Path(dataset.path)), name, dataset, folder)
    write_provenance(folder, provenance)


def _write_splits(
    splits: GrayscaleSplits, name: str, dataset: Digits | Mnist | KaggleMnist, folder: Path
) -> ImageProvenance:
    """Write both splits of the data set `name`, as arrays or as image files, and return its provenance."""
    train, test = splits.train, splits.test
    if dataset.limit:
        train, test = train.first(dataset.limit), test.first(max(1, dataset.limit // 5))
    files: list[PreparedFile] = []
    for split, samples in zip(SPLITS, (train, test), strict=True):
        # An earlier preparation may have been interrupted and have left files.
        shutil.rmtree(folder / split, ignore_errors=True)
        if dataset.stored_size:
            files.append(write_tree(folder, split, samples, dataset.stored_size))
        else:
            files += _write_arrays(folder, split, samples)
    mean, deviation = _statistics(train.images)
    return ImageProvenance(
        dataset=name,
        source=dataset.source,
        **splits.origin,
        limit=dataset.limit,
        stored_size=dataset.stored_size,
        classes=tuple(CLASSES),
        train_samples=len(train),
        test_samples=len(test),
        # Statistics of the small images: upsampling keeps the mean and lowers the deviation a little.
        mean=_for_each_channel(round(mean, 6)),
        std=_for_each_channel(round(deviation, 6)),
        files=tuple(files),
    )


def _for_each_channel(value: float) -> tuple[float, float, float]:
    return value, value, value


def _write_arrays(folder: Path, split: Split, samples: Samples) -> list[PreparedFile]:
    entries = []
    for name, values in (("images", samples.images), ("labels", samples.labels)):
        path = folder / f"{split}_{name}.npy"
        with atomic_write(path) as temporary:
            np.save(temporary, values, allow_pickle=False)
        entries.append(PreparedFile.of(path))
    return entries


def _statistics(images: np.ndarray) -> tuple[float, float]:
    """Return mean and standard deviation of the pixels, divided by 255; if all pixels are equal, a deviation of 1.

    >>> _statistics(np.array([[0, 255]], np.uint8)), _statistics(np.array([[51, 51]], np.uint8))
    ((0.5, 0.5), (0.2, 1.0))
    """
    counts = np.bincount(images.ravel(), minlength=256)
    levels = np.arange(256) / 255
    mean = float(np.average(levels, weights=counts))
    variance = np.average((levels - mean) ** 2, weights=counts)
    # Normalizing divides by the deviation, which therefore must not be 0.
    return mean, float(np.sqrt(variance)) or 1.0


def _describe_synthetic(name: str, dataset: Synthetic) -> ImageProvenance:
    return ImageProvenance(
        dataset=name,
        source=dataset.source,
        origin="random numbers, made when they are needed",
        split="a tenth as many test images as training images",
        classes=tuple(str(label) for label in range(dataset.classes)),
        train_samples=dataset.samples,
        test_samples=max(1, dataset.samples // 10),
        mean=_for_each_channel(0.0),
        std=_for_each_channel(1.0),
        files=(),
    )
