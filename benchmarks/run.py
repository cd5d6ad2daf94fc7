"""A whole run of one worker: images per second end to end, time to the first step, and peak memory.

    .venv/bin/python -m benchmarks.run [--size 256x192] [--files 1024x768] [--images 80] [--batch 8]
        [--epochs 2] [--rounds 6] [--compile] [--json FILE]

Both arms train the same images of the same files for the same epochs from the same weights, each in a
process that a round starts anew: the project's own program under its launcher, and reference mode. The
seconds are from the launch to the end, with imports, evaluation and, for the project, a cache that the first
round builds. `--epochs 1` and few images measure the start.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from benchmarks.arms import (
    FEWEST_ROUNDS,
    OWN,
    PEAK,
    REFERENCE,
    Estimate,
    Measured,
    column,
    in_rounds,
    options_parser,
    times_as_fast,
    with_peak_memory,
    write_json,
)
from benchmarks.reference_mode import train
from benchmarks.scenes import SIZES, indents, make_run_folder, reference_config
from slurm.local import launch
from unet_scaling.study.config import PROJECT, RunConfig
from unet_scaling.study.measurements import STARTUP_COLUMNS
from unet_scaling.study.record import read_record

SHOWN_AS_RATES = ("images", "seconds", "processor_seconds", "training_seconds")


def own_run(folder: Path, config: RunConfig) -> Measured:
    """Launch the twin once; return what its record says."""
    make_run_folder(folder, config)
    program = [str(PROJECT / config.framework / "train.py"), str(folder)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.perf_counter()
    code = launch(program, 1, folder / "output.log", cores_each=None)
    seconds = time.perf_counter() - begin
    if code != 0:
        sys.exit((folder / "output.log").read_text())
    return recorded(folder) | {"seconds": seconds, "processor_seconds": _children_seconds(before)}


def recorded(folder: Path) -> Measured:
    """Return what the record of a run says of its time and memory."""
    record = read_record(folder / "run.jsonl")
    measured: Measured = {
        "images": sum(epoch.images for epoch in record.epochs),
        "training_seconds": sum(epoch.seconds for epoch in record.epochs),
    }
    cpu = record.epochs[-1].cpu
    budget = record.epochs[-1].budget
    if record.startup and cpu and cpu[0].peak_memory_bytes:
        parts = {name: getattr(record.startup, name)[0] for name in STARTUP_COLUMNS}
        measured |= parts | {"first_step_seconds": sum(parts.values()), PEAK: cpu[0].peak_memory_bytes}
    if budget:
        measured["data_wait_share"] = budget.data_wait_seconds[0] / budget.worker_sums()[0]
    return measured


def reference_run(folder: Path, config: RunConfig) -> Measured:
    """Start one process of reference mode; return what it measured."""
    folder.mkdir(parents=True)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.perf_counter()
    command = [sys.executable, "-m", "benchmarks.run", "--arm", config.model_dump_json()]
    done = subprocess.run(command, cwd=PROJECT, check=True, capture_output=True, text=True)
    seconds = time.perf_counter() - begin
    measured: Measured = json.loads(done.stdout)
    return measured | {"seconds": seconds, "processor_seconds": _children_seconds(before)}


def _children_seconds(before: resource.struct_rusage) -> float:
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def shown(samples: dict[str, list[Measured]]) -> str:
    """Return both arms line by line, then how many times reference mode's throughput the project has."""
    lines = []
    for name, measured in samples.items():
        speed = Estimate.of(column(measured, "images") / column(measured, "seconds"))
        training = Estimate.of(column(measured, "images") / column(measured, "training_seconds"))
        lines += [f"{name}: {speed:.2f} images/s end to end, {training:.2f} images/s in the epochs"]
        lines += [
            f"{'':>4}{key}: {Estimate.of(column(measured, key)):.4g}"
            for key in measured[0]
            if key not in SHOWN_AS_RATES
        ]
    for key, meaning in (
        ("seconds", "end to end"),
        ("training_seconds", "in the epochs"),
        ("processor_seconds", "by processor seconds"),
    ):
        lines.append(f"times reference mode, {meaning}: {times_as_fast(samples, REFERENCE, key)[OWN]:.2f}")
    return "\n".join(lines)


def measured_in_turn(root: Path, config: RunConfig, rounds: int) -> dict[str, list[Measured]]:
    folders = (root / str(number) for number in count())
    works = {
        REFERENCE: lambda: reference_run(next(folders), config),
        OWN: lambda: own_run(next(folders), config),
    }
    return in_rounds(works, rounds)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = options_parser(__doc__, size="256x192", rounds=FEWEST_ROUNDS)
    parser.add_argument("--files", choices=SIZES, default="1024x768", help="size of the pictures on disk")
    parser.add_argument("--images", type=int, default=80)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="of each arm")
    parser.add_argument("--compile", action="store_true", help="the project's model is compiled")
    options = parser.parse_args(arguments)
    if options.arm:
        trained = train(RunConfig.model_validate_json(options.arm))
        print(json.dumps(with_peak_memory(trained)))
        return
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.threads])
    with tempfile.TemporaryDirectory() as root:
        os.environ |= {"OMP_NUM_THREADS": str(options.threads), "UNET_SCALING_CACHE": f"{root}/cache"}
        folder = indents(Path(root), options.images, *SIZES[options.files])
        chosen = {"epochs": options.epochs, "compile": options.compile}
        config = reference_config(folder, *SIZES[options.size], options.batch, training=chosen)
        samples = measured_in_turn(Path(root), config, options.rounds)
    print(f"{options.size} from {options.files}, batch {options.batch}, {options.threads} threads")
    print(shown(samples))
    write_json(options.json, samples, REFERENCE)


if __name__ == "__main__":
    main()
