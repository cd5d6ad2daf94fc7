"""A step in two ways, in turn, in one process group: what budget.py, noise_scale.py and recorder.py share."""

import argparse
import importlib.util
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from benchmarks.arms import Estimate
from benchmarks.scenes import indents, make_run_folder, reference_config
from slurm.local import launch
from unet_scaling.data.image_source import Batch
from unet_scaling.group.group import Group
from unet_scaling.measure.phases import NO_CLOCK
from unet_scaling.study.config import FRAMEWORKS, PROJECT, Framework, RunConfig
from unet_scaling.study.files import write_atomically
from unet_scaling.study.study_file import read_config
from unet_scaling.task.loading import load_task
from unet_scaling.training import Step, build_model, build_optimizer

RESULT = "seconds.json"
# Of the reference network.
PARAMETERS = 82
# In which the marks and hooks of a step are timed alone, each way.
TRIALS = 300
IMAGES = 40
WARMUP_PAIRS = 5
# Each on cores of its own, also where only one worker trains.
MOST_WORKERS = 2

# Seconds, and CPU seconds of the training thread.
Seconds = tuple[float, float]


@dataclass(frozen=True)
class JoinedStep:
    """The step of one worker of a group, after its warm-up, and the batches that it takes every time."""

    config: RunConfig
    group: Group
    replica: nn.Module
    step: Step
    batches: list[Batch]


def joined_step(folder: Path) -> JoinedStep:
    """Join the group of the run in this folder, as a worker of it."""
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
    return JoinedStep(config, group, replica, step, batches)


def twin(framework: str) -> ModuleType:
    """Import the training program of a framework, whose folder is no package."""
    path = PROJECT / framework / "train.py"
    spec = importlib.util.spec_from_file_location("twin", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def measured_in_turn(seconds_of: Callable[[bool], Seconds], pairs: int) -> list[list[Seconds]]:
    """Return the seconds [with, without] of each pair, whose order alternates; the first ones warm up."""
    measured = []
    for pair in range(-WARMUP_PAIRS, pairs):
        order = (True, False) if pair % 2 else (False, True)
        taken = {with_it: seconds_of(with_it) for with_it in order}
        measured.append([taken[True], taken[False]])
    return measured[WARMUP_PAIRS:]


def leave_result(folder: Path, group: Group, result: object) -> None:
    """Write what worker 0 found, before any worker ends."""
    if group.rank == 0:
        write_atomically(folder / RESULT, json.dumps(result))
    group.wait_for_all()


def config_of(root: Path, framework: Framework, workers: int, options: argparse.Namespace) -> RunConfig:
    """Return a run of the reference network on images of the size asked for."""
    return reference_config(
        indents(root, IMAGES, options.image, options.image),
        options.image,
        options.image,
        options.batch,
        framework=framework,
        workers=workers,
        model={"width": options.width},
        training={"shared_devices": False},
    )


def launched(root: Path, module: str, config: RunConfig, pairs: int) -> Any:  # noqa: ANN401, as it was left
    """Launch a group of this run with workers of this module; return the result that they leave."""
    folder = make_run_folder(root / config.run, config)
    program = ["-m", module, "--pairs", str(pairs), "--worker", str(folder)]
    cores = max(1, len(os.sched_getaffinity(0)) // MOST_WORKERS)
    return launched_in(folder, program, config.workers, cores)


def launched_in(folder: Path, program: Sequence[str], workers: int, cores_each: int) -> Any:  # noqa: ANN401
    """Launch workers of `python PROGRAM...` on a new run folder; return the result that they leave there.

    Nothing is lost to a worker that fails as it leaves: the result is written after all that is measured.
    """
    output = folder / "output.log"
    code = launch(program, workers, output, cores_each)
    if not (folder / RESULT).exists():
        sys.exit(f"{output.read_text()}no result, exit code {code}")
    if code != 0:
        print(f"{output.read_text()}the workers ended with {code}, after their result", file=sys.stderr)
    return json.loads((folder / RESULT).read_text())


def ratio_lines(
    root: Path, options: argparse.Namespace, module: str, compared: str, marks_seconds: float
) -> Iterator[str]:
    """Yield a table of both ratios, a group launched for each framework and number of workers.

    `compared` names the two ways, "with / without"; `marks_seconds` are those of a step's marks and hooks.
    """
    yield f"marks and hooks of one step: {1e6 * marks_seconds:.0f} microseconds"
    yield f"      framework  workers  step without  seconds, {compared}  CPU seconds, {compared}"
    for framework in FRAMEWORKS:
        for workers in range(1, MOST_WORKERS + 1):
            config = config_of(root, framework, workers, options)
            pairs = np.array(launched(root, module, config, options.pairs))
            yield _ratio_line(framework, workers, pairs)


def _ratio_line(framework: Framework, workers: int, pairs: NDArray[np.float64]) -> str:
    ratios = pairs[:, 0] / pairs[:, 1]
    step = 1000 * np.median(pairs[:, 1, 0])
    return f"{framework:>15} {workers:>8} {step:10.2f} ms  {_shown(ratios[:, 0])}  {_shown(ratios[:, 1])}"


def _shown(ratios: NDArray[np.float64]) -> str:
    return f"{Estimate.of(ratios):.4f}"


def run_benchmark(
    about: str | None,
    pairs: int,
    work: Callable[[Path, int], None],
    lines: Callable[[Path, argparse.Namespace], Iterator[str]],
) -> None:
    """Print the lines of a benchmark; or, called with --worker, be one of its workers."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=pairs)
    parser.add_argument("--width", type=int, default=8, help="of the U-Net's first level; depth is 5")
    parser.add_argument("--image", type=int, default=96, help="pixels of a side")
    parser.add_argument("--batch", type=int, default=4, help="images of one worker's step")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.worker, options.pairs)
        return
    with tempfile.TemporaryDirectory() as root:
        os.environ["UNET_SCALING_CACHE"] = f"{root}/cache"
        for line in lines(Path(root), options):
            print(line, flush=True)
