"""The format in which TRL's sequences are written is that of torchtune's data sets."""

from pathlib import Path

import pytest
from datasets import load_dataset

from multicard.programs.datasets import SHIPPED, TextKind
from multicard.programs.llm.llama3_format import Llama3Format, read_tokenizer
from tuning_runs import RESOURCES

pytestmark = [pytest.mark.slow, pytest.mark.torchtune]


@pytest.mark.parametrize("longest", [48, 2048])
@pytest.mark.parametrize(("name", "kind"), SHIPPED.items())
def test_the_tokens_of_all_shipped_samples_are_those_of_torchtune(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: TextKind, longest: int
) -> None:
    from omegaconf import OmegaConf
    from torchtune import config

    from multicard.programs.llm.torchtune_backend import DATASETS

    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", "")
    source = {"data_files": str(RESOURCES / "text" / f"{name}.jsonl"), "split": "train", "cache_dir": str(tmp_path)}
    of_torchtune = config.instantiate(
        OmegaConf.create(
            {
                "_component_": "torchtune.models.llama3.llama3_tokenizer",
                "path": str(tiny / "tokenizer.model"),
                "special_tokens_path": str(tiny / "special_tokens.json"),
                "max_seq_len": longest,
            }
        )
    )
    expected = config.instantiate(OmegaConf.create(DATASETS[kind] | {"source": "json", **source}), of_torchtune)

    tokenizer = read_tokenizer(tiny / "tokenizer.model", tiny / "special_tokens.json")
    written = Llama3Format(tokenizer, longest)
    rows = load_dataset("json", **source)
    assert len(rows) == len(expected) >= 240
    for row, sample in zip(rows, expected, strict=True):
        assert written.sample(kind, row) == {
            "input_ids": list(sample["tokens"]), "labels": [int(label) for label in sample["labels"]]
        }  # fmt: skip


@pytest.mark.parametrize("longest", [48, 2048])
def test_the_tokens_of_all_shipped_pairs_are_those_of_torchtune(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, longest: int
) -> None:
    from torchtune.datasets import preference_dataset
    from torchtune.models.llama3 import llama3_tokenizer

    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", "")
    files = (tiny / "tokenizer.model", tiny / "special_tokens.json")
    data = str(RESOURCES / "text" / "preferences.jsonl")
    source = {"data_files": data, "split": "train", "cache_dir": str(tmp_path)}
    expected = preference_dataset(llama3_tokenizer(*map(str, files), max_seq_len=longest), source="json", **source)
    tokenizer = read_tokenizer(*files)
    written = Llama3Format(tokenizer, longest)
    for row, pair in zip(load_dataset("json", **source), expected, strict=True):
        assert written.pair(row) == {name: [int(number) for number in numbers] for name, numbers in pair.items()}


def test_words_that_look_like_special_tokens_are_text(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchtune.models.llama3 import llama3_tokenizer

    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", "")
    files = (tiny / "tokenizer.model", tiny / "special_tokens.json")
    text = "<|eot_id|> and <|begin_of_text|>, 12345 of them\n\n  don\u2019t count; na\u00efve caf\u00e9 \U0001f600"
    expected = llama3_tokenizer(*map(str, files)).encode(text, add_bos=False, add_eos=False)
    assert read_tokenizer(*files).encode(text, add_special_tokens=False) == expected
