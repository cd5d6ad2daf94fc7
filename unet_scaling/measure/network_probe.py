"""Time the group's own all-reduce by message size: the network as training will use it."""

import statistics
from collections import defaultdict

import torch

from unet_scaling.group.group import Group
from unet_scaling.group.watchdog import blocking
from unet_scaling.measure.phases import synchronized_seconds
from unet_scaling.study.dilation import dilated
from unet_scaling.study.measurements import Probe

ALL_REDUCE_BYTES = tuple(4**power for power in range(1, 14))  # 4 B ... 64 MiB
# A median of fewer repeats is one outlier; more than these keep training waiting.
FEWEST_ALL_REDUCE_REPEATS = 5
MOST_ALL_REDUCE_REPEATS = 20
ALL_REDUCE_SECONDS_PER_SIZE = 0.1
# No larger message follows one that took longer than this: the next would take four times as long.
LONGEST_ALL_REDUCE_SECONDS = 0.2
# The same by the clock on the wall, of a dilated cluster.
LONGEST_WAIT_SECONDS = 0.5


def probe_network(group: Group) -> Probe | None:
    """Time `sum_over_workers` on float32 messages; None for a worker alone, which sends nothing.

    Medians and minima are those of the slowest worker. Repeats and the last size follow from gathered
    numbers only, so that all workers take part in the same sums.
    """
    if group.size == 1:
        return None
    columns: dict[str, list[float]] = defaultdict(list)
    for size in ALL_REDUCE_BYTES:
        repeats, median, minimum = _probe_size(group, size)
        columns["bytes"].append(size)
        columns["repeats"].append(repeats)
        columns["median_seconds"].append(median)
        columns["minimum_seconds"].append(minimum)
        if median > LONGEST_ALL_REDUCE_SECONDS or dilated(median) > LONGEST_WAIT_SECONDS:
            break
    return Probe.model_validate(columns)


def _probe_size(group: Group, size: int) -> tuple[int, float, float]:
    """Return repeats, median and minimum of the slowest worker for messages of so many bytes."""
    message = torch.zeros(size // 4, device=group.device)
    # The first also opens connections and grows buffers; it only says how often to repeat.
    first = max(group.gather_numbers(_seconds(group, message)))
    fitting = int(ALL_REDUCE_SECONDS_PER_SIZE / dilated(first))
    repeats = min(MOST_ALL_REDUCE_REPEATS, max(FEWEST_ALL_REDUCE_REPEATS, fitting))
    times = [_seconds(group, message) for _ in range(repeats)]
    median = max(group.gather_numbers(statistics.median(times)))
    return repeats, median, max(group.gather_numbers(min(times)))


def _seconds(group: Group, message: torch.Tensor) -> float:
    begin = synchronized_seconds(group.device)
    with blocking:
        group.sum_over_workers(message)
        end = synchronized_seconds(group.device)
    return end - begin
