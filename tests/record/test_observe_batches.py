"""Samples are counted in batches of any shape, and loaders that give ranks their own samples are told from others."""

from collections import UserDict, deque
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from multicard.record.observe.batches import Pass, loader_of, samples_in, used_by_step
from multicard.record.observe.plan import Pace, Plan, place

IMAGES, LABELS = torch.zeros(8, 3, 4, 4), torch.zeros(8, dtype=torch.int64)
DATA = TensorDataset(torch.zeros(20, 2))


@pytest.mark.parametrize(
    ("batch", "batch_size", "samples"),
    [
        (IMAGES, 8, 8),
        ((IMAGES, LABELS), 8, 8),
        ([IMAGES[:5], LABELS[:5]], 8, 5),  # the last of a pass
        ([IMAGES[:1], LABELS[:1]], 8, 1),
        ({"input_ids": torch.zeros(4, 99), "labels": torch.zeros(4)}, 4, 4),
        (UserDict(input_ids=torch.zeros(3, 99), attention_mask=torch.zeros(3, 99)), 4, 3),
        # As torchvision's detection references collate: images of any size, and what is in each.
        ((tuple(IMAGES[:6]), tuple({"boxes": torch.zeros(n, 4)} for n in range(6))), 6, 6),
        ((tuple(IMAGES[:2]), tuple({"boxes": torch.zeros(n, 4)} for n in range(2))), 6, 2),
        ([("a text", 1), ("another", 0), ("a third", 1)], 3, 3),
        (((IMAGES, IMAGES), LABELS), 8, 8),  # two views of each
        (IMAGES, None, 8),  # a data set that gives batches
        ((IMAGES, LABELS), None, 8),
        ((IMAGES, torch.zeros(3)), None, None),
        (torch.tensor(1.0), 8, None),
        (object(), 8, None),
        ((), 8, 0),
    ],
)
def test_samples_are_counted(batch: Any, batch_size: int | None, samples: int | None) -> None:
    assert samples_in(batch, batch_size) == samples


class Stream(IterableDataset):
    """Samples without a known number."""

    def __iter__(self) -> Any:
        return iter(range(20))

    def __len__(self) -> int:
        raise AssertionError("a loader that is asked for the length of a stream warns of what is beyond it")


class AccelerateShard(torch.utils.data.BatchSampler):
    """With what Accelerate's `BatchSamplerShard` says of itself."""

    num_processes, process_index = 2, 1


@pytest.mark.parametrize(
    ("loader", "ranks", "distinct", "length"),
    [
        (DataLoader(DATA, batch_size=4), 1, True, 5),
        (DataLoader(DATA, batch_size=4, shuffle=True), 2, False, 5),
        (DataLoader(DATA, batch_size=4, sampler=DistributedSampler(DATA, num_replicas=2, rank=0)), 2, True, 3),
        (DataLoader(DATA, batch_sampler=AccelerateShard(range(20), 4, drop_last=False)), 2, True, 5),
        # Two ranks share a model, by tensor or pipeline parallelism: one share, or two of four ranks.
        (DataLoader(DATA, batch_size=4, sampler=DistributedSampler(DATA, num_replicas=1, rank=0)), 2, None, 5),
        (DataLoader(DATA, batch_sampler=AccelerateShard(range(20), 4, drop_last=False)), 4, None, 5),
        (DataLoader(DATA, batch_size=4, sampler=DistributedSampler(DATA, num_replicas=1, rank=0)), 1, True, 5),
        (DataLoader(Subset(DATA, range(10)), batch_size=4), 2, None, 3),
        (DataLoader(Stream(), batch_size=4), 2, None, None),
    ],
)
def test_loaders_say_whether_ranks_draw_their_own_samples(
    loader: DataLoader, ranks: int, distinct: bool | None, length: int | None
) -> None:
    found = loader_of(loader, ranks)
    assert (found.description["distinct"], found.length, found.batch_size) == (distinct, length, 4)


def test_a_loader_reads_ahead_what_each_of_its_workers_prefetches() -> None:
    assert loader_of(DataLoader(DATA), 1).ahead == 0
    assert loader_of(DataLoader(DATA, num_workers=3, prefetch_factor=4), 1).ahead == 12


def training(batches: int, per_step: int, ahead: int, together: bool) -> tuple[list[Pass], dict[int, list[int]]]:
    """Passes over a loader, and the batches that each step really uses; the sizes of batches tell them apart.

    `together`: whether the batches of a step are all fetched before the first is used, as Transformers does.
    """
    passes, truth, step = [], {}, 0
    for number in range(3):
        found = Pass(loader_of(DataLoader(DATA), 1))
        passes.append(found)
        left = deque(range(100 * number + 1, 100 * number + 1 + batches))
        waiting: deque[int] = deque()
        used = 0
        while True:
            while len(waiting) <= ahead + (together and used % per_step == 0) * (per_step - 1) and found.ended is None:
                if left:
                    found.batches.append((step, left[0]))
                    waiting.append(left.popleft())
                else:
                    found.ended = step
            if not waiting:
                break
            truth.setdefault(step, []).append(waiting.popleft())
            used += 1
            step += used % per_step == 0
        step += used % per_step > 0  # the last update of a pass makes do with what is left
    return passes, truth


@pytest.mark.parametrize("batches", range(7, 13))
@pytest.mark.parametrize("per_step", [1, 2])
@pytest.mark.parametrize("ahead", [0, 1, 2])
@pytest.mark.parametrize("together", [False, True])
def test_samples_are_those_of_the_step_that_uses_them(batches: int, per_step: int, ahead: int, together: bool) -> None:
    passes, truth = training(batches, per_step, ahead, together)
    assert used_by_step(passes) == truth


def test_batches_that_a_resumed_script_skips_are_used_by_no_later_step() -> None:
    loader = loader_of(DataLoader(DATA), 1)
    resumed, following = Pass(loader), Pass(loader)
    resumed.batches = [(step, 8) for step in (0, 0, 0, 0, 0, 0, 1, 2, 3, 4)]
    resumed.ended = 5
    following.batches = [(step, 8) for step in range(5, 15)]
    following.ended = 15
    assert used_by_step([resumed, following]) == {step: [8] for step in range(15)}


@pytest.mark.parametrize(
    "asked",
    [
        [1, 1, 1], [2, 1], [2, 1, 2, 1], [3, 0, 0, 3, 0, 0], [1, 2, 4],
    ],
)  # fmt: skip
def test_where_later_steps_ask_for_no_steady_number_batches_are_used_where_asked_for(
    asked: list[int],
) -> None:
    one = Pass(loader_of(DataLoader(DATA), 1))
    one.batches = [(step, 8) for step, count in enumerate(asked) for _ in range(count)]
    assert used_by_step([one]) == {step: [8] * count for step, count in enumerate(asked) if count}


@pytest.mark.parametrize(
    ("pace", "placed"),
    [
        (Pace(), (0, 0, 10, False)),  # no loader
        (Pace(steps_in_pass=30, batches_per_step=1, pass_batches=100), (0, 0, 10, False)),
        (Pace(steps_in_pass=95, batches_per_step=1, pass_batches=100), (6, 0, 10, False)),  # second step of the next
        (Pace(steps_in_pass=3, batches_per_step=1, pass_batches=8), (0, 0, 10, True)),
        (Pace(steps_in_pass=3, batches_per_step=1, pass_batches=None, ahead=8), (0, 16, 32, False)),
        (Pace(steps_in_pass=30, batches_per_step=4, pass_batches=400, ahead=8), (0, 4, 10, False)),
    ],
)
def test_the_profiled_window_follows_the_measured_one_within_a_pass(
    pace: Pace, placed: tuple[int, int, int, bool]
) -> None:
    assert tuple(place(pace, profiled=10)) == placed


def test_windows_follow_each_other() -> None:
    plan = Plan({"warmup_steps": 2, "measured_steps": 3, "profiled_steps": 2})
    assert plan.steps == 7
    plan.profiled = place(Pace(), 2)._replace(warmup_steps=1, settling_steps=1)
    assert plan.opening == 7
    assert [plan.window(step) for step in range(1, plan.steps + 1)] == (
        2 * ["warmup"] + 3 * ["measured"] + 2 * ["warmup"] + 2 * ["profiled"]
    )
