"""Highest rates of this machine, and the share of them that a training step of the project reaches.

    .venv/bin/python -m benchmarks.ceiling [--size 256x192] [--batch 4] [--threads 1] [--rounds 6]

The ceiling is measured by a large matrix product, a large convolution and a large copy, in fp32, round by
round with the step. The step's operations are those of its convolutions, a multiply and an add counted as
two, forward once and backward twice. What a step takes beyond its operations at the rate of the convolution
is what moves memory.
"""

import json
import tempfile
from collections.abc import Callable
from functools import partial
from itertools import cycle
from pathlib import Path

import torch
from torch import nn

from benchmarks.arms import FEWEST_ROUNDS, Estimate, Measured, column, in_rounds, parser_of, timed
from benchmarks.convolutions import convolutions_of
from benchmarks.scenes import SIZES, indents, reference_config
from benchmarks.step import OwnTraining, batches_of
from unet_scaling.study.config import RunConfig

# Rows of the matrices: large enough to fill the caches and keep every unit busy.
SIDE = 2048
# Numbers of float32, 256 MiB: more than the caches hold.
COPIED = 2**26
# Gradients of the inputs and of the weights.
BACKWARD_PER_FORWARD = 2


def forward_operations(config: RunConfig, batch: int) -> float:
    """Return the floating-point operations of all convolutions of one forward pass."""
    operations = 0.0
    for layer, inputs, outputs in convolutions_of(config, 1):
        # Each weight meets every pixel of the output, in a transposed convolution of the input.
        pixels = (outputs if isinstance(layer, nn.Conv2d) else inputs)[2:].numel()
        operations += 2.0 * layer.weight.numel() * pixels * batch
    return operations


def works(config: RunConfig, batch: int) -> dict[str, tuple[Callable[[], object], float]]:
    """Return the work that is timed, and how many operations, or for the copy bytes, it does."""
    matrix = torch.rand(SIDE, SIDE)
    pixels = torch.rand(4, 64, 192, 256).contiguous(memory_format=torch.channels_last)
    convolution = nn.Conv2d(64, 64, 3, padding=1).requires_grad_(False)
    source = torch.rand(COPIED)
    target = torch.empty(COPIED)
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
    parser = parser_of(__doc__)
    parser.add_argument("--size", choices=SIZES, default="256x192")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=FEWEST_ROUNDS)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    height, width = SIZES[options.size]
    with tempfile.TemporaryDirectory() as root:
        folder = indents(Path(root), 3 * options.batch, height, width)
        timed_works = works(reference_config(folder, height, width, options.batch), options.batch)
    works_by_name = {name: partial(timed, work) for name, (work, _) in timed_works.items()}
    samples = in_rounds(works_by_name, options.rounds, warmups=2)
    amounts = {name: amount for name, (_, amount) in timed_works.items()}
    show(samples, amounts)
    if options.json:
        options.json.write_text(json.dumps({"amounts": amounts, "samples": samples}, indent=1) + "\n")


def show(samples: dict[str, list[Measured]], amounts: dict[str, float]) -> None:
    """Print rates by processor seconds, which other programs move least, and the fractions."""
    used = {name: column(measured, "processor_seconds") for name, measured in samples.items()}
    for name, seconds in used.items():
        unit = "GB/s" if name == "copy" else "GFLOP/s"
        print(f"{name:>16}: {Estimate.of(amounts[name] / seconds / 1e9):.1f} {unit} per core in use")
    rates = {name: amounts[name] / used[name] for name in ("matrix product", "convolution", "training step")}
    for ceiling in ("matrix product", "convolution"):
        fraction = Estimate.of(rates["training step"] / rates[ceiling])
        print(f"the step reaches {fraction:.2f} of the {ceiling}")


if __name__ == "__main__":
    main()
