"""DDP exchanges gradients in 40 tiny buckets (`bucket_cap_mb`), each of which has the network's latency.

Source: https://github.com/HorizonRobotics/alf/pull/1573 and https://github.com/pytorch/pytorch/issues/118421, in which
buckets are made larger so that fewer exchanges are needed.

An exchange takes 5 ms by a communication hook (`base.slow_exchange`). Each of 36 small parameters has a bucket of its
own, and four buckets are those of the two layers.
One process: 60 ms. Two: 60 + 40 x 5 = 260 ms.
`--fixed`: the usual size, 25 MB, so all gradients are in one bucket. One: 60 ms. Two: 60 + 5 = 65 ms.
"""

import torch
from base import EPOCHS, Network, loader, options, parallel, samples, slow_down_exchanges, start
from torch import nn

SMALL_PARAMETERS = 36
EXCHANGE_S = 0.005
TINY_MB = 1e-5  # ten bytes, less than a parameter of eight numbers has

arguments = options().parse_args()
rank, world_size = start()
model = parallel(Network(SMALL_PARAMETERS), bucket_cap_mb=None if arguments.fixed else TINY_MB)
slow_down_exchanges(model, EXCHANGE_S)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

for epoch in range(EPOCHS):
    for features, labels in loader(samples()):
        loss = nn.functional.cross_entropy(model(features), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
