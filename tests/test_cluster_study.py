"""Studies on a real Slurm of seven hosts: both frameworks up to 14 workers, and what goes wrong there."""

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import VirtualCluster, bring_up, wait_until
from tests.studies import TINY_STUDY
from unet_scaling.config import PROJECT
from unet_scaling.record import read_record

pytestmark = pytest.mark.slow
SUBMISSION = str(PROJECT / "slurm" / "submission.sh")
VIRTUAL = (PROJECT / "slurm" / "clusters" / "virtual.toml").read_text()


class Sweep:
    """One study of a test, submitted by the real command to the virtual cluster."""

    def __init__(self, cluster: VirtualCluster, folder: Path, data: Path, name: str) -> None:
        self.cluster, self.folder, self.data, self.name = cluster, folder, data, name
        self.site = VIRTUAL

    def prepare(self, workers: list[int], epochs: int = 2) -> None:
        text = TINY_STUDY.format(workers=workers, data=self.data, epochs=epochs)
        (self.folder / f"{self.name}.toml").write_text(text)

    def command(self, *options: str) -> list[str]:
        site = self.folder / "site.toml"
        site.write_text(self.site)
        study = str(self.folder / f"{self.name}.toml")
        return [SUBMISSION, study, "--cluster", str(site), "--logs", str(self.folder / "logs"), *options]

    def submit(self, *options: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            self.command(*options), env=self.cluster.environment, capture_output=True, text=True, timeout=420
        )

    def rows(self) -> list[dict[str, Any]]:
        command = [SUBMISSION, "status", self.name, "--json", "--logs", str(self.folder / "logs")]
        done = subprocess.run(
            command, env=self.cluster.environment, capture_output=True, text=True, check=True
        )
        rows: list[dict[str, Any]] = json.loads(done.stdout)
        return rows

    def states(self) -> set[str]:
        return {row["state"] for row in self.rows()}

    def wait_for(self, state: str, seconds: float = 120) -> None:
        wait_until(lambda: self.states() == {state}, f"{self.name} to be {state}", seconds)

    def wait_for_first_epoch(self) -> None:
        """Until every run trains: its processes are there, and it has something to lose."""
        wait_until(lambda: all(row["epochs_done"] > 0 for row in self.rows()), "the first epoch", 240)

    def run_folders(self) -> list[Path]:
        return sorted(path.parent for path in (self.folder / "logs" / self.name).glob("*/point.json"))


@pytest.fixture
def sweep(
    virtual_cluster: VirtualCluster, images: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Sweep]:
    name = re.sub("[^a-z]+", "-", request.node.name.removeprefix("test_"))[:40].strip("-")
    made = Sweep(virtual_cluster, tmp_path, images, name)
    yield made
    with contextlib.suppress(subprocess.CalledProcessError):
        subprocess.run(
            [SUBMISSION, "cancel", name, "--logs", str(tmp_path / "logs")],
            env=virtual_cluster.environment, check=True, capture_output=True,
        )  # fmt: skip


def test_both_frameworks_complete_from_one_to_fourteen_workers(sweep: Sweep) -> None:
    sweep.prepare([1, 2, 14])
    done = sweep.submit("--wait")
    assert done.returncode == 0, done.stdout + done.stderr
    assert sweep.states() == {"complete"}
    assert len(sweep.rows()) == 6
    for folder in sweep.run_folders():
        record = read_record(folder / "run.jsonl")
        assert record.complete
        assert record.header is not None
        owned = {(worker.host, tuple(worker.cores)) for worker in record.header.workers}
        assert len(owned) == record.header.point.workers
        assert len({host for host, _ in owned}) == -(-record.header.point.workers // 2)
    again = sweep.submit()
    assert "0 to submit" in again.stdout


def test_one_allocation_with_mpiexec_runs_them_all(sweep: Sweep) -> None:
    mpiexec = Path(sys.executable).with_name("mpiexec")
    sweep.site = re.sub("launcher_arguments.*", f'launcher_command = ["{mpiexec}"]', VIRTUAL).replace(
        'launcher = "srun"', 'launcher = "mpiexec"'
    )
    sweep.prepare([1, 3])
    done = sweep.submit("--one-allocation", "--wait")
    assert done.returncode == 0, done.stdout + done.stderr
    assert len({row["job"] for row in sweep.rows()}) == 1
    assert sweep.states() == {"complete"}


def test_a_partition_that_does_not_exist_is_rejected_with_slurms_words(sweep: Sweep) -> None:
    sweep.site = f'partition = "nosuch"\n{VIRTUAL}'
    sweep.prepare([1])
    done = sweep.submit()
    assert done.returncode == 2
    assert "invalid partition" in done.stderr.lower()
    assert sweep.states() == {"rejected"}
    sweep.site = VIRTUAL
    assert sweep.submit().returncode == 0
    assert "rejected" not in sweep.states()


def test_a_cancelled_job_is_named_and_submitted_again(sweep: Sweep) -> None:
    sweep.prepare([1], epochs=2000)
    assert sweep.submit().returncode == 0
    sweep.wait_for_first_epoch()
    first, second = sweep.rows()
    sweep.cluster.run("scancel", first["job"])
    wait_until(lambda: sweep.rows()[0]["state"] == "failed", "the cancelled run to be named", 60)
    assert "cancelled" in sweep.rows()[0]["reason"]
    assert sweep.rows()[1]["state"] == "running"
    assert "1 to submit" in sweep.submit().stdout
    after = sweep.rows()
    assert after[0]["job"] != first["job"]
    assert after[1]["job"] == second["job"]


def test_two_submissions_at_once_queue_each_run_once(sweep: Sweep) -> None:
    sweep.prepare([1], epochs=2000)
    racing = [
        subprocess.Popen(
            sweep.command(), env=sweep.cluster.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=120)[0].decode() for process in racing]
    assert sum(output.count(": job ") for output in outputs) == 2, outputs
    names = sweep.cluster.run("squeue", "--noheader", "--states=all", "--format=%j").split()
    tokens = [json.loads((folder / "job.json").read_text())["token"] for folder in sweep.run_folders()]
    places = [token.rpartition(".")[0] for token in tokens]
    assert [sum(name.startswith(place) for name in names) for place in places] == [1, 1]


def test_a_killed_worker_ends_its_run_within_half_a_minute(sweep: Sweep) -> None:
    sweep.prepare([4], epochs=4000)
    assert sweep.submit().returncode == 0
    sweep.wait_for_first_epoch()
    killed = time.monotonic()
    for folder in sweep.run_folders():
        header = read_record(folder / "run.jsonl").header
        assert header is not None
        os.kill(header.workers[2].process, 9)
    sweep.wait_for("failed", seconds=30)
    assert time.monotonic() - killed < 30
    assert all(row["reason"] for row in sweep.rows())


def test_a_time_limit_too_short_leaves_a_resumable_run(sweep: Sweep) -> None:
    sweep.site = VIRTUAL.replace('time = "00:30:00"', 'time = "00:00:20"')
    sweep.prepare([1], epochs=100_000)
    assert sweep.submit().returncode == 0
    sweep.wait_for("resumable", seconds=240)
    assert all("TIMEOUT" in row["reason"] for row in sweep.rows())


def test_node_and_controller_failures_lose_and_double_nothing(images: Path, tmp_path: Path) -> None:
    """A node dies under a run; the controller is away while users ask and submit; all complete in the end."""
    options = ("--hosts", "2", "--gpus-per-host", "2", "--set", "SlurmdTimeout=5")
    with bring_up("faults", *options) as cluster:
        sweep = Sweep(cluster, tmp_path, images, "faults")
        sweep.prepare([2], epochs=300)
        assert sweep.submit().returncode == 0
        sweep.wait_for_first_epoch()
        before = {row["run"]: row["job"] for row in sweep.rows()}
        cluster.stop("node1")
        wait_until(lambda: "resumable" in sweep.states(), "the node's failure to be seen", 90)
        lost = next(row for row in sweep.rows() if row["state"] == "resumable")
        assert "NODE_FAIL" in lost["reason"]
        cluster.start("node1")
        assert "1 to submit" in sweep.submit().stdout
        cluster.stop("controller")
        assert "unknown" in sweep.states() <= {"unknown", "complete"}
        assert "0 to submit" in sweep.submit().stdout
        cluster.start("controller")
        wait_until(lambda: "unknown" not in sweep.states(), "the controller to answer", 30)
        done = sweep.submit("--wait")
        assert done.returncode == 0, done.stdout + done.stderr
        after = {row["run"]: row for row in sweep.rows()}
        assert {row["state"] for row in after.values()} == {"complete"}
        assert after[lost["run"]]["attempt"] == 2
        unharmed = next(run for run in before if run != lost["run"])
        assert after[unharmed]["job"] == before[unharmed]
