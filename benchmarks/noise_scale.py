"""The cost of sampling the gradient noise scale: steps with and without it in turn, in one process group.

    .venv/bin/python -m benchmarks.noise_scale [--pairs 100] [--width 8] [--image 96] [--batch 4]

For each framework at 2 workers, each on cores of its own: a sampled step over one that is not sampled, the
order within a pair alternating; how much longer it takes, as a share of a step where one in so many is
sampled as with "auto": the median ratio with its 95 % interval (a bootstrap over the pairs), of the seconds
and of the CPU seconds of worker 0's training thread, which other programs disturb less. Gathering the norms
of all workers, once per epoch and outside its clock, is timed apart.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from scipy import stats  # type: ignore[import-untyped]

from benchmarks.budget import IMAGES, twin
from benchmarks.scenes import indents, make_run_folder, reference_config
from slurm.local import launch
from unet_scaling.group.group import Group
from unet_scaling.measure.noise_scale import GradientNormMeter, gradient_norm_meter, steps_between_samples
from unet_scaling.measure.phases import NO_CLOCK
from unet_scaling.study.config import FRAMEWORKS, Framework
from unet_scaling.study.errors import run_worker
from unet_scaling.study.study_file import read_config
from unet_scaling.task.loading import load_task
from unet_scaling.training import Step, build_model, build_optimizer

RESULT = "seconds.json"
WARMUP_PAIRS = 5
WORKERS = 2


def work(folder: Path, pairs: int) -> None:
    """Write, as one worker, (seconds, CPU seconds) of each pair of steps [sampled, not], and of gathering."""
    config = read_config(folder / "config.json")
    program = twin(config.framework)
    group = program.join_group(config)
    task = load_task(config)
    data = task.load_data(group)
    batches = list(next(data.steps(0, NO_CLOCK)))
    model = build_model(task, group.device, program.SyncBatchNorm)
    replica, optimizer = program.distribute(model, build_optimizer(task, model), config)
    functions = (program.hold_gradients, program.wait_for_gradients, program.update)
    step = Step(replica, optimizer, *functions, task)
    step.warm_up_step(data)
    meter = gradient_norm_meter(replica, config)
    assert meter is not None
    meter.begin()
    every = steps_between_samples(config)

    def seconds(sampled: bool) -> tuple[float, float]:
        group.wait_for_all()
        begin = time.perf_counter()
        cpu_begin = time.thread_time()
        with meter.sampling(every - 1 if sampled else 0):
            step.take(batches, NO_CLOCK)
        return time.perf_counter() - begin, time.thread_time() - cpu_begin

    measured = []
    for pair in range(-WARMUP_PAIRS, pairs):
        taken = {sampled: seconds(sampled) for sampled in ((True, False) if pair % 2 else (False, True))}
        measured.append([taken[True], taken[False]])
    result = {"pairs": measured[WARMUP_PAIRS:], "gathering": list(gathering(meter, group))}
    if group.rank == 0:
        (folder / RESULT).write_text(json.dumps(result))
    group.wait_for_all()


def gathering(meter: GradientNormMeter, group: Group) -> Iterator[float]:
    """Yield the seconds of gathering the norms of all sampled steps, several times."""
    for _ in range(WARMUP_PAIRS):
        group.wait_for_all()
        begin = time.perf_counter()
        meter.gather(group)
        yield time.perf_counter() - begin


def measure(root: Path, framework: Framework, options: argparse.Namespace) -> str:
    """Launch one group; return its line of the table."""
    config = reference_config(
        indents(root, IMAGES, options.image, options.image),
        options.image,
        options.image,
        options.batch,
        framework=framework,
        workers=WORKERS,
        model={"width": options.width},
        training={"shared_devices": False},
    )
    folder = make_run_folder(root / config.run, config)
    program = ["-m", "benchmarks.noise_scale", "--pairs", str(options.pairs), "--worker", str(folder)]
    cores = max(1, len(os.sched_getaffinity(0)) // WORKERS)
    code = launch(program, WORKERS, folder / "output.log", cores)
    if code != 0:
        sys.exit((folder / "output.log").read_text())
    return _line(framework, json.loads((folder / RESULT).read_text()), steps_between_samples(config))


def _line(framework: str, result: dict[str, list[float]], every: int) -> str:
    pairs = np.array(result["pairs"])
    step = 1000 * np.median(pairs[:, 1, 0])
    shares = [_share(pairs[:, 0, kind] / pairs[:, 1, kind], every) for kind in (0, 1)]
    gathered = 1000 * np.median(result["gathering"])
    return f"{framework:>15} {every:10} {step:10.2f} ms {shares[0]:>24} {shares[1]:>24} {gathered:10.2f} ms"


def _share(ratios: np.ndarray, every: int) -> str:
    """Return the share of a step where one in `every` is sampled, with its interval, per cent."""
    interval = stats.bootstrap((ratios,), np.median, method="percentile", rng=1).confidence_interval
    ends = (np.median(ratios), interval.low, interval.high)
    return "{:.2f} % [{:.2f}, {:.2f}]".format(*(100 * (ratio - 1) / every for ratio in ends))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=100)
    parser.add_argument("--width", type=int, default=8, help="of the U-Net's first level; depth is 5")
    parser.add_argument("--image", type=int, default=96, help="pixels of a side")
    parser.add_argument("--batch", type=int, default=4, help="images of one worker's step")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return work(options.worker, options.pairs)
    with tempfile.TemporaryDirectory() as root:
        os.environ["UNET_SCALING_CACHE"] = f"{root}/cache"
        print("share of a step, 1 in so many sampled")
        print(
            "      framework   one in  step without             of seconds         of CPU seconds   gathering"
        )
        for framework in FRAMEWORKS:
            print(measure(Path(root), framework, options), flush=True)
    return None


if __name__ == "__main__":
    run_worker(main)
