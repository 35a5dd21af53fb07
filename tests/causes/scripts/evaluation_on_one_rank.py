"""Rank 0 alone evaluates the model every ten steps; the others wait for it in the next exchange of gradients.

Source: https://github.com/karpathy/nanoGPT/pull/356 ("only GPU0 is doing the eval and the others will need to wait"),
https://github.com/Emerge-Lab/PufferDrive/pull/421.

The evaluation takes 20 batches of 20 ms, 400 ms, and there is one in ten steps.
One and two processes: 60 + 400 / 10 = 100 ms.
`--fixed`: each rank evaluates its part of the batches. One: 100 ms. Two: 60 + 200 / 10 = 80 ms.
"""

import torch
import torch.distributed as dist
from base import BATCH_SIZE, EPOCHS, Network, loader, options, parallel, samples, start
from torch import nn

EVERY = 10
BATCHES = 20


def evaluate(network: nn.Module, batches: list[torch.Tensor]) -> torch.Tensor:
    """Return the sum of the network's confidences."""
    network.eval()
    with torch.no_grad():
        confidence = torch.stack([network(features).softmax(1).max(1).values.sum() for features in batches]).sum()
    network.train()
    return confidence


arguments = options().parse_args()
rank, world_size = start()
network = Network()
model = parallel(network)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
held_out = list(torch.randn(BATCHES, BATCH_SIZE, 32))
steps = 0

for epoch in range(EPOCHS):
    for features, labels in loader(samples()):
        loss = nn.functional.cross_entropy(model(features), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
        if steps % EVERY == 0 and arguments.fixed:
            confidence = evaluate(network, held_out[rank::world_size])
            if world_size > 1:
                dist.all_reduce(confidence)
        elif steps % EVERY == 0 and rank == 0:
            evaluate(network, held_out)
