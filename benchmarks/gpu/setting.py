"""What the stages of `make gpu` share: where they work, sizes, a run, a batch, and how a result is told."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unet_scaling.data.batches import ImageBatch, to_device
from unet_scaling.study.config import RunConfig

RESULT = "RESULT "
# Of the published study: images of 1024 x 768 in batches of 16.
PUBLISHED_SIZE = (768, 1024)
SMALL_SIZE = (192, 256)
PUBLISHED_BATCH = 16
DRY_SIZE = (48, 64)
DRY_BATCH = 4


def tell(name: str, value: object) -> None:
    """Print a result; `python -m benchmarks.gpu` collects them by stage into results.json."""
    print(RESULT + json.dumps({name: value}, default=str), flush=True)


@dataclass(frozen=True)
class Setting:
    """The folder of data, cache and study files, and whether this is a trial on CPUs with small sizes."""

    work: Path
    dry: bool

    @property
    def device(self) -> torch.device:
        return torch.device("cpu") if self.dry else torch.device("cuda", 0)

    @property
    def batch_size(self) -> int:
        return DRY_BATCH if self.dry else PUBLISHED_BATCH

    def size(self, data: str) -> tuple[int, int]:
        """Return height and width of the images of `published` or `small`."""
        if self.dry:
            return DRY_SIZE
        return PUBLISHED_SIZE if data == "published" else SMALL_SIZE

    def config(self, **training: Any) -> RunConfig:  # noqa: ANN401
        """Return a run of the reference network on images of the published size."""
        height, width = self.size("published")
        return RunConfig.model_validate(
            {
                "study": "gpu", "run": "pytorch_native-w1", "framework": "pytorch_native",
                "workers": 1, "repeat": 1, "seed": 3, "model": {"width": 2 if self.dry else 8, "depth": 5},
                "data": {"folder": "none", "image_height": height, "image_width": width},
                "training": {"epochs": 1, "batch_per_worker": self.batch_size} | training,
            }
        )  # fmt: skip

    def packed_batch(self, config: RunConfig) -> tuple[Tensor, Tensor]:
        """Return random bytes of a batch as the cache gives it."""
        random = np.random.default_rng(0)
        height, width = self.size("published")
        shape = (config.training.batch_per_worker, height)
        images = random.integers(0, 256, (*shape, width, 1), dtype=np.uint8)
        masks = random.integers(0, 256, (*shape, -(-width // 8)), dtype=np.uint8)
        return torch.from_numpy(images).permute(0, 3, 1, 2), torch.from_numpy(masks)

    def batch(self, config: RunConfig) -> ImageBatch:
        channels_last = config.training.channels_last
        return ImageBatch(*to_device(*self.packed_batch(config), self.device, channels_last))
