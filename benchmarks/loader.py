"""How much faster a batch is there than in reference mode, per core, at 1024x768.

    .venv/bin/python -m benchmarks.loader [--size 1024x768] [--batch 16] [--rounds 10] [--json FILE]

Each arm loads one batch a round on one thread. Reference mode decodes, resizes and collates floats; the
cache gathers bytes, and on a CPU worker a step then makes floats of them, which is an arm of its own. Files
and cache are in the page cache, as from the second epoch on.
"""

import json
import os
import tempfile
from collections.abc import Callable
from itertools import cycle
from pathlib import Path

from benchmarks.arms import REFERENCE, Arm, Measured, in_turn, options_parser, serve, table, timed, write_json
from benchmarks.reference_mode import ReferenceImages, epoch_batches
from benchmarks.scenes import SIZES, alone, indents, reference_point
from unet_scaling.data.batches import to_floats
from unet_scaling.data.loader import load_data
from unet_scaling.group.allocator import KEEP_MEMORY
from unet_scaling.measure.phases import NO_CLOCK
from unet_scaling.study.config import RunConfig

MODULE = "benchmarks.loader"
KINDS = {
    REFERENCE: {},
    "decoded per step, as bytes": KEEP_MEMORY,
    "cache, bytes": KEEP_MEMORY,
    "cache, floats": KEEP_MEMORY,
    "cache, bytes augmented as floats": KEEP_MEMORY,
}
AUGMENTED = {
    "augment_flips": True,
    "augment_crop": 0.875,
    "augment_brightness": 0.1,
    "augment_contrast": 0.1,
}


def work_of(kind: str, config: RunConfig) -> Callable[[], Measured]:
    """Loading one batch in the way of an arm."""
    reference = ReferenceImages(config)
    turns = cycle(list(epoch_batches(config, reference, 0)))
    if kind == REFERENCE:
        return lambda: timed(lambda: reference.batch(next(turns)))
    if "augmented" in kind:
        data = load_data(config, alone())
        steps = cycle(range(data.steps_per_epoch))
        return lambda: timed(lambda: next(data.steps(0, NO_CLOCK, next(steps))))
    source = load_data(config, alone()).source
    if "floats" in kind:
        return lambda: timed(lambda: to_floats(*source.gather(next(turns)), channels_last=True))
    return lambda: timed(lambda: source.gather(next(turns)))


def options_of(kind: str) -> dict[str, object]:
    if kind.startswith("decoded"):
        return {"loading": "decode"}
    return dict(AUGMENTED) if "augmented" in kind else {}


def main() -> None:
    parser = options_parser(__doc__, size="1024x768", rounds=10)
    parser.add_argument("--batch", type=int, default=16)
    options = parser.parse_args()
    if options.arm:
        told = json.loads(options.arm)
        return serve(work_of(told["kind"], RunConfig.model_validate(told["config"])))
    height, width = SIZES[options.size]
    with tempfile.TemporaryDirectory() as root:
        os.environ |= {"OMP_NUM_THREADS": "1", "UNET_SCALING_CACHE": f"{root}/cache"}
        folder = indents(Path(root), 3 * options.batch, height, width)
        arms = []
        for kind, environment in KINDS.items():
            config = reference_point(folder, height, width, options.batch, **options_of(kind))
            arms.append(Arm(kind, MODULE, {"kind": kind, "config": config.model_dump()}, environment))
        found = in_turn(arms, options.rounds, warmups=2)
    print(f"{options.size}, batch {options.batch}, one thread, {options.rounds} rounds")
    print(table(found, REFERENCE, options.batch, "ms per pair"))
    write_json(options.json, found, REFERENCE)
    return None


if __name__ == "__main__":
    main()
