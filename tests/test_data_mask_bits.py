"""Masks as bits, for any width."""

import numpy as np
import pytest
import torch

from unet_scaling.data.mask_bits import pack_bits, packed_width, shifted_out, unpack_bits


@pytest.mark.parametrize("width", [1, 7, 8, 9, 64])
def test_masks_come_back_from_their_bits_in_both_ways(width: int) -> None:
    masks = np.random.default_rng(width).integers(0, 2, (3, 4, width), dtype=np.uint8)
    packed = torch.from_numpy(pack_bits(masks))
    assert packed.shape == (3, 4, packed_width(width))
    for way in (unpack_bits, shifted_out):  # on a CPU, and on any other device
        found = way(packed, width)
        assert found.dtype == torch.uint8
        np.testing.assert_array_equal(found, masks)
