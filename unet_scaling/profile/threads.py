"""Threads that libraries start on their own, seen from /proc: OpenMP, OpenBLAS, pyarrow."""

import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

from unet_scaling.profile.results import Threads

STARTERS = re.compile(r"lib(gomp|iomp5|omp|openblas|scipy_openblas|mkl_[a-z_0-9]+|arrow|tbb)\b[^/]*\.so")


def library_threads() -> int:
    """Threads of this process that Python knows nothing of."""
    known = {thread.native_id for thread in threading.enumerate()}
    return sum(int(task.name) not in known for task in Path("/proc/self/task").iterdir())


def thread_starting_libraries() -> list[str]:
    """Libraries in this process's memory that are known to start threads, by name."""
    found = STARTERS.finditer(Path("/proc/self/maps").read_text())
    return sorted({f"lib{match[1]}" for match in found})


def watch_threads(work: Callable[[], object], enough_seconds: float) -> Threads:
    """Repeat `work` in this thread and see which threads it starts, and how much they compute.

    CPU time is that of the process less that of this thread, so it counts threads that have ended.
    """
    before = after = library_threads()
    begin, every, own = time.perf_counter(), time.process_time(), time.thread_time()
    while True:
        work()
        after = max(after, library_threads())
        if time.perf_counter() - begin >= enough_seconds:
            break
    own = time.thread_time() - own
    helpers = max(0.0, time.process_time() - every - own)
    return Threads(
        before=before, after=after, helper_cpu_share=helpers / own, libraries=thread_starting_libraries()
    )
