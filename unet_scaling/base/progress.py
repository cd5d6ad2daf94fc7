"""Show progress: a bar on a terminal, also of threads; to the launcher of a run, the steps that are done."""

import os
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np
from tqdm import tqdm

# The file in which worker 0 counts, where a launcher on the same machine asks for it: its epoch, from 0, the
# steps done of it, and all its steps, as three integers of eight bytes.
STEPS_VARIABLE = "UNET_SCALING_STEPS_FILE"
# Decoders release the lock of the interpreter; a login node is shared with other users.
MOST_THREADS = 4
# Decoded images are large.
ITEMS_AHEAD = 32

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def progress(items: Iterable[_Item], total: int, label: str, shown: bool = True) -> Iterator[_Item]:
    """Yield the items, with a bar on standard error where that is a terminal."""
    hidden = not (shown and sys.stderr.isatty())
    yield from tqdm(items, total=total, desc=label, disable=hidden, leave=False, unit="step")


def counted(steps: Iterable[_Item], epoch: int, done: int, total: int) -> Iterator[_Item]:
    """Yield the steps of an epoch; where the launcher asks for it, count them in memory shared with it."""
    path = Path(os.environ.get(STEPS_VARIABLE, ""))
    counts = np.memmap(path, np.int64, "r+", shape=3) if path.is_file() else np.zeros(3, np.int64)
    counts[:] = epoch, done, total
    for step in steps:
        yield step
        counts[1] += 1


def map_in_order(
    function: Callable[[_Item], _Result], items: Sequence[_Item], label: str
) -> Generator[_Result, None, None]:
    """Yield results of a few threads in the order of the items, at most ITEMS_AHEAD in memory at a time."""
    with ThreadPoolExecutor(min(MOST_THREADS, len(os.sched_getaffinity(0)))) as pool:
        blocks = (items[start : start + ITEMS_AHEAD] for start in range(0, len(items), ITEMS_AHEAD))
        results = (result for block in blocks for result in pool.map(function, block))
        yield from progress(results, len(items), label)
