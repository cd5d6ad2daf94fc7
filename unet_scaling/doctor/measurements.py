"""What the workers of a doctor's launch measure together: their clocks, and how fast each computes."""

import statistics
import time

import torch

from unet_scaling.group.group import Group
from unet_scaling.measure.timing import synchronized_seconds

# The best one counts: that of the shortest sum.
CLOCK_READINGS = 9
# One product is milliseconds of a core, or of a GPU; several of them outlast a short disturbance.
MATRIX_ROWS = {"cpu": 512, "cuda": 4096}
PRODUCTS_PER_BLOCK = 8  # between two readings of the clock
COMPUTE_SECONDS = 1.0


def clock_offset(group: Group) -> tuple[float, float]:
    """Return the seconds by which this host's clock is ahead of worker 0's, and how wrong that can be.

    All leave a sum together, but for the time that the sum itself takes.
    """
    group.wait_for_all()  # opens connections
    return min((_read_clocks(group) for _ in range(CLOCK_READINGS)), key=lambda reading: reading[1])


def _read_clocks(group: Group) -> tuple[float, float]:
    begin = time.perf_counter()
    group.wait_for_all()
    now = time.time()
    longest = max(group.gather_numbers(time.perf_counter() - begin))
    return now - group.gather_numbers(now)[0], longest


def operations_per_second(group: Group) -> float:
    """Return how fast this worker multiplies matrices on its device while all others do the same."""
    rows = MATRIX_ROWS[group.device.type]
    matrix = torch.rand(rows, rows, device=group.device)
    _block_seconds(matrix)
    group.wait_for_all()
    deadline = time.monotonic() + COMPUTE_SECONDS
    blocks = []
    while time.monotonic() < deadline:
        blocks.append(_block_seconds(matrix))
    return 2 * rows**3 * PRODUCTS_PER_BLOCK / statistics.median(blocks)


def _block_seconds(matrix: torch.Tensor) -> float:
    begin = synchronized_seconds(matrix.device)
    for _ in range(PRODUCTS_PER_BLOCK):
        torch.mm(matrix, matrix)
    return synchronized_seconds(matrix.device) - begin
