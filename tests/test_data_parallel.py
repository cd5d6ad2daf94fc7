"""Threads change the speed and nothing else."""

import threading

import pytest

from unet_scaling.data.parallel import map_in_order


def test_results_keep_the_order_of_their_items() -> None:
    assert list(map_in_order(lambda item: item * item, range(100), "test")) == [n * n for n in range(100)]
    assert list(map_in_order(str, [], "test")) == []


def test_an_error_reaches_the_caller() -> None:
    def fail(item: int) -> int:
        if item == 70:
            raise ValueError("item 70")
        return item

    results = map_in_order(fail, range(100), "test")
    assert [next(results) for _ in range(70)] == list(range(70))
    with pytest.raises(ValueError, match="item 70"):
        next(results)


def test_no_more_than_some_dozens_of_items_are_ahead() -> None:
    started: list[int] = []
    lock = threading.Lock()

    def start(item: int) -> int:
        with lock:
            started.append(item)
        return item

    results = map_in_order(start, range(10_000), "test")
    next(results)
    assert len(started) <= 32
    results.close()
