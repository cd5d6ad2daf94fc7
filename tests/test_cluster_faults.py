"""Runs on a real Slurm that are ended from outside, and what they come to: the same, bit for bit."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import VirtualCluster, assert_ok, bring_up, skip_without_cluster, wait_until
from tests.disks import full, small_disk
from tests.faults import trained
from tests.reports import report_of
from tests.sweeps import Row, Sweep
from unet_scaling.format.record import RECORD_NAME, attempt_records, read_record

pytestmark = [pytest.mark.slow, pytest.mark.verify]

WORKERS = (2, 3)  # on one host, and on two
FRAMEWORKS = ("horovod",)  # what resumes is shared; a requeued job of MPI may find memory of the former
EPOCHS = 12
OFTEN_SAVED = "checkpoint_minutes = 0.02\n"
# A checkpoint at the first safe point of each 1.2 s.
SAVED_EPOCHS = 3
# Of a job from its start: at most stop_seconds away, which are 300; and as the cluster file has it.
NEAR_MINUTES = 5
FAR_MINUTES = 30
Trained = dict[str, list[object]]


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[tuple[VirtualCluster, Path]]:
    """Five hosts under a Slurm that gives a node up soon, and a small disk that all see."""
    skip_without_cluster()
    disk = tmp_path / "disk"
    disk.mkdir()
    options = ("--hosts", "5", "--gpus-per-host", "2", "--set", "SlurmdTimeout=5", "--set", "MinJobAge=86400")
    with small_disk(disk, mebibytes=256), bring_up("faults", *options) as cluster:
        yield cluster, disk


def prepared(sweep: Sweep) -> Sweep:
    sweep.prepare(list(WORKERS), EPOCHS, OFTEN_SAVED, frameworks=FRAMEWORKS)
    return sweep


def undisturbed_study(sweep: Sweep) -> Trained:
    """What the runs come to where nothing happens, by their ids."""
    done = prepared(sweep).submit("--wait")
    assert done.returncode == 0, done.stdout + done.stderr + sweep.account()
    return {path.name: trained(read_record(path / RECORD_NAME)) for path in sweep.run_folders()}


def test_a_near_limit_a_requeue_a_full_disk_a_lost_node_and_no_controller_change_nothing(
    ground: tuple[VirtualCluster, Path], images: Path, tmp_path: Path
) -> None:
    """The disk of the logs is full for ten seconds, which costs no attempt.

    Then, of the run on one host, Slurm announces the limit and starts it again; then `scontrol requeue`. For
    that on two hosts, a power cut on one of them. Both end while the controller is away.
    """
    cluster, disk = ground
    undisturbed = undisturbed_study(Sweep(cluster, tmp_path, images, "undisturbed"))
    sweep = prepared(Sweep(cluster, tmp_path, images, "again", disk))
    sweep.pace(1.2)  # two minutes, in which Slurm sees the limit
    assert sweep.submit().returncode == 0
    before = {row["run"]: row["job"] for row in sweep.rows()}
    sweep.wait_for_first_epoch()
    with full(disk):
        time.sleep(10)
    assert {row["attempt"] for row in sweep.rows()} == {1}

    faults = Faults(sweep)
    sweep.wait_until(faults.all_happened, f"the faults of {sweep.name}", 600)
    attempts = {2: 3, 3: 2}
    sweep.wait_until(
        lambda rows: all(row["attempt"] == attempts[row["workers"]] for row in rows), "the last attempts", 240
    )
    for host in faults.stopped_hosts:
        cluster.start(host)

    cluster.stop("controller")
    try:
        # On a slow machine the other run has ended: its record says so, whoever is silent.
        assert sweep.states() <= {"unknown", "complete"}
        assert "0 to submit" in sweep.submit().stdout
        sweep.let_go()
        sweep.wait_for("complete", 240)
        other = Sweep(cluster, tmp_path, images, "other")
        other.prepare([1], frameworks=FRAMEWORKS)
        refused = other.submit()
    finally:
        cluster.start("controller")
    assert refused.returncode == 75, refused.stdout + refused.stderr
    # A controller that has just started does not know yet what its nodes offer, and rejects.
    wait_until(lambda: other.submit().returncode == 0, "Slurm to take jobs again", 60, pause=2)
    assert "0 to submit" in sweep.submit().stdout
    assert {row["run"]: row["job"] for row in sweep.rows()} == before
    require_undisturbed_attempts(sweep, undisturbed)
    other.wait_for("complete")
    assert {row["attempt"] for row in other.rows()} == {1}


def require_undisturbed_attempts(sweep: Sweep, undisturbed: Trained) -> None:
    """Each record is that of the run without faults; an announced limit stopped its run in order."""
    for folder in sweep.run_folders():
        record = read_record(folder / RECORD_NAME)
        assert trained(record) == undisturbed[folder.name], folder.name
        assert record.header
        assert record.header.resumed
        if record.header.config.workers == 2:
            first, second = (read_record(path) for path in attempt_records(folder))
            assert first.end
            assert first.end.reason.split(";")[0] == "asked to stop by SIGUSR2"
            assert second.header
            assert second.header.resumed
            assert second.header.resumed.epoch == len(first.epochs)


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


def test_a_run_resumed_on_a_node_of_another_system_is_used_and_the_report_says_so(
    images: Path, tmp_path: Path
) -> None:
    """Seven nodes, no two alike, a job for each run; one of 2 nodes is requeued while these are drained."""
    with bring_up("nodes", "--hosts", "7", "--gpus-per-host", "1") as cluster:
        for host in (f"node{number}" for number in range(1, 8)):
            release = tmp_path / host
            release.write_text(f'ID=linux\nPRETTY_NAME="Linux of {host}"\n')
            assert_ok(cluster.inside(host, "mount", "--bind", str(release), "/etc/os-release"))
        sweep = Sweep(cluster, tmp_path, images, "nodes")
        sweep.site = sweep.site.replace("gpus_per_node = 2", "gpus_per_node = 1")
        sweep.prepare([1, 2], EPOCHS, OFTEN_SAVED)
        sweep.pace(0.1)
        assert sweep.submit().returncode == 0
        run = next(each["run"] for each in sweep.rows() if each["run"].startswith("horovod-w02"))
        sweep.wait_until(lambda _: gained_an_epoch(sweep, run, attempt=1), f"an epoch of {run}", 240)
        first = sweep.row(run)
        nodes = first["hosts"].replace(" ", ",")
        cluster.run("scontrol", "update", f"NodeName={nodes}", "State=DRAIN", "Reason=test")
        cluster.run("scontrol", "requeue", first["job"])
        sweep.let_go()
        sweep.wait_for("complete", 240)
        header = read_record(sweep.logs / "nodes" / run / RECORD_NAME).header
        assert header
        assert header.resumed
        told = {worker.host for worker in header.workers}
        assert len(told) == 2
        assert not told & {*first["hosts"].split()}
        report = report_of(sweep.logs / "nodes")
        assert not report.left_out
        mark, withholds, fact = report.check("same machine in all attempts")
        # A scheduler chose the node: it is said, and is noise.
        assert (mark, withholds) == ("yes", False)
        assert all(f"version of os {facts.versions['os']}" in fact for facts in header.attempts())
