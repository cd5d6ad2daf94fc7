"""Maps from masks and scores: what xaitk's generators compute, one mask at a time.

xaitk holds all masks, in float64 too: 12 MiB for each of 1024 x 768 pixels. Here the same numbers are added
in the same order, so that every byte is the same, for any rows of the map alone.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from sklearn.preprocessing import maxabs_scale
from xaitk_saliency import GenerateClassifierConfidenceSaliency
from xaitk_saliency.impls.gen_classifier_conf_sal.occlusion_scoring import OcclusionScoring
from xaitk_saliency.impls.gen_classifier_conf_sal.rise_scoring import RISEScoring

from unet_scaling.explain.blackbox import Doubles
from unet_scaling.explain.perturbers import MaskArray


@dataclass(frozen=True)
class Weighting:
    """How a generator of xaitk weighs masks: RISEScoring or OcclusionScoring."""

    generator: GenerateClassifierConfidenceSaliency

    def __post_init__(self) -> None:
        assert isinstance(self.generator, RISEScoring | OcclusionScoring), f"no weights of {self.generator}"

    def sum_rows(self, rows: Iterable[MaskArray], reference: Doubles, perturbed: Doubles) -> Doubles:
        """Return the weighted sum over the masks, [planes, height, width], of some rows of all masks.

        `reference` [scores] is of the image, `perturbed` [masks, scores] of the masked ones. There is a plane
        for each score; with OcclusionScoring a last one counts how often each pixel was hidden.
        """
        weights = self._weights(reference, perturbed)
        sums: Doubles | None = None
        for mask, of_mask in zip(rows, weights, strict=True):
            part = self._part(mask)
            if sums is None:
                sums = np.zeros((len(of_mask), *mask.shape))
                product = np.empty(mask.shape)
            for plane, weight in zip(sums, of_mask, strict=True):
                np.multiply(part, weight, out=product)
                plane += product
        assert sums is not None, "a map of no masks"
        return sums

    def finish(self, sums: Doubles) -> Doubles:
        """Return the map [scores, height, width] in -1..1 of the sums over all its rows."""
        saliency = sums
        if self._counts_hidden:
            hidden = np.where(sums[-1] == 0, 1.0, sums[-1])
            saliency = sums[:-1] / hidden
        flat: Doubles = maxabs_scale(saliency.reshape(len(saliency), -1), axis=1)
        return np.clip(flat.reshape(saliency.shape), -1, 1)

    @property
    def _counts_hidden(self) -> bool:
        return isinstance(self.generator, OcclusionScoring)

    def _weights(self, reference: Doubles, perturbed: Doubles) -> Doubles:
        if self._counts_hidden:
            return np.column_stack([reference - perturbed, np.ones(len(perturbed))])
        return perturbed

    def _part(self, mask: MaskArray) -> Doubles:
        """Return by how much each pixel of a mask takes part in its weight."""
        if self._counts_hidden:
            hidden: Doubles = 1 - mask.astype(np.float64)
            return hidden
        # In float32, as xaitk does, before it goes over to the scores' type.
        kept: Doubles = (mask - self.generator.p1).astype(np.float64)
        return kept
