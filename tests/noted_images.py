"""Images that note which processes load them; for loader processes, so without pytest."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt

from unet_scaling.data.batches import ImageSource
from unet_scaling.data.images import PackedBatch
from unet_scaling.data.order import Indices


@dataclass(frozen=True)
class NotedImages:
    """Every process that loads leaves its number and its cores in a folder."""

    images: ImageSource
    notes: Path

    @property
    def boxes(self) -> npt.NDArray[Any]:
        return self.images.boxes

    def gather(self, indices: Indices) -> PackedBatch:
        (self.notes / f"{os.getpid()}").write_text(json.dumps(sorted(os.sched_getaffinity(0))))
        return self.images.gather(indices)
