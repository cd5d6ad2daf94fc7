"""Apply a function to many items with a few threads, in order, with a progress bar on a terminal."""

import itertools
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from unet_scaling.study.progress import progress

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

# Decoders release the lock of the interpreter; a login node is shared with other users.
MOST_THREADS = 4
# Decoded images are large.
ITEMS_AHEAD = 32


def map_in_order(
    function: Callable[[_Item], _Result], items: Sequence[_Item], label: str
) -> Generator[_Result, None, None]:
    """Yield results in the order of the items, with at most ITEMS_AHEAD of them in memory at a time."""
    yield from progress(_results(function, items), len(items), label)


def _results(function: Callable[[_Item], _Result], items: Sequence[_Item]) -> Iterator[_Result]:
    threads = min(MOST_THREADS, len(os.sched_getaffinity(0)))
    with ThreadPoolExecutor(threads) as pool:
        for start in itertools.count(0, ITEMS_AHEAD):
            if start >= len(items):
                return
            yield from pool.map(function, items[start : start + ITEMS_AHEAD])
