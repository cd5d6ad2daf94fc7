"""A training script such as one writes after a tutorial on DDP, with the variables that torchrun sets.

    ddp.py STUDY LOGS [--epochs N] [--images N] [--width N] [--wait SECONDS] [--first-evaluates]

It prints the images per second of each epoch by its own clock. With --wait it sleeps after the last epoch;
with --first-evaluates worker 0 evaluates in each first batch.
"""

import argparse
import os
import time

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from unet_scaling import record

CLASSES = 10
BATCH = 16


def make_model(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(width, CLASSES),
    )


def make_images(count: int) -> TensorDataset:
    return TensorDataset(torch.randn(count, 3, 32, 32), torch.randint(CLASSES, (count,)))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("study")
    parser.add_argument("logs")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--wait", type=float, default=0.0)
    parser.add_argument("--first-evaluates", action="store_true")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    workers = int(os.environ.get("WORLD_SIZE", "1"))
    images = make_images(arguments.images)
    sampler: DistributedSampler[tuple[Tensor, ...]] | None = None
    model = make_model(arguments.width)
    if workers > 1:
        distributed.init_process_group("gloo")
        sampler = DistributedSampler(images)
        model = DistributedDataParallel(model)
    loader = DataLoader(images, BATCH, sampler=sampler)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    run = record.begin(
        study=arguments.study,
        framework="pytorch_native",
        model=model,
        optimizer=optimizer,
        logs=arguments.logs,
    )
    loss = torch.zeros(())
    for epoch in range(arguments.epochs):
        if sampler:
            sampler.set_epoch(epoch)
        began = time.perf_counter()
        for batch, (inputs, labels) in enumerate(run.epoch(loader)):
            if arguments.first_evaluates and not batch and distributed.get_rank() == 0:
                with torch.no_grad():
                    model.eval()(inputs)
                model.train()
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        print(f"{arguments.images / (time.perf_counter() - began):.3f} images/s", flush=True)
    time.sleep(arguments.wait)
    run.finish(loss=loss.item())
    if workers > 1:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
