"""Compare a whole short run of one worker with reference mode's, or with that of another checkout.

    .venv/bin/python -m benchmarks.launch [--size 1024x768] [--batch 4] [--images 25] [--rounds 6]
    git worktree add ../before COMMIT
    .venv/bin/python -m benchmarks.launch --checkout ../before

The seconds of a run are from the command to its end: start of Python, a second in which `run` looks whether
the machine is quiet, training, evaluation, the record. Reference mode starts Python, trains and evaluates
after each epoch. All decode the images at every step, and train the same ones from the same weights; images
are synthetic, nothing is fetched. A round launches every arm once, in an order that turns; ratios are taken
within rounds.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np

from benchmarks import reference_mode
from benchmarks.step import REFERENCE, SIZES, estimate, reference_run
from unet_scaling.format.record import read_record
from unet_scaling.study.config import PROJECT, RunConfig

OWN = "this project"
STUDY = """name = "launch"
frameworks = ["pytorch_native"]
workers = [1]
repeats = 1
"""


def run_study(checkout: Path, config: RunConfig, folder: Path) -> list[float]:
    """Run a study of one launch by the command of a checkout; return the seconds of its epochs."""
    folder.mkdir()
    changed = {"loading": "decode"} | config.data.model_dump(exclude_defaults=True, mode="json")
    tables = {
        "data": changed,
        "training": config.training.model_dump(exclude_defaults=True),
        "model": config.model.model_dump(exclude_defaults=True),
    }
    lines = [STUDY]
    for table, values in tables.items():
        lines += [f"[{table}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
    study = folder / "launch.toml"
    study.write_text("\n".join(lines))
    command = [sys.executable, "-m", "unet_scaling", "run", str(study), "--logs", str(folder)]
    command += ["--keep-disturbed"]
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    subprocess.run(command, cwd=checkout, env=environment, check=True, stdout=subprocess.DEVNULL)
    (record,) = folder.glob("launch/*/run.jsonl")
    return [epoch.seconds for epoch in read_record(record).epochs]


def run_reference(config: RunConfig, folder: Path) -> list[float]:
    """Run reference mode in a process of its own; return the seconds of its epochs."""
    folder.mkdir()
    command = [sys.executable, "-m", "benchmarks.launch", "--arm", config.model_dump_json()]
    done = subprocess.run(command, cwd=PROJECT, check=True, stdout=subprocess.PIPE, text=True)
    seconds: list[float] = json.loads(done.stdout.splitlines()[-1])
    return seconds


def main() -> None:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--size", choices=SIZES, default="1024x768")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--images", type=int, default=25)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--checkout", type=Path, metavar="FOLDER", help="against another checkout")
    parser.add_argument("--arm", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.arm:
        print(json.dumps(reference_mode.train(RunConfig.model_validate_json(options.arm))))
        return
    with tempfile.TemporaryDirectory() as root:
        config = reference_run(
            Path(root) / "indents", *SIZES[options.size], options.batch, compiled=False,
            images=options.images, epochs=options.epochs,
        )  # fmt: skip
        arms: dict[str, Callable[[Path], list[float]]] = {OWN: partial(run_study, PROJECT, config)}
        if options.checkout:
            arms[str(options.checkout)] = partial(run_study, options.checkout.resolve(), config)
        else:
            arms[REFERENCE] = partial(run_reference, config)
        compare(arms, options.rounds, Path(root))


def compare(arms: dict[str, Callable[[Path], list[float]]], rounds: int, root: Path) -> None:
    """Launch all arms in turn; print a line a round, then medians and ratios with their intervals."""
    folders = (root / str(number) for number in count())
    whole: dict[str, list[float]] = {name: [] for name in arms}
    epochs: dict[str, list[float]] = {name: [] for name in arms}
    names = [*arms]
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            begin = time.perf_counter()
            of_epochs = arms[name](next(folders))
            whole[name].append(time.perf_counter() - begin)
            epochs[name].append(float(np.mean(of_epochs)))
        told = (f"{name} {whole[name][-1]:.1f} s, an epoch {epochs[name][-1]:.1f} s" for name in names)
        print(f"round {number + 1}: {'; '.join(told)}", flush=True)
    for what, samples in (("whole run", whole), ("epoch", epochs)):
        own, other = (np.array(samples[name]) for name in names)
        print(f"{what}: {names[0]} {estimate(own, '.1f')} s, {names[1]} {estimate(other, '.1f')} s, ", end="")
        print(f"times as fast {estimate(other / own, '.2f')}")


if __name__ == "__main__":
    main()
