"""DALI gives the samples of PyTorch's DataLoader, in the same order, and cleans up after itself."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, SequentialSampler

from conftest import refusal
from multicard.programs.datasets import ImageFolder
from multicard.programs.provenance import ImageProvenance, read_unchanged
from multicard.programs.vision.dali import DaliLoader
from multicard.programs.vision.data import GrayscaleDataset, open_split
from multicard.programs.vision.parameters import VisionParameters
from multicard.programs.vision.prepare import prepare
from prepared_sets import make_image_provenance

pytestmark = pytest.mark.slow

BATCH = 8
MEAN, STD = (0.3, 0.4, 0.5), (0.2, 0.25, 0.3)
LEVELS = torch.tensor(STD).view(1, 3, 1, 1) * 255  # a normalized difference times this is one in gray levels

devices = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)])

Open = Callable[..., DaliLoader]


def loader_of(
    dataset: Dataset, image_size: int, sampler: Any = None, device: str = "cpu", prefetch_factor: int = 2
) -> DaliLoader:
    p = VisionParameters(batch_size=BATCH, num_workers=2, prefetch_factor=prefetch_factor)
    p = p.model_copy(update={"image_size": image_size})  # whatever a configuration may state
    sampler = SequentialSampler(dataset) if sampler is None else sampler
    return DaliLoader(dataset, sampler, p, make_image_provenance(mean=MEAN, std=STD), torch.device(device))


@pytest.fixture
def open_loader() -> Iterator[Open]:
    """Open loaders, which close when the test ends."""
    pytest.importorskip("nvidia.dali", reason="needs NVIDIA DALI: pip install 'multicard[dali]'")
    opened = []

    def open_one(*arguments: Any, **options: Any) -> DaliLoader:
        opened.append(loader_of(*arguments, **options))
        return opened[-1]

    yield open_one
    for loader in opened:
        loader.close()


def arrays(folder: Path, height: int, width: int, image_size: int, count: int = 24) -> GrayscaleDataset:
    """Noise, the hardest to resize alike."""
    rng = np.random.default_rng(height * width)
    np.save(folder / "train_images.npy", rng.integers(0, 256, (count, height, width), dtype=np.uint8))
    np.save(folder / "train_labels.npy", rng.integers(0, 10, count))
    return open_split(folder, make_image_provenance(mean=MEAN, std=STD), "train", image_size)


def images_in(folder: Path, size: tuple[int, int], image_size: int, suffix: str = "png", mode: str = "RGB") -> Dataset:
    rng = np.random.default_rng(0)
    for split, count in {"train": 24, "test": 3}.items():
        for number in range(count):
            path = folder / "in" / split / f"class {number % 3}" / f"schön {number}.{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (*size, 3), dtype=np.uint8)).convert(mode).save(path)
    prepare("pictures", ImageFolder(source="imagefolder", folder=str(folder / "in")), folder / "out")
    provenance = read_unchanged(folder / "out", ImageProvenance).model_copy(update={"mean": MEAN, "std": STD})
    return open_split(folder / "out", provenance, "train", image_size)


def differences(loader: DaliLoader, dataset: Dataset) -> torch.Tensor:
    """Differences in gray levels between all samples of the two loaders, whose labels must be the same."""
    expected, found = list(DataLoader(dataset, BATCH)), list(loader)
    assert [images.shape for images, _ in found] == [images.shape for images, _ in expected]
    for images, labels in found:
        assert images.dtype == torch.float32
        assert labels.dtype == torch.int64
        assert images.device.type == labels.device.type == loader.device.type
    assert [labels.tolist() for _, labels in found] == [labels.tolist() for _, labels in expected]
    return torch.cat(
        [(theirs.cpu() - ours).abs() * LEVELS for (theirs, _), (ours, _) in zip(found, expected, strict=True)]
    )


def threads() -> int:
    return psutil.Process().num_threads()


@devices
@pytest.mark.parametrize(
    ("form", "mode", "size", "image_size", "inside", "at_the_edge"),  # limits of a difference in gray levels
    [
        ("arrays", "L", (28, 28), 28, 0.002, 0.002),
        ("arrays", "L", (30, 20), 64, 0.002, 0.002),
        ("arrays", "L", (28, 28), 16, 0.002, 25),
        ("png", "RGB", (40, 30), 32, 1.01, 8),
        ("png", "L", (20, 20), 50, 1.01, 1.01),
        ("png", "P", (32, 32), 32, 1.01, 1.01),
        ("png", "RGBA", (40, 30), 32, 1.01, 8),
        ("jpg", "RGB", (40, 30), 32, 10, 10),
        ("jpg", "CMYK", (40, 30), 32, 10, 10),
    ],
)
def test_images_are_those_of_the_data_loader_but_for_rounding_and_the_outermost_pixels_of_shrunk_ones(
    tmp_path: Path,
    open_loader: Open,
    form: str,
    mode: str,
    size: tuple[int, int],
    image_size: int,
    inside: float,
    at_the_edge: float,
    device: str,
) -> None:
    if form == "arrays":
        dataset = arrays(tmp_path, *size, image_size)
    else:
        dataset = images_in(tmp_path, size, image_size, form, mode)
    off = differences(open_loader(dataset, image_size, device=device), dataset)
    assert off[..., 1:-1, 1:-1].max() < inside
    assert off.max() < at_the_edge
    assert off.mean() < {"arrays": 1, "png": 0.3, "jpg": 1}[form]


def test_a_photo_taken_sideways_is_not_turned(tmp_path: Path, open_loader: Open) -> None:
    dataset = images_in(tmp_path, (32, 32), 32, suffix="jpg")
    for path, _ in dataset.samples:
        with Image.open(path) as image:
            orientation = image.getexif()
            orientation[0x0112] = 6
            image.save(path, exif=orientation)
    assert differences(open_loader(dataset, 32), dataset).max() < 3


@pytest.mark.parametrize(("prefetch_factor", "taken"), [(1, 0), (1, 3), (2, 1), (7, 2)])
def test_a_pass_may_be_left_half_way(tmp_path: Path, open_loader: Open, prefetch_factor: int, taken: int) -> None:
    dataset = arrays(tmp_path, 8, 8, 8)  # 3 batches
    loader = open_loader(dataset, 8, prefetch_factor=prefetch_factor)
    unfinished = iter(loader)
    for _ in range(taken):
        next(unfinished)
    assert differences(loader, dataset).max() < 0.002
    with pytest.raises(RuntimeError, match="the loader has begun another"):
        next(unfinished)
    # A loader that was closed can begin a new pass, and not go on with an old one.
    unfinished = iter(loader)
    loader.close()
    with pytest.raises(RuntimeError, match="is closed"):
        next(unfinished)
    assert differences(loader, dataset).max() < 0.002


def test_batches_outlive_the_pass_and_the_loader(tmp_path: Path, open_loader: Open) -> None:
    dataset = arrays(tmp_path, 8, 8, 8)
    loader = open_loader(dataset, 8, prefetch_factor=1)
    kept = list(loader)
    copies = [images.clone() for images, _ in kept]
    list(open_loader(dataset, 8, list(range(19, -1, -1))))
    list(loader)
    loader.close()
    assert all(torch.equal(images, copy) for (images, _), copy in zip(kept, copies, strict=True))


def test_a_last_batch_that_is_not_full_is_dropped(tmp_path: Path, open_loader: Open) -> None:
    dataset = arrays(tmp_path, 8, 8, 8)
    for sampler, sizes in ((range(20), [8, 8]), ([3, 1], [])):
        loader = open_loader(dataset, 8, sampler)
        assert [len(labels) for _, labels in loader] == sizes
        assert len(loader) == len(sizes)


@pytest.mark.parametrize("end", ["close", "forget"])
def test_a_loader_leaves_no_thread_and_no_process(tmp_path: Path, open_loader: Open, end: str) -> None:
    dataset = images_in(tmp_path, (40, 30), 32)
    list(open_loader(dataset, 32))  # what DALI starts once for all loaders
    before, others = threads(), psutil.Process().children()
    loader = loader_of(dataset, 32)
    batches = iter(loader)
    next(batches)
    assert threads() > before
    assert psutil.Process().children() == others
    if end == "close":
        loader.close()
    else:
        del loader, batches
    assert threads() == before


@pytest.mark.parametrize(
    ("damage", "suffix"), [("text", "jpg"), ("empty", "png"), ("cut", "jpg"), ("cut", "png"), ("missing", "png")]
)
def test_an_image_that_cannot_be_read_ends_the_pass_and_not_the_loader(
    tmp_path: Path, open_loader: Open, damage: str, suffix: str
) -> None:
    dataset = images_in(tmp_path, (40, 30), 32, suffix=suffix)
    path = Path(dataset.samples[17][0])
    whole = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes({"text": b"not an image" * 99, "empty": b"", "cut": whole[: len(whole) // 2]}[damage])
    loader = open_loader(dataset, 32)
    batches = iter(loader)
    next(batches), next(batches)
    with pytest.raises(RuntimeError):
        next(batches)

    path.write_bytes(whole)
    assert len(list(loader)) == 3


def test_memory_that_runs_out_is_told_from_a_broken_image(tmp_path: Path, open_loader: Open) -> None:
    dataset = images_in(tmp_path, (40, 30), 32)
    edge = 10**7  # 8 images of 300 terabytes each
    with pytest.raises(MemoryError, match="bad_alloc"):
        next(iter(open_loader(dataset, edge)))


def test_without_dali_the_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)  # as if it were not installed
    line = refusal(lambda: loader_of(arrays(tmp_path, 8, 8, 8), 8))
    assert line == 'loader: dali needs the package nvidia-dali-cuda130 (pip install "multicard[dali]")'
