"""Compare a training step with reference mode's.

    .venv/bin/python -m benchmarks.step [--size 256x192] [--batch 8] [--rounds 10]
    .venv/bin/python -m benchmarks.step --agree [--steps 20]

A step begins with a collated batch and ends with the weights updated: reference mode gets floats in memory,
the project's own step the bytes of its cache. All arms start from the same weights and see the same batches.
`--agree` prints how far the losses of both are from each other after some steps, and how far each is from
the same training in float64.
"""

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from itertools import cycle
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.arms import (
    REFERENCE,
    Arm,
    Measured,
    in_turn,
    options_parser,
    serve_arm,
    table,
    timed,
    with_peak_memory,
)
from benchmarks.reference_mode import ReferenceImages, ReferenceTraining, epoch_batches
from benchmarks.scenes import SIZES, indents, reference_config
from unet_scaling.data.batches import ImageBatch, to_device
from unet_scaling.group.allocator import KEEP_MEMORY
from unet_scaling.group.group import single_worker
from unet_scaling.measure.phases import NO_CLOCK
from unet_scaling.study.config import RunConfig
from unet_scaling.task.loading import load_task
from unet_scaling.training import build_model, build_optimizer, local_step

MODULE = "benchmarks.step"
# A round must not meet the same batch again at once; more would only take memory.
DIFFERENT_BATCHES = 2
AGREEING = (
    ("own in float64", "reference in float64"),
    ("own", "reference"),
    ("own", "reference in float64"),
    ("reference", "reference in float64"),
)


class OwnTraining:
    """The project's own step, in a process alone: nothing to average, nothing to wait for."""

    def __init__(self, config: RunConfig, dtype: torch.dtype = torch.float32) -> None:
        group = single_worker()
        task = load_task(config)
        self.model = build_model(task, group.device, nn.BatchNorm2d).to(dtype).train()
        optimizer = build_optimizer(task, self.model)
        self._step = local_step(self.model, optimizer, task)
        self._point = config
        self._device = group.device
        self._dtype = dtype

    def step(self, images: Tensor, masks: Tensor) -> Tensor:
        """Take one step on uint8 images and masks as the cache holds them."""
        floats = to_device(images, masks, self._device, self._point.training.channels_last)
        pictures, targets = (each.to(self._dtype) for each in floats)
        return self._step.take([ImageBatch(pictures, targets)], NO_CLOCK)


def as_cached(images: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:
    """Return float32 images and masks [b, 1, H, W] as the bytes and bits that they are in the cache."""
    bits = np.packbits(masks[:, 0].numpy().astype(np.uint8), axis=-1)
    return (images * 255).round().to(torch.uint8), torch.from_numpy(bits)


def batches_of(config: RunConfig, as_bytes: bool) -> list[tuple[Tensor, Tensor]]:
    """Return the first batches of the point, as floats or as the bytes that they are in the cache."""
    images = ReferenceImages(config)
    batches = []
    for indices, _ in zip(epoch_batches(config, images, 0), range(DIFFERENT_BATCHES), strict=False):
        pictures, masks = images.batch(indices)
        if as_bytes:
            pictures, masks = as_cached(pictures, masks)
        batches.append((pictures, masks))
    return batches


def work_of(kind: str, config: RunConfig) -> Callable[[], Measured]:
    """Return the work of an arm when it is asked: one step on the next batch."""
    training = OwnTraining(config) if kind == "own" else ReferenceTraining(config)
    turns: Iterator[tuple[Tensor, Tensor]] = cycle(batches_of(config, as_bytes=kind == "own"))
    return lambda: with_peak_memory(timed(lambda: training.step(*next(turns))))


def arms(config: RunConfig) -> list[Arm]:
    """Return reference mode and the project's own step, also compiled and in bf16."""
    return [
        _arm(REFERENCE, "reference", config, {}),
        _arm("this project, eager", "own", config),
        _arm("this project, compiled", "own", _with_option(config, compile=True)),
        _arm("this project, bf16", "own", _with_option(config, precision="bf16")),
    ]


def _arm(name: str, kind: str, config: RunConfig, environment: Mapping[str, str] = KEEP_MEMORY) -> Arm:
    return Arm(name, MODULE, kind, config, environment)


def _with_option(config: RunConfig, **option: object) -> RunConfig:
    return config.model_copy(update={"training": config.training.model_copy(update=option)})


def agreement(config: RunConfig, steps: int) -> dict[str, float]:
    """Return the largest relative difference of the losses over the steps, of each two trainings."""
    images = ReferenceImages(config)
    references = {"reference": ReferenceTraining(config), "reference in float64": ReferenceTraining(config)}
    references["reference in float64"].model.double()
    own = {"own": OwnTraining(config), "own in float64": OwnTraining(config, torch.float64)}
    losses: dict[str, list[float]] = {name: [] for name in (*references, *own)}
    turns = cycle(epoch_batches(config, images, 0))
    for _ in range(steps):
        pictures, masks = images.batch(next(turns))
        for name, training in references.items():
            dtype = next(training.model.parameters()).dtype
            losses[name].append(training.step(pictures.to(dtype), masks.to(dtype)))
        bytes_ = as_cached(pictures, masks)
        for name, ours in own.items():
            losses[name].append(ours.step(*bytes_).item())
    return {
        f"{one} against {other}": _largest_difference(losses[one], losses[other]) for one, other in AGREEING
    }


def _largest_difference(losses: list[float], others: list[float]) -> float:
    return float((abs(np.array(losses) - np.array(others)) / np.array(others)).max())


def print_agreement(config: RunConfig, steps: int) -> None:
    for name, difference in agreement(config, steps).items():
        print(f"{name:>44}: {difference:.1e} relative, over {steps} steps")


def main() -> None:
    parser = options_parser(__doc__, size="256x192", rounds=10)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1, help="of each arm")
    parser.add_argument("--agree", action="store_true")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--compile", action="store_true", help="with --agree: the compiled model")
    options = parser.parse_args()
    if options.arm:
        serve_arm(options.arm, work_of)
        return
    height, width = SIZES[options.size]
    with tempfile.TemporaryDirectory() as root:
        folder = indents(Path(root), 3 * options.batch, height, width)
        chosen = {"compile": options.compile}
        config = reference_config(folder, height, width, options.batch, training=chosen)
        if options.agree:
            print_agreement(config, options.steps)
            return
        os.environ["OMP_NUM_THREADS"] = str(options.threads)
        samples = in_turn(arms(config), options.rounds, warmups=2)
    print(f"{options.size}, batch {options.batch}, {options.threads} threads, {options.rounds} rounds")
    print(table(samples, REFERENCE, options.batch, "ms per image"))


if __name__ == "__main__":
    main()
