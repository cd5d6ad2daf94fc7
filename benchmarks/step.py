"""Compare a training step with reference mode's, or with that of another checkout, such as an older commit.

    .venv/bin/python -m benchmarks.step [--size 256x192] [--batch 8] [--rounds 10]
    .venv/bin/python -m benchmarks.step --agree [--steps 20]
    git worktree add ../before COMMIT
    .venv/bin/python -m benchmarks.step --checkout ../before --size 128x96 --batch 4 --rounds 200

A step begins with a collated batch and ends with the weights updated: reference mode gets floats in memory,
the project's own step the bytes of its cache. All arms start from the same weights and see the same batches.
`--agree` prints how far the losses of both are from each other after some steps, and how far each is from
the same training in float64. With `--checkout` each step is taken with that checkout's own code: the ratio
this / other holds 1 where no difference shows, and against this checkout itself it says how large noise is.

Each arm is a process of its own that works when asked to, as what is compared may be its environment: an
allocator reads its settings before Python starts. The unit is the round: every arm once, in an order that
turns, so that a drift of the machine meets all of them alike, and ratios are taken within rounds.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import numpy as np
import torch
from scipy import stats  # type: ignore[import-untyped]
from torch import Tensor, nn

from analysis.study import Array
from benchmarks.reference_mode import ReferenceImages, ReferenceTraining, epoch_batches
from unet_scaling.data.batches import ImageBatch, to_device
from unet_scaling.data.checking import check_folder
from unet_scaling.data.folder import write_manifest
from unet_scaling.data.synthetic import make
from unet_scaling.group.group import single_worker
from unet_scaling.group.identity import KEEP_MEMORY
from unet_scaling.measure.counters import peak_memory_bytes
from unet_scaling.measure.epoch_meter import NO_CLOCK
from unet_scaling.study.config import PROJECT, RunConfig
from unet_scaling.training import Step, build_model, build_optimizer, load_task

SIZES = {"64x48": (48, 64), "128x96": (96, 128), "256x192": (192, 256), "1024x768": (768, 1024)}
SEED = 11
REFERENCE = "reference mode"
WARM_UP_ROUNDS = 2
# A round must not meet the same batch again at once; more would only take memory.
DIFFERENT_BATCHES = 2
# No interval from fewer: even all of five values, from the least to the largest, miss the median of what they
# are drawn from once in 16 times (2 / 2**5), and an interval of 95 % may miss it once in 20.
FEWEST_ROUNDS = 6
AGREEING = (
    ("own in float64", "reference in float64"),
    ("own", "reference"),
    ("own", "reference in float64"),
    ("reference", "reference in float64"),
)
Measured = dict[str, float]


class OwnTraining:
    """The project's own step, in a process alone: nothing to average, nothing to wait for."""

    def __init__(self, config: RunConfig, dtype: torch.dtype = torch.float32) -> None:
        group = single_worker()
        task = load_task(config)
        self.model = build_model(task, group.device, nn.BatchNorm2d).to(dtype).train()
        optimizer = build_optimizer(task, self.model)
        self._step = Step(task, self.model, optimizer)
        self._point = config
        self._device = group.device
        self._dtype = dtype

    def step(self, images: Tensor, masks: Tensor) -> Tensor:
        """Take one step on uint8 images and masks as the cache holds them."""
        floats = to_device(images, masks, self._device, self._point.training.channels_last)
        pictures, targets = (each.to(self._dtype) for each in floats)
        return self._step.take([ImageBatch(pictures, targets)], NO_CLOCK)


def as_cached(images: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:
    """Return float32 images and masks [b, 1, H, W] as the bytes and bits that they are in the cache."""
    bits = np.packbits(masks[:, 0].numpy().astype(np.uint8), axis=-1)
    return (images * 255).round().to(torch.uint8), torch.from_numpy(bits)


@dataclass(frozen=True)
class Arm:
    """One of the things compared: the kind of work, its run configuration and environment, and whose code."""

    name: str
    kind: str
    config: RunConfig
    environment: Mapping[str, str]
    checkout: Path = PROJECT

    def start(self) -> "subprocess.Popen[str]":
        # An older checkout knows fewer options.
        config = self.config.model_dump(exclude_defaults=True)
        asked = json.dumps({"kind": self.kind, "config": config})
        return subprocess.Popen(
            [sys.executable, "-m", "benchmarks.step", "--arm", asked], cwd=self.checkout, text=True,
            env=os.environ | dict(self.environment), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip


def serve_arm(kind: str, config: RunConfig) -> None:
    """Say that this process of an arm is ready, then take a step on the next batch for every line."""
    training = OwnTraining(config) if kind == "own" else ReferenceTraining(config)
    images = ReferenceImages(config)
    chosen = zip(epoch_batches(config, images, 0), range(DIFFERENT_BATCHES), strict=False)
    floats = [images.batch(indices) for indices, _ in chosen]
    turns = cycle([as_cached(*batch) for batch in floats] if kind == "own" else floats)
    print(json.dumps({}), flush=True)
    for _ in sys.stdin:
        batch = next(turns)
        begun, processor = time.perf_counter(), time.process_time()
        training.step(*batch)
        measured = {
            "seconds": time.perf_counter() - begun,
            "processor_seconds": time.process_time() - processor,
        }
        measured["peak_memory_bytes"] = float(peak_memory_bytes())
        print(json.dumps(measured), flush=True)


def in_turn(arms: Sequence[Arm], rounds: int) -> dict[str, dict[str, Array]]:
    """Return what every arm measured in every round, without rounds that only warm up."""
    processes = {arm.name: arm.start() for arm in arms}
    samples: dict[str, list[Measured]] = {name: [] for name in processes}
    try:
        for name, process in processes.items():
            _answer(name, process)
        names = [*processes]
        for number in range(-WARM_UP_ROUNDS, rounds):
            first = number % len(names)
            for name in names[first:] + names[:first]:
                channel = processes[name].stdin
                assert channel is not None
                channel.write("\n")
                channel.flush()
                measured = _answer(name, processes[name])
                if number >= 0:
                    samples[name].append(measured)
    finally:
        for process in processes.values():
            process.terminate()
            process.communicate()
    return {name: {key: np.array([one[key] for one in of]) for key in of[0]} for name, of in samples.items()}


def _answer(name: str, process: "subprocess.Popen[str]") -> Measured:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        sys.exit(f"{name} ended with code {process.wait()}")
    measured: Measured = json.loads(line)
    return measured


def estimate(values: Array, form: str) -> str:
    """Return the median with its 95 % interval, a percentile bootstrap over the rounds."""
    median = format(np.median(values), form)
    if len(values) < FEWEST_ROUNDS:
        return f"{median} [no interval]"
    low, high = stats.bootstrap((values,), np.median, method="percentile", rng=1).confidence_interval
    return f"{median} [{low:{form}}, {high:{form}}]"


def against_reference(config: RunConfig, rounds: int) -> Iterator[str]:
    """Yield a line per arm: ms per image, how many times as fast, also by processor seconds, and memory."""
    of_own: dict[str, dict[str, object]] = {
        "eager": {}, "compiled": {"compile": True}, "bf16": {"precision": "bf16"},
    }  # fmt: skip
    arms = [Arm(REFERENCE, "reference", config, {})]
    for name, option in of_own.items():
        training = config.training.model_copy(update=option)
        changed = config.model_copy(update={"training": training})
        arms.append(Arm(f"this project, {name}", "own", changed, KEEP_MEMORY))
    samples = in_turn(arms, rounds)
    yield f"{'':>34}  {'ms per image':>26}  {'times as fast':>20}  {'by processor seconds':>20}  peak memory"
    base = samples[REFERENCE]
    for name, of in samples.items():
        times = estimate(1000 * of["seconds"] / config.training.batch_per_worker, ".2f")
        faster = "  ".join(estimate(base[key] / of[key], ".2f") for key in ("seconds", "processor_seconds"))
        yield f"{name:>34}  {times}  {faster}  {max(of['peak_memory_bytes']) / 1e9:8.2f} GB"


def against_checkout(config: RunConfig, rounds: int, other: Path) -> Iterator[str]:
    """Yield seconds and processor seconds: the medians of both, and the median ratio over the rounds."""
    checkouts = {"this": PROJECT, "other": other}
    samples = in_turn(
        [Arm(name, "own", config, KEEP_MEMORY, each) for name, each in checkouts.items()], rounds
    )
    for key in ("seconds", "processor_seconds"):
        this, before = (samples[name][key] for name in checkouts)
        medians = f"this {estimate(1000 * this, '.3f')} ms, other {estimate(1000 * before, '.3f')} ms"
        yield f"{key}: {medians}, this / other {estimate(this / before, '.4f')}"


def agreement(config: RunConfig, steps: int) -> Iterator[str]:
    """Yield the largest relative difference of the losses over the steps, of each two trainings."""
    images = ReferenceImages(config)
    references = {"reference": ReferenceTraining(config), "reference in float64": ReferenceTraining(config)}
    references["reference in float64"].model.double()
    own = {"own": OwnTraining(config), "own in float64": OwnTraining(config, torch.float64)}
    losses: dict[str, list[float]] = {name: [] for name in (*references, *own)}
    turns = cycle(epoch_batches(config, images, 0))
    for _ in range(steps):
        pictures, masks = images.batch(next(turns))
        for name, training in references.items():
            dtype = next(training.model.parameters()).dtype
            losses[name].append(training.step(pictures.to(dtype), masks.to(dtype)))
        for name, ours in own.items():
            losses[name].append(ours.step(*as_cached(pictures, masks)).item())
    for pair in AGREEING:
        one, other = (np.array(losses[name]) for name in pair)
        difference = (abs(one - other) / other).max()
        yield f"{' against '.join(pair):>44}: {difference:.1e} relative, over {steps} steps"


def reference_run(
    folder: Path, height: int, width: int, batch: int, *, compiled: bool, images: int = 0, epochs: int = 1
) -> RunConfig:
    """Return a run of the reference network on a new folder of synthetic indents, by default of 3 batches."""
    make(folder, images or 3 * batch, height, width, SEED)
    write_manifest(check_folder(folder, "nonzero"), folder / "manifest.json")
    training = {"epochs": epochs, "batch_per_worker": batch, "shared_devices": True, "compile": compiled}
    shape = {"image_height": height, "image_width": width, "foreground": "nonzero"}
    return RunConfig.model_validate(
        {
            "study": "benchmark", "run": "pytorch_native-w1", "framework": "pytorch_native",
            "workers": 1, "repeat": 1, "seed": 3, "model": {"width": 8, "depth": 5},
            "data": {"folder": str(folder), **shape}, "training": training,
        }
    )  # fmt: skip


def main() -> None:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--size", choices=SIZES, default="256x192")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1, help="of each arm")
    parser.add_argument("--checkout", type=Path, metavar="FOLDER", help="against another checkout")
    parser.add_argument("--agree", action="store_true")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--compile", action="store_true", help="with --agree: the compiled model")
    parser.add_argument("--arm", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.arm:
        asked = json.loads(options.arm)
        serve_arm(asked["kind"], RunConfig.model_validate(asked["config"]))
        return
    other = options.checkout and options.checkout.resolve()
    if other and not (other / "benchmarks" / "step.py").is_file():
        parser.error(f"--checkout: found {options.checkout}, which is no checkout of this project")
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    with tempfile.TemporaryDirectory() as root:
        size = SIZES[options.size]
        config = reference_run(Path(root) / "indents", *size, options.batch, compiled=options.compile)
        if options.agree:
            lines = agreement(config, options.steps)
        else:
            print(
                f"{options.size}, batch {options.batch}, {options.threads} threads, {options.rounds} rounds"
            )
            compared = against_checkout(config, options.rounds, other) if other else None
            lines = compared or against_reference(config, options.rounds)
        print(*lines, sep="\n")


if __name__ == "__main__":
    main()
