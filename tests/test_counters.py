"""Who used the cores, thread by thread, by the kernel's counters; GPU facts by a stand-in for NVML."""

import hashlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from unet_scaling.format.record_lines import CpuFacts, GpuFacts
from unet_scaling.group import watchdog
from unet_scaling.group.group import single_worker
from unet_scaling.group.watchdog import busy_seconds, stat_seconds, thread_ids
from unet_scaling.measure import counters as module
from unet_scaling.measure.counters import (
    Counters,
    cpu_facts,
    gpu_of,
    open_gpu,
    read_counters,
    threads_of_first_sums,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="these facts are Linux's")
WORK_SECONDS = 0.3


def counters() -> Counters:
    found = read_counters()
    assert found is not None
    return found


def burn(seconds: float) -> None:
    """CPU seconds of the calling thread."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        hashlib.sha256(bytes(2**20))


def facts_of(work: Callable[[], object]) -> CpuFacts:
    before = counters()
    work()
    return cpu_facts(before, counters(), frozenset())


def helper(work: Callable[[], object]) -> tuple[threading.Thread, threading.Event, frozenset[int]]:
    """A thread that works, then stays until told; and its id."""
    there, done, leave = threading.Event(), threading.Event(), threading.Event()
    before = thread_ids()

    def live() -> None:
        there.set()
        work()
        done.set()
        leave.wait()

    thread = threading.Thread(target=live)
    thread.start()
    there.wait()
    ids = thread_ids() - before
    done.wait()
    return thread, leave, ids


@pytest.fixture
def one_core() -> Iterator[int]:
    """The last core of this machine, on which alone this thread then runs."""
    allowed = os.sched_getaffinity(0)
    core = max(allowed)
    os.sched_setaffinity(0, {core})
    yield core
    os.sched_setaffinity(0, allowed)


def test_work_is_told_apart_by_thread() -> None:
    """Of this thread, of one that carries gradients, of another by its name; of one that ended as "other"."""
    before = counters()
    burn(WORK_SECONDS)
    thread, leave, ids = helper(lambda: burn(WORK_SECONDS))
    name = (Path("/proc/self/comm").read_text()).strip()
    told, named = (cpu_facts(before, counters(), own).thread_seconds for own in (ids, frozenset[int]()))
    leave.set()
    thread.join()
    time.sleep(0.05)
    ended = cpu_facts(before, counters(), frozenset())
    assert len(ids) == 1
    for facts in (told["training"], told["communication"], named[name], ended.thread_seconds["other"]):
        assert facts >= WORK_SECONDS * 0.9
    assert named["communication"] == 0
    assert sum(ended.thread_seconds.values()) == pytest.approx(ended.process_seconds, rel=0.1)


def test_ticks_serve_where_the_kernel_keeps_no_nanoseconds(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text("7 (a (b) c) R 1 1 1 0 -1 64 1 0 0 0 250 50 0 0 20 0 1 0 5 6 7\n")
    assert stat_seconds(tmp_path) == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("flags", "expected"), [(None, None), ("fpu sse2", 1001.0), ("fpu hypervisor sse2", None)]
)
def test_a_frequency_that_is_not_told_is_none(
    flags: str | None, expected: float | None, one_core: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A virtual machine tells one constant, whatever the clock is."""
    monkeypatch.setattr(module, "FREQUENCIES", tmp_path)
    monkeypatch.setattr(module, "CPUINFO", tmp_path / "cpuinfo")
    if flags is not None:
        clocks = {one_core: 1001, one_core + 1: 3000}
        text = "".join(
            f"processor\t: {core}\ncpu MHz\t\t: {clock}.0\nflags\t\t: {flags}\n\n"
            for core, clock in clocks.items()
        )
        (tmp_path / "cpuinfo").write_text(text)
    before = counters()
    assert cpu_facts(before, before, frozenset()).frequency_mhz == expected


def test_own_work_and_that_of_own_loaders_is_not_that_of_others() -> None:
    numbers: dict[str, Any] = {
        "training_runqueue_seconds": None, "peak_memory_bytes": 1, "threads": {}, "cores": frozenset({0}),
    }  # fmt: skip
    before = Counters(1.0, 1.0, core_seconds=10.0, children_seconds=2.0, **numbers)
    after = Counters(2.0, 1.5, core_seconds=15.0, children_seconds=4.5, **numbers)
    assert cpu_facts(before, after, None).other_seconds == 5.0 - 1.0 - 2.5
    assert cpu_facts(before, replace(after, core_seconds=None), None).other_seconds is None


def test_seconds_of_a_core_hold_steal_but_neither_idle_nor_guests_twice(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    columns = [ticks * each for each in (1, 2, 4, 1000, 2000, 8, 16, 32, 5000, 9000)]
    (tmp_path / "stat").write_text(f"cpu 1 1\ncpu0 {' '.join(map(str, columns))}\nintr 5\n")
    monkeypatch.setattr(watchdog, "CORES", tmp_path / "stat")
    assert busy_seconds({0}) == 1 + 2 + 4 + 8 + 16 + 32
    assert busy_seconds({0, 1}) is None
    monkeypatch.setattr(watchdog, "CORES", tmp_path / "none")
    assert busy_seconds({0}) is None


def test_the_most_memory_that_was_ever_held_is_kept() -> None:
    held = 2**27
    before, during, after = (
        facts_of(work).peak_memory_bytes or 0
        for work in (lambda: None, lambda: bytearray(b"x" * held), lambda: None)
    )
    assert before <= during <= after < 2**40
    assert held <= during


def test_what_the_launcher_held_is_no_memory_of_a_worker() -> None:
    ballast = b"x" * 10**9
    program = "from unet_scaling.measure.counters import peak_memory_bytes; print(peak_memory_bytes())"
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert int(told) < len(ballast) / 2


UUID = "0b9d"
CUDA = torch.device("cuda", 0)
OWN = SimpleNamespace(pid=os.getpid(), usedGpuMemory=2**29)
ANOTHER = SimpleNamespace(pid=1, usedGpuMemory=2**28)


class Driver:
    """NVML's functions for one GPU; those named in `silent` raise as an old GPU's do, others answer `new`."""

    NVML_CLOCK_SM, nvmlMemory_v2, NVML_PERF_POLICY_POWER, NVML_PERF_POLICY_THERMAL = range(4)  # noqa: N815

    class NVMLError(Exception):
        pass

    def __init__(self, *silent: str, prefix: str = "GPU-", **new: object) -> None:
        self.silent = silent
        self.handle = prefix + UUID
        self.answers: dict[str, object] = {
            "nvmlInit": None,
            "nvmlDeviceGetTotalEnergyConsumption": 5_000,
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=85, memory=40),
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=2**30, total=2**34),
            "nvmlDeviceGetPowerUsage": 250_000,
            "nvmlDeviceGetEnforcedPowerLimit": 350_000,
            "nvmlDeviceGetClockInfo": 1755,
            "nvmlDeviceGetCurrentClocksThrottleReasons": 0x1 | 0x2,
            "nvmlDeviceGetViolationStatus": SimpleNamespace(violationTime=7),
            "nvmlDeviceGetComputeRunningProcesses": [ANOTHER, OWN],
        }
        self.answers |= new

    def __getattr__(self, name: str) -> Callable[..., object]:
        answer = self.answers.get(name, self.handle)

        def call(handle: object = self.handle, *about: int) -> object:
            assert name in self.answers or name == "nvmlDeviceGetHandleByUUID"
            if name in self.silent or handle != self.handle:
                raise self.NVMLError(name)
            return answer

        return call


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's on a GPU that this machine lacks."""
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda _: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: 2**28)


def facts_from(driver: Driver, **during: object) -> GpuFacts:
    """What is told of an epoch in which the driver's answers changed to these."""
    gpu = gpu_of(driver, UUID, CUDA)
    gpu.begin()
    driver.answers |= during
    return gpu.facts()


@pytest.mark.parametrize("prefix", ["GPU-", "MIG-"])
def test_units_are_joules_watts_bytes_megahertz_and_shares(allocator: None, prefix: str) -> None:
    during = {"nvmlDeviceGetTotalEnergyConsumption": 12_500}
    assert facts_from(Driver(prefix=prefix), **during).model_dump() == {
        "energy_joules": 7.5,
        "power_watts": 250,
        "power_limit_watts": 350,
        "utilization": 0.85,
        "memory_bytes": 2**30,
        "sm_clock_mhz": 1755,
        "throttle_reasons": [],
        "other_memory_bytes": 2**29,
        "peak_allocated_bytes": 2**28,
    }


@pytest.mark.parametrize(
    ("bits", "nanoseconds", "reasons"),
    [
        (0x1, 7, []),
        (0x4 | 0x40, 7, ["hw_thermal_slowdown", "sw_power_cap"]),
        (0x1, 7 + 10**9, ["sw_power_cap", "sw_thermal_slowdown"]),
    ],
)
def test_a_clock_is_throttled_at_the_end_or_by_the_drivers_own_count(
    allocator: None, bits: int, nanoseconds: int, reasons: list[str]
) -> None:
    """A GPU that idles after its last step tells nothing of the epoch before."""
    status = SimpleNamespace(violationTime=nanoseconds)
    during = {"nvmlDeviceGetCurrentClocksThrottleReasons": bits, "nvmlDeviceGetViolationStatus": status}
    assert facts_from(Driver(), **during).throttle_reasons == reasons


@pytest.mark.parametrize("processes", [[ANOTHER], [], [SimpleNamespace(pid=os.getpid(), usedGpuMemory=None)]])
def test_memory_of_others_is_not_guessed_where_the_driver_does_not_list_this_process(
    allocator: None, processes: list[object]
) -> None:
    assert facts_from(Driver(nvmlDeviceGetComputeRunningProcesses=processes)).other_memory_bytes is None


@pytest.mark.parametrize(
    ("silent", "field"),
    [
        ("TotalEnergyConsumption", "energy_joules"),
        ("UtilizationRates", "utilization"),
        ("PowerUsage", "power_watts"),
        ("EnforcedPowerLimit", "power_limit_watts"),
        ("ClockInfo", "sm_clock_mhz"),
        ("CurrentClocksThrottleReasons ViolationStatus", "throttle_reasons"),
        ("ComputeRunningProcesses", "other_memory_bytes"),
    ],
)
def test_what_the_driver_does_not_tell_is_none_and_the_rest_stays(
    allocator: None, silent: str, field: str
) -> None:
    facts = facts_from(Driver(*(f"nvmlDeviceGet{name}" for name in silent.split()))).model_dump()
    assert facts.pop(field) is None
    assert None not in facts.values()


@pytest.mark.parametrize("missing", ["package", "nvmlInit", "nvmlDeviceGetHandleByUUID"])
def test_a_gpu_run_without_gpu_facts_warns_once(
    missing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None if missing == "package" else Driver(missing))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid=UUID))
    assert open_gpu(CUDA) is None
    assert open_gpu(torch.device("cpu"), warns=True) is None
    assert capsys.readouterr().err == ""
    assert open_gpu(CUDA, warns=True) is None
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_threads_that_a_sum_starts_carry_gradients_but_not_those_of_driver_and_backward_pass() -> None:
    """NCCL's have the name of the thread that started them."""
    names = ["cuda-EvtHandlr", "pt_autograd_0", "python"]
    helpers: dict[str, tuple[threading.Thread, threading.Event, frozenset[int]]] = {}

    def start_sum(_: torch.Tensor) -> Callable[[], object]:
        for name in {*names} - {*helpers}:
            helpers[name] = helper(lambda: None)
            Path(f"/proc/self/task/{min(helpers[name][2])}/comm").write_text(name)
        return lambda: None

    group = replace(single_worker(), start_sum=start_sum)
    found = threads_of_first_sums(group, thread_ids())
    for thread, leave, _ in helpers.values():
        leave.set()
        thread.join()
    # On a CPU, zeros may start a thread, too.
    assert found & frozenset().union(*(ids for _, _, ids in helpers.values())) == helpers["python"][2]
