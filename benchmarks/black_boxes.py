"""The network, and masks, as xaitk's loop takes them: for the ways that benchmarks/saliency.py compares."""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from lightning.fabric import Fabric
from numpy.typing import NDArray
from smqtk_classifier import ClassifyImage
from xaitk_saliency import PerturbImage

from unet_scaling.explain.blackbox import CleanImage
from unet_scaling.study.saliency import SCORES


class BlackBox(ClassifyImage):  # type: ignore[misc]
    """The network as xaitk takes it: the scores of images against the clean one are its two classes."""

    def __init__(self, clean: CleanImage, batch: int) -> None:
        self.clean = clean
        self.batch = batch

    def get_labels(self) -> Sequence[Hashable]:
        return SCORES

    def classify_images(self, images: Iterable[NDArray[np.float32]]) -> Iterator[dict[Hashable, float]]:
        rest = iter(images)
        while some := list(islice(rest, self.at_a_time)):
            for scores in self.scores(some):
                yield dict(zip(SCORES, scores.tolist(), strict=True))

    @property
    def at_a_time(self) -> int:
        """How many images `scores` takes."""
        return self.batch

    def scores(self, images: list[NDArray[np.float32]]) -> NDArray[np.float64]:
        """Return the scores [n, 2] of these images."""
        return self.clean.scores_of(torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2))

    def get_config(self) -> dict[str, Any]:
        return {}


class SharedBlackBox(BlackBox):
    """The same, shared out by Fabric: of as many batches as there are workers, each scores one."""

    def __init__(self, clean: CleanImage, batch: int, fabric: Fabric) -> None:
        super().__init__(clean, batch)
        self.fabric = fabric

    @property
    def at_a_time(self) -> int:
        return self.batch * int(self.fabric.world_size)

    def scores(self, images: list[NDArray[np.float32]]) -> NDArray[np.float64]:
        begin = self.batch * self.fabric.global_rank
        own = images[begin : begin + self.batch]
        scores = np.zeros((len(images), len(SCORES)))
        if own:
            scores[begin : begin + len(own)] = super().scores(own)
        every: NDArray[np.float64] = self.fabric.all_reduce(torch.from_numpy(scores), reduce_op="sum").numpy()
        return every


class MadeOnce(PerturbImage):  # type: ignore[misc]
    """Masks of a perturber, made for the first image alone: all are of one size."""

    def __init__(self, perturber: PerturbImage) -> None:
        self.perturber = perturber
        self.masks: NDArray[np.bool_] | None = None

    def perturb(self, ref_image: NDArray[Any]) -> NDArray[np.bool_]:
        if self.masks is None:
            self.masks = self.perturber.perturb(ref_image)
        return self.masks

    def get_config(self) -> dict[str, Any]:
        return {}
