"""Compare the training step of the built-in task with that of another checkout, such as a commit of before.

    git worktree add ../before COMMIT
    .venv/bin/python -m benchmarks.checkouts ../before [--size 128x96] [--batch 4] [--rounds 200]

Each step is taken by a process of each checkout, with that checkout's own code, in turn. Printed are the
medians of both, and the median ratio this / other over the rounds with its 95 % interval: it holds 1 where no
difference shows. Against this checkout itself it says how large noise is. The options of the runs are those
that both checkouts know.
"""

import os
import tempfile
from pathlib import Path

from benchmarks import step
from benchmarks.arms import Arm, Estimate, column, in_turn, options_parser
from benchmarks.scenes import SIZES, indents, reference_config
from unet_scaling.group.allocator import KEEP_MEMORY
from unet_scaling.study.config import PROJECT

WARM_UP_ROUNDS = 10


def main() -> None:
    parser = options_parser(__doc__, size="128x96", rounds=200)
    parser.add_argument("other", type=Path, help="folder of the other checkout")
    parser.add_argument("--batch", type=int, default=4)
    options = parser.parse_args()
    other = options.other.resolve()
    if not (other / "benchmarks" / "step.py").is_file():
        parser.error(f"other: found {options.other}, which is no checkout of this project")
    height, width = SIZES[options.size]
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as root:
        folder = indents(Path(root), 3 * options.batch, height, width)
        config = reference_config(folder, height, width, options.batch)
        arms = [
            Arm(name, step.MODULE, "own", config, KEEP_MEMORY, checkout)
            for name, checkout in (("this", PROJECT), ("other", other))
        ]
        samples = in_turn(arms, options.rounds, WARM_UP_ROUNDS)
    print(f"{options.size}, batch {options.batch}, one thread, {options.rounds} rounds")
    for key in ("seconds", "processor_seconds"):
        this, before = (column(samples[arm.name], key) for arm in arms)
        medians = f"{Estimate.of(1000 * this):.3f} ms, other {Estimate.of(1000 * before):.3f} ms"
        print(f"{key}: this {medians}, this / other {Estimate.of(this / before):.4f}")


if __name__ == "__main__":
    main()
