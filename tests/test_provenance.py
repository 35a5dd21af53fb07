"""provenance.json is read strictly, and written as it was read."""

import json
from pathlib import Path
from typing import Any

import pytest

from conftest import refusal
from multicard.programs.provenance import (
    Form,
    ImageProvenance,
    ModelProvenance,
    TextProvenance,
    read_provenance,
    write_provenance,
)

COUNTS = {"classes": ["a", "b"], "train_samples": 3, "test_samples": 2}
STATISTICS = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
READ = {"name": "train.csv", "bytes": 7, "sha256": 64 * "0"}
STORED = {"name": "train", "files": 3, "bytes": 9, "sha256": 64 * "1"}
STORING = {"limit": 5, "stored_size": None}
SAMPLES = {"limit": None, "train_samples": 3, "test_samples": 0}
# The content of the file for each source, in the order of its keys.
WRITTEN: list[tuple[type[Any], dict[str, Any]]] = [
    (
        ImageProvenance,
        {"dataset": "d", "source": "digits", "origin": "o", "split": "s", **STORING, **COUNTS, **STATISTICS}
        | {"files": [STORED]},
    ),
    (
        ImageProvenance,
        {"dataset": "d", "source": "mnist", "origin": "o", "verified": True, "folder": "/f", "source_files": [READ]}
        | {"split": "s", **STORING, **COUNTS, **STATISTICS, "files": [READ, READ]},
    ),
    (
        ImageProvenance,
        {"dataset": "d", "source": "kaggle-mnist", "origin": "o", "source_files": [READ], "split": "s", **STORING}
        | {**COUNTS, **STATISTICS, "files": [READ]},
    ),
    (
        ImageProvenance,
        {"dataset": "d", "source": "imagefolder", "origin": "o", "folder": "/f", "parts": {"train": "t", "test": "v"}}
        | {"split": "s", **COUNTS, **STATISTICS, "unreadable": [{"name": "a/1.png", "reason": "cut"}], "files": []},
    ),
    (
        ImageProvenance,
        {"dataset": "d", "source": "synthetic", "origin": "o", "split": "s", **COUNTS, **STATISTICS, "files": []},
    ),
    (
        TextProvenance,
        {"dataset": "d", "source": "shipped-text", "kind": "chat", "origin": "o", **SAMPLES, "files": [READ]},
    ),
    (
        TextProvenance,
        {"dataset": "d", "source": "text-file", "kind": "chat", "origin": "o", "source_files": [READ], **SAMPLES}
        | {"files": [READ]},
    ),
    (
        TextProvenance,
        {"dataset": "d", "source": "published-text", "kind": "chat", "repository": "r", "subset": None, "origin": "o"}
        | {"revision": "c", **SAMPLES, "left_out": 0, "first_left_out": None, "files": [READ]},
    ),
    (
        TextProvenance,
        {"dataset": "d", "source": "published-text", "kind": "chat", "repository": "r", "subset": "u", "origin": "o"}
        | {"folder": "/f", **SAMPLES, "left_out": 1, "first_left_out": "x", "files": [READ]},
    ),
    (
        ModelProvenance,
        {"model": "m", "architecture": "llama3_8b", "folder": "/f", "tokenizer": "/f/t", "special_tokens": None}
        | {"checkpoint_files": ["w"], "parameters": 7, "files": [{"name": "w", "bytes": 9}]},
    ),
]


@pytest.mark.parametrize(("form", "content"), WRITTEN, ids=[content.get("source", "model") for _, content in WRITTEN])
def test_a_file_is_read_and_written_unchanged(tmp_path: Path, form: type[Form], content: dict[str, Any]) -> None:
    file = tmp_path / "provenance.json"
    text = json.dumps(content, indent=2) + "\n"
    file.write_text(text)
    write_provenance(tmp_path, read_provenance(tmp_path, form))
    assert file.read_text() == text


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"train_samples": "3"}, "train_samples: found '3', expected a whole number"),
        ({"classes": None}, "classes: found None, expected a list"),
        (
            {"source": "arrays"},
            "source: found 'arrays', expected one of digits, imagefolder, kaggle-mnist, mnist, synth",
        ),
        ({"files": [{"name": "train"}]}, "files.0.bytes: missing"),
        ({"more": 1}, "more: unknown key"),
        ({"source": "imagefolder"}, "folder: missing, expected the folder of the images"),
    ],
    ids=["type", "null", "word", "inside", "unknown", "folder"],
)
def test_a_file_that_does_not_fit_is_refused_in_one_line(tmp_path: Path, changes: dict[str, Any], fault: str) -> None:
    _, content = WRITTEN[0]
    file = tmp_path / "provenance.json"
    file.write_text(json.dumps(content | changes))
    assert refusal(lambda: read_provenance(tmp_path, ImageProvenance)).startswith(f"{file}: {fault}")


def test_a_folder_that_was_not_prepared_to_the_end_is_refused(tmp_path: Path) -> None:
    expected = f"{tmp_path}: found no provenance.json, expected a prepared set of texts"
    assert refusal(lambda: read_provenance(tmp_path, TextProvenance)) == expected
