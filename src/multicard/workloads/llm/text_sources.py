"""Rows of texts from where they lie: the shipped sets, a user's file, what Hugging Face publishes."""

import csv
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from multicard.core.errors import UserError
from multicard.core.files import described
from multicard.core.text import counted
from multicard.experiment.datasets import PUBLISHED, PublishedText, ShippedText, Text, TextFile

BATCH = 1000  # rows of a Parquet file that are in memory at a time


@dataclass(frozen=True)
class TextSource:
    """A set of texts: where it is, its rows, each with its place, and what its provenance records of its origin."""

    place: str
    rows: Iterator[tuple[str, Any]]
    facts: dict[str, Any] = field(default_factory=dict)


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
            return TextSource(str(path), _read_file(path, path.suffix), {"origin": "multicard's own, resources/text"})
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
            return TextSource(str(path), _read_file(path, path.suffix.lower()), facts)
        case PublishedText():
            return _open_published(name, dataset, scratch)
        case _:
            raise TypeError(f"{type(dataset).__name__} is no set of texts")


def _read_file(path: Path, suffix: str) -> Iterator[tuple[str, Any]]:
    try:
        yield from READERS[suffix](path)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or _in_one_line(error)}") from error


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines of a text file and their numbers."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                # What Windows puts before a text is no part of it.
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise UserError(
                    f"{path}, line {number}: found the byte {line[error.start]:#04x}, expected UTF-8"
                ) from None


def _read_json_lines(path: Path) -> Iterator[tuple[str, Any]]:
    for number, line in _lines(path):
        if line.strip():
            place = f"{path}, line {number}"
            yield place, _parsed(line, place)


def _read_json(path: Path) -> Iterator[tuple[str, Any]]:
    rows = _parsed("".join(line for _, line in _lines(path)), str(path))
    if not isinstance(rows, list):
        raise UserError(f"{path}: found JSON that is no list, expected a list of samples")
    for number, row in enumerate(rows, 1):
        yield f"{path}, sample {number}", row


def _parsed(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{place}: cannot be read as JSON: {_in_one_line(error)}") from None


def _read_csv(path: Path) -> Iterator[tuple[str, Any]]:
    csv.field_size_limit(sys.maxsize)  # a text may be longer than the 131 072 characters that are usual
    reader = csv.reader((line for _, line in _lines(path)), strict=True)
    try:
        header = next(reader, [])
        for row in filter(None, reader):
            place = f"{path}, line {reader.line_num}"
            if len(row) != len(header):
                raise UserError(f"{place}: found {counted(len(row), 'column')}, expected {len(header)}")
            yield place, dict(zip(header, row, strict=True))
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num}: cannot be read as CSV: {error}") from None


def _read_parquet(path: Path) -> Iterator[tuple[str, Any]]:
    import pyarrow as pa

    with path.open("rb") as file:
        try:
            for number, row in enumerate(_parquet_rows(file), 1):
                yield f"{path}, row {number}", row
        except (pa.ArrowException, UnicodeDecodeError) as error:
            raise UserError(f"{path}: cannot be read as Parquet: {_in_one_line(error)}") from error


def _parquet_rows(file: BinaryIO) -> Iterator[dict[str, Any]]:
    import pyarrow.parquet as pq

    for batch in pq.ParquetFile(file).iter_batches(BATCH):
        yield from batch.to_pylist()


READERS = {".json": _read_json, ".jsonl": _read_json_lines, ".csv": _read_csv, ".parquet": _read_parquet}


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
    return TextSource(str(place), _numbered(_published_rows(builder), key, place), facts)


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


def _numbered(rows: Iterator[Any], key: str, place: Path | str) -> Iterator[tuple[str, Any]]:
    number = 0
    while True:
        try:
            row = next(rows)
        except StopIteration:
            return
        except Exception as error:
            raise UserError(f"{key}: cannot read {place} after {number} samples: {_in_one_line(error)}") from error
        number += 1
        yield f"{place}, sample {number}", row


def _in_one_line(error: Exception) -> str:
    return (" ".join(str(error).split()) or type(error).__name__)[:300]
