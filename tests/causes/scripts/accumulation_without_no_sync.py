"""Gradients are accumulated over four micro batches, and exchanged after each of them instead of once.

Source: https://github.com/pytorch/pytorch/issues/43201, where the K - 1 needless exchanges of a step are counted;
https://github.com/huggingface/accelerate/pull/106 is one of many projects that had it.

An exchange takes 30 ms by a communication hook (`base.slow_exchange`), after the backward pass has slept.
One process: 4 x 60 = 240 ms. Two: 4 x (60 + 30) = 360 ms.
`--fixed`: all but the last micro batch are in `no_sync()`. One: 240 ms. Two: 4 x 60 + 30 = 270 ms.
"""

from contextlib import nullcontext

import torch
from base import EPOCHS, Network, loader, options, parallel, samples, slow_down_exchanges, start
from torch import nn

MICRO_BATCHES = 4
EXCHANGE_S = 0.030

arguments = options().parse_args()
rank, world_size = start()
model = parallel(Network())
slow_down_exchanges(model, EXCHANGE_S)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

for epoch in range(EPOCHS):
    for index, (features, labels) in enumerate(loader(samples())):
        last = (index + 1) % MICRO_BATCHES == 0
        exchanges = last or not arguments.fixed or world_size == 1
        with nullcontext() if exchanges else model.no_sync():
            loss = nn.functional.cross_entropy(model(features), labels)
            (loss / MICRO_BATCHES).backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
