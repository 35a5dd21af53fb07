"""A training script that, before its third step, takes some megabytes and waits for a file if one is named."""

import sys
import time
from pathlib import Path

import torch

hog_mb = int(sys.argv[1])
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.randn(400, 8), torch.randn(400, 1))
held = []
for step, (inputs, target) in enumerate(torch.utils.data.DataLoader(data, batch_size=4)):
    if step == 2:
        held = [bytearray(b"x") * 2**20 for _ in range(hog_mb)]
        while sys.argv[2:] and not Path(sys.argv[2]).exists():
            time.sleep(0.1)
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(inputs), target).backward()
    optimizer.step()
