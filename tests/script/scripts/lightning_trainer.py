"""A LightningModule and its Trainer."""

import argparse

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))

    def training_step(self, batch, _):
        inputs, labels = batch
        loss = nn.functional.cross_entropy(self.model(inputs), labels)
        if self.global_rank == 0:
            print(f"epoch {self.current_epoch} loss {loss.item()!r}", flush=True)
        return loss

    def validation_step(self, batch, _):
        inputs, labels = batch
        self.log("validation", nn.functional.cross_entropy(self.model(inputs), labels), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--out", default=".")
    args = parser.parse_args()

    lightning.seed_everything(0)
    data = TensorDataset(torch.randn(256, 32), torch.randint(10, (256,)))
    trainer = lightning.Trainer(
        accelerator="gpu" if torch.cuda.is_available() else "cpu",
        devices=args.devices,
        strategy="ddp" if args.devices > 1 else "auto",
        max_epochs=args.epochs,
        default_root_dir=args.out,
        enable_progress_bar=False,
        logger=False,
    )
    trainer.fit(Classifier(), DataLoader(data, args.batch_size, shuffle=True), DataLoader(data, 64))


if __name__ == "__main__":
    main()
