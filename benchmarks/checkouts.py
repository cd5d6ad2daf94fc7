"""Compare step and input of the built-in task with those of another checkout, such as a commit of before.

    git worktree add ../before COMMIT
    .venv/bin/python -m benchmarks.checkouts ../before [--size 128x96] [--batch 4] [--rounds 200]

Each part, such as a training step, is done by a process of each checkout, with that checkout's own code, in
turn. Printed are the medians of both, and the median ratio this / other over the rounds with its 95 %
interval: it holds 1 where no difference shows. Against this checkout itself it says how large noise is.
The options of the runs are those that both checkouts know.
"""

import argparse
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks import loader, step
from benchmarks.arms import Arm, Estimate, Measured, column, in_turn, parser_of
from benchmarks.scenes import SIZES, indents, reference_config
from unet_scaling.group.allocator import KEEP_MEMORY
from unet_scaling.study.config import PROJECT

THIS = "this"
OTHER = "other"
# Name of a part -> module and kind of its arms, and options of [data].
PARTS: Mapping[str, tuple[str, str, Mapping[str, object]]] = {
    "training step": (step.MODULE, "own", {}),
    "input from the cache": (loader.MODULE, "cache, floats", {}),
    "input from the cache, augmented": (
        loader.MODULE,
        "cache, bytes augmented as floats",
        loader.AUGMENTED,
    ),
}


def arms(root: Path, part: str, other: Path, options: argparse.Namespace) -> list[Arm]:
    """Return a part as each checkout does it; each has a cache of its own."""
    module, kind, data = PARTS[part]
    height, width = SIZES[options.size]
    folder = indents(root, 3 * options.batch, height, width)
    config = reference_config(folder, height, width, options.batch, data=data)
    further: Mapping[str, object] = {"variant": {}} if module == step.MODULE else {}
    return [
        Arm(
            name,
            module,
            kind,
            config,
            KEEP_MEMORY | {"UNET_SCALING_CACHE": f"{root}/cache-{name}"},
            further,
            checkout,
        )
        for name, checkout in ((THIS, PROJECT), (OTHER, other))
    ]


def lines(root: Path, other: Path, options: argparse.Namespace) -> Iterator[str]:
    """Yield the lines of the table, each as soon as it is measured."""
    yield f"{options.size}, batch {options.batch}, one thread, {options.rounds} rounds"
    yield f"{'':>31}  {'ms, this':>9}  {'ms, other':>9}  {'this / other':>24}  by CPU seconds"
    for part in PARTS:
        samples = in_turn(arms(root, part, other, options), options.rounds, warmups=options.warmups)
        this, before = (1000 * Estimate.of(column(samples[name], "seconds")).median for name in (THIS, OTHER))
        by_wall, by_processor = (_ratio(samples, key) for key in ("seconds", "processor_seconds"))
        yield f"{part:>31}  {this:9.3f}  {before:9.3f}  {by_wall:.4f}  {by_processor:.4f}"


def _ratio(samples: Mapping[str, list[Measured]], key: str) -> Estimate:
    return Estimate.of(column(samples[THIS], key) / column(samples[OTHER], key))


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("other", type=Path, help="folder of the other checkout")
    parser.add_argument("--size", choices=SIZES, default="128x96")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--warmups", type=int, default=10, help="rounds before those that count")
    options = parser.parse_args()
    if not (options.other / "benchmarks" / "step.py").is_file():
        parser.error(f"other: found {options.other}, which is no checkout of this project")
    with tempfile.TemporaryDirectory() as root:
        os.environ["OMP_NUM_THREADS"] = "1"
        for line in lines(Path(root), options.other.resolve(), options):
            print(line, flush=True)


if __name__ == "__main__":
    main()
