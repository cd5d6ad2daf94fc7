"""Work spread over processes is the same work: its order, its errors, and none for what is small."""

import os
from functools import partial

import pytest

from analysis import processes


def scaled(factor: int, number: int) -> tuple[int, int]:
    """A result and the process that made it."""
    return factor * number, os.getpid()


def refused(number: int) -> int:
    raise ValueError(f"number {number}")


@pytest.fixture
def two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: {0, 1})


@pytest.mark.usefixtures("two_processors")
def test_results_come_in_the_order_of_the_items_from_other_processes() -> None:
    results, made_by = zip(*processes.parallel_map(partial(scaled, 3), range(20), chunk=4), strict=True)
    assert list(results) == [3 * number for number in range(20)]
    assert os.getpid() not in made_by


@pytest.mark.usefixtures("two_processors")
def test_few_items_stay_in_this_process() -> None:
    assert list(processes.parallel_map(partial(scaled, 3), [1, 2], chunk=2)) == [
        (3, os.getpid()),
        (6, os.getpid()),
    ]
    assert list(processes.parallel_map(partial(scaled, 3), [])) == []


def test_one_processor_needs_no_further_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: {0})
    assert list(processes.parallel_map(partial(scaled, 3), [1, 2])) == [(3, os.getpid()), (6, os.getpid())]


@pytest.mark.usefixtures("two_processors")
def test_an_error_there_is_raised_here() -> None:
    with pytest.raises(ValueError, match="number 5"):
        list(processes.parallel_map(refused, [5, 6]))
