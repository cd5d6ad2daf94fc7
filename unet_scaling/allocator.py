"""Settings of glibc's allocator, for every worker of both frameworks alike.

By default glibc gives the large tensors of a step back to the system and takes them again in the next one:
every page of them is then cleared and mapped anew. It reads these variables before Python starts, so the
launcher sets them. Needs neither torch nor a network.
"""

# Bytes that are kept: at the end of the heap, and of blocks that would have a mapping of their own.
KEPT_BYTES = 2**40
KEEP_MEMORY = {
    "MALLOC_TRIM_THRESHOLD_": str(KEPT_BYTES),
    "MALLOC_MMAP_THRESHOLD_": str(KEPT_BYTES),
    # Asks for huge pages, from glibc 2.35 on; older ones pass over it.
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}
