"""Each rank reads the whole stream of samples, since a stream has no sampler that would divide it.

Source: https://github.com/huggingface/datasets/issues/5360 ("IterableDataset returns duplicated data using PyTorch
DDP"), https://github.com/Lightning-AI/pytorch-lightning/issues/2935 ("my batches are duplicated on every GPU, rendering
multi-GPU training useless").

A step takes as long as without the cause, 60 ms on one and on two processes, but a pass over the stream has as many
steps on two processes as on one, in place of half as many.
`--fixed`: each rank keeps every second batch of two. A step takes 60 ms, too.
"""

from collections.abc import Iterator
from itertools import islice

import torch
from base import BATCH_SIZE, EPOCHS, Network, options, parallel, samples, start
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    """The samples of a data set, one after another; of several shares, those of one."""

    def __init__(self, first: int, shares: int):
        self.samples = samples()
        self.first = first
        self.shares = shares

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        yield from islice(self.samples, self.first, None, self.shares)


arguments = options().parse_args()
rank, world_size = start()
model = parallel(Network())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
stream = Stream(rank, world_size) if arguments.fixed else Stream(0, 1)
batches = DataLoader(stream, BATCH_SIZE)

for epoch in range(EPOCHS):
    for features, labels in batches:
        loss = nn.functional.cross_entropy(model(features), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
