"""The samples of a run by TRL: tokenized, in the order of torchtune's recipes, and counted batch by batch."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DistributedSampler, Sampler
from transformers import PreTrainedTokenizerFast

from multicard.core.errors import UserError
from multicard.programs.datasets import TextKind
from multicard.programs.llm.llama3_format import ANSWERS, IGNORED, Llama3Format
from multicard.programs.llm.parameters import LlmParameters

# A tokenized sample: sequences of numbers by the names of `Llama3Format`.
Sample = Mapping[str, list[int]]
Batch = dict[str, torch.Tensor]


def tokenized(
    p: LlmParameters,
    kind: TextKind,
    is_paired: bool,
    train_file: Path,
    tokenizer: PreTrainedTokenizerFast,
    folder: Path,
) -> datasets.Dataset:
    """Return all samples as tokens, as `Llama3Format` writes them; `folder` is for files of this rank.

    `is_paired`: True if each sample is a chosen and a rejected answer.

    Raises `UserError` if there are fewer samples than a step of all devices takes.
    """
    rows = datasets.load_dataset("json", data_files=str(train_file), split="train", cache_dir=str(folder))
    needed = p.batch_size * p.gradient_accumulation_steps * p.devices
    if len(rows) < needed:
        raise UserError(f"batch_size: a step of all devices needs {needed} samples, found {len(rows)}")

    form = Llama3Format(tokenizer, p.sequence_length)
    return rows.map(
        form.pair if is_paired else lambda row: form.sample(kind, row),
        remove_columns=rows.column_names,
        # Else `datasets` would hash the function and all that it refers to.
        new_fingerprint="tokenized",
        cache_file_name=str(folder / "tokenized.arrow"),
        load_from_cache_file=False,
    )


class TorchtuneOrder(Sampler[int]):
    """The order in which torchtune's recipes read samples, for all ranks: a batch of rank 0, one of rank 1, and so on.

    The recipes draw another order in each pass, from the pass's number alone. Here a pass ends with its last whole
    step; torchtune adds the batches that are left to the first step of the next pass.
    """

    def __init__(self, samples: int, p: LlmParameters):
        self._batch_size = p.batch_size
        numbers: Any = range(samples)  # a data set by its length, which is all that the samplers ask it for
        self._samplers: list[DistributedSampler[int]] = [
            DistributedSampler(numbers, p.devices, rank, shuffle=True, seed=0) for rank in range(p.devices)
        ]
        samples_of_step = p.batch_size * p.gradient_accumulation_steps
        self._samples_per_rank = len(self._samplers[0]) // samples_of_step * samples_of_step

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the pass, which begins with 0."""
        for sampler in self._samplers:
            sampler.set_epoch(epoch)

    def __len__(self) -> int:
        return self._samples_per_rank * len(self._samplers)

    def __iter__(self) -> Iterator[int]:
        orders = [list(sampler) for sampler in self._samplers]
        for start in range(0, self._samples_per_rank, self._batch_size):
            for order in orders:
                yield from order[start : start + self._batch_size]


class BatchCounts(NamedTuple):
    """The numbers of one batch of this rank."""

    samples: int
    tokens: int
    padded_tokens: int
    learned_tokens: int


class Collator:
    """Makes batches of samples for a trainer, and keeps the numbers of each until it is trained.

    `pad_id`: the token that pads sequences to the longest one of their batch. `longest`: the run's `sequence_length`.
    """

    def __init__(self, pad_id: int, longest: int):
        self._pad_id = pad_id
        self._longest = longest
        # Of the batches that were made and not trained yet, the oldest first: Accelerate loads a batch ahead.
        self._counts: deque[BatchCounts] = deque()

    def __call__(self, samples: Sequence[Sample]) -> Batch:
        """Return the batch as the trainer expects it."""
        raise NotImplementedError

    def trained(self) -> BatchCounts:
        """Return the numbers of the batch that is trained now, which is the oldest that was not trained yet."""
        return self._counts.popleft()

    def _padded(self, sequences: Sequence[list[int]], labels: Sequence[list[int]], samples: int) -> Batch:
        """Return padded sequences, their labels and their attention mask, and keep the numbers of the batch."""
        mask = [[1] * len(sequence) for sequence in sequences]
        batch = {
            "input_ids": _padded(sequences, self._pad_id),
            "labels": _padded(labels, IGNORED),
            "attention_mask": _padded(mask, 0),
        }
        counts = BatchCounts(
            samples=samples,
            tokens=sum(map(len, sequences)),
            padded_tokens=batch["input_ids"].numel(),
            # Nothing predicts the first token of a sequence.
            learned_tokens=int((batch["labels"][:, 1:] != IGNORED).sum()),
        )
        self._counts.append(counts)
        return batch


class TextCollator(Collator):
    """Makes batches of the samples of `Llama3Format.sample` for `SFTTrainer`."""

    def __call__(self, samples: Sequence[Sample]) -> Batch:
        """Return tokens, labels and mask.

        Raises `UserError` if the batch has no token to learn, because all its answers are cut off.
        """
        sequences = [sample["input_ids"] for sample in samples]
        batch = self._padded(sequences, [sample["labels"] for sample in samples], len(samples))
        if not self._counts[-1].learned_tokens:
            raise UserError(f"sequence_length: {self._longest} cuts off every answer of a batch")
        return batch


class PairCollator(Collator):
    """Makes batches of the samples of `Llama3Format.pair` for `DPOTrainer`."""

    def __call__(self, samples: Sequence[Sample]) -> Batch:
        """Return the chosen answers and then the rejected ones, with a mask of learned tokens in place of labels."""
        sequences = [sample[f"{answer}_input_ids"] for answer in ANSWERS for sample in samples]
        labels = [sample[f"{answer}_labels"] for answer in ANSWERS for sample in samples]
        batch = self._padded(sequences, labels, len(samples))
        batch["completion_mask"] = (batch.pop("labels") != IGNORED).long()
        return batch


def _padded(sequences: Sequence[list[int]], value: int) -> torch.Tensor:
    return pad_sequence([torch.tensor(sequence) for sequence in sequences], batch_first=True, padding_value=value)
