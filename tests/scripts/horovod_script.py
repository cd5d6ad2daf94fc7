"""A training script with Horovod, on workers that mpiexec starts: horovod_script.py STUDY LOGS."""

import sys

import horovod.torch as hvd
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from unet_scaling import record

IMAGES = 64
BATCH = 16
EPOCHS = 3


def main() -> None:
    study, logs = sys.argv[1:]
    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    images = TensorDataset(torch.randn(IMAGES, 32), torch.randn(IMAGES, 1))
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(images, hvd.size(), hvd.rank())
    loader = DataLoader(images, BATCH, sampler=sampler)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
    sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer = hvd.DistributedOptimizer(sgd, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    run = record.begin(study=study, framework="horovod", model=model, optimizer=optimizer, logs=logs)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for inputs, targets in run.epoch(loader):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    run.finish()
    hvd.shutdown()


if __name__ == "__main__":
    main()
