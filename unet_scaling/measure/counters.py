"""The counters of processor, memory and GPU around an epoch, of all workers; Linux only.

CPU seconds of threads come from /proc/self/task: its schedstat where the kernel keeps one
(nanoseconds), else its stat (clock ticks). Those of whole cores come from /proc/stat (clock ticks).
Layouts: proc(5).
"""

import importlib
import os
import re
import resource
import socket
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import torch

from unet_scaling.base.machine import CoreQuota, machine
from unet_scaling.base.validation import StrictModel
from unet_scaling.format.record_lines import CpuFacts, GpuFacts
from unet_scaling.group.group import Group
from unet_scaling.group.watchdog import PROCESSES, TASKS, blocking, busy_seconds, stat_seconds, thread_ids

CPUINFO = Path("/proc/cpuinfo")
FREQUENCIES = Path("/sys/devices/system/cpu")
# The largest of other threads are recorded by their names; the rest is noise.
NAMED_THREADS = 3
NANOSECONDS = 1e-9
MICROSECOND_DIGITS = 6
# No thread has this name: Linux cuts names at 15 characters.
COMMUNICATION = "threads of the communication"
# The unit of ru_maxrss on Linux.
KIBIBYTE = 1024
# Names of threads of the CUDA driver, and of torch's backward pass. NCCL names its own only
# under NCCL_SET_THREAD_NAME = 1: they are told by when they are born.
NOT_COMMUNICATION = ("cuda", "pt_autograd_")
# NCCL connects the workers otherwise for short messages than for long ones.
FIRST_SUMS_BYTES = (4, 2**24)
# A GPU's UUID as NVML wants it; torch gives it without.
UUID_PREFIXES = ("GPU-", "MIG-")
WITHOUT_NVML = "the report will lack load, memory, clock, throttling, power and energy of the GPUs"
# Bits of NVML's clock event reasons that hold the clock down; an idle GPU and clocks that were set are none.
THROTTLE_REASONS = {
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
}
# NVML's policies that count the time for which they held the clock down.
COUNTED_REASONS = {
    "NVML_PERF_POLICY_POWER": "sw_power_cap",
    "NVML_PERF_POLICY_THERMAL": "sw_thermal_slowdown",
}
# A cause that held the clock down for a smaller share of an epoch decides no speed.
LEAST_THROTTLED_SHARE = 0.01


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
        self, group: Group, communication: frozenset[int] | None, quota: CoreQuota | None = None
    ) -> None:
        self._group = group
        self._communication = communication
        self._quota = quota
        self._gpu = open_gpu(group.device, warns=group.rank == 0)
        self._is_told = False

    def begin(self) -> None:
        if self._gpu:
            self._gpu.begin()
        self._before = read_counters(self._quota)

    def end(self) -> None:
        self._after = read_counters(self._quota)
        # Before the workers exchange anything: a GPU that idles needs less power, and nothing throttles it.
        self._gpu_facts = self._gpu.facts() if self._gpu else None

    def gather(self) -> tuple[list[CpuFacts], list[GpuFacts] | None]:
        """Return the counters of every worker; of GPUs None where any worker lacks them."""
        facts = cpu_facts(self._before, self._after, self._communication)
        if self._quota:
            facts = machine().facts_there(facts, self._before, self._after, self._quota)
        own = WorkerCounters(
            cpu=facts,
            gpu=self._gpu_facts,
            host=socket.gethostname(),
            host_cores=self._after.cores,
            cpu_seconds=cpu_seconds(self._before, self._after),
        )
        workers = self._group.gather_models(own)
        cpu = [_beside_the_others(counters, workers) for counters in workers]
        gpu = [counters.gpu for counters in workers if counters.gpu is not None]
        if own.gpu and len(gpu) < len(workers) and self._group.rank == 0 and not self._is_told:
            self._is_told = True
            silent = next(counters.host for counters in workers if counters.gpu is None)
            print(f"warning: no NVML on {silent}: {WITHOUT_NVML}", file=sys.stderr, flush=True)
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

    def __init__(self, library: Any, handle: Any, device: torch.device) -> None:  # noqa: ANN401, has no types
        self._library = library
        self._handle = handle
        self._device = device

    def begin(self) -> None:
        """Begin an epoch: what is counted from here on is told by `facts`."""
        torch.cuda.reset_peak_memory_stats(self._device)
        self._energy = self._energy_joules()
        self._throttled = self._throttled_seconds()
        self._begun = time.monotonic()

    def facts(self) -> GpuFacts:
        """Return the present state, and what was counted since `begin`."""
        library = self._library
        mhz = self._ask(library.nvmlDeviceGetClockInfo, library.NVML_CLOCK_SM)
        reasons = self._throttle_reasons()
        milliwatts = self._ask(library.nvmlDeviceGetPowerUsage)
        energy = self._energy_joules()
        rates = self._ask(library.nvmlDeviceGetUtilizationRates)
        memory = self._ask(library.nvmlDeviceGetMemoryInfo)
        limit = self._ask(library.nvmlDeviceGetEnforcedPowerLimit)
        return GpuFacts(
            utilization=None if rates is None else rates.gpu / 100,
            memory_bytes=None if memory is None else memory.used,
            power_watts=None if milliwatts is None else milliwatts / 1000,
            energy_joules=None if energy is None or self._energy is None else energy - self._energy,
            power_limit_watts=None if limit is None else limit / 1000,
            sm_clock_mhz=mhz,
            throttle_reasons=reasons,
            other_memory_bytes=self._other_memory_bytes(),
            peak_allocated_bytes=torch.cuda.max_memory_allocated(self._device),
        )

    def _energy_joules(self) -> float | None:
        """Return the energy since the driver was loaded; only differences mean anything."""
        millijoules = self._ask(self._library.nvmlDeviceGetTotalEnergyConsumption)
        return None if millijoules is None else millijoules / 1000

    def _throttled_seconds(self) -> dict[str, float]:
        """Return by reason for how long the driver has held the clock down, for those that it counts."""
        counted = {}
        for policy, reason in COUNTED_REASONS.items():
            status = self._ask(self._library.nvmlDeviceGetViolationStatus, getattr(self._library, policy))
            if status is not None:
                counted[reason] = status.violationTime * NANOSECONDS
        return counted

    def _throttle_reasons(self) -> list[str] | None:
        """Return what holds the clock down now, or did so for a part of the epoch that counts."""
        bits = self._ask(self._library.nvmlDeviceGetCurrentClocksThrottleReasons)
        counted = self._throttled_seconds()
        if bits is None and not counted:
            return None
        least = LEAST_THROTTLED_SHARE * (time.monotonic() - self._begun)
        found = {name for bit, name in THROTTLE_REASONS.items() if (bits or 0) & bit}
        before = self._throttled
        found |= {name for name, seconds in counted.items() if seconds - before.get(name, seconds) > least}
        return sorted(found)

    def _other_memory_bytes(self) -> int | None:
        """Return the memory that other processes use; None where the driver does not list this process.

        In a container processes have other numbers than the driver's.
        """
        # Ask version 2: in version 1 the memory in use includes what the driver keeps for itself.
        memory = self._ask(self._library.nvmlDeviceGetMemoryInfo, self._library.nvmlMemory_v2)
        processes = self._ask(self._library.nvmlDeviceGetComputeRunningProcesses) or ()
        own = [process.usedGpuMemory for process in processes if process.pid == os.getpid()]
        if memory is None or not own or None in own:
            return None
        others: int = memory.used - sum(own)
        return max(0, others)

    def _ask(self, question: Callable[..., Any], *about: object) -> Any:  # noqa: ANN401
        try:
            return question(self._handle, *about)
        except self._library.NVMLError:
            return None


def open_gpu(device: torch.device, *, warns: bool = False) -> Gpu | None:
    """Return the worker's GPU; None for a CPU worker, and where NVML or its driver does not answer.

    `warns`: then print why, and what the report will lack.
    """
    if device.type != "cuda":
        return None
    uuid = str(torch.cuda.get_device_properties(device).uuid)
    try:
        library = importlib.import_module("pynvml")
        return gpu_of(library, uuid, device)
    except ImportError:
        reason = "nvidia-ml-py is not installed"
    except library.NVMLError as error:
        reason = f"NVML: {error}"
    if warns:
        print(f"warning: {reason}: {WITHOUT_NVML}", file=sys.stderr, flush=True)
    return None


def gpu_of(library: Any, uuid: str, device: torch.device) -> Gpu:  # noqa: ANN401
    """Return the GPU or MIG instance of this UUID. Raises NVMLError where the driver does not answer."""
    library.nvmlInit()
    whole, instance = (uuid if uuid.startswith(UUID_PREFIXES) else prefix + uuid for prefix in UUID_PREFIXES)
    try:
        return Gpu(library, library.nvmlDeviceGetHandleByUUID(whole), device)
    except library.NVMLError:
        return Gpu(library, library.nvmlDeviceGetHandleByUUID(instance), device)


def communication_threads(before: frozenset[int]) -> frozenset[int]:
    """Return the threads born since `before` but those of the driver and of the backward pass.

    They carry gradients where nothing but joining the group and its sums came between.
    """
    born = {task: thread for task in thread_ids() - before if (thread := _thread(task)) is not None}
    return frozenset(task for task, (name, _) in born.items() if not name.startswith(NOT_COMMUNICATION))


def threads_of_first_sums(group: Group, before: frozenset[int]) -> frozenset[int]:
    """Return the threads born since `before` that carry gradients, once sums have started NCCL's."""
    with blocking:
        for size in FIRST_SUMS_BYTES:
            group.sum_over_workers(torch.zeros(size // 4, device=group.device))[0].item()
    return communication_threads(before)


@dataclass(frozen=True)
class Counters:
    """Everything counted since the start of the process; under a quota also its own counts.

    These are by the clock of this machine, `moment`; `machine_seconds` are those in which its processors were
    busy, None where the system does not say.
    """

    process_seconds: float
    training_seconds: float
    training_runqueue_seconds: float | None
    peak_memory_bytes: int
    threads: dict[int, tuple[str, float]]
    cores: frozenset[int]
    core_seconds: float | None
    children_seconds: float
    moment: float = 0.0
    throttled_seconds: float = 0.0
    machine_seconds: float | None = None


def read_counters(quota: CoreQuota | None = None) -> Counters:
    """Return the counters of this process and of the calling thread."""
    cores = frozenset(os.sched_getaffinity(0))
    others = thread_ids() - {os.getpid()}
    return Counters(
        process_seconds=time.process_time(),
        training_seconds=time.thread_time(),
        training_runqueue_seconds=_runqueue_seconds(),
        peak_memory_bytes=peak_memory_bytes(),
        threads={task: thread for task in others if (thread := _thread(task)) is not None},
        cores=cores,
        core_seconds=busy_seconds(cores),
        children_seconds=_children_seconds(),
        moment=time.perf_counter(),
        throttled_seconds=quota.throttled_seconds() if quota else 0.0,
        machine_seconds=busy_seconds(range(os.cpu_count() or 1)) if quota else None,
    )


def peak_memory_bytes() -> int:
    """Return the most memory that this process has held so far.

    On Linux by its high-water mark: ru_maxrss begins with what the process held that started it.
    """
    with suppress(OSError, ValueError):
        _, found = Path("/proc/self/status").read_text().split("VmHWM:", 1)
        return int(found.split()[0]) * KIBIBYTE
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIBIBYTE


def cpu_facts(before: Counters, after: Counters, communication: frozenset[int] | None) -> CpuFacts:
    """Return the difference of two readings.

    `communication` are the threads that carry gradients; None where they are not known among the others.
    """
    return CpuFacts(
        process_seconds=round(after.process_seconds - before.process_seconds, MICROSECOND_DIGITS),
        thread_seconds=_thread_seconds(before, after, communication),
        training_runqueue_seconds=_difference(
            before.training_runqueue_seconds, after.training_runqueue_seconds
        ),
        other_seconds=_other_seconds(before, after),
        cores=len(os.sched_getaffinity(0)),
        peak_memory_bytes=after.peak_memory_bytes,
        frequency_mhz=_frequency_mhz(),
    )


def _difference(before: float | None, after: float | None) -> float | None:
    if before is None or after is None:
        return None
    return round(max(0.0, after - before), MICROSECOND_DIGITS)


def _other_seconds(before: Counters, after: Counters) -> float | None:
    """Return the CPU seconds of this process's cores that neither it nor its loader processes used."""
    if before.core_seconds is None or after.core_seconds is None or before.cores != after.cores:
        return None
    others = after.core_seconds - before.core_seconds - cpu_seconds(before, after)
    return round(max(0.0, others), MICROSECOND_DIGITS)


def cpu_seconds(before: Counters, after: Counters) -> float:
    """Return the CPU seconds of this process and its loader processes between two readings."""
    own = after.process_seconds - before.process_seconds
    return own + max(0.0, after.children_seconds - before.children_seconds)


def _children_seconds() -> float:
    """Return the CPU seconds of the loader processes, which live as long as this process."""
    seconds = 0.0
    for child in active_children():
        with suppress(FileNotFoundError, ProcessLookupError):
            seconds += stat_seconds(PROCESSES / str(child.pid))
    return seconds


def _thread_seconds(
    before: Counters, after: Counters, communication: frozenset[int] | None
) -> dict[str, float]:
    """Return CPU seconds by group of threads; a thread that ended in between is in 'other'."""
    total = after.process_seconds - before.process_seconds
    by_name: dict[str, float] = defaultdict(float)
    for task, (name, seconds) in after.threads.items():
        key = COMMUNICATION if task in (communication or ()) else name
        _, earlier = before.threads.get(task, (name, 0.0))
        by_name[key] += max(0.0, seconds - earlier)
    # Both clocks are read one after the other: the thread's may be some microseconds ahead.
    groups = {"training": min(after.training_seconds - before.training_seconds, total)}
    if communication is not None:
        groups["communication"] = by_name.pop(COMMUNICATION, 0.0)
    for name in sorted(by_name, key=lambda name: -by_name[name])[:NAMED_THREADS]:
        if by_name[name] > 0:
            groups.setdefault(name, by_name[name])
    groups["other"] = max(0.0, total - sum(groups.values()))
    return {name: round(seconds, MICROSECOND_DIGITS) for name, seconds in groups.items()}


def _thread(task: int) -> tuple[str, float] | None:
    """Return name and CPU seconds of a thread; None where it has ended."""
    folder = TASKS / str(task)
    try:
        name = (folder / "comm").read_text().strip()
        return name, _schedstat(folder)[0] if (folder / "schedstat").exists() else stat_seconds(folder)
    except (FileNotFoundError, ProcessLookupError):
        return None


def _schedstat(folder: Path) -> tuple[float, float]:
    """Return seconds on a core, and ready but without one."""
    running, waiting, _ = (folder / "schedstat").read_text().split()
    return int(running) * NANOSECONDS, int(waiting) * NANOSECONDS


def _runqueue_seconds() -> float | None:
    try:
        return _schedstat(Path("/proc/thread-self"))[1]
    except FileNotFoundError:
        return None


def _frequency_mhz() -> float | None:
    """Return the mean clock of this worker's cores; None where the system does not report it.

    On a virtual machine /proc/cpuinfo holds one constant, whatever the clock is.
    """
    cores = os.sched_getaffinity(0)
    try:
        paths = [FREQUENCIES / f"cpu{core}/cpufreq/scaling_cur_freq" for core in cores]
        clocks = [int(path.read_text()) / 1000 for path in paths]
    except OSError:
        clocks = _cpuinfo_mhz(cores)
    return sum(clocks) / len(clocks) if clocks else None


def _cpuinfo_mhz(cores: set[int]) -> list[float]:
    text = CPUINFO.read_text() if CPUINFO.exists() else ""
    if re.search(r"^flags\s*:.*\bhypervisor\b", text, re.MULTILINE):
        return []
    clocks = re.findall(r"^processor\s*: (\d+)\n(?:.+\n)*?cpu MHz\s*: ([\d.]+)", text, re.MULTILINE)
    return [float(mhz) for core, mhz in clocks if int(core) in cores]
