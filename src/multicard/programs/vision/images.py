"""Folders of image files: those of users, which are only read, and those that multicard writes."""

import hashlib
import io
import itertools
import tempfile
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from functools import partial
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import TypeVar

from multicard.core.errors import UserError, in_one_line
from multicard.core.system import usable_cpus
from multicard.programs.datasets import ImageFolder
from multicard.programs.provenance import ImageProvenance, PreparedFile, Split, UnreadableImage
from multicard.programs.vision.sources import CLASSES, Samples

SPLITS: tuple[Split, ...] = ("train", "test")
TEST_EVERY = 10  # where a folder has no parts for training and test, one of so many images of a class is a test image
JPEG_QUALITY = 95

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_threads(function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Yield the result of a function for each item, in the order of the items, computed by a thread per usable CPU.

    Threads suffice because image codecs release Python's global lock.
    """
    pool = ThreadPool(usable_cpus())
    try:
        yield from pool.imap(function, items, chunksize=32)
    finally:
        pool.terminate()
        # After an error, wait for the threads, so that none writes files any more.
        pool.join()


def index_folder(dataset: ImageFolder, name: str) -> ImageProvenance:
    """Return the provenance of a user's folder of images, after trying to decode every image.

    `name`: name of the data set. Raises `UserError` if the folders of the two splits have different
    classes, if a class has no readable image in a split, or if an image cannot be decoded, unless the data set says to
    skip such images.
    """
    from torchvision import datasets

    folder = Path(dataset.folder)
    key = f"datasets.{name}.folder"
    parts = dataset.parts()
    roots = {split: folder / parts.get(split, "") for split in SPLITS}
    try:
        opened = {split: datasets.ImageFolder(root) for split, root in roots.items()}
    except FileNotFoundError as error:
        # There is no folder of a class, or one without images.
        raise UserError(f"{key}: {roots['train']} or {roots['test']}: {error}") from error
    classes = opened["train"].classes
    if classes != opened["test"].classes:
        raise UserError(
            f"{key}: expected the same class folders in {roots['train']} and {roots['test']}, "
            f"found {len(classes)} and {len(opened['test'].classes)} that differ"
        )
    files = list(dict.fromkeys(path for images in opened.values() for path, _ in images.samples))
    reasons = in_threads(why_unreadable, map(Path, files))
    unreadable = {file: reason for file, reason in zip(files, reasons, strict=True) if reason is not None}
    if unreadable and dataset.unreadable == "refuse":
        first, reason = next(iter(unreadable.items()))
        raise UserError(
            f"{key}: {len(unreadable)} of {len(files)} images cannot be read, the first is {first} ({reason}); "
            "unreadable: skip would leave them out"
        )
    samples = {split: choose_samples(opened[split].samples, split, unreadable, parts) for split in SPLITS}
    for split, chosen in samples.items():
        labels_with_images = {label for _, label in chosen}
        if missing := set(range(len(classes))) - labels_with_images:
            raise UserError(
                f"{key}: no readable images in {roots[split] / classes[min(missing)]} that could be of the {split} part"
            )
    how_split = f"of every {TEST_EVERY} readable images of a class, in the order of their names, the first is tested"
    if parts:
        how_split = f"the folders {parts['train']} and {parts['test']}"
    return ImageProvenance(
        dataset=name,
        source=dataset.source,
        origin="a folder of the user",
        folder=str(folder.absolute()),
        parts=parts,
        split=how_split,
        classes=tuple(classes),
        train_samples=len(samples["train"]),
        test_samples=len(samples["test"]),
        # The customary statistics of ImageNet, as torchvision's pretrained models expect them.
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        unreadable=tuple(
            UnreadableImage(name=Path(file).relative_to(folder).as_posix(), reason=reason)
            for file, reason in unreadable.items()
        ),
        files=(),
    )


def choose_samples(
    samples: list[tuple[str, int]], split: Split, unreadable: Container[str], parts: Mapping[str, str]
) -> list[tuple[str, int]]:
    """Return the readable files of a split, each with its class.

    `samples`: files of a folder with their classes, ordered by class. `parts`: the folder of each split; `samples` are
    then those of this split. If `parts` is empty, `samples` are those of both splits: the 1st, 11th, 21st … readable
    image of each class is a test image, the others are training images.

    >>> samples = [(f"a{number}", 0) for number in range(3)] + [("b0", 1)]
    >>> choose_samples(samples, "test", unreadable={"a0"}, parts={})
    [('a1', 0), ('b0', 1)]
    """
    readable = [(file, label) for file, label in samples if file not in unreadable]
    if parts:
        return readable
    chosen = []
    for _, samples_of_class in itertools.groupby(readable, key=lambda sample: sample[1]):
        for number, sample in enumerate(samples_of_class):
            is_test = number % TEST_EVERY == 0
            if is_test == (split == "test"):
                chosen.append(sample)
    return chosen


def why_unreadable(file: Path) -> str | None:
    """Return why an image cannot be decoded; None if it can. The checksums inside the file are checked, too."""
    from PIL import Image

    try:
        with Image.open(file) as image:
            # `verify` does not notice truncated JPEG files. The image cannot be used after it.
            image.verify()
        with Image.open(file) as image:
            # A JPEG decoder reads the whole file at any scale. It is fastest at 1/8 of width and height, in grayscale.
            image.draft("L", (1, 1))
            image.convert("RGB")
    except Exception as error:
        # Decoders of damaged files raise errors of any class.
        return in_one_line(error).replace(f" {str(file)!r}", "")
    return None


def write_tree(folder: Path, split: Split, samples: Samples, size: int) -> PreparedFile:
    """Write images as `folder`/`split`/<class>/<index>.jpg, all or none; return the tree's entry of provenance.

    The images are resized to `size` × `size` pixels by Pillow's bilinear filter. The entry's `sha256` is the digest of
    a list of the files: one line for each, with name, bytes and SHA-256, separated by tabs.
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
    return PreparedFile(
        name=split,
        files=len(rows),
        bytes=sum(size for _, size, _ in rows),
        sha256=hashlib.sha256(listed.encode()).hexdigest(),
    )
