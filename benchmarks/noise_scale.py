"""The cost of sampling the gradient noise scale: steps with and without it in turn, in one process group.

    .venv/bin/python -m benchmarks.noise_scale [--pairs 100] [--width 8] [--image 96] [--batch 4]

For each framework at 2 workers, each on cores of its own: a sampled step over one that is not sampled, the
order within a pair alternating; how much longer it takes, as a share of a step where one in so many is
sampled as with "auto": the median ratio with its 95 % interval (a bootstrap over the pairs), of the seconds
and of the CPU seconds of worker 0's training thread, which other programs disturb less. Gathering the norms
of all workers, once per epoch and outside its clock, is timed apart.
"""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.arms import Estimate
from benchmarks.paired_steps import (
    WARMUP_PAIRS,
    Seconds,
    config_of,
    joined_step,
    launched,
    leave_result,
    measured_in_turn,
    run_benchmark,
)
from unet_scaling.group.group import Group
from unet_scaling.measure.noise_scale import GradientNormMeter, gradient_norm_meter, steps_between_samples
from unet_scaling.measure.phases import NO_CLOCK
from unet_scaling.study.config import FRAMEWORKS, Framework
from unet_scaling.study.errors import run_worker

MODULE = "benchmarks.noise_scale"
WORKERS = 2


def work(folder: Path, pairs: int) -> None:
    """Write, as one worker, (seconds, CPU seconds) of each pair of steps [sampled, not], and of gathering."""
    joined = joined_step(folder)
    meter = gradient_norm_meter(joined.replica, joined.config)
    assert meter is not None
    meter.begin()
    last = steps_between_samples(joined.config) - 1

    def seconds_of(sampled: bool) -> Seconds:
        joined.group.wait_for_all()
        begin = time.perf_counter()
        cpu_begin = time.thread_time()
        with meter.sampling(last if sampled else 0):
            joined.step.take(joined.batches, NO_CLOCK)
        return time.perf_counter() - begin, time.thread_time() - cpu_begin

    measured = measured_in_turn(seconds_of, pairs)
    gathered = list(gathering(meter, joined.group))
    leave_result(folder, joined.group, {"pairs": measured, "gathering": gathered})


def gathering(meter: GradientNormMeter, group: Group) -> Iterator[float]:
    """Yield the seconds of gathering the norms of all sampled steps, several times."""
    for _ in range(WARMUP_PAIRS):
        group.wait_for_all()
        begin = time.perf_counter()
        meter.gather(group)
        yield time.perf_counter() - begin


def lines(root: Path, options: argparse.Namespace) -> Iterator[str]:
    """Yield the lines of the table, launching a group for each framework."""
    yield "share of a step, 1 in so many sampled"
    yield "      framework   one in  step without             of seconds         of CPU seconds   gathering"
    for framework in FRAMEWORKS:
        config = config_of(root, framework, WORKERS, options)
        result = launched(root, MODULE, config, options.pairs)
        yield _line(framework, result, steps_between_samples(config))


def _line(framework: Framework, result: dict[str, Any], every: int) -> str:
    pairs = np.array(result["pairs"])
    step = 1000 * np.median(pairs[:, 1, 0])
    shares = [_share(pairs[:, 0, kind] / pairs[:, 1, kind], every) for kind in (0, 1)]
    gathered = 1000 * np.median(result["gathering"])
    return f"{framework:>15} {every:10} {step:10.2f} ms {shares[0]:>24} {shares[1]:>24} {gathered:10.2f} ms"


def _share(ratios: NDArray[np.float64], every: int) -> str:
    """Return the share of a step where one in `every` is sampled, with its interval, per cent."""
    return f"{Estimate.of(100 * (ratios - 1) / every):.2f} %"


def main() -> None:
    run_benchmark(__doc__, 100, work, lines)


if __name__ == "__main__":
    run_worker(main)
