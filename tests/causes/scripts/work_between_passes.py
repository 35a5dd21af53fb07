"""The data set is made again before each pass over it.

Source: https://github.com/visionml/pytracking/issues/374 (a pass takes 6:40 minutes, and the pause before the next one
4:20), https://github.com/Lightning-AI/pytorch-lightning/issues/2875 ("17 seconds without GPU processing between epochs
that isn't part of either train or validation time").

It takes 300 ms, and a pass has ten steps on each process.
One and two processes: 60 + 300 / 10 = 90 ms.
`--fixed`: the data set is made once. One and two: 60 ms.
"""

import time

import torch
from base import BATCH_SIZE, EPOCHS, Network, loader, options, parallel, samples, start
from torch import nn
from torch.utils.data import TensorDataset

READING_S = 0.300
STEPS = 10


def read_samples() -> TensorDataset:
    """Return the samples of ten steps of each process, read from files."""
    time.sleep(READING_S)
    return samples(world_size * STEPS * BATCH_SIZE)


arguments = options().parse_args()
rank, world_size = start()
model = parallel(Network())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
kept = read_samples() if arguments.fixed else None

for epoch in range(20 * EPOCHS):
    for features, labels in loader(kept or read_samples()):
        loss = nn.functional.cross_entropy(model(features), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
