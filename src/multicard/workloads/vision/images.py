"""Folders of image files: the user's, which stay where they are, and those that a preparation writes."""

import hashlib
import io
import itertools
import tempfile
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from functools import partial
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any, TypeVar

from multicard.core.errors import UserError, in_one_line
from multicard.core.system import usable_cpus
from multicard.experiment.datasets import ImageFolder
from multicard.workloads.vision.sources import CLASSES, Samples

SPLITS = ("train", "test")
TEST_EVERY = 10  # images of a class, in a folder without parts
JPEG_QUALITY = 95

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_threads(function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Results in the order of the items, computed on all cores: codecs let other threads run."""
    pool = ThreadPool(usable_cpus())
    try:
        yield from pool.imap(function, items, chunksize=32)
    finally:
        pool.terminate()
        pool.join()  # no thread continues to write after an error


def index_folder(dataset: ImageFolder, name: str) -> dict[str, Any]:
    """List the images of a user's folder, and decode every one to see that it can be.

    Raises `UserError` if the classes differ, one has no images, or images cannot be decoded and are not to be skipped.
    """
    from torchvision import datasets

    folder, key, parts = Path(dataset.folder), f"datasets.{name}.folder", dataset.parts()
    roots = {split: folder / parts.get(split, "") for split in SPLITS}
    try:
        opened = {split: datasets.ImageFolder(root) for split, root in roots.items()}
    except FileNotFoundError as error:  # of folders without images
        raise UserError(f"{key}: {roots['train']} or {roots['test']}: {error}") from error
    classes = opened["train"].classes
    if classes != opened["test"].classes:
        raise UserError(
            f"{key}: expected the same class folders in {roots['train']} and {roots['test']}, "
            f"found {len(classes)} and {len(opened['test'].classes)} that differ"
        )
    files = list(dict.fromkeys(path for images in opened.values() for path, _ in images.samples))
    checked = zip(files, in_threads(why_unreadable, map(Path, files)), strict=True)
    unreadable = {file: reason for file, reason in checked if reason is not None}
    if unreadable and dataset.unreadable == "refuse":
        first, reason = next(iter(unreadable.items()))
        raise UserError(
            f"{key}: {len(unreadable)} of {len(files)} images cannot be read, the first is {first} ({reason}); "
            "unreadable: skip would leave them out"
        )
    samples = {split: choose_samples(opened[split].samples, split, unreadable, parts) for split in SPLITS}
    for split, chosen in samples.items():
        if missing := set(range(len(classes))) - {label for _, label in chosen}:
            raise UserError(
                f"{key}: no readable images in {roots[split] / classes[min(missing)]} that could be of the {split} part"
            )
    return {
        "origin": "a folder of the user",
        "folder": str(folder.absolute()),
        "parts": parts,
        "split": f"the folders {parts['train']} and {parts['test']}"
        if parts
        else f"of every {TEST_EVERY} readable images of a class, in the order of their names, the first is tested",
        "classes": classes,
        "train_samples": len(samples["train"]),
        "test_samples": len(samples["test"]),
        # The customary statistics of ImageNet, as torchvision's pretrained models expect them.
        "mean": [0.485, 0.456, 0.406],
        "std": [0.229, 0.224, 0.225],
        "unreadable": [
            {"name": Path(file).relative_to(folder).as_posix(), "reason": reason} for file, reason in unreadable.items()
        ],
        "files": [],
    }


def choose_samples(
    samples: list[tuple[str, int]], split: str, unreadable: Container[str], parts: Mapping[str, str]
) -> list[tuple[str, int]]:
    """Those of a folder's files, each with its class, that belong to a split.

    `parts`: the folders of the splits; where there are none, every tenth readable image of a class is tested.
    """
    readable = [sample for sample in samples if sample[0] not in unreadable]
    if parts:
        return readable
    by_class = itertools.groupby(readable, key=lambda sample: sample[1])
    numbered = [(number, sample) for _, alike in by_class for number, sample in enumerate(alike)]
    return [sample for number, sample in numbered if (number % TEST_EVERY == 0) == (split == "test")]


def why_unreadable(file: Path) -> str | None:
    """Why an image cannot be decoded; checksums inside the file are checked too."""
    from PIL import Image

    try:
        with Image.open(file) as image:
            image.verify()  # leaves an image that cannot be used, and misses cut JPEG files
        with Image.open(file) as image:
            # All of a JPEG file is read at any size, and an eighth in grayscale is fastest.
            image.draft("L", (1, 1))
            image.convert("RGB")
    except Exception as error:  # decoders of damaged files raise whatever they stumble over
        return in_one_line(error).replace(f" {str(file)!r}", "")
    return None


def write_tree(folder: Path, split: str, samples: Samples, size: int) -> dict[str, Any]:
    """Write images, upsampled to `size` pixels, as `folder`/`split`/<class>/<index>.jpg, all of them or none.

    Pillow's bilinear filter, which antialiases. Returns the entry of the tree in the provenance's files.
    """
    from PIL import Image

    digits = len(str(len(samples) - 1))

    def write(unfinished: Path, index: int) -> tuple[str, int, str]:
        name = f"{samples.labels[index]}/{index:0{digits}}.jpg"
        encoded = io.BytesIO()
        image = Image.fromarray(samples.images[index]).resize((size, size), Image.Resampling.BILINEAR)
        image.convert("RGB").save(encoded, "JPEG", quality=JPEG_QUALITY)
        content = encoded.getvalue()
        (unfinished / name).write_bytes(content)
        return name, len(content), hashlib.sha256(content).hexdigest()

    with tempfile.TemporaryDirectory(dir=folder, prefix=".unfinished-") as scratch:
        unfinished = Path(scratch, split)
        for label in CLASSES:
            (unfinished / label).mkdir(parents=True)
        rows = sorted(in_threads(partial(write, unfinished), range(len(samples))))
        unfinished.rename(folder / split)
    listed = "".join(f"{name}\t{size}\t{digest}\n" for name, size, digest in rows)
    return {
        "name": split,
        "files": len(rows),
        "bytes": sum(size for _, size, _ in rows),
        "sha256": hashlib.sha256(listed.encode()).hexdigest(),
    }
