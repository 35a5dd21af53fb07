"""Batches as a recipe gets them: their masks, when these are made, and what is counted."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

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


class Log:
    """Stands in for recorder and capture: writes down what begins and what ends."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Write down both ends."""
        self.lines.append(f"{name} begins")
        yield
        self.lines.append(f"{name} ends")

    range = phase

    @contextmanager
    def step(self, *_: Any) -> Iterator[Any]:
        """Give what takes the numbers of a step."""
        yield SimpleNamespace(epoch=None)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    """A log; what the test patches in torchtune is put back after it."""
    monkeypatch.setattr(_collate, "packed_block_causal_mask", _collate.packed_block_causal_mask)
    backend._patch_collate()
    return Log()


def feed(log: Log, batches: list[Any], **parameters: Any) -> tuple[Observer, Iterator[Any]]:
    """What a recipe gets."""
    p = LlmParameters(device="cpu", **parameters)
    observer = Observer(p, 1, log, log)
    return observer, iter(backend._Feed(batches, observer, p, padding=0))


class Loader:
    """Makes its batch when it is asked for, as torchtune's does."""

    def __init__(self, log: Log) -> None:
        self.log = log

    def __iter__(self) -> Iterator[Any]:
        self.log.lines.append("the loader works")
        yield padded_collate_packed([PACK])


def test_masks_are_made_when_the_wait_for_data_is_over(log: Log) -> None:
    observer, batches = feed(log, Loader(log), packed=True)
    batch = next(batches)
    assert log.lines == [
        "data begins", "the loader works", "data ends",
        "transfer begins", "attention_mask begins", "attention_mask ends",
    ]  # fmt: skip
    assert batch["mask"].tolist() == [MASK]
    assert observer.attention == {"function": "scaled_dot_product_attention", "compiled": False}


def test_a_batch_whose_answers_are_all_cut_off_is_refused(log: Log) -> None:
    batch = {"tokens": torch.ones(1, 3), "labels": torch.full((1, 3), -100)}
    _, batches = feed(log, [batch], sequence_length=16, dataset="summaries")
    with pytest.raises(UserError, match=r"^sequence_length: 16 cuts off every answer of a batch of summaries$"):
        next(batches)


def test_counts_of_a_packed_batch_are_those_of_its_samples() -> None:
    counted = backend._Feed([], None, LlmParameters(), padding=0)._contents(padded_collate_packed([PACK]))
    assert counted == Contents(samples=2, tokens=3, padded_tokens=3, weight=1.0)
