"""Studies on a real Slurm of seven hosts: both frameworks up to 14 workers, and what goes wrong there."""

import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from datetime import datetime
from pathlib import Path

import pytest

from tests.cluster import bring_up, wait_until
from tests.sweeps import VIRTUAL, Row, Sweep
from tests.sweeps import sweep as sweep
from tests.wrappers import each_wrapper
from unet_scaling.study.record import read_record

pytestmark = pytest.mark.slow

WITH_MPIEXEC = re.sub(
    "launcher_arguments.*", f'launcher_command = ["{Path(sys.executable).with_name("mpiexec")}"]', VIRTUAL
).replace('launcher = "srun"', 'launcher = "mpiexec"')


@pytest.mark.parametrize(
    "workers",
    [
        pytest.param([3], id="two hosts"),
        pytest.param([1, 14], id="one host and seven", marks=pytest.mark.verify),
    ],
)
def test_both_frameworks_complete_on_every_worker_of_their_hosts(workers: list[int], sweep: Sweep) -> None:
    sweep.prepare(workers)
    done = sweep.submit("--wait")
    assert done.returncode == 0, done.stdout + done.stderr
    assert sweep.states() == {"complete"}
    assert len(sweep.rows()) == 2 * len(workers)
    for folder in sweep.run_folders():
        record = read_record(folder / "run.jsonl")
        assert record.complete
        assert record.header is not None
        owned = {(worker.host, tuple(worker.cores)) for worker in record.header.workers}
        assert len(owned) == record.header.config.workers
        assert len({host for host, _ in owned}) == -(-record.header.config.workers // 2)
    again = sweep.submit()
    assert "0 to submit" in again.stdout


@pytest.mark.verify
@pytest.mark.parametrize(("site", "workers"), [(VIRTUAL, 13), (WITH_MPIEXEC, 3)], ids=["srun", "mpiexec"])
@each_wrapper
def test_wrappers_complete_where_the_last_host_has_fewer_workers(
    framework: str, site: str, workers: int, sweep: Sweep
) -> None:
    sweep.site = site
    sweep.prepare([workers], frameworks=[framework])
    done = sweep.submit("--wait")
    assert done.returncode == 0, done.stdout + done.stderr
    (folder,) = sweep.run_folders()
    header = read_record(folder / "run.jsonl").header
    assert header is not None
    per_host = Counter(worker.host for worker in header.workers)
    assert sorted(per_host.values()) == [1, *[2] * (workers // 2)]
    assert sweep.states() == {"complete"}


def test_one_allocation_with_mpiexec_runs_them_all(sweep: Sweep) -> None:
    sweep.site = WITH_MPIEXEC
    sweep.prepare([3])
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


def is_cancelled_and_saved(rows: list[Row]) -> bool:
    return rows[0]["state"] == "cancelled" and "; stopped " in rows[0]["reason"]


def test_a_cancelled_job_is_named_and_submitted_again(sweep: Sweep) -> None:
    sweep.prepare([1], epochs=2000)
    assert sweep.submit().returncode == 0
    sweep.wait_for_first_epoch()
    first, second = sweep.rows()
    sweep.cluster.run("scancel", first["job"])
    sweep.wait_until(is_cancelled_and_saved, "the cancelled run to be named", 60)
    assert sweep.rows()[1]["state"] == "running"
    assert "1 to submit" in sweep.submit().stdout
    after = sweep.rows()
    assert after[0]["job"] != first["job"]
    assert after[1]["job"] == second["job"]


def test_a_submission_that_waits_stops_once_another_terminal_cancels_the_study(sweep: Sweep) -> None:
    sweep.prepare([1], epochs=2000)
    command = sweep.command("--wait")
    waiting = subprocess.Popen(
        command, env=sweep.cluster.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    submitted = sweep.logs / sweep.name
    wait_until(lambda: len(list(submitted.glob("*/job.json"))) == 2, "both runs to be submitted", 120)
    sweep.wait_for_first_epoch()
    before = {row["run"]: row["job"] for row in sweep.rows()}
    sweep.cancel()
    output, errors = waiting.communicate(timeout=120)
    assert waiting.returncode == 75, output + errors
    assert f"{sweep.name} was cancelled meanwhile" in errors
    sweep.wait_for("cancelled")
    assert {row["run"]: row["job"] for row in sweep.rows()} == before


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


@pytest.mark.verify
def test_a_killed_worker_ends_its_run_long_before_the_others_time_out(sweep: Sweep) -> None:
    """By the launcher, within seconds where the machine is quiet."""
    # MPI's workers wait by spinning: on two cores, each further one costs far more than its share.
    sweep.prepare([3], epochs=4000, more='budget = "off"\n')
    assert sweep.submit().returncode == 0
    sweep.wait_for_first_epoch()
    killed = time.time()
    for folder in sweep.run_folders():
        header = read_record(folder / "run.jsonl").header
        assert header is not None
        timeout_seconds = header.config.training.timeout_seconds
        os.kill(header.workers[2].process, 9)
    sweep.wait_for("failed")
    assert all(row["reason"] for row in sweep.rows())
    jobs = ",".join(row["job"] for row in sweep.rows())
    ends = sweep.cluster.run("squeue", "--noheader", "--states=all", f"--jobs={jobs}", "--format=%e").split()
    assert len(ends) == 2
    assert max(datetime.fromisoformat(end).timestamp() for end in ends) - killed < timeout_seconds / 2


@pytest.mark.verify
def test_a_time_limit_too_short_leaves_a_resumable_run(sweep: Sweep) -> None:
    short = re.sub("^time = .*", 'time = "00:01:00"', VIRTUAL, flags=re.MULTILINE)
    sweep.site = f"stop_seconds = 30\nrequeue = false\n{short}"
    sweep.prepare([1], epochs=100_000)
    assert sweep.submit().returncode == 0
    sweep.wait_for("resumable", seconds=240)
    assert all("stopped in epoch" in row["reason"] for row in sweep.rows())
    assert all(list(folder.glob("checkpoint-*.pt")) for folder in sweep.run_folders())


@pytest.mark.verify
def test_node_and_controller_failures_lose_and_double_nothing(images: Path, tmp_path: Path) -> None:
    """A node dies under a run; the controller is away while users ask and submit; all complete in the end."""
    options = ("--hosts", "2", "--gpus-per-host", "2", "--set", "SlurmdTimeout=5")
    with bring_up("faults", *options) as cluster:
        sweep = Sweep(cluster, tmp_path, images, "faults")
        sweep.site = f"requeue = false\n{VIRTUAL}"  # else Slurm itself starts the job again
        sweep.pace(0.6)  # so that neither run ends before the controller is away
        sweep.prepare([2], epochs=20)
        assert sweep.submit().returncode == 0
        sweep.wait_for_first_epoch()
        before = {row["run"]: row["job"] for row in sweep.rows()}
        cluster.stop("node1")
        sweep.wait_until(
            lambda rows: any(row["state"] == "resumable" for row in rows), "the node's failure to be seen", 90
        )
        lost = next(row for row in sweep.rows() if row["state"] == "resumable")
        assert "NODE_FAIL" in lost["reason"]
        cluster.start("node1")
        assert "1 to submit" in sweep.submit().stdout
        cluster.stop("controller")
        assert "unknown" in sweep.states() <= {"unknown", "complete"}
        assert "0 to submit" in sweep.submit().stdout
        sweep.let_go()
        cluster.start("controller")
        sweep.wait_until(
            lambda rows: all(row["state"] != "unknown" for row in rows), "the controller to answer", 30
        )
        done = sweep.submit("--wait")
        assert done.returncode == 0, done.stdout + done.stderr
        after = {row["run"]: row for row in sweep.rows()}
        assert {row["state"] for row in after.values()} == {"complete"}
        assert after[lost["run"]]["attempt"] == 2
        unharmed = next(run for run in before if run != lost["run"])
        assert after[unharmed]["job"] == before[unharmed]
