"""The ways to make the saliency maps of some images that benchmarks/saliency.py compares, on one worker each.

Each way is a function of the worker's inputs: it sets up what a program sets up once, and returns what makes
all maps once more. All but the last hand the maps to xaitk's generators, in memory; ours writes its files.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import torch
from accelerate import Accelerator
from lightning.fabric import Fabric
from lightning.fabric.plugins.environments import TorchElasticEnvironment
from lightning.fabric.strategies import DDPStrategy as FabricStrategy
from lightning.pytorch.strategies import DDPStrategy as TrainerStrategy
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader
from xaitk_saliency.impls.gen_image_classifier_blackbox_sal.occlusion_based import PerturbationOcclusion
from xaitk_saliency.impls.gen_image_classifier_blackbox_sal.rise import RISEStack

from benchmarks.arms import ArmProcess, Measured, serve
from benchmarks.black_boxes import BlackBox, MadeOnce, SharedBlackBox
from benchmarks.wrappers import QUIET
from unet_scaling.data.image_data import ImageData
from unet_scaling.explain.blackbox import CleanImage, clean_image
from unet_scaling.explain.map_files import MapFiles
from unet_scaling.explain.maps import MapMaker, make_maps
from unet_scaling.explain.masks import MaskStore
from unet_scaling.explain.network import ExplainedNetwork, explained_network
from unet_scaling.explain.perturbers import mask_chunks, method_of
from unet_scaling.explain.phase_seconds import PhaseSeconds
from unet_scaling.explain.weighting import Weighting
from unet_scaling.group.allocator import KEEP_MEMORY
from unet_scaling.group.group import Group, single_worker
from unet_scaling.study.config import RunConfig

# By the position of the image: [scores, height, width].
Maps = dict[int, NDArray[Any]]
Arm = Callable[[], Maps]
CPU = torch.device("cpu")
BY_ITSELF_FILE = "by_itself.npy"


@dataclass(frozen=True)
class Inputs:
    """What one worker explains: these test images of `data`, by this network; its files go into `folder`.

    The arms of others call the network as PyTorch has it: contiguous, with its batch norm.
    """

    config: RunConfig
    group: Group
    data: ImageData
    model: nn.Module
    positions: Sequence[int]
    folder: Path

    def clean(self, position: int, network: ExplainedNetwork) -> CleanImage:
        """Return a test image with the network's prediction."""
        return clean_image(network, self.data.test_sample(position), self.config)


def plain_network(model: nn.Module) -> ExplainedNetwork:
    """Return a network that takes images as PyTorch has them by default."""
    return ExplainedNetwork(model, torch.contiguous_format)


def explained(inputs: Inputs, generator: Any, position: int, network: ExplainedNetwork) -> NDArray[Any]:  # noqa: ANN401
    """Return the map that a generator of xaitk makes of a test image."""
    clean = inputs.clean(position, network)
    return generated(generator, BlackBox(clean, inputs.config.saliency.batch))


def generated(generator: Any, black_box: BlackBox) -> NDArray[Any]:  # noqa: ANN401, xaitk has no types
    image = np.ascontiguousarray(black_box.clean.batch.images[0].permute(1, 2, 0).numpy())
    saliency: NDArray[Any] = generator.generate(image, black_box)
    return saliency


def best_generator(inputs: Inputs) -> PerturbationOcclusion:
    """Return xaitk's generator with masks that it makes once."""
    method = method_of(inputs.config.saliency)
    return PerturbationOcclusion(MadeOnce(method.perturber), method.generator)


def stack(inputs: Inputs) -> Arm:
    """Return xaitk's own stack of perturber and generator, image by image."""
    options = inputs.config.saliency
    generator = RISEStack(
        options.masks, options.grid, options.p1, options.seed, threads=0, debiased=options.debiased
    )
    network = plain_network(inputs.model)
    return lambda: {place: explained(inputs, generator, place, network) for place in inputs.positions}


def loop(inputs: Inputs) -> Arm:
    """Return the same loop, with masks made once."""
    return _loop_over(inputs, plain_network(inputs.model))


def loop_by_itself(inputs: Inputs) -> Arm:
    """Return that loop in a Python process as anyone starts it: no launcher has set its allocator."""
    environment = {name: value for name, value in os.environ.items() if name not in KEEP_MEMORY}
    process = ArmProcess(BY_ITSELF, ["benchmarks.saliency", "--serve", str(inputs.folder)], environment)
    process.wait_until_ready()

    def arm() -> Maps:
        process.work()
        return dict(zip(inputs.positions, np.load(inputs.folder / BY_ITSELF_FILE), strict=True))

    return arm


def serve_loop(inputs: Inputs) -> None:
    """Make all maps for every line that comes in, into a file."""
    arm = loop(inputs)

    def work() -> Measured:
        np.save(inputs.folder / BY_ITSELF_FILE, np.stack(list(arm().values())))
        return {}

    serve(work)


def loop_over_our_network(inputs: Inputs) -> Arm:
    """Return that loop over the network as ours has it, so that only the code around it differs."""
    return _loop_over(inputs, explained_network(inputs.model, inputs.config))


def _loop_over(inputs: Inputs, network: ExplainedNetwork) -> Arm:
    def arm() -> Maps:
        generator = best_generator(inputs)
        return {place: explained(inputs, generator, place, network) for place in inputs.positions}

    return arm


class Explainer(lightning.LightningModule):  # type: ignore[misc]
    """Explains an image in a predict step."""

    def __init__(self, inputs: Inputs) -> None:
        super().__init__()
        self.model = inputs.model
        self.inputs = inputs
        self.generator = best_generator(inputs)

    def predict_step(self, positions: Tensor) -> Maps:
        network = plain_network(self.model)
        return {place: explained(self.inputs, self.generator, place, network) for place in positions.tolist()}


def high_level(inputs: Inputs) -> Arm:
    """Return a Trainer whose predict step explains an image; it shares out the images."""
    devices = [CPU] * inputs.group.size
    strategy = TrainerStrategy(parallel_devices=devices, cluster_environment=TorchElasticEnvironment())
    trainer = lightning.Trainer(strategy=strategy, default_root_dir=inputs.folder, **QUIET)

    def arm() -> Maps:
        places: Any = list(inputs.positions)
        found = trainer.predict(Explainer(inputs), DataLoader(places))
        return {place: saliency for maps in found for place, saliency in maps.items()}

    return arm


def low_level(inputs: Inputs) -> Arm:
    """Return xaitk's generator on every worker, whose black box Fabric shares out: its batches of masks."""
    devices = [CPU] * inputs.group.size
    strategy = FabricStrategy(None, devices, TorchElasticEnvironment(), broadcast_buffers=False)
    fabric = Fabric(strategy=strategy)
    fabric.launch()
    network = plain_network(fabric.setup_module(inputs.model))

    def arm() -> Maps:
        generator = best_generator(inputs)
        maps = {}
        for place in inputs.positions:
            box = SharedBlackBox(inputs.clean(place, network), inputs.config.saliency.batch, fabric)
            maps[place] = generated(generator, box)
        # All have all of them; they count as one worker's.
        return maps if inputs.group.rank == 0 else {}

    return arm


def accelerate(inputs: Inputs) -> Arm:
    """Return the loop over the images that Accelerate gives each worker."""
    accelerator = Accelerator(cpu=True)
    network = plain_network(accelerator.prepare_model(inputs.model, evaluation_mode=True))

    def arm() -> Maps:
        generator = best_generator(inputs)
        with accelerator.split_between_processes(list(inputs.positions)) as own:
            return {place: explained(inputs, generator, place, network) for place in own}

    return arm


def ours(inputs: Inputs, split: str) -> Arm:
    """Return what a run with [saliency] does, masks and files included."""
    files = MapFiles(inputs.folder)
    network = explained_network(inputs.model, inputs.config)

    def arm() -> Maps:
        clock = PhaseSeconds(CPU)
        method = method_of(inputs.config.saliency)
        data = inputs.config.data
        masks = MaskStore(mask_chunks(method.perturber, data.image_height, data.image_width))
        maker = MapMaker(inputs.config, network, inputs.data, masks, Weighting(method.generator), files)
        make_maps(maker, inputs.positions, split, clock, lambda _done: None)
        return {place: files.read_map(place) for place in maker.own(inputs.positions)}

    files.prepare({})
    return arm


def ours_alone(inputs: Inputs) -> Arm:
    """Return what a run of one worker does, within a larger group."""
    group = single_worker()
    return ours(replace(inputs, group=group, data=replace(inputs.data, group=group)), "images")


def on_one_worker(make: Callable[[Inputs], Arm]) -> Callable[[Inputs], Arm]:
    """Return the arm in which worker 0 makes all maps, and the others none."""

    def made(inputs: Inputs) -> Arm:
        return make(inputs) if inputs.group.rank == 0 else dict

    return made


STACK = "xaitk's stack"
LOOP = "xaitk, masks made once"
BY_ITSELF = "the same, by itself"
LOOP_OVER_OURS = "the same, our network"
HIGH_LEVEL = "Lightning, high level"
LOW_LEVEL = "Lightning, low level"
ACCELERATE = "Accelerate"
OURS = "ours"
OURS_BY_MASKS = "ours, masks shared out"
ON_ONE = ", on one"
OVER_OUR_NETWORK = {LOOP_OVER_OURS, OURS, OURS_BY_MASKS, OURS + ON_ONE}


def arms_of(workers: int) -> dict[str, Callable[[Inputs], Arm]]:
    """Return the arms of a group of so many workers by their names, those of xaitk alone first."""
    shared = {HIGH_LEVEL: high_level, LOW_LEVEL: low_level, ACCELERATE: accelerate}
    by_images = {OURS: partial(ours, split="images")}
    if workers == 1:
        return {
            STACK: stack,
            LOOP: loop,
            BY_ITSELF: loop_by_itself,
            LOOP_OVER_OURS: loop_over_our_network,
            **shared,
            **by_images,
        }
    alone = {LOOP + ON_ONE: on_one_worker(loop), OURS + ON_ONE: on_one_worker(ours_alone)}
    return {**alone, **shared, **by_images, OURS_BY_MASKS: partial(ours, split="masks")}
