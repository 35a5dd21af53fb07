"""Rows of texts from where they lie: the shipped sets, a user's file, what Hugging Face publishes."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import pandas as pd

from multicard.core.errors import UserError, in_one_line
from multicard.core.files import described
from multicard.experiment.datasets import PUBLISHED, PublishedText, ShippedText, Text, TextFile

ENCODING = "utf-8-sig"  # what Windows puts before a text is no part of it


class TextSource(NamedTuple):
    """A set of texts: where it is, its rows, and what its provenance records of its origin."""

    place: str
    rows: Iterator[Any]
    facts: dict[str, Any]


def open_source(name: str, dataset: Text, resources: Path, scratch: Path) -> TextSource:
    """Open a set of texts; rows are read lazily, and whatever a reader stumbles over is raised as it is.

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
            return TextSource(str(path), _json_lines(path), {"origin": "multicard's own, resources/text"})
        case TextFile():
            path = Path(dataset.path)
            if path.suffix.lower() not in READERS:
                raise UserError(
                    f"datasets.{name}.path: found the suffix {path.suffix!r} of {path}, expected {', '.join(READERS)}"
                )
            facts = {"origin": "a file of the user", "source_files": [described(path)]}
            return TextSource(str(path), READERS[path.suffix.lower()](path), facts)
        case PublishedText():
            return _open_published(name, dataset, scratch)


def _json_lines(path: Path) -> Iterator[Any]:
    with path.open(encoding=ENCODING) as file:
        yield from (json.loads(line) for line in file if line.strip())


def _json(path: Path) -> Iterator[Any]:
    rows = json.loads(path.read_text(encoding=ENCODING))
    if not isinstance(rows, list):
        raise ValueError("found JSON that is no list, expected a list of samples")
    yield from rows


def _csv(path: Path) -> Iterator[dict[str, Any]]:
    table = pd.read_csv(path, dtype=str, keep_default_na=False, encoding=ENCODING)
    # Where lines have a value more than the first one, pandas takes their first value for an index.
    if not isinstance(table.index, pd.RangeIndex):
        raise ValueError(f"found more columns than the {table.shape[1]} of the first line")
    yield from table.to_dict("records")


def _parquet(file: Path | BinaryIO) -> Iterator[dict[str, Any]]:
    import pyarrow.parquet as pq

    for batch in pq.ParquetFile(file).iter_batches(1000):
        yield from batch.to_pylist()


READERS: dict[str, Callable[[Path], Iterator[Any]]] = {
    ".json": _json, ".jsonl": _json_lines, ".csv": _csv, ".parquet": _parquet,
}  # fmt: skip


def _open_published(name: str, dataset: PublishedText, scratch: Path) -> TextSource:
    """Let Hugging Face's `datasets` find and read the training part, in a folder or at its hub."""
    published = PUBLISHED[dataset.texts]
    os.environ.setdefault("HF_HOME", str(scratch))  # read at the first import
    from datasets import load_dataset_builder
    from huggingface_hub import HfApi

    facts = {"repository": published.repository, "subset": published.subset}
    place = dataset.folder or published.repository
    try:
        if dataset.folder:
            # A copy of the whole repository has the subsets side by side; one of them alone may have been fetched.
            part = Path(place, published.subset or "")
            builder = load_dataset_builder(str(part) if part.is_dir() else place, cache_dir=str(scratch))
            facts |= {"origin": "published at Hugging Face, from a folder of the user"}
            facts |= {"folder": str(Path(place).absolute())}
        else:
            # Pinned to the commit, so that what is read is what the provenance records.
            commit = HfApi().dataset_info(place, revision=published.revision).sha
            builder = load_dataset_builder(place, published.subset, revision=commit, cache_dir=str(scratch))
            facts |= {"origin": "downloaded from Hugging Face", "revision": commit}
    except Exception as error:  # whatever they stumble over, in the folder or on the way to the hub
        raise UserError(f"datasets.{name}: cannot open {place}: {in_one_line(error)}") from error
    splits = list(builder.config.data_files)
    if "train" not in splits:
        raise UserError(f"datasets.{name}: found the splits {', '.join(map(str, splits))} in {place}, expected train")
    return TextSource(place, _published_rows(builder), facts)


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
            yield from _parquet(file)
