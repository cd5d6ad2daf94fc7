"""Runs on a real Slurm that are ended from outside, and what they come to: the same, bit for bit.

One cluster and one disk for all tests here.
"""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import VirtualCluster, bring_up, skip_without_cluster, wait_until
from tests.disks import full, small_disk
from tests.faults import trained
from tests.sweeps import Row, Sweep
from unet_scaling.study.record import RECORD_NAME, Record, attempt_records, read_record

pytestmark = [pytest.mark.slow, pytest.mark.verify]
# 38 training images give 9 steps to an epoch of 2 workers on one host, and 6 to one of 3 workers on two.
EPOCHS = 12
# A checkpoint at the first safe point of each 1.2 s.
SAVED_EPOCHS = 3
OFTEN_SAVED = "checkpoint_minutes = 0.02\n"
# Of a job from its start: at most stop_seconds away, which are 300; and as the cluster file has it.
NEAR_MINUTES = 5
FAR_MINUTES = 30
Trained = dict[str, list[object]]


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file system of its own, made before the hosts, which see what was mounted when they were made."""
    skip_without_cluster()
    with small_disk(tmp_path_factory.mktemp("disk"), mebibytes=64) as folder:
        yield folder


@pytest.fixture(scope="module")
def cluster(disk: Path) -> Iterator[VirtualCluster]:
    """Ten hosts under a Slurm that gives a node up soon."""
    options = ("--hosts", "10", "--gpus-per-host", "2", "--set", "SlurmdTimeout=5")
    with bring_up("survival", *options) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def undisturbed(cluster: VirtualCluster, images: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """What the same points come to where nothing happens, by the ids of their runs."""
    made = Sweep(cluster, tmp_path_factory.mktemp("undisturbed"), images, "undisturbed")
    made.prepare([2, 3], EPOCHS, OFTEN_SAVED)
    done = made.submit("--wait")
    assert done.returncode == 0, done.stdout + done.stderr + made.account()
    return {folder.name: trained(read_record(folder / RECORD_NAME)) for folder in made.run_folders()}


def make(cluster: VirtualCluster, images: Path, folder: Path, name: str, pace: float) -> Sweep:
    made = Sweep(cluster, folder, images, name)
    made.pace(pace)
    return made


def records(sweep: Sweep) -> dict[str, Record]:
    return {folder.name: read_record(folder / RECORD_NAME) for folder in sweep.run_folders()}


def require_undisturbed(sweep: Sweep, undisturbed: Trained) -> None:
    for run, record in records(sweep).items():
        assert trained(record) == undisturbed[run], run


def test_a_near_limit_a_requeue_and_a_lost_node_change_nothing(
    cluster: VirtualCluster, images: Path, tmp_path: Path, undisturbed: Trained
) -> None:
    """Runs on one host: Slurm announces their limit and starts them again; then `scontrol requeue`.

    Runs on two hosts: a power cut on one of them.
    """
    sweep = make(cluster, images, tmp_path, "again", pace=1.2)  # two minutes, in which Slurm sees the limit
    sweep.prepare([2, 3], EPOCHS, OFTEN_SAVED)
    assert sweep.submit().returncode == 0
    before = {row["run"]: row["job"] for row in sweep.rows()}
    faults = Faults(sweep)
    sweep.wait_until(faults.all_happened, f"the faults of {sweep.name}", 600)
    sweep.let_go()
    attempts = {2: 3, 3: 2}
    sweep.wait_until(
        lambda rows: all(row["attempt"] == attempts[row["workers"]] for row in rows), "the last attempts", 240
    )
    for host in faults.stopped_hosts:
        cluster.start(host)
    sweep.wait_for("complete", 240)
    assert {row["run"]: row["job"] for row in sweep.rows()} == before
    for run, record in records(sweep).items():
        assert record.header
        assert record.header.resumed
        if record.header.config.workers == 2:
            first, second = (read_record(path) for path in attempt_records(sweep.logs / sweep.name / run))
            assert first.end
            assert first.end.reason.split(";")[0] == "asked to stop by SIGUSR2"
            assert second.header
            assert second.header.resumed
            assert second.header.resumed.epoch == len(first.epochs)
    require_undisturbed(sweep, undisturbed)


class Faults:
    """The faults of one sweep, each as soon as its run has trained long enough for it."""

    def __init__(self, sweep: Sweep) -> None:
        self._sweep = sweep
        self._near: set[str] = set()
        self._met: set[str] = set()
        self._over: set[str] = set()
        self.stopped_hosts: list[str] = []

    def all_happened(self, rows: list[Row]) -> bool:
        """Do what is due now; return whether nothing is left to do."""
        for row in rows:
            if row["run"] not in self._over:
                fault = self._limit_and_requeue if row["workers"] == 2 else self._stop_host
                fault(row)
        return len(self._over) == len(rows)

    def _stop_host(self, row: Row) -> None:
        if row["epochs_done"] >= SAVED_EPOCHS:
            self.stopped_hosts.append(row["hosts"].split()[1])
            self._sweep.cluster.stop(self.stopped_hosts[-1])
            self._over.add(row["run"])

    def _limit_and_requeue(self, row: Row) -> None:
        """Once the run has gained an epoch its job's limit is near; for the next attempt it is far again.

        A limit chosen before would be met by slow machines while the workers still start.
        """
        run = row["run"]
        job = row["job"]
        if run not in self._near:
            if gained_an_epoch(self._sweep, run, attempt=1):
                limit_job(self._sweep, job, NEAR_MINUTES)
                self._near.add(run)
        elif run not in self._met:
            if row["state"] == "queued":
                limit_job(self._sweep, job, FAR_MINUTES)
                self._met.add(run)
        elif gained_an_epoch(self._sweep, run, attempt=2):
            self._sweep.cluster.run("scontrol", "requeue", job)
            self._over.add(run)


def gained_an_epoch(sweep: Sweep, run: str, attempt: int) -> bool:
    path = sweep.logs / sweep.name / run / RECORD_NAME
    record = read_record(path) if path.exists() else None
    if record is None or record.header is None or record.header.attempt != attempt:
        return False
    return len(record.epochs) > (record.header.resumed.epoch if record.header.resumed else 0)


def limit_job(sweep: Sweep, job: str, minutes: int) -> None:
    sweep.cluster.run("scontrol", "update", f"JobId={job}", f"TimeLimit={minutes}")


def test_a_disk_full_for_ten_seconds_costs_no_epoch(
    cluster: VirtualCluster, images: Path, disk: Path, tmp_path: Path, undisturbed: Trained
) -> None:
    sweep = make(cluster, images, tmp_path, "full", pace=0.3)
    sweep.logs = disk
    sweep.prepare([2], EPOCHS, OFTEN_SAVED)
    assert sweep.submit().returncode == 0
    sweep.wait_for_first_epoch()
    with full(disk):
        time.sleep(10)
    sweep.let_go()
    sweep.wait_for("complete", 240)
    assert all(row["attempt"] == 1 for row in sweep.rows())
    require_undisturbed(sweep, undisturbed)


def test_a_run_may_end_while_the_controller_is_away(
    cluster: VirtualCluster, images: Path, tmp_path: Path, undisturbed: Trained
) -> None:
    sweep = make(cluster, images, tmp_path, "away", pace=0.3)
    sweep.prepare([2], EPOCHS, OFTEN_SAVED)
    assert sweep.submit().returncode == 0
    sweep.wait_for_first_epoch()
    cluster.stop("controller")
    sweep.let_go()
    try:
        sweep.wait_for("complete", 240)
        other = make(cluster, images, tmp_path, "other", pace=0.0)
        other.prepare([1])
        refused = other.submit()
    finally:
        cluster.start("controller")
    assert refused.returncode == 75
    assert "nothing was submitted, Slurm does not answer" in refused.stderr
    require_undisturbed(sweep, undisturbed)
    # A controller that has just started does not know yet what its nodes offer, and rejects.
    wait_until(lambda: other.submit().returncode == 0, "Slurm to take jobs again", 60, pause=2)
    other.wait_for("complete")
    assert {row["attempt"] for row in other.rows()} == {1}
    assert "0 to submit" in sweep.submit().stdout


# The job is queued, and nobody is told; what only asks is passed on.
SILENT_SBATCH = """#!/bin/sh
case " $* " in *" --test-only "*) exec {real} "$@" ;; esac
{real} "$@" >/dev/null 2>&1
echo "sbatch: error: Batch job submission failed: Zero Bytes were transmitted or received" >&2
exit 1
"""
FILTERS = {"SQUEUE_PARTITION": "none", "SQUEUE_STATES": "S", "SCANCEL_STATE": "S", "SCANCEL_NAME": "none"}


@pytest.fixture
def held(cluster: VirtualCluster, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sweep:
    """A study whose jobs are held in the queue, under a user whose shell filters Slurm's answers."""
    made = make(cluster, images, tmp_path, "held", pace=0.0)
    made.site = f'options = ["--hold"]\n{made.site}'
    made.prepare([1])
    for name, value in FILTERS.items():
        monkeypatch.setenv(name, value)
    return made


def queued_names(cluster: VirtualCluster) -> list[str]:
    command = ["env", *(f"--unset={name}" for name in FILTERS), "squeue", "--noheader", "--format=%j"]
    return sorted(cluster.run(*command).split())


def test_an_answer_that_is_lost_makes_no_second_job_and_cancel_ends_the_first(
    cluster: VirtualCluster, held: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = shutil.which("sbatch")
    wrapper = tmp_path / "bin" / "sbatch"
    wrapper.parent.mkdir()
    wrapper.write_text(SILENT_SBATCH.format(real=real))
    wrapper.chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(wrapper.parent), prepend=":")
        assert held.submit().returncode == 0
    assert held.submit().returncode == 0
    assert held.states() == {"queued"}
    assert len(queued_names(cluster)) == 2
    held.cancel()
    assert held.states() == {"cancelled"}
    assert queued_names(cluster) == []


def test_a_controller_that_lost_its_state_gives_ids_to_others_that_cancel_spares(
    cluster: VirtualCluster, held: Sweep, tmp_path: Path
) -> None:
    assert held.submit().returncode == 0
    ids = {row["job"] for row in held.rows()}
    cluster.stop("controller")
    for path in (cluster.state / "controller").iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    cluster.start("controller")
    others = set[str]()
    while not ids <= others:
        others.add(cluster.submit("exit", tmp_path, "--hold", "--job-name=other"))
    assert held.states() == {"lost"}
    held.cancel()
    assert queued_names(cluster) == ["other"] * len(others)
    assert held.submit().returncode == 0
    assert held.states() == {"queued"}
    held.cancel()
    cluster.run("env", *(f"--unset={name}" for name in FILTERS), "scancel", *others)
