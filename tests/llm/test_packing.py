"""What is counted of the batches that a recipe gets."""

from types import SimpleNamespace
from typing import Any

import pytest

from multicard.core.errors import UserError
from multicard.programs.llm import components

pytestmark = [pytest.mark.slow, pytest.mark.torchtune]

TOKENIZER = SimpleNamespace(pad_id=0, max_seq_len=16)
SHORT = {"tokens": [5, 6], "labels": [6, 1]}
LONG = {"tokens": [7, 8, 9, 4], "labels": [-100, 8, 9, 4]}
# Two samples, of 2 tokens and of 1, and padding, in which torchtune goes on counting positions.
PACK = {"tokens": [5, 6, 7, 0], "labels": [6, -100, -100, -100], "input_pos": [0, 1, 0, 1]}
PAIR = {"chosen_input_ids": [5, 6, 7], "rejected_input_ids": [5]}


def counted(monkeypatch: pytest.MonkeyPatch, batches: list[list[dict[str, Any]]]) -> dict[str, int]:
    """What the mark of a step of these batches says."""
    steps: list[dict[str, int]] = []
    monkeypatch.setattr("multicard.marks.step", lambda **counts: steps.append(counts))
    monkeypatch.setattr("torchtune.config.instantiate", lambda *_, **__: [each for batch in batches for each in batch])
    data = components.CountedData(TOKENIZER, {}, needed=1)
    first = 0
    for batch in batches:
        assert data.__getitems__(list(range(first, first + len(batch)))) == batch
        first += len(batch)
    components.STEP.end()
    return steps[-1]


def test_a_batch_whose_answers_are_all_cut_off_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"^sequence_length: 16 cuts off every answer of a batch$"):
        counted(monkeypatch, [[SHORT | {"labels": [-100, -100]}]])


@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        ([[SHORT, LONG]], (2, 6, 8)),
        ([[SHORT, LONG], [SHORT, SHORT]], (4, 10, 12)),
        ([[PACK, PACK]], (4, 6, 8)),
        ([[PAIR, PAIR]], (2, 8, 12)),
    ],
    ids=["padded", "accumulated", "packed", "pairs"],
)
def test_counts_of_a_step_are_those_of_its_batches(
    monkeypatch: pytest.MonkeyPatch, batches: list[list[dict[str, Any]]], expected: tuple[int, int, int]
) -> None:
    found = counted(monkeypatch, batches)
    assert (found["samples"], found["tokens"], found["padded_tokens"]) == expected
