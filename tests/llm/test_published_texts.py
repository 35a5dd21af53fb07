"""Published sets of texts, from a folder that looks like theirs, and from a server that answers like theirs."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from text_sets import GOOD, RESOURCES, SAMPLES, line, made, prepared, refusal, rows, write

from conftest import ROOT
from multicard.experiment.datasets import PUBLISHED
from multicard.workloads.llm.prepare_texts import read_texts

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
    facts = made(tmp_path / "out", source="published-text", texts=name, folder=str(folder))
    published = PUBLISHED[name]
    assert rows(tmp_path / "out" / "train.jsonl") == SAMPLES[published.kind]
    assert (facts["kind"], facts["repository"], facts["subset"]) == published[:3]
    assert facts["folder"] == str(folder)
    assert (facts["train_samples"], facts["left_out"], facts["first_left_out"]) == (2, 0, None)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["provenance.json", "train.jsonl"]
    if name == "wikitext":  # a subset alone is found too
        alone = str(folder / "wikitext-103-v1")
        found = prepared(tmp_path / "alone", source="published-text", texts=name, folder=alone)
        assert found == SAMPLES[published.kind]


def test_samples_of_a_published_set_that_are_empty_are_left_out_and_counted(tmp_path: Path) -> None:
    good = SAMPLES["summary"][0]
    write(tmp_path / "in" / "train.csv", [good, {"dialogue": "", "summary": "x"}, good, good])
    definition = {"source": "published-text", "texts": "samsum", "folder": str(tmp_path / "in")}
    facts = made(tmp_path / "out", **definition, limit=3)
    assert rows(tmp_path / "out" / "train.jsonl") == [good, good]
    assert (facts["train_samples"], facts["left_out"]) == (2, 1)
    assert facts["first_left_out"] == f"{tmp_path}/in, sample 2: column dialogue: Input should be a valid string"


NO_ROWS = BytesIO()
pq.write_table(pa.table({"input": pa.array([], pa.string())}), NO_ROWS)


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({}, "datasets.mine: cannot open {folder}: "),
        ({"train.parquet": b"PAR1"}, "{folder}: cannot be read after 0 samples: Parquet"),
        ({"train.jsonl": b'{"input": \n'}, "{folder}: cannot be read after 0 samples: "),
        ({"test.jsonl": line(input="a", output="b")}, "datasets.mine: found the splits test in {folder}, expected"),
        ({"train.jsonl": GOOD}, "{folder}, sample 1: found the columns text, expected input"),
        ({"train.jsonl": line(input="", output="b")}, "{folder}, sample 1: column input: empty, expected text"),
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
        assert done.stderr == f"{folder}, sample 1: found the columns article, expected input\n"
        assert not list((tmp_path / "out").iterdir())


COMMIT = "0123456789" * 4


class Hub(BaseHTTPRequestHandler):
    """As much of Hugging Face as a download asks for: one repository, whatever its name is."""

    protocol_version = "HTTP/1.1"
    folder: Path
    asked: list[str]

    def log_message(self, *_: Any) -> None:
        """Stay quiet."""

    def do_HEAD(self) -> None:
        """Answer without a body."""
        self.do_GET()

    def do_GET(self) -> None:
        """Say what the repository is, list a folder, give a file or a part of it."""
        path = unquote(urlsplit(self.path).path)
        self.asked.append(path)
        if re.fullmatch(r"/api/datasets/[^/]+/[^/]+(/revision/.+)?", path):
            self.send(200, json.dumps({"id": "any/thing", "sha": COMMIT, "siblings": [], "tags": []}).encode())
            return
        found = re.fullmatch(rf"(?:/api)?/datasets/[^/]+/[^/]+/(tree|resolve)/{COMMIT}/?(.*)", path)
        place = self.folder / found[2] if found else self.folder / "nothing"
        if place.is_dir():
            below = place.rglob("*") if "recursive=true" in self.path else place.iterdir()
            self.send(200, json.dumps([self.entry(file) for file in below]).encode())
        elif place.is_file():
            self.send_file(place.read_bytes())
        else:
            self.send(404, headers={"X-Error-Code": "EntryNotFound"})

    def entry(self, file: Path) -> dict[str, Any]:
        """Describe a file or folder of the repository."""
        kind = "directory" if file.is_dir() else "file"
        name = file.relative_to(self.folder).as_posix()
        return {"type": kind, "path": name, "size": file.stat().st_size, "oid": "0" * 40}

    def send_file(self, content: bytes) -> None:
        """Give a file, or the part that is asked for."""
        headers = {"ETag": '"0"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        if span := re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", "")):
            first, last = int(span[1]), min(int(span[2]), len(content) - 1)
            headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
            self.send(206, content[first : last + 1], headers)
        else:
            self.send(200, content, headers)

    def send(self, code: int, content: bytes = b"", headers: dict[str, str] | None = None) -> None:
        """Answer."""
        self.send_response(code)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    """A hub on this machine."""
    handler = type("ThisHub", (Hub,), {"folder": tmp_path / "hub", "asked": []})
    handler.folder.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield handler
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("name", ["samsum", pytest.param("grammar", marks=pytest.mark.rare), "cnn_dailymail"])
def test_a_published_set_is_downloaded_when_asked(tmp_path: Path, hub: type[Hub], name: str) -> None:
    publish(hub.folder, name)
    if name == "cnn_dailymail":
        for subset in ("1.0.0", "2.0.0"):
            shutil.copytree(hub.folder / "3.0.0", hub.folder / subset)
    done = script(tmp_path / "out", source="published-text", texts=name, download=True, limit=1)
    assert done.returncode == 0, done.stderr
    published = PUBLISHED[name]
    assert rows(tmp_path / "out" / "train.jsonl") == SAMPLES[published.kind][:1]
    facts = read_texts(tmp_path / "out")
    assert (facts["repository"], facts["subset"], facts["revision"]) == (
        published.repository,
        published.subset,
        COMMIT,
    )
    revision = f"/revision/{published.revision}" if published.revision else ""
    assert f"/api/datasets/{published.repository}{revision}" in hub.asked
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["provenance.json", "train.jsonl"]


def test_a_download_that_fails_is_one_line(tmp_path: Path, hub: type[Hub]) -> None:
    done = script(tmp_path / "out", source="published-text", texts="samsum", download=True)
    assert done.returncode == 1
    assert re.fullmatch(r"datasets\.mine: cannot open knkarthick/samsum: [^\n]+\n", done.stderr)
    assert not list((tmp_path / "out").iterdir())
