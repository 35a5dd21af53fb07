"""Every strategy gets its samples, whoever loads them."""

from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import TINY
from multicard.core.errors import UserError
from multicard.experiment.datasets import Synthetic
from multicard.workloads.vision.data import open_split, read_provenance
from multicard.workloads.vision.loaders import evaluation_loader, evaluation_passes, training_loader
from multicard.workloads.vision.parameters import VisionParameters
from multicard.workloads.vision.prepare import prepare

CPU = torch.device("cpu")


def parameters(**changes: object) -> VisionParameters:
    return VisionParameters(**(TINY | {"steps_per_epoch": None} | changes))


class Numbers(torch.utils.data.Dataset):
    """Items that are their own index."""

    def __init__(self, count: int):
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        return index


def seen(loader: torch.utils.data.DataLoader) -> list[int]:
    return [int(i) for batch in loader for i in batch]


def test_with_a_distributed_sampler_ranks_share_the_data() -> None:
    loaders = [
        training_loader(Numbers(100), {}, parameters(strategy="ddp-ds", devices=2), rank, CPU) for rank in (0, 1)
    ]
    shares = [seen(loader) for loader in loaders]
    assert not set(shares[0]) & set(shares[1])
    # 50 samples a rank, in full batches of 8.
    assert [len(share) for share in shares] == [48, 48]


def test_without_one_every_rank_sees_all_the_data_in_an_order_of_its_own() -> None:
    p = parameters(strategy="ddp", devices=2)
    orders = [seen(training_loader(Numbers(96), {}, p, rank, CPU)) for rank in (0, 1)]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(96))
    assert orders[0] != orders[1]


def test_ranks_test_every_sample_once() -> None:
    loaders = [evaluation_loader(Numbers(101), parameters(strategy="ddp", devices=3), rank) for rank in range(3)]
    assert sorted(i for loader in loaders for i in seen(loader)) == list(range(101))


def test_batches_of_a_test_are_no_larger_than_those_of_training() -> None:
    p = parameters(strategy="dp", device="cuda", devices=4)
    assert {len(batch) for batch in evaluation_loader(Numbers(96), p, 0)} == {32}


@pytest.mark.parametrize(("ranks", "samples"), [(3, 101), (2, 64), (2, 65), (2, 1)])
def test_no_rank_has_more_to_evaluate_than_all_make_passes(ranks: int, samples: int) -> None:
    p = parameters(strategy="fsdp", devices=ranks)
    own = [len(evaluation_loader(Numbers(samples), p, rank)) for rank in range(ranks)]
    assert max(own) == evaluation_passes(Numbers(samples), p)


def test_one_process_with_several_gpus_loads_the_batch_of_all() -> None:
    loader = training_loader(Numbers(100), {}, parameters(strategy="dp", device="cuda", devices=4), 0, CPU)
    assert [len(batch) for batch in loader] == [32, 32, 32]


def test_one_process_with_several_gpus_has_as_many_workers_for_each() -> None:
    several = parameters(strategy="dp", devices=4, num_workers=3)
    loader = training_loader(Numbers(96), {}, several, 0, CPU)
    assert loader.num_workers == evaluation_loader(Numbers(96), several, 0).num_workers == 12
    each = parameters(strategy="ddp", devices=4, num_workers=3)
    assert training_loader(Numbers(96), {}, each, 0, CPU).num_workers == 3


def test_under_strong_scaling_ranks_share_the_batch() -> None:
    p = parameters(strategy="ddp-ds", devices=2, scaling="strong")
    assert {len(batch) for batch in training_loader(Numbers(100), {}, p, 1, CPU)} == {4}


def test_a_batch_larger_than_the_data_is_refused() -> None:
    with pytest.raises(UserError, match="batch_size: 8 needs 8 training samples per rank, found 3"):
        training_loader(Numbers(7), {}, parameters(strategy="ddp-ds", devices=2), 0, CPU)


def test_synthetic_batches_are_on_the_device_and_as_many_as_their_samples(tmp_path: Path) -> None:
    prepare("s", Synthetic(source="synthetic", samples=30, classes=4), tmp_path)
    facts = read_provenance(tmp_path)
    loader = training_loader(open_split(tmp_path, facts, "train", 16), facts, parameters(), 0, CPU)
    batches: list[Any] = list(loader)
    assert len(batches) == len(loader) == 3
    images, labels = batches[0]
    assert (images.shape, images.dtype, labels.dtype) == ((8, 3, 16, 16), torch.float32, torch.int64)
    assert int(labels.max()) < 4
    assert batches[2][0] is images, "nothing is created in the loop"
