"""Sets of texts are read from where they lie, checked, and written in one form; the shipped ones say what is true."""

import calendar
import csv
import functools
import json
import operator
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import TypeAdapter

from conftest import ROOT
from multicard.errors import UserError
from multicard.experiment.datasets import PUBLISHED, SHIPPED, Dataset
from multicard.files import sha256
from multicard.llm.texts import prepare_texts, read_texts

RESOURCES = ROOT / "resources"
HELLO = [{"role": "user", "content": "Hello?"}, {"role": "assistant", "content": "Hello!"}]
WAVE = [{"role": "user", "content": "Hello?"}, {"role": "assistant", "content": "Who is it?"}]
# Two samples of each kind, as they are prepared.
SAMPLES: dict[str, list[dict[str, Any]]] = {
    "instruction": [
        {"instruction": "Add.", "input": "1, 2", "output": "3"},
        {"instruction": "Say “no”.", "input": "", "output": "No,\nno."},
    ],
    "chat": [{"messages": [{"role": "system", "content": "Be kind."}, *HELLO]}, {"messages": [*HELLO, *WAVE]}],
    "summary": [{"dialogue": "A: hi\nB: ho", "summary": "A greets B."}, {"dialogue": "A: é", "summary": "×"}],
    "grammar": [{"input": "He go.", "output": "He goes."}, {"input": "A apple", "output": "An apple"}],
    "completion": [{"text": "Once upon a time"}, {"text": "there was\n\na river."}],
    "preference": [{"chosen": HELLO, "rejected": WAVE}, {"chosen": WAVE, "rejected": [*HELLO, *HELLO]}],
}
FLAT = ("instruction", "summary", "grammar", "completion")  # those that CSV can hold


def made(out: Path, **definition: Any) -> dict[str, Any]:
    """Prepare a set of texts and read its provenance."""
    prepare_texts("mine", TypeAdapter(Dataset).validate_python(definition), out, RESOURCES)
    return read_texts(out)


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def prepared(out: Path, **definition: Any) -> list[dict[str, Any]]:
    made(out, **definition)
    return rows(out / "train.jsonl")


def refusal(out: Path, **definition: Any) -> str:
    """The one line that refuses a set of texts, of which nothing may stay."""
    with pytest.raises(UserError) as caught:
        made(out, **definition)
    assert not out.exists() or not list(out.iterdir())
    [line] = str(caught.value).splitlines()
    return line


def write(path: Path, samples: list[dict[str, Any]]) -> Path:
    """Write samples in the format that the suffix names."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(samples), path)
    elif path.suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(samples[0]))
            writer.writeheader()
            writer.writerows(samples)
    elif path.suffix == ".json":
        path.write_text(json.dumps(samples, indent=1), encoding="utf-8")
    else:
        path.write_text("".join(json.dumps(sample) + "\n" for sample in samples), encoding="utf-8")
    return path


# The shipped sets


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_set_is_prepared_as_it_is(tmp_path: Path, name: str) -> None:
    facts = made(tmp_path, source="shipped-text", texts=name)
    shipped = RESOURCES / "text" / f"{name}.jsonl"
    assert (tmp_path / "train.jsonl").read_bytes() == shipped.read_bytes()
    assert (facts["dataset"], facts["source"], facts["kind"]) == ("mine", "shipped-text", SHIPPED[name])
    assert facts["train_samples"] == len(rows(shipped)) >= 240
    assert facts["test_samples"] == 0
    assert facts["files"] == [
        {"name": "train.jsonl", "bytes": shipped.stat().st_size, "sha256": sha256(tmp_path / "train.jsonl")}
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["provenance.json", "train.jsonl"]


def test_the_shipped_sets_are_made_again_byte_for_byte(tmp_path: Path) -> None:
    script = RESOURCES / "text" / "make.py"
    subprocess.run([sys.executable, "-B", script, "--out", tmp_path], check=True)
    shipped = {path.name: path.read_bytes() for path in script.parent.glob("*.jsonl")}
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == shipped
    assert set(shipped) == {f"{name}.jsonl" for name in SHIPPED}
    assert sum(map(len, shipped.values())) < 1.2e6


def test_the_shipped_sets_differ_in_length_and_repeat_nothing(tmp_path: Path) -> None:
    means = {}
    for name in SHIPPED:
        means[name] = made(tmp_path / name, source="shipped-text", texts=name)["characters_per_sample"]["mean"]
        lines = (tmp_path / name / "train.jsonl").read_text(encoding="utf-8").splitlines()
        assert len(set(lines)) == len(lines)
    assert means["grammar"] * 2 < means["instructions"] < means["chats"] < means["summaries"] < means["articles"] / 1.5


def true_texts(value: Any) -> Iterator[str]:
    """Every text of a sample but the rejected answers, which are wrong on purpose."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            if key != "rejected":
                yield from true_texts(part)


def test_sums_and_days_of_the_week_in_the_shipped_sets_are_right() -> None:
    texts = [text for name in SHIPPED for text in true_texts(rows(RESOURCES / "text" / f"{name}.jsonl"))]
    sums = [found for text in texts for found in re.findall(r"(\d+(?: [+−×÷] \d+)+) = (\d+)", text)]
    compute = {"+": operator.add, "−": operator.sub, "×": operator.mul, "÷": operator.truediv}
    for terms, result in sums:
        numbers = [int(number) for number in re.findall(r"\d+", terms)]
        expected = functools.reduce(compute[re.search(r"[+−×÷]", terms)[0]], numbers)
        assert int(result) == expected, f"{terms} = {result}"
    months, days = "|".join(list(calendar.month_name)[1:]), "|".join(calendar.day_name)
    dates = [f for text in texts for f in re.findall(rf"(\d+) ({months}) (\d{{4}}),? (?:is|falls on) a ({days})", text)]
    for day, month, year, weekday in dates:
        expected = calendar.weekday(int(year), list(calendar.month_name).index(month), int(day))
        assert calendar.day_name[expected] == weekday, (day, month, year)
    assert len(sums) > 1000
    assert len(dates) > 100


# A user's file


@pytest.mark.parametrize(
    ("kind", "suffix"),
    [(kind, suffix) for kind in SAMPLES for suffix in (".json", ".jsonl", ".parquet")] + [(k, ".csv") for k in FLAT],
)
def test_every_format_gives_the_same_samples(tmp_path: Path, kind: str, suffix: str) -> None:
    path = write(tmp_path / f"mine{suffix}", SAMPLES[kind])
    facts = made(tmp_path / "out", source="text-file", path=str(path), samples=kind)
    assert rows(tmp_path / "out" / "train.jsonl") == SAMPLES[kind]
    assert (facts["kind"], facts["train_samples"], facts["limit"]) == (kind, 2, None)
    assert facts["source_files"] == [{"name": path.name, "bytes": path.stat().st_size, "sha256": sha256(path)}]


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
        (
            "instruction",
            {"instruction": "A", "input": None, "output": "B"},
            {"instruction": "A", "input": "", "output": "B"},
        ),
    ],
)
def test_samples_come_in_other_columns_too(
    tmp_path: Path, kind: str, row: dict[str, Any], sample: dict[str, Any]
) -> None:
    path = write(tmp_path / "mine.jsonl", [row])
    assert prepared(tmp_path / "out", source="text-file", path=str(path), samples=kind) == [sample]


def test_preferences_as_text_may_come_in_csv(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.csv", [{"prompt": "Hello?", "chosen": "Hello!", "rejected": "Who is it?"}])
    found = prepared(tmp_path / "out", source="text-file", path=str(path), samples="preference")
    assert found == SAMPLES["preference"][:1]


def test_files_from_windows_and_long_texts_are_read(tmp_path: Path) -> None:
    long = "x" * 200_000
    path = tmp_path / "mine.csv"
    path.write_bytes(f"\ufefftext,id\r\n{long},1\r\n\r\n".encode())
    assert prepared(tmp_path / "csv", source="text-file", path=str(path), samples="completion") == [{"text": long}]
    path = tmp_path / "mine.jsonl"
    path.write_bytes('\ufeff{"text": "é\u2028"}\r\n\r\n'.encode())
    assert prepared(tmp_path / "json", source="text-file", path=str(path), samples="completion") == [
        {"text": "é\u2028"}
    ]


def test_the_limit_takes_the_first_samples_or_all(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.jsonl", [{"text": str(number)} for number in range(5)])
    definition = {"source": "text-file", "path": str(path), "samples": "completion"}
    assert prepared(tmp_path / "some", **definition, limit=2) == [{"text": "0"}, {"text": "1"}]
    assert len(prepared(tmp_path / "all", **definition, limit=9)) == 5


def test_characters_are_those_of_all_texts_of_a_sample(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.jsonl", [{"input": "é" * n, "output": "ab"} for n in (1, 2, 9)])
    facts = made(tmp_path / "out", source="text-file", path=str(path), samples="grammar")
    assert facts["characters_per_sample"] == {"mean": 6.0, "median": 4.0, "max": 11}
    path = write(tmp_path / "mine.jsonl", SAMPLES["preference"][:1])
    facts = made(tmp_path / "pairs", source="text-file", path=str(path), samples="preference")
    assert facts["characters_per_sample"]["max"] == len("Hello?Hello!") + len("Hello?Who is it?")


def line(**row: Any) -> bytes:
    return json.dumps(row).encode() + b"\n"


GOOD = line(text="good")


@pytest.mark.parametrize(
    ("kind", "name", "content", "says"),
    [
        ("completion", "a.jsonl", b"", ": found no samples, expected some"),
        ("completion", "a.json", b"[]", ": found no samples, expected some"),
        ("completion", "a.csv", b"text\n", ": found no samples, expected some"),
        (
            "completion",
            "a.jsonl",
            GOOD + b"{'text': 1}\n",
            ", line 2: cannot be read as JSON: Expecting property",
        ),
        ("completion", "a.json", GOOD + GOOD, ": cannot be read as JSON: Extra data: line 2 column 1 (char 17)"),
        ("completion", "a.json", GOOD, ": found JSON that is no list, expected a list of samples"),
        ("completion", "a.jsonl", b"[" * 99_999, ", line 1: cannot be read as JSON: maximum recursion depth exceeded"),
        ("completion", "a.jsonl", GOOD + b'{"text": "\xff"}', ", line 2: found the byte 0xff, expected UTF-8"),
        ("completion", "a.csv", b"text\n\xe9t\xe9\n", ", line 2: found the byte 0xe9, expected UTF-8"),
        ("completion", "a.csv", b"text,id\na,1\nb\n", ", line 3: found 1 columns, expected 2"),
        ("completion", "a.csv", b'text\n"a\n', ", line 2: cannot be read as CSV: unexpected end of data"),
        ("completion", "a.parquet", b"PAR1 and no more", ": cannot be read as Parquet: "),
        ("completion", "a.parquet", b"", ": cannot be read as Parquet: "),
        ("completion", "a.jsonl", GOOD + b"[1]\n", ", line 2, found a list, expected an object"),
        (
            "completion",
            "a.jsonl",
            line(words="a"),
            ", line 1: found the columns words, expected text or article",
        ),
        ("completion", "a.jsonl", GOOD + line(text=3), ", line 2, column text: found a number, expected text"),
        ("completion", "a.jsonl", GOOD + line(text=" \n"), ", line 2, column text: empty, expected text"),
        (
            "completion",
            "a.jsonl",
            line(text="\ud800"),
            ", line 1, column text: found half a surrogate pair",
        ),
        (
            "instruction",
            "a.csv",
            b"instruction,output\nAdd,3\n",
            ", line 2: found the columns instruction, output, expected instruction, input, output",
        ),
        (
            "instruction",
            "a.json",
            b'[{"instruction": "a", "input": "", "output": null}]',
            ", sample 1, column output: found nothing, expected text",
        ),
        (
            "instruction",
            "a.jsonl",
            line(instruction="a", input=["b"], output="c"),
            ", line 1, column input: found a list, expected text",
        ),
        ("chat", "a.csv", b"messages\nhello\n", ", line 2, column messages: found text, expected a list of messages"),
        (
            "chat",
            "a.jsonl",
            line(messages=[]),
            ", line 1, column messages: found no message of the assistant",
        ),
        (
            "chat",
            "a.jsonl",
            line(messages=HELLO[:1]),
            ", line 1, column messages: found no message of the assistant",
        ),
        (
            "chat",
            "a.jsonl",
            line(messages=["hi"]),
            ", line 1, column messages, message 1: found text",
        ),
        (
            "chat",
            "a.jsonl",
            line(messages=[{"role": "tool", "content": "x"}]),
            ", line 1, column messages, message 1: found the role 'tool', expected system, user or assistant",
        ),
        (
            "chat",
            "a.jsonl",
            line(messages=[{"speaker": "user", "content": "x"}]),
            ", line 1, column messages, message 1: found the keys speaker, content, expected role and content",
        ),
        (
            "chat",
            "a.jsonl",
            line(messages=[*HELLO, HELLO[1]]),
            ", line 1, column messages, message 3: found the role assistant, expected user",
        ),
        (
            "chat",
            "a.jsonl",
            line(messages=[*HELLO, {"role": "system", "content": "x"}]),
            ", line 1, column messages, message 3: found the role system, expected user",
        ),
        (
            "chat",
            "a.jsonl",
            line(messages=[HELLO[0], {"role": "assistant", "content": ""}]),
            ", line 1, column messages, message 2: empty, expected text",
        ),
        (
            "preference",
            "a.jsonl",
            line(prompt="a", good="b"),
            ", line 1: found the columns prompt, good, expected chosen, rejected or chosen_conversations",
        ),
        (
            "preference",
            "a.jsonl",
            line(chosen="a", rejected="b"),
            ", line 1, column chosen: found text, expected a list of messages (or text, beside a column prompt)",
        ),
        (
            "preference",
            "a.jsonl",
            line(chosen=[*HELLO, HELLO[0]], rejected=HELLO),
            ", line 1, column chosen: the last message is the user's, expected the assistant's",
        ),
        (
            "preference",
            "a.jsonl",
            line(chosen=HELLO, rejected=[{"role": "user", "content": "Bye?"}, HELLO[1]]),
            ", line 1, columns chosen and rejected: found different questions, expected the same first message",
        ),
    ],
)
def test_a_bad_file_is_refused_in_one_line_with_its_place(
    tmp_path: Path, kind: str, name: str, content: bytes, says: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    found = refusal(tmp_path / "out", source="text-file", path=str(path), samples=kind)
    assert found.startswith(f"{path}{says}")
    assert len(found) < len(str(path)) + 350


def test_a_bad_row_of_parquet_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", [{"text": "a"}, {"text": None}])
    found = refusal(tmp_path / "out", source="text-file", path=str(path), samples="completion")
    assert found == f"{path}, row 2, column text: found nothing, expected text"


def test_unknown_and_missing_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "texts.txt"
    definition = {"source": "text-file", "path": str(path), "samples": "completion"}
    assert refusal(tmp_path / "out", **definition) == f"datasets.mine.path: no such file: {path}"
    path.write_text("hello")
    assert refusal(tmp_path / "out", **definition) == (
        f"datasets.mine.path: found the suffix '.txt' of {path}, expected .json, .jsonl, .csv, .parquet"
    )
    with pytest.raises(UserError, match=r"chats\.jsonl: cannot be read: No such file or directory"):
        prepare_texts(
            "mine",
            TypeAdapter(Dataset).validate_python({"source": "shipped-text", "texts": "chats"}),
            tmp_path / "out",
            tmp_path,
        )


def test_a_set_that_cannot_be_written_whole_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("multicard.llm.texts.characters", full)
    with pytest.raises(UserError, match="cannot be written: No space left"):
        made(tmp_path, source="shipped-text", texts="chats")
    assert not list(tmp_path.iterdir())


def test_what_was_prepared_before_does_not_speak_for_a_set_that_is_refused(tmp_path: Path) -> None:
    made(tmp_path / "out", source="shipped-text", texts="grammar")
    path = tmp_path / "empty.jsonl"
    path.touch()
    with pytest.raises(UserError, match="found no samples"):
        made(tmp_path / "out", source="text-file", path=str(path), samples="grammar")
    assert not (tmp_path / "out" / "provenance.json").exists()


@pytest.mark.parametrize("harm", ["removed", "changed"])
def test_texts_that_changed_since_they_were_prepared_are_noticed(tmp_path: Path, harm: str) -> None:
    made(tmp_path, source="shipped-text", texts="grammar")
    file = tmp_path / "train.jsonl"
    if harm == "removed":
        file.unlink()
    else:
        file.write_text(file.read_text(encoding="utf-8").replace("Ada", "Eva"), encoding="utf-8")
    with pytest.raises(UserError, match=r"train\.jsonl: missing or changed since it was prepared; delete"):
        read_texts(tmp_path)


# Published sets, from a folder that looks like theirs


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


def test_a_subset_alone_is_found_too(tmp_path: Path) -> None:
    folder = publish(tmp_path / "in", "wikitext") / "wikitext-103-v1"
    assert (
        prepared(tmp_path / "out", source="published-text", texts="wikitext", folder=str(folder))
        == SAMPLES["completion"]
    )


def test_samples_of_a_published_set_that_are_empty_are_left_out_and_counted(tmp_path: Path) -> None:
    good = SAMPLES["summary"][0]
    write(tmp_path / "in" / "train.csv", [good, {"dialogue": "", "summary": "x"}, good, good])
    definition = {"source": "published-text", "texts": "samsum", "folder": str(tmp_path / "in")}
    facts = made(tmp_path / "out", **definition, limit=3)
    assert rows(tmp_path / "out" / "train.jsonl") == [good, good]
    assert (facts["train_samples"], facts["left_out"]) == (2, 1)
    assert facts["first_left_out"] == f"{tmp_path}/in, sample 2, column dialogue: found nothing, expected text"


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({}, "datasets.mine: cannot open {folder}: The directory at {folder} doesn't contain any data files"),
        (
            {"train.parquet": b"PAR1"},
            "datasets.mine: cannot read {folder} after 0 samples: Parquet",
        ),
        ({"train.jsonl": b'{"input": \n'}, "datasets.mine: cannot read {folder} after 0 samples: "),
        (
            {"test.jsonl": line(input="a", output="b")},
            "datasets.mine: found the splits test in {folder}, expected",
        ),
        ({"train.jsonl": GOOD}, "{folder}, sample 1: found the columns text, expected input, output"),
        ({"train.jsonl": line(input="", output="b")}, "{folder}, sample 1, column input: empty, expected text"),
    ],
    ids=["empty", "cut Parquet", "cut JSON", "no train split", "other columns", "nothing that fits"],
)
def test_a_bad_folder_of_a_published_set_is_refused(tmp_path: Path, files: dict[str, bytes], says: str) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    found = refusal(tmp_path / "out", source="published-text", texts="grammar", folder=str(folder))
    assert found.startswith(says.format(folder=folder))


def test_a_published_set_without_samples_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    pq.write_table(pa.table({"input": pa.array([], pa.string())}), folder / "train.parquet")
    found = refusal(tmp_path / "out", source="published-text", texts="grammar", folder=str(folder))
    assert found == f"{folder}: found no samples, expected some"


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


def test_the_script_prepares_texts(tmp_path: Path) -> None:
    done = script(tmp_path / "out", source="shipped-text", texts="articles", limit=3)
    assert (done.returncode, done.stderr) == (0, "")
    assert read_texts(tmp_path / "out")["train_samples"] == 3


@pytest.mark.parametrize(("name", "code"), [("cnn_dailymail", 0), ("grammar", 1)], ids=["limit", "refusal"])
def test_ending_before_the_end_of_parquet_does_not_abort_python(tmp_path: Path, name: str, code: int) -> None:
    folder = tmp_path / "in" / "3.0.0"
    folder.mkdir(parents=True)
    table = pa.table({"article": ["one two three " * 200] * 20_000})
    pq.write_table(table, folder / "train.parquet", row_group_size=500)
    done = script(tmp_path / "out", source="published-text", texts=name, folder=str(folder), limit=2)
    assert done.returncode == code, done.stderr
    if code:
        assert done.stderr == f"{folder}, sample 1: found the columns article, expected input, output\n"
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


@pytest.mark.parametrize("name", ["samsum", "grammar", "cnn_dailymail"])
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
