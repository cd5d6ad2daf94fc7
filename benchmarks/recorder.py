"""What it costs a script to be recorded: epochs with and without it in turn, in one process group, paired.

    .venv/bin/python -m benchmarks.recorder [--pairs 60] [--steps 10] [--width 8] [--image 96] [--batch 4]

For each framework at 1 and 2 workers, each worker on cores of its own: a hand-written loop over the reference
network, its batches from run.epoch or from the list itself, the order within a pair alternating; the median
ratio and its 95 % interval (a bootstrap over the pairs), from the first batch to the end of the last step, of
the seconds of a step and of the CPU seconds of worker 0's training thread. What an epoch costs once, to begin
and end together, is the difference of the rest.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from torch import nn

from benchmarks.budget import RESULT, shown, twin
from benchmarks.scenes import indents, make_run_folder, reference_config
from slurm.local import launch
from unet_scaling import record
from unet_scaling.data.loader import load_data
from unet_scaling.data.run_data import Batch
from unet_scaling.measure.phases import NO_CLOCK
from unet_scaling.study.config import FRAMEWORKS, Framework
from unet_scaling.study.errors import run_worker
from unet_scaling.study.study_file import read_config
from unet_scaling.training import build_model, build_optimizer

IMAGES = 40
WARMUP_PAIRS = 3


def work(folder: Path, pairs: int, steps: int) -> None:
    """Write, as one worker, what seconds_of_epoch returns: [pair][recorded, not recorded][seconds]."""
    config = read_config(folder / "config.json")
    program = twin(config.framework)
    group = program.join_group(config)
    batches = list(next(load_data(config, group).steps(0, NO_CLOCK))) * steps
    model = build_model(config, group.device, program.SyncBatchNorm)
    replica, optimizer = program.distribute(model, build_optimizer(model, config), config)
    run = record.begin(
        study="benchmark", framework=config.framework, model=replica, optimizer=optimizer, logs=folder
    )

    def take(batch: Batch) -> None:
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(replica(batch.images), batch.masks)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    measured_pairs = []
    for pair in range(-WARMUP_PAIRS, pairs):
        measured = {}
        for recorded in (True, False) if pair % 2 else (False, True):
            group.wait_for_all()
            own = run.epoch(batches, samples=lambda batch: len(batch.images)) if recorded else batches
            measured[recorded] = seconds_of_epoch(own, steps, take)
        measured_pairs.append([measured[True], measured[False]])
    if group.rank == 0:
        (folder / RESULT).write_text(json.dumps(measured_pairs[WARMUP_PAIRS:]))
    group.wait_for_all()


def seconds_of_epoch(
    batches: Iterable[Batch], steps: int, take: Callable[[Batch], None]
) -> tuple[float, float, float]:
    """Return seconds and CPU seconds of a step, their means, and the seconds of an epoch beside its steps."""
    begin = time.perf_counter()
    stamps = []
    for batch in batches:
        stamps.append((time.perf_counter(), time.thread_time()))
        take(batch)
        stamps.append((time.perf_counter(), time.thread_time()))
    seconds, cpu_seconds = (last - first for first, last in zip(stamps[0], stamps[-1], strict=True))
    return seconds / steps, cpu_seconds / steps, time.perf_counter() - begin - seconds


def measure(root: Path, framework: Framework, workers: int, options: argparse.Namespace) -> str:
    """Launch one group; return its line of the table."""
    config = reference_config(
        indents(root, IMAGES, options.image, options.image),
        options.image,
        options.image,
        options.batch,
        framework=framework,
        workers=workers,
        model={"width": options.width},
        training={"shared_devices": False},
    )
    folder = make_run_folder(root / config.run, config)
    program = ["-m", "benchmarks.recorder", "--pairs", str(options.pairs), "--steps", str(options.steps)]
    cores = max(1, len(os.sched_getaffinity(0)) // 2)
    code = launch([*program, "--worker", str(folder)], workers, folder / "output.log", cores)
    if code != 0:
        sys.exit((folder / "output.log").read_text())
    pairs = np.array(json.loads((folder / RESULT).read_text()))
    recorded, plain = pairs[:, 0], pairs[:, 1]
    seconds, cpu_seconds, _ = (recorded / plain).T
    step, rest = 1000 * np.median(plain[:, 0]), 1000 * np.median(recorded[:, 2] - plain[:, 2])
    return (
        f"{framework:>15} {workers:>8} {step:9.2f} ms  {shown(seconds)}  {shown(cpu_seconds)} {rest:11.2f} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--steps", type=int, default=10, help="of an epoch")
    parser.add_argument("--width", type=int, default=8, help="of the U-Net's first level; depth is 5")
    parser.add_argument("--image", type=int, default=96, help="pixels of a side")
    parser.add_argument("--batch", type=int, default=4, help="images of one worker's step")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return work(options.worker, options.pairs, options.steps)
    with tempfile.TemporaryDirectory() as root:
        os.environ["UNET_SCALING_CACHE"] = f"{root}/cache"
        print("recorded / not recorded:")
        print(f"{'framework':>15}  workers {'step':>12} {'seconds':>24} {'CPU seconds':>25} {'an epoch':>14}")
        for framework in FRAMEWORKS:
            for workers in (1, 2):
                print(measure(Path(root), framework, workers, options), flush=True)
    return None


if __name__ == "__main__":
    run_worker(main)
