"""Make a set of texts ready to tune on, with a checksum and a statement of where it comes from."""

import json
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from multicard.core.errors import UserError, in_one_line
from multicard.core.files import atomic_write, described, write_json
from multicard.core.prepared import PROVENANCE, read_prepared, refuse_changed
from multicard.experiment.datasets import PublishedText, Text
from multicard.workloads.llm.samples import MissingColumns, Unfit, to_sample
from multicard.workloads.llm.text_sources import TextSource, open_source

TRAIN = "train.jsonl"


def prepare_texts(name: str, dataset: Text, folder: Path, resources: Path) -> None:
    """Write the samples into `folder`/train.jsonl in the form of their kind; provenance.json comes last.

    Samples are read and written one after the other. Invalid samples of a published set, which a user cannot fix, are
    skipped and counted; a user's file is refused for them.

    Parameters
    ----------
    resources
        Folder of the shipped inputs.

    Raises
    ------
    UserError
        At the first error, in one line; nothing half-written stays.
    """
    if missing := dataset.missing_files():
        raise UserError(f"datasets.{name}.{missing}")
    folder.mkdir(parents=True, exist_ok=True)
    # An earlier one must not stand for what is not prepared yet.
    (folder / PROVENANCE).unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".huggingface-", ignore_cleanup_errors=True) as scratch:
        source = open_source(name, dataset, resources, Path(scratch))
        with atomic_write(folder / TRAIN) as temporary:
            counts = _write(source, dataset, temporary)
    facts = {"dataset": name, "source": dataset.source, "kind": dataset.kind, **source.facts, "limit": dataset.limit}
    write_json(folder / PROVENANCE, facts | counts | {"files": [described(folder / TRAIN)]})


def _write(source: TextSource, dataset: Text, path: Path) -> dict[str, Any]:
    """Write the samples to `path`; give their number."""
    is_published = isinstance(dataset, PublishedText)
    written, skipped, first_error = 0, 0, None
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for number, row in enumerate(islice(_rows(source), dataset.limit), 1):
            try:
                sample = to_sample(dataset.kind, row)
                file.write(json.dumps(sample, ensure_ascii=False) + "\n")
                written += 1
            except (Unfit, UnicodeEncodeError) as error:
                reason = f"{source.place}, sample {number}: {error}"
                if isinstance(error, MissingColumns) or not is_published:
                    raise UserError(reason) from None
                skipped, first_error = skipped + 1, first_error or reason
    if not written:
        raise UserError(first_error or f"{source.place}: found no samples, expected some")
    left_out = {"left_out": skipped, "first_left_out": first_error} if is_published else {}
    return {"train_samples": written, "test_samples": 0, **left_out}


def _rows(source: TextSource) -> Iterator[Any]:
    """Rows; what their reader stumbles over is one line."""
    number = 0
    try:
        for row in source.rows:
            number += 1
            yield row
    except Exception as error:  # whatever a reader stumbles over
        raise UserError(f"{source.place}: cannot be read after {number} samples: {in_one_line(error)}") from error


def read_texts(folder: Path) -> dict[str, Any]:
    """Read provenance.json of a prepared set of texts, and check its file against it.

    Raises
    ------
    UserError
        If the file is missing or not the one that was prepared.
    """
    facts = read_prepared(folder, "set of texts")
    refuse_changed(folder, folder, facts["files"])
    return facts
