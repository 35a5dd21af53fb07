"""DeepSpeed's engine with ZeRO stage 1, which drives the optimizer."""

import argparse

import deepspeed
import torch
from torch import nn
from torch.utils.data import TensorDataset


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--local_rank", type=int, default=0)
    args = parser.parse_args()

    deepspeed.init_distributed()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    data = TensorDataset(torch.randn(256, 32), torch.randint(10, (256,)))
    engine, _, loader, _ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
        training_data=data,
        config={"train_micro_batch_size_per_gpu": args.batch_size, "zero_optimization": {"stage": 1}},
    )
    for epoch in range(2):
        for inputs, labels in loader:
            loss = nn.functional.cross_entropy(engine(inputs.to(engine.device)), labels.to(engine.device))
            engine.backward(loss)
            if engine.global_rank == 0:
                print(f"epoch {epoch} loss {loss.item()!r}", flush=True)
            engine.step()


if __name__ == "__main__":
    main()
