"""Batches as a recipe gets them: their masks, when these are made, and what is counted."""

from collections.abc import Iterator
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from torchtune.data import _collate, padded_collate_packed

from multicard.core.errors import UserError
from multicard.workloads.llm import torchtune_backend as backend
from multicard.workloads.llm.observer import Contents, Observer
from multicard.workloads.llm.parameters import LlmParameters

pytestmark = pytest.mark.slow

# Two samples, of 2 tokens and of 1: each token sees itself and those before it of its own sample.
PACK = {
    "tokens": torch.tensor([5, 6, 7]),
    "labels": torch.tensor([6, -100, -100]),
    "input_pos": torch.tensor([0, 1, 0]),
    "seq_lens": torch.tensor([2, 1]),
}
MASK = [[True, False, False], [True, True, False], [False, False, True]]


@pytest.fixture(autouse=True)
def _patched(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is patched in torchtune is put back after a test."""
    monkeypatch.setattr(_collate, "packed_block_causal_mask", _collate.packed_block_causal_mask)
    backend._patch_collate()


def feed(batches: Any, log: MagicMock, **parameters: Any) -> tuple[Observer, Iterator[Any]]:
    """What a recipe gets; `log` stands in for recorder and capture."""
    p = LlmParameters(device="cpu", **parameters)
    observer = Observer(p, 1, log, log)
    return observer, iter(backend._Feed(batches, observer, p, padding=0))


def test_masks_are_made_when_the_wait_for_data_is_over() -> None:
    log = MagicMock()

    def loaded() -> Iterator[Any]:
        log.range("the loader works")
        yield padded_collate_packed([PACK])

    observer, batches = feed(loaded(), log, packed=True)
    assert next(batches)["mask"].tolist() == [MASK]
    begun = [call.args[0] for call in log.mock_calls if call[0] in ("phase", "range")]
    assert begun == ["data", "the loader works", "transfer", "attention_mask"]
    assert observer.attention == {"function": "scaled_dot_product_attention", "compiled": False}
    _, padded = feed([{"tokens": torch.ones(1, 3), "labels": torch.ones(1, 3)}], log)
    assert "mask" not in next(padded)


def test_a_batch_whose_answers_are_all_cut_off_is_refused() -> None:
    batch = {"tokens": torch.ones(1, 3), "labels": torch.full((1, 3), -100)}
    _, batches = feed([batch], MagicMock(), sequence_length=16, dataset="summaries")
    with pytest.raises(UserError, match=r"^sequence_length: 16 cuts off every answer of a batch of summaries$"):
        next(batches)


def test_counts_of_a_packed_batch_are_those_of_its_samples() -> None:
    counted = backend._Feed([], None, LlmParameters(), padding=0)._contents(padded_collate_packed([PACK]))
    assert counted == Contents(samples=2, tokens=3, padded_tokens=3, weight=1.0)
