"""A training script with a Lightning Trainer, validated after each epoch: lightning_script.py STUDY LOGS."""

import os
import sys

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from unet_scaling import record

IMAGES = 64
BATCH = 16
EPOCHS = 3


class Regression(LightningModule):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        inputs, targets = batch
        return nn.functional.mse_loss(self.layers(inputs), targets)

    def validation_step(self, batch: tuple[Tensor, Tensor], number: int) -> None:
        self.log("error", self.training_step(batch, number), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def main() -> None:
    study, logs = sys.argv[1:]
    torch.set_num_threads(1)
    torch.manual_seed(0)
    images = TensorDataset(torch.randn(IMAGES, 32), torch.randn(IMAGES, 1))
    trainer = Trainer(
        accelerator="cpu",
        devices=int(os.environ.get("WORLD_SIZE", "1")),
        max_epochs=EPOCHS,
        callbacks=[record.lightning_callback(study=study, scores=("error",), logs=logs)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Regression(), DataLoader(images, BATCH), DataLoader(images, BATCH))


if __name__ == "__main__":
    main()
