"""Make a set of texts ready to tune on: rows from where they lie, checked, in one form, with a statement of origin."""

import json
import os
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import pandas as pd
from pydantic import ValidationError

from multicard.core.errors import UserError, in_one_line
from multicard.core.files import atomic_write, described, write_json
from multicard.core.prepared import PROVENANCE
from multicard.core.validation import first_fault
from multicard.experiment.datasets import PUBLISHED, PublishedText, ShippedText, Text
from multicard.workloads.llm.samples import FORMS

TRAIN = "train.jsonl"
SUFFIXES = (".json", ".jsonl", ".csv", ".parquet")
ENCODING = "utf-8-sig"  # what Windows puts before a text is no part of it


def prepare_texts(name: str, dataset: Text, folder: Path, resources: Path) -> None:
    """Write the samples into `folder`/train.jsonl in the form of their kind; provenance.json comes last.

    Invalid samples of a published set, which a user cannot fix, are skipped and counted; a user's file is refused for
    them. `resources`: folder of the shipped inputs.

    Raises `UserError` at the first error, in one line; nothing half-written stays.
    """
    if missing := dataset.missing_files():
        raise UserError(f"datasets.{name}.{missing}")
    folder.mkdir(parents=True, exist_ok=True)
    # An earlier one must not stand for what is not prepared yet.
    (folder / PROVENANCE).unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".huggingface-", ignore_cleanup_errors=True) as scratch:
        if isinstance(dataset, PublishedText):
            place = dataset.folder or dataset.repository
            rows, origin = _open_published(name, dataset, place, scratch)
        elif isinstance(dataset, ShippedText):
            place = resources / dataset.file
            rows, origin = _rows(place), {"origin": "multicard's own, resources/text"}
        else:
            place = Path(dataset.path)
            if place.suffix.lower() not in SUFFIXES:
                found = f"found the suffix {place.suffix!r} of {place}, expected {', '.join(SUFFIXES)}"
                raise UserError(f"datasets.{name}.path: {found}")
            rows, origin = _rows(place), {"origin": "a file of the user", "source_files": [described(place)]}
        with atomic_write(folder / TRAIN) as temporary:
            counts = _write(str(place), rows, dataset, temporary)
    facts = {"dataset": name, "source": dataset.source, "kind": dataset.kind, **origin, "limit": dataset.limit}
    write_json(folder / PROVENANCE, facts | counts | {"files": [described(folder / TRAIN)]})


def _write(place: str, rows: Iterator[Any], dataset: Text, path: Path) -> dict[str, Any]:
    """Write the samples to `path`; give their number."""
    is_published = isinstance(dataset, PublishedText)
    written, skipped, first_error = 0, 0, None
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for number, row in enumerate(islice(_readable(place, rows), dataset.limit), 1):
            try:
                sample = FORMS[dataset.kind].model_validate(row).model_dump()
                file.write(json.dumps(sample, ensure_ascii=False) + "\n")
                written += 1
            except (ValidationError, UnicodeEncodeError) as error:
                is_of_row = isinstance(error, UnicodeEncodeError) or error.errors()[0]["type"] != "missing"
                why = first_fault(error) if isinstance(error, ValidationError) else error
                first_error = first_error or f"{place}, sample {number}: {why}"
                if not is_published or not is_of_row:  # probably no row has the column
                    raise UserError(first_error) from None
                skipped += 1
    if not written:
        raise UserError(first_error or f"{place}: found no samples, expected some")
    left_out = {"left_out": skipped, "first_left_out": first_error} if is_published else {}
    return {"train_samples": written, "test_samples": 0, **left_out}


def _readable(place: str, rows: Iterator[Any]) -> Iterator[Any]:
    """Rows; what their reader stumbles over is one line."""
    number = 0
    try:
        for row in rows:
            number += 1
            yield row
    except Exception as error:  # whatever a reader stumbles over
        raise UserError(f"{place}: cannot be read after {number} samples: {in_one_line(error)}") from error


def _rows(path: Path) -> Iterator[Any]:
    """Rows of a file, text as it is written: the readers of `datasets` make numbers and dates of some."""
    match path.suffix.lower():
        case ".jsonl":
            with path.open(encoding=ENCODING) as file:
                yield from (json.loads(line) for line in file if line.strip())
        case ".json":
            if not isinstance(rows := json.loads(path.read_text(encoding=ENCODING)), list):
                raise ValueError("found JSON that is no list, expected a list of samples")
            yield from rows
        case ".csv":
            table = pd.read_csv(path, dtype=str, keep_default_na=False, encoding=ENCODING)
            # Where lines have a value more than the first one, pandas takes their first value for an index.
            if not isinstance(table.index, pd.RangeIndex):
                raise ValueError(f"found more columns than the {table.shape[1]} of the first line")
            yield from table.to_dict("records")
        case ".parquet":
            yield from _parquet(path)


def _parquet(file: Path | BinaryIO) -> Iterator[dict[str, Any]]:
    import pyarrow.parquet as pq

    for batch in pq.ParquetFile(file).iter_batches(1000):
        yield from batch.to_pylist()


def _open_published(
    name: str, dataset: PublishedText, place: str, scratch: str
) -> tuple[Iterator[Any], dict[str, Any]]:
    """Let Hugging Face's `datasets` find the training part, in a folder or at its hub; rows, and their origin."""
    os.environ.setdefault("HF_HOME", scratch)  # read at the first import
    from datasets import load_dataset_builder
    from huggingface_hub import HfApi

    published = PUBLISHED[dataset.texts]
    facts = {"repository": published.repository, "subset": published.subset}
    try:
        if dataset.folder:
            # A copy of the whole repository has the subsets side by side; one of them alone may have been fetched.
            part = Path(place, published.subset or "")
            builder = load_dataset_builder(str(part) if part.is_dir() else place, cache_dir=scratch)
            facts |= {"origin": "a folder of the user", "folder": str(Path(place).absolute())}
        else:
            # Pinned to the commit, so that what is read is what the provenance records.
            commit = HfApi().dataset_info(place, revision=published.revision).sha
            builder = load_dataset_builder(place, published.subset, revision=commit, cache_dir=scratch)
            facts |= {"origin": "downloaded from Hugging Face", "revision": commit}
    except Exception as error:  # whatever they stumble over, in the folder or on the way to the hub
        raise UserError(f"datasets.{name}: cannot open {place}: {in_one_line(error)}") from error
    return _streamed(builder), facts


def _streamed(builder: Any) -> Iterator[dict[str, Any]]:
    """Rows of the training part, a piece at a time."""
    files = builder.config.data_files.get("train", [""])
    if not all(file.endswith(".parquet") for file in files):
        yield from builder.as_streaming_dataset(split="train")
        return
    # Python would abort at its end where a stream of Parquet that `datasets` opened was not read to its end
    # (https://github.com/huggingface/datasets/issues/7467).
    import fsspec

    for path in files:
        with fsspec.open(path, "rb") as file:
            yield from _parquet(file)
