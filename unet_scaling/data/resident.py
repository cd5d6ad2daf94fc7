"""All images of a data set on the device of a worker: nothing is left to load in a step."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unet_scaling.data.cache import CachedImages
from unet_scaling.study.errors import UserError

# Of the memory that is free before the model is built; the rest is for training.
LARGEST_SHARE = 0.5


class ResidentImages:
    """The bytes of a cache, kept on a device; a batch is gathered there."""

    def __init__(self, cached: CachedImages, device: torch.device) -> None:
        """Raise UserError (2) where they would take more than half of a GPU's free memory."""
        _require_room(cached.images.nbytes + cached.masks.nbytes, device)
        self._device = device
        self._images = torch.from_numpy(np.array(cached.images)).to(device)
        self._masks = torch.from_numpy(np.array(cached.masks)).to(device)
        self.boxes = cached.boxes

    def gather(self, indices: npt.NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Return a batch as `ImageSource.gather` does, on the device."""
        chosen = torch.from_numpy(indices).to(self._device)
        return self._images[chosen].permute(0, 3, 1, 2), self._masks[chosen]


def _require_room(needed: int, device: torch.device) -> None:
    if device.type != "cuda":
        return
    free, _ = torch.cuda.mem_get_info(device)
    if needed > LARGEST_SHARE * free:
        raise UserError(
            f"data.loading = 'device': the images take {needed / 2**20:.0f} MiB, {free / 2**20:.0f} MiB of"
            f" {device} are free, of which {LARGEST_SHARE:.0%} may be used; use 'cache'"
        )
