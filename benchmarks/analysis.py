"""Time and memory of `python -m analysis` on studies of up to 10,000 runs, and how both grow.

    .venv/bin/python -m benchmarks.analysis --runs 1000 2500 5000 10000 [--keep FOLDER]

A study is sets of options x 2 frameworks x 8 worker counts x 5 repeats, in real files with valid checksums.
Each size is a study of its own, read once beforehand so that the disk takes no part, then analysed by a
process of its own. Memory is the most that this process and its children held together, looked at every
50 ms; what several of them share is counted once (Linux: proportional set sizes).
"""

import itertools
import math
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from tests.records import make_header, make_result
from tests.studies import make_run
from unet_scaling.base.command_line import CommandLine
from unet_scaling.format.record import RECORD_NAME, line_with_checksum
from unet_scaling.format.record_lines import End, Epoch
from unet_scaling.study.config import FRAMEWORKS, Framework, RunConfig

WORKERS = (1, 2, 4, 6, 8, 10, 12, 14)
REPEATS = 5
OPTIONS = tuple(itertools.product((4, 8, 12, 16, 24), (2, 3, 4, 5, 6), (96, 128, 192, 256, 384)))
IMAGES = 1792
LOOK_EVERY_SECONDS = 0.05


def launch(framework: Framework, workers: int, number: int, epochs: int) -> tuple[bytes, tuple[Epoch, ...]]:
    """Return a launch of its own noise: its epoch lines as they stand in the record, and as values."""
    random = np.random.default_rng([FRAMEWORKS.index(framework), workers, number])
    ideal = 100.0 * workers / (1 + 0.01 * (workers - 1)) / (1.03 if framework == "horovod" else 1)
    level = IMAGES / ideal * np.exp(random.normal(0, 0.02))
    lines = []
    for epoch in range(epochs):
        seconds = level * (4 if epoch == 0 else 1) * np.exp(random.normal(0, 0.01, workers))
        lines.append(
            Epoch(
                epoch=epoch,
                seconds=float(seconds.max()),
                worker_seconds=seconds.tolist(),
                images=IMAGES,
                steps=math.ceil(IMAGES / (16 * workers)),
                loss=0.7 / (epoch + 1),
                learning_rate=1e-3 * workers,
                warmup=epoch == 0,
            )
        )
    return b"".join(map(line_with_checksum, lines)), tuple(lines)


def configs(runs: int, epochs: int) -> Iterator[RunConfig]:
    """Yield the first `runs` of all configurations, one set of options after the other."""
    every = itertools.product(OPTIONS, FRAMEWORKS, WORKERS, range(1, REPEATS + 1))
    for (width, depth, side), framework, workers, repeat in itertools.islice(every, runs):
        content = {
            "study": "synthetic",
            "run": f"{framework}-w{workers:02d}-{width}-{depth}-{side}-r{repeat}",
            "framework": framework,
            "workers": workers,
            "repeat": repeat,
            "seed": repeat,
            "model": {"width": width, "depth": depth},
            "data": {"folder": "/data", "image_height": side, "image_width": side},
            "training": {"epochs": epochs, "batch_per_worker": 16},
        }
        yield RunConfig.model_validate(content)


def build(study: Path, runs: int, epochs: int) -> None:
    """Write the run folders of a study."""
    for number, config in enumerate(configs(runs, epochs)):
        folder = make_run(study / config.run, config)
        lines, values = launch(config.framework, config.workers, number, epochs)
        header = make_header(config, train_images=IMAGES)
        result = make_result(header, list(values), iou=0.8 + 0.001 * config.repeat)
        end = line_with_checksum(result) + line_with_checksum(End(status="complete"))
        (folder / RECORD_NAME).write_bytes(line_with_checksum(header) + lines + end)


@dataclass(frozen=True)
class Measured:
    """One analysis: wall seconds, processor seconds of all its processes, bytes that they held at most."""

    seconds: float
    processor_seconds: float
    peak_bytes: int


def measure(study: Path) -> Measured:
    """Analyse a study in a process of its own. Raises CalledProcessError where that fails."""
    for path in study.glob(f"*/{RECORD_NAME}"):
        path.read_bytes()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as output:
        command = [sys.executable, "-m", "analysis", str(study), "--output", output]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            peak = 0
            while process.poll() is None:
                peak = max(peak, _bytes_held(process.pid))
                time.sleep(LOOK_EVERY_SECONDS)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Measured(time.monotonic() - begin, processor, peak)


def _bytes_held(pid: int) -> int:
    """Return the bytes of a process and its children; what has ended has none."""
    try:
        parent = psutil.Process(pid)
        family = (parent, *parent.children(recursive=True))
        return sum(process.memory_full_info().pss for process in family)
    except psutil.NoSuchProcess:
        return 0


def main() -> None:
    """Build, measure, print; the folders are removed unless they are to be kept."""
    parser = CommandLine("python -m benchmarks.analysis", __doc__)
    most = len(OPTIONS) * len(FRAMEWORKS) * len(WORKERS) * REPEATS
    parser.add_argument(
        "--runs", type=int, nargs="+", default=[1000, 2500, 5000, most], help=f"of each study, at most {most}"
    )
    parser.add_argument("--epochs", type=int, default=200, help="of each run")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="build the studies here and keep them")
    options = parser.parse_args()
    if not all(1 <= runs <= most for runs in options.runs):
        parser.error(f"--runs: from 1 to {most}")
    with tempfile.TemporaryDirectory() as temporary:
        smaller: tuple[int, float] | None = None
        for runs in sorted(set(options.runs)):
            study = (options.keep or Path(temporary)) / f"{runs}x{options.epochs}"
            if not study.exists():
                build(study, runs, options.epochs)
            found = measure(study)
            line = f"{runs:7d} runs {found.seconds:6.1f} s, processors {found.processor_seconds:6.1f} s"
            line += f", {found.peak_bytes / 1e6:6.0f} MB"
            if smaller:
                further = (found.processor_seconds - smaller[1]) / (runs - smaller[0])
                line += f", {1000 * further:.2f} ms of processor for each further run"
            print(line, flush=True)
            smaller = runs, found.processor_seconds


if __name__ == "__main__":
    main()
