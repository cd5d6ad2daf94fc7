"""The virtual cluster with real daemons: hosts, network, GPUs, failures, and nothing left behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import (
    FOLDER_PREFIX,
    FOLDERS,
    VirtualCluster,
    assert_ok,
    control,
    skip_without_cluster,
    state_folder,
    wait_until,
)
from tests.studies import tiny_study
from unet_scaling.format.record import read_record
from unet_scaling.study.config import PROJECT

pytestmark = [pytest.mark.slow, pytest.mark.verify]

TASK_FACTS = 'echo "$(hostname) $(hostname -I) $CUDA_VISIBLE_DEVICES"'


def test_shared_memory_is_shared_inside_a_host_only(virtual_cluster: VirtualCluster) -> None:
    assert_ok(virtual_cluster.inside("node1", "touch", "/dev/shm/mark"))
    assert_ok(virtual_cluster.inside("node1", "test", "-e", "/dev/shm/mark"))
    assert virtual_cluster.inside("node2", "test", "-e", "/dev/shm/mark").returncode == 1
    assert not Path("/dev/shm/mark").exists()


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
    study = tiny_study(tmp_path, images, [2])
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


def test_a_cluster_whose_daemons_were_killed_goes_down_and_up_again(small_state: Path) -> None:
    before = traces()
    for _ in range(2):
        assert_ok(control("up", "--state-dir", str(small_state), "--hosts", "1", "--gpus-per-host", "0"))
        for process in recorded_processes(small_state):
            os.kill(int(process), signal.SIGKILL)
        for _ in range(2):
            assert_ok(control("down", "--state-dir", str(small_state)))
        assert traces() == before
