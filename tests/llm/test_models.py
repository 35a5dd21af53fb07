"""Folders of the user are checked before a job starts, and only read; what is wrong is one line."""

import base64
import json
import os
import shutil
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from multicard.core.errors import UserError
from multicard.experiment.models import ARCHITECTURES, Architecture, Model
from multicard.workloads.llm.prepare_model import check_folder, prepare_model, read_model
from multicard.workloads.llm.weights import read_header, tensor_shapes

FETCH = "fetch --it"
# As the users' checkpoints are shaped, and quickly written.
SMALL = Architecture(vocabulary=512, layers=2, heads=2, kv_heads=1, embedding=8, feed_forward=16, max_sequence=64)
BYTES = [bytes([value]) for value in range(256)]
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


def tensors(kind: torch.dtype = torch.bfloat16) -> dict[str, torch.Tensor]:
    """Tensors of SMALL, by Hugging Face's names (as test_tiny.py has them from torchtune)."""
    return {name: torch.zeros(size, dtype=kind) for name, size in tensor_shapes(SMALL).items()}


def token_lines(tokens: list[bytes]) -> bytes:
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens))


def write_folder(folder: Path, shards: int = 1) -> Path:
    """A checkpoint of SMALL as Hugging Face ships them, with an index where it has several shards."""
    (folder / "original").mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config()))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "original" / "tokenizer.model").write_bytes(token_lines(BYTES))
    if shards == 1:
        save_file(tensors(), folder / "model.safetensors")
        return folder
    parts: dict[str, dict[str, torch.Tensor]] = {}
    for number, (name, tensor) in enumerate(tensors().items()):
        parts.setdefault(shard(number % shards + 1, shards), {})[name] = tensor
    for file, part in parts.items():
        save_file(part, folder / file)
    places = {name: file for file, part in parts.items() for name in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return folder


def shard(number: int, count: int) -> str:
    return f"model-{number:05}-of-{count:05}.safetensors"


def checked(folder: Path, shape: Architecture = SMALL) -> dict[str, Any]:
    return check_folder(folder, shape, 256, FETCH)


def refusal(folder: Path, shape: Architecture = SMALL) -> str:
    """The one line that refuses a folder."""
    with pytest.raises(UserError) as caught:
        checked(folder, shape)
    [line] = str(caught.value).splitlines()
    return line


def test_a_whole_folder_is_described_and_only_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ARCHITECTURES, "llama3_8b", SMALL)
    folder, out = write_folder(tmp_path / "weights", shards=3), tmp_path / "out"
    before = {file: file.stat() for file in folder.rglob("*")}
    prepare_model("mine", Model(architecture="llama3_8b", folder=str(folder)), out, tmp_path / "no resources")
    assert {file: file.stat().st_mtime_ns for file in folder.rglob("*")} == {
        file: status.st_mtime_ns for file, status in before.items()
    }
    assert [file.name for file in out.iterdir()] == ["provenance.json"]
    facts = read_model(out)
    files = {file["name"]: file for file in facts.pop("files")}
    assert facts == {
        "model": "mine",
        "architecture": "llama3_8b",
        "folder": str(folder),
        "tokenizer": str(folder / "original" / "tokenizer.model"),
        "special_tokens": None,
        "checkpoint_files": [shard(1, 3), shard(2, 3), shard(3, 3)],
        "parameters": 2 * (2 * 64 + 2 * 32 + 3 * 128 + 2 * 8) + 2 * 512 * 8 + 8,
    }
    whole = {"config.json", "model.safetensors.index.json", "original/tokenizer.model", *facts["checkpoint_files"]}
    assert {name: {"name": name, "bytes": before[folder / name].st_size} for name in whole} == files
    (folder / shard(2, 3)).write_bytes(b"")
    with pytest.raises(UserError, match="missing or changed since it was prepared"):
        read_model(out)


def test_a_folder_given_by_a_relative_path_is_found_from_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ARCHITECTURES, "llama3_8b", SMALL)
    write_folder(tmp_path / "weights")
    monkeypatch.chdir(tmp_path)
    prepare_model("mine", Model(architecture="llama3_8b", folder="weights"), Path("out"), Path("none"))
    monkeypatch.chdir("/")
    assert read_model(tmp_path / "out")["folder"] == str(tmp_path / "weights")


def test_a_folder_may_differ_from_the_usual_form(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "shards", shards=3)  # that need no index
    (folder / "model.safetensors.index.json").unlink()
    assert checked(folder)["checkpoint_files"] == [shard(1, 3), shard(2, 3), shard(3, 3)]

    folder = write_folder(tmp_path / "weights")
    shutil.move(folder / "original" / "tokenizer.model", folder / "tokenizer.model")
    assert checked(folder)["tokenizer"] == str(folder / "tokenizer.model")
    stored = tensors(torch.float16) | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(2)}
    save_file(stored, folder / "model.safetensors")
    assert checked(folder)["parameters"] == SMALL.parameters

    # A tied model has no output layer.
    tied = replace(SMALL, tied=True)
    save_file(tensors(), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config(tie_word_embeddings=True)))
    assert refusal(folder, tied).endswith("found the tensor 'lm_head.weight', expected none of this name")
    save_file({k: v for k, v in tensors().items() if k != "lm_head.weight"}, folder / "model.safetensors")
    assert checked(folder, tied)["parameters"] == tied.parameters


def test_a_missing_folder_is_named_with_the_command_that_fetches_it(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none") == f"{tmp_path}/none: no such folder; fetch the model by: {FETCH}"
    model = Model(architecture="llama3_8b", folder=str(tmp_path / "none"))
    with pytest.raises(UserError) as caught:
        prepare_model("mine", model, tmp_path / "out", tmp_path)
    assert str(caught.value).startswith(f"models.mine: no weights: no such folder: {tmp_path}/none; ")
    assert model.download_command in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("shards", "removed", "missing"),
    [
        (1, [TOKENIZER], f"{TOKENIZER} (tokenizer.json is another form)"),
        (1, [TOKENIZER, "config.json", ONE, "tokenizer.json"], f"config.json, {ONE}, {TOKENIZER}"),
        (9, [shard(n, 9) for n in range(2, 10)], ", ".join(shard(n, 9) for n in range(2, 8)) + " and 2 more"),
    ],
)
def test_a_partial_folder_is_named_with_what_is_missing(
    tmp_path: Path, shards: int, removed: list[str], missing: str
) -> None:
    folder = write_folder(tmp_path / "weights", shards)
    for name in removed:
        (folder / name).unlink()
    assert refusal(folder) == f"{folder}: does not contain {missing}; fetch the model by: {FETCH}"


def test_shards_without_an_index_have_every_tensor_once(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "weights", shards=3)
    (folder / "model.safetensors.index.json").unlink()
    shutil.copy(folder / shard(1, 3), folder / shard(1, 2))
    assert refusal(folder).endswith(f"again, expected it in {shard(1, 2)} alone")
    (folder / shard(1, 2)).unlink()
    (folder / shard(3, 3)).unlink()
    assert refusal(folder).startswith(f"{folder}: found 14 of 21 tensors, expected ")


def test_a_config_of_another_shape_or_form_is_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "weights")
    file = folder / "config.json"
    for key, found, expected in (
        ("hidden_size", 16, 8),
        ("num_key_value_heads", True, 1),
        ("intermediate_size", "16", 16),
        ("vocab_size", None, 512),
        ("tie_word_embeddings", True, False),
        ("head_dim", 8, 4),
    ):
        file.write_text(json.dumps(config(**{key: found})))
        assert refusal(folder) == f"{file}, {key}: found {found!r}, expected {expected}"
    # It may leave out what is taken for granted, and no more.
    stated = config(head_dim=None)
    del stated["tie_word_embeddings"]
    file.write_text(json.dumps(stated))
    checked(folder)
    del stated["num_key_value_heads"]
    file.write_text(json.dumps(stated))
    assert refusal(folder) == f"{file}, num_key_value_heads: missing, expected 1"
    for content in (b"", b"\xff\xfe", b"[" * 100_000):
        file.write_bytes(content)
        assert refusal(folder).startswith(f"{file}: does not parse as JSON: ")


def packed(header: Any, data: bytes = b"") -> bytes:
    """A safetensors file by hand: the length of the header, the header, the data."""
    content = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(content)) + content + data


def entry(*offsets: int, shape: Any = (2, 2)) -> dict[str, Any]:
    return {"dtype": "BF16", "shape": list(shape), "data_offsets": list(offsets)}


INDEX, POINTER = "model.safetensors.index.json", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n"
INCOMPLETE = ": not a complete safetensors file: "


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        (INDEX, b"[]", ": found list, expected an object"),
        (INDEX, b'{"weight_map": {}}', ": found no weight_map"),
        (INDEX, b'{"weight_map": {"a": 1}}', ", 'a': found 1, expected the name of a file beside it"),
        (INDEX, b'{"weight_map": {"a": ".."}}', ", 'a': found '..', expected the name of a file beside it"),
        (INDEX, b'{"weight_map": {"a": "../b"}}', ", 'a': found '../b'"),
        (INDEX, b'{"weight_map": {"a": "b\\nc"}}', ", 'a': found 'b\\nc'"),
        (ONE, b"PK\3\4\0\0\0\0\0\0", INCOMPLETE),  # as PyTorch's own checkpoints begin
        (ONE, packed({"a": entry(0, 8)}, bytes(9)), INCOMPLETE),
        (ONE, packed({"a\n\x1b": entry(8, 0)}, bytes(8)), INCOMPLETE),
        (ONE, packed({"a\nb": entry(0, 8)}, bytes(8)), ": found the tensor 'a\\nb', expected none"),
        (ONE, POINTER, ": found a Git LFS pointer"),
        (TOKENIZER, token_lines(BYTES[:7]) + b"YWI=\n", ", line 8: expected another token in base64 and the rank 7"),
        (TOKENIZER, b"YW!= 0\n", ", line 1: expected another token"),
        (TOKENIZER, b"YWI= 1\n", ", line 1: expected another token"),
        (TOKENIZER, token_lines(BYTES) + b"QUJD 256\n\nQUJD 257\n", ", line 259: expected another token"),
        (TOKENIZER, token_lines(BYTES[1:]), ": found no token for 1 of 256 bytes, 0x00 the first"),
        (TOKENIZER, POINTER, ": found a Git LFS pointer"),
        (TOKENIZER, b"\n\x0e\n\x05<unk>\x15\0\0", ", line 2: expected another token"),  # as SentencePiece's files begin
        (TOKENIZER, token_lines([*BYTES, b"ab"]), ": a tokenizer that does not fit the weights: found 257 tokens"),
    ],
)
def test_a_damaged_file_is_refused_with_its_place(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    folder = write_folder(tmp_path / "weights", shards=2 if name == INDEX else 1)
    (folder / name).write_bytes(content)
    line = refusal(folder)
    assert line.startswith(f"{folder / name}{says}")
    assert line.isprintable()


def test_the_data_of_large_weights_is_not_read(tmp_path: Path) -> None:
    size = 64 * 2**30
    file = tmp_path / "large.safetensors"
    header = packed({"a": entry(0, size, shape=(size // 2,))})
    file.write_bytes(header)
    os.truncate(file, len(header) + size)  # takes no space
    assert read_header(file)["a"].shape == (size // 2,)


LAYER = "model.layers.1."


@pytest.mark.parametrize(
    ("left_out", "added", "says"),
    [
        (f"{LAYER}mlp.up_proj", {}, f": found 20 of 21 tensors, expected {LAYER}mlp.up_proj.weight"),
        (LAYER, {}, f": found 12 of 21 tensors, expected {LAYER}self_attn.q_proj.weight and 8 more"),
        (
            None,
            {"model.layers.0.self_attn.q_proj.bias": torch.zeros(8)},
            ": found the tensor 'model.layers.0.self_attn",
        ),
        (None, {f"{LAYER}mlp.down_proj.weight": torch.zeros(16, 8)}, f", {LAYER}mlp.down_proj.weight: found the shape"),
        (None, {"lm_head.weight": torch.zeros(512, 8, dtype=torch.int8)}, ", lm_head.weight: found the type I8"),
    ],
    ids=["missing", "a layer less", "surplus", "shape", "type"],
)
def test_weights_of_another_architecture_are_refused(
    tmp_path: Path, left_out: str | None, added: dict[str, torch.Tensor], says: str
) -> None:
    folder = write_folder(tmp_path / "weights")
    kept = {name: each for name, each in tensors().items() if left_out is None or not name.startswith(left_out)}
    save_file(kept | added, folder / ONE)
    assert refusal(folder).startswith(f"{folder / ONE}{says}")


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "weights", shards=2)
    save_file(tensors(), folder / shard(2, 2))
    line = refusal(folder)
    assert line.startswith(f"{folder / shard(2, 2)}: found the tensor ")
    assert line.endswith(f" again, expected it in {shard(1, 2)} alone")


def test_a_file_that_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_folder(tmp_path / "weights")

    def forbidden(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", forbidden)
    assert refusal(folder) == f"{folder}/{TOKENIZER}: Permission denied"
