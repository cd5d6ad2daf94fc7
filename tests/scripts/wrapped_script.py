"""A training script with Fabric or Accelerate: wrapped_script.py STUDY LOGS lightning|accelerate."""

import os
import sys
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from unet_scaling import record
from unet_scaling.group.rendezvous import hold_until_exit

IMAGES = 64
BATCH = 16
EPOCHS = 3


def prepare(framework: str, *parts: Any) -> tuple[Any, ...]:
    """Return what runs the backward pass, and model, optimizer and loader as the framework wraps them."""
    if framework == "accelerate":
        from accelerate import Accelerator

        accelerator = Accelerator(cpu=True)
        return accelerator, *accelerator.prepare(*parts)
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=int(os.environ["WORLD_SIZE"]), strategy="ddp")
    fabric.launch()
    model, optimizer, loader = parts
    return fabric, *fabric.setup(model, optimizer), fabric.setup_dataloaders(loader)


def main() -> None:
    study, logs, framework = sys.argv[1:]
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(torch.randn(IMAGES, 32), torch.randn(IMAGES, 1)), BATCH)
    backward, model, optimizer, loader = prepare(framework, model, optimizer, loader)
    run = record.begin(study=study, framework=framework, model=model, optimizer=optimizer, logs=logs)
    for _ in range(EPOCHS):
        for inputs, targets in run.epoch(loader):
            optimizer.zero_grad()
            backward.backward(nn.functional.mse_loss(model(inputs), targets))
            optimizer.step()
    run.finish()
    # Left to the end of Python, Gloo's threads may end the process instead; where DDP is the last to hold the
    # group, its end may wait for one of them for ever.
    hold_until_exit(torch.distributed.group.WORLD)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
