"""A moving average of the weights copies the whole model in each step.

Source: https://github.com/ecmwf/WeatherGenerator/pull/2551 (an update of the average took 100 ms, and 10 ms in place),
https://github.com/MakazhanAlpamys/Soup/issues/160 (the whole `state_dict` is made in each step).

The network is small; the copy of a large one, 30 ms, is a sleep.
One and two processes: 60 + 30 = 90 ms.
`--fixed`: the average is moved in place, without a copy. One and two: 60 ms.
"""

import time
from copy import deepcopy

import torch
from base import EPOCHS, Network, loader, options, parallel, samples, start
from torch import nn

COPY_S = 0.030
DECAY = 0.99


def update_average(average: dict[str, torch.Tensor], network: nn.Module) -> None:
    """Move the average towards a copy of the weights."""
    weights = deepcopy(network.state_dict())
    time.sleep(COPY_S)
    for name, weight in weights.items():
        average[name] = DECAY * average[name] + (1 - DECAY) * weight


def update_average_in_place(average: dict[str, torch.Tensor], network: nn.Module) -> None:
    """Move the average towards the weights."""
    for name, weight in network.state_dict().items():
        average[name].lerp_(weight, 1 - DECAY)


arguments = options().parse_args()
rank, world_size = start()
network = Network()
average = deepcopy(network.state_dict())
update = update_average_in_place if arguments.fixed else update_average
model = parallel(network)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

for epoch in range(EPOCHS):
    for features, labels in loader(samples()):
        loss = nn.functional.cross_entropy(model(features), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        update(average, network)
