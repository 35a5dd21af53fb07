"""Loaders of any kind are described by how they load."""

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from multicard.observe.loaders import LoaderDescription, description_of_wrapped, loader_of, without_varying_length

DATA = TensorDataset(torch.zeros(40, 2))


class Subclass(DataLoader):
    """A loader of a library."""


class Stream(IterableDataset):
    """A stream of numbers."""

    def __iter__(self) -> Any:
        return iter(range(40))


@pytest.mark.parametrize(
    ("loader", "workers", "ahead", "stay", "pins", "batches"),
    [
        (DataLoader(DATA, 8), 0, None, None, False, 5),
        (Subclass(DATA, 8, num_workers=2), 2, 2, False, False, 5),
        (DataLoader(DATA, 16, num_workers=1, prefetch_factor=5, persistent_workers=True), 1, 5, True, False, 3),
        (DataLoader(DATA, 16, pin_memory=True, drop_last=True), 0, None, None, True, 2),
        (DataLoader(Stream(), 8, num_workers=1), 1, 2, False, False, None),
    ],
)
def test_a_description_says_how_a_loader_loads(
    loader: Any, workers: int, ahead: int | None, stay: bool | None, pins: bool, batches: int | None
) -> None:
    description = loader_of(loader, ranks=1).description
    expected = workers, ahead, stay, pins, batches
    assert description[-5:] == expected

    class Moving:
        def __init__(self) -> None:
            self.loader = loader

    assert description_of_wrapped(Moving(), batches) == LoaderDescription("Moving", None, None, None, *expected)


def test_of_a_loader_that_is_not_pytorchs_only_the_batches_are_known() -> None:
    assert description_of_wrapped([], 3) == LoaderDescription("list", batches_in_pass=3)


def test_passes_of_several_lengths_are_of_one_loader_without_a_length() -> None:
    loaders = [LoaderDescription("A", batches_in_pass=length) for length in (3, 4, 3)]
    others = [LoaderDescription("B", batches_in_pass=5)] * 2
    assert without_varying_length([*loaders, *others]) == [LoaderDescription("A"), others[0]]
