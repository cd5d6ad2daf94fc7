"""The virtual cluster with real daemons: hosts, network, GPUs, failures, and nothing left behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm.virtual.hosts import RECORD_AND_BECOME
from slurm.virtual.plan import Plan, load, save
from tests.cluster import (
    FOLDER_PREFIX,
    FOLDERS,
    PROGRAM,
    VirtualCluster,
    assert_ok,
    control,
    skip_without_cluster,
    state_folder,
    wait_until,
)
from tests.studies import TINY_STUDY
from unet_scaling.study.config import PROJECT
from unet_scaling.study.record import read_record

pytestmark = [pytest.mark.slow, pytest.mark.verify]

CONTROLS_PATH = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
CONGESTION_CONTROLS = CONTROLS_PATH.read_text() if CONTROLS_PATH.exists() else ""
NODES = [f"node{number}" for number in range(1, 8)]
TASK_FACTS = 'echo "$(hostname) $(hostname -I) $CUDA_VISIBLE_DEVICES"'
RECEIVE = """
import socket, time
with socket.create_server(("", 5001)) as server:
    print("ready", flush=True)
    connection, _ = server.accept()
received, start = 0, None
while block := connection.recv(1 << 20):
    start = start or time.monotonic()
    received += len(block)
print(received * 8 / (time.monotonic() - start))
"""
SEND = """
import socket, time
connection = socket.create_connection(("node1", 5001), timeout=5)
end = time.monotonic() + 1.5
while time.monotonic() < end:
    connection.sendall(bytes(1 << 20))
"""


def test_every_host_has_a_name_and_an_address_of_its_own(virtual_cluster: VirtualCluster) -> None:
    lines = virtual_cluster.run("srun", "-N7", "sh", "-c", 'echo "$(hostname) $(hostname -I)"').splitlines()
    addresses = dict(line.split() for line in lines)
    assert sorted(addresses) == NODES
    assert sorted(address.split(".")[3] for address in addresses.values()) == list("1234567")
    assert len({address.rsplit(".", 1)[0] for address in addresses.values()}) == 1


@pytest.mark.skipif("cubic" not in CONGESTION_CONTROLS, reason="this kernel has no TCP cubic")
def test_hosts_send_as_linux_does_by_default(virtual_cluster: VirtualCluster) -> None:
    assert "congctl cubic" in virtual_cluster.inside("node1", "ip", "route").stdout


def test_shared_memory_is_shared_inside_a_host_only(virtual_cluster: VirtualCluster) -> None:
    assert_ok(virtual_cluster.inside("node1", "touch", "/dev/shm/mark"))
    assert_ok(virtual_cluster.inside("node1", "test", "-e", "/dev/shm/mark"))
    assert virtual_cluster.inside("node2", "test", "-e", "/dev/shm/mark").returncode == 1
    assert not Path("/dev/shm/mark").exists()


@pytest.mark.timing
def test_a_link_is_as_fast_as_it_was_asked_to_be(virtual_cluster: VirtualCluster) -> None:
    command = [str(PROGRAM), "exec", "--state-dir", str(virtual_cluster.state), "node1", "--"]
    with subprocess.Popen(
        [*command, "python3", "-c", RECEIVE], stdout=subprocess.PIPE, text=True
    ) as receiver:
        assert receiver.stdout is not None
        assert receiver.stdout.readline() == "ready\n"
        assert_ok(virtual_cluster.inside("node2", "python3", "-c", SEND))
        bits_per_second = float(receiver.stdout.read())
    assert 0.2e9 < bits_per_second < 1.1e9


def test_each_task_gets_its_own_gpus(virtual_cluster: VirtualCluster) -> None:
    geometry = ["-N2", "--ntasks-per-node=2", "--gpus-per-task=1"]
    lines = virtual_cluster.run("srun", *geometry, "sh", "-c", TASK_FACTS).splitlines()
    assert sorted(line.split()[2] for line in lines) == ["0", "0", "1", "1"]
    both = virtual_cluster.run("srun", "-N1", "--gres=gpu:2", "sh", "-c", TASK_FACTS)
    assert both.split()[2] == "0,1"


def test_a_study_on_this_machine_starts_inside_a_task_of_slurm(
    virtual_cluster: VirtualCluster, images: Path, tmp_path: Path
) -> None:
    """Where mpiexec would start its workers by a waiting srun."""
    study = tmp_path / "tiny.toml"
    study.write_text(TINY_STUDY.format(data=images, workers=[2], epochs=2))
    run = [sys.executable, "-m", "unet_scaling", "run", str(study), "--logs", str(tmp_path / "logs")]
    virtual_cluster.run("srun", "--nodes=1", "--cpus-per-task=2", *run, folder=PROJECT)
    headers = [read_record(path).header for path in tmp_path.glob("logs/tiny/*/run.jsonl")]
    assert len(headers) == 2
    assert {worker.host for header in headers if header for worker in header.workers} == {"node1"}


def test_exec_hands_on_folder_code_and_environment(virtual_cluster: VirtualCluster) -> None:
    done = virtual_cluster.inside("node2", "sh", "-c", 'hostname; pwd; echo "$PYTHONPATH"; exit 7')
    assert done.returncode == 7
    assert done.stdout.splitlines() == ["node2", str(Path.cwd()), os.environ.get("PYTHONPATH", "")]


def test_a_second_cluster_in_the_same_folder_is_refused(virtual_cluster: VirtualCluster) -> None:
    done = control("up", "--state-dir", str(virtual_cluster.state))
    assert done.returncode == 2
    assert f"take it down with: slurm/virtual_cluster down --state-dir {virtual_cluster.state}" in done.stderr
    assert "idle" in virtual_cluster.run("sinfo")


@pytest.fixture
def small_state() -> Iterator[Path]:
    """A state folder for a second, small cluster beside the shared one."""
    skip_without_cluster()
    state = state_folder("small")
    yield state
    assert_ok(control("down", "--state-dir", str(state)))


def traces() -> dict[str, list[str]]:
    """What a cluster could leave on the machine, but for processes that ended."""
    links = subprocess.run(["ip", "-br", "link"], capture_output=True, text=True, check=True).stdout
    mounts = Path("/proc/self/mounts").read_text()
    return {
        "links": sorted(line.split()[0] for line in links.splitlines()),
        "mounts": sorted(mounts.splitlines()),
        "hosts": Path("/etc/hosts").read_text().splitlines(),
        "folders": sorted(str(path) for path in FOLDERS.glob(f"{FOLDER_PREFIX}*")),
    }


def alive(process: str) -> bool:
    """False also for a zombie that nobody has waited for."""
    stat = Path("/proc", process, "stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] not in "ZX"


def recorded_processes(state: Path) -> list[str]:
    return [record.read_text().split()[0] for record in (state / "processes").iterdir()]


def test_down_leaves_nothing_behind(small_state: Path, tmp_path: Path) -> None:
    before = traces()
    assert_ok(control("up", "--state-dir", str(small_state), "--hosts", "2"))
    cluster = VirtualCluster(small_state)
    job = cluster.submit("sleep 1000 & echo $! > process; wait", tmp_path)
    wait_until(lambda: (tmp_path / "process").exists(), f"job {job}", 20)
    processes = [*recorded_processes(small_state), (tmp_path / "process").read_text().strip()]
    assert len(processes) == 5
    assert all(map(alive, processes))
    assert_ok(control("down", "--state-dir", str(small_state)))
    assert traces() == before
    assert not any(map(alive, processes))


def test_clusters_that_start_together_have_networks_of_their_own() -> None:
    skip_without_cluster()
    states = [state_folder(name) for name in ("first", "second")]
    commands = [[str(PROGRAM), "up", "--state-dir", str(state), "--hosts", "1"] for state in states]
    starting = [subprocess.Popen(words, stdout=subprocess.DEVNULL) for words in commands]
    try:
        assert [program.wait() for program in starting] == [0, 0]
        assert len({load(state).network for state in states}) == len(states)
    finally:
        for program, state in zip(starting, states, strict=True):
            program.wait()
            assert_ok(control("down", "--state-dir", str(state)))


def test_a_cluster_whose_daemons_were_killed_goes_down_and_up_again(small_state: Path) -> None:
    before = traces()
    for _ in range(2):
        assert_ok(control("up", "--state-dir", str(small_state), "--hosts", "1", "--gpus-per-host", "0"))
        for process in recorded_processes(small_state):
            os.kill(int(process), signal.SIGKILL)
        for _ in range(2):
            assert_ok(control("down", "--state-dir", str(small_state)))
        assert traces() == before


def test_a_daemon_that_records_itself_while_the_cluster_goes_down_never_starts(small_state: Path) -> None:
    (small_state / "processes").mkdir(parents=True)
    save(Plan(small_state))
    with subprocess.Popen(
        ["sh", "-euc", f"sleep 1; {RECORD_AND_BECOME}", small_state / "processes" / "munge", "sleep", "100"]
    ) as late:
        assert_ok(control("down", "--state-dir", str(small_state)))
        assert late.wait(10) != 0
    assert not small_state.exists()


def test_a_start_that_was_killed_half_way_is_cleaned_up(small_state: Path) -> None:
    """Half way or elsewhere, as the machine is fast: nothing is left at any moment."""
    before = traces()
    starting = subprocess.Popen(
        [str(PROGRAM), "up", "--state-dir", str(small_state)], stdout=subprocess.DEVNULL
    )
    time.sleep(0.4)
    starting.kill()
    starting.wait()
    assert_ok(control("down", "--state-dir", str(small_state)))
    assert traces() == before
