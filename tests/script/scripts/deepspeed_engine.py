"""A loop on DeepSpeed's engine."""

import argparse

import deepspeed
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--stage", type=int, default=0, help="of ZeRO")
    parser.add_argument("--local_rank", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    biases = [weights for name, weights in model.named_parameters() if name.endswith("bias")]
    others = [weights for name, weights in model.named_parameters() if not name.endswith("bias")]
    groups = [{"params": others}, {"params": biases, "weight_decay": 0.0}]
    data = TensorDataset(torch.randn(256, 32), torch.randint(10, (256,)))
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": args.accumulate,
        "zero_optimization": {"stage": args.stage},
    }
    optimizer = torch.optim.AdamW(groups, lr=1e-3)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    loader = DataLoader(data, 4, sampler=DistributedSampler(data))

    for epoch in range(3):
        for inputs, labels in loader:
            loss = nn.functional.cross_entropy(engine(inputs), labels)
            engine.backward(loss)
            if engine.global_rank == 0 and engine.is_gradient_accumulation_boundary():
                print(f"epoch {epoch} loss {loss.item()!r}", flush=True)
            engine.step()


if __name__ == "__main__":
    main()
