"""What follows from the figures of a profile: each warning comes with its cause, and not without it."""

import _thread
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor

import pytest

from unet_scaling.profile.findings import (
    contention,
    is_input_bound,
    loaders_to_try,
    milliseconds,
    own_threads,
    sensible_loaders,
    thrashing,
)
from unet_scaling.profile.results import Host, LoaderCount, Spread, Steps
from unet_scaling.profile.threads import watch_threads

NOISE = bytes(range(256)) * 4000


def spread(median: float, width: float = 0.02) -> Spread:
    return Spread(median=median, low=median * (1 - width), high=median * (1 + width), samples=3)


def count(processes: int, speed: float, rate: float | None = 1.0, width: float = 0.02) -> LoaderCount:
    return LoaderCount(processes=processes, images_per_second=spread(speed, width), switches_per_second=rate)


def steps(gather: float, compute: float, overlapped: float, processes: int = 2) -> Steps:
    parts = {"gather": gather, "to_device": 0.01, "compute": compute, "in_line": gather + 0.01 + compute}
    spreads = {name: spread(seconds) for name, seconds in parts.items()}
    return Steps(
        device="cpu",
        threads=1,
        batch=4,
        measured_batch=4,
        loader_processes=processes,
        overlapped=spread(overlapped),
        **spreads,
    )


def test_the_spread_of_samples_is_their_percentiles() -> None:
    assert Spread.of(list(range(101))) == Spread(median=50, low=5, high=95, samples=101)
    assert Spread.of([2.0]).scaled(3) == Spread(median=6, low=6, high=6, samples=1)


def test_thrashing_is_throughput_that_falls_beyond_its_spread() -> None:
    assert [*thrashing([count(0, 90), count(1, 50), count(2, 100), count(4, 180)])] == []
    assert [*thrashing([count(1, 100), count(2, 80, width=0.3)])] == []
    (warning,) = thrashing([count(0, 50), count(1, 50), count(2, 100), count(8, 60)])
    assert "8 loader processes load 60 images/s, 2 load 100; use no more than 2" in warning


def test_contention_is_told_from_other_programs() -> None:
    assert [*contention([count(0, 50, 3), count(1, 50, 2), count(2, 90, None)])] == []
    (warning,) = contention([count(0, 50, 3), count(1, 50, 4), count(4, 50, 120)])
    assert "each of 4 loader processes lost its core 120 times" in warning
    (warning,) = contention([count(0, 50, 90), count(1, 50, 100)])
    assert "other programs use these cores" in warning


def test_threads_that_python_did_not_start_are_counted() -> None:
    stop = threading.Event()

    def start_one() -> None:
        _thread.start_new_thread(stop.wait, ())
        time.sleep(0.02)

    found = watch_threads(start_one, enough_seconds=0)
    try:
        assert found.after == found.before + 1
        (warning,) = own_threads(found)
        assert "1 more after loading" in warning
        assert "OMP_NUM_THREADS=1" in warning
    finally:
        stop.set()


def test_threads_that_compute_and_end_are_noticed() -> None:
    def compress_elsewhere() -> None:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(zlib.compress, [NOISE] * 2))

    found = watch_threads(compress_elsewhere, enough_seconds=0.1)
    assert found.helper_cpu_share > 1
    assert len([*own_threads(found)]) == 1


def test_work_of_one_thread_warns_of_nothing() -> None:
    found = watch_threads(lambda: zlib.compress(NOISE), enough_seconds=0.1)
    assert found.after == found.before
    assert [*own_threads(found)] == []


@pytest.mark.parametrize(
    ("cores", "workers", "needed", "expected"),
    [
        (16, 1, 90, 1),  # one process loads 100 images/s
        (16, 1, 350, 4),
        (16, 1, 10_000, 8),  # none keeps up: 8 come within a tenth of the best
        (4, 1, 10_000, 3),  # one core is left to the training
        (16, 4, 190, 2),  # four workers load at once
        (2, 2, 500, 1),
    ],
)
def test_the_fewest_loaders_that_keep_up_are_tried(
    cores: int, workers: int, needed: float, expected: int
) -> None:
    counts = [count(0, 110), *(count(n, 100 * min(n, 8)) for n in (1, 2, 4, 8, 16))]
    host = Host(cores=cores, workers_per_host=workers, cores_per_worker=cores // workers)
    assert loaders_to_try(counts, host, needed) == expected
    assert loaders_to_try(counts[:1], host, needed) == 0


def test_loaders_are_sensible_where_they_shorten_the_step() -> None:
    assert sensible_loaders(steps(0.1, 0.2, overlapped=0.22)) == 2
    assert sensible_loaders(steps(0.1, 0.2, overlapped=0.31)) == 0
    # Too little to hide: a shorter step is noise.
    assert sensible_loaders(steps(0.001, 0.2, overlapped=0.15)) == 0


def test_input_bound_is_loading_longer_than_the_step() -> None:
    assert is_input_bound(steps(0.2, 0.1, 0.2))
    assert not is_input_bound(steps(0.1, 0.2, 0.2))


def test_times_are_told_with_three_digits_that_count() -> None:
    assert [milliseconds(s) for s in (0.0000123, 0.01234, 1.7404)] == ["0.0123 ms", "12.3 ms", "1,740 ms"]
