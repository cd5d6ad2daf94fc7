"""Saliency maps in the ways of xaitk, Lightning and Accelerate, and in ours: seconds an image, and ratios.

    .venv/bin/python -m benchmarks.saliency [--images 4] [--masks 200] [--rounds 6]

RISE over the same network and test images, one core to each worker, first with one worker, then with two. The
arms take turns, in another order each round, and each round's maps are compared: where one differs by more
than 1e-6 from those of xaitk for the same network, there is no result. The first round does not count.

    xaitk's stack           RISEStack, image by image: it makes its masks anew for each
    xaitk, masks made once  the same perturber and generator, the masks kept: xaitk's best use
    the same, by itself     that in a Python process as anyone starts it: all others share one that keeps the
                            memory of a forward pass for the next, as the workers of a run do
    the same, our network   that with the network as ours calls it
    Lightning, high level   a Trainer whose predict step runs that for an image; it shares out the images
    Lightning, low level    that on every worker, but Fabric shares out the masks that the network sees
    Accelerate              that for the images that Accelerate gives each worker
    ours                    what a run with [saliency] does, with its files; images shared out, or masks

Ours calls a copy of the network made for inference, all others the network itself. That rounds otherwise: by
how much the maps of both differ is printed as well.

A ratio is that of the seconds of the same round, the way named over the arm: its median, and a 95 %
interval (a bootstrap over the rounds, none over fewer than six).
Needs environment/install.sh --with lightning,accelerate,xaitk.
"""

import argparse
import logging
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from benchmarks.arms import FEWEST_ROUNDS, Estimate
from benchmarks.paired_steps import launched_in, leave_result, twin
from benchmarks.saliency_arms import (
    BY_ITSELF,
    LOOP,
    ON_ONE,
    OURS,
    OVER_OUR_NETWORK,
    STACK,
    Arm,
    Inputs,
    Maps,
    arms_of,
    loop,
    loop_over_our_network,
    plain_network,
    serve_loop,
)
from benchmarks.scenes import SIZES, indents, make_run_folder, reference_config
from unet_scaling.data.image_data import ImageData
from unet_scaling.group.allocator import keep_memory
from unet_scaling.group.group import Group, single_worker
from unet_scaling.group.torchrun import announce_group
from unet_scaling.model import UNet
from unet_scaling.study.config import RunConfig
from unet_scaling.study.errors import run_worker
from unet_scaling.study.saliency import SCORES
from unet_scaling.study.study_file import read_config
from unet_scaling.task.loading import load_task
from unet_scaling.training import build_model

LARGEST_DIFFERENCE = 1e-6
MOST_WORKERS = 2
# Of all images, those of the test set; each worker has to have one to train on as well.
TEST_SHARE = 0.25
# The workers wait while worker 0 makes all maps.
TIMEOUT_SECONDS = 3600
NAME_WIDTH = 30
Seconds = dict[str, list[float]]


def work(folder: Path, rounds: int) -> None:
    """Be a worker of the run in this folder; worker 0 leaves the seconds of each arm in each round."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    config = read_config(folder / "config.json")
    group = twin(config.framework).join_group(config)
    announce_group(group.identity, group.device)
    inputs = inputs_of(config, group, folder)
    arms = {name: make(inputs) for name, make in arms_of(group.size).items()}
    # Wrappers choose a number of their own.
    torch.set_num_threads(1)
    expected = {
        is_ours: gathered(inputs, reference(inputs)() if group.rank == 0 else {})
        for is_ours, reference in ((False, loop), (True, loop_over_our_network))
    }
    # As a run does once its masks and network are there; all arms share this process and gain alike.
    keep_memory()
    random = np.random.default_rng(1)
    seconds: Seconds = {name: [] for name in arms}
    for _ in range(1 + rounds):
        for name in random.permutation(list(arms)):
            maps, taken = timed(group, arms[name])
            require_equal(name, gathered(inputs, maps), expected[name in OVER_OUR_NETWORK])
            seconds[name].append(taken)
    measured = {name: values[1:] for name, values in seconds.items()}
    difference = float(np.abs(expected[True] - expected[False]).max())
    leave_result(folder, group, {"seconds": measured, "difference": difference})


def serve(folder: Path) -> None:
    """Be the process in which xaitk's loop runs by itself."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    serve_loop(inputs_of(read_config(folder / "config.json"), single_worker(), folder))


def inputs_of(config: RunConfig, group: Group, folder: Path) -> Inputs:
    """Return the test images and a network that predicts about half of each as foreground."""
    task = load_task(config)
    data = task.load_data(group)
    assert isinstance(data, ImageData)
    model = build_model(task, group.device, nn.SyncBatchNorm).eval()
    positions = range(config.saliency.images or 0)
    inputs = Inputs(config, group, data, model, positions, folder)
    predict_half(inputs)
    network = plain_network(model)
    empty = [place for place in positions if inputs.clean(place, network).is_empty]
    assert not empty, f"the network predicts nothing on the images {empty}"
    return inputs


@torch.no_grad()
def predict_half(inputs: Inputs) -> None:
    """Shift the bias of a network that has learned nothing, so that there is something to explain."""
    assert isinstance(inputs.model, UNet)
    assert inputs.model.head.bias is not None
    images = torch.cat([inputs.data.test_sample(place).images for place in inputs.positions])
    inputs.model.head.bias -= plain_network(inputs.model).logits(images).median()


def timed(group: Group, arm: Arm) -> tuple[Maps, float]:
    """Return the maps that this worker made, and the seconds until all workers had made theirs."""
    group.wait_for_all()
    began = time.perf_counter()
    maps = arm()
    group.wait_for_all()
    return maps, time.perf_counter() - began


def gathered(inputs: Inputs, maps: Maps) -> NDArray[np.float64]:
    """Return the maps of all workers, [images, scores, height, width], on every worker."""
    data = inputs.config.data
    own = np.zeros((len(inputs.positions), len(SCORES), data.image_height, data.image_width))
    made = np.zeros(len(inputs.positions))
    for place, saliency in maps.items():
        own[place] = saliency
        made[place] = 1
    times = inputs.group.sum_over_workers(torch.from_numpy(made))
    assert bool((times == 1).all()), f"each image has to have one map, and has {times.tolist()}"
    every: NDArray[np.float64] = inputs.group.sum_over_workers(torch.from_numpy(own)).numpy()
    return every


def require_equal(name: str, found: NDArray[np.float64], expected: NDArray[np.float64]) -> None:
    """End the program where maps differ, or are no numbers."""
    difference = float(np.abs(found - expected).max())
    if not difference <= LARGEST_DIFFERENCE:
        sys.exit(f"{name}: a map differs by {difference:g}, at most {LARGEST_DIFFERENCE:g} is allowed")


def config_of(root: Path, workers: int, options: argparse.Namespace) -> RunConfig:
    height, width = SIZES[options.size]
    images = round(options.images / TEST_SHARE)
    config = reference_config(
        indents(root, images, height, width),
        height,
        width,
        1,
        workers=workers,
        data={"test_share": TEST_SHARE},
        model={"width": options.width},
        training={"shared_devices": False, "timeout_seconds": TIMEOUT_SECONDS},
    )
    saliency = {"method": "rise", "masks": options.masks, "images": options.images, "batch": options.batch}
    return RunConfig.model_validate(config.model_dump() | {"saliency": saliency})


def measured(root: Path, workers: int, options: argparse.Namespace) -> tuple[Seconds, float]:
    """Launch a group; return seconds by arm and round, and how far the maps of both networks differ."""
    config = config_of(root, workers, options)
    folder = make_run_folder(root / config.run, config)
    program = ["-m", "benchmarks.saliency", "--rounds", str(options.rounds), "--worker", str(folder)]
    result = launched_in(folder, program, workers, cores_each=1)
    return result["seconds"], result["difference"]


def lines(seconds: Seconds, workers: int, images: int) -> Iterator[str]:
    """Yield the table of one group: each arm against xaitk's better way and one more."""
    named = {name: np.array(values) for name, values in seconds.items()}
    xaitk = min(set(named) & {STACK, LOOP, LOOP + ON_ONE}, key=lambda name: float(np.median(named[name])))
    bases = [xaitk, OURS + ON_ONE if workers > 1 else BY_ITSELF]
    yield f"{workers} worker{'s' * (workers > 1)}, a core each; times as fast as: {'; '.join(bases)}"
    yield f"{'':>{NAME_WIDTH}}  seconds an image"
    for name, values in named.items():
        ratios = (f"{shown(named[base] / values):>18}" for base in bases)
        yield "  ".join([f"{name:>{NAME_WIDTH}}", f"{np.median(values) / images:16.3f}", *ratios])


def shown(ratios: NDArray[np.float64]) -> str:
    """Return the median of the ratios with its interval over the rounds."""
    if np.all(ratios == 1):
        return "1"
    return f"{Estimate.of(ratios):.2f}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=4)
    parser.add_argument("--masks", type=int, default=200, help="of each image")
    parser.add_argument(
        "--rounds", type=int, default=FEWEST_ROUNDS, help=f"fewer than {FEWEST_ROUNDS} give no interval"
    )
    parser.add_argument("--batch", type=int, default=16, help="masks of a forward pass")
    parser.add_argument("--width", type=int, default=8, help="of the U-Net's first level; depth is 5")
    parser.add_argument("--size", choices=SIZES, default="128x96", help="of the images")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.images < MOST_WORKERS:
        parser.error(f"--images {options.images}: Lightning needs one for each of {MOST_WORKERS} workers")
    if options.worker:
        work(options.worker, options.rounds)
        return
    if options.serve:
        serve(options.serve)
        return
    with tempfile.TemporaryDirectory() as root:
        os.environ["UNET_SCALING_CACHE"] = f"{root}/cache"
        for workers in range(1, min(MOST_WORKERS, len(os.sched_getaffinity(0))) + 1):
            seconds, difference = measured(Path(root), workers, options)
            for line in lines(seconds, workers, options.images):
                print(line, flush=True)
            print(f"maps of the network and of its copy for inference differ by at most {difference:.1e}")


if __name__ == "__main__":
    run_worker(main)
