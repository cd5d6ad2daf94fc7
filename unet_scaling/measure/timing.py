"""A monotonic clock, read only when the device has finished its work."""

import torch

from unet_scaling.measure.clock import clock_seconds


def synchronized_seconds(device: torch.device) -> float:
    """Return monotonic seconds, after all work queued on the device; only differences mean anything."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return clock_seconds()
