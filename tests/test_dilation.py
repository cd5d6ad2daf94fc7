"""A machine that is slowed as a whole: what workers are told, their quotas, time-outs, clock and record."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from analysis.read.impossible import LARGEST_EXCESS_FACTOR, infidelity
from analysis.read.load import load_study, remarks
from slurm.virtual.cluster import prepare_quotas, remove_groups
from slurm.virtual.cluster import quota_folder as group_of
from slurm.virtual.plan import Plan, load
from tests.cluster import bring_up
from tests.records import make_point, write_budget_run
from tests.sweeps import Sweep
from unet_scaling.base import machine as machines
from unet_scaling.base.errors import UserError
from unet_scaling.base.machine import LINK_RATE_VARIABLE, SLOWED_VARIABLE, machine, wall_seconds
from unet_scaling.emulation.processor_quota import (
    QUOTA_FOLDER_VARIABLE,
    ProcessorHierarchy,
    ProcessorQuota,
    Quota,
    enter_group,
    enter_thread_group,
    make_quota_group,
    own_processors,
    prefer_group,
    processor_hierarchy,
    quota_of_cores,
    throttled_seconds,
)
from unet_scaling.emulation.slowed_machine import SlowedMachine
from unet_scaling.format.record import Record, read_record
from unet_scaling.format.record_lines import CpuFacts, QuotaFacts
from unet_scaling.group import watchdog
from unet_scaling.group.identity import CORES_VARIABLE
from unet_scaling.measure.counters import read_counters
from unet_scaling.study.config import FRAMEWORKS, PROJECT, horovod_environment
from unet_scaling.study.options import HorovodKnobs


@pytest.fixture
def slowed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process is a worker of a cluster that runs four times slower."""
    monkeypatch.setenv(SLOWED_VARIABLE, "4")
    machines._factor.cache_clear()
    yield
    machines._factor.cache_clear()


def test_a_machine_at_speed_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SLOWED_VARIABLE, raising=False)
    monkeypatch.delenv(LINK_RATE_VARIABLE, raising=False)
    assert (machine().factor, wall_seconds(300), machine().link_rate) == (1, 300, None)
    environment = horovod_environment(make_point("horovod"))
    assert environment["HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"] == "330"
    assert "HOROVOD_CYCLE_TIME" not in environment


@pytest.mark.parametrize("value", ["0.5", "-4", "nan", "inf", "four", ""])
def test_a_factor_that_slows_nothing_is_refused(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SLOWED_VARIABLE, value)
    with pytest.raises(UserError, match=f"{SLOWED_VARIABLE} = '{value}'"):
        machine()


def test_the_clock_runs_slower(slowed: None) -> None:
    before = time.perf_counter()
    now = machines.clock_seconds()
    assert before / 4 <= now <= time.perf_counter() / 4


@pytest.mark.parametrize(
    ("knob", "found", "expected"), [(None, None, "4.0"), (None, "2.5", "10.0"), (5.0, "2.5", "20.0")]
)
def test_horovod_takes_its_times_slowed(
    knob: float | None, found: str | None, expected: str, slowed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOROVOD_CYCLE_TIME", found or "")
    config = make_point("horovod").model_copy(update={"horovod": HorovodKnobs(cycle_time_ms=knob)})
    environment = horovod_environment(config)
    assert environment["HOROVOD_CYCLE_TIME"] == expected
    assert environment["HOROVOD_STALL_CHECK_TIME_SECONDS"] == str(4 * 330 // 5)
    assert environment["HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"] == str(4 * 330)
    monkeypatch.setenv("HOROVOD_CYCLE_TIME", "soon")
    if knob is None:
        with pytest.raises(UserError, match="HOROVOD_CYCLE_TIME = 'soon'"):
            horovod_environment(config)


@pytest.mark.parametrize(
    ("cores", "processors", "quota"),
    [
        (1 / 14, 1, Quota(1_000, 14_000)),
        (1 / 1000, 1, Quota(1_000, 1_000_000)),
        (0.8, 1, Quota(1_000, 1_250)),
        (12 / 14, 2, Quota(10_000, 11_667)),
    ],
)
def test_quotas_are_as_short_as_the_kernel_allows(cores: float, processors: int, quota: Quota) -> None:
    assert quota_of_cores(cores, processors) == quota
    with pytest.raises(UserError, match=r"0\.0005 cores"):
        quota_of_cores(1 / 2000, 1)


def test_workers_own_the_cores_that_are_stood_for_on_processors_dealt_out_evenly(
    slowed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CORES_VARIABLE, "12")
    assert machine().dealt_cores(1) == list(range(12, 24))
    assert machine().dealt_cores(1, 2) == [12, 13]
    assert own_processors(3, 12, [0, 1]) == [0, 1]
    monkeypatch.delenv(CORES_VARIABLE)
    with pytest.raises(UserError, match="pin_cores = true"):
        machine().dealt_cores(1)
    assert [own_processors(rank, 1, [2, 5]) for rank in range(4)] == [[2], [5], [2], [5]]


@pytest.mark.parametrize(
    ("folder", "cores", "named"),
    [
        (None, 1, QUOTA_FOLDER_VARIABLE),
        ("/no/such/folder", 1, QUOTA_FOLDER_VARIABLE),
        ("/", 100 * len(os.sched_getaffinity(0)), "with at least 100"),
    ],
)
def test_a_worker_that_cannot_be_slowed_says_what_is_missing(
    folder: str | None, cores: int, named: str, slowed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(QUOTA_FOLDER_VARIABLE, raising=False)
    if folder:
        monkeypatch.setenv(QUOTA_FOLDER_VARIABLE, folder)
    with pytest.raises(UserError, match=rf"{named}.*") as told:
        machine().enter_quota(3, cores, ())
    assert "slurm/virtual_cluster up --dilate" in str(told.value)
    assert "\n" not in str(told.value)


def test_a_folder_that_is_no_control_group_is_told_with_its_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cpu\.max: No such file"):
        make_quota_group(tmp_path / "worker0", Quota(1_000, 4_000))
    assert list((tmp_path / "worker0").iterdir()) == []
    with pytest.raises(UserError, match=r"worker0/cgroup\.procs: No such file"):
        enter_group(tmp_path / "worker0", [1])


VERSIONS = {
    1: {
        "files": ("cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.shares", "tasks"),
        "preferred": {"cpu.shares": "262144"},
        "thread": {"cpu.cfs_quota_us": "1000", "cpu.cfs_period_us": "4000", "cpu.shares": "", "tasks": "7"},
        "statistics": "nr_periods 7\nthrottled_time 1500000000\n",
        "mount": "cgroup {root}/cpu cgroup rw,relatime,cpu,cpuacct 0 0\n",
    },
    2: {
        "files": ("cpu.max", "cpu.weight", "cgroup.type", "cgroup.threads", "cgroup.subtree_control"),
        "preferred": {"cpu.weight": "10000", "cgroup.subtree_control": "+cpu"},
        "thread": {"cgroup.type": "threaded", "cpu.max": "1000 4000", "cgroup.threads": "7"},
        "statistics": "usage_usec 9\nthrottled_usec 1500000\n",
        "mount": "cgroup2 {root}/cpu cgroup2 rw,nosuid 0 0\n",
    },
}


@pytest.mark.parametrize("version", VERSIONS)
def test_both_versions_of_control_groups_are_found_written_and_read(
    version: Literal[1, 2], tmp_path: Path
) -> None:
    """In plain files of a folder: groups go first, and a thread has a group of its own."""
    known: dict[str, Any] = VERSIONS[version]
    group = tmp_path / "cpu"
    thread = group / "thread7"
    thread.mkdir(parents=True)
    for folder in (group, thread):
        for name in known["files"]:
            (folder / name).touch()
    enter_thread_group(group, 7, Quota(1_000, 4_000))
    prefer_group(group)
    assert known["thread"].items() <= {path.name: path.read_text() for path in thread.iterdir()}.items()
    assert (
        known["preferred"].items()
        <= {path.name: path.read_text() for path in group.iterdir() if path.is_file()}.items()
    )
    (group / "cpu.stat").write_text(known["statistics"])
    assert throttled_seconds(group) == pytest.approx(1.5)
    (group / "cgroup.controllers").write_text("cpuset cpu io memory\n" if version == 2 else "")
    table = tmp_path / "mounts"
    table.write_text("cgroup /elsewhere cgroup rw,cpuset 0 0\n" + known["mount"].format(root=tmp_path))
    assert processor_hierarchy(table) == ProcessorHierarchy(version, group)
    table.write_text(f"cgroup2 {tmp_path} cgroup2 rw 0 0\n")
    with pytest.raises(UserError, match="'cpu'"):
        processor_hierarchy(table)


def cpu_facts(**changes: object) -> CpuFacts:
    fields = {
        "process_seconds": 1.2, "thread_seconds": {"training": 1.0, "other": 0.2},
        "training_runqueue_seconds": 5.0, "other_seconds": 3.0, "cores": 1, "frequency_mhz": None,
    }  # fmt: skip
    return CpuFacts.model_validate(fields | changes)


def test_facts_of_an_epoch_are_those_of_the_machine_that_is_stood_for(
    slowed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ready for 6 seconds of this machine is 1.5 of that one, of which the thread ran for one."""
    statistics = tmp_path / "cpu.stat"
    statistics.write_text("throttled_time 1000000000\n")
    quota = ProcessorQuota(tmp_path, cores=1, processors=2)
    before = replace(read_counters(quota), process_seconds=1.0, children_seconds=0.0)
    statistics.write_text("throttled_time 3000000000\n")
    after = replace(read_counters(quota), process_seconds=2.3, children_seconds=0.0)
    facts = SlowedMachine().facts_there(cpu_facts(), before, after, quota)
    assert facts.training_runqueue_seconds == pytest.approx(0.5)
    assert facts.other_seconds is None
    assert facts.quota is not None
    assert (facts.quota.used_seconds, facts.quota.throttled_seconds, facts.quota.processors) == (1.3, 0.5, 2)
    # A machine that does not say how busy it was is not called idle.
    monkeypatch.setattr(watchdog, "CORES", tmp_path / "none")
    assert SlowedMachine().facts_there(cpu_facts(), before, read_counters(quota), quota).quota is None


def slowed_record(folder: Path, cores: int = 1, training_share: float = 0.1, **quota: float) -> Record:
    """A run of one worker, 4 times slower; seconds of its quota and its thread are of each second."""
    record = read_record(write_budget_run(folder, "pytorch_native", 1, 1) / "run.jsonl")
    assert record.header is not None
    usual = {"used_seconds": 0.5, "throttled_seconds": 0.3, "processors": cores, "idle_share": 0.4}
    epochs = []
    for epoch in record.epochs:
        seconds = 10 * epoch.seconds
        factors = {name: seconds if name.endswith("_seconds") else 1 for name in usual}
        values = {name: value * factors[name] for name, value in (usual | quota).items()}
        threads = {"training": training_share * seconds}
        cpu = [cpu_facts(quota=QuotaFacts.model_validate(values), cores=cores, thread_seconds=threads)]
        update = {"cpu": cpu, "seconds": seconds, "worker_seconds": [seconds]}
        epochs.append(epoch.model_copy(update=update))
    header = record.header.model_copy(update={"dilation": 4.0, "link_rate": "10gbit"})
    return Record(record.path, header, tuple(epochs), record.results, record.end, ())


# Cores of a worker, and of each second what its quota was used for; what its run is left out for.
SLOWED = {
    "rightly": (1, {}, ""),
    "by a thread that polls": (1, {"used_seconds": 1.0, "throttled_seconds": 0.75}, ""),
    "beside others": (1, {"idle_share": 0.031}, "idle for 3.1 %"),
    "too little": (1, {"used_seconds": 1.4}, "worker 0 used"),
    "too much": (1, {"throttled_seconds": 0.6}, "worker 0 was throttled"),
    "two cores": (2, {"used_seconds": 1.9, "throttled_seconds": 1.0, "training_share": 1.2}, ""),
    "one thread on two": (2, {"used_seconds": 1.9, "training_share": 1.5}, "training thread"),
    "two that poll": (2, {"used_seconds": 2.0, "throttled_seconds": 1.5, "training_share": 1.0}, ""),
    "two, too much": (2, {"used_seconds": 1.0, "throttled_seconds": 1.5}, "worker 0 was throttled"),
}


@pytest.mark.parametrize("name", SLOWED)
def test_a_run_that_was_not_slowed_as_it_should_be_is_left_out(name: str, tmp_path: Path) -> None:
    cores, quota, reason = SLOWED[name]
    found = infidelity(slowed_record(tmp_path, cores, **quota))
    assert (found == "") == (reason == "")
    assert reason in found


def test_a_slowed_run_is_told_and_never_without_facts_or_at_another_speed(tmp_path: Path) -> None:
    write_budget_run(tmp_path / "study", "pytorch_native")
    write_budget_run(tmp_path / "study", "horovod", about={"dilation": 4.0})
    left_out = load_study(tmp_path / "study").left_out
    assert list(left_out["run"]) == ["horovod-w01-r1"]
    assert list(left_out["state"]) == ["invalid"]
    header = slowed_record(tmp_path / "slowed").header
    assert header is not None
    (note,) = remarks({"first": header, "second": header})
    assert "slowed 4-fold" in note
    assert "10gbit" in note


@pytest.fixture
def quota_folder(tmp_path: Path) -> Iterator[Path]:
    """The control group of a dilated cluster; skipped with the reason where none can be made."""
    plan = Plan(tmp_path, dilation=4)
    try:
        prepare_quotas(plan)
    except UserError as error:
        pytest.skip(f"no worker can have a quota here: {error}")
    folder = group_of(plan, processor_hierarchy())
    yield folder
    remove_groups(tmp_path)
    assert not folder.exists()


# Two threads that compute without the interpreter's lock, and a process that loads.
TWO_CORES = """
import hashlib, sys, threading, time
from multiprocessing import get_context
from unet_scaling.base.machine import machine
from unet_scaling.group.watchdog import thread_ids
loader = get_context("fork").Process(target=time.sleep, args=[60], daemon=True)
loader.start()
ended = threading.Event()
def compute():
    hashlib.sha256(bytes(100_000))
def poll():
    while not ended.is_set():
        compute()
polling = threading.Thread(target=poll)
polling.start()
if sys.argv[1:]:
    ended.set()
    polling.join()
quota = machine().enter_quota(0, 2, thread_ids())
inside = set(map(int, (quota.folder / "cgroup.procs").read_text().split()))
loader.kill()
begin = time.perf_counter()
own_before = time.thread_time()
others_before = time.process_time() - own_before
while time.perf_counter() - begin < 1.5:
    compute()
seconds = time.perf_counter() - begin
own = time.thread_time() - own_before
others = time.process_time() - time.thread_time() - others_before
ended.set()
polling.join()
print(loader.pid in inside, quota.throttled_seconds() > 0, own / seconds, others / seconds)
"""


def shares_of_two_threads(folder: Path, *alone: str) -> list[float]:
    """Run a worker with two cores and a loader process on a machine slowed 4 times; or one thread alone."""
    variables = {SLOWED_VARIABLE: "4", QUOTA_FOLDER_VARIABLE: str(folder)}
    command = [sys.executable, "-c", TWO_CORES, *alone]
    done = subprocess.run(command, env=os.environ | variables, cwd=PROJECT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    entered, is_throttled, *shares = done.stdout.split()
    assert (entered, is_throttled) == ("True", "True")
    return [float(share) for share in shares]


def test_a_worker_enters_its_quota_and_no_thread_of_it_runs_faster_than_a_core(quota_folder: Path) -> None:
    """The next worker removes the groups of one that has ended."""
    # Four times slower: of two cores one thread could have had a half of a processor.
    assert max(shares_of_two_threads(quota_folder)) < LARGEST_EXCESS_FACTOR / 4 + 0.01
    (ended,) = quota_folder.glob("worker*")
    assert max(shares_of_two_threads(quota_folder, "alone")) < LARGEST_EXCESS_FACTOR / 4 + 0.01
    (next_worker,) = quota_folder.glob("worker*")
    assert next_worker != ended


@pytest.mark.verify
@pytest.mark.slow
def test_a_slowed_cluster_trains_both_frameworks_and_its_records_say_so(images: Path, tmp_path: Path) -> None:
    options = ("--hosts", "2", "--gpus-per-host", "1", "--dilate", "4", "--link-rate", "100mbit")
    with bring_up("slowed", *options) as cluster:
        sweep = Sweep(cluster, tmp_path, images, "slowed")
        sweep.site = sweep.site.replace("gpus_per_node = 2", "gpus_per_node = 1")
        sweep.prepare([2], epochs=3)
        done = sweep.submit("--wait")
        assert done.returncode == 0, done.stdout + done.stderr
        # Those of the run before were removed by the workers of the next one.
        groups = group_of(load(cluster.state), processor_hierarchy()).glob("worker*")
        assert sorted(group.stem for group in groups) == ["worker0", "worker1"]
    records = [read_record(folder / "run.jsonl") for folder in sweep.run_folders()]
    assert {record.header.config.framework for record in records if record.header} == set(FRAMEWORKS)
    for record in records:
        assert_slowed(record)
    for reason in filter(None, map(infidelity, records)):
        assert reason.startswith("the machine was idle for"), reason


def assert_slowed(record: Record) -> None:
    assert record.complete
    assert record.header is not None
    assert (record.header.dilation, record.header.link_rate) == (4.0, "100mbit")
    assert [worker.host for worker in record.header.workers] == ["node1", "node2"]
    for epoch in record.epochs:
        for facts in epoch.cpu or []:
            assert facts.quota is not None
            assert facts.quota.used_seconds <= LARGEST_EXCESS_FACTOR * epoch.seconds + 0.01
