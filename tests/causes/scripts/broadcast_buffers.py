"""DDP broadcasts a buffer of 64 MB, which never changes, before each forward pass (`broadcast_buffers=True`).

Source: https://github.com/karpathy/nanoGPT/pull/151 (a causal mask in a buffer, up to 8 % of a step),
https://github.com/ultralytics/ultralytics/issues/24410, https://github.com/ecmwf/anemoi-core/pull/1278.

No sleep can stand for the broadcast: see `../README.md` for what it takes. One process has no DDP, so none.
`--fixed`: `broadcast_buffers=False`. One and two: 60 ms.
"""

import torch
from base import EPOCHS, Network, loader, options, parallel, samples, start
from torch import nn

MASK_BYTES = 64_000_000

arguments = options().parse_args()
rank, world_size = start()
network = Network()
network.register_buffer("mask", torch.ones(MASK_BYTES // 4))
model = parallel(network, broadcast_buffers=not arguments.fixed)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

for epoch in range(EPOCHS):
    for features, labels in loader(samples()):
        loss = nn.functional.cross_entropy(model(features), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
