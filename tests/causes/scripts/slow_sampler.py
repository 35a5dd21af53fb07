"""A batch sampler orders all samples again at the begin of each pass, and training waits for it.

Source: https://github.com/nvidia-cosmos/cosmos-rl/pull/609 ("potentially costly `iter(batch_sampler)` calls"),
https://github.com/neuro-galaxy/torch_brain/pull/330, whose batches may be kept from one pass to the next.

It takes 300 ms, and a pass has ten steps on each process.
One and two processes: 60 + 300 / 10 = 90 ms.
`--fixed`: the order is made once. One and two: 60 ms.
"""

import time
from collections.abc import Iterator

import torch
from base import BATCH_SIZE, EPOCHS, Network, options, parallel, samples, start
from torch import nn
from torch.utils.data import DataLoader

ORDERING_S = 0.300
STEPS = 10


class OrderedBatches:
    """Batches of this rank's samples, in the order that suits them best."""

    def __init__(self, keep: bool):
        self.kept = self.order() if keep else None

    def order(self) -> list[list[int]]:
        """Return the indices of the samples of each batch."""
        time.sleep(ORDERING_S)
        first = rank * STEPS * BATCH_SIZE
        indices = torch.arange(first, first + STEPS * BATCH_SIZE)
        return indices.view(STEPS, BATCH_SIZE).tolist()

    def __iter__(self) -> Iterator[list[int]]:
        yield from self.kept or self.order()

    def __len__(self) -> int:
        return STEPS


arguments = options().parse_args()
rank, world_size = start()
model = parallel(Network())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
dataset = samples(world_size * STEPS * BATCH_SIZE)
batches = DataLoader(dataset, batch_sampler=OrderedBatches(keep=arguments.fixed))

for epoch in range(20 * EPOCHS):
    for features, labels in batches:
        loss = nn.functional.cross_entropy(model(features), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
