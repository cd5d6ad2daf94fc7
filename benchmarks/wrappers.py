"""What a wrapper of DDP costs: CPU microseconds a step of native DDP, Fabric, Accelerate and the Trainer.

    .venv/bin/python -m benchmarks.wrappers [--rounds 30] [--steps 200]

One process and a network of 82 tensors of next to no size, so that what is left of a step is Python and the
wrapper. The arms take turns, in another order each round; each is set up anew, and its first steps do not
count. Printed are the median of the rounds, and that of the difference to native DDP of the same round with
its 95 % interval (a bootstrap over the rounds). The Trainer owns its loop and so is no twin: barebones,
quiet (no logger, checkpoint, progress bar or summary), and as it comes. Needs environment/install.sh --with
lightning,accelerate.
"""

import argparse
import contextlib
import logging
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import lightning
import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs
from lightning.fabric import Fabric
from lightning.fabric.plugins.environments import TorchElasticEnvironment
from lightning.fabric.strategies import DDPStrategy as FabricStrategy
from lightning.pytorch.strategies import DDPStrategy as TrainerStrategy
from scipy import stats  # type: ignore[import-untyped]
from torch import Tensor, distributed, nn
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from unet_scaling.group.identity import Identity
from unet_scaling.group.torchrun import announce_group

# A weight and a bias each: as many tensors as the reference network has.
LAYERS = 41
WARMUP_STEPS = 20
CPU = torch.device("cpu")
# The interval of the differences, as everywhere in this project.
CONFIDENCE = 0.95
QUIET: Mapping[str, bool] = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


class StampedBatches:
    """A batch again and again, which notes the CPU time at which each is asked for."""

    def __init__(self, steps: int) -> None:
        self.batch = torch.ones(1, 1)
        self.steps = steps
        self.stamps: list[float] = []

    def __len__(self) -> int:
        # The last one is asked for where the last counted step has ended.
        return WARMUP_STEPS + self.steps + 1

    def __iter__(self) -> Iterator[Tensor]:
        self.stamps = []
        for _ in range(len(self)):
            self.stamps.append(time.process_time())
            yield self.batch

    def microseconds_a_step(self) -> float:
        """Return the CPU time of a step, without the first ones."""
        return 1e6 * (self.stamps[-1] - self.stamps[WARMUP_STEPS]) / self.steps


def network() -> nn.Module:
    return nn.Sequential(*(nn.Linear(1, 1) for _ in range(LAYERS)))


def adam(model: nn.Module) -> Optimizer:
    return torch.optim.Adam(model.parameters(), fused=True)


def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
    loss: Tensor = model(batch).sum()
    return loss


def native(batches: StampedBatches) -> None:
    model = DistributedDataParallel(network(), forward_sync_buffers=False)
    optimizer = adam(model)
    for batch in batches:
        optimizer.zero_grad()
        loss_of(model, batch).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def fabric(batches: StampedBatches) -> None:
    strategy = FabricStrategy(None, [CPU], TorchElasticEnvironment(), forward_sync_buffers=False)
    wrapper = Fabric(strategy=strategy)
    wrapper.launch()
    bare = network()
    model, optimizer = wrapper.setup(bare, adam(bare))
    for batch in batches:
        optimizer.zero_grad()
        wrapper.backward(loss_of(model, batch))
        optimizer.step()


def accelerate(batches: StampedBatches) -> None:
    wrapper = Accelerator(cpu=True, kwargs_handlers=[DistributedDataParallelKwargs()])
    bare = network()
    model, optimizer = wrapper.prepare(bare, adam(bare))
    model.forward_sync_buffers = False
    for batch in batches:
        optimizer.zero_grad()
        wrapper.backward(loss_of(model, batch))
        optimizer.step()


class TrainerNetwork(lightning.LightningModule):  # type: ignore[misc]
    """The same network as the Trainer takes it."""

    def __init__(self) -> None:
        super().__init__()
        self.model = network()

    def training_step(self, batch: Tensor) -> Tensor:
        return loss_of(self.model, batch)

    def configure_optimizers(self) -> Optimizer:
        return adam(self)


def trainer(**options: bool) -> Callable[[StampedBatches], None]:
    """Return the arm of a Trainer with these options."""

    def arm(batches: StampedBatches) -> None:
        environment = TorchElasticEnvironment()
        strategy = TrainerStrategy(
            parallel_devices=[CPU], cluster_environment=environment, forward_sync_buffers=False
        )
        with tempfile.TemporaryDirectory() as folder:
            fitted = lightning.Trainer(
                strategy=strategy, max_epochs=1, default_root_dir=folder, **options
            )  # fmt: skip
            fitted.fit(TrainerNetwork(), batches)

    return arm


ARMS: Mapping[str, Callable[[StampedBatches], None]] = {
    "native DDP": native,
    "Lightning Fabric": fabric,
    "Accelerate": accelerate,
    "Trainer, barebones": trainer(barebones=True),
    "Trainer, quiet": trainer(**QUIET),
    "Trainer, as it comes": trainer(),
}


def measure(rounds: int, steps: int) -> dict[str, np.ndarray]:
    """Return the CPU microseconds of a step of each arm in each round."""
    random = np.random.default_rng(1)
    measured: dict[str, list[float]] = {name: [] for name in ARMS}
    for _ in range(rounds):
        for name in random.permutation(list(ARMS)):
            batches = StampedBatches(steps)
            with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
                ARMS[name](batches)
            measured[name].append(batches.microseconds_a_step())
    return {name: np.array(values) for name, values in measured.items()}


def shown(values: np.ndarray) -> str:
    """Return the median of differences with its interval over the rounds."""
    interval = stats.bootstrap(
        (values,), np.median, method="percentile", confidence_level=CONFIDENCE, rng=1
    ).confidence_interval
    return f"{np.median(values):+6.0f} [{interval.low:+.0f}, {interval.high:+.0f}]"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--steps", type=int, default=200, help="of an arm in a round")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    announce_group(Identity(0, 1, 0, "none"), CPU)
    measured = measure(options.rounds, options.steps)
    print("                  arm  microseconds of CPU a step  more than native DDP")
    for name, values in measured.items():
        more = "" if name == "native DDP" else shown(values - measured["native DDP"])
        print(f"{name:>21}  {np.median(values):>26.0f}  {more}".rstrip())
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
