"""Compare the loading of a batch with reference mode, per core, at 1024x768.

    .venv/bin/python -m benchmarks.loader [--size 1024x768] [--batch 16] [--rounds 10] [--json FILE]

Each arm loads one batch a round on one thread. Reference mode decodes, resizes and collates floats; the
cache gathers bytes, and on a CPU worker a step then makes floats of them, which is an arm of its own. Files
and cache are in the page cache, as from the second epoch on.
"""

import os
import tempfile
from collections.abc import Callable
from itertools import cycle
from pathlib import Path

from benchmarks.arms import (
    REFERENCE,
    Arm,
    Measured,
    in_turn,
    options_parser,
    serve_arm,
    table,
    timed,
    write_json,
)
from benchmarks.reference_mode import ReferenceImages, epoch_batches
from benchmarks.scenes import SIZES, indents, reference_config
from unet_scaling.data.batches import to_floats
from unet_scaling.data.loader import load_data
from unet_scaling.group.allocator import KEEP_MEMORY
from unet_scaling.group.group import single_worker
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
    """Return the loading of one batch in the way of an arm."""
    reference = ReferenceImages(config)
    turns = cycle(list(epoch_batches(config, reference, 0)))
    if kind == REFERENCE:
        return lambda: timed(lambda: reference.batch(next(turns)))
    if "augmented" in kind:
        data = load_data(config, single_worker())
        steps = cycle(range(data.steps_per_epoch))
        return lambda: timed(lambda: list(next(data.steps(0, NO_CLOCK, next(steps)))))
    source = load_data(config, single_worker()).source
    if "floats" in kind:
        return lambda: timed(lambda: to_floats(*source.gather(next(turns)), channels_last=True))
    return lambda: timed(lambda: source.gather(next(turns)))


def options_of(kind: str) -> dict[str, object]:
    if kind.startswith("decoded"):
        return {"loading": "decode"}
    return dict(AUGMENTED) if "augmented" in kind else {}


def arms(root: Path, size: str, batch: int) -> list[Arm]:
    height, width = SIZES[size]
    folder = indents(root, 3 * batch, height, width)
    configs = {kind: reference_config(folder, height, width, batch, data=options_of(kind)) for kind in KINDS}
    return [Arm(kind, MODULE, kind, configs[kind], environment) for kind, environment in KINDS.items()]


def main() -> None:
    parser = options_parser(__doc__, size="1024x768", rounds=10)
    parser.add_argument("--batch", type=int, default=16)
    options = parser.parse_args()
    if options.arm:
        serve_arm(options.arm, work_of)
        return
    with tempfile.TemporaryDirectory() as root:
        os.environ |= {"OMP_NUM_THREADS": "1", "UNET_SCALING_CACHE": f"{root}/cache"}
        samples = in_turn(arms(Path(root), options.size, options.batch), options.rounds, warmups=2)
    print(f"{options.size}, batch {options.batch}, one thread, {options.rounds} rounds")
    print(table(samples, REFERENCE, options.batch, "ms per pair"))
    write_json(options.json, samples, REFERENCE)


if __name__ == "__main__":
    main()
