"""Data sets as the training loop reads them, and their loaders."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Subset
from torch.utils.data.distributed import DistributedSampler
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from multicard.errors import UserError
from multicard.experiment.parameters import VisionParameters
from multicard.files import read_json, sha256
from multicard.vision.prepare import PROVENANCE


class GreyImages(Dataset):
    """Grey images from arrays, upsampled to 3 × S × S when they are read.

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


def read_provenance(folder: Path) -> dict[str, Any]:
    """Read provenance.json of a prepared data set, and check its files against it.

    Raises
    ------
    UserError
        If a file is missing or not the one that was prepared.
    """
    facts = read_json(folder / PROVENANCE)
    for entry in facts["files"]:
        path = folder / entry["name"]
        if not path.exists() or sha256(path) != entry["sha256"]:
            raise UserError(f"{path}: missing or changed since it was prepared; delete {folder} to prepare it anew")
    return facts


def open_split(folder: Path, facts: dict[str, Any], split: str, image_size: int) -> Dataset:
    """Open the `train` or `test` part of a prepared data set."""
    resize = v2.Resize((image_size, image_size), antialias=True)
    normalize = v2.Normalize(facts["mean"], facts["std"])
    to_float = v2.ToDtype(torch.float32, scale=True)
    if facts["source"] == "imagefolder":
        transform = v2.Compose([v2.ToImage(), v2.RGB(), resize, to_float, normalize, v2.ToPureTensor()])
        return ImageFolder(Path(facts["folder"]) / split, transform)
    return GreyImages(folder, split, v2.Compose([to_float, resize, normalize]))


def training_loader(dataset: Dataset, parameters: VisionParameters, rank: int) -> DataLoader:
    """Loader of full, shuffled batches: of this rank's share under `ddp-ds`, else of all the data.

    Raises
    ------
    UserError
        If there is not one full batch.
    """
    p = parameters
    seed = p.seed + p.repeat - 1
    generator = torch.Generator().manual_seed(seed * 10_007 + rank)
    sampler = None
    if p.strategy == "ddp-ds":
        sampler = DistributedSampler(dataset, p.ranks, rank, shuffle=True, seed=seed, drop_last=True)
    loader = DataLoader(
        dataset,
        batch_size=p.batch_size,
        shuffle=sampler is None,
        sampler=sampler,
        num_workers=p.workers,
        persistent_workers=p.workers > 0,
        drop_last=True,
        generator=generator,
    )
    if len(loader) == 0:
        raise UserError(f"batch_size: {p.batch_size} is more than the training samples of a rank")
    return loader


def evaluation_loader(dataset: Dataset, parameters: VisionParameters, rank: int) -> DataLoader:
    """Loader of this rank's part of the test data; the parts of all ranks are the whole, each sample once."""
    part = Subset(dataset, range(rank, len(dataset), parameters.ranks))
    return DataLoader(part, batch_size=4 * parameters.batch_size, num_workers=parameters.workers)
