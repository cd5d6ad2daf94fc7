"""Maps as xaitk-saliency makes them by itself, in one process, of the same network: what ours must equal."""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from smqtk_classifier import ClassifyImage
from torch import nn
from xaitk_saliency.impls.gen_image_classifier_blackbox_sal.occlusion_based import PerturbationOcclusion
from xaitk_saliency.impls.gen_image_classifier_blackbox_sal.rise import RISEStack
from xaitk_saliency.impls.gen_image_classifier_blackbox_sal.slidingwindow import SlidingWindowStack

from tests.studies import make_point
from tests.trained import TrainedRuns
from unet_scaling.data.batches import ImageData
from unet_scaling.format.saliency import SCORES
from unet_scaling.group.group import single_worker
from unet_scaling.model import UNet
from unet_scaling.saliency.maps import CleanImage, ExplainedNetwork, MapFiles, MapMaker, clean_image
from unet_scaling.saliency.masks import MaskStore, mask_chunks, method_of
from unet_scaling.study.config import RunConfig
from unet_scaling.study.options import SaliencyOptions
from unet_scaling.training import build_model, load_task

# Enough that the network predicts something on every test image.
TRAINED_EPOCHS = 4


def plain_runs(images: Path, session_folder: Path) -> list[RunConfig]:
    """Return the run whose network is explained."""
    return [make_point(images, epochs=TRAINED_EPOCHS)]


@pytest.fixture(scope="module")
def weights(images: Path, trained_run: TrainedRuns) -> Path:
    return trained_run(make_point(images, epochs=TRAINED_EPOCHS)).folder / "weights.pt"


class ScoredNetwork(ClassifyImage):  # type: ignore[misc]
    """A network as xaitk takes it: the scores of images against the clean one are its two classes."""

    def __init__(self, clean: CleanImage, batch: int) -> None:
        self._clean = clean
        self._batch = batch

    def get_labels(self) -> Sequence[Hashable]:
        return SCORES

    def classify_images(self, images: Iterable[NDArray[np.float32]]) -> Iterator[dict[Hashable, float]]:
        rest = iter(images)
        while some := list(islice(rest, self._batch)):
            stacked = torch.from_numpy(np.stack(some)).permute(0, 3, 1, 2)
            for scores in self._clean.scores_of(stacked):
                yield dict(zip(SCORES, scores.tolist(), strict=True))

    def get_config(self) -> dict[str, Any]:
        return {}


def xaitk_stack(options: SaliencyOptions) -> Any:
    """xaitk's own stack of these options; where it has none, its perturber and generator in one."""
    if options.method == "rise":
        return RISEStack(
            options.masks, options.grid, options.p1, options.seed, threads=0, debiased=options.debiased
        )
    if options.method == "sliding_window":
        return SlidingWindowStack((options.window, options.window), (options.stride, options.stride))
    return PerturbationOcclusion.from_config(method_of(options).configuration())


def xaitk_map(clean: CleanImage, options: SaliencyOptions) -> NDArray[np.float64]:
    """The map [scores, height, width] that xaitk makes of an image, all by itself."""
    image = np.ascontiguousarray(clean.batch.images[0].permute(1, 2, 0).numpy())
    stack = xaitk_stack(options)
    if options.fill == "mean":
        top, left, height, width = clean.box
        pixels = image[top : top + height, left : left + width]
        stack.fill = pixels.mean(axis=(0, 1), dtype=np.float64).tolist()
    saliency: NDArray[np.float64] = stack.generate(image, ScoredNetwork(clean, options.batch))
    return saliency


def initial_network(config: RunConfig) -> UNet:
    """The network of a configuration with its initial weights, in evaluation mode."""
    model = build_model(load_task(config), torch.device("cpu"), nn.SyncBatchNorm)
    assert isinstance(model, UNet)
    return model.eval()


def map_maker(config: RunConfig, folder: Path, model: UNet | None = None) -> MapMaker:
    """What makes the maps of a configuration, or of this network, on one worker without a framework."""
    data = load_task(config).load_data(single_worker())
    assert isinstance(data, ImageData)
    method = method_of(config.saliency)
    masks = MaskStore(mask_chunks(method.perturber, config.data.image_height, config.data.image_width))
    network = ExplainedNetwork(model or initial_network(config), config)
    return MapMaker(config, network, data, masks, method, MapFiles(folder))


def clean_images(config: RunConfig, folder: Path) -> list[CleanImage]:
    """The test images of a configuration, each with the prediction of its initial weights."""
    maker = map_maker(config, folder)
    count = config.saliency.images or maker.data.test_images
    return [clean_image(maker.network, maker.data.test_sample(place), config) for place in range(count)]


def explained_point(
    data: Path, weights: Path | None, framework: str = "pytorch_native", **options: Any
) -> RunConfig:
    """A run that trains nothing and explains these weights; options as `make_point` has them."""
    workers = options.pop("workers", 1)
    chosen = {
        "epochs": 0,
        "initial_weights": weights and str(weights),
        "curve_steps": 0,
        "untrained_check": 0,
    }
    small = {"masks": 64, "grid": 4, "window": 9, "stride": 4, "images": 8}
    return make_point(data, framework, workers, **(chosen | small | options))
