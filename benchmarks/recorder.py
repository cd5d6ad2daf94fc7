"""What it costs a script to be recorded: epochs with and without it in turn, in one process group, paired.

    .venv/bin/python -m benchmarks.recorder [--pairs 60] [--width 8] [--image 96] [--batch 4]

First the CPU seconds of all marks and hooks of one step. Then, for each framework at 1 and 2 workers, each
worker on cores of its own: a hand-written loop over the reference network, its batches from run.epoch or from
the list itself, the order within a pair alternating; the median ratio and its 95 % interval (a bootstrap
over the pairs), from the first batch to the end of the last step, of the seconds of a step and of the CPU
seconds of worker 0's training thread.
"""

import argparse
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.paired_steps import (
    PARAMETERS,
    TRIALS,
    JoinedStep,
    Seconds,
    joined_step,
    leave_result,
    measured_in_turn,
    ratio_lines,
    run_benchmark,
)
from unet_scaling import record
from unet_scaling.data.image_data import ImageBatch
from unet_scaling.study.errors import run_worker

MODULE = "benchmarks.recorder"
STEPS = 10  # of an epoch


class Sum(nn.Module):
    """A network of as many parameters as the reference's, each a single number."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.ones(1)) for _ in range(PARAMETERS))

    def forward(self, numbers: Tensor) -> Tensor:
        return torch.cat(list(self.weights)).sum() * numbers.sum()


def cost_of_a_step() -> float:
    """Return the CPU seconds by which a step is longer where it is recorded: difference of the medians."""
    model = Sum()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    batches = [torch.ones(1)] * STEPS
    seconds: dict[bool, list[float]] = {True: [], False: []}
    with tempfile.TemporaryDirectory() as logs:
        run = record.begin(
            study="cost", framework="pytorch_native", model=model, optimizer=optimizer, logs=logs
        )
        for trial in range(2 * TRIALS):
            stamps = []
            for batch in run.epoch(batches) if trial % 2 else batches:
                stamps.append(time.thread_time())
                optimizer.zero_grad()
                model(batch).backward()
                optimizer.step()
            seconds[trial % 2 == 1].append((stamps[-1] - stamps[0]) / (STEPS - 1))
    return float(np.median(seconds[True]) - np.median(seconds[False]))


def work(folder: Path, pairs: int) -> None:
    """Write, as one worker, the seconds and CPU seconds of a step for each pair [recorded, not recorded]."""
    joined = joined_step(folder)
    batches = joined.batches * STEPS
    run = record.begin(
        study="benchmark",
        framework=joined.config.framework,
        model=joined.replica,
        optimizer=joined.step.optimizer,
        logs=folder,
    )

    def seconds_of(recorded: bool) -> Seconds:
        joined.group.wait_for_all()
        epoch = run.epoch(batches, samples=lambda batch: len(batch.images))
        return seconds_of_a_step(joined, epoch if recorded else batches)

    leave_result(folder, joined.group, measured_in_turn(seconds_of, pairs))


def seconds_of_a_step(joined: JoinedStep, batches: Iterable[ImageBatch]) -> Seconds:
    """Return the seconds and the CPU seconds of this thread of a step, the mean of an epoch."""
    stamps = []
    for batch in batches:
        stamps.append((time.perf_counter(), time.thread_time()))
        take(joined, batch)
        stamps.append((time.perf_counter(), time.thread_time()))
    seconds, cpu_seconds = (last - first for first, last in zip(stamps[0], stamps[-1], strict=True))
    return seconds / STEPS, cpu_seconds / STEPS


def take(joined: JoinedStep, batch: ImageBatch) -> None:
    """Train one step, as a script does."""
    optimizer = joined.step.optimizer
    optimizer.zero_grad()
    loss = nn.functional.binary_cross_entropy_with_logits(joined.replica(batch.images), batch.masks)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def lines(root: Path, options: argparse.Namespace) -> Iterator[str]:
    """Yield the lines of the table."""
    return ratio_lines(root, options, MODULE, "recorded / not", cost_of_a_step())


def main() -> None:
    run_benchmark(__doc__, 60, work, lines)


if __name__ == "__main__":
    run_worker(main)
