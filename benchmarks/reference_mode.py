"""Reference mode: the same training as people first write it, to measure this project's against.

Written after the description of the published study: contiguous fp32, eager, each image decoded and resized
in the training thread at every step, batches collated as floats, Adam as torch gives it, the loss read after
every step. It takes the images of a point in the order of the point, from the same initial weights, so that
its losses are the ones that the project's own training must have.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

from unet_scaling.data import order as orders
from unet_scaling.data.folder import Manifest, read_manifest
from unet_scaling.model import ConvolutionPair, UNet
from unet_scaling.study.config import RunConfig
from unet_scaling.training import learning_rate

Floats = npt.NDArray[np.float32]


class PlainPair(ConvolutionPair):
    """Two convolutions, every result a tensor of its own."""

    def forward(self, features: Tensor) -> Tensor:
        features = torch.relu(self.norm1(self.convolution1(features)))
        return torch.relu(self.norm2(self.convolution2(features)))


class PlainUNet(UNet):
    """The same network; what the project's own forward pass does for speed is left out."""

    def __init__(self, channels: int, width: int, depth: int) -> None:
        super().__init__(channels, width, depth)
        for module in self.modules():
            if isinstance(module, ConvolutionPair):
                module.__class__ = PlainPair

    def forward(self, images: Tensor) -> Tensor:
        """Return the same logits as UNet.forward, for sizes that need no padding."""
        levels: list[Tensor] = []
        features = images
        for level, pair in enumerate(self.encoder):
            features = pair(features if level == 0 else functional.max_pool2d(features, 2))
            levels.append(features)
        for upsampling, pair, skipped in zip(self.upsampling, self.decoder, levels[-2::-1], strict=True):
            features = pair(torch.cat([upsampling(features), skipped], dim=1))
        logits: Tensor = self.head(features)
        return logits


class ReferenceImages:
    """The pairs of a data folder, decoded and resized at every access."""

    def __init__(self, config: RunConfig) -> None:
        self.folder = Path(config.data.folder)
        self.data = config.data
        self.manifest: Manifest = read_manifest(config.data.manifest_path)

    def pair(self, index: int) -> tuple[Floats, Floats]:
        """Return image and mask [1, height, width] of 0..1."""
        entry = self.manifest.pairs[index]
        image = self._opened(self.folder / "images" / entry.image.name, Image.Resampling.LANCZOS)
        mask = self._opened(self.folder / "masks" / entry.mask.name, Image.Resampling.NEAREST)
        return image / np.float32(255), (mask > 0).astype(np.float32)

    def batch(self, indices: npt.NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Return float32 images and masks [b, 1, height, width]."""
        pairs = [self.pair(int(index)) for index in indices]
        return torch.from_numpy(np.stack([image for image, _ in pairs])), torch.from_numpy(
            np.stack([mask for _, mask in pairs])
        )

    def _opened(self, path: Path, resampling: Image.Resampling) -> Floats:
        grey = Image.open(path).convert("L")
        resized = grey.resize((self.data.image_width, self.data.image_height), resampling)
        return np.asarray(resized, dtype=np.float32)[None]


class ReferenceTraining:
    """Model and optimizer, and a step that tells its loss at once."""

    def __init__(self, config: RunConfig) -> None:
        torch.manual_seed(config.seed)
        self.config = config
        self.model: UNet = PlainUNet(config.data.channels, config.model.width, config.model.depth).train()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=learning_rate(config, 0))

    def step(self, images: Tensor, masks: Tensor) -> float:
        self.optimizer.zero_grad()
        loss = functional.binary_cross_entropy_with_logits(self.model(images), masks)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return loss.item()


def epoch_batches(config: RunConfig, images: ReferenceImages, epoch: int) -> Iterator[npt.NDArray[np.int64]]:
    """Yield the images of each step of one worker's epoch, as the project's own training takes them."""
    split = orders.split(len(images.manifest.pairs), config.data.test_share, config.data.split_seed)
    order = orders.epoch_order(split.train, config.data.passes_per_epoch, config.seed, epoch)
    for step in orders.worker_batches(order, 0, 1, config.training.batch_per_worker, 1):
        yield step[0]


@torch.no_grad()
def evaluate(model: nn.Module, config: RunConfig, images: ReferenceImages) -> float:
    """Return the IoU over the test images, taken one by one; NaN where nothing is and nothing was found."""
    split = orders.split(len(images.manifest.pairs), config.data.test_share, config.data.split_seed)
    model.eval()
    intersection = union = 0.0
    for index in split.test:
        image, mask = images.batch(np.array([index]))
        found = (model(image) > 0).float()
        intersection += (found * mask).sum().item()
        union += torch.maximum(found, mask).sum().item()
    return intersection / union if union else float("nan")


def train(config: RunConfig) -> list[float]:
    """Train all epochs of a run of one worker, evaluating after each; return the seconds of their steps."""
    images = ReferenceImages(config)
    training = ReferenceTraining(config)
    seconds = []
    for epoch in range(config.training.epochs):
        for group in training.optimizer.param_groups:
            group["lr"] = learning_rate(config, epoch)
        training.model.train()
        begin = time.perf_counter()
        losses = [training.step(*images.batch(chosen)) for chosen in epoch_batches(config, images, epoch)]
        seconds.append(time.perf_counter() - begin)
        iou = evaluate(training.model, config, images)
        print(f"epoch {epoch + 1}  loss {np.mean(losses):.4f}  IoU {iou:.4f}")
    return seconds
