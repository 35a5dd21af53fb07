"""Batches differ in length, so that in most steps one rank waits for the other's longer batch.

Source: https://github.com/huggingface/transformers/pull/47340 and
https://github.com/Tencent-Hunyuan/UniRL/pull/45, whose samplers give all ranks batches of like length: 1.58 times the
tokens per second on two GPUs, and 28.4 s instead of 15.3 s in a step's training.

A batch has texts of 8 tokens (24 ms of device work) or, one batch in four, of 56 tokens (168 ms).
One process: (3 x 24 + 168) / 4 = 60 ms. Two, whose lengths are independent: in 7 steps of 16 at least one batch is
long, so (9 x 24 + 7 x 168) / 16 = 87 ms.
`--fixed`: the ranks' batches of a step are of the same length. One and two: 60 ms.
The order repeats after 32 batches, in which each pair of lengths is as frequent as by chance.
"""

import random

import torch
from base import BATCH_SIZE, EPOCHS, FEATURES, Network, options, parallel, start
from torch import nn
from torch.utils.data import DataLoader, Dataset

LENGTHS = (8, 8, 8, 56)
MEAN_LENGTH = sum(LENGTHS) / len(LENGTHS)
CYCLES = 12


class Texts(Dataset):
    """Texts whose lengths are given, in tokens."""

    def __init__(self, lengths: list[int]):
        self.lengths = lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.ones(self.lengths[index], FEATURES), index % 10


def lengths_of_batches(alike: bool) -> list[int]:
    """Return the lengths of a cycle of 32 batches; batches 2n and 2n + 1 are of the same step on two ranks."""
    pairs = [(length, length if alike else other) for length in LENGTHS for other in LENGTHS]
    random.Random(0).shuffle(pairs)
    return [length for pair in pairs for length in pair]


arguments = options().parse_args()
rank, world_size = start()
lengths = CYCLES * lengths_of_batches(alike=arguments.fixed)
texts = Texts([length for length in lengths for _ in range(BATCH_SIZE)])
batches = [range(first, first + BATCH_SIZE) for first in range(0, len(texts), BATCH_SIZE)]
model = parallel(Network())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

for epoch in range(EPOCHS):
    for features, labels in DataLoader(texts, batch_sampler=batches[rank::world_size]):
        tokens = features.shape[1]
        logits = model(features, work=tokens / MEAN_LENGTH).mean(dim=1)
        loss = nn.functional.cross_entropy(logits, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
