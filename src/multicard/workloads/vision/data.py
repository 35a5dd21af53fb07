"""Data sets as the training loop reads them."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, TensorDataset
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from multicard.core.errors import UserError
from multicard.workloads.vision.images import choose_samples


class GrayscaleDataset(Dataset):
    """Grayscale images from arrays, upsampled to 3 × S × S when they are read.

    Each item is a float32 tensor of shape (3, S, S), normalized, and its class as an int.
    """

    def __init__(self, folder: Path, split: str, transform: v2.Transform):
        self.images = np.load(folder / f"{split}_images.npy", mmap_mode="r", allow_pickle=False)
        self.labels = np.load(folder / f"{split}_labels.npy", allow_pickle=False)
        self.transform = transform

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = torch.from_numpy(np.array(self.images[index])).unsqueeze(0).expand(3, -1, -1)
        return self.transform(image), int(self.labels[index])


@functools.cache
def _random_image(size: int, seed: int) -> torch.Tensor:
    """One random image, which the splits of a process share."""
    return torch.randn(3, size, size, generator=torch.Generator().manual_seed(seed))


def _synthetic(samples: int, classes: int, image_size: int, seed: int) -> TensorDataset:
    """Images that cost nothing to load: every one is the same normal float32 tensor, its label is random.

    A loader may see `synthetic` and make batches on the device instead.
    """
    labels = torch.from_numpy(np.random.default_rng(seed).integers(classes, size=samples))
    dataset = TensorDataset(_random_image(image_size, seed).expand(samples, -1, -1, -1), labels)
    dataset.synthetic = True
    return dataset


def open_split(folder: Path, facts: dict[str, Any], split: str, image_size: int, seed: int = 0) -> Dataset:
    """Open the `train` or `test` part of a prepared data set; `seed` is that of synthetic images.

    Raises `UserError` if a user's folder is no longer what it was.
    """
    if facts["source"] == "synthetic":
        return _synthetic(facts[f"{split}_samples"], len(facts["classes"]), image_size, seed)
    resize = v2.Resize((image_size, image_size), antialias=True)
    normalize = v2.Normalize(facts["mean"], facts["std"])
    to_float = v2.ToDtype(torch.float32, scale=True)
    if facts["source"] == "imagefolder" or facts.get("stored_size"):
        transform = v2.Compose([v2.ToImage(), v2.RGB(), resize, to_float, normalize, v2.ToPureTensor()])
        root = Path(facts["folder"]) if facts["source"] == "imagefolder" else folder
        return _open_images(root, facts, split, transform)
    return GrayscaleDataset(folder, split, v2.Compose([to_float, resize, normalize]))


def _open_images(root: Path, facts: dict[str, Any], split: str, transform: v2.Transform) -> ImageFolder:
    """Open a folder of image files, less those that could not be read when it was prepared."""
    parts = facts.get("parts", {split: split})
    place = root / parts.get(split, "")
    try:
        # A small part of a prepared set may not have every class; a user's folder was refused for that.
        images = ImageFolder(place, transform, allow_empty=True)
    except OSError as error:
        raise UserError(f"{place}: cannot be read: {error.strerror or error}") from error
    unreadable = {str(root / entry["name"]) for entry in facts.get("unreadable", [])}
    images.samples = images.imgs = choose_samples(images.samples, split, unreadable, parts)
    images.targets = [label for _, label in images.samples]
    found, expected = (len(images), images.classes), (facts[f"{split}_samples"], facts["classes"])
    if found != expected:
        raise UserError(
            f"{place}: found {found[0]} {split} images of {len(found[1])} classes, expected the {expected[0]} of "
            f"{len(expected[1])} classes that were there when {facts['dataset']} was prepared"
        )
    return images
