"""`tiny` is made the same everywhere, with a tokenizer that torchtune reads; test_tuning.py trains it."""

import hashlib
import importlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from conftest import ROOT
from multicard.core.errors import UserError
from multicard.programs.llm.prepare_model import prepare_model
from multicard.programs.llm.tiny import tensor_shapes
from multicard.programs.models import ARCHITECTURES, Model
from multicard.programs.provenance import ModelProvenance, read_unchanged

SHAPE = ARCHITECTURES["tiny"]
SPECIAL = 16
WEIGHTS = "6c0c79003388ccfe1561bab46029e995cb38833db68f849c0cb863386caca171"
RESOURCES = ROOT / "resources"
SHIPPED = RESOURCES / "tiny"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    prepare_model("tiny", Model(architecture="tiny"), folder, RESOURCES)
    return folder


@pytest.fixture(autouse=True)
def no_tokenizer_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep tiktoken from answering with what lay at a path before."""
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", "")


def test_tiny_has_the_weights_of_its_architecture(tiny: Path) -> None:
    assert read_unchanged(tiny, ModelProvenance).parameters == SHAPE.parameters
    # Losses of different machines can be compared as long as these are the bytes.
    assert hashlib.sha256((tiny / "model.safetensors").read_bytes()).hexdigest() == WEIGHTS
    weights = load_file(tiny / "model.safetensors")
    assert sum(tensor.numel() for tensor in weights.values()) == SHAPE.parameters
    assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}
    for name, tensor in weights.items():
        if tensor.ndim == 1:
            assert tensor.eq(1).all(), name
        else:
            # Of at least 131 072 normal numbers: within 5 standard errors.
            assert tensor.float().mean().abs() < 5 * 0.02 / tensor.numel() ** 0.5, name
            assert tensor.float().std().item() == pytest.approx(0.02, rel=0.02), name
    # Four ranks can share the weights in 4 bits: NF4 scales blocks of 64 weights, and their scales in blocks of 256.
    linear = [weight for name, weight in weights.items() if ".self_attn." in name or ".mlp." in name]
    assert len(linear) == 7 * SHAPE.layers
    assert all(weight.numel() % (4 * 64 * 256) == 0 for weight in linear)


@pytest.mark.slow
@pytest.mark.torchtune
@pytest.mark.parametrize(
    ("architecture", "module", "tied"),
    [("llama3_8b", "llama3", False), ("llama3_1_8b", "llama3_1", False), ("llama3_2_1b", "llama3_2", True)],
)
def test_the_tensors_of_metas_models_are_those_that_torchtune_builds(
    architecture: str, module: str, tied: bool
) -> None:
    from torchtune.models.convert_weights import get_mapped_key

    names = importlib.import_module("torchtune.models.convert_weights")._FROM_HF
    build = getattr(importlib.import_module(f"torchtune.models.{module}"), architecture)
    with torch.device("meta"):
        built = {name: tuple(tensor.shape) for name, tensor in build().state_dict().items()}
    shapes = tensor_shapes(ARCHITECTURES[architecture])
    assert {get_mapped_key(name, names): size for name, size in shapes.items()} == built
    assert ("lm_head.weight" not in shapes) == tied


@pytest.mark.slow
@pytest.mark.torchtune
def test_the_tokenizer_of_tiny_returns_every_text_and_stays_in_the_vocabulary(tiny: Path) -> None:
    from torchtune.data import Message
    from torchtune.models.llama3 import llama3_tokenizer

    provenance = read_unchanged(tiny, ModelProvenance)
    tokenizer = llama3_tokenizer(provenance.tokenizer, special_tokens_path=provenance.special_tokens, max_seq_len=256)
    assert (tokenizer.base_vocab_size, tokenizer.vocab_size) == (SHAPE.vocabulary - SPECIAL, SHAPE.vocabulary)
    assert sorted(tokenizer.special_tokens.values()) == list(range(SHAPE.vocabulary - SPECIAL, SHAPE.vocabulary))
    every_character_of_a_byte = "".join(map(chr, range(256)))
    for text in ("How many, 12345?", "  déjà vu\n\n\tthe 木 and 🦙's\r\n", every_character_of_a_byte):
        ids = tokenizer.encode(text, add_bos=True, add_eos=True)
        assert tokenizer.decode(ids, skip_special_tokens=False) in (text, f"<|begin_of_text|>{text}")
        assert max(ids) < SHAPE.vocabulary
    ids, _ = tokenizer.tokenize_messages([Message(role="user", content="so"), Message(role="assistant", content="yes")])
    assert max(ids) < SHAPE.vocabulary

    # It joins the words that it was trained on, within the pieces that torchtune encodes by.
    lines = (RESOURCES / "text" / "articles.jsonl").read_text("utf-8").splitlines()
    text = " ".join(json.loads(line)["text"] for line in lines)
    assert len(tokenizer.encode(text, add_bos=False, add_eos=False)) < 0.6 * len(text.encode())


def test_the_provenance_of_tiny_lists_its_files_with_checksums(tiny: Path, tmp_path: Path) -> None:
    facts = json.loads((tiny / "provenance.json").read_text())
    files = {file["name"]: (file["bytes"], file["sha256"]) for file in facts.pop("files")}
    assert facts == {
        "model": "tiny",
        "architecture": "tiny",
        "folder": str(tiny),
        "tokenizer": str(tiny / "tokenizer.model"),
        "special_tokens": str(tiny / "special_tokens.json"),
        "checkpoint_files": ["model.safetensors"],
        "parameters": SHAPE.parameters,
    }
    assert set(files) == {file.name for file in tiny.iterdir()} - {"provenance.json"}
    for name, told in files.items():
        content = (tiny / name).read_bytes()
        assert told == (len(content), hashlib.sha256(content).hexdigest())
    # They can be read by whoever can read others.
    (tmp_path / "other").touch()
    assert {file.stat().st_mode for file in tiny.iterdir()} == {(tmp_path / "other").stat().st_mode}


@pytest.mark.slow
def test_the_shipped_tokenizer_is_made_again_byte_for_byte(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-B", SHIPPED / "make.py", "--out", tmp_path], check=True)
    assert (tmp_path / "tokenizer.model").read_bytes() == (SHIPPED / "tokenizer.model").read_bytes()


def test_a_prepared_model_that_changed_is_noticed(tiny: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny, tmp_path, dirs_exist_ok=True)
    provenance = tmp_path / "provenance.json"
    provenance.write_text(provenance.read_text().replace(str(tiny), str(tmp_path)))
    read_unchanged(tmp_path, ModelProvenance)
    file = tmp_path / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(UserError, match="missing or changed since it was prepared; delete"):
        read_unchanged(tmp_path, ModelProvenance)
    # A preparation that fails leaves no older provenance.
    with pytest.raises(FileNotFoundError):
        prepare_model("tiny", Model(architecture="tiny"), tmp_path, tmp_path / "nothing")
    assert not provenance.exists()
