"""Compare the evaluation of the test images with reference mode; in both they pass one by one.

    .venv/bin/python -m benchmarks.evaluation [--size 256x192] [--images 100] [--rounds 10] [--json FILE]

A fifth of the images are test images. Both arms count their pixels with the same weights on one thread, and
this program ends with an error where they do not find the same IoU. Reference mode decodes each image; the
project has them in its cache, reads its counts once, and also hashes its weights and averages its batch norm.
"""

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from benchmarks import reference_mode
from benchmarks.arms import (
    OWN,
    REFERENCE,
    Arm,
    Measured,
    column,
    in_turn,
    options_parser,
    serve_arm,
    table,
    timed,
    write_json,
)
from benchmarks.scenes import SIZES, indents, reference_config
from unet_scaling.data.loader import load_data
from unet_scaling.evaluation import evaluate
from unet_scaling.group.allocator import KEEP_MEMORY
from unet_scaling.group.group import single_worker
from unet_scaling.study.config import RunConfig
from unet_scaling.task.loading import load_task
from unet_scaling.training import build_model

MODULE = "benchmarks.evaluation"
TEST_SHARE = 0.2
# The two round differently, and an untrained network leaves some pixels at the threshold.
SAME_IOU = 1e-3


def evaluation_of(kind: str, config: RunConfig) -> Callable[[], float | None]:
    """Return the evaluation of all test images in the way of an arm, which returns their IoU."""
    group = single_worker()
    if kind == OWN:
        task = load_task(config)
        model = build_model(task, group.device, nn.BatchNorm2d)
        data = load_data(config, group)
        return lambda: evaluate(task, model, data, group, []).score
    torch.manual_seed(config.seed)
    plain = reference_mode.PlainUNet(config.data.channels, config.model.width, config.model.depth)
    images = reference_mode.ReferenceImages(config)
    return lambda: reference_mode.evaluate(plain, config, images)


def work_of(kind: str, config: RunConfig) -> Callable[[], Measured]:
    """Return one timed evaluation, with its IoU."""
    evaluation = evaluation_of(kind, config)

    def work() -> Measured:
        ious: list[float] = []
        return timed(lambda: ious.append(evaluation() or 0.0)) | {"iou": ious[0]}

    return work


def verify_same_iou(samples: dict[str, list[Measured]]) -> None:
    """End the program with an error where the arms have different IoU."""
    ious = {kind: column(measured, "iou")[0] for kind, measured in samples.items()}
    if abs(ious[OWN] - ious[REFERENCE]) > SAME_IOU:
        sys.exit(f"error: the arms do not find the same IoU: {ious}")


def main() -> None:
    parser = options_parser(__doc__, size="256x192", rounds=10)
    parser.add_argument("--files", choices=SIZES, default="1024x768", help="size of the pictures on disk")
    parser.add_argument("--images", type=int, default=100)
    options = parser.parse_args()
    if options.arm:
        serve_arm(options.arm, work_of)
        return
    with tempfile.TemporaryDirectory() as root:
        os.environ |= {"OMP_NUM_THREADS": "1", "UNET_SCALING_CACHE": f"{root}/cache"}
        folder = indents(Path(root), options.images, *SIZES[options.files])
        config = reference_config(folder, *SIZES[options.size], 1, data={"test_share": TEST_SHARE})
        environments = {REFERENCE: {}, OWN: KEEP_MEMORY}
        arms = [Arm(kind, MODULE, kind, config, environment) for kind, environment in environments.items()]
        samples = in_turn(arms, options.rounds)
    verify_same_iou(samples)
    tested = round(TEST_SHARE * options.images)
    print(f"{tested} test images, {options.size} from {options.files}, one thread, {options.rounds} rounds")
    print(table(samples, REFERENCE, tested, "ms per image"))
    write_json(options.json, samples, REFERENCE)


if __name__ == "__main__":
    main()
