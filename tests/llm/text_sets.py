"""Sets of texts that are prepared in tests."""

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import TypeAdapter

from conftest import ROOT, refused
from multicard.programs.datasets import Dataset
from multicard.programs.llm.prepare_texts import prepare_texts
from multicard.programs.provenance import TextProvenance, read_unchanged

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


def made(out: Path, **definition: Any) -> TextProvenance:
    """Prepare a set of texts and read its provenance."""
    prepare_texts("mine", TypeAdapter(Dataset).validate_python(definition), out, RESOURCES)
    return read_unchanged(out, TextProvenance)


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def prepared(out: Path, **definition: Any) -> list[dict[str, Any]]:
    made(out, **definition)
    return rows(out / "train.jsonl")


def refusal(out: Path, **definition: Any) -> str:
    return refused(out, lambda: made(out, **definition))


def write(path: Path, samples: list[dict[str, Any]]) -> Path:
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


def line(**row: Any) -> bytes:
    return json.dumps(row).encode() + b"\n"


GOOD = line(text="good")
