"""Loaders: the same samples in the same batches, whoever loads them."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler, Sampler, Subset
from torch.utils.data.distributed import DistributedSampler

from multicard.core.errors import UserError
from multicard.workloads.vision.parameters import VisionParameters
from multicard.workloads.vision.strategies import STRATEGIES

SEEDS = 1_000_003  # between those of two epochs


class SyntheticLoader:
    """One random batch on the device, again and again: what a step costs when no loader is at work.

    Images have the shape (N, 3, S, S) and are normal, as normalized images are; labels are random.
    """

    sampler = None

    def __init__(self, batches: int, batch_size: int, image_size: int, classes: int, device: torch.device, seed: int):
        generator = torch.Generator().manual_seed(seed)
        images = torch.randn(batch_size, 3, image_size, image_size, generator=generator)
        labels = torch.randint(classes, (batch_size,), generator=generator)
        self._batch, self._batches = (images.to(device), labels.to(device)), batches

    def __len__(self) -> int:
        return self._batches

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        return (self._batch for _ in range(self._batches))


class Shuffled(RandomSampler):
    """All of a data set, in an order that follows from a seed and the epoch, as that of DistributedSampler does."""

    def __init__(self, dataset: Dataset, seed: int):
        super().__init__(dataset, generator=torch.Generator())
        self.seed = seed
        self.set_epoch(1)

    def set_epoch(self, epoch: int) -> None:
        """Give the next pass over the data its order."""
        self.generator.manual_seed(self.seed + (epoch - 1) * SEEDS)


def training_loader(
    dataset: Dataset, facts: dict[str, Any], parameters: VisionParameters, rank: int, device: torch.device
) -> Any:
    """Loader of full, shuffled batches: of this rank's share where ranks share one pass, else of all the data.

    Raises `UserError` if there is not one full batch.
    """
    p = parameters
    batch, seed = p.batch_of_rank, p.seed + p.repeat - 1
    shared = STRATEGIES[p.strategy].distributed_sampler
    share = len(dataset) // p.ranks if shared else len(dataset)
    if share < batch:
        raise UserError(f"batch_size: {p.batch_size} needs {batch} training samples per rank, found {share}")
    if getattr(dataset, "synthetic", False):
        return SyntheticLoader(share // batch, batch, p.image_size, len(facts["classes"]), device, seed + rank)
    sampler: Sampler[int]
    if shared:
        sampler = DistributedSampler(dataset, p.ranks, rank, shuffle=True, seed=seed, drop_last=True)
    else:
        sampler = Shuffled(dataset, seed * 10_007 + rank)
    if p.loader == "dali":
        from multicard.workloads.vision.dali import DaliLoader

        return DaliLoader(dataset, sampler, p, facts, device)
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
    """Give the next pass over the data an order of its own."""
    if hasattr(loader.sampler, "set_epoch"):
        loader.sampler.set_epoch(epoch)


def evaluation_loader(dataset: Dataset, parameters: VisionParameters, rank: int) -> DataLoader:
    """Loader of this rank's part of the test data; the parts of all ranks are the whole, each sample once.

    Its batches are those of training: PyTorch keeps the memory of larger ones, and would show it as reserved by all
    later steps.
    """
    part = Subset(dataset, range(rank, len(dataset), parameters.ranks))
    return DataLoader(part, batch_size=parameters.batch_of_rank, num_workers=parameters.workers_of_rank)


def evaluation_passes(dataset: Dataset, parameters: VisionParameters) -> int:
    """Forward passes of the rank that has most to evaluate."""
    return math.ceil(math.ceil(len(dataset) / parameters.ranks) / parameters.batch_of_rank)
