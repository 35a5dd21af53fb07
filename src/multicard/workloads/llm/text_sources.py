"""Rows of texts from where they lie: the shipped sets, a user's file, what Hugging Face publishes."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import pandas as pd

from multicard.core.errors import UserError
from multicard.core.files import described
from multicard.experiment.datasets import PUBLISHED, PublishedText, ShippedText, Text, TextFile

ENCODING = "utf-8-sig"  # what Windows puts before a text is no part of it
BATCH = 1000  # rows of a CSV or Parquet file that are in memory at a time


@dataclass(frozen=True)
class TextSource:
    """A set of texts: where it is, its rows, and what its provenance records of its origin."""

    place: str
    rows: Iterator[Any]
    facts: dict[str, Any] = field(default_factory=dict)

    def samples(self) -> Iterator[tuple[str, Any]]:
        """Rows, each with its place.

        Raises
        ------
        UserError
            At a row that cannot be read.
        """
        number = 0
        while True:
            try:
                row = next(self.rows)
            except StopIteration:
                return
            except Exception as error:  # whatever a reader stumbles over
                raise UserError(
                    f"{self.place}: cannot be read after {number} samples: {_in_one_line(error)}"
                ) from error
            number += 1
            yield f"{self.place}, sample {number}", row


def open_source(name: str, dataset: Text, resources: Path, scratch: Path) -> TextSource:
    """Open a set of texts; rows are read and checked lazily.

    Parameters
    ----------
    resources
        Folder of the shipped inputs.
    scratch
        Where the libraries of Hugging Face may write meanwhile.

    Raises
    ------
    UserError
        If the file is of an unknown kind, or the published set cannot be opened.
    """
    match dataset:
        case ShippedText():
            path = resources / "text" / f"{dataset.texts}.jsonl"
            return TextSource(str(path), _read_json_lines(path), {"origin": "multicard's own, resources/text"})
        case TextFile():
            path = Path(dataset.path)
            if path.suffix.lower() not in READERS:
                expected = ", ".join(READERS)
                raise UserError(
                    f"datasets.{name}.path: found the suffix {path.suffix!r} of {path}, expected {expected}"
                )
            try:
                facts = {"origin": "a file of the user", "source_files": [described(path)]}
            except OSError as error:
                raise UserError(f"{path}: cannot be read: {error.strerror}") from error
            return TextSource(str(path), READERS[path.suffix.lower()](path), facts)
        case PublishedText():
            return _open_published(name, dataset, scratch)


def _read_json_lines(path: Path) -> Iterator[Any]:
    with path.open(encoding=ENCODING) as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    row = json.loads(line)
                except json.JSONDecodeError as error:
                    raise ValueError(f"line {number}: {error.msg}") from error
                yield row


def _read_json(path: Path) -> Iterator[Any]:
    rows = json.loads(path.read_text(encoding=ENCODING))
    if not isinstance(rows, list):
        raise ValueError("found JSON that is no list, expected a list of samples")
    yield from rows


def _read_csv(path: Path) -> Iterator[dict[str, Any]]:
    with pd.read_csv(path, dtype=str, keep_default_na=False, encoding=ENCODING, chunksize=BATCH) as chunks:
        for chunk in chunks:
            # Where lines have a value more than the first one, pandas takes their first value for an index.
            if not isinstance(chunk.index, pd.RangeIndex):
                raise ValueError(f"found more columns than the {chunk.shape[1]} of the first line")
            yield from chunk.to_dict("records")


def _read_parquet(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file:
        yield from _parquet_rows(file)


def _parquet_rows(file: BinaryIO) -> Iterator[dict[str, Any]]:
    import pyarrow.parquet as pq

    for batch in pq.ParquetFile(file).iter_batches(BATCH):
        yield from batch.to_pylist()


READERS: dict[str, Callable[[Path], Iterator[Any]]] = {
    ".json": _read_json,
    ".jsonl": _read_json_lines,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
}


def _open_published(name: str, dataset: PublishedText, scratch: Path) -> TextSource:
    """Let Hugging Face's `datasets` find and read the training part, in a folder or at its hub."""
    published = PUBLISHED[dataset.texts]
    settings = {"HF_HOME": str(scratch), "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}
    if dataset.folder:
        settings |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    with _environment(settings):  # read when they are imported, and never again
        from datasets import load_dataset_builder
        from huggingface_hub import HfApi

    facts = {"repository": published.repository, "subset": published.subset}
    key, cache = f"datasets.{name}", str(scratch)
    try:
        if dataset.folder:
            folder = place = Path(dataset.folder)
            # A copy of the whole repository has the subsets side by side; one of them alone may have been fetched.
            part = folder / published.subset if published.subset else folder
            builder = load_dataset_builder(str(part if part.is_dir() else folder), cache_dir=cache)
            facts["origin"] = "published at Hugging Face, from a folder of the user"
            facts["folder"] = str(folder.absolute())
        else:
            place = published.repository
            # Pinned to the commit, so that what is read is what the provenance records.
            commit = HfApi().dataset_info(published.repository, revision=published.revision).sha
            builder = load_dataset_builder(published.repository, published.subset, revision=commit, cache_dir=cache)
            facts["origin"], facts["revision"] = "downloaded from Hugging Face", commit
    except Exception as error:  # whatever they stumble over, in the folder or on the way to the hub
        raise UserError(f"{key}: cannot open {place}: {_in_one_line(error)}") from error
    splits = list(builder.config.data_files)
    if "train" not in splits:
        raise UserError(f"{key}: found the splits {', '.join(map(str, splits))} in {place}, expected train")
    return TextSource(str(place), _published_rows(builder), facts)


@contextmanager
def _environment(settings: dict[str, str]) -> Iterator[None]:
    """Have these environment variables for a while."""
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _published_rows(builder: Any) -> Iterator[dict[str, Any]]:
    """Rows of the training part, a piece at a time."""
    files = builder.config.data_files["train"]
    if not all(file.endswith(".parquet") for file in files):
        yield from builder.as_streaming_dataset(split="train")
        return
    # Python would abort at its end where a stream of Parquet that `datasets` opened was not read to its end
    # (https://github.com/huggingface/datasets/issues/7467).
    import fsspec

    for path in files:
        with fsspec.open(path, "rb") as file:
            yield from _parquet_rows(file)


def _in_one_line(error: Exception) -> str:
    text = getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
    return text[:300]
