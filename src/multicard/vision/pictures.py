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

from multicard.errors import UserError
from multicard.experiment.config import ImageFolder
from multicard.experiment.machine import usable_cpus
from multicard.vision.sources import CLASSES, Samples

SPLITS = ("train", "test")
DECODE_AT_MOST = 50_000  # images of a folder; of a larger one only the headers are read
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
        pool.join()  # no thread writes on after a fault


def index_folder(dataset: ImageFolder, name: str) -> dict[str, Any]:
    """List and check the images of a user's folder.

    Raises
    ------
    UserError
        If the classes differ, one has no images, or images cannot be read and are not to be skipped.
    """
    folder, key = Path(dataset.folder), f"datasets.{name}.folder"
    classes, files = {}, {}
    for split in SPLITS:
        classes[split] = sorted(entry.name for entry in (folder / split).iterdir() if entry.is_dir())
        for label in classes[split]:
            files[split, label] = _images_below(folder / split / label)
            if not files[split, label]:
                raise UserError(f"{key}: no images in {folder / split / label}")
    if not classes["train"] or classes["train"] != classes["test"]:
        raise UserError(
            f"{key}: expected the same class folders in {folder}/train and {folder}/test, "
            f"found {len(classes['train'])} and {len(classes['test'])} that differ"
        )
    everything = list(itertools.chain.from_iterable(files.values()))
    check = _fault_of_image if len(everything) <= DECODE_AT_MOST else _fault_of_header
    faults = {
        file: fault for file, fault in zip(everything, in_threads(check, everything), strict=True) if fault is not None
    }
    if faults and dataset.unreadable == "refuse":
        first, reason = next(iter(faults.items()))
        raise UserError(
            f"{key}: {len(faults)} of {len(everything)} images cannot be read, the first is {first} ({reason}); "
            "unreadable: skip would leave them out"
        )
    for (split, label), images in files.items():
        if all(file in faults for file in images):
            raise UserError(f"{key}: no readable images in {folder / split / label}")
    counts = {split: sum(len(files[split, label]) for label in classes[split]) for split in SPLITS}
    for file in faults:
        counts[file.relative_to(folder).parts[0]] -= 1
    return {
        "origin": "a folder of the user",
        "folder": str(folder.absolute()),
        "classes": classes["train"],
        "train_samples": counts["train"],
        "test_samples": counts["test"],
        # The customary statistics of ImageNet, as torchvision's pretrained models expect them.
        "mean": [0.485, 0.456, 0.406],
        "std": [0.229, 0.224, 0.225],
        "checked": "every image decoded" if check is _fault_of_image else "the header of every image",
        "unreadable": [
            {"name": file.relative_to(folder).as_posix(), "reason": reason} for file, reason in faults.items()
        ],
        "files": [],
    }


def _images_below(folder: Path) -> list[Path]:
    """Files that torchvision's ImageFolder takes for images of a class, in its order: subfolders are read too."""
    from torchvision.datasets.folder import IMG_EXTENSIONS

    return [
        Path(place, name)
        for place, _, names in sorted(os.walk(folder, followlinks=True))
        for name in sorted(names)
        if name.lower().endswith(IMG_EXTENSIONS)
    ]


def _fault_of_header(file: Path) -> str | None:
    """Say why a file is no image, by its first bytes alone."""
    from PIL import Image

    try:
        with Image.open(file):
            return None
    except Exception as error:  # decoders of damaged files raise whatever they stumble over
        return _in_one_line(error, file)


def _fault_of_image(file: Path) -> str | None:
    """Say why an image cannot be decoded; checksums inside the file are checked too."""
    from PIL import Image

    try:
        with Image.open(file) as image:
            image.verify()
        with Image.open(file) as image:  # verify() leaves an image that cannot be used, and misses cut JPEG files
            image.load()
    except Exception as error:
        return _in_one_line(error, file)
    return None


def _in_one_line(error: Exception, file: Path) -> str:
    text = getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
    return text.replace(f" {str(file)!r}", "")


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


def is_unchanged(folder: Path, entry: dict[str, Any]) -> bool:
    """Tell whether a tree that was written still has the same files of the same sizes; contents are not read."""
    tree = folder / entry["name"]
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
