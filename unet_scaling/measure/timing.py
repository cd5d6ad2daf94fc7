"""A monotonic clock, read only when the device has finished its work."""

import time

import torch


def synchronized_seconds(device: torch.device) -> float:
    """Return monotonic seconds, after all work queued on the device; only differences mean anything."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
