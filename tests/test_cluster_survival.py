"""Runs on a real Slurm that are ended from outside, and what they come to: the same, bit for bit.

One cluster and one disk for all tests here.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster import VirtualCluster, bring_up, skip_without_cluster, wait_until
from tests.disks import full, small_disk
from tests.faults import trained
from tests.sweeps import Row, Sweep
from unet_scaling.study.record import RECORD_NAME, Record, attempt_records, read_record

pytestmark = [pytest.mark.slow, pytest.mark.verify]
# 38 training images give 9 steps to an epoch of 2 workers on one host, and 6 to one of 3 workers on two.
EPOCHS = 24
# A checkpoint at the first safe point of each 1.2 s.
SAVED_EPOCHS = 3
OFTEN_SAVED = "checkpoint_minutes = 0.02\n"
# Of a job from its start: at most stop_seconds away, which are 300; and as the cluster file has it.
NEAR_MINUTES, FAR_MINUTES = 5, 30
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


def once_each_trains(sweep: Sweep, strike: Callable[[Row], None]) -> None:
    """Strike every run as soon as it has trained some epochs and saved its state."""
    struck: set[str] = set()

    def all_are_struck(rows: list[Row]) -> bool:
        for row in rows:
            if row["epochs_done"] >= SAVED_EPOCHS and row["run"] not in struck:
                struck.add(row["run"])
                strike(row)
        return len(struck) == len(rows)

    sweep.wait_until(all_are_struck, f"{sweep.name} to train", 240)


def test_a_requeued_job_and_a_lost_node_change_nothing(
    cluster: VirtualCluster, images: Path, tmp_path: Path, undisturbed: Trained
) -> None:
    """`scontrol requeue` for the runs of one host; a power cut on a host of each of the others."""
    sweep = make(cluster, images, tmp_path, "again", pace=0.15)
    sweep.prepare([2, 3], EPOCHS, OFTEN_SAVED)
    assert sweep.submit().returncode == 0
    before = {row["run"]: row["job"] for row in sweep.rows()}
    stopped: list[str] = []

    def strike(row: Row) -> None:
        if row["workers"] == 2:
            cluster.run("scontrol", "requeue", row["job"])
        else:
            stopped.append(row["hosts"].split()[1])
            cluster.stop(stopped[-1])

    once_each_trains(sweep, strike)
    sweep.let_go()
    sweep.wait_until(lambda rows: all(row["attempt"] == 2 for row in rows), "a second attempt of all", 240)
    for host in stopped:
        cluster.start(host)
    sweep.wait_for("complete", 240)
    assert {row["run"]: row["job"] for row in sweep.rows()} == before
    assert all(record.header and record.header.resumed for record in records(sweep).values())
    require_undisturbed(sweep, undisturbed)


def test_a_limit_that_comes_too_soon_is_met_twice_and_changes_nothing(
    cluster: VirtualCluster, images: Path, tmp_path: Path, undisturbed: Trained
) -> None:
    """Slurm announces it stop_seconds before, and starts the job again; the third attempt ends."""
    sweep = make(cluster, images, tmp_path, "limit", pace=0.6)
    sweep.prepare([2], EPOCHS)
    assert sweep.submit().returncode == 0
    for attempt in (1, 2):
        each_meets_its_limit(sweep, attempt)
    sweep.let_go()
    sweep.wait_for("complete", 400)
    assert {row["attempt"] for row in sweep.rows()} == {3}
    for folder in sweep.run_folders():
        ends = [read_record(path).end for path in attempt_records(folder)]
        assert [end.reason.split(";")[0] for end in ends if end] == ["asked to stop by SIGUSR2"] * 2
        header = read_record(folder / RECORD_NAME).header
        assert header
        assert header.resumed
        assert header.resumed.repeated_epochs == 0
    require_undisturbed(sweep, undisturbed)


def each_meets_its_limit(sweep: Sweep, attempt: int) -> None:
    """Once a run has gained an epoch its job's limit is near; for the next attempt it is far again.

    A limit chosen before would be met by slow machines while the workers still start.
    """
    near, met = set[str](), set[str]()

    def all_have_met(rows: list[Row]) -> bool:
        for row in rows:
            if row["run"] not in near and gained_an_epoch(sweep, row["run"], attempt):
                limit_job(sweep, row["job"], NEAR_MINUTES)
                near.add(row["run"])
            elif row["run"] in near - met and row["state"] == "queued":
                limit_job(sweep, row["job"], FAR_MINUTES)
                met.add(row["run"])
        return len(met) == len(rows)

    sweep.wait_until(all_have_met, f"attempt {attempt} of {sweep.name} to meet its limit", 400)


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
    sweep = make(cluster, images, tmp_path, "full", pace=0.15)
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
    sweep = make(cluster, images, tmp_path, "away", pace=0.1)
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
    assert refused.returncode == 2
    assert "nothing was submitted, Slurm does not answer" in refused.stderr
    require_undisturbed(sweep, undisturbed)
    # A controller that has just started does not know yet what its nodes offer, and rejects.
    wait_until(lambda: other.submit().returncode == 0, "Slurm to take jobs again", 60, pause=2)
    other.wait_for("complete")
    assert {row["attempt"] for row in other.rows()} == {1}
    assert "0 to submit" in sweep.submit().stdout
