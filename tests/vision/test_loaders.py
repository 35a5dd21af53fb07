"""Every strategy gets its samples, whoever loads them."""

import itertools
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import TINY
from multicard.core.errors import UserError
from multicard.launch.job import observed_job
from multicard.observe.plan import Plan
from multicard.programs import PROGRAMS
from multicard.programs.datasets import Synthetic
from multicard.programs.provenance import ImageProvenance, read_unchanged
from multicard.programs.vision.data import open_split
from multicard.programs.vision.loaders import evaluation_loader, evaluation_passes, training_loader
from multicard.programs.vision.parameters import VisionParameters
from multicard.programs.vision.prepare import prepare
from prepared_sets import make_image_provenance

CPU = torch.device("cpu")


def parameters(**changes: object) -> VisionParameters:
    return VisionParameters(**(TINY | {"steps_per_epoch": None} | changes))


def numbers(count: int) -> torch.utils.data.Dataset:
    """Items that are their own index."""
    return range(count)  # type: ignore[return-value]


def loaded(p: VisionParameters, count: int, rank: int = 0) -> torch.utils.data.DataLoader:
    return training_loader(numbers(count), make_image_provenance(), p, rank, CPU)


def seen(loader: torch.utils.data.DataLoader) -> list[int]:
    return [int(i) for batch in loader for i in batch]


def test_only_with_a_distributed_sampler_ranks_share_the_data() -> None:
    p = parameters(strategy="ddp-ds", devices=2)
    shares = [seen(loaded(p, 100, rank)) for rank in (0, 1)]
    assert not set(shares[0]) & set(shares[1])
    assert [len(share) for share in shares] == [48, 48]  # of 50 samples a rank, in full batches of 8

    p = parameters(strategy="ddp", devices=2)
    orders = [seen(loaded(p, 96, rank)) for rank in (0, 1)]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(96))
    assert orders[0] != orders[1]


def test_ranks_test_every_sample_once_in_batches_no_larger_than_those_of_training() -> None:
    p = parameters(strategy="ddp", devices=3)
    loaders = [evaluation_loader(numbers(101), p, rank) for rank in range(3)]
    assert sorted(i for loader in loaders for i in seen(loader)) == list(range(101))
    p = parameters(strategy="dp", device="cuda", devices=4)
    assert {len(batch) for batch in evaluation_loader(numbers(96), p, 0)} == {32}


@pytest.mark.parametrize(("ranks", "samples"), [(3, 101), (2, 64), (2, 65), (2, 1)])
def test_no_rank_has_more_to_evaluate_than_all_make_passes(ranks: int, samples: int) -> None:
    p = parameters(strategy="fsdp", devices=ranks)
    own = [len(evaluation_loader(numbers(samples), p, rank)) for rank in range(ranks)]
    assert max(own) == evaluation_passes(numbers(samples), p)


def test_batches_and_workers_are_those_of_the_devices_of_a_rank() -> None:
    # One process with several GPUs loads the batch of all, with as many workers for each.
    p = parameters(strategy="dp", device="cuda", devices=4)
    assert [len(batch) for batch in loaded(p, 100)] == [32, 32, 32]
    several = parameters(strategy="dp", devices=4, num_workers=3)
    assert loaded(several, 96).num_workers == evaluation_loader(numbers(96), several, 0).num_workers == 12
    assert loaded(parameters(strategy="ddp", devices=4, num_workers=3), 96).num_workers == 3
    # Under strong scaling ranks share the batch.
    p = parameters(strategy="ddp-ds", devices=2, scaling="strong")
    assert {len(batch) for batch in loaded(p, 100, 1)} == {4}
    with pytest.raises(UserError, match="batch_size: 8 needs 8 training samples per rank, found 3"):
        loaded(parameters(strategy="ddp-ds", devices=2), 7)


def has_steps_to_measure(p: VisionParameters, samples: int) -> bool:
    """Whether a rank with these samples gets as far as to measure a step, by its loader and the plan of its windows."""
    try:
        batches = len(loaded(p, samples))
        Plan(observed_job(p, "none"), p.epochs * min(batches, p.steps_per_epoch or batches))
    except UserError:
        return False
    return True


@pytest.mark.parametrize("strategy", ["single", "ddp", "ddp-ds"])
@pytest.mark.parametrize("scaling", ["weak", "strong"])
@pytest.mark.parametrize("steps_per_epoch", [None, 4])
def test_too_few_samples_are_told_beforehand_with_values_that_suffice(
    strategy: str, scaling: str, steps_per_epoch: int | None
) -> None:
    said = Counter()
    devices = 1 if strategy == "single" else 2
    for samples, batch, epochs, warmup in itertools.product((7, 54, 60), (2, 8, 14, 64), (1, 3), (0, 2, 10)):
        stated = {"strategy": strategy, "devices": devices, "scaling": scaling, "steps_per_epoch": steps_per_epoch}
        p = parameters(batch_size=batch, epochs=epochs, warmup_steps=warmup, **stated)
        why = PROGRAMS["vision"].checks.data_error(p, samples)
        assert (why is None) == has_steps_to_measure(p, samples), (p, samples, why)
        for remedy in (why or "").partition("; set ")[2].split(", or "):
            values = {name: int(value) for name, value in re.findall(r"(\w+): (\d+) or", remedy)}
            said.update(values.keys())
            assert not values or has_steps_to_measure(p.model_copy(update=values), samples), (p, samples, why)
            for name, value in values.items():
                # Strong scaling shares a batch equally.
                more = devices if name == "batch_size" and scaling == "strong" else 1
                beyond = value + more if name == "batch_size" else value - more
                assert not has_steps_to_measure(p.model_copy(update=values | {name: beyond}), samples), (p, why)
    assert said["batch_size"] > 4 and said["epochs"] > 4


def test_synthetic_batches_are_on_the_device_and_as_many_as_their_samples(tmp_path: Path) -> None:
    prepare("s", Synthetic(source="synthetic", samples=30, classes=4), tmp_path)
    provenance = read_unchanged(tmp_path, ImageProvenance)
    loader = training_loader(open_split(tmp_path, provenance, "train", 16), provenance, parameters(), 0, CPU)
    batches: list[Any] = list(loader)
    assert len(batches) == len(loader) == 3
    images, labels = batches[0]
    assert (images.shape, images.dtype, labels.dtype) == ((8, 3, 16, 16), torch.float32, torch.int64)
    assert int(labels.max()) < 4
    assert batches[2][0] is images, "nothing is created in the loop"
