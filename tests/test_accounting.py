"""What Slurm's accounting says of jobs that slurmctld has forgotten: a real slurmdbd on a real database."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm.scheduler import GONE, JobState, Slurm
from slurm.states import KnownJobs, combine
from slurm.submissions import Submission
from tests.cluster import VirtualCluster, bring_up, wait_until
from unet_scaling.study.run_state import RunState

pytestmark = [pytest.mark.slow, pytest.mark.verify]

# Failures and forgotten jobs show soon; without MessageTimeout a lost node is noticed after 30 s.
SOON = {"SlurmdTimeout": 4, "MessageTimeout": 4, "KillWait": 2, "MinJobAge": 2}
LOST_NODE = "node2"
SLEEP = "touch $SLURM_JOB_NAME; exec sleep 600"
SCRIPTS = {
    "completed": ("true", []),
    "failed": ("exit 3", []),
    "killed": ("kill -KILL $$", []),
    "out-of-memory": ("true", []),
    "cancelled": (SLEEP, []),
    "timeout": (SLEEP, ["--time=1"]),
    "lost-node": (SLEEP, ["--no-requeue", f"--nodelist={LOST_NODE}"]),
    "requeued": (f'if [ -n "$SLURM_RESTART_COUNT" ]; then exit 0; fi; {SLEEP}', ["--requeue"]),
}
RUNNING_SECONDS = 60
FORGOTTEN_SECONDS = 300


@pytest.fixture(scope="module")
def cluster() -> Iterator[VirtualCluster]:
    """Two hosts with accounting; skipped with the reason where its packages are missing."""
    settings = [word for key, value in SOON.items() for word in ("--set", f"{key}={value}")]
    with bring_up("accounting", "--accounting", "--hosts", "2", *settings) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def jobs(cluster: VirtualCluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The ids of jobs that ended in every way, by name; slurmctld has forgotten them all."""
    folder = tmp_path_factory.mktemp("jobs")
    ids = {
        name: cluster.submit(script, folder, f"--job-name={name}", *options)
        for name, (script, options) in SCRIPTS.items()
    }
    end_from_outside(cluster, ids, folder)
    wait_until(
        lambda: not cluster.run("squeue", "--noheader", "--states=all"),
        "slurmctld to forget all jobs",
        FORGOTTEN_SECONDS,
        account=lambda: cluster.run("squeue", "--states=all"),
    )
    claim_out_of_memory(cluster, ids["out-of-memory"])
    return ids


def end_from_outside(cluster: VirtualCluster, ids: dict[str, str], folder: Path) -> None:
    """Cancel one job, requeue one, and cut the power of the host of a third, once each of them runs."""
    asleep = [name for name, (script, _) in SCRIPTS.items() if SLEEP in script]
    wait_until(lambda: all((folder / name).exists() for name in asleep), "the jobs to run", RUNNING_SECONDS)
    cluster.run("scancel", ids["cancelled"])
    cluster.run("scontrol", "requeue", ids["requeued"])
    cluster.stop(LOST_NODE)


def claim_out_of_memory(cluster: VirtualCluster, job: str) -> None:
    """Write into the database what slurmctld writes where control groups confine jobs: here none does.

    JOB_OOM is 11 in slurm.h.
    """
    change = f"UPDATE slurm_accounting.virtual_job_table SET state = 11 WHERE id_job = {job}"
    socket = f"--socket={cluster.state}/mariadb/socket"
    done = cluster.inside("database", "mariadb", "--no-defaults", socket, f"--execute={change}")
    assert done.returncode == 0, done.stderr


@pytest.fixture
def reached(cluster: VirtualCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm's commands of this process reach the cluster."""
    monkeypatch.setenv("SLURM_CONF", cluster.environment["SLURM_CONF"])


EXPECTED = {
    "completed": ("COMPLETED", "", "failed", "COMPLETED; see output.log"),
    "failed": ("FAILED", "with exit code 3", "failed", "FAILED with exit code 3; see output.log"),
    "killed": ("FAILED", "by signal 9", "failed", "FAILED by signal 9; see output.log"),
    "out-of-memory": ("OUT_OF_MEMORY", "", "failed", "out of memory"),
    "cancelled": ("CANCELLED", f"by {os.geteuid()}", "cancelled", f"by {os.geteuid()}"),
    "timeout": ("TIMEOUT", "", "resumable", "TIMEOUT"),
    "lost-node": ("NODE_FAIL", "", "resumable", "NODE_FAIL"),
    # Its first attempt has a record of its own, which only `sacct --duplicates` shows.
    "requeued": ("COMPLETED", "", "failed", "COMPLETED; see output.log"),
}


@pytest.mark.usefixtures("reached")
@pytest.mark.parametrize("name", EXPECTED)
def test_names_the_end_of_a_job_that_slurmctld_has_forgotten(name: str, jobs: dict[str, str]) -> None:
    """Its run left no record."""
    known = Slurm().ended(jobs.values())[name]
    state, reason, run_state, run_reason = EXPECTED[name]
    assert (known.state, known.reason) == (state, reason)
    submission = Submission(token=name, attempts=1, status="queued", job=jobs[name])
    combined = combine(RunState("waiting"), submission, known)
    assert (combined.state, combined.reason) == (run_state, run_reason)


def test_a_requeued_job_has_a_record_for_each_attempt(cluster: VirtualCluster, jobs: dict[str, str]) -> None:
    """Or the test above could not tell the first from the last."""
    words = ["--noheader", "--parsable2", "--allocations", "--duplicates", "--format=State"]
    assert cluster.run("sacct", *words, f"--jobs={jobs['requeued']}").split() == ["REQUEUED", "COMPLETED"]


@pytest.mark.usefixtures("reached")
def test_a_job_that_runs_again_is_not_taken_for_ended(
    cluster: VirtualCluster, jobs: dict[str, str], tmp_path: Path
) -> None:
    """Its first attempt has ended in the accounting; it waits until its credential may be issued anew."""
    job = cluster.submit(SLEEP, tmp_path, "--job-name=again", "--requeue")
    wait_until((tmp_path / "again").exists, f"job {job} to run", RUNNING_SECONDS)
    assert state_of(job) == "RUNNING"
    cluster.run("scontrol", "requeue", job)
    assert state_of(job) == "PENDING"
    Slurm().cancel("again")
    wait_until(lambda: state_of(job) == "CANCELLED", f"job {job} to end", RUNNING_SECONDS)


def state_of(job: str) -> str:
    submission = Submission(token="again", attempts=1, status="queued", job=job)
    known = KnownJobs([submission])
    known.look_up([submission])
    answer = known.of(submission)
    assert answer
    return answer.state


@pytest.mark.usefixtures("reached")
def test_without_the_database_a_forgotten_job_is_gone_and_a_queued_one_is_not(
    cluster: VirtualCluster, jobs: dict[str, str], tmp_path: Path
) -> None:
    queued = cluster.submit(SLEEP, tmp_path, "--hold", "--job-name=held")
    cluster.stop("database")
    try:
        assert not Slurm().ended(jobs.values())
        found = Slurm().look_up({"completed": jobs["completed"], "held": queued, "other": queued})
    finally:
        cluster.start("database")
        cluster.run("scancel", queued)
    assert found["held"] == JobState("PENDING", "JobHeldUser", queued, "held")
    assert [found[name].state for name in ("completed", "other")] == [GONE, GONE]
