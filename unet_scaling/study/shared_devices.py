"""Devices and cores that two workers both use: neither then has what its speed is said to be of."""

from collections.abc import Sequence

from unet_scaling.study.record_lines import WorkerFacts


def owned_devices(worker: WorkerFacts) -> list[tuple[str, str]]:
    """Return what a worker has for itself: its GPU, or on a CPU its cores."""
    if worker.device_uuid:
        return [("device", worker.device_uuid)]
    return [(f"core {core} of", f"host {worker.host}") for core in worker.cores]


def shared_devices(workers: Sequence[WorkerFacts]) -> list[str]:
    """Return a sentence for each GPU or core that two workers both have."""
    first_owner: dict[tuple[str, str], int] = {}
    sentences = []
    for rank, worker in enumerate(workers):
        for device in owned_devices(worker):
            first = first_owner.setdefault(device, rank)
            if first != rank:
                sentences.append(f"workers {first} and {rank} share {' '.join(device)}")
    return sentences
