"""Samples are prepared by one worker process, which needs 2.5 times as long for a batch as the device.

Source: https://github.com/open-edge-platform/geti/pull/5958, where GPUs were idle for 70 to 92 % of the time with two
workers, and more of them gave 13 instead of 3 steps a second.

A sample takes 150 / 16 = 9.4 ms in `__getitem__`, so the worker gives a batch each 150 ms.
One and two processes, each with a worker of its own: max(60, 150) = 150 ms.
`--fixed`: four workers, which give a batch each 37.5 ms. One and two: 60 ms.
"""

import time

import torch
from base import BATCH_SIZE, EPOCHS, STEP_S, Network, loader, options, parallel, samples, start
from torch import nn
from torch.utils.data import Dataset

SAMPLE_S = 2.5 * STEP_S / BATCH_SIZE


class Augmented(Dataset):
    """Samples that are augmented when they are read."""

    def __init__(self):
        self.samples = samples()

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        time.sleep(SAMPLE_S)
        return self.samples[index]


arguments = options().parse_args()
rank, world_size = start()
model = parallel(Network())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batches = loader(Augmented(), num_workers=4 if arguments.fixed else 1, persistent_workers=True)

for epoch in range(EPOCHS):
    for features, labels in batches:
        loss = nn.functional.cross_entropy(model(features), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
