"""What this machine can do at most, and how much of it a training step of the project reaches.

    .venv/bin/python -m benchmarks.ceiling [--size 256x192] [--batch 4] [--threads 1] [--rounds 5]

The ceiling is measured by a large matrix product, a large convolution and a large copy, in fp32, round by
round with the step. The step's operations are those of its convolutions, a multiply and an add counted as
two, forward once and backward twice. What a step takes beyond its operations at the rate of the convolution
is what moves memory.
"""

import argparse
import json
import tempfile
from collections.abc import Callable
from itertools import cycle
from pathlib import Path

import torch
from torch import nn

from benchmarks.arms import Estimate, Measured, column, timed
from benchmarks.convolutions import convolutions_met
from benchmarks.scenes import SIZES, indents, reference_point
from benchmarks.step import OwnTraining, batches_of
from unet_scaling.study.config import RunConfig

SIDE = 2048
COPIED = 2**26  # numbers of float32
BACKWARD_PER_FORWARD = 2


def forward_operations(config: RunConfig, batch: int) -> float:
    """Floating-point operations of all convolutions of one forward pass."""
    found = 0.0
    for layer, inputs, outputs in convolutions_met(config, 1):
        # Each weight meets every pixel of the output, in a transposed convolution of the input.
        pixels = (outputs if isinstance(layer, nn.Conv2d) else inputs)[2:].numel()
        found += 2.0 * layer.weight.numel() * pixels * batch
    return found


def works(config: RunConfig, batch: int) -> dict[str, tuple[Callable[[], object], float]]:
    """What is timed, and how many operations, or for the copy bytes, each does."""
    matrix = torch.rand(SIDE, SIDE)
    pixels = torch.rand(4, 64, 192, 256).contiguous(memory_format=torch.channels_last)
    convolution = nn.Conv2d(64, 64, 3, padding=1).requires_grad_(False)
    source, target = torch.rand(COPIED), torch.empty(COPIED)
    training = OwnTraining(config)
    turns = cycle(batches_of(config, as_bytes=True))
    operations = (1 + BACKWARD_PER_FORWARD) * forward_operations(config, batch)
    return {
        "matrix product": (lambda: matrix @ matrix, 2.0 * SIDE**3),
        "convolution": (lambda: convolution(pixels), 2.0 * 64 * 64 * 9 * 4 * 192 * 256),
        "copy": (lambda: target.copy_(source), 2.0 * 4 * COPIED),
        "training step": (lambda: training.step(*next(turns)), operations),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=SIZES, default="256x192")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    height, width = SIZES[options.size]
    found: dict[str, list[Measured]] = {}
    with tempfile.TemporaryDirectory() as root:
        folder = indents(Path(root), 3 * options.batch, height, width)
        measured = works(reference_point(folder, height, width, options.batch), options.batch)
    for number in range(-2, options.rounds):
        for name, (work, _) in measured.items():
            one = timed(work)
            if number >= 0:
                found.setdefault(name, []).append(one)
    amounts = {name: amount for name, (_, amount) in measured.items()}
    show(found, amounts)
    if options.json:
        options.json.write_text(json.dumps({"amounts": amounts, "samples": found}, indent=1) + "\n")


def show(found: dict[str, list[Measured]], amounts: dict[str, float]) -> None:
    """Rates by processor seconds, which other programs on the same cores move least, and the fractions."""
    used = {name: column(measured, "processor_seconds") for name, measured in found.items()}
    for name, seconds in used.items():
        unit = "GB/s" if name == "copy" else "GFLOP/s"
        print(f"{name:>16}: {Estimate.of(amounts[name] / seconds / 1e9):.1f} {unit} per core in use")
    rates = {name: amounts[name] / used[name] for name in ("matrix product", "convolution", "training step")}
    for ceiling in ("matrix product", "convolution"):
        fraction = Estimate.of(rates["training step"] / rates[ceiling])
        print(f"the step reaches {fraction:.2f} of the {ceiling}")


if __name__ == "__main__":
    main()
