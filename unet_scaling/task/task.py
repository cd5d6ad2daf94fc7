"""What a run trains: the interface of a task, which is all that twins, evaluation and record ask of it.

And the built-in task: the reference U-Net, images with masks, binary cross-entropy, and IoU.
"""

import dataclasses
import io
import math
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from unet_scaling.base.errors import EXIT_DIVERGED, UserError, optional_part
from unet_scaling.data.batches import ImageBatch, ImageData, ImageSource, RunData
from unet_scaling.data.folder import Manifest, read_manifest
from unet_scaling.data.images import (
    DecodedImages,
    ResidentImages,
    Verification,
    build_cache,
    default_cache_root,
    image_scales,
    open_cache,
    verification_of_cache,
    verification_of_files,
)
from unet_scaling.data.order import require_enough_images, split
from unet_scaling.format.record_lines import Evaluated, Evaluation, PixelCounts, Result
from unet_scaling.group.group import Group
from unet_scaling.model import Norm, UNet
from unet_scaling.study.config import RunConfig

# Stands in the place of each count of a sample whose outputs were not finite: no count reaches it.
NOT_FINITE = torch.iinfo(torch.int64).min
# A verification that takes longer is reported.
UNREPORTED_SECONDS = 2.0
# The longer side of a picture for the report.
MOST_PICTURE_PIXELS = 160
# The IoU of single images is recorded to so many digits.
IOU_DIGITS = 4
# With three colours of outlines a pixel takes 4 bits.
GREYS = 13
# For the true mask alone, the predicted one, and both; people who see no red or green tell them apart.
OUTLINE_COLOURS = ((86, 180, 233), (230, 159, 0), (255, 255, 255))


class Task(ABC):
    """Model, data, loss and score of one run."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config

    @abstractmethod
    def load_data(self, group: Group) -> RunData:
        """Open the data of the run, on every worker; UserError (65) where they cannot be trained on."""

    @abstractmethod
    def build_model(self, synchronized_norm: Norm) -> nn.Module:
        """Return the model on the CPU, its weights drawn from torch's generator.

        `synchronized_norm` is the framework's batch norm over all workers.
        """

    @abstractmethod
    def loss(self, model: nn.Module, batch: Any) -> Tensor:  # noqa: ANN401
        """Return the loss of a batch, the mean over its samples."""

    @abstractmethod
    def count(self, model: nn.Module, batch: Any) -> Tensor:  # noqa: ANN401
        """Return int64 counts [k] of a batch of the test set, which add up over its samples."""

    @abstractmethod
    def result(self, counts: Tensor, evaluated: Evaluated) -> Evaluation:
        """Return the record's line of an evaluation from the counts [test samples, k] of all workers."""

    def picture(self, model: nn.Module, batch: Any) -> tuple[bytes, float | None] | None:  # noqa: ANN401, ARG002
        """Return a small PNG of a test sample and its prediction, and its score; None: not drawn."""
        return None

    def verify(self, model: nn.Module, data: RunData) -> None:  # noqa: B027
        """Raise UserError, on every worker alike, where the task breaks its contract; before anything trains.

        The built-in task keeps it by the tests of this project.
        """

    def missing_gradients(self) -> UserError | None:
        """Return the error that names parameters without a gradient after the passes of a step.

        Called before the average of gradients, in which Horovod fills them in. None where all have one:
        every pass of the built-in task uses all of its parameters.
        """
        return None

    def optimizer(self, model: nn.Module) -> Optimizer:
        """Return the optimizer, fused; its rates count by their ratio to that of the first group."""
        return torch.optim.Adam(self.parameters(model), lr=self.config.training.learning_rate, fused=True)

    def parameters(self, model: nn.Module) -> Iterable[Any]:
        """Return the parameters to train, or groups of them as torch's optimizers take them."""
        return model.parameters()


class UNetTask(Task):
    """Segmentation of the images of `[data]` by the network of `[model]`."""

    def load_data(self, group: Group) -> ImageData:
        """Open the images; the first worker of each host decodes them once for all.

        Raises UserError (65), before any training, for a folder that does not match its manifest and
        for more workers or larger batches than the images can serve. Of images that are only replayed, the
        manifest tells the number.
        """
        config = self.config
        manifest = read_manifest(config.data.manifest_path)
        parts = split(len(manifest.pairs), config.data.test_share, config.data.split_seed)
        require_enough_images(config, len(parts.train))
        if not config.is_emulated:
            source, verification = self._open_images(manifest, group)
            scales = image_scales(manifest, config.data)
            return ImageData(source, verification, parts, config, group, manifest.sha256, scales=scales)
        with optional_part("emulation.compute"):
            from unet_scaling.emulation.worker import EmulatedData, ReplayedImages, emulated_profile
        if config.emulation.data == "replayed":
            source, verification = ReplayedImages(len(manifest.pairs), config.data), Verification({}, "")
        else:
            source, verification = self._open_images(manifest, group)
        opened = (source, verification, parts, config, group, manifest.sha256)
        return EmulatedData(*opened, compute=emulated_profile(config, group))

    def _open_images(self, manifest: Manifest, group: Group) -> tuple[ImageSource, Verification]:
        data = self.config.data
        manifest.require_unchanged(Path(data.folder), data.manifest_path)
        # This worker's number among those of its host, and how many there are: each verifies a part.
        hosts = group.gather_strings(socket.gethostname())
        own = hosts[group.rank]
        index, count = hosts[: group.rank].count(own), hosts.count(own)
        if data.loading == "decode":
            decoded = DecodedImages(manifest, data)
            verification = verification_of_files(manifest, data, index, count)
            _verify(verification, group)
            return decoded, verification
        root = default_cache_root()
        is_first = group.identity.local_rank == 0
        group.run_on_all(lambda: build_cache(manifest, data, root) if is_first else None)
        cached = open_cache(manifest, data, root)
        if data.loading == "device":
            return ResidentImages(cached, group.device), Verification({}, "")
        return cached, verification_of_cache(cached.folder, index, count)

    def build_model(self, synchronized_norm: Norm) -> UNet:
        """Return the U-Net, or what stands for it in an emulated worker.

        Raises UserError where the profile to wait by is of another network, and where batch norm over all
        workers is asked for on a CPU.
        """
        config = self.config
        norms: dict[str, Norm] = {"local": nn.BatchNorm2d, "sync": synchronized_norm, "off": nn.Identity}
        shape = (config.data.channels, config.model.width, config.model.depth)
        norm = norms[config.model.batch_norm]
        if not config.is_emulated:
            return UNet(*shape, norm=norm, checkpointing=config.model.activation_checkpointing)
        with optional_part("emulation.compute"):
            from unet_scaling.emulation.worker import emulated_unet
        return emulated_unet(config, *shape, norm)

    def loss(self, model: nn.Module, batch: ImageBatch) -> Tensor:
        """Return the binary cross-entropy with logits, the mean over images and pixels."""
        return functional.binary_cross_entropy_with_logits(model(batch.images).float(), batch.masks)

    def count(self, model: nn.Module, batch: ImageBatch) -> Tensor:
        """Return int64 [4]: true positive, false positive, false negative, true negative pixels."""
        logits = batch.cropped(model(batch.images))
        return finite_counts(count_pixels(logits, batch.cropped(batch.masks)), [logits])

    def picture(self, model: nn.Module, batch: ImageBatch) -> tuple[bytes, float | None]:
        """Return the image in grey, outlined: true mask blue, predicted orange, where they agree white."""
        logits, images, masks = map(batch.cropped, (model(batch.images), batch.images, batch.masks))
        every = -(-max(logits.shape[-2:]) // MOST_PICTURE_PIXELS)
        shown = images[0].mean(dim=0)[::every, ::every]
        # Scale to the brightest pixel, as fluorescence images are dark.
        grey = (shown * ((GREYS - 1) / shown.max().clamp(min=1 / 255))).round().cpu().numpy()
        regions = [(each[0, 0] > 0)[::every, ::every].cpu().numpy() for each in (masks, logits)]
        true, predicted = map(outline, regions)
        pixels = np.where(true | predicted, GREYS - 1 + true + 2 * predicted, grey)
        drawn = Image.fromarray(pixels.astype(np.uint8), "P")
        drawn.putpalette([*np.repeat(np.arange(GREYS) * 255 // (GREYS - 1), 3), *np.ravel(OUTLINE_COLOURS)])
        packed = io.BytesIO()
        drawn.save(packed, "PNG", optimize=True)
        return packed.getvalue(), PixelCounts(*count_pixels(logits, masks).tolist()).iou

    def result(self, counts: Tensor, evaluated: Evaluated) -> Result:
        require_finite(counts, evaluated.epochs, "evaluation")
        total = PixelCounts(*counts.sum(dim=0).tolist())
        is_last = evaluated.epochs == self.config.training.epochs
        of_images = image_ious(counts)
        return Result(
            **evaluated.model_dump(),
            **dataclasses.asdict(total),
            iou=total.iou,
            dice=total.dice,
            image_iou=mean(of_images),
            image_ious=[iou and round(iou, IOU_DIGITS) for iou in of_images] if is_last else None,
        )


def outline(mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return the foreground [h, w] that has background, or the end of the image, beside it."""
    padded = np.pad(mask, 1)
    inside = padded[:-2, 1:-1] & padded[2:, 1:-1] & padded[1:-1, :-2] & padded[1:-1, 2:]
    return np.asarray(mask & ~inside)


def _verify(verification: Verification, group: Group) -> None:
    """Hash the files that training will read, each once on every host; UserError (65) on every worker."""
    begin = time.perf_counter()
    group.run_on_all(verification.verify_all)
    mebibytes = sum(group.gather_numbers(verification.bytes)) / 2**20
    seconds = time.perf_counter() - begin
    if group.rank == 0 and seconds > UNREPORTED_SECONDS:
        print(f"verified {mebibytes:.1f} MiB of images in {seconds:.2f} s", flush=True)


def count_pixels(logits: Tensor, mask: Tensor) -> Tensor:
    """Return int64 [4]: true positive, false positive, false negative, true negative pixels.

    A pixel is predicted as foreground where its logit is above 0, that is its probability above
    one half. `logits` and `mask` have the same shape; the mask holds 0 and 1.
    """
    assert logits.shape == mask.shape, f"logits {tuple(logits.shape)}, mask {tuple(mask.shape)}"
    predicted = logits > 0
    actual = mask > 0
    true_positive = (predicted & actual).sum()
    false_positive = predicted.sum() - true_positive
    false_negative = actual.sum() - true_positive
    true_negative = mask.numel() - true_positive - false_positive - false_negative
    return torch.stack([true_positive, false_positive, false_negative, true_negative])


def image_ious(counts: Tensor) -> list[float | None]:
    """Return the IoU of each image, from int64 counts [images, 4]; None where neither mask has foreground."""
    return [PixelCounts(*row).iou for row in counts.tolist()]


def mean(ious: Iterable[float | None]) -> float | None:
    """Return the mean of those that are defined, if any is."""
    defined = [iou for iou in ious if iou is not None]
    # Summed exactly, so that it does not depend on the order of the images.
    return math.fsum(defined) / len(defined) if defined else None


def finite_counts(counts: Tensor, outputs: Iterable[Tensor]) -> Tensor:
    """Return the counts of a sample, or `NOT_FINITE` where an output is NaN or infinite.

    It does not wait for the device. Minus infinity is allowed: a model rules something out by it.
    """
    for output in outputs:
        counts = torch.where((output < torch.inf).all().to(counts.device), counts, NOT_FINITE)
    return counts


def require_finite(counts: Tensor, epochs: int, place: str) -> None:
    """Raise UserError (70) where outputs behind counts [samples, k] are not finite, on all workers alike."""
    found = (counts == NOT_FINITE).any(dim=1).nonzero()
    if len(found):
        samples = f"{len(found)} of {len(counts)} test samples, first number {found[0].item()}"
        cause = "the training diverged, or in evaluation mode the model divides by zero"
        problem = f"{place}: after {epochs} epochs outputs are NaN or infinite for {samples}: {cause}"
        raise UserError(problem, EXIT_DIVERGED)
