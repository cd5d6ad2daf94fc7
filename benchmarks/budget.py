"""The cost of the overhead budget: epochs with and without it in turn, in one process group, paired.

    .venv/bin/python -m benchmarks.budget [--pairs 200] [--width 8] [--image 96] [--batch 4]

First what all marks and hooks of one step cost by themselves. Then, for each framework at 1 and 2
workers, each worker on cores of its own: two steps with the budget over two without, the order within a
pair alternating, hooks taken off in between; the median ratio and its 95 % interval (a bootstrap over the
pairs), of the seconds and of the CPU seconds of worker 0's training thread. Memory is kept from step to
step, as in training: else whether glibc happens to return some moves both by more than what is to be seen.
"""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

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
from unet_scaling.measure.phases import NO_CLOCK, Clock, HostClock
from unet_scaling.study.errors import run_worker
from unet_scaling.study.measurements import Phase

MODULE = "benchmarks.budget"
STEPS = 2  # of a block


def cost_of_a_step() -> float:
    """Return the seconds that marks and hooks of one step take alone, at the reference's 82 parameters.

    Backward of a sum of single numbers with and without them, in turn; difference of the medians.
    """
    weights = torch.nn.ParameterList(torch.nn.Parameter(torch.ones(1)) for _ in range(PARAMETERS))
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for trial in range(2 * TRIALS):
        clock = HostClock(weights, 1, 1) if trial % 2 else None
        loss = torch.cat(list(weights)).sum()
        if clock:
            clock.begin()
            clock.resume(time.perf_counter())
        begin = time.thread_time()
        loss.backward()  # type: ignore[no-untyped-call]
        if clock:
            for phase in (*Phase, Phase.OPTIMIZER):
                clock.mark(phase)
        seconds[clock is not None].append(time.thread_time() - begin)
        if clock:
            clock.close()
    return float(np.median(seconds[True]) - np.median(seconds[False]))


def work(folder: Path, pairs: int) -> None:
    """Write, as one worker, the seconds and CPU seconds of a step for each pair of blocks [with, without]."""
    joined = joined_step(folder)

    def seconds_of(with_budget: bool) -> Seconds:
        clock = HostClock(joined.replica, STEPS, 1) if with_budget else None
        joined.group.wait_for_all()
        seconds = seconds_of_a_step(joined, clock)
        if clock:
            clock.close()
        return seconds

    leave_result(folder, joined.group, measured_in_turn(seconds_of, pairs))


def seconds_of_a_step(joined: JoinedStep, clock: HostClock | None) -> Seconds:
    """Return the seconds and the CPU seconds of this thread, the mean of a block of steps."""
    begin = time.perf_counter()
    cpu_begin = time.thread_time()
    if clock:
        clock.begin()
        clock.resume(begin)
    talking: Clock = clock or NO_CLOCK
    for _ in range(STEPS):
        talking.mark(Phase.DATA_WAIT)
        talking.mark(Phase.HOST_TO_DEVICE)
        joined.step.take(joined.batches, talking)
        talking.next_step()
    return (time.perf_counter() - begin) / STEPS, (time.thread_time() - cpu_begin) / STEPS


def lines(root: Path, options: argparse.Namespace) -> Iterator[str]:
    """Yield the lines of the table."""
    return ratio_lines(root, options, MODULE, "with / without", cost_of_a_step())


def main() -> None:
    run_benchmark(__doc__, 200, work, lines)


if __name__ == "__main__":
    run_worker(main)
