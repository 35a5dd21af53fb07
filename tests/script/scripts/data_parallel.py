"""One process that trains on all GPUs that it sees, by nn.DataParallel, or with a part of the model on each of two."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--gpus", type=int, help="use only so many")
parser.add_argument("--parts", action="store_true")
args = parser.parse_args()

torch.manual_seed(0)


class Parts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 64).to("cuda:0"), nn.Linear(64, 10).to("cuda:1")

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(inputs.to("cuda:0")).relu().to("cuda:1")).to("cuda:0")


if args.parts:
    model = Parts()
else:
    gpus = list(range(args.gpus or torch.cuda.device_count()))
    model = nn.DataParallel(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10)).to("cuda"), gpus)
data = TensorDataset(torch.randn(256, 32), torch.randint(10, (256,)))
loader = DataLoader(data, 8, shuffle=True, pin_memory=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for inputs, labels in loader:
        loss = nn.functional.cross_entropy(model(inputs), labels.to("cuda"))
        optimizer.zero_grad()
        loss.backward()
        print(f"epoch {epoch} loss {loss.item()!r}", flush=True)
        optimizer.step()
