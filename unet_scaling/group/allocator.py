"""The allocator of a worker: it keeps the memory of a step for the next one.

By default glibc gives the large tensors of a step back to the system and takes them again in the next one:
every page of them is then cleared and mapped anew. Kept in its heap they cost nothing; but what lasts, and
was allocated between them, leaves holes that they do not fit. So the first step still maps each of them
apart, and what lasts from it (kernels, for the most part) lies close together; `keep_memory` comes after it.
The launcher asks for it; glibc reads its variables before Python starts. Needs neither torch nor a network.
"""

import ctypes
import os
from pathlib import Path

SWITCH = "UNET_SCALING_KEEP_MEMORY"
KEEP_MEMORY = {
    SWITCH: "1",
    # Bytes from which on a block has a mapping of its own; named, or glibc raises it as it goes.
    "MALLOC_MMAP_THRESHOLD_": str(2**17),
    # Huge pages (from glibc 2.35 on; older ones pass over it), and no lists of small blocks that are free and
    # yet part the large ones beside them.
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1:glibc.malloc.tcache_count=0:glibc.malloc.mxfast=0",
}
GLIBC_PREFIX = "MALLOC_"  # of all its variables but the tunables
# Parameters of mallopt, from malloc.h.
M_TRIM_THRESHOLD = -1
M_MMAP_MAX = -4
# A library loaded before all others may bring an allocator that takes the place of glibc's.
PRELOAD = "LD_PRELOAD"


def allocator_settings() -> dict[str, str]:
    """Return glibc's variables of this process, and its preloaded libraries without their folders."""
    settings = {
        name: value
        for name, value in sorted(os.environ.items())
        if name in KEEP_MEMORY or name.startswith(GLIBC_PREFIX)
    }
    # ld.so goes on without a library that it cannot preload.
    preloads = os.environ.get(PRELOAD, "").replace(":", " ").split()
    loaded = [Path(library).name for library in preloads if _is_loaded(library)]
    return settings | ({PRELOAD: " ".join(loaded)} if loaded else {})


def keep_memory() -> None:
    """Take large blocks from glibc's heap from now on and never shrink it, where the launcher asked for that.

    Nothing happens under another C library or allocator.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if os.environ.get(SWITCH) == "1" and mallopt is not None:
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, -1)


def _is_loaded(library: str) -> bool:
    try:
        ctypes.CDLL(library, mode=os.RTLD_NOLOAD)
    except OSError:
        return False
    return True
