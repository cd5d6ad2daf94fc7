"""The cost of the overhead budget: epochs with and without it in turn, in one process group, paired.

    .venv/bin/python -m benchmarks.budget [--pairs 200] [--width 8] [--image 96] [--batch 4]

First what all marks and hooks of one step cost by themselves. Then, for each framework at 1 and 2
workers, each worker on cores of its own: two steps with the budget over two without, the order within a
pair alternating, hooks taken off in between; the median ratio and its 95 % interval (a bootstrap over the
pairs), of the seconds and of the CPU seconds of worker 0's training thread. Memory is kept from step to
step, as in training: else whether glibc happens to return some moves both by more than what is to be seen.
"""

import argparse
import importlib.util
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from scipy import stats  # type: ignore[import-untyped]

from benchmarks.scenes import indents, make_run_folder, reference_config
from slurm.local import launch
from unet_scaling.data.image_source import Batch
from unet_scaling.measure.phases import NO_CLOCK, Clock, HostClock
from unet_scaling.study.config import FRAMEWORKS, PROJECT, Framework
from unet_scaling.study.errors import run_worker
from unet_scaling.study.measurements import Phase
from unet_scaling.study.study_file import read_config
from unet_scaling.task.loading import load_task
from unet_scaling.training import Step, build_model, build_optimizer

RESULT = "seconds.json"
PARAMETERS = 82
TRIALS = 300
IMAGES = 40
STEPS = 2  # of a block
WARMUP_PAIRS = 5


def twin(framework: str) -> ModuleType:
    """Import the training program of a framework, whose folder is no package."""
    path = PROJECT / framework / "train.py"
    spec = importlib.util.spec_from_file_location("twin", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
    measured_pairs = []
    for pair in range(-WARMUP_PAIRS, pairs):
        measured = {}
        for with_budget in (True, False) if pair % 2 else (False, True):
            clock = HostClock(replica, STEPS, 1) if with_budget else None
            group.wait_for_all()
            measured[with_budget] = seconds_of_a_step(step, batches, clock)
            if clock:
                clock.close()
        measured_pairs.append([measured[True], measured[False]])
    if group.rank == 0:
        (folder / RESULT).write_text(json.dumps(measured_pairs[WARMUP_PAIRS:]))
    group.wait_for_all()


def seconds_of_a_step(step: Step, batches: list[Batch], clock: HostClock | None) -> tuple[float, float]:
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
        step.take(batches, talking)
        talking.next_step()
    return (time.perf_counter() - begin) / STEPS, (time.thread_time() - cpu_begin) / STEPS


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
    program = ["-m", "benchmarks.budget", "--pairs", str(options.pairs), "--worker", str(folder)]
    cores = max(1, len(os.sched_getaffinity(0)) // 2)
    code = launch(program, workers, folder / "output.log", cores)
    if code != 0:
        sys.exit((folder / "output.log").read_text())
    pairs = np.array(json.loads((folder / RESULT).read_text()))
    ratios = pairs[:, 0] / pairs[:, 1]
    step = 1000 * np.median(pairs[:, 1, 0])
    return f"{framework:>15} {workers:>8} {step:10.2f} ms  {shown(ratios[:, 0])}  {shown(ratios[:, 1])}"


def shown(ratios: np.ndarray) -> str:
    interval = stats.bootstrap((ratios,), np.median, method="percentile", rng=1).confidence_interval
    return f"{np.median(ratios):.4f} [{interval.low:.4f}, {interval.high:.4f}]"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--width", type=int, default=8, help="of the U-Net's first level; depth is 5")
    parser.add_argument("--image", type=int, default=96, help="pixels of a side")
    parser.add_argument("--batch", type=int, default=4, help="images of one worker's step")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return work(options.worker, options.pairs)
    with tempfile.TemporaryDirectory() as root:
        os.environ["UNET_SCALING_CACHE"] = f"{root}/cache"
        print(f"marks and hooks of one step: {1e6 * cost_of_a_step():.0f} microseconds")
        print("      framework  workers  step without  seconds, with / without  CPU seconds, with / without")
        for framework in FRAMEWORKS:
            for workers in (1, 2):
                print(measure(Path(root), framework, workers, options), flush=True)
    return None


if __name__ == "__main__":
    run_worker(main)
