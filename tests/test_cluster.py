"""Studies on a real Slurm of seven hosts: every framework, up to 14 workers, and users who interfere."""

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

from slurm.launch.preflight import is_installed
from tests.cluster import wait_until
from tests.sweeps import VIRTUAL, Row, Sweep
from tests.sweeps import sweep as sweep
from unet_scaling.format.record import Record, read_record
from unet_scaling.study.config import FRAMEWORKS, WRAPPERS

pytestmark = [pytest.mark.slow, pytest.mark.verify]

WITH_MPIEXEC = re.sub(
    "launcher_arguments.*", f'launcher_command = ["{Path(sys.executable).with_name("mpiexec")}"]', VIRTUAL
).replace('launcher = "srun"', 'launcher = "mpiexec"')


def require_complete(sweep: Sweep, *options: str) -> list[Record]:
    """Submit and wait; every run is complete, with a core of its own for each worker, two to a host."""
    done = sweep.submit("--wait", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sweep.states() == {"complete"}
    records = [read_record(folder / "run.jsonl") for folder in sweep.run_folders()]
    for record in records:
        assert record.complete
        assert record.header is not None
        workers = record.header.workers
        assert len({(worker.host, tuple(worker.cores)) for worker in workers}) == len(workers)
        last = [len(workers) % 2] if len(workers) % 2 else []
        per_host = Counter(worker.host for worker in workers).values()
        assert sorted(per_host) == [*last, *[2] * (len(workers) // 2)]
    return records


def test_a_study_is_rejected_with_slurms_words_then_completes_and_is_submitted_once(sweep: Sweep) -> None:
    sweep.site = f'partition = "nosuch"\n{VIRTUAL}'
    sweep.prepare([3])
    done = sweep.submit()
    assert done.returncode == 2
    assert "invalid partition" in done.stderr.lower()
    assert sweep.states() == {"rejected"}
    sweep.site = VIRTUAL
    assert len(require_complete(sweep)) == len(FRAMEWORKS)
    assert "0 to submit" in sweep.submit().stdout


def test_both_frameworks_complete_on_all_hosts(sweep: Sweep) -> None:
    sweep.prepare([14])
    assert len(require_complete(sweep)) == len(FRAMEWORKS)


def test_one_allocation_with_mpiexec_runs_all_frameworks(sweep: Sweep) -> None:
    frameworks = [*FRAMEWORKS, *filter(is_installed, WRAPPERS)]
    sweep.site = WITH_MPIEXEC
    sweep.prepare([3], frameworks=frameworks)
    assert len(require_complete(sweep, "--one-allocation")) == len(frameworks)
    assert len({row["job"] for row in sweep.rows()}) == 1


def test_a_study_that_is_submitted_twice_loses_a_worker_and_a_job_and_is_cancelled(sweep: Sweep) -> None:
    """In this order; the second submission waits meanwhile, as in another terminal."""
    # MPI's workers wait by spinning: on two cores, each further one costs far more than its share.
    sweep.prepare([3], epochs=4000, more='budget = "off"\n')
    racing = [start(sweep) for _ in range(2)]
    outputs = [process.communicate(timeout=120)[0] for process in racing]
    assert sum(output.count(": job ") for output in outputs) == 2, outputs
    assert jobs_of_each_run(sweep) == [1, 1]
    sweep.wait_for_first_epoch()
    first = {row["run"]: row["job"] for row in sweep.rows()}
    require_a_killed_worker_and_a_cancelled_job_to_be_named(sweep, first)

    waiting = start(sweep, "--wait")
    wait_until(lambda: not set(first.values()) & jobs_of(sweep), "both runs to be submitted again", 120)
    again = jobs_of(sweep)
    sweep.cancel()
    output, _ = waiting.communicate(timeout=120)
    assert waiting.returncode == 75, output
    assert f"{sweep.name} was cancelled meanwhile" in output
    sweep.wait_for("cancelled")
    assert jobs_of(sweep) == again
    assert jobs_of_each_run(sweep) == [2, 2]


def start(sweep: Sweep, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        sweep.command(*options),
        env=sweep.cluster.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def jobs_of(sweep: Sweep) -> set[str]:
    return {row["job"] for row in sweep.rows()}


def jobs_of_each_run(sweep: Sweep) -> list[int]:
    """How many jobs Slurm has seen of each run: a job's name without its last number is the run's."""
    names = sweep.cluster.run("squeue", "--noheader", "--states=all", "--format=%j").split()
    tokens = [json.loads((folder / "job.json").read_text())["token"] for folder in sweep.run_folders()]
    places = [token.rpartition(".")[0] for token in tokens]
    return [sum(name.startswith(place) for name in names) for place in places]


def require_a_killed_worker_and_a_cancelled_job_to_be_named(sweep: Sweep, jobs: dict[str, str]) -> None:
    """The launcher ends the run of the killed one within seconds, long before the others time out."""
    native, horovod = sweep.run_folders()[::-1]
    header = read_record(horovod / "run.jsonl").header
    assert header is not None
    killed = time.time()
    os.kill(header.workers[2].process, 9)
    sweep.cluster.run("scancel", jobs[native.name])

    def are_named(rows: list[Row]) -> bool:
        found = {row["run"]: row for row in rows}
        stopped = found[native.name]["state"] == "cancelled" and "; stopped " in found[native.name]["reason"]
        return stopped and found[horovod.name]["state"] == "failed" and bool(found[horovod.name]["reason"])

    sweep.wait_until(are_named, "both ends to be named", 120)
    job = f"--jobs={jobs[horovod.name]}"
    end = sweep.cluster.run("squeue", "--noheader", "--states=all", job, "--format=%e").strip()
    seconds = datetime.fromisoformat(end).timestamp() - killed
    assert seconds < header.config.training.timeout_seconds / 2
