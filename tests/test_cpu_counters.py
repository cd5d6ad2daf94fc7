"""Processor facts: who used the cores, thread by thread, from the kernel's own counters."""

import hashlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path

import pytest

from unet_scaling.group import threads
from unet_scaling.group.threads import stat_seconds, thread_ids
from unet_scaling.measure import cpu_counters as module
from unet_scaling.measure.cpu_counters import Counters, cpu_facts, read_counters
from unet_scaling.study.measurements import CpuFacts

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


def test_work_of_this_thread_is_training() -> None:
    facts = facts_of(lambda: burn(WORK_SECONDS))
    assert facts.thread_seconds["training"] == pytest.approx(WORK_SECONDS, rel=0.1)
    assert facts.thread_seconds["communication"] == 0
    assert facts.process_seconds >= facts.thread_seconds["training"]


def test_work_of_threads_that_carry_gradients_is_told_apart() -> None:
    before = counters()
    thread, leave, ids = helper(lambda: burn(WORK_SECONDS))
    facts = cpu_facts(before, counters(), ids)
    leave.set()
    thread.join()
    assert len(ids) == 1
    assert facts.thread_seconds["communication"] == pytest.approx(WORK_SECONDS, rel=0.2)
    assert sum(facts.thread_seconds.values()) == pytest.approx(facts.process_seconds, rel=0.1)


def test_other_threads_are_named_and_those_that_ended_are_other() -> None:
    before = counters()
    thread, leave, _ = helper(lambda: burn(WORK_SECONDS))
    name = (Path("/proc/self/comm").read_text()).strip()
    living = cpu_facts(before, counters(), frozenset())
    leave.set()
    thread.join()
    time.sleep(0.05)
    ended = cpu_facts(before, counters(), frozenset())
    assert living.thread_seconds[name] == pytest.approx(WORK_SECONDS, rel=0.2)
    assert ended.thread_seconds["other"] == pytest.approx(WORK_SECONDS, rel=0.2)


def test_a_sleep_is_no_work() -> None:
    facts = facts_of(lambda: time.sleep(0.1))
    assert facts.thread_seconds["training"] < 0.05


def test_ticks_serve_where_the_kernel_keeps_no_nanoseconds(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text("7 (a (b) c) R 1 1 1 0 -1 64 1 0 0 0 250 50 0 0 20 0 1 0 5 6 7\n")
    assert stat_seconds(tmp_path) == pytest.approx(3.0)


def test_a_frequency_that_is_not_told_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "FREQUENCIES", tmp_path)
    monkeypatch.setattr(module, "CPUINFO", tmp_path / "cpuinfo")
    assert module._frequency_mhz() is None
    text = "".join(f"processor\t: {core}\ncpu MHz\t\t: {1000 + core}.5\n\n" for core in range(2))
    (tmp_path / "cpuinfo").write_text(text)
    assert module._cpuinfo_mhz({1}) == [1001.5]


def test_a_virtual_machine_tells_no_clock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "CPUINFO", tmp_path / "cpuinfo")
    for flags, expected in (("fpu sse2", [2700.0]), ("fpu hypervisor sse2", [])):
        text = f"processor\t: 0\ncpu MHz\t\t: 2700.0\nflags\t\t: {flags}\n\n"
        (tmp_path / "cpuinfo").write_text(text)
        assert module._cpuinfo_mhz({0}) == expected


@pytest.fixture
def one_core() -> Iterator[int]:
    """The last core of this machine, on which alone this thread then runs."""
    allowed = os.sched_getaffinity(0)
    core = max(allowed)
    os.sched_setaffinity(0, {core})
    yield core
    os.sched_setaffinity(0, allowed)


@contextmanager
def spinner(core: int) -> Iterator[None]:
    """Another program that is busy on this core."""
    program = f"import os; os.sched_setaffinity(0, {{{core}}}); print(flush=True)\nwhile True: pass"
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield
    finally:
        process.kill()
        process.communicate()


def test_what_other_programs_take_of_the_own_core_is_told(one_core: int) -> None:
    """The spinner has about as much of the core as this thread, and more where other work runs as well."""
    with spinner(one_core):
        facts = facts_of(lambda: burn(WORK_SECONDS))
    assert facts.other_seconds is not None
    assert facts.other_seconds > WORK_SECONDS / 2


def test_own_work_and_that_of_own_loaders_is_not_that_of_others(one_core: int) -> None:
    """Beside the same spinner, what two own processes burn counts for neither."""
    context = get_context("fork")
    loader = context.Process(target=burn, args=(60,))
    loader.start()
    try:
        before = counters()
        burn(WORK_SECONDS)
        after = counters()
    finally:
        loader.kill()
        loader.join()
    facts = cpu_facts(before, after, frozenset())
    children = after.children_seconds - before.children_seconds
    assert children > WORK_SECONDS / 10
    assert facts.other_seconds is not None
    assert before.core_seconds is not None
    assert after.core_seconds is not None
    busy = after.core_seconds - before.core_seconds
    expected = max(0.0, busy - facts.process_seconds - children)
    assert facts.other_seconds == pytest.approx(expected, abs=1e-5)


def test_seconds_of_a_core_hold_steal_but_neither_idle_nor_guests_twice(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    columns = [ticks * each for each in (1, 2, 4, 1000, 2000, 8, 16, 32, 5000, 9000)]
    (tmp_path / "stat").write_text(f"cpu 1 1\ncpu0 {' '.join(map(str, columns))}\nintr 5\n")
    monkeypatch.setattr(module, "CORES", tmp_path / "stat")
    assert module.busy_seconds({0}) == 1 + 2 + 4 + 8 + 16 + 32
    assert module.busy_seconds({0, 1}) is None
    monkeypatch.setattr(module, "CORES", tmp_path / "none")
    assert module.busy_seconds({0}) is None


def test_elsewhere_than_linux_nothing_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for each in (module, threads):
        monkeypatch.setattr(each, "TASKS", tmp_path / "none")
    assert read_counters() is None
    assert thread_ids() == frozenset()


def test_the_most_memory_that_was_ever_held_is_kept() -> None:
    held = 2**27
    before = facts_of(lambda: None).peak_memory_bytes
    after = facts_of(lambda: bytearray(b"x" * held)).peak_memory_bytes
    assert before is not None
    assert after is not None
    assert held <= after < 2**40
    assert (later := facts_of(lambda: None).peak_memory_bytes) is not None
    assert later >= after >= before
