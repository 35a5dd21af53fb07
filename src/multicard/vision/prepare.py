"""Make a data set ready to train on, with checksums and a statement of where it comes from."""

from pathlib import Path
from typing import Any

import numpy as np

from multicard.errors import UserError
from multicard.experiment.config import Digits, ImageFolder
from multicard.files import described, whole, write_json

PROVENANCE = "provenance.json"
SPLITS = ("train", "test")
IMAGE_SUFFIXES = {".bmp", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"}


def prepare(name: str, dataset: Digits | ImageFolder, folder: Path) -> None:
    """Prepare one data set in `folder`; provenance.json comes last and lists what is there.

    Raises
    ------
    UserError
        If the user's folder does not hold what it should.
    """
    folder.mkdir(parents=True, exist_ok=True)
    facts = _prepare_digits(folder) if dataset.source == "digits" else _index_folder(Path(dataset.folder), name)
    write_json(folder / PROVENANCE, {"dataset": name, "source": dataset.source, **facts})


def _prepare_digits(folder: Path) -> dict[str, Any]:
    """Write scikit-learn's handwritten digits as arrays; every fifth image is a test image."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = np.round(digits.images * (255 / 16)).astype(np.uint8)  # 17 grey levels, kept apart
    labels = digits.target.astype(np.int64)
    is_test = np.arange(len(labels)) % 5 == 4
    files = []
    for split, chosen in zip(SPLITS, (~is_test, is_test), strict=True):
        for kind, values in (("images", images), ("labels", labels)):
            path = folder / f"{split}_{kind}.npy"
            with whole(path) as temporary:
                np.save(temporary, values[chosen], allow_pickle=False)
            files.append(described(path))
    train = images[~is_test] / 255
    return {
        "origin": "scikit-learn's copy of the test set of the UCI Optical Recognition of Handwritten Digits "
        "data (E. Alpaydin, C. Kaynak, 1998; doi 10.24432/C50P49; CC BY 4.0)",
        "split": "every fifth image is a test image",
        "classes": [str(c) for c in range(10)],
        "train_samples": int((~is_test).sum()),
        "test_samples": int(is_test.sum()),
        "mean": [round(float(train.mean()), 6)] * 3,
        "std": [round(float(train.std()), 6)] * 3,
        "files": files,
    }


def _index_folder(folder: Path, name: str) -> dict[str, Any]:
    """List the images of a user's folder; they stay where they are."""
    counts, classes = {}, {}
    for split in SPLITS:
        classes[split] = sorted(entry.name for entry in (folder / split).iterdir() if entry.is_dir())
        counts[split] = 0
        for label in classes[split]:
            images = [f for f in (folder / split / label).iterdir() if f.suffix.lower() in IMAGE_SUFFIXES]
            if not images:
                raise UserError(f"datasets.{name}.folder: no images in {folder / split / label}")
            counts[split] += len(images)
    if not classes["train"] or classes["train"] != classes["test"]:
        raise UserError(
            f"datasets.{name}.folder: expected the same class folders in {folder}/train and {folder}/test, "
            f"found {len(classes['train'])} and {len(classes['test'])} that differ"
        )
    return {
        "origin": "a folder of the user",
        "folder": str(folder.absolute()),
        "classes": classes["train"],
        "train_samples": counts["train"],
        "test_samples": counts["test"],
        # The customary statistics of ImageNet, as torchvision's pretrained models expect them.
        "mean": [0.485, 0.456, 0.406],
        "std": [0.229, 0.224, 0.225],
        "files": [],
    }
