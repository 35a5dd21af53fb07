"""A compiled model counts its calls in an integer, for each value of which `torch.compile` compiles it again.

Source: https://github.com/pytorch/pytorch/issues/128319, https://github.com/meta-pytorch/torchrec/pull/4338 (the same
with the counter of a metric). The limit of recompilations is raised, as in
https://github.com/PrimeIntellect-ai/prime-rl/pull/1778: otherwise PyTorch ceases to compile after eight.

No sleep can stand for the compiler (`aot_eager`, which needs no C++): see `../README.md` for what it takes.
`--fixed`: counts in a tensor.
"""

import torch
from base import EPOCHS, Network, loader, options, parallel, samples, start
from torch import nn

torch._dynamo.config.recompile_limit = 100_000
torch._dynamo.config.accumulated_recompile_limit = 100_000


class Counted(nn.Module):
    """Layers that grow louder with each call."""

    def __init__(self, counter: int | torch.Tensor):
        super().__init__()
        self.counter = counter
        self.layers = nn.Sequential(*(nn.Linear(32, 32) for _ in range(4)))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return as many features as were given."""
        self.counter = self.counter + 1
        return self.layers(features) * (1 + 1e-6 * self.counter)


class CompiledNetwork(Network):
    """A network whose features a compiled module has made."""

    def __init__(self, counter: int | torch.Tensor):
        super().__init__()
        self.counted = torch.compile(Counted(counter), backend="aot_eager")

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return logits."""
        return super().forward(self.counted(features))


arguments = options().parse_args()
rank, world_size = start()
model = parallel(CompiledNetwork(torch.zeros(()) if arguments.fixed else 0))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

for epoch in range(EPOCHS):
    for features, labels in loader(samples()):
        loss = nn.functional.cross_entropy(model(features), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
