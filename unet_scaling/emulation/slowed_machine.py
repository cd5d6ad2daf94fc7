"""A machine that is slowed, so that it stands for several: many workers fit on few cores.

Time dilation after Gupta et al., NSDI 2006: cores, links and time-outs are slowed alike, and their
proportions stay. A virtual cluster tells its workers by variables how much.
"""

import os
from collections.abc import Collection
from pathlib import Path

from unet_scaling.base.errors import UserError
from unet_scaling.base.machine import SLOWED_VARIABLE, CoreQuota, Machine
from unet_scaling.emulation.processor_quota import (
    QUOTA_FOLDER_VARIABLE,
    ProcessorQuota,
    enter_quota,
    own_processors,
)
from unet_scaling.format.record_lines import CpuFacts, QuotaFacts
from unet_scaling.group.identity import CORES_VARIABLE
from unet_scaling.measure.counters import MICROSECOND_DIGITS, Counters, cpu_seconds

_CURE = "start the run in a job of `slurm/virtual_cluster up --dilate`"


class SlowedMachine(Machine):
    """This machine, slowed. Raises UserError where the factor is below 1 or no number."""

    def __init__(self) -> None:
        text = os.environ[SLOWED_VARIABLE]
        try:
            self.factor = float(text)
        except ValueError:
            self.factor = 0.0
        if not 1 <= self.factor < float("inf"):
            raise UserError(
                f"{SLOWED_VARIABLE} = {text!r}: a number of at least 1 is needed; the cluster sets it"
            )

    def require_no_gpu(self, visible: int) -> None:
        if visible and self.is_slowed:
            raise UserError(
                f"{self} slows cores and links, but no GPU: hide the {visible} GPUs from the workers "
                "(CUDA_VISIBLE_DEVICES= in the cluster file's environment)"
            )

    def dealt_cores(self, local_rank: int, wanted: int | None = None) -> list[int] | None:
        """Return the cores that a worker has on its emulated host.

        Each belongs to one worker: the quota gives it, whoever runs on the processors of this machine.
        Raises UserError where the cluster file does not say how many each worker has.
        """
        share = os.environ.get(CORES_VARIABLE)
        if share is None:
            raise UserError(
                f"{self}, but {CORES_VARIABLE} is not set: a dilated cluster has to know the cores of each "
                "worker; set pin_cores = true in the cluster file"
            )
        first = local_rank * int(share)
        return list(range(first, first + int(share)))[:wanted]

    def processors(self, rank: int, cores: list[int]) -> list[int]:
        return own_processors(rank, len(cores), sorted(os.sched_getaffinity(0)))

    def enter_quota(self, rank: int, cores: int, threads: Collection[int]) -> ProcessorQuota:
        """Put this process and its loader processes under the quota of so many cores.

        Raises UserError where there is no group to make it in, or the kernel refuses it.
        """
        processors = len(os.sched_getaffinity(0))
        if cores / self.factor > processors:
            raise UserError(
                f"{self}: {cores} cores of a worker need {cores / self.factor:.3g} processors of this "
                f"machine, which has {processors}; use `slurm/virtual_cluster up --dilate` with at least "
                f"{cores / processors:g}"
            )
        folder = os.environ.get(QUOTA_FOLDER_VARIABLE)
        if not folder or not Path(folder).is_dir():
            found = "is not set" if not folder else f"= {folder!r} is no folder"
            raise UserError(f"{self}, but {QUOTA_FOLDER_VARIABLE} {found}: {_CURE}")
        return enter_quota(Path(folder), rank, cores, threads, self.factor)

    def facts_there(self, facts: CpuFacts, before: Counters, after: Counters, quota: CoreQuota) -> CpuFacts:
        """Return the facts of an epoch with those of the quota, as the emulated machine has them.

        What others did on the same processors says nothing there, since all workers share them here. While
        the training thread is throttled it counts as ready. A thread that alone has its core runs a k-th of
        the time that it is ready here, and all of it there: what is ready for longer waited for another one.
        """
        waited = facts.training_runqueue_seconds
        if waited is not None:
            ran = facts.thread_seconds["training"]
            waited = round(max(0.0, (ran + waited) / self.factor - ran), MICROSECOND_DIGITS)
        quota_facts = None
        if before.machine_seconds is not None and after.machine_seconds is not None:
            possible = (os.cpu_count() or 1) * (after.moment - before.moment)
            # The counters advance in ticks, the clock does not.
            idle = min(1.0, max(0.0, 1 - (after.machine_seconds - before.machine_seconds) / possible))
            throttled = (after.throttled_seconds - before.throttled_seconds) / self.factor
            quota_facts = QuotaFacts(
                used_seconds=round(cpu_seconds(before, after), MICROSECOND_DIGITS),
                throttled_seconds=round(throttled, MICROSECOND_DIGITS),
                processors=quota.processors,
                idle_share=round(idle, MICROSECOND_DIGITS),
            )
        update = {
            "cores": quota.cores,
            "other_seconds": None,
            "training_runqueue_seconds": waited,
            "quota": quota_facts,
        }
        return facts.model_copy(update=update)

    def __str__(self) -> str:
        return f"{SLOWED_VARIABLE} = {self.factor:g}"
