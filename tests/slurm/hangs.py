"""A training script of which one rank exits before its third step, or waits for ever, and the others with it."""

import os
import sys
import time

import torch
from torch.nn.parallel import DistributedDataParallel

torch.distributed.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.randn(400, 8), torch.randn(400, 1))
for step, (inputs, target) in enumerate(torch.utils.data.DataLoader(data, batch_size=4)):
    if step == 2 and os.environ["RANK"] == "1":
        if sys.argv[1] == "exit":
            sys.exit("I give up")
        time.sleep(3600)
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(inputs), target).backward()
    optimizer.step()
