"""Folders of image files: the user's, which stay where they are, and those that a preparation writes."""

import hashlib
import io
import itertools
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any, TypeVar

from multicard.core.errors import UserError
from multicard.core.prepared import Entry
from multicard.core.system import usable_cpus
from multicard.experiment.datasets import ImageFolder
from multicard.workloads.vision.sources import CLASSES, Samples

SPLITS = ("train", "test")
TEST_EVERY = 10  # images of a class, in a folder without parts
JPEG_QUALITY = 95
MADE_HERE = ".made-by-multicard"  # in a tree that a later preparation may replace

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

    Raises
    ------
    UserError
        If the classes differ, one has no images, or images cannot be decoded and are not to be skipped.
    """
    folder, key, parts = Path(dataset.folder), f"datasets.{name}.folder", dataset.parts()
    roots = {split: folder / parts.get(split, "") for split in SPLITS}
    classes = {split: sorted(entry.name for entry in root.iterdir() if entry.is_dir()) for split, root in roots.items()}
    places = [root / label for split, root in roots.items() for label in classes[split]]
    files = {place: _images_below(place) for place in places}
    for place, images in files.items():
        if not images:
            raise UserError(f"{key}: no images in {place}")
    if not classes["train"] or classes["train"] != classes["test"]:
        raise UserError(
            f"{key}: expected the same class folders in {roots['train']} and {roots['test']}, "
            f"found {len(classes['train'])} and {len(classes['test'])} that differ"
        )
    everything = list(itertools.chain.from_iterable(files.values()))
    checked = zip(everything, in_threads(why_unreadable, everything), strict=True)
    unreadable = {file: reason for file, reason in checked if reason is not None}
    if unreadable and dataset.unreadable == "refuse":
        first, reason = next(iter(unreadable.items()))
        raise UserError(
            f"{key}: {len(unreadable)} of {len(everything)} images cannot be read, the first is {first} ({reason}); "
            "unreadable: skip would leave them out"
        )
    counts = dict.fromkeys(SPLITS, 0)
    for split, root in roots.items():
        for label in classes[split]:
            readable = [file for file in files[root / label] if file not in unreadable]
            taken = readable if parts else share(readable, split)
            if not readable:
                raise UserError(f"{key}: no readable images in {root / label}")
            if not taken:
                raise UserError(f"{key}: one readable image in {root / label}, expected two: to train and to test with")
            counts[split] += len(taken)
    return {
        "origin": "a folder of the user",
        "folder": str(folder.absolute()),
        "parts": parts,
        "split": f"the folders {parts['train']} and {parts['test']}"
        if parts
        else f"of every {TEST_EVERY} readable images of a class, in the order of their names, the first is tested",
        "classes": classes["train"],
        "train_samples": counts["train"],
        "test_samples": counts["test"],
        # The customary statistics of ImageNet, as torchvision's pretrained models expect them.
        "mean": [0.485, 0.456, 0.406],
        "std": [0.229, 0.224, 0.225],
        "unreadable": [
            {"name": file.relative_to(folder).as_posix(), "reason": reason} for file, reason in unreadable.items()
        ],
        "files": [],
    }


def share(images: list[Item], split: str) -> list[Item]:
    """Those of a class's images that fall to a split where the folder has no parts of its own."""
    if split == "test":
        return images[::TEST_EVERY]
    return [image for index, image in enumerate(images) if index % TEST_EVERY]


def _images_below(folder: Path) -> list[Path]:
    """Files that torchvision's ImageFolder takes for images of a class, in its order: subfolders are read too."""
    from torchvision.datasets.folder import IMG_EXTENSIONS

    return [
        Path(place, name)
        for place, _, names in sorted(os.walk(folder, followlinks=True))
        for name in sorted(names)
        if name.lower().endswith(IMG_EXTENSIONS)
    ]


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
        text = getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
        return text.replace(f" {str(file)!r}", "")
    return None


def clear_trees(folder: Path, wanted: bool) -> None:
    """Remove the image files of an earlier preparation, finished or not, so that others can be written if `wanted`.

    Raises
    ------
    UserError
        If they are wanted, and files lie there that no preparation made.
    """
    for split in SPLITS:
        shutil.rmtree(_unfinished(folder, split), ignore_errors=True)
        if (folder / split / MADE_HERE).exists():
            shutil.rmtree(folder / split)
        if wanted and (folder / split).exists():
            raise UserError(f"{folder / split}: found files that multicard did not make, expected none")


def write_tree(folder: Path, split: str, samples: Samples, size: int) -> dict[str, Any]:
    """Write images, upsampled to `size` pixels, as `folder`/`split`/<class>/<index>.jpg, all of them or none.

    Pillow's bilinear filter, which antialiases. Returns the entry of the tree in the provenance's files.
    """
    from PIL import Image

    tree, unfinished = folder / split, _unfinished(folder, split)
    digits = len(str(len(samples) - 1))

    def write(index: int) -> tuple[str, int, str]:
        name = f"{samples.labels[index]}/{index:0{digits}}.jpg"
        encoded = io.BytesIO()
        image = Image.fromarray(samples.images[index]).resize((size, size), Image.Resampling.BILINEAR)
        image.convert("RGB").save(encoded, "JPEG", quality=JPEG_QUALITY)
        content = encoded.getvalue()
        (unfinished / name).write_bytes(content)
        return name, len(content), hashlib.sha256(content).hexdigest()

    try:
        for label in CLASSES:
            (unfinished / label).mkdir(parents=True)
        (unfinished / MADE_HERE).touch()
        rows = sorted(in_threads(write, range(len(samples))))
        unfinished.rename(tree)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    return {
        "name": split,
        "files": len(rows),
        "bytes": sum(size for _, size, _ in rows),
        "sha256": _digest(f"{name}\t{size}\t{digest}" for name, size, digest in rows),
        "sizes_sha256": _digest(f"{name}\t{size}" for name, size, _ in rows),
    }


def tree_is_unchanged(tree: Path, entry: Entry) -> bool:
    """Whether a tree that was written still has the same files of the same sizes; contents are not read."""
    sizes = []
    for label in CLASSES:
        try:
            with os.scandir(tree / label) as files:
                sizes += [(f"{label}/{file.name}", file.stat().st_size) for file in files]
        except OSError:
            return False
    return _digest(f"{name}\t{size}" for name, size in sorted(sizes)) == entry["sizes_sha256"]


def _unfinished(folder: Path, split: str) -> Path:
    return folder / f".{split}-unfinished"


def _digest(lines: Iterable[str]) -> str:
    """SHA-256 of lines of text."""
    digest = hashlib.sha256()
    for line in lines:
        digest.update(f"{line}\n".encode())
    return digest.hexdigest()
