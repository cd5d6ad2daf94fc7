"""Work that is spread over the cores of this machine."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, TypeVar, cast

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
# The function of a process beside this one. It is sent once, as it may hold the tables of a whole study.
_function: list[Callable[[Any], Any]] = []


def parallel_map(
    function: Callable[[_Item], _Result], items: Sequence[_Item], *, chunk: int = 1
) -> Iterator[_Result]:
    """Return `function` of each item, computed by one process per available core, `chunk` items at a time.

    They begin at once: the caller may do something else before it takes the results, but start no processes.
    None is started for a single chunk or on a single core. What `function` raises is raised as its result is
    taken.
    """
    processes = min(len(os.sched_getaffinity(0)), -(-len(items) // chunk))
    if processes < 2:
        return map(function, items)
    pool = ProcessPoolExecutor(processes, initializer=_keep, initargs=(function,))
    results = pool.map(_call, items, chunksize=chunk)

    def taken() -> Iterator[_Result]:
        with pool:
            yield from cast(Iterator[_Result], results)

    return taken()


def _keep(function: Callable[[Any], Any]) -> None:
    _function[:] = [function]


def _call(item: object) -> object:
    return _function[0](item)
