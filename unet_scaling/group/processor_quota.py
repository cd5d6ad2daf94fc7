"""The quota of a worker of a dilated cluster: its cores, slowed, as a part of this machine's processors.

The worker starts without it, since nothing of its imports is measured, and enters before the first clock
starts. It leaves by its end; the next worker, or `slurm/virtual_cluster down`, removes its groups.
"""

import os
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import active_children
from pathlib import Path

from unet_scaling.group.identity import CORES_VARIABLE, Identity
from unet_scaling.study.control_groups import (
    enter_group,
    enter_thread_group,
    groups_of_threads,
    make_quota_group,
    quota_of_cores,
    remove_group,
    throttled_seconds,
)
from unet_scaling.study.dilation import DILATION_VARIABLE, QUOTA_FOLDER_VARIABLE, dilation, is_dilated
from unet_scaling.study.errors import UserError

_CURE = "start the run in a job of `slurm/virtual_cluster up --dilate`"


@dataclass(frozen=True)
class ProcessorQuota:
    """The control group of this worker: `cores` of the machine that is stood for, on `processors` of this."""

    folder: Path
    cores: int
    processors: int

    def throttled_seconds(self) -> float:
        """Return for how long, by this machine's clock, it or that of a thread was used up.

        Summed over processors and threads.
        """
        groups = [self.folder, *groups_of_threads(self.folder)]
        return sum(map(throttled_seconds, groups))


def emulated_cores(identity: Identity, wanted: int | None = None) -> list[int]:
    """Return the cores that this worker has on the host that is stood for, the first `wanted` of its share.

    Each belongs to one worker: the quota gives it, whoever runs on the processors of this machine.
    Raises UserError where the cluster file does not say how many each worker has.
    """
    share = os.environ.get(CORES_VARIABLE)
    if share is None:
        raise UserError(
            f"{DILATION_VARIABLE} = {dilation():g}, but {CORES_VARIABLE} is not set: a dilated cluster has "
            "to know the cores of each worker; set pin_cores = true in the cluster file"
        )
    first = identity.local_rank * int(share)
    return list(range(first, first + int(share)))[:wanted]


def own_processors(identity: Identity, cores: int, processors: list[int]) -> list[int]:
    """Return which processors of this machine stand for so many cores of this worker.

    All hosts are this machine, so ranks are dealt out in turn. Never more than the worker has cores: its
    threads must not run at once where they could not there.
    """
    first = identity.rank * cores
    return sorted({processors[(first + number) % len(processors)] for number in range(cores)})


def enter_quota(identity: Identity, cores: int, threads: Collection[int]) -> ProcessorQuota | None:
    """Put this process and its loader processes under the quota of so many cores; None on a machine at speed.

    Where it has several, each of its `threads` gets at most one: under the quota of the worker alone, one
    could run as fast as all its cores together. A thread that starts later shares the core of the one that
    started it. Raises UserError where there is no group to make it in, or the kernel refuses it.
    """
    if not is_dilated():
        return None
    processors = len(os.sched_getaffinity(0))
    _require_slow_enough(cores, processors)
    cluster = _folder_of_cluster()
    _remove_ended(cluster)
    folder = cluster / f"worker{identity.rank}.{os.getpid()}"
    make_quota_group(folder, quota_of_cores(cores / dilation(), processors))
    children = [child.pid for child in active_children() if child.pid is not None]
    enter_group(folder, [os.getpid(), *children])
    if cores > 1:
        for thread in threads:
            enter_thread_group(folder, thread, quota_of_cores(1 / dilation(), processors=1))
    return ProcessorQuota(folder, cores, processors)


def _remove_ended(cluster: Path) -> None:
    """Remove the groups of workers that have ended, for a group of each thread adds up."""
    for folder in cluster.glob("worker*.*"):
        if not Path("/proc", folder.suffix[1:]).exists():
            with suppress(OSError):  # another worker removes it, or it has a loader process yet
                remove_group(folder)


def _require_slow_enough(cores: int, processors: int) -> None:
    if cores / dilation() > processors:
        raise UserError(
            f"{DILATION_VARIABLE} = {dilation():g}: {cores} cores of a worker need {cores / dilation():.3g} "
            f"processors of this machine, which has {processors}; use `slurm/virtual_cluster up --dilate` "
            f"with at least {cores / processors:g}"
        )


def _folder_of_cluster() -> Path:
    text = os.environ.get(QUOTA_FOLDER_VARIABLE)
    if not text or not Path(text).is_dir():
        found = "is not set" if not text else f"= {text!r} is no folder"
        raise UserError(f"{DILATION_VARIABLE} = {dilation():g}, but {QUOTA_FOLDER_VARIABLE} {found}: {_CURE}")
    return Path(text)
