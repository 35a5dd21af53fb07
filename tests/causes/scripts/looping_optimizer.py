"""The optimizer loops in Python over 400 small parameters (`foreach=False`).

Source: https://github.com/pytorch/pytorch/issues/3929 (100 ms instead of 1 ms for many small parameters),
https://github.com/roboflow/rf-detr/pull/1409 (a group for each of 465 parameters, so `AdamW.step()` took 58.8 ms).

No sleep can stand for the loop: see `../README.md` for what it takes. It is the same on one and two processes, but
all of it stays when the batch is divided among more of them.
`--fixed`: `fused=True`, which updates all parameters in one call.
"""

import torch
from base import EPOCHS, Network, loader, options, parallel, samples, start
from torch import nn

arguments = options().parse_args()
rank, world_size = start()
model = parallel(Network(small_parameters=400))
how = {"fused": True} if arguments.fixed else {"foreach": False}
optimizer = torch.optim.AdamW(model.parameters(), **how)

for epoch in range(EPOCHS):
    for features, labels in loader(samples()):
        loss = nn.functional.cross_entropy(model(features), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
