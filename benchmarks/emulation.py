"""How well emulated workers stand for workers that compute: step times of both, launched in turn.

    .venv/bin/python -m benchmarks.emulation [--rounds 6] [--size 128x96] [--batch 4] [--epochs 4]

In every round runs on 1 worker record compute profiles, so that a machine whose launches drift shows as
noise and not as an error of the emulation: one alone, and one beside another on the other core, since two
workers share the machine's memory and caches whether they communicate or not. Then, for both frameworks
on 1 and 2 workers of one core each, one launch computes and one waits by the profile that was recorded as
busy as it will be. Printed: the median step of both, and the ratio emulated / real of the rounds with its
95 % interval (a bootstrap over the rounds), then both kinds against the launch that recorded: what
emulated workers on 1 worker differ from it by is the emulation's own error, and what launches that
compute differ from it by is what the machine does from launch to launch and what recording costs. At the
end the ratio Horovod / native DDP of both kinds. Nothing is tuned to it. Needs a quiet machine with two
cores.
"""

import argparse
import itertools
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.arms import FEWEST_ROUNDS, Estimate
from benchmarks.scenes import SIZES, indents, make_run_folder, reference_config
from slurm.local import launch
from unet_scaling.study.config import FRAMEWORKS, PROJECT, RunConfig
from unet_scaling.study.record import RECORD_NAME, read_record

WORKERS = (1, 2)
IMAGES = 160
KINDS = ("real", "emulated")
Launch = tuple[str, int, str]  # framework, workers, kind
RECORDED: Launch = ("pytorch_native", 1, "recorded")
RECORDED_BESIDE: Launch = ("pytorch_native", 1, "recorded beside another")
StepSeconds = dict[Launch, list[float]]


def main() -> None:
    options = _command_line().parse_args()
    with tempfile.TemporaryDirectory() as root:
        os.environ |= {"OMP_NUM_THREADS": "1", "UNET_SCALING_CACHE": f"{root}/cache"}
        seconds = measured_steps(Path(root), options)
    for line in emulation_lines(seconds):
        print(line)


def _command_line() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=FEWEST_ROUNDS)
    parser.add_argument("--size", choices=SIZES, default="128x96")
    parser.add_argument("--batch", type=int, default=4, help="images of a step of one worker")
    parser.add_argument("--epochs", type=int, default=4, help="of each launch; the first warms up")
    return parser


def measured_steps(root: Path, options: argparse.Namespace) -> StepSeconds:
    """Return the seconds of a step of every launch, round by round."""
    folder = indents(root, IMAGES, *SIZES[options.size])

    def config(framework: str, workers: int, profile: str, **training: Any) -> RunConfig:  # noqa: ANN401
        chosen = {"epochs": options.epochs, "noise_scale_every": 0, **training}
        size = SIZES[options.size]
        real = reference_config(folder, *size, options.batch, training=chosen)
        changes = {"framework": framework, "workers": workers, "emulation": {"compute": profile or None}}
        return RunConfig.model_validate(real.model_dump() | changes)

    seconds: StepSeconds = {}
    for number in range(options.rounds):
        recording = config("pytorch_native", 1, "", compute_profile="on")
        alone, beside, other = (root / f"{name}-{number}" for name in ("alone", "beside", "other"))
        seconds.setdefault(RECORDED, []).append(_step_seconds(alone, recording))
        seconds.setdefault(RECORDED_BESIDE, []).append(_side_by_side([beside, other], recording)[0])
        profiles = {1: str(alone), 2: str(beside)}
        for framework, workers, kind in _in_random_order(number):
            place = "" if kind == "real" else profiles[workers]
            took = _step_seconds(
                root / f"{framework}-{workers}-{kind}-{number}", config(framework, workers, place)
            )
            seconds.setdefault((framework, workers, kind), []).append(took)
    return seconds


def _in_random_order(number: int) -> list[Launch]:
    launches = list(itertools.product(FRAMEWORKS, WORKERS, KINDS))
    order = np.random.default_rng(number).permutation(len(launches))
    return [launches[place] for place in order]


def _step_seconds(folder: Path, config: RunConfig) -> float:
    """Launch a run; return the seconds of a step after the warm-up."""
    make_run_folder(folder, config)
    program = [str(PROJECT / config.framework / "train.py"), str(folder)]
    if launch(program, config.workers, folder / "output.log", cores_each=1) != 0:
        sys.exit((folder / "output.log").read_text())
    epochs = [epoch for epoch in read_record(folder / RECORD_NAME).epochs if not epoch.warmup]
    return sum(epoch.seconds for epoch in epochs) / sum(epoch.steps for epoch in epochs)


def _side_by_side(folders: Sequence[Path], config: RunConfig) -> list[float]:
    """Launch a run in each folder at the same time, each on a core of its own; return their step seconds."""
    cores = sorted(os.sched_getaffinity(0))[: len(folders)]
    with ThreadPoolExecutor(len(folders)) as pool:
        return list(pool.map(_step_seconds_on, cores, folders, itertools.repeat(config)))


def _step_seconds_on(core: int, folder: Path, config: RunConfig) -> float:
    # Of this thread alone; what it starts inherits it.
    os.sched_setaffinity(0, {core})
    return _step_seconds(folder, config)


def emulation_lines(seconds: StepSeconds) -> Iterator[str]:
    """Yield the ratios emulated / real, those to the launch that recorded, and Horovod / native DDP."""
    for framework in FRAMEWORKS:
        for workers in WORKERS:
            real, emulated = (seconds[framework, workers, kind] for kind in KINDS)
            steps = f"{_milliseconds(real):.2f} ms computing, {_milliseconds(emulated):.2f} ms waiting"
            yield f"{framework} on {workers}: {steps}, ratio {_ratio(emulated, real):.4f}"
    for framework, kind in itertools.product(FRAMEWORKS, KINDS):
        ratio = _ratio(seconds[framework, 1, kind], seconds[RECORDED])
        yield f"{framework} on 1, {kind} / the launch that recorded: {ratio:.4f}"
    beside = _ratio(seconds[RECORDED_BESIDE], seconds[RECORDED])
    yield f"recorded beside another / alone: {beside:.4f}"
    for workers in WORKERS:
        pairs = {kind: [seconds[framework, workers, kind] for framework in FRAMEWORKS] for kind in KINDS}
        shown = [f"{kind} {_ratio(horovod, native):.4f}" for kind, (native, horovod) in pairs.items()]
        yield f"Horovod / native DDP on {workers}: {', '.join(shown)}"


def _milliseconds(seconds: Sequence[float]) -> Estimate:
    return Estimate.of([1000 * each for each in seconds])


def _ratio(numerator: Sequence[float], denominator: Sequence[float]) -> Estimate:
    return Estimate.of([above / below for above, below in zip(numerator, denominator, strict=True)])


if __name__ == "__main__":
    main()
