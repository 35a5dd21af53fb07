"""What is counted of the batches that a recipe gets."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torchtune.data import padded_collate_packed

from multicard.core.errors import UserError
from multicard.workloads.llm.parameters import LlmParameters
from multicard.workloads.llm.torchtune_backend import Feed

pytestmark = pytest.mark.slow

# Two samples, of 2 tokens and of 1.
PACK = {
    "tokens": torch.tensor([5, 6, 7]),
    "labels": torch.tensor([6, -100, -100]),
    "input_pos": torch.tensor([0, 1, 0]),
    "seq_lens": torch.tensor([2, 1]),
}


class Loader(list):
    """Of a recipe: with a sampler that is told the epoch."""

    epochs: Any = ()

    @property
    def sampler(self) -> "Loader":
        """Itself."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Note it."""
        self.epochs = [*self.epochs, epoch]


def test_a_batch_whose_answers_are_all_cut_off_is_refused() -> None:
    batch = {"tokens": torch.ones(1, 3), "labels": torch.full((1, 3), -100)}
    p = LlmParameters(sequence_length=16, dataset="summaries")
    with pytest.raises(UserError, match=r"^sequence_length: 16 cuts off every answer of a batch of summaries$"):
        next(iter(Feed(Loader([batch]), p, padding=0)))


def test_counts_of_a_step_are_those_of_its_batches_pass_after_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[dict[str, int]] = []
    monkeypatch.setattr("multicard.marks.step", lambda **counts: steps.append(counts))
    padded = {"tokens": torch.tensor([[5, 6, 0, 0], [7, 0, 0, 0]]), "labels": torch.ones(2, 4)}
    loader = Loader([padded_collate_packed([PACK]), padded])
    feed = Feed(loader, LlmParameters(), padding=0)
    batches: Iterator[Any] = iter(feed)
    for _ in range(2):
        next(batches), next(batches)
        feed.end_step()
    assert steps == [{"samples": 2 + 2, "tokens": 3 + 3, "padded_tokens": 3 + 8}] * 2
    assert loader.epochs == [0, 1]
