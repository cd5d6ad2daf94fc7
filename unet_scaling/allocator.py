"""Settings of the memory allocator, for every worker of both frameworks alike.

By default glibc gives the large tensors of a step back to the system and takes them again in the next one:
every page of them is then cleared and mapped anew. It reads these variables before Python starts, so the
launcher sets them. Needs neither torch nor a network.
"""

import ctypes
import os
from pathlib import Path

# Bytes that are kept: at the end of the heap, and of blocks that would have a mapping of their own.
KEPT_BYTES = 2**40
KEEP_MEMORY = {
    "MALLOC_TRIM_THRESHOLD_": str(KEPT_BYTES),
    "MALLOC_MMAP_THRESHOLD_": str(KEPT_BYTES),
    # Asks for huge pages, from glibc 2.35 on; older ones pass over it.
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}
# A library loaded before all others may bring an allocator that takes the place of glibc's.
PRELOAD = "LD_PRELOAD"


def allocator_settings() -> dict[str, str]:
    """What this process found set: glibc's variables, and the preloaded libraries without their folders."""
    found = {name: os.environ[name] for name in KEEP_MEMORY if name in os.environ}
    asked = os.environ.get(PRELOAD, "").replace(":", " ").split()
    loaded = [Path(library).name for library in asked if _is_loaded(library)]
    return found | ({PRELOAD: " ".join(loaded)} if loaded else {})


def _is_loaded(library: str) -> bool:
    """ld.so goes on without a library that it cannot preload."""
    try:
        ctypes.CDLL(library, mode=os.RTLD_NOLOAD)
    except OSError:
        return False
    return True
