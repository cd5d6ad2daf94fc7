"""One worker of `unet-scaling segment`: python -m unet_scaling.inference.segment RUN IMAGES OUTPUT

Each image passes through the network alone, as in an evaluation: neither batches nor workers change a mask.
Training brought every image to one size, each by a scale of its own. An image whose scale would lie among
these is brought to that size, too, so the counts of the test images are those of the record. A larger or
smaller one is taken at the median scale, at which the network knows objects. Workers exchange nothing:
number r of n takes the images r, r + n, ... of the sorted names. A mask is written whole or not at all, with
what it was made of in its text, and not made twice. An image that is refused is named, and has no mask.
"""

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

from unet_scaling.base.errors import EXIT_BAD_DATA, UserError, run_worker
from unet_scaling.base.files import READABLE, write_atomically
from unet_scaling.base.texts import clean
from unet_scaling.data.batches import to_device
from unet_scaling.data.folder import MASKS_FOLDER, FilePair, Manifest, read_manifest
from unet_scaling.data.images import collate, foreground_of, image_scales
from unet_scaling.data.pixels import (
    Box,
    Bytes,
    Pixels,
    decode,
    describe_mode,
    fit_image,
    fit_mask,
    fitted_box,
    fitting_scale,
    read_bytes,
    to_image,
)
from unet_scaling.format.record_lines import Header
from unet_scaling.group.identity import identify
from unet_scaling.group.worker import start_worker
from unet_scaling.inference import masks
from unet_scaling.inference.tiles import tiles
from unet_scaling.run.training_state import WEIGHTS_NAME, load_weights, set_float32_precision, weights_sha256
from unet_scaling.study.config import RunConfig
from unet_scaling.study.options import ImageScales
from unet_scaling.study.study_file import config_path, read_config
from unet_scaling.task.task import UNetTask, count_pixels

_WHITE = 255
_NOT_FINITE = 1
Region = tuple[Bytes, list[int]]
# Options of data that change a pixel of an image or a mask.
_OF_PIXELS = ("image_height", "image_width", "channels", "intensity", "foreground")
# Values of the network's largest level at once: 1024 x 1024 pixels at width 8 take about 500 MB.
MOST_VALUES = 8 * 2**20
# An image of so many pixels takes 400 MB at the scale of training, with its mask and its prediction.
MOST_SCALED_PIXELS = 2**27


@dataclass(frozen=True)
class FittedImage:
    """An image and its true mask as the network takes them, what of both is no padding, and its own size.

    `is_scored`: the true mask is known; else it is background. `is_alone`: it has not the size of training,
    and shares no batch.
    """

    path: Path
    pair: tuple[Bytes, Bytes]
    box: Box
    height: int
    width: int
    is_scored: bool = True
    is_alone: bool = False

    def at_own_size(self, region: Bytes) -> Bytes:
        """Return what `Segmenter.regions` made of the image as its mask [height, width]."""
        resized = Image.fromarray(region).resize((self.width, self.height), Image.Resampling.NEAREST)
        return np.asarray(resized)


@dataclass(frozen=True)
class Segmenter:
    """The network of a run on this worker's device; `modes` are those of the images it was trained on.

    `scales` are those at which it saw them; None brings every image to the size of training.
    """

    config: RunConfig
    model: nn.Module
    device: torch.device
    weights_sha256: str
    modes: frozenset[str]
    scales: ImageScales | None

    def origin(self, image: bytes, truth: bytes) -> str:
        """Return what a mask is made of, as JSON: the SHA-256 of the weights, the options and the files."""
        options = self.config.data.model_dump_json(include={*_OF_PIXELS}).encode()
        contents = {"data": options, "image": image, "mask": truth}
        digests = {name: hashlib.sha256(each).hexdigest() for name, each in contents.items()}
        size = "resized" if self.scales is None else "at the scale of training"
        return json.dumps({"weights": self.weights_sha256, "size": size} | digests)

    def fit(self, path: Path, pixels: Pixels, truth: Bytes | None = None) -> FittedImage:
        """Return an image as the network takes it, with its true mask [h, w] of 0 and 1 where there is one.

        Raises UserError (65) where it is of another kind or depth than those that the run was trained on, or
        too large.
        """
        data = self.config.data
        mode = describe_mode(pixels)
        if self.modes and mode not in self.modes:
            trained = ", ".join(sorted(self.modes))
            cure = f"the run was trained on {trained}; convert it, or say --any-depth"
            raise UserError(f"{path}: is {mode}, {cure}", EXIT_BAD_DATA)
        height, width = pixels.shape[:2]
        box, size = self.place(height, width)
        if size[0] * size[1] > MOST_SCALED_PIXELS:
            found = f"{size[1]} x {size[0]} pixels at the scale of training exceed {MOST_SCALED_PIXELS}"
            raise UserError(f"{path}: {found}; cut it into tiles, or say --resize", EXIT_BAD_DATA)
        image = fit_image(to_image(pixels, data.channels, data.intensity), *size, box)
        mask = np.zeros(size, np.uint8) if truth is None else fit_mask(truth, *size, box)
        is_alone = size != (data.image_height, data.image_width)
        return FittedImage(path, (image, mask), box, height, width, truth is not None, is_alone)

    def place(self, height: int, width: int) -> tuple[Box, tuple[int, int]]:
        """Return the place of an image of this size in what the network takes, and the size of that.

        It is padded to the size of training at least, and to what pooling divides.
        """
        data = self.config.data
        size = (data.image_height, data.image_width)
        scales = self.scales
        if scales is None or scales.lowest <= fitting_scale(height, width, *size) <= scales.highest:
            return fitted_box(height, width, *size), size
        multiple = 2 ** (self.config.model.depth - 1)
        own = [max(1, round(length * scales.median)) for length in (height, width)]
        padded = [-(-max(pair) // multiple) * multiple for pair in zip(own, size, strict=True)]
        box = Box((padded[0] - own[0]) // 2, (padded[1] - own[1]) // 2, *own)
        return box, (padded[0], padded[1])

    @torch.no_grad()
    def regions(self, images: Sequence[FittedImage]) -> list[Region]:
        """Return each image's mask of 0 and 255 as large as its box, and the counts against its truth.

        The images have one size, and pass through the network at once, whole or tile by tile. The counts are
        those of an evaluation: true positive, false positive, false negative, true negative at the scale
        of the network, without padding; none without truth.
        """
        height, width = images[0].pair[1].shape
        predicted = np.zeros((len(images), height, width), np.uint8)
        data = self.config.data
        most = max(MOST_VALUES // self.config.model.width, data.image_height * data.image_width)
        for tile in tiles(height, width, self.config.model.depth, most):
            packed = collate([(image.pair[0][tile.taken], image.pair[1][tile.taken]) for image in images])
            pixels, _ = to_device(*packed, self.device, self.config.training.channels_last)
            logits = self.model(pixels)[:, 0][(..., *tile.kept_of_taken)]
            values = torch.where(torch.isfinite(logits), (logits > 0) * _WHITE, _NOT_FINITE)
            predicted[(..., *tile.kept)] = values.cpu().numpy()
        regions = []
        for image, whole in zip(images, predicted, strict=True):
            top, left, *size = image.box
            inside = slice(top, top + size[0]), slice(left, left + size[1])
            region = whole[inside]
            if (region == _NOT_FINITE).any():
                raise UserError(f"{image.path}: what the network predicts is not finite", EXIT_BAD_DATA)
            both = torch.from_numpy(region), torch.from_numpy(image.pair[1][inside])
            regions.append((region, count_pixels(*both).tolist() if image.is_scored else []))
        return regions


def open_segmenter(run: Path, device: torch.device, *, any_depth: bool, resize: bool = False) -> Segmenter:
    """Return the network of a complete run; UserError where it has none, or is of a task of its own.

    `any_depth` takes images of any kind and depth, `resize` brings each to the size of training.
    """
    config, record = masks.trained_network(run)
    set_float32_precision(config.training.precision)
    model = UNetTask(config).build_model(nn.BatchNorm2d)
    load_weights(model, run / WEIGHTS_NAME)
    found = weights_sha256(model)
    if found != record.results[-1].weights_sha256:
        raise UserError(f"{run / WEIGHTS_NAME} holds other weights than the record names", EXIT_BAD_DATA)
    header = record.header
    assert header is not None
    # Early records do not know the scales.
    words = [] if any_depth else ["--any-depth"]
    words += [] if resize or header.scales else ["--resize"]
    manifest = _trained_manifest(config, header, " ".join(words)) if words else None
    pairs = manifest.pairs if manifest and not any_depth else []
    modes = frozenset(pair.image.mode for pair in pairs)
    scales = header.scales or (image_scales(manifest, config.data) if manifest else None)
    return Segmenter(config, model.to(device).eval(), device, found, modes, None if resize else scales)


def _trained_manifest(config: RunConfig, header: Header, words: str) -> Manifest:
    """Return the manifest that a run was trained by; UserError where it is gone: these words do without."""
    try:
        manifest = read_manifest(config.data.manifest_path)
    except UserError as error:
        raise UserError(f"{error}, or say {words}: what the run was trained on is not known") from None
    if manifest.sha256 != header.manifest_sha256:
        path = config.data.manifest_path
        raise UserError(f"{path} is not that of the run any more; say {words} to go on without it")
    return manifest


def segment(segmenter: Segmenter, folder: Path, pair: FilePair, output: Path) -> bool:
    """Write the mask of an image, unless it is there; return whether it was made.

    Raises UserError: 65 where the image is refused, 75 where the mask cannot be written.
    """
    target = masks.mask_path(output, pair)
    known = ""
    # A file that was cut to nothing is made again.
    if os.path.lexists(target) and not (target.is_file() and target.stat().st_size == 0):
        _, texts = masks.read_mask(target) or (None, {})
        if masks.ORIGIN_KEY not in texts:
            raise UserError(f"{target} is there and was not made by segment; name another --output")
        known = texts[masks.ORIGIN_KEY]
    path = masks.image_path(folder, pair)
    content = read_bytes(path)
    truth = read_bytes(folder / MASKS_FOLDER / pair.mask) if pair.mask else b""
    origin = segmenter.origin(content, truth)
    if known == origin:
        return False
    foreground = None
    if pair.mask:
        true_path = folder / MASKS_FOLDER / pair.mask
        foreground = foreground_of(true_path, decode(true_path, truth, mask=True), segmenter.config.data)
    image = segmenter.fit(path, decode(path, content), foreground)
    ((region, counts),) = segmenter.regions([image])
    packed = masks.packed_mask(image.at_own_size(region), origin, counts)
    with masks.or_resumable(target):
        write_atomically(target, packed, READABLE, durable=False)
    return True


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("run", "images", "output"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--any-depth", action="store_true")
    parser.add_argument("--resize", action="store_true")
    arguments = parser.parse_args()
    config = read_config(config_path(arguments.run))
    # Use all workers that were started, each with the cores that it has here.
    training = config.training.model_copy(update={"cores_per_worker": None})
    workers = identify(os.environ).size
    identity, device = start_worker(config.model_copy(update={"workers": workers, "training": training}))
    arguments.output.mkdir(parents=True, exist_ok=True)
    segmenter = open_segmenter(arguments.run, device, any_depth=arguments.any_depth, resize=arguments.resize)
    pairs, _ = masks.files_to_segment(arguments.images)
    for pair in pairs[identity.rank :: identity.size]:
        try:
            segment(segmenter, arguments.images, pair, arguments.output)
        except UserError as error:
            if error.exit_code != EXIT_BAD_DATA:
                raise
            # It would be of another image or network.
            masks.mask_path(arguments.output, pair).unlink(missing_ok=True)
            print(f"{masks.REFUSED_PREFIX}{clean(error)}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    run_worker(main)
