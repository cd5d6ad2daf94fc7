"""Who lets go of the process group last: Python, and not DDP's reducer."""

import atexit


def hold_until_exit(process_group: object) -> None:
    """Keep a process group of torch until Python ends, to be called before it is destroyed.

    DDP's reducer holds the group, too. If it were the last to do so, its destructor would wait, holding the
    interpreter's lock, for a thread of Gloo, which may wait for that lock to free the tensors of the last
    sum: the worker would never end. Python's own reference releases the lock meanwhile.
    """
    atexit.register(id, process_group)
