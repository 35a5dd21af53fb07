"""Prepare a set of texts for tuning: read and check its rows, write them in one form, and record their origin."""

import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NotRequired, TypedDict

from pydantic import ValidationError

from multicard.core.errors import UserError, in_one_line
from multicard.core.files import atomic_write
from multicard.core.prepared import PROVENANCE
from multicard.core.tables import parse_csv
from multicard.core.validation import first_fault
from multicard.programs.datasets import PUBLISHED, PublishedText, ShippedText, TextDataset
from multicard.programs.llm.samples import FORMS
from multicard.programs.provenance import PreparedFile, TextProvenance, write_provenance

TRAIN = "train.jsonl"
SUFFIXES = (".json", ".jsonl", ".csv", ".parquet")
ENCODING = "utf-8-sig"  # the byte order mark that Windows puts before a text is not part of it


class _Origin(TypedDict):
    """The fields of `TextProvenance` that say where texts come from."""

    origin: str
    repository: NotRequired[str]
    subset: NotRequired[str | None]
    folder: NotRequired[str]
    revision: NotRequired[str | None]
    source_files: NotRequired[tuple[PreparedFile, ...]]


class _Counts(TypedDict):
    """The fields of `TextProvenance` that say how many samples were written and skipped."""

    train_samples: int
    test_samples: int
    left_out: NotRequired[int]
    first_left_out: NotRequired[str | None]


@dataclass(frozen=True)
class _Texts:
    """The rows of a set of texts, opened for reading."""

    source: str  # path or repository, for messages
    rows: Iterator[Any]
    origin: _Origin


def prepare_texts(name: str, dataset: TextDataset, folder: Path, resources: Path) -> None:
    """Write the samples into `folder`/train.jsonl in the form of their kind; provenance.json is written last.

    An invalid sample of a published set is skipped and counted, because a user cannot fix it. But if the sample lacks a
    column, the set is refused, because then probably all samples lack it. Any other set is refused at its first invalid
    sample.

    `resources`: folder of the shipped inputs.

    Raises `UserError` with one line at the first error. The old file of samples then stays as it was.
    """
    if missing := dataset.missing_files():
        raise UserError(f"datasets.{name}.{missing}")
    folder.mkdir(parents=True, exist_ok=True)
    # An earlier provenance must not vouch for what is not prepared yet.
    (folder / PROVENANCE).unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".huggingface-", ignore_cleanup_errors=True) as scratch:
        texts = _open(name, dataset, resources, scratch)
        with atomic_write(folder / TRAIN) as temporary:
            counts = _write(texts, dataset, temporary)
    provenance = TextProvenance(
        dataset=name,
        source=dataset.source,
        kind=dataset.kind,
        **texts.origin,
        limit=dataset.limit,
        **counts,
        files=(PreparedFile.of(folder / TRAIN),),
    )
    write_provenance(folder, provenance)


def _open(name: str, dataset: TextDataset, resources: Path, scratch: str) -> _Texts:
    """Open the set of texts `name`; `scratch`: folder for files that Hugging Face's libraries write."""
    if isinstance(dataset, PublishedText):
        return _open_published(name, dataset, scratch)
    if isinstance(dataset, ShippedText):
        file = resources / dataset.file
        return _Texts(str(file), _rows(file), {"origin": "multicard's own, resources/text"})
    file = Path(dataset.path)
    if file.suffix.lower() not in SUFFIXES:
        fault = f"found the suffix {file.suffix!r} of {file}, expected {', '.join(SUFFIXES)}"
        raise UserError(f"datasets.{name}.path: {fault}")
    return _Texts(str(file), _rows(file), {"origin": "a file of the user", "source_files": (PreparedFile.of(file),)})


def _write(texts: _Texts, dataset: TextDataset, path: Path) -> _Counts:
    """Write the samples to `path`; return the numbers of written and skipped ones."""
    is_published = isinstance(dataset, PublishedText)
    written = skipped = 0
    first_error: str | None = None
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for number, row in enumerate(islice(_readable(texts), dataset.limit), 1):
            try:
                sample = FORMS[dataset.kind].model_validate(row).model_dump()
                file.write(json.dumps(sample, ensure_ascii=False) + "\n")
                written += 1
            except (ValidationError, UnicodeEncodeError) as error:
                reason = first_fault(error) if isinstance(error, ValidationError) else str(error)
                first_error = first_error or f"{texts.source}, sample {number}: {reason}"
                if not is_published or _lacks_column(error):
                    raise UserError(first_error) from None
                skipped += 1
    if not written:
        raise UserError(first_error or f"{texts.source}: found no samples, expected some")
    counts: _Counts = {"train_samples": written, "test_samples": 0}
    if is_published:
        counts |= {"left_out": skipped, "first_left_out": first_error}
    return counts


def _lacks_column(error: ValidationError | UnicodeEncodeError) -> bool:
    """Return whether a row is invalid because it lacks a column."""
    return isinstance(error, ValidationError) and error.errors()[0]["type"] == "missing"


def _readable(texts: _Texts) -> Iterator[Any]:
    """Yield the rows; raise `UserError` with one line if their reader raises any error."""
    number = 0
    try:
        for row in texts.rows:
            number += 1
            yield row
    except Exception as error:
        # Readers of damaged files raise errors of any class.
        raise UserError(f"{texts.source}: cannot be read after {number} samples: {in_one_line(error)}") from error


def _rows(path: Path) -> Iterator[Any]:
    """Yield the rows of a file with their text unchanged; Hugging Face's `datasets` would change some of it."""
    match path.suffix.lower():
        case ".jsonl":
            with path.open(encoding=ENCODING) as file:
                yield from (json.loads(line) for line in file if line.strip())
        case ".json":
            rows = json.loads(path.read_text(encoding=ENCODING))
            if not isinstance(rows, list):
                raise ValueError("found JSON that is no list, expected a list of samples")
            yield from rows
        case ".csv":
            table = parse_csv(path, dtype=str, keep_default_na=False, encoding=ENCODING)
            yield from table.to_dict("records")
        case ".parquet":
            yield from _parquet(path)


def _parquet(file: Path | BinaryIO) -> Iterator[Any]:
    import pyarrow.parquet as pq

    for batch in pq.ParquetFile(file).iter_batches(1000):
        yield from batch.to_pylist()


def _open_published(name: str, dataset: PublishedText, scratch: str) -> _Texts:
    """Let Hugging Face's `datasets` find the training part, in a folder or at its hub."""
    # Set before the imports, because the libraries read it while they are imported.
    os.environ.setdefault("HF_HOME", scratch)
    from datasets import load_dataset_builder
    from huggingface_hub import HfApi

    published = PUBLISHED[dataset.texts]
    source = dataset.folder or published.repository
    try:
        if dataset.folder:
            # The folder may be a copy of the whole repository, with a folder for each subset, or of the subset alone.
            subset = Path(dataset.folder, published.subset or "")
            builder = load_dataset_builder(str(subset) if subset.is_dir() else dataset.folder, cache_dir=scratch)
            origin = _Origin(origin="a folder of the user", folder=str(Path(dataset.folder).absolute()))
        else:
            # The commit is looked up once, so that provenance.json records the version that is read.
            commit = HfApi().dataset_info(published.repository, revision=published.revision).sha
            builder = load_dataset_builder(published.repository, published.subset, revision=commit, cache_dir=scratch)
            origin = _Origin(origin="downloaded from Hugging Face", revision=commit)
    except Exception as error:
        # The libraries raise errors of any class, for the folder or for the connection to the hub.
        raise UserError(f"datasets.{name}: cannot open {source}: {in_one_line(error)}") from error
    origin |= {"repository": published.repository, "subset": published.subset}
    return _Texts(source, _streamed(builder), origin)


def _streamed(builder: Any) -> Iterator[Any]:
    """Yield the rows of the training part, read piece by piece."""
    files = builder.config.data_files.get("train", [""])
    if not all(file.endswith(".parquet") for file in files):
        yield from builder.as_streaming_dataset(split="train")
        return
    # Python would abort when it exits if a stream of Parquet that `datasets` opened had not been read to its end
    # (https://github.com/huggingface/datasets/issues/7467).
    import fsspec

    for path in files:
        with fsspec.open(path, "rb") as file:
            yield from _parquet(file)
