"""Masks of 0 and 1 as bits: an eighth of the bytes to keep, to read and to send to a device."""

import numpy as np
import torch
from torch import Tensor

from unet_scaling.data.fitting import Bytes

BITS = 8  # of a byte, the highest first


def packed_width(width: int) -> int:
    """Bytes of a row of so many pixels."""
    return -(-width // BITS)


def pack(masks: Bytes) -> Bytes:
    """uint8 [..., width] of 0 and 1 to [..., packed_width]; rows are filled up with zeros."""
    return np.packbits(masks, axis=-1)


def unpack(packed: Tensor, width: int) -> Tensor:
    """uint8 [..., packed_width] to [..., width] of 0 and 1, on the device where they are."""
    if packed.device.type == "cpu":
        return torch.from_numpy(np.unpackbits(packed.numpy(), axis=-1, count=width))
    return shifted_out(packed, width)


def shifted_out(packed: Tensor, width: int) -> Tensor:
    """As unpack, by operations that every device has."""
    places = torch.arange(BITS - 1, -1, -1, dtype=torch.uint8, device=packed.device)
    bits = (packed.unsqueeze(-1) >> places) & 1
    return bits.flatten(-2)[..., :width]
