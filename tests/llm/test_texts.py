"""Sets of texts are read from where they lie, checked, and written in one form; the shipped ones are made again."""

import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from text_sets import FLAT, GOOD, HELLO, RESOURCES, SAMPLES, WAVE, line, made, prepared, refusal, rows, write

from conftest import ROOT
from multicard.config.load import read_experiment
from multicard.config.plan import Plan
from multicard.core.errors import UserError
from multicard.core.files import sha256
from multicard.programs.datasets import SHIPPED, ShippedText
from multicard.programs.llm.estimate import sample_count
from multicard.programs.llm.prepare_texts import prepare_texts
from multicard.programs.provenance import PreparedFile, TextProvenance, read_unchanged


def of_file(path: Path, kind: str = "completion") -> dict[str, str]:
    return {"source": "text-file", "path": str(path), "samples": kind}


def test_shipped_sets_are_prepared_as_they_are(tmp_path: Path) -> None:
    for name, kind in SHIPPED.items():
        out = tmp_path / name
        provenance = made(out, source="shipped-text", texts=name)
        shipped = RESOURCES / "text" / f"{name}.jsonl"
        assert (out / "train.jsonl").read_bytes() == shipped.read_bytes()
        assert (provenance.dataset, provenance.source, provenance.kind) == ("mine", "shipped-text", kind)
        assert provenance.train_samples == len(rows(shipped)) >= 240
        assert provenance.test_samples == 0
        size, checksum = shipped.stat().st_size, sha256(out / "train.jsonl")
        assert provenance.files == (PreparedFile(name="train.jsonl", bytes=size, sha256=checksum),)
        assert sorted(path.name for path in out.iterdir()) == ["provenance.json", "train.jsonl"]


def test_how_many_samples_a_shipped_set_has_is_known_before_it_is_prepared() -> None:
    count = {name: len(rows(RESOURCES / "text" / f"{name}.jsonl")) for name in SHIPPED}
    for limit in (None, 7, 10_000):
        sets = {name: ShippedText(source="shipped-text", texts=name, limit=limit) for name in SHIPPED}
        known = {name: sample_count(each) for name, each in sets.items()}
        assert known == {name: min(each, limit or each) for name, each in count.items()}


def test_nothing_of_the_default_experiment_is_prepared_to_know_what_can_run() -> None:
    assert Plan.make(read_experiment(ROOT / "config/config.yaml")).undecided_data() == []


def test_the_shipped_sets_are_made_again_byte_for_byte(tmp_path: Path) -> None:
    script = RESOURCES / "text" / "make.py"
    subprocess.run([sys.executable, "-B", script, "--out", tmp_path], check=True)
    shipped = {path.name: path.read_bytes() for path in script.parent.glob("*.jsonl")}
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == shipped
    assert set(shipped) == {f"{name}.jsonl" for name in SHIPPED}
    assert sum(map(len, shipped.values())) < 1.2e6


@pytest.mark.parametrize("kind", SAMPLES)
def test_every_format_gives_the_same_samples(tmp_path: Path, kind: str) -> None:
    for suffix in (".json", ".jsonl", ".parquet", *([".csv"] if kind in FLAT else [])):
        path = write(tmp_path / f"mine{suffix}", SAMPLES[kind])
        provenance = made(tmp_path / "out", **of_file(path, kind))
        assert rows(tmp_path / "out" / "train.jsonl") == SAMPLES[kind]
        assert (provenance.kind, provenance.train_samples, provenance.limit) == (kind, 2, None)
        entry = PreparedFile(name=path.name, bytes=path.stat().st_size, sha256=sha256(path))
        assert provenance.source_files == (entry,)


SYSTEM = {"role": "system", "content": "x"}
NO_INPUT = {"instruction": "A", "output": "B"}
BYE = [{"role": "user", "content": "Bye?"}, HELLO[1]]
SHAREGPT = [{"from": "system", "value": "Be kind."}, {"from": "human", "value": "Hello?"}]


@pytest.mark.parametrize(
    ("kind", "row", "sample"),
    [
        ("chat", {"conversations": [*SHAREGPT, {"from": "gpt", "value": "Hello!"}]}, SAMPLES["chat"][0]),
        ("chat", {"messages": [{"role": "system", "content": ""}, *HELLO]}, {"messages": HELLO}),
        ("chat", {"messages": HELLO, "id": 7}, {"messages": HELLO}),
        ("preference", {"chosen_conversations": HELLO, "rejected_conversations": WAVE}, SAMPLES["preference"][0]),
        ("preference", {"prompt": "Hello?", "chosen": "Hello!", "rejected": "Who is it?"}, SAMPLES["preference"][0]),
        ("preference", {"prompt": "Hello?", "chosen": HELLO, "rejected": WAVE}, SAMPLES["preference"][0]),
        ("completion", {"article": "A.", "highlights": "B."}, {"text": "A."}),
        ("completion", {"page": "A."}, {"text": "A."}),
        ("instruction", NO_INPUT | {"input": None}, NO_INPUT | {"input": ""}),
    ],
)
def test_samples_come_in_other_columns_too(
    tmp_path: Path, kind: str, row: dict[str, Any], sample: dict[str, Any]
) -> None:
    path = write(tmp_path / "mine.jsonl", [row])
    assert prepared(tmp_path / "out", **of_file(path, kind)) == [sample]


def test_files_from_windows_and_long_texts_are_read(tmp_path: Path) -> None:
    long = "x" * 200_000
    path = tmp_path / "mine.csv"
    path.write_bytes(f"\ufefftext,id\r\n{long},1\r\n\r\n".encode())
    assert prepared(tmp_path / "csv", **of_file(path)) == [{"text": long}]
    path = tmp_path / "mine.jsonl"
    path.write_bytes('\ufeff{"text": "é\u2028"}\r\n\r\n'.encode())
    assert prepared(tmp_path / "json", **of_file(path)) == [{"text": "é\u2028"}]


def test_the_limit_takes_the_first_samples_or_all(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.jsonl", [{"text": str(number)} for number in range(5)])
    assert prepared(tmp_path / "some", **of_file(path), limit=2) == [{"text": "0"}, {"text": "1"}]
    assert len(prepared(tmp_path / "all", **of_file(path), limit=9)) == 5


COMPLETION = [
    ("a.jsonl", b"", ": found no samples, expected some"),
    ("a.csv", b"text\n", ": found no samples"),
    ("a.jsonl", GOOD + b"{'text': 1}\n", ": cannot be read after 1 samples: Expecting property"),
    ("a.json", GOOD, ": cannot be read after 0 samples: found JSON that is no list"),
    ("a.jsonl", b'{"text": "\xff"}', ": cannot be read after 0 samples: 'utf-8' codec can't decode byte 0xff"),
    ("a.csv", b"text\na\nb,1\n", ": cannot be read after 0 samples: Error tokenizing data. C error: Expected 1 fields"),
    ("a.csv", b"text\na,1\nb,1\n", ": cannot be read after 0 samples: found more columns than the 1 of the first"),
    ("a.parquet", b"PAR1 and no more", ": cannot be read after 0 samples: Parquet"),
    ("a.jsonl", GOOD + b"[1]\n", ", sample 2: found [1], expected a mapping"),
    ("a.jsonl", line(words="a"), ", sample 1: text: missing"),
    ("a.jsonl", GOOD + line(text=3), ", sample 2: text: found 3, expected text"),
    ("a.csv", b"id,text\n1,a\n2\n", ", sample 2: text: empty"),
    ("a.jsonl", GOOD + line(text=" \n"), ", sample 2: text: empty"),
    ("a.jsonl", line(text="\ud800"), ", sample 1: 'utf-8' codec can't encode character"),
]
OTHER_KINDS = [
    ("instruction", {"instruction": "a", "output": "b"}, ": input: missing"),
    ("instruction", {"instruction": "a", "input": "", "output": None}, ": output: "),
    ("instruction", {"instruction": "a", "input": ["b"], "output": "c"}, ": input: "),
    ("chat", {"messages": "hello"}, ": messages: found 'hello', expected a list"),
    ("chat", {"messages": HELLO[:1]}, ": messages: found no message of the assistant"),
    ("chat", {"messages": ["hi"]}, ": messages.0: "),
    (
        "chat",
        {"messages": [{"role": "tool", "content": "x"}]},
        ": messages.0.role: found 'tool', expected one of system, ",
    ),
    ("chat", {"messages": [{"speaker": "a", "content": "x"}]}, ": messages.0.role: missing"),
    ("chat", {"messages": [*HELLO, HELLO[1]]}, ": messages: message 3: found the role assistant, expected user"),
    ("chat", {"messages": [*HELLO, SYSTEM]}, ": messages: message 3: found the role system, expected user"),
    ("chat", {"messages": [HELLO[0], HELLO[1] | {"content": ""}]}, ": messages: empty"),
    ("preference", {"prompt": "a", "good": "b"}, ": chosen: missing"),
    ("preference", {"chosen": "a", "rejected": "b"}, ": chosen: found 'a', expected a list"),
    (
        "preference",
        {"chosen": [*HELLO, HELLO[0]], "rejected": HELLO},
        ": column chosen: the last message is the user's",
    ),
    ("preference", {"chosen": HELLO, "rejected": BYE}, ": chosen and rejected: found different questions"),
]


@pytest.mark.parametrize(
    ("kind", "name", "content", "says"),
    [("completion", *case) for case in COMPLETION]
    + [(kind, "a.jsonl", line(**row), f", sample 1{says}") for kind, row, says in OTHER_KINDS],
)
def test_a_bad_file_is_refused_in_one_line_with_its_place(
    tmp_path: Path, kind: str, name: str, content: bytes, says: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    found = refusal(tmp_path / "out", **of_file(path, kind))
    assert found.startswith(f"{path}{says}")
    assert len(found) < len(str(path)) + 350


def test_unknown_and_missing_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "texts.txt"
    assert refusal(tmp_path / "out", **of_file(path)) == f"datasets.mine.path: no such file: {path}"
    path.write_text("hello")
    said = f"datasets.mine.path: found the suffix '.txt' of {path}, expected .json, .jsonl, .csv, .parquet"
    assert refusal(tmp_path / "out", **of_file(path)) == said
    with pytest.raises(UserError, match=r"chats\.jsonl: cannot be read after 0 samples: No such file or directory"):
        prepare_texts("mine", ShippedText(source="shipped-text", texts="chats"), tmp_path / "out", tmp_path)


def test_a_set_that_cannot_be_written_whole_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = Mock(side_effect=OSError(28, "No space left on device"))
    monkeypatch.setattr("multicard.programs.llm.prepare_texts.json.dumps", full)
    with pytest.raises(UserError, match="cannot be written: No space left"):
        made(tmp_path, source="shipped-text", texts="chats")
    assert not list(tmp_path.iterdir())


def test_what_was_prepared_before_does_not_speak_for_a_set_that_is_refused(tmp_path: Path) -> None:
    made(tmp_path / "out", source="shipped-text", texts="grammar")
    path = tmp_path / "empty.jsonl"
    path.touch()
    with pytest.raises(UserError, match="found no samples"):
        made(tmp_path / "out", **of_file(path, "grammar"))
    assert not (tmp_path / "out" / "provenance.json").exists()


def test_texts_that_changed_since_they_were_prepared_are_noticed(tmp_path: Path) -> None:
    made(tmp_path, source="shipped-text", texts="grammar")
    file = tmp_path / "train.jsonl"
    file.write_text(file.read_text(encoding="utf-8").replace("Ada", "Eva"), encoding="utf-8")
    for _ in ("changed", "removed"):
        with pytest.raises(UserError, match=r"train\.jsonl: missing or changed since it was prepared; delete"):
            read_unchanged(tmp_path, TextProvenance)
        file.unlink(missing_ok=True)
