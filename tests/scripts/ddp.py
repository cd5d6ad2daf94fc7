"""A training script as a beginner writes it with DDP, on workers that torchrun starts; it knows no project.

    ddp.py STUDY LOGS [--epochs N] [--plain]

Prints the images per second of the epochs after the first by its own clock, and with the record's lines or
(--plain) without them.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from unet_scaling import record

IMAGES = 512
CLASSES = 10
BATCH = 16


class SmallNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU()
        )
        self.head = nn.Linear(32, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(images).mean((2, 3)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("study")
    parser.add_argument("logs")
    parser.add_argument("--epochs", type=int, default=4)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if several:
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    images = TensorDataset(torch.randn(IMAGES, 3, 32, 32), torch.randint(CLASSES, (IMAGES,)))
    sampler = DistributedSampler(images) if several else None
    loader = DataLoader(images, BATCH, sampler=sampler, shuffle=sampler is None)
    model: nn.Module = SmallNet()
    if several:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    run = record.start(
        study=arguments.study,
        framework="pytorch_native",
        model=model,
        optimizer=optimizer,
        logs=arguments.logs,
    )
    for epoch in range(arguments.epochs):
        if sampler:
            sampler.set_epoch(epoch)
        began = time.perf_counter()
        for batch, labels in run.epoch(loader):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(batch), labels)
            loss.backward()
            optimizer.step()
        seconds = time.perf_counter() - began
        print(f"epoch {epoch}: {IMAGES / seconds:.2f} images/s", flush=True)
    run.finish(loss=loss.item())
    if several:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
