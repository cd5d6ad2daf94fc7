"""One worker of `unet-scaling segment`: python -m unet_scaling.inference.segment RUN IMAGES OUTPUT

Each image is brought to the size that the run trained at, as it was then, and passes through the network
alone, as in an evaluation: neither batches nor workers change a mask, and the counts of the test images are
those of the record. Workers exchange nothing: number r of n takes the images r, r + n, ... of the sorted
names. A mask is written whole or not at all, with what it was made of in its text, and not made twice.
"""

import argparse
import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

from unet_scaling.data.batches import CropBox, ImageBatch, to_device
from unet_scaling.data.folder import MASKS_FOLDER, FilePair, read_manifest
from unet_scaling.data.images import collate, fit_pair, foreground_of
from unet_scaling.data.pixels import Bytes, Pixels, decode, describe_mode, fitted_box, read_bytes, to_image
from unet_scaling.group.identity import identify
from unet_scaling.group.worker import start_worker
from unet_scaling.inference import masks
from unet_scaling.run.training_state import WEIGHTS_NAME, load_weights, set_float32_precision, weights_sha256
from unet_scaling.study.config import RunConfig
from unet_scaling.study.errors import EXIT_BAD_DATA, UserError, run_worker
from unet_scaling.study.files import READABLE, write_atomically
from unet_scaling.study.study_file import config_path, read_config
from unet_scaling.task.task import UNetTask, count_pixels

_WHITE = 255
Region = tuple[Bytes, list[int]]
# Options of data that change a pixel of an image or a mask.
_OF_PIXELS = ("image_height", "image_width", "channels", "intensity", "foreground")


@dataclass(frozen=True)
class FittedImage:
    """An image and its true mask at the size of the study, what of both is no padding, and its own size.

    `is_scored`: the true mask is known; else it is background.
    """

    path: Path
    pair: tuple[Bytes, Bytes]
    box: CropBox
    height: int
    width: int
    is_scored: bool = True

    def at_own_size(self, region: Bytes) -> Bytes:
        """Return what `Segmenter.regions` made of the image as its mask [height, width]."""
        resized = Image.fromarray(region).resize((self.width, self.height), Image.Resampling.NEAREST)
        return np.asarray(resized)


@dataclass(frozen=True)
class Segmenter:
    """The network of a run on this worker's device; `modes` are those of the images it was trained on."""

    config: RunConfig
    model: nn.Module
    device: torch.device
    weights_sha256: str
    modes: frozenset[str]

    def origin(self, image: bytes, truth: bytes) -> str:
        """Return what a mask is made of, as JSON: the SHA-256 of the weights, the options and the files."""
        options = self.config.data.model_dump_json(include={*_OF_PIXELS}).encode()
        contents = {"data": options, "image": image, "mask": truth}
        digests = {name: hashlib.sha256(each).hexdigest() for name, each in contents.items()}
        return json.dumps({"weights": self.weights_sha256} | digests)

    def fit(self, path: Path, pixels: Pixels, truth: Bytes | None = None) -> FittedImage:
        """Return an image as the network takes it, with its true mask [h, w] of 0 and 1 where there is one.

        Raises UserError (65) where it is of another kind or depth than those that the run was trained on.
        """
        data = self.config.data
        mode = describe_mode(pixels)
        if self.modes and mode not in self.modes:
            trained = ", ".join(sorted(self.modes))
            cure = f"the run was trained on {trained}; convert it, or say --any-depth"
            raise UserError(f"{path}: is {mode}, {cure}", EXIT_BAD_DATA)
        height, width = pixels.shape[:2]
        image = to_image(pixels, data.channels, data.intensity)
        pair = fit_pair(data, image, np.zeros((height, width), np.uint8) if truth is None else truth)
        box = fitted_box(height, width, data.image_height, data.image_width)
        return FittedImage(path, pair, box, height, width, truth is not None)

    @torch.no_grad()
    def regions(self, images: Sequence[FittedImage]) -> list[Region]:
        """Return each image's mask of 0 and 255 at the size of the study, and the counts against its truth.

        All pass through the network at once. The counts are those of an evaluation: true positive, false
        positive, false negative, true negative at the size of the study, without padding; none without truth.
        """
        packed = collate([image.pair for image in images])
        pixels, truths = to_device(*packed, self.device, self.config.training.channels_last)
        logits = self.model(pixels)
        regions = []
        for number, image in enumerate(images):
            one = slice(number, number + 1)
            batch = ImageBatch(pixels[one], truths[one], image.box)
            inside = batch.cropped(logits[one])
            if not bool(torch.isfinite(inside).all()):
                raise UserError(f"{image.path}: what the network predicts is not finite", EXIT_BAD_DATA)
            region = (inside[0, 0] > 0).cpu().numpy().astype(np.uint8) * _WHITE
            counts = count_pixels(inside, batch.cropped(batch.masks)).tolist() if image.is_scored else []
            regions.append((region, counts))
        return regions


def open_segmenter(run: Path, device: torch.device, *, any_depth: bool) -> Segmenter:
    """Return the network of a complete run; UserError where it has none, or is of a task of its own."""
    config, record = masks.trained_network(run)
    set_float32_precision(config.training.precision)
    model = UNetTask(config).build_model(nn.BatchNorm2d)
    load_weights(model, run / WEIGHTS_NAME)
    found = weights_sha256(model)
    if found != record.results[-1].weights_sha256:
        raise UserError(f"{run / WEIGHTS_NAME} holds other weights than the record names", EXIT_BAD_DATA)
    assert record.header is not None
    modes = frozenset[str]() if any_depth else _trained_modes(config, record.header.manifest_sha256)
    return Segmenter(config, model.to(device).eval(), device, found, modes)


def _trained_modes(config: RunConfig, manifest_sha256: str) -> frozenset[str]:
    """Return kind and depth of the images that a run was trained on; UserError where nothing tells them."""
    try:
        manifest = read_manifest(config.data.manifest_path)
    except UserError as error:
        raise UserError(f"{error}, or say --any-depth: what the run was trained on is not known") from None
    if manifest.sha256 != manifest_sha256:
        path = config.data.manifest_path
        raise UserError(f"{path} is not that of the run any more; say --any-depth to go on without it")
    return frozenset(pair.image.mode for pair in manifest.pairs)


def segment(segmenter: Segmenter, folder: Path, pair: FilePair, output: Path) -> bool:
    """Write the mask of an image, unless it is there; return whether it was made."""
    path = masks.image_path(folder, pair)
    content = read_bytes(path)
    truth = read_bytes(folder / MASKS_FOLDER / pair.mask) if pair.mask else b""
    origin = segmenter.origin(content, truth)
    target = masks.mask_path(output, pair)
    if target.exists() and target.stat().st_size:
        _, known = masks.read_mask(target) or (None, {})
        if masks.ORIGIN_KEY not in known:
            raise UserError(f"{target} is there and was not made by segment; name another --output")
        if known[masks.ORIGIN_KEY] == origin:
            return False
    foreground = None
    if pair.mask:
        true_path = folder / MASKS_FOLDER / pair.mask
        foreground = foreground_of(true_path, decode(true_path, truth, mask=True), segmenter.config.data)
    image = segmenter.fit(path, decode(path, content), foreground)
    ((region, counts),) = segmenter.regions([image])
    packed = masks.packed_mask(image.at_own_size(region), origin, counts)
    write_atomically(target, packed, READABLE, durable=False)
    return True


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("run", "images", "output"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--any-depth", action="store_true")
    arguments = parser.parse_args()
    config = read_config(config_path(arguments.run))
    # As many workers as there are, each with the cores that it has here.
    training = config.training.model_copy(update={"cores_per_worker": None})
    workers = identify(os.environ).size
    identity, device = start_worker(config.model_copy(update={"workers": workers, "training": training}))
    arguments.output.mkdir(parents=True, exist_ok=True)
    segmenter = open_segmenter(arguments.run, device, any_depth=arguments.any_depth)
    pairs = masks.files_to_segment(arguments.images)
    for pair in pairs[identity.rank :: identity.size]:
        segment(segmenter, arguments.images, pair, arguments.output)


if __name__ == "__main__":
    run_worker(main)
