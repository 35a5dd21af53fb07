"""Folders of the user are checked before a job starts, and only read; what is wrong is one line."""

import base64
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from conftest import refused
from multicard.core.errors import UserError
from multicard.programs.llm.prepare_model import prepare_model
from multicard.programs.llm.tiny import tensor_shapes
from multicard.programs.models import ARCHITECTURES, Architecture, Model
from multicard.programs.provenance import ModelProvenance, read_unchanged

# As the users' checkpoints are shaped, and quickly written.
SMALL = Architecture(vocabulary=512, layers=2, heads=2, kv_heads=1, embedding=8, feed_forward=16, max_sequence=64)
PARAMETERS = 2 * (2 * 64 + 2 * 32 + 3 * 128 + 2 * 8) + 2 * 512 * 8 + 8
TOKENIZER, ONE = "original/tokenizer.model", "model.safetensors"


def config(**changes: Any) -> dict[str, Any]:
    """What config.json states of SMALL, by the keys of Hugging Face's `LlamaConfig`."""
    return {
        "model_type": "llama",
        "hidden_size": 8,
        "intermediate_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 64,
        "vocab_size": 512,
        "tie_word_embeddings": False,
    } | changes


def write_folder(folder: Path, shards: int = 1) -> Path:
    """A checkpoint of SMALL as Hugging Face ships them."""
    (folder / "original").mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config()))
    lines = [base64.b64encode(bytes([value])) + b" %d\n" % value for value in range(256)]
    (folder / "original" / "tokenizer.model").write_bytes(b"".join(lines))
    parts: dict[str, dict[str, torch.Tensor]] = {}
    # By Hugging Face's names, as test_tiny.py has them from torchtune.
    for number, (name, size) in enumerate(tensor_shapes(SMALL).items()):
        file = shard(number % shards + 1, shards) if shards > 1 else ONE
        parts.setdefault(file, {})[name] = torch.zeros(size, dtype=torch.bfloat16)
    for file, part in parts.items():
        save_file(part, folder / file)
    if shards > 1:
        (folder / f"{ONE}.index.json").write_text(
            json.dumps({"weight_map": {name: file for file, part in parts.items() for name in part}})
        )
    return folder


def shard(number: int, count: int) -> str:
    return f"model-{number:05}-of-{count:05}.safetensors"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ARCHITECTURES, "llama3_8b", SMALL)


def of(folder: Path | str) -> Model:
    return Model(architecture="llama3_8b", folder=str(folder))


def checked(folder: Path) -> ModelProvenance:
    prepare_model("mine", of(folder), folder / "out", folder / "no resources")
    return read_unchanged(folder / "out", ModelProvenance)


def refusal(folder: Path) -> str:
    return refused(folder / "out", lambda: checked(folder))


def test_a_whole_folder_is_described_and_only_read_wherever_it_is_stated_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, out = write_folder(tmp_path / "weights", shards=3), tmp_path / "out"
    before = {file: (file.stat().st_size, file.stat().st_mtime_ns) for file in folder.rglob("*")}
    monkeypatch.chdir(tmp_path)
    prepare_model("mine", of("weights"), out, tmp_path / "no resources")
    monkeypatch.chdir("/")
    assert {file: (file.stat().st_size, file.stat().st_mtime_ns) for file in folder.rglob("*")} == before
    assert [file.name for file in out.iterdir()] == ["provenance.json"]
    facts = read_unchanged(out, ModelProvenance).as_json()
    files = {file["name"]: file for file in facts.pop("files")}
    assert facts == {
        "model": "mine",
        "architecture": "llama3_8b",
        "folder": str(folder),
        "tokenizer": str(folder / "original" / "tokenizer.model"),
        "special_tokens": None,
        "checkpoint_files": [shard(1, 3), shard(2, 3), shard(3, 3)],
        "parameters": PARAMETERS,
    }
    whole = {"config.json", "original/tokenizer.model", *facts["checkpoint_files"]}
    assert {name: {"name": name, "bytes": before[folder / name][0]} for name in whole} == files
    (folder / shard(2, 3)).write_bytes(b"")
    with pytest.raises(UserError, match="missing or changed since it was prepared"):
        read_unchanged(out, ModelProvenance)


def test_a_folder_may_differ_from_the_usual_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_folder(tmp_path / "weights")
    shutil.move(folder / "original" / "tokenizer.model", folder / "tokenizer.model")
    assert checked(folder).tokenizer == str(folder / "tokenizer.model")
    # A tied model has no output layer.
    monkeypatch.setitem(ARCHITECTURES, "llama3_8b", replace(SMALL, tied=True))
    (folder / "config.json").write_text(json.dumps(config(tie_word_embeddings=True)))
    assert checked(folder).parameters == PARAMETERS - 512 * 8


def test_a_partial_folder_is_named_with_what_is_missing_and_the_command_that_fetches_it(tmp_path: Path) -> None:
    folder = tmp_path / "none"
    said = (
        f"{folder}: does not contain config.json, {ONE}, {TOKENIZER}; fetch the model by: {of(folder).download_command}"
    )
    assert refusal(folder) == said
    sharded = write_folder(tmp_path / "sharded", shards=3)
    (sharded / shard(1, 3)).unlink()
    (sharded / shard(3, 3)).unlink()
    assert f"does not contain {shard(1, 3)}, {shard(3, 3)}; " in refusal(sharded)


def test_a_config_of_another_shape_or_form_is_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "weights")
    file = folder / "config.json"
    for key, found, expected in (
        ("hidden_size", 16, 8),
        ("num_key_value_heads", True, 1),
        ("vocab_size", None, 512),
        ("tie_word_embeddings", True, False),
    ):
        file.write_text(json.dumps(config(**{key: found})))
        assert refusal(folder) == f"{file}, {key}: found {found!r}, expected {expected}"
    # It may leave out what is taken for granted.
    stated = config()
    del stated["tie_word_embeddings"]
    file.write_text(json.dumps(stated))
    checked(folder)
    file.write_bytes(b"\xff\xfe")
    assert refusal(folder).startswith(f"{file}: does not parse as JSON: ")
