"""DDP looks for unused parameters in each step (`find_unused_parameters=True`), though all are used.

Source: https://github.com/pytorch/pytorch/pull/50133, which made DDP warn of it, since many users pass the flag as a
precaution; https://github.com/cszn/KAIR/issues/103, where turning it off "had no measurable performance impact".

DDP walks through the graph of each forward pass, and exchanges which parameters were used. No sleep can stand for
that, so the network has 1000 small parameters, each with an operation of its own, which take time themselves: see
`../README.md` for what was measured. One process has no DDP, so no such cost.
`--fixed`: `find_unused_parameters=False`.
"""

import torch
from base import EPOCHS, Network, loader, options, parallel, samples, start
from torch import nn


class ManyOperations(Network):
    """A network in whose forward pass each small parameter is used on its own."""

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        logits = super().forward(features)
        return logits + torch.cat([parameter * 2 for parameter in self.small]).sum()


arguments = options().parse_args()
rank, world_size = start()
model = parallel(ManyOperations(small_parameters=1000), find_unused_parameters=not arguments.fixed)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0, fused=True)

for epoch in range(EPOCHS):
    for features, labels in loader(samples()):
        loss = nn.functional.cross_entropy(model(features), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
