"""Published sets of texts, from a folder that looks like theirs, and as a download."""

import json
import os
import re
import subprocess
import sys
from io import BytesIO
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import HfApi
from text_sets import GOOD, RESOURCES, SAMPLES, line, made, prepared, refusal, rows, write

from conftest import ROOT
from multicard.programs.datasets import PUBLISHED

pytestmark = pytest.mark.slow


def publish(folder: Path, name: str) -> Path:
    """Write two samples in the files and columns that the published set has."""
    kind = PUBLISHED[name].kind
    samples: list[dict[str, Any]] = SAMPLES[kind]
    match name:
        case "alpaca_cleaned":
            write(folder / "alpaca_data_cleaned.json", samples)
        case "samsum":
            for split in ("train", "validation", "test"):
                write(folder / f"{split}.csv", [{"id": n, **sample} for n, sample in enumerate(samples)])
        case "grammar":
            write(folder / "default" / "train" / "0000.parquet", samples)
        case "slimorca":
            roles = {"system": "system", "user": "human", "assistant": "gpt"}
            chats = [
                [{"from": roles[m["role"]], "value": m["content"], "weight": 1.0} for m in sample["messages"]]
                for sample in samples
            ]
            write(folder / "train.jsonl", [{"conversations": chat} for chat in chats])
        case "cnn_dailymail":
            articles = [{"article": sample["text"], "highlights": "x", "id": "0"} for sample in samples]
            for split in ("train", "test"):
                write(folder / "3.0.0" / f"{split}-00000-of-00001.parquet", articles)
            # The whole repository has two more subsets, which were not fetched.
            subsets = [f"- config_name: {s}\n  data_files: {s}/train-*\n" for s in ("1.0.0", "2.0.0", "3.0.0")]
            (folder / "README.md").write_text(f"---\nconfigs:\n{''.join(subsets)}---\n# CNN\n")
        case "wikitext":
            for subset in ("wikitext-2-v1", "wikitext-103-v1"):
                pages = [{"page": sample["text"]} for sample in samples]
                write(folder / subset / "train-00000-of-00001.parquet", pages if "103" in subset else pages[:1])
        case "hh_rlhf_helpful":
            scored = [{"rejected_score": None, **sample, "chosen_score": None} for sample in samples]
            write(folder / "data" / "train-00000-of-00001.parquet", scored)
    return folder


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_set_is_read_from_its_folder(tmp_path: Path, name: str) -> None:
    folder = publish(tmp_path / "in", name)
    provenance = made(tmp_path / "out", source="published-text", texts=name, folder=str(folder))
    published = PUBLISHED[name]
    assert rows(tmp_path / "out" / "train.jsonl") == SAMPLES[published.kind]
    expected = (published.kind, published.repository, published.subset)
    assert (provenance.kind, provenance.repository, provenance.subset) == expected
    assert provenance.folder == str(folder)
    assert (provenance.train_samples, provenance.left_out, provenance.first_left_out) == (2, 0, None)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["provenance.json", "train.jsonl"]
    if name == "wikitext":  # a subset alone is found too
        alone = str(folder / "wikitext-103-v1")
        found = prepared(tmp_path / "alone", source="published-text", texts=name, folder=alone)
        assert found == SAMPLES[published.kind]


def test_samples_of_a_published_set_that_are_empty_are_left_out_and_counted(tmp_path: Path) -> None:
    good = SAMPLES["summary"][0]
    write(tmp_path / "in" / "train.csv", [good, {"dialogue": "", "summary": "x"}, good, good])
    definition = {"source": "published-text", "texts": "samsum", "folder": str(tmp_path / "in")}
    provenance = made(tmp_path / "out", **definition, limit=3)
    assert rows(tmp_path / "out" / "train.jsonl") == [good, good]
    assert (provenance.train_samples, provenance.left_out) == (2, 1)
    assert provenance.first_left_out == f"{tmp_path}/in, sample 2: dialogue: found None, expected text"


NO_ROWS = BytesIO()
pq.write_table(pa.table({"input": pa.array([], pa.string())}), NO_ROWS)


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({}, "datasets.mine: cannot open {folder}: "),
        ({"train.parquet": b"PAR1"}, "{folder}: cannot be read after 0 samples: Parquet"),
        ({"train.jsonl": b'{"input": \n'}, "{folder}: cannot be read after 0 samples: "),
        ({"test.jsonl": line(input="a", output="b")}, "{folder}: cannot be read after 0 samples: "),
        ({"train.jsonl": GOOD}, "{folder}, sample 1: input: missing"),
        ({"train.jsonl": line(input="", output="b")}, "{folder}, sample 1: input: empty, expected text"),
        ({"train.parquet": NO_ROWS.getvalue()}, "{folder}: found no samples, expected some"),
    ],
    ids=["empty", "cut Parquet", "cut JSON", "no train split", "other columns", "nothing that fits", "no rows"],
)
def test_a_bad_folder_of_a_published_set_is_refused(tmp_path: Path, files: dict[str, bytes], says: str) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    found = refusal(tmp_path / "out", source="published-text", texts="grammar", folder=str(folder))
    assert found.startswith(says.format(folder=folder))


def test_a_published_set_is_not_downloaded_unless_asked(tmp_path: Path) -> None:
    assert refusal(tmp_path / "out", source="published-text", texts="samsum") == (
        "datasets.mine.folder: missing; download: true would fetch knkarthick/samsum"
    )
    definition = {"source": "published-text", "texts": "samsum", "folder": str(tmp_path / "no"), "download": True}
    assert refusal(tmp_path / "out", **definition) == f"datasets.mine.folder: no such folder: {tmp_path}/no"


# The script, and a download


def script(out: Path, **definition: Any) -> subprocess.CompletedProcess[str]:
    """Run the rule's program in a home of its own."""
    home = out.parent / "home"
    home.mkdir(exist_ok=True)
    command = [sys.executable, ROOT / "workflow" / "scripts" / "prepare_data.py", "--name", "mine"]
    command += ["--dataset", json.dumps(definition), "--out", out, "--resources", RESOURCES]
    environment = {name: value for name, value in os.environ.items() if name not in ("HF_HOME", "XDG_CACHE_HOME")}
    environment |= {"HOME": str(home), "no_proxy": "127.0.0.1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert not list(home.rglob("*"))
    return done


@pytest.mark.parametrize(("name", "code"), [("cnn_dailymail", 0), ("grammar", 1)], ids=["limit", "refusal"])
def test_ending_before_the_end_of_parquet_does_not_abort_python(tmp_path: Path, name: str, code: int) -> None:
    folder = tmp_path / "in" / "3.0.0"
    folder.mkdir(parents=True)
    table = pa.table({"article": ["one two three " * 200] * 20_000})
    pq.write_table(table, folder / "train.parquet", row_group_size=500)
    done = script(tmp_path / "out", source="published-text", texts=name, folder=str(folder), limit=2)
    assert done.returncode == code, done.stderr
    if code:
        assert done.stderr == f"{folder}, sample 1: input: missing\n"
        assert not list((tmp_path / "out").iterdir())


COMMIT = "0123456789" * 4


@pytest.mark.parametrize("name", ["samsum", "grammar", "cnn_dailymail"])
def test_a_published_set_is_downloaded_when_asked_at_the_commit_that_is_recorded(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is asked of Hugging Face's libraries, which read a folder instead."""
    folder, published, asked = publish(tmp_path / "in", name), PUBLISHED[name], []
    subset, build = folder / (published.subset or ""), datasets.load_dataset_builder
    monkeypatch.setattr(HfApi, "dataset_info", lambda _, *of, **more: asked.append((*of, more)) or Mock(sha=COMMIT))

    def from_hub(*of: str, revision: str, cache_dir: str) -> Any:
        asked.append((*of, revision))
        return build(str(subset), cache_dir=cache_dir)

    monkeypatch.setattr(datasets, "load_dataset_builder", from_hub)
    provenance = made(tmp_path / "out", source="published-text", texts=name, download=True, limit=1)
    assert rows(tmp_path / "out" / "train.jsonl") == SAMPLES[published.kind][:1]
    assert (provenance.repository, provenance.subset, provenance.revision) == (
        published.repository,
        published.subset,
        COMMIT,
    )
    of_revision = (published.repository, {"revision": published.revision})
    assert asked == [of_revision, (published.repository, published.subset, COMMIT)]


def test_a_download_that_fails_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # where nobody listens
    done = script(tmp_path / "out", source="published-text", texts="samsum", download=True)
    assert done.returncode == 1
    assert re.fullmatch(r"datasets\.mine: cannot open knkarthick/samsum: [^\n]+\n", done.stderr)
    assert not list((tmp_path / "out").iterdir())
