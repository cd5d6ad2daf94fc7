"""The counters of processor and GPU around an epoch, of all workers."""

import socket
from collections.abc import Sequence

from unet_scaling.group.group import Group
from unet_scaling.group.processor_quota import ProcessorQuota
from unet_scaling.measure.cpu_counters import (
    MICROSECOND_DIGITS,
    Counters,
    cpu_facts,
    cpu_seconds,
    read_counters,
)
from unet_scaling.measure.gpu_counters import open_gpu
from unet_scaling.measure.quota_meter import QuotaMeter
from unet_scaling.study.measurements import CpuFacts, GpuFacts
from unet_scaling.study.validation import StrictModel


class WorkerCounters(StrictModel):
    """One worker's processor and GPU, as the workers exchange them.

    `host_cores` are those that it may run on; `cpu_seconds` are its own and those of its loader processes.
    """

    cpu: CpuFacts | None
    gpu: GpuFacts | None
    host: str
    host_cores: frozenset[int]
    cpu_seconds: float


class CounterMeter:
    """Reads the counters of this worker before and after an epoch, outside its clock.

    `communication` are the threads that carry gradients, None where they are not known.
    """

    def __init__(
        self, group: Group, communication: frozenset[int] | None, quota: ProcessorQuota | None = None
    ) -> None:
        self._group = group
        self._communication = communication
        self._quota = QuotaMeter(quota) if quota else None
        self._gpu = open_gpu(group.device)

    def begin(self) -> None:
        self._energy = self._gpu.energy_joules() if self._gpu else None
        self._before = read_counters()
        if self._quota:
            self._quota.begin()

    def end(self) -> None:
        self._after = read_counters()
        if self._quota:
            self._quota.end()

    def gather(self) -> tuple[list[CpuFacts] | None, list[GpuFacts] | None]:
        """Return the counters of every worker; None for a kind that any worker lacks."""
        own = self._own_counters().model_dump_json()
        workers = [WorkerCounters.model_validate_json(text) for text in self._group.gather_strings(own)]
        cpu = [_beside_the_others(counters, workers) for counters in workers if counters.cpu is not None]
        gpu = [counters.gpu for counters in workers if counters.gpu is not None]
        return cpu if len(cpu) == len(workers) else None, gpu if len(gpu) == len(workers) else None

    def _own_counters(self) -> WorkerCounters:
        before = self._before
        after = self._after
        return WorkerCounters(
            cpu=self._cpu_facts(before, after) if before and after else None,
            gpu=self._gpu.facts(self._energy) if self._gpu else None,
            host=socket.gethostname(),
            host_cores=after.cores if after else frozenset(),
            cpu_seconds=cpu_seconds(before, after) if before and after else 0.0,
        )

    def _cpu_facts(self, before: Counters, after: Counters) -> CpuFacts:
        facts = cpu_facts(before, after, self._communication)
        return self._quota.undilated(facts, cpu_seconds(before, after)) if self._quota else facts


def _beside_the_others(own: WorkerCounters, workers: Sequence[WorkerCounters]) -> CpuFacts:
    """Return the facts of a worker, with what the other workers had of its cores."""
    assert own.cpu is not None
    if own.cpu.other_seconds is None:
        return own.cpu
    seconds = _other_workers_seconds(own, workers)
    return own.cpu.model_copy(update={"other_workers_seconds": seconds})


def _other_workers_seconds(own: WorkerCounters, workers: Sequence[WorkerCounters]) -> float | None:
    """Return the CPU seconds of all other workers on this one's cores; None where they may be on others."""
    sharing = [
        other
        for other in workers
        if other is not own and other.host == own.host and other.host_cores & own.host_cores
    ]
    if not all(other.host_cores <= own.host_cores for other in sharing):
        return None
    return round(sum(other.cpu_seconds for other in sharing), MICROSECOND_DIGITS)
