"""Masks of 0 and 1 as bits: an eighth of the bytes to keep, to read and to send to a device."""

import numpy as np
import torch
from torch import Tensor

from unet_scaling.data.fitting import Bytes

# Of a byte, the highest first.
BITS = 8


def packed_width(width: int) -> int:
    """Return the bytes of a row of so many pixels."""
    return -(-width // BITS)


def pack_bits(masks: Bytes) -> Bytes:
    """Pack uint8 [..., width] of 0 and 1 to [..., packed_width]; rows are filled up with zeros."""
    return np.packbits(masks, axis=-1)


def unpack_bits(packed: Tensor, width: int) -> Tensor:
    """Unpack uint8 [..., packed_width] to [..., width] of 0 and 1, on their device."""
    if packed.device.type == "cpu":
        return torch.from_numpy(np.unpackbits(packed.numpy(), axis=-1, count=width))
    return shifted_out(packed, width)


def shifted_out(packed: Tensor, width: int) -> Tensor:
    """Unpack by operations that every device has."""
    shifts = torch.arange(BITS - 1, -1, -1, dtype=torch.uint8, device=packed.device)
    bits = (packed.unsqueeze(-1) >> shifts) & 1
    return bits.flatten(-2)[..., :width]
