"""A GAN: the discriminator and the generator step in turn, each by its own optimizer."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
generator = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16))
discriminator = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
generator_optimizer = torch.optim.Adam(generator.parameters(), lr=1e-3)
discriminator_optimizer = torch.optim.Adam(discriminator.parameters(), lr=1e-3)
judge = nn.BCEWithLogitsLoss()

for epoch in range(2):
    for (real,) in DataLoader(TensorDataset(torch.randn(256, 16)), 8, shuffle=True):
        fake = generator(torch.randn(len(real), 8))
        yes, no = torch.ones(len(real), 1), torch.zeros(len(real), 1)
        loss = judge(discriminator(real), yes) + judge(discriminator(fake.detach()), no)
        discriminator_optimizer.zero_grad()
        loss.backward()
        print(f"epoch {epoch} loss {loss.item()!r}", flush=True)
        discriminator_optimizer.step()

        generator_optimizer.zero_grad()
        judge(discriminator(fake), yes).backward()
        generator_optimizer.step()
