"""What follows from the figures of a profile: each warning comes with its cause, and not without it."""

import pytest

from unet_scaling.profile.findings import (
    as_milliseconds,
    is_input_bound,
    processes_to_try,
    recommended_processes,
    thrashing,
)
from unet_scaling.profile.results import HostCores, Samples, Steps, Throughput


def samples(median: float, width: float = 0.02) -> Samples:
    return Samples(median=median, low=median * (1 - width), high=median * (1 + width), count=3)


def throughput(processes: int, speed: float, width: float = 0.02) -> Throughput:
    return Throughput(processes=processes, images_per_second=samples(speed, width))


def steps(data_wait: float, compute: float, prefetched: float, processes: int = 2) -> Steps:
    return Steps(
        device="cpu",
        threads=1,
        data_wait=samples(data_wait),
        host_to_device=samples(0.01),
        compute=samples(compute),
        in_line=samples(data_wait + 0.01 + compute),
        loader_processes=processes,
        prefetched=samples(prefetched),
    )


def test_samples_are_told_by_their_percentiles() -> None:
    assert Samples.of(list(range(101))) == Samples(median=50, low=5, high=95, count=101)


def test_thrashing_is_throughput_that_falls_beyond_its_samples() -> None:
    assert [*thrashing([throughput(0, 90), throughput(1, 50), throughput(2, 100), throughput(4, 180)])] == []
    assert [*thrashing([throughput(1, 100), throughput(2, 80, width=0.3)])] == []
    (warning,) = thrashing([throughput(0, 50), throughput(1, 50), throughput(2, 100), throughput(8, 60)])
    assert "8 loader processes load 60 images/s, 2 load 100; use no more than 2" in warning


@pytest.mark.parametrize(
    ("cores", "workers", "needed", "expected"),
    [
        (16, 1, 90, 1),  # one process loads 100 images/s
        (16, 1, 350, 4),
        (16, 1, 10_000, 8),  # none keeps up: 8 are within a tenth of the best
        (4, 1, 10_000, 3),  # one core is left to the training
        (16, 4, 190, 2),  # four workers load at once
        (2, 2, 500, 1),
    ],
)
def test_the_fewest_loader_processes_that_keep_up_are_tried(
    cores: int, workers: int, needed: float, expected: int
) -> None:
    measured = [throughput(0, 110), *(throughput(n, 100 * min(n, 8)) for n in (1, 2, 4, 8, 16))]
    host = HostCores(cores=cores, workers_per_host=workers, cores_per_worker=cores // workers)
    assert processes_to_try(measured, host, needed) == expected
    assert processes_to_try(measured[:1], host, needed) == 0


def test_loader_processes_are_recommended_where_they_shorten_the_step() -> None:
    assert recommended_processes(steps(0.1, 0.2, prefetched=0.22)) == 2
    assert recommended_processes(steps(0.1, 0.2, prefetched=0.31)) == 0
    # Too little to hide: a shorter step is noise.
    assert recommended_processes(steps(0.001, 0.2, prefetched=0.15)) == 0


def test_input_bound_is_loading_longer_than_the_step() -> None:
    assert is_input_bound(steps(0.2, 0.1, 0.2))
    assert not is_input_bound(steps(0.1, 0.2, 0.2))


def test_times_are_told_with_three_significant_digits() -> None:
    assert [as_milliseconds(s) for s in (0.0000123, 0.01234, 1.7404)] == ["0.0123 ms", "12.3 ms", "1,740 ms"]
