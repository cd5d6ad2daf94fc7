"""Time and memory of `python -m analysis` on studies of up to 10,000 runs, and how both grow.

    .venv/bin/python -m benchmarks.analysis --runs 1000 2500 5000 10000
    .venv/bin/python -m benchmarks.analysis --part load --keep FOLDER     load_study alone; keeps the studies

A study is sets of options x 2 frameworks x 8 worker counts x 5 repeats, in real files with valid checksums.
Each size is a study of its own, read once beforehand so that the disk takes no part, then analysed by a
process of its own; all sizes in turn, as often as --repeats says, and of each the median. Memory is the most
that this process and its children held together, looked at every 50 ms: once with what several of them share
counted once (Linux: proportional set sizes), once as the sum of resident sets. The last line is JSON.
"""

import argparse
import functools
import itertools
import json
import math
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import psutil  # type: ignore[import-untyped]

from benchmarks.records import header_of, result_of
from benchmarks.scenes import make_run_folder
from unet_scaling.study.config import FRAMEWORKS, Framework, RunConfig
from unet_scaling.study.record import RECORD_NAME, line_with_checksum
from unet_scaling.study.record_lines import End, Epoch

WORKERS = (1, 2, 4, 6, 8, 10, 12, 14)
REPEATS = 5
OPTIONS = tuple(itertools.product((4, 8, 12, 16, 24), (2, 3, 4, 5, 6), (96, 128, 192, 256, 384)))
LAUNCHES = 12
IMAGES = 1792
LOOK_EVERY_SECONDS = 0.05
SECONDS_ALLOWED = 60
GIGABYTES_ALLOWED = 2
LINEAR_WITHIN = 1.3
COMMANDS = {
    "all": ("-m", "analysis", "{study}", "--output", "{output}"),
    "load": (
        "-c",
        "import pathlib, sys; from analysis.loading import load; load.load_study(pathlib.Path(sys.argv[1]))",
        "{study}",
    ),
}


@dataclass(frozen=True)
class Measured:
    """One analysis of one study: wall seconds, processor seconds of all processes, bytes held at most.

    `peak_bytes` counts shared pages once, `peak_resident_bytes` once for each process.
    """

    runs: int
    epochs: int
    record_bytes: int
    seconds: float
    processor_seconds: float
    peak_bytes: int
    peak_resident_bytes: int


@functools.cache
def launch(framework: Framework, workers: int, number: int, epochs: int) -> tuple[bytes, tuple[Epoch, ...]]:
    """Return one possible launch: its epoch lines as they stand in the record, and as values."""
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


def build(study: Path, runs: int, epochs: int) -> int:
    """Write the run folders of a study; returns the bytes of its records."""
    written = 0
    for number, config in enumerate(configs(runs, epochs)):
        folder = make_run_folder(study / config.run, config)
        chosen = (7 * number // REPEATS + config.repeat) % LAUNCHES
        lines, values = launch(config.framework, config.workers, chosen, epochs)
        header = header_of(config, IMAGES)
        result = result_of(header, values, iou=0.8 + 0.001 * config.repeat)
        record = (
            line_with_checksum(header)
            + lines
            + line_with_checksum(result)
            + line_with_checksum(End(status="complete"))
        )
        written += (folder / RECORD_NAME).write_bytes(record)
    return written


def measure(study: Path, epochs: int, part: str) -> Measured:
    """Analyse a study in a process of its own. Raises CalledProcessError where that fails."""
    record_bytes = [len(path.read_bytes()) for path in study.glob(f"*/{RECORD_NAME}")]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as output, tempfile.TemporaryFile() as output_file:
        words = [word.format(study=study, output=output) for word in COMMANDS[part]]
        begin = time.monotonic()
        with subprocess.Popen([sys.executable, *words], stdout=output_file, stderr=output_file) as process:
            peaks = _peaks(process)
        seconds = time.monotonic() - begin
        if process.returncode:
            output_file.seek(0)
            raise subprocess.CalledProcessError(process.returncode, words, output=output_file.read())
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Measured(len(record_bytes), epochs, sum(record_bytes), seconds, processor, *peaks)


def _peaks(process: "subprocess.Popen[bytes]") -> tuple[int, int]:
    """Wait for the process; return the most bytes that it and its children held together meanwhile."""
    peaks = 0, 0
    while process.poll() is None:
        held, resident = _bytes_held(process.pid)
        peaks = max(peaks[0], held), max(peaks[1], resident)
        time.sleep(LOOK_EVERY_SECONDS)
    return peaks


def _bytes_held(pid: int) -> tuple[int, int]:
    """Return proportional and resident bytes of a process and its children; what has ended has none."""
    held = resident = 0
    try:
        parent = psutil.Process(pid)
        for process in (parent, *parent.children(recursive=True)):
            memory = process.memory_full_info()
            held = held + memory.pss
            resident = resident + memory.rss
    except psutil.NoSuchProcess:
        pass
    return held, resident


def median(repeats: Sequence[Measured]) -> Measured:
    """Return the median of each figure over the analyses of one study."""
    first = repeats[0]
    return replace(
        first,
        seconds=float(np.median([repeat.seconds for repeat in repeats])),
        processor_seconds=float(np.median([repeat.processor_seconds for repeat in repeats])),
        peak_bytes=int(np.median([repeat.peak_bytes for repeat in repeats])),
        peak_resident_bytes=int(np.median([repeat.peak_resident_bytes for repeat in repeats])),
    )


def growth(measured: Sequence[Measured]) -> list[float]:
    """Return the processor seconds of a further run, from one size to the next; wall time also waits."""
    return [
        (larger.processor_seconds - smaller.processor_seconds) / (larger.runs - smaller.runs)
        for smaller, larger in itertools.pairwise(measured)
    ]


def is_linear(measured: Sequence[Measured]) -> bool:
    """Return whether a further run costs no more in the largest study than in smaller ones, within 30 %."""
    costs = growth(measured)
    return len(costs) > 1 and costs[-1] <= LINEAR_WITHIN * float(np.mean(costs[:-1]))


def _study(folder: Path, runs: int, epochs: int) -> Path:
    """Return the study of this size in the folder, built where it is not there yet."""
    study = folder / f"{runs}x{epochs}"
    if not study.exists():
        build(study, runs, epochs)
    return study


def _print(repeats: Sequence[Sequence[Measured]], part: str) -> None:
    measured = [median(each) for each in repeats]
    heads = {"runs": 7, "epochs": 7, "records": 9, "wall": 8, "processor": 10, "memory": 9, "resident": 9}
    print(" ".join(f"{head:>{width}}" for head, width in heads.items()), " wall from, to")
    for each, every in zip(measured, repeats, strict=True):
        walls = sorted(one.seconds for one in every)
        print(
            f"{each.runs:7d} {each.epochs:7d} {each.record_bytes / 1e6:6.0f} MB {each.seconds:6.1f} s "
            f"{each.processor_seconds:8.1f} s {each.peak_bytes / 1e6:6.0f} MB "
            f"{each.peak_resident_bytes / 1e6:6.0f} MB  {walls[0]:.1f} s, {walls[-1]:.1f} s"
        )
    if len(measured) > 1:
        each_run = ", ".join(f"{1000 * seconds:.2f}" for seconds in growth(measured))
        grows = "linear" if is_linear(measured) else "not linear"
        print(f"processor milliseconds for each further run: {each_run}: {grows} in the number of runs")
    largest = measured[-1]
    for value, allowed, unit in (
        (largest.seconds, SECONDS_ALLOWED, "s wall"),
        (largest.peak_bytes / 1e9, GIGABYTES_ALLOWED, "GB, pages that processes share counted once"),
    ):
        print(f"the largest study {'stays within' if value < allowed else 'exceeds'} {allowed} {unit}")
    print(json.dumps({"part": part, "repeats": [[asdict(one) for one in every] for every in repeats]}))


def main(arguments: list[str] | None = None) -> None:
    """Build, measure, print; the folders are removed unless they are to be kept."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.analysis",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    most = len(OPTIONS) * len(FRAMEWORKS) * len(WORKERS) * REPEATS
    parser.add_argument(
        "--runs", type=int, nargs="+", default=[1000, 2500, 5000, most], help=f"of each study, at most {most}"
    )
    parser.add_argument("--epochs", type=int, default=200, help="of each run")
    parser.add_argument("--repeats", type=int, default=3, help="analyses of each study")
    parser.add_argument("--part", choices=COMMANDS, default="all", help="the whole command, or loading alone")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="build the studies here and keep them")
    options = parser.parse_args(arguments)
    for runs in options.runs:
        if not 1 <= runs <= most:
            parser.error(f"--runs {runs}: from 1 to {most}")
    if options.repeats < 1:
        parser.error(f"--repeats {options.repeats}: at least 1")
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        studies = [_study(folder, runs, options.epochs) for runs in sorted(set(options.runs))]
        rounds = [
            [measure(study, options.epochs, options.part) for study in studies]
            for _ in range(options.repeats)
        ]
    _print(list(zip(*rounds, strict=True)), options.part)


if __name__ == "__main__":
    main()
