"""The network as training will use it: the time of the group's own all-reduce by message size."""

import statistics

import torch

from unet_scaling.group.group import Group
from unet_scaling.group.watchdog import blocking
from unet_scaling.measure.timing import synchronized_seconds
from unet_scaling.study.measurements import Probe

SIZES = tuple(4**power for power in range(1, 14))  # 4 B ... 64 MiB
FEWEST_REPEATS, MOST_REPEATS = 5, 20
SECONDS_PER_SIZE = 0.1
# No larger message follows one that took longer than this: the next would take four times as long.
LONGEST_SECONDS = 0.2


def probe_network(group: Group) -> Probe | None:
    """Time `sum_over_workers` on float32 messages; none for a worker alone, which sends nothing.

    Medians and minima are those of the slowest worker. How often and how far to go follows from
    gathered numbers only, so that all workers take part in the same sums.
    """
    if group.size == 1:
        return None
    rows: list[tuple[int, int, float, float]] = []
    for size in SIZES:
        message = torch.zeros(size // 4, device=group.device)
        # The first also opens connections and grows buffers; it only says how often to repeat.
        first = max(group.gather_numbers(_seconds(group, message)))
        repeats = min(MOST_REPEATS, max(FEWEST_REPEATS, int(SECONDS_PER_SIZE / first)))
        times = [_seconds(group, message) for _ in range(repeats)]
        median = max(group.gather_numbers(statistics.median(times)))
        rows.append((size, repeats, median, max(group.gather_numbers(min(times)))))
        if median > LONGEST_SECONDS:
            break
    sizes, repeat_counts, medians, minima = (list(column) for column in zip(*rows, strict=True))
    return Probe.model_validate(
        {"bytes": sizes, "repeats": repeat_counts, "median_seconds": medians, "minimum_seconds": minima}
    )


def _seconds(group: Group, message: torch.Tensor) -> float:
    begin = synchronized_seconds(group.device)
    with blocking:
        group.sum_over_workers(message)
        end = synchronized_seconds(group.device)
    return end - begin
