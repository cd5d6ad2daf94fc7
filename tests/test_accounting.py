"""What Slurm's accounting says of jobs that slurmctld has forgotten: a real slurmdbd on a real database."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm.scheduler.protocol import GONE, JobState
from slurm.scheduler.slurm import Slurm
from slurm.states import KnownJobs, combine
from slurm.submissions import Submission
from tests.cluster import PROGRAM, VirtualCluster, assert_ok, bring_up, wait_until
from unet_scaling.format.run_state import RunState

pytestmark = [pytest.mark.slow, pytest.mark.verify]

# Failures and forgotten jobs show soon; without MessageTimeout a lost node is noticed after 30 s.
SOON = {"SlurmdTimeout": 4, "MessageTimeout": 4, "KillWait": 2, "MinJobAge": 2}
LOST_NODE = "node2"
SLEEP = "touch $SLURM_JOB_NAME; exec sleep 600"
# By name: script and options, what the accounting says of the job, and what its run is without a record.
JOBS = {
    "completed": ("true", [], "COMPLETED", "", "failed"),
    "failed": ("exit 3", [], "FAILED", "with exit code 3", "failed"),
    "killed": ("kill -KILL $$", [], "FAILED", "by signal 9", "failed"),
    "out-of-memory": ("true", [], "OUT_OF_MEMORY", "", "failed"),
    "cancelled": (SLEEP, [], "CANCELLED", f"by {os.geteuid()}", "cancelled"),
    "lost-node": (SLEEP, ["--no-requeue", f"--nodelist={LOST_NODE}"], "NODE_FAIL", "", "resumable"),
    # Its first attempt has a record of its own, which only `sacct --duplicates` shows.
    "requeued": (
        f'[ -z "$SLURM_RESTART_COUNT" ] || exit 0; {SLEEP}', ["--requeue"], "COMPLETED", "", "failed",
    ),
}  # fmt: skip
RUNNING_SECONDS = 60
PROGRAMS = ("mariadbd", "slurmdbd")
CREATE_USER = "CREATE USER 'slurm'@'127.0.0.1'; GRANT ALL ON slurm_accounting.* TO 'slurm'@'127.0.0.1'"
SLURMDBD_CONF = """\
DbdHost=controller
AuthType=auth/munge
AuthInfo=socket={state}/munge/socket
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StorageUser=slurm
StorageLoc=slurm_accounting
LogFile={state}/log/slurmdbd.log
PidFile={state}/slurmdbd.pid
"""
# AccountingStoragePass is, despite its name, where munge listens.
ACCOUNTING = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost={address}
AccountingStoragePass={state}/munge/socket
AccountingStorageTRES=gres/gpu
"""
BY_NAME = Slurm("virtual")  # as users of a site with several clusters have to name it
FORGOTTEN_SECONDS = 300


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[VirtualCluster]:
    """Two hosts with accounting, which Slurm's commands of this process reach."""
    if missing := [program for program in PROGRAMS if not shutil.which(program)]:
        pytest.skip(f"no accounting here: {', '.join(missing)} missing")
    settings = [word for key, value in SOON.items() for word in ("--set", f"{key}={value}")]
    with bring_up("accounting", "--hosts", "2", *settings) as cluster:
        give_accounting(cluster)
        monkeypatch.setenv("SLURM_CONF", cluster.environment["SLURM_CONF"])
        yield cluster


def give_accounting(cluster: VirtualCluster) -> None:
    """Start a database and slurmdbd on the host of the controller, which then starts anew with them.

    They end with the hosts of the cluster. MariaDB listens on the host's own loop-back.
    """
    folder = cluster.state / "mariadb"
    socket = f"--socket={folder}/socket"
    files = ["--user=root", f"--datadir={folder}"]
    assert_ok(cluster.inside("controller", "mariadb-install-db", "--no-defaults", *files, "--skip-test-db"))
    listening = ["--bind-address=127.0.0.1", socket, f"--pid-file={folder}/pid"]
    server = ["mariadbd", "--no-defaults", *files, *listening, "--innodb-log-file-size=16M"]
    enter = [str(PROGRAM), "exec", "--state-dir", str(cluster.state), "controller", "--"]
    with (cluster.state / "log" / "mariadb.output").open("w") as output:
        subprocess.Popen([*enter, *server], stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    wait_until((folder / "socket").is_socket, "MariaDB", RUNNING_SECONDS)
    assert_ok(cluster.inside("controller", "mariadb", "--no-defaults", socket, f"--execute={CREATE_USER}"))
    configuration = cluster.state / "slurmdbd.conf"
    configuration.touch(mode=0o600)  # which slurmdbd insists on
    configuration.write_text(SLURMDBD_CONF.format(state=cluster.state))
    assert_ok(cluster.inside("controller", "slurmdbd"))
    with (cluster.state / "slurm.conf").open("r+") as file:
        address = file.read().partition("SlurmctldHost=controller(")[2].partition(")")[0]
        file.write(ACCOUNTING.format(address=address, state=cluster.state))
    wait_until(lambda: "Cluster" in cluster.run("sacctmgr", "show", "cluster", check=False), "slurmdbd", 60)
    cluster.run("sacctmgr", "--immediate", "add", "cluster", "virtual")
    cluster.stop("controller")
    cluster.start("controller")
    cluster.run("scontrol", "reconfigure")


def ended_in_every_way(cluster: VirtualCluster, folder: Path) -> dict[str, str]:
    """Return the ids of the jobs, by name, once slurmctld has forgotten them all."""
    ids = {
        name: cluster.submit(script, folder, f"--job-name={name}", *options)
        for name, (script, options, *_) in JOBS.items()
    }
    asleep = [name for name, (script, *_) in JOBS.items() if SLEEP in script]
    wait_until(lambda: all((folder / name).exists() for name in asleep), "the jobs to run", RUNNING_SECONDS)
    cluster.run("scancel", ids["cancelled"])
    cluster.run("scontrol", "requeue", ids["requeued"])
    cluster.stop(LOST_NODE)
    wait_until(
        lambda: not cluster.run("squeue", "--noheader", "--states=all"),
        "slurmctld to forget all jobs",
        FORGOTTEN_SECONDS,
        account=lambda: cluster.run("squeue", "--states=all"),
    )
    # As slurmctld writes where control groups confine jobs, which none does here. JOB_OOM is 11 in slurm.h.
    job = ids["out-of-memory"]
    change = f"UPDATE slurm_accounting.virtual_job_table SET state = 11 WHERE id_job = {job}"
    socket = f"--socket={cluster.state}/mariadb/socket"
    assert_ok(cluster.inside("controller", "mariadb", "--no-defaults", socket, f"--execute={change}"))
    return ids


def test_the_accounting_tells_the_ends_of_forgotten_jobs_and_of_no_job_that_lives(
    cluster: VirtualCluster, tmp_path: Path
) -> None:
    ids = ended_in_every_way(cluster, tmp_path)
    ends = Slurm().ended(ids.values())
    found = {
        name: (job.state, job.reason, combine(RunState("waiting"), noted(name, ids[name]), job).state)
        for name, job in ends.items()
    }
    assert found == {name: tuple(expected) for name, (_, _, *expected) in JOBS.items()}
    assert BY_NAME.ended(ids.values()) == ends

    again = cluster.submit(SLEEP, tmp_path, "--job-name=again", "--requeue")
    wait_until((tmp_path / "again").exists, f"job {again} to run", RUNNING_SECONDS)
    assert state_of("again", again) == "RUNNING"
    cluster.run("scontrol", "requeue", again)
    # Its first attempt has ended in the accounting, and may still be completing.
    assert state_of("again", again) in ("PENDING", "COMPLETING")
    wait_until(lambda: state_of("again", again) == "PENDING", f"job {again} to be pending", RUNNING_SECONDS)
    assert BY_NAME.find("again") == BY_NAME.look_up({"again": again})["again"].job == again
    BY_NAME.cancel("again")
    wait_until(lambda: state_of("again", again) == "CANCELLED", f"job {again} to end", RUNNING_SECONDS)

    queued = cluster.submit(SLEEP, tmp_path, "--hold", "--job-name=held")
    os.kill(int((cluster.state / "slurmdbd.pid").read_text()), signal.SIGTERM)
    wait_until(
        lambda: "Cluster" not in cluster.run("sacctmgr", "show", "cluster", check=False), "its end", 60
    )
    assert not Slurm().ended(ids.values())
    known = Slurm().look_up({"completed": ids["completed"], "held": queued, "other": queued})
    assert known["held"] == JobState("PENDING", "JobHeldUser", queued, "held")
    assert [known[name].state for name in ("completed", "other")] == [GONE, GONE]


def noted(name: str, job: str) -> Submission:
    return Submission(token=name, attempts=1, status="queued", job=job)


def state_of(name: str, job: str) -> str:
    submission = noted(name, job)
    folder = Path(name)
    known = KnownJobs({folder: submission})
    known.look_up({folder: submission})
    (answer,) = known.find(folder, submission)
    return answer.state
