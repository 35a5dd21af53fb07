"""One rank computes three times as long as the others, which wait for it in the exchange of gradients.

Source: https://github.com/traceopt-ai/traceml/issues/252, where all ranks' backward passes last equally long, since
the others wait in them for the slow one; https://github.com/intelligent-machine-learning/dlrover/issues/678.

One process: 60 ms. Two: 3 x 60 = 180 ms, of which rank 0 waits for 120 ms.
With `--since N` the first N steps take 60 ms on two processes, too, as when a device grows hot.
`--fixed`: rank 1 computes as fast as the others, as on another device. One and two: 60 ms.
"""

import torch
from base import EPOCHS, Network, loader, options, parallel, samples, start
from torch import nn

SLOW_RANK = 1
TIMES_AS_LONG = 3.0

parser = options()
parser.add_argument("--since", type=int, default=0, help="number of steps before the rank is slow")
arguments = parser.parse_args()
rank, world_size = start()
model = parallel(Network())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
steps = 0

for epoch in range(EPOCHS):
    for features, labels in loader(samples()):
        slow = rank == SLOW_RANK and steps >= arguments.since and not arguments.fixed
        logits = model(features, work=TIMES_AS_LONG if slow else 1.0)
        loss = nn.functional.cross_entropy(logits, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
