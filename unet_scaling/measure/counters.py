"""The counters of processor and GPU around an epoch, of all workers."""

import importlib
import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from unet_scaling.group.group import Group
from unet_scaling.group.processor_quota import ProcessorQuota
from unet_scaling.measure.cpu_counters import (
    MICROSECOND_DIGITS,
    busy_seconds,
    cpu_facts,
    cpu_seconds,
    read_counters,
)
from unet_scaling.study.dilation import dilation
from unet_scaling.study.record_lines import CpuFacts, GpuFacts, QuotaFacts
from unet_scaling.study.validation import StrictModel


class WorkerCounters(StrictModel):
    """One worker's processor and GPU, as the workers exchange them.

    `host_cores` are those that it may run on; `cpu_seconds` are its own and those of its loader processes.
    """

    cpu: CpuFacts
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

    def gather(self) -> tuple[list[CpuFacts], list[GpuFacts] | None]:
        """Return the counters of every worker; of GPUs None where any worker lacks them."""
        used = cpu_seconds(self._before, self._after)
        facts = cpu_facts(self._before, self._after, self._communication)
        if self._quota:
            facts = self._quota.undilated(facts, used)
        own = WorkerCounters(
            cpu=facts,
            gpu=self._gpu.facts(self._energy) if self._gpu else None,
            host=socket.gethostname(),
            host_cores=self._after.cores,
            cpu_seconds=used,
        )
        texts = self._group.gather_strings(own.model_dump_json())
        workers = [WorkerCounters.model_validate_json(text) for text in texts]
        cpu = [_beside_the_others(counters, workers) for counters in workers]
        gpu = [counters.gpu for counters in workers if counters.gpu is not None]
        return cpu, gpu if len(gpu) == len(workers) else None


def _beside_the_others(own: WorkerCounters, workers: Sequence[WorkerCounters]) -> CpuFacts:
    """Return the facts of a worker, with the CPU seconds of all other workers on its cores.

    These are None where the others may be on other cores.
    """
    if own.cpu.other_seconds is None:
        return own.cpu
    sharing = [
        other
        for other in workers
        if other is not own and other.host == own.host and other.host_cores & own.host_cores
    ]
    seconds = None
    if all(other.host_cores <= own.host_cores for other in sharing):
        seconds = round(sum(other.cpu_seconds for other in sharing), MICROSECOND_DIGITS)
    return own.cpu.model_copy(update={"other_workers_seconds": seconds})


class Gpu:
    """One GPU and its driver's counters; None for each that the driver does not provide."""

    def __init__(self, library: Any, handle: Any) -> None:  # noqa: ANN401, NVML's objects have no types
        self._library = library
        self._handle = handle

    def energy_joules(self) -> float | None:
        """Return the energy since the driver was loaded; only differences mean anything."""
        millijoules = self._ask(self._library.nvmlDeviceGetTotalEnergyConsumption)
        return None if millijoules is None else millijoules / 1000

    def facts(self, energy_before: float | None) -> GpuFacts:
        """Return the present state, and the energy since `energy_before`."""
        rates = self._ask(self._library.nvmlDeviceGetUtilizationRates)
        memory = self._ask(self._library.nvmlDeviceGetMemoryInfo)
        milliwatts = self._ask(self._library.nvmlDeviceGetPowerUsage)
        limit = self._ask(self._library.nvmlDeviceGetEnforcedPowerLimit)
        energy = self.energy_joules()
        return GpuFacts(
            utilization=None if rates is None else rates.gpu / 100,
            memory_bytes=None if memory is None else memory.used,
            power_watts=None if milliwatts is None else milliwatts / 1000,
            energy_joules=None if energy is None or energy_before is None else energy - energy_before,
            power_limit_watts=None if limit is None else limit / 1000,
        )

    def _ask(self, question: Callable[[Any], Any]) -> Any:  # noqa: ANN401
        try:
            return question(self._handle)
        except self._library.NVMLError:
            return None


def open_gpu(device: torch.device) -> Gpu | None:
    """Return the worker's GPU; None for a CPU worker and where NVML is not installed."""
    if device.type != "cuda":
        return None
    try:
        library = importlib.import_module("pynvml")
    except ImportError:
        return None
    return gpu_of(library, f"GPU-{torch.cuda.get_device_properties(device).uuid}")


def gpu_of(library: Any, uuid: str) -> Gpu | None:  # noqa: ANN401
    """Return the GPU of this UUID; None where the driver does not answer."""
    try:
        library.nvmlInit()
        return Gpu(library, library.nvmlDeviceGetHandleByUUID(uuid))
    except library.NVMLError:
        return None


@dataclass(frozen=True)
class _Reading:
    """By this machine's clock, since some moment before the epoch."""

    seconds: float
    throttled_seconds: float
    busy_seconds: float | None


class QuotaMeter:
    """What the quota did to a worker from the begin of an epoch to its end, and how busy the machine was."""

    def __init__(self, quota: ProcessorQuota) -> None:
        self._quota = quota
        self._processors = range(os.cpu_count() or 1)

    def begin(self) -> None:
        self._before = self._read()

    def end(self) -> None:
        self._after = self._read()

    def undilated(self, facts: CpuFacts, cpu_seconds: float) -> CpuFacts:
        """Return the facts with those of the quota, as the machine has them that is stood for.

        What others did on the same processors says nothing there, since all workers share them here.
        """
        update = {
            "cores": self._quota.cores,
            "other_seconds": None,
            "training_runqueue_seconds": _undilated_waiting(facts),
            "quota": self._facts(cpu_seconds),
        }
        return facts.model_copy(update=update)

    def _read(self) -> _Reading:
        now = time.perf_counter()
        return _Reading(now, self._quota.throttled_seconds(), busy_seconds(self._processors))

    def _facts(self, cpu_seconds: float) -> QuotaFacts | None:
        """Return what the quota did; None where the system does not say how busy it was."""
        before, after = self._before, self._after
        if before.busy_seconds is None or after.busy_seconds is None:
            return None
        possible = len(self._processors) * (after.seconds - before.seconds)
        # The counters advance in ticks, the clock does not.
        idle = min(1.0, max(0.0, 1 - (after.busy_seconds - before.busy_seconds) / possible))
        throttled = (after.throttled_seconds - before.throttled_seconds) / dilation()
        return QuotaFacts(
            used_seconds=round(cpu_seconds, MICROSECOND_DIGITS),
            throttled_seconds=round(throttled, MICROSECOND_DIGITS),
            processors=self._quota.processors,
            idle_share=round(idle, MICROSECOND_DIGITS),
        )


def _undilated_waiting(facts: CpuFacts) -> float | None:
    """Return how long the training thread would have been ready, but without a core.

    While it is throttled it counts as ready. A thread that alone has its core runs a k-th of the time that it
    is ready here, and all of it there: what is ready for longer waited for another one.
    """
    waited = facts.training_runqueue_seconds
    if waited is None:
        return None
    ran = facts.thread_seconds["training"]
    return round(max(0.0, (ran + waited) / dilation() - ran), MICROSECOND_DIGITS)
