"""Prepare a data set of images for training, with checksums and a statement of its origin."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np

from multicard.core.errors import UserError
from multicard.core.files import atomic_write, described, write_json
from multicard.core.prepared import PROVENANCE
from multicard.experiment.datasets import Dataset, Digits, ImageFolder, KaggleMnist, Mnist, Synthetic
from multicard.workloads.vision.images import SPLITS, index_folder, write_tree
from multicard.workloads.vision.sources import CLASSES, GrayscaleSplits, Samples, read_digits, read_kaggle, read_mnist


def prepare(name: str, dataset: Dataset, folder: Path) -> None:
    """Prepare the data set `name` in `folder`; provenance.json is written last and lists the files.

    Raises `UserError` if files of the user are missing or not valid.
    """
    if missing := dataset.missing_files():
        raise UserError(f"datasets.{name}.{missing}")
    folder.mkdir(parents=True, exist_ok=True)
    match dataset:
        case ImageFolder():
            facts = index_folder(dataset, name)
        case Synthetic():
            facts = _describe_synthetic(dataset)
        case Digits():
            facts = _write_splits(read_digits(), dataset, folder)
        case Mnist():
            facts = _write_splits(read_mnist(dataset, name), dataset, folder)
        case KaggleMnist():
            facts = _write_splits(read_kaggle(Path(dataset.path)), dataset, folder)
    write_json(folder / PROVENANCE, {"dataset": name, "source": dataset.source, **facts})


def _write_splits(splits: GrayscaleSplits, dataset: Digits | Mnist | KaggleMnist, folder: Path) -> dict[str, Any]:
    """Write both splits, as arrays or as image files, and return their entries of provenance.json."""
    train, test = splits.train, splits.test
    if dataset.limit:
        train, test = train.first(dataset.limit), test.first(max(1, dataset.limit // 5))
    files = []
    for split, samples in zip(SPLITS, (train, test), strict=True):
        # An earlier preparation may have been interrupted and have left files.
        shutil.rmtree(folder / split, ignore_errors=True)
        if dataset.stored_size:
            files.append(write_tree(folder, split, samples, dataset.stored_size))
        else:
            files += _write_arrays(folder, split, samples)
    mean, deviation = _statistics(train.images)
    return {
        **splits.facts,
        "limit": dataset.limit,
        "stored_size": dataset.stored_size,
        "classes": CLASSES,
        "train_samples": len(train),
        "test_samples": len(test),
        # Statistics of the small images: upsampling keeps the mean and lowers the deviation a little.
        "mean": [round(mean, 6)] * 3,
        "std": [round(deviation, 6)] * 3,
        "files": files,
    }


def _write_arrays(folder: Path, split: str, samples: Samples) -> list[dict[str, Any]]:
    entries = []
    for name, values in (("images", samples.images), ("labels", samples.labels)):
        path = folder / f"{split}_{name}.npy"
        with atomic_write(path) as temporary:
            np.save(temporary, values, allow_pickle=False)
        entries.append(described(path))
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


def _describe_synthetic(dataset: Synthetic) -> dict[str, Any]:
    return {
        "origin": "random numbers, made when they are needed",
        "split": "a tenth as many test images as training images",
        "classes": [str(label) for label in range(dataset.classes)],
        "train_samples": dataset.samples,
        "test_samples": max(1, dataset.samples // 10),
        "mean": [0.0] * 3,
        "std": [1.0] * 3,
        "files": [],
    }
