"""Autograd's anomaly detection, a switch for debugging, was left on.

Source: https://github.com/yenchenlin/nerf-pytorch/issues/42 (almost 50 % slower),
https://github.com/Lightning-AI/pytorch-lightning/issues/17359 (2.5 times as fast without).

In the forward pass it records the stack at each operation, in the backward pass it looks for NaN in each gradient.
No sleep can stand for that, so the network makes 200 more small operations: see `../README.md` for what they take
with and without.
`--fixed`: the switch is off.
"""

import torch
from base import EPOCHS, Network, loader, options, parallel, samples, start
from torch import nn

OPERATIONS = 200


class ManyOperations(Network):
    """A network of many small operations."""

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        logits = super().forward(features)
        for _ in range(OPERATIONS // 2):
            logits = (logits + 0.5) * 0.99
        return logits


arguments = options().parse_args()
torch.autograd.set_detect_anomaly(not arguments.fixed)
rank, world_size = start()
model = parallel(ManyOperations())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

for epoch in range(EPOCHS):
    for features, labels in loader(samples()):
        loss = nn.functional.cross_entropy(model(features), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
