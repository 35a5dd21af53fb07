"""Data loaders for training and tests. PyTorch's and DALI's yield the same samples in the same batches."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, RandomSampler, Sampler, Subset
from torch.utils.data.distributed import DistributedSampler

from multicard.core.errors import UserError
from multicard.programs.provenance import ImageProvenance
from multicard.programs.vision.data import ImageData, SyntheticDataset
from multicard.programs.vision.parameters import VisionParameters
from multicard.programs.vision.strategies import STRATEGIES

EPOCH_SEED_STEP = 1_000_003  # difference between the seeds of successive epochs


class SyntheticLoader:
    """Yields one random batch on the device again and again, to show the cost of a step without a loader's work.

    Images have the shape (N, 3, S, S). Their values are normally distributed with mean 0 and deviation 1, roughly like
    those of normalized images. Labels are random.
    """

    sampler = None  # `set_epoch` reads it: there is nothing to shuffle

    def __init__(self, batches: int, batch_size: int, image_size: int, classes: int, device: torch.device, seed: int):
        generator = torch.Generator().manual_seed(seed)
        images = torch.randn(batch_size, 3, image_size, image_size, generator=generator)
        labels = torch.randint(classes, (batch_size,), generator=generator)
        self._batch = (images.to(device), labels.to(device))
        self._batches = batches

    def __len__(self) -> int:
        return self._batches

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        return (self._batch for _ in range(self._batches))


class Shuffled(RandomSampler):
    """Samples a whole data set. As with DistributedSampler, a seed and the epoch determine the order."""

    def __init__(self, dataset: ImageData, seed: int):
        self._order = torch.Generator()
        super().__init__(dataset, generator=self._order)
        self.seed = seed
        self.set_epoch(1)

    def set_epoch(self, epoch: int) -> None:
        """Set the order of the next pass over the data; `epoch`: number of the pass, from 1."""
        self._order.manual_seed(self.seed + (epoch - 1) * EPOCH_SEED_STEP)


def training_loader(
    dataset: ImageData, provenance: ImageProvenance, parameters: VisionParameters, rank: int, device: torch.device
) -> Any:
    """Return a loader of full, shuffled batches for one rank.

    With a strategy that has a distributed sampler, the rank iterates over its share of the data, else over all of it.

    Raises `UserError` if the rank has less than one full batch.
    """
    p = parameters
    batch = p.batch_of_rank
    seed = p.seed + p.repeat - 1
    shares_data = STRATEGIES[p.strategy].distributed_sampler
    samples = len(dataset) // p.ranks if shares_data else len(dataset)
    if samples < batch:
        raise UserError(f"batch_size: {p.batch_size} needs {batch} training samples per rank, found {samples}")
    if isinstance(dataset, SyntheticDataset):
        return SyntheticLoader(samples // batch, batch, p.image_size, len(provenance.classes), device, seed + rank)
    sampler: Sampler[int]
    if shares_data:
        sampler = DistributedSampler(dataset, p.ranks, rank, shuffle=True, seed=seed, drop_last=True)
    else:
        sampler = Shuffled(dataset, seed * 10_007 + rank)
    if p.loader == "dali":
        from multicard.programs.vision.dali import DaliLoader

        return DaliLoader(dataset, sampler, p, provenance, device)
    return DataLoader(
        dataset,
        batch_size=batch,
        sampler=sampler,
        num_workers=p.workers_of_rank,
        persistent_workers=p.persistent_workers and p.num_workers > 0,
        prefetch_factor=p.prefetch_factor if p.num_workers else None,
        pin_memory=p.pin_memory and device.type == "cuda",
        drop_last=True,
    )


def set_epoch(loader: Any, epoch: int) -> None:
    """Set the order of a loader's next pass over the data, if it has a sampler; `epoch`: number of the pass, from 1."""
    if hasattr(loader.sampler, "set_epoch"):
        loader.sampler.set_epoch(epoch)


def evaluation_loader(dataset: ImageData, parameters: VisionParameters, rank: int) -> DataLoader[Any]:
    """Return a loader of this rank's part of the test data. Each test sample is in the part of exactly one rank.

    Its batches are as large as those of training. PyTorch would keep the memory of larger batches, and all later
    training steps would report it as reserved.
    """
    part = Subset(dataset, range(rank, len(dataset), parameters.ranks))
    return DataLoader(part, batch_size=parameters.batch_of_rank, num_workers=parameters.workers_of_rank)


def evaluation_passes(dataset: ImageData, parameters: VisionParameters) -> int:
    """Return the number of test batches of the rank that has the most test samples; 0 without test samples."""
    most_samples = math.ceil(len(dataset) / parameters.ranks)
    return math.ceil(most_samples / parameters.batch_of_rank)
