"""The resources of the workers of a run: hosts, devices and cores, and whether two of them shared one."""

import re
from collections.abc import Sequence

from unet_scaling.study.record_lines import AttemptFacts, Header
from unet_scaling.study.shared_devices import shared_devices


def sharing(header: Header) -> str:
    """Return which two workers of a run share a device, or on CPU a core of one host; empty where none do."""
    return next((pair for facts in header.attempts() for pair in shared_devices(facts.workers)), "")


def is_sharing(reason: str) -> bool:
    """Return whether a run was refused because two of its workers share a device or core."""
    return re.match(r"workers \d+ and \d+ share ", reason) is not None


def share_cores(header: Header) -> bool:
    """Return whether two workers of a run may run on the same core."""
    cores = [(worker.host, core) for worker in header.workers for core in worker.cores]
    return len(set(cores)) < len(cores)


def moved_between_attempts(header: Header) -> str:
    """Return the hosts of each attempt of a resumed run, where they were not the same; else nothing."""
    used = {facts.attempt: " ".join(sorted(hosts([facts]))) for facts in header.attempts()}
    if len(set(used.values())) < 2:
        return ""
    return ", ".join(f"attempt {number} on {names}" for number, names in used.items())


def hosts(attempts: Sequence[AttemptFacts]) -> frozenset[str]:
    """Return the names of the hosts of all workers in these attempts."""
    return frozenset(worker.host for facts in attempts for worker in facts.workers)
