"""Each step waits until its metrics have been written by a logger that is slow and synchronous.

Source: https://github.com/wandb/wandb/issues/8666, where the rate of steps is halved while `wandb.log` blocks, and
https://github.com/wandb/wandb/issues/3690, where calling it after each batch makes steps take nearly twice as long.

The logger takes 30 ms on every rank, between the optimizer's step and the next batch.
One and two processes: 60 + 30 = 90 ms.
`--fixed`: logs each 30th step only. One and two: 60 + 30 / 30 = 61 ms.
"""

import time

import torch
from base import EPOCHS, Network, loader, options, parallel, samples, start
from torch import nn

LOGGER_S = 0.030


def log_metrics(loss: torch.Tensor) -> None:
    """Write the loss and wait until it has arrived."""
    float(loss.detach())
    time.sleep(LOGGER_S)


arguments = options().parse_args()
rank, world_size = start()
model = parallel(Network())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
steps = 0

for epoch in range(EPOCHS):
    for features, labels in loader(samples()):
        loss = nn.functional.cross_entropy(model(features), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
        if steps % 30 == 0 or not arguments.fixed:
            log_metrics(loss)
