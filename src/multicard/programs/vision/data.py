"""Open prepared data sets as PyTorch data sets, which the training loop reads."""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from torch.utils.data import Dataset, TensorDataset
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from multicard.core.errors import UserError
from multicard.programs.provenance import ImageProvenance, Split
from multicard.programs.vision.images import choose_samples


class GrayscaleDataset(Dataset[tuple[torch.Tensor, int]]):
    """Grayscale images from arrays, upsampled to 3 × S × S when they are read.

    Each item is a float32 tensor of shape (3, S, S), normalized, and its class as an int.
    """

    def __init__(self, folder: Path, split: Split, transform: v2.Transform):
        self.images = np.load(folder / f"{split}_images.npy", mmap_mode="r", allow_pickle=False)
        self.labels = np.load(folder / f"{split}_labels.npy", allow_pickle=False)
        self.transform = transform

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        # A copy, because the array of the file is read-only.
        grey = torch.from_numpy(np.array(self.images[index]))
        image = grey.unsqueeze(0).expand(3, -1, -1)
        return self.transform(image), int(self.labels[index])


class SyntheticDataset(TensorDataset):
    """Images that cost nothing to load: all are one float32 tensor of normally distributed numbers; labels are random.

    Only evaluation reads them. For training, `loaders.training_loader` recognizes this class and returns a loader that
    keeps a batch on the device.
    """

    def __init__(self, samples: int, classes: int, image_size: int, seed: int):
        generator = np.random.default_rng(seed)
        labels = torch.from_numpy(generator.integers(classes, size=samples))
        image = _random_image(image_size, seed)
        images = image.expand(samples, -1, -1, -1)
        super().__init__(images, labels)


ImageData: TypeAlias = GrayscaleDataset | SyntheticDataset | ImageFolder


@functools.cache
def _random_image(size: int, seed: int) -> torch.Tensor:
    """Return a random image; it is cached, so that both splits of a process share its memory."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(3, size, size, generator=generator)


def open_split(folder: Path, provenance: ImageProvenance, split: Split, image_size: int, seed: int = 0) -> ImageData:
    """Open the `train` or `test` part of the data set that is prepared in `folder`. `seed`: for synthetic images.

    Raises `UserError` if a folder of image files cannot be read, or has other classes or another number of images than
    when it was prepared.
    """
    if provenance.source == "synthetic":
        sample_count = provenance.samples(split)
        return SyntheticDataset(sample_count, len(provenance.classes), image_size, seed)
    resize = v2.Resize((image_size, image_size), antialias=True)
    to_float = v2.ToDtype(torch.float32, scale=True)
    normalize = v2.Normalize(provenance.mean, provenance.std)
    is_in_arrays = provenance.source != "imagefolder" and not provenance.stored_size
    if is_in_arrays:
        transform = v2.Compose([to_float, resize, normalize])
        return GrayscaleDataset(folder, split, transform)
    transform = v2.Compose([v2.ToImage(), v2.RGB(), resize, to_float, normalize, v2.ToPureTensor()])
    images = _open_images(provenance.image_folder(folder), provenance, split, transform)
    _check_unchanged(images, provenance, split)
    return images


def _open_images(root: Path, provenance: ImageProvenance, split: Split, transform: v2.Transform) -> ImageFolder:
    """Open one split of a folder of image files, without the files that could not be read when it was prepared."""
    parts: Mapping[str, str] = {split: split} if provenance.parts is None else provenance.parts
    folder = root / parts.get(split, "")
    try:
        # A small split of a prepared set may have no image of a class. A user's folder with such a split was refused
        # when it was prepared.
        images = ImageFolder(folder, transform, allow_empty=True)
    except OSError as error:
        raise UserError(f"{folder}: cannot be read: {error.strerror or error}") from error
    unreadable = {str(root / image.name) for image in provenance.unreadable}
    samples = choose_samples(images.samples, split, unreadable, parts)
    # torchvision keeps the samples under two names.
    images.samples = samples
    images.imgs = samples
    images.targets = [label for _, label in samples]
    return images


def _check_unchanged(images: ImageFolder, provenance: ImageProvenance, split: Split) -> None:
    """Raise `UserError` unless a split has the number of images and the classes that it was prepared with."""
    sample_count = provenance.samples(split)
    has_same_count = len(images) == sample_count
    has_same_classes = tuple(images.classes) == provenance.classes
    if has_same_count and has_same_classes:
        return
    actual = f"{len(images)} {split} images of {len(images.classes)} classes"
    expected = f"{sample_count} of {len(provenance.classes)} classes"
    raise UserError(
        f"{images.root}: found {actual}, expected the {expected} that were there when {provenance.dataset} was prepared"
    )
