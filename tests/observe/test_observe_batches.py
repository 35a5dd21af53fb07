"""Samples are counted in batches of any shape, and loaders that give ranks their own samples are told from others."""

import itertools
import struct
import zlib
from collections import UserDict, deque
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    IterableDataset,
    RandomSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
)
from torch.utils.data.distributed import DistributedSampler

from job_files import make_job_file
from multicard.observe.batches import Contents, Pass, checksum_of, checksums, used_by_step
from multicard.observe.loaders import Loader, LoaderDescription, loader_of, note_index, samples_asked
from multicard.observe.plan import Pace, Plan, place
from observed_scripts import Server, after_head

IMAGES, LABELS = torch.zeros(8, 3, 4, 4), torch.zeros(8, dtype=torch.int64)
DATA = TensorDataset(torch.zeros(20, 2))


def samples_in(batch_size: int | None, *batches: Any, asked: int | None = None) -> list[Any]:
    """Samples of the batches of a pass, one after another."""
    found = Pass(Loader(LoaderDescription("Batches"), batch_size, None, 0))
    for batch in batches:
        found.add(0, batch, asked)
    return [contents.samples for _, contents in found.batches]


def detection(samples: int) -> Any:
    """As torchvision's references for detection collate: images of any size, and what is in each."""
    return tuple(IMAGES[:samples]), tuple({"boxes": torch.zeros(n, 4)} for n in range(samples))


def boxes_of_all(samples: int, boxes: int) -> Any:
    """As YOLOv5 collates: images, the boxes in all of them, and a text and a shape of each."""
    return IMAGES[:samples], torch.zeros(boxes, 6), samples * ("a.jpg",), samples * (None,)


VIEWS = torch.zeros(16, 3, 4, 4), torch.zeros(16)  # two of each of eight samples
OFFSETS_FIRST = torch.zeros(8, 13), torch.zeros(3, 8, dtype=torch.int64), torch.zeros(8, 1)  # of eight samples
LENGTH_FIRST = torch.zeros(6, 8, dtype=torch.int64), torch.zeros(6, 8)  # eight texts of six tokens


def test_samples_are_those_that_the_loader_asked_for_whatever_the_batch_looks_like() -> None:
    for batch in (IMAGES, boxes_of_all(8, 57), VIEWS, LENGTH_FIRST, object(), torch.tensor(1.0)):
        assert samples_in(8, batch, asked=8) == [8]
        assert samples_in(8, batch, asked=5) == [5]  # the last of a pass


def test_a_batch_of_one_is_one_sample_unless_it_looks_like_more() -> None:
    for asked in (1, None):
        for batch in (IMAGES[:1], [IMAGES[:1], LABELS[:1]], boxes_of_all(1, 7), object(), [("a text", 1)]):
            assert samples_in(1, batch, batch, asked=asked) == [1, 1]
        # A batch that the data set made, or one sample with dimensions of its own, some of which may be shared.
        for batch in ((IMAGES, LABELS), OFFSETS_FIRST, (IMAGES[0], IMAGES[0, 0]), {"x": IMAGES, "note": "a text"}):
            assert samples_in(1, batch, batch, asked=asked) == [None, None]


@pytest.mark.parametrize(
    ("full", "last", "samples"),
    [
        ((IMAGES, LABELS), (IMAGES[:1], LABELS[:1]), 1),
        (UserDict(ids=torch.zeros(8, 99), mask=LABELS), UserDict(ids=torch.zeros(5, 50), mask=LABELS[:5]), 5),
        (((IMAGES, IMAGES), LABELS), ((IMAGES[:3], IMAGES[:3]), LABELS[:3]), 3),
        (detection(8), detection(2), 2),
        # What does not show its samples has as many as the loader states.
        (boxes_of_all(8, 57), boxes_of_all(8, 5), 8),
        (VIEWS, VIEWS, 8),
        (LENGTH_FIRST, LENGTH_FIRST, 8),
        (torch.zeros(1, 4096), torch.zeros(1, 4096), 8),  # packed texts
        (object(), object(), 8),
        # Whose numbers of boxes and images were the same by chance.
        (boxes_of_all(8, 8)[:2], boxes_of_all(8, 57)[:2], 8),
    ],
)
def test_batches_of_a_stream_are_full_unless_they_show_fewer_samples(full: Any, last: Any, samples: int) -> None:
    assert samples_in(8, full, full, last) == [8, 8, samples]


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        (IMAGES, 8),
        ((IMAGES, LABELS), 8),
        (UserDict(ids=torch.zeros(4, 99), labels=torch.zeros(4)), 4),
        ((IMAGES, 8 * ["a text"]), 8),
        ((IMAGES, torch.zeros(3)), None),
        ([("a text", 1), ("another", 0), ("a third", 1)], None),  # three samples, or their parts
        ((IMAGES[0], 7), None),  # one sample
        ((IMAGES[0], torch.tensor(7)), None),
        (torch.tensor(1.0), None),
        (object(), None),
    ],
)
def test_batches_that_a_data_set_makes_have_the_size_that_all_their_parts_share(batch: Any, samples: Any) -> None:
    assert samples_in(None, batch, batch) == [samples, samples]


def batches_of(loader: DataLoader, ahead: int = 0) -> Iterator[Any]:
    """Samples of the batches of two passes of a loader that prepares so many batches before they are asked for."""
    for _ in range(2):
        iterator = iter(loader)
        ask, prepared = iterator._next_index, deque[Any]()

        def prepare(iterator: Any = iterator, ask: Any = ask, prepared: Any = prepared) -> Any:
            while len(prepared) <= ahead:
                try:
                    prepared.append(ask())
                except StopIteration:
                    break
                note_index(iterator, prepared[-1])
            if not prepared:
                raise StopIteration
            return prepared.popleft()

        iterator._next_index = prepare
        for _ in iterator:
            yield samples_asked(iterator)


class Uneven(BatchSampler):
    """Batches by length, as of texts."""

    def __iter__(self) -> Iterator[list[int]]:
        return iter([[0, 1, 2], [3], [4, 5]])


@pytest.mark.parametrize("ahead", [0, 1, 4])
@pytest.mark.parametrize(
    ("loader", "sizes"),
    [
        (DataLoader(DATA, batch_size=8), [8, 8, 4]),
        (DataLoader(DATA, batch_size=8, drop_last=True), [8, 8]),
        (DataLoader(DATA, batch_sampler=Uneven(range(6), 3, drop_last=False)), [3, 1, 2]),
        # Batches that the data set makes of a list of indices, and single samples.
        (DataLoader(DATA, batch_size=None, sampler=BatchSampler(range(20), 8, drop_last=False)), [8, 8, 4]),
        (DataLoader(DATA, batch_size=None, sampler=range(2)), [None, None]),
    ],
)
def test_the_samples_of_a_batch_are_those_that_were_asked_of_the_data_set(
    loader: DataLoader, sizes: list[Any], ahead: int
) -> None:
    assert list(batches_of(loader, ahead)) == 2 * sizes
    assert set(batches_of(DataLoader(Stream(), batch_size=8))) == {None}  # of a stream it is not known


IDS = torch.ones(2, 5, dtype=torch.int64)
MASK = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])


@pytest.mark.parametrize(
    ("batch", "tokens"),
    [
        ({"input_ids": IDS}, 10),
        ({"tokens": IDS.int(), "labels": IDS}, 10),
        ({"input_ids": IDS, "attention_mask": MASK}, 8),
        (UserDict(input_ids=IDS, attention_mask=MASK.bool()), 8),
        ({"input_ids": IDS, "attention_mask": MASK[:, None]}, 10),  # of another shape
        ({"input_ids": IDS, "attention_mask": MASK.to("meta")}, 10),  # elsewhere, where reading it would wait
        ({"input_ids": IDS[0]}, None),
        ({"input_ids": IDS.float()}, None),
        ({"input_ids": [[1, 2], [3, 4]]}, None),
        (({"input": IDS}, IDS), 10),  # as torchtitan's
        ([{"input_ids": IDS, "attention_mask": MASK}, IDS], 8),
        (({"input": IDS}, IDS[:, 0]), None),  # categories, say
        (({"input": IMAGES}, IDS), None),
        ({"input": IDS}, None),
        (IDS, None),
    ],
)
def test_tokens_are_counted_in_batches_of_texts(batch: Any, tokens: int | None) -> None:
    found = Pass(Loader(LoaderDescription("Batches"), None, None, 0))
    found.add(0, batch, None)
    assert found.batches[0][1].tokens == tokens


def test_a_batch_that_cannot_be_read_has_neither_samples_nor_tokens() -> None:
    class Broken(UserDict):
        def __contains__(self, key: object) -> bool:
            raise RuntimeError

        __getitem__ = values = __contains__

    found = Pass(Loader(LoaderDescription("Batches"), None, None, 0))
    found.add(3, Broken(), None)
    assert found.batches == [(3, Contents(None, None))]


class Stream(IterableDataset):
    """Samples without a known number."""

    def __iter__(self) -> Any:
        return iter(range(20))

    def __len__(self) -> int:
        raise AssertionError("a loader that is asked for the length of a stream warns of what is beyond it")


class AccelerateShard(BatchSampler):
    """With what Accelerate's `BatchSamplerShard` says of itself."""

    num_processes, process_index = 2, 1


def distributed(replicas: int) -> DistributedSampler:
    return DistributedSampler(DATA, num_replicas=replicas, rank=0)


def within(**sampler: Any) -> DataLoader:
    """A loader whose sampler has these attributes, as OpenMMLab's have `rank` and `world_size`."""
    sampler.setdefault("__iter__", lambda _: iter(range(20)))
    return DataLoader(DATA, batch_size=4, sampler=type("Own", (), sampler)())


def repeating(loader: DataLoader) -> DataLoader:
    """As Ultralytics' `InfiniteDataLoader` and timm's `MultiEpochsDataLoader` make themselves."""
    object.__setattr__(loader, "batch_sampler", SimpleNamespace(sampler=loader.batch_sampler))
    return loader


def split(data: Any, **attributes: Any) -> Any:
    """A data set that is no PyTorch type, around another."""
    return type("Own", (), {"__len__": lambda _: 20, "__getitem__": lambda _, at: at, "dataset": data} | attributes)()


def titan(**loader: int) -> DataLoader:
    """As torchtitan's loaders of texts: the loader knows its share, the stream does not show it."""
    made = DataLoader(Stream(), batch_size=4)
    for name, value in loader.items():
        setattr(made, name, value)
    return made


def split_by_node(ranks: int) -> Stream:
    """A stream around one that Hugging Face's `split_dataset_by_node` made."""
    stream = Stream()
    stream._data = SimpleNamespace(_distributed=SimpleNamespace(rank=0, world_size=ranks))
    return stream


def loader(*data: Any, batch_size: int | None = 4, **options: Any) -> DataLoader:
    """A loader of `DATA`, or of another data set."""
    return DataLoader(*(data or (DATA,)), batch_size=batch_size, **options)


def in_batches(sampler: Any) -> DataLoader:
    """A loader whose batches a sampler makes."""
    return DataLoader(DATA, batch_sampler=sampler)


@pytest.mark.parametrize(
    ("loader", "distinct"),
    [
        (loader(), False),
        (loader(shuffle=True), False),
        (loader(sampler=distributed(2)), True),
        (loader(sampler=distributed(1)), False),  # two ranks share a model, by tensor or pipeline parallelism
        (in_batches(AccelerateShard(range(20), 4, drop_last=False)), True),
        (loader(Subset(DATA, range(10))), None),
        (loader(Stream()), None),
        (within(rank=0, world_size=2), True),
        (within(data_parallel_rank=0, data_parallel_size=2), True),
        (within(dp_rank=1, dp_world_size=2), True),
        (within(rank=2, world_size=2), None),  # no rank of so many
        (within(), None),
        (repeating(loader(sampler=distributed(2))), True),
        (repeating(loader()), None),  # around what is plain, but nobody knows by what
        (in_batches(BatchSampler(BatchSampler(distributed(2), 2, False), 4, False)), True),
        (in_batches([[0, 1], [2, 3]]), None),
        (loader(sampler=range(0, 20, 2)), None),
        (loader(batch_size=None, sampler=BatchSampler(RandomSampler(DATA), 4, False)), False),
        (loader(sampler=SubsetRandomSampler(range(20))), False),
        (loader(sampler=SubsetRandomSampler(range(0, 20, 2))), None),  # maybe a rank's share
        (loader(split(DATA)), False),
        (loader(split(Subset(DATA, range(10)))), None),
        (loader(ConcatDataset([DATA, Subset(DATA, range(10))])), None),
        (titan(dp_rank=1, dp_world_size=2), True),
        (titan(dp_rank=0, dp_world_size=1), False),  # with tensor parallelism
        (loader(split_by_node(2)), True),
        (loader(split(DATA, shard=lambda _: None)), None),  # as Hugging Face's, split before
    ],
)
def test_loaders_say_whether_ranks_draw_their_own_samples(loader: DataLoader, distinct: bool | None) -> None:
    assert loader_of(loader, 2).description.distinct is distinct
    assert loader_of(loader, 1).description.distinct is True
    assert loader_of(within(dp_rank=1, dp_world_size=2), 3).description.distinct is None  # no whole number of each


def test_a_loader_is_described_by_its_innermost_sampler_its_length_and_what_its_workers_prefetch() -> None:
    found = loader_of(repeating(loader(sampler=distributed(2))), 4)
    assert (found.description.sampler, found.description.distinct) == ("DistributedSampler", 2)  # of four
    each = loader(), loader(sampler=distributed(2)), loader(Stream()), in_batches(BatchSampler(range(20), 4, False))
    assert [loader_of(one, 2).length for one in each] == [5, 3, None, 5]
    assert {loader_of(one, 2).batch_size for one in each} == {4}
    assert [loader_of(loader(), 1).ahead, loader_of(loader(num_workers=2, prefetch_factor=2), 1).ahead] == [0, 4]
    # A pass has five batches, and nothing of the next one is prepared; a stream has any number.
    many = {"num_workers": 2, "prefetch_factor": 8}
    assert [loader_of(loader(**many), 1).ahead, loader_of(loader(Stream(), **many), 1).ahead] == [5, 16]


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


def test_samples_are_those_of_the_step_that_uses_them() -> None:
    for case in itertools.product(range(7, 13), (1, 2), (0, 1, 2), (False, True)):
        passes, truth = training(*case)
        assert used_by_step(passes) == truth, case


def test_batches_that_a_resumed_script_skips_are_used_by_no_later_step() -> None:
    loader = loader_of(DataLoader(DATA), 1)
    resumed, following = Pass(loader), Pass(loader)
    resumed.batches = [(step, 8) for step in (0, 0, 0, 0, 0, 0, 1, 2, 3, 4)]
    resumed.ended = 5
    following.batches = [(step, 8) for step in range(5, 15)]
    following.ended = 15
    assert used_by_step([resumed, following]) == {step: [8] for step in range(15)}


def test_where_later_steps_ask_for_no_steady_number_batches_are_used_where_asked_for() -> None:
    for asked in ([1, 1, 1], [2, 1], [2, 1, 2, 1], [3, 0, 0, 3, 0, 0], [1, 2, 4]):
        one = Pass(loader_of(DataLoader(DATA), 1))
        one.batches = [(step, 8) for step, count in enumerate(asked) for _ in range(count)]
        assert used_by_step([one]) == {step: [8] * count for step, count in enumerate(asked) if count}


@pytest.mark.parametrize(
    ("pace", "placed"),
    [
        (Pace(), (0, 2, 10, False)),  # no loader
        (Pace(steps_in_pass=30, batches_per_step=1, pass_batches=100), (0, 2, 10, False)),
        (Pace(steps_in_pass=95, batches_per_step=1, pass_batches=100), (6, 2, 10, False)),  # second step of the next
        (Pace(steps_in_pass=3, batches_per_step=1, pass_batches=8), (0, 2, 10, True)),
        (Pace(steps_in_pass=3, batches_per_step=1, pass_batches=None, ahead=8), (0, 16, 32, False)),
        (Pace(steps_in_pass=30, batches_per_step=4, pass_batches=400, ahead=8), (0, 4, 10, False)),
        # Passes of five steps, all of which the workers read ahead: from the end of the one that goes on.
        (Pace(steps_in_pass=2, batches_per_step=1, pass_batches=5, ahead=5), (0, 3, 10, True)),
        (Pace(steps_in_pass=4, batches_per_step=1, pass_batches=5, ahead=5), (0, 2, 10, True)),
    ],
)
def test_the_profiled_window_follows_the_measured_one_within_a_pass(
    pace: Pace, placed: tuple[int, int, int, bool]
) -> None:
    assert tuple(place(pace, profiled=10)) == placed


def test_without_a_profiler_there_is_no_window_for_it() -> None:
    plan = Plan(make_job_file(Path(), warmup_steps=2, profiled_steps=0).observe)
    assert [plan.window(step) for step in range(1, plan.steps + 1)] == 2 * ["warmup"] + 3 * ["measured"]


def test_windows_follow_each_other() -> None:
    plan = Plan(make_job_file(Path(), warmup_steps=2).observe)
    assert plan.steps == 9
    plan.profiled = place(Pace(), 2)._replace(warmup_steps=1, settling_steps=1)
    assert plan.opening == 7
    assert [plan.window(step) for step in range(1, plan.steps + 1)] == (
        2 * ["warmup"] + 3 * ["measured"] + 2 * ["warmup"] + 2 * ["profiled"]
    )


def test_batches_of_the_first_steps_have_checksums() -> None:
    batches = [torch.full((8, 4), float(number)) for number in range(5)]
    drawn = Pass(Loader(LoaderDescription("Batches"), 8, None, 0))
    for step, batch in enumerate(batches):
        drawn.add(step, (batch, LABELS), 8)
    # Step 0 is before the first update. All elements of so small tensors count.
    labels = 8 * 8 * b"\0"
    assert checksums([drawn]) == [zlib.crc32(8 * 4 * struct.pack("<f", number) + labels) for number in (1, 2, 3)]
    drawn.add(3, "a text", 8)
    assert checksums([drawn]) == []


@pytest.mark.parametrize(
    ("batch", "other", "are_equal"),
    [
        (torch.arange(12).view(3, 4), torch.arange(12).view(3, 4), True),
        # Images that differ in a block of 64 × 64 pixels only.
        (torch.zeros(8, 3, 224, 224), nn.functional.pad(torch.ones(8, 3, 64, 64), (160, 0, 160, 0)), False),
        ({"index": torch.arange(4), "x": torch.ones(4)}, {"index": torch.arange(4), "x": torch.zeros(4)}, False),
        (torch.zeros(4, 8, 8)[:, :, ::2], torch.zeros(4, 8, 4), True),
    ],
)
def test_checksums_of_different_samples_differ(batch: Any, other: Any, are_equal: bool) -> None:
    assert checksum_of(batch) is not None
    assert (checksum_of(batch) == checksum_of(other)) is are_equal


def test_batches_on_another_device_and_texts_have_no_checksum() -> None:
    assert checksum_of(torch.zeros(4, device="meta")) is None
    assert checksum_of(["a text", {"another": 1}]) is None


STREAM = """
class Numbers(IterableDataset):
    def __iter__(self):
        return (torch.full((4,), float(number)) for number in range(1000))
for x in DataLoader(Numbers(), batch_size=2):
    loss_of(x, torch.zeros(2, dtype=torch.int64)).backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_the_record_of_a_rank_has_the_checksums_of_its_first_batches(server: Server, tmp_path: Path) -> None:
    found = server.run(tmp_path, after_head(STREAM), profiled_steps=0)
    # The first batch, of samples 0 and 1, comes before the first update.
    samples = [4 * struct.pack("<f", number) for number in range(8)]
    batches = [samples[first] + samples[first + 1] for first in (2, 4, 6)]
    assert found.rank["observed"]["first_batches"] == [zlib.crc32(batch) for batch in batches]
