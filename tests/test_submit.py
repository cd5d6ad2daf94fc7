"""The submission against a fake Slurm that errs on purpose: every run once, whatever happens in between."""

import errno
import io
import json
import os
import stat
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

import slurm.attempts
import slurm.batch
import slurm.commands.submit
import slurm.scheduler
import slurm.states
import slurm.submit
from slurm.cancellation import CancelledError, mark_cancelled, next_cancellation
from slurm.cluster import Cluster
from slurm.local_plan import require_ready, take_over
from slurm.render import Places
from slurm.scheduler import LimitError, Slurm, UnreachableError
from slurm.status import status_table, study_rows
from slurm.study_folder import StudyFolder
from slurm.submissions import read_submission
from slurm.submit import Submitter
from tests import fake_slurm
from tests.records import write_record
from tests.studies import make_images
from unet_scaling.study.config import PROJECT, StudyConfig
from unet_scaling.study.errors import UserError
from unet_scaling.study.repeats import Precision
from unet_scaling.study.study_file import read_config

LEAST_PAUSE_SECONDS = 5.0
CLUSTER = Cluster(launcher="srun", gpus_per_node=2, cores_per_worker=1, max_nodes=7, time="10")


class FakeSlurm:
    """The test's side of the fake: what it should do, and what it was asked."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def plan(self, *actions: str) -> None:
        (self.home / "plan.json").write_text(json.dumps(actions))

    def reject(self, nodes: int, kind: str) -> None:
        (self.home / "reject.json").write_text(json.dumps({nodes: kind}))

    def be_silent(self) -> None:
        (self.home / "silent").touch()

    def jobs(self) -> dict[str, dict[str, str]]:
        path = self.home / "jobs.json"
        jobs: dict[str, dict[str, str]] = json.loads(path.read_text()) if path.exists() else {}
        return jobs

    def set_all(self, state: str, reason: str = "None") -> None:
        jobs = {job: facts | {"state": state, "reason": reason} for job, facts in self.jobs().items()}
        (self.home / "jobs.json").write_text(json.dumps(jobs))

    def forget_all(self) -> None:
        (self.home / "jobs.json").write_text("{}")


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    home = tmp_path / "slurm"
    programs = tmp_path / "bin"
    home.mkdir()
    programs.mkdir()
    for name in ("sbatch", "squeue", "sacct", "scancel", "scontrol"):
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -S {fake_slurm.__file__} {name} "$@"\n')
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=":")
    monkeypatch.setenv("FAKE_SLURM", str(home))
    monkeypatch.setattr(slurm.scheduler, "call_program", fake_slurm.answer)
    monkeypatch.setattr(slurm.scheduler, "FIND_PAUSES_SECONDS", (0.2,))
    monkeypatch.setattr(slurm.batch, "FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    return FakeSlurm(home)


@pytest.fixture
def submitter(fake: FakeSlurm, tmp_path: Path) -> Submitter:
    """Both frameworks at 1 and 4 workers, one repeat: four runs."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "manifest.json").write_text("{}")
    study = StudyConfig.model_validate(
        {
            "name": "sweep",
            "workers": [1, 4],
            "repeats": 1,
            "data": {"folder": str(data), "image_height": 32, "image_width": 32, "foreground": "255"},
            "training": {"epochs": 2, "batch_per_worker": 1},
        }
    )
    return Submitter(
        folder=StudyFolder(tmp_path / "logs" / "sweep", study),
        cluster=CLUSTER,
        places=Places(PROJECT, Path(sys.executable)),
        console=Console(quiet=True),
        cancellation=next_cancellation(tmp_path / "logs" / "sweep"),
        limit_wait_seconds=60,
    )


def states(submitter: Submitter) -> dict[str, str]:
    return {row.run: row.state for row in study_rows(submitter.folder.path)}


def counted(submitter: Submitter) -> dict[str, int]:
    return dict(Counter(states(submitter).values()))


def complete_all(submitter: Submitter) -> None:
    for point in submitter.folder.study.configs():
        write_record(submitter.folder.run_folder(point), point)


def test_submits_each_run_once_and_a_second_time_none(submitter: Submitter, fake: FakeSlurm) -> None:
    assert submitter.submit() == 4
    assert submitter.submit() == 0
    assert len(fake.jobs()) == 4
    assert len({facts["name"] for facts in fake.jobs().values()}) == 4
    assert counted(submitter) == {"queued": 4}


def test_runs_beyond_the_budget_are_not_submitted(submitter: Submitter, fake: FakeSlurm) -> None:
    with pytest.raises(UserError, match=r"may take 1 node-hours, the budget is 0\.9; nothing was submitted"):
        replace(submitter, budget_node_hours=0.9).submit()
    assert not fake.jobs()
    assert replace(submitter, budget_node_hours=1.0).submit() == 4


def test_after_a_node_failure_runs_are_submitted_again_under_new_names(
    submitter: Submitter, fake: FakeSlurm
) -> None:
    submitter.submit()
    fake.set_all("NODE_FAIL")
    assert submitter.submit() == 4
    assert len(fake.jobs()) == 8
    assert len({facts["name"] for facts in fake.jobs().values()}) == 8


def test_a_completed_run_that_slurm_forgot_stays_complete(submitter: Submitter, fake: FakeSlurm) -> None:
    submitter.submit()
    complete_all(submitter)
    fake.forget_all()
    assert counted(submitter) == {"complete": 4}
    assert submitter.submit() == 0


def test_a_complete_record_of_a_failed_job_is_not_run_again_unless_forced(
    submitter: Submitter, fake: FakeSlurm
) -> None:
    submitter.submit()
    complete_all(submitter)
    fake.set_all("FAILED")
    assert submitter.submit() == 0
    assert replace(submitter, force=("horovod-w01-r1",)).submit() == 1
    folder = submitter.folder.path / "horovod-w01-r1"
    assert (folder / "run.attempt1.jsonl").exists()
    assert not (folder / "run.jsonl").exists()


def test_max_queued_is_kept(submitter: Submitter, fake: FakeSlurm) -> None:
    few = replace(submitter, cluster=CLUSTER.model_copy(update={"max_queued": 3}))
    with pytest.raises(UserError, match="max_queued = 3"):
        few.submit()
    assert len(fake.jobs()) == 3


def test_one_allocation_is_one_job_for_all_runs(submitter: Submitter, fake: FakeSlurm) -> None:
    together = replace(submitter, one_allocation=True)
    together.submit()
    assert len(fake.jobs()) == 1
    assert counted(submitter) == {"queued": 4}
    fake.set_all("RUNNING")
    first = submitter.folder.study.configs()[0]
    write_record(submitter.folder.run_folder(first), first)
    assert counted(submitter) == {"complete": 1, "running": 3}
    fake.set_all("TIMEOUT")
    assert counted(submitter) == {"complete": 1, "resumable": 3}
    assert together.submit() == 3
    script = (submitter.folder.path / "allocation-2" / "job.sbatch").read_text()
    assert script.count("\nrun ") == 3


@pytest.mark.parametrize("one_allocation", [False, True])
def test_what_a_submission_leaves_is_private(
    one_allocation: bool, submitter: Submitter, fake: FakeSlurm
) -> None:
    """The output of jobs too: Slurm adds to a file that is there."""
    replace(submitter, one_allocation=one_allocation).submit()
    study = submitter.folder.path
    runs = [point.run for point in submitter.folder.study.configs()]
    jobs = sorted(path.parent.name for path in study.glob("*/job.sbatch"))
    assert jobs == (["allocation-1"] if one_allocation else sorted(runs))
    assert {path.parent.name for path in study.glob("*/output.log")} == set(jobs)
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in study.rglob("*")}
    assert {path for path, mode in modes.items() if mode & 0o077} == set()


def other_epochs(submitter: Submitter) -> Submitter:
    """The same study with another value of an option."""
    study = submitter.folder.study
    training = study.training | {"epochs": 3}
    return replace(
        submitter, folder=replace(submitter.folder, study=study.model_copy(update={"training": training}))
    )


def test_a_configuration_with_which_nothing_was_trained_is_replaced_and_kept(
    submitter: Submitter, fake: FakeSlurm
) -> None:
    submitter.submit()
    fake.set_all("FAILED")
    failed = submitter.folder.path / "horovod-w01-r1"
    (failed / "error.attempt1.worker0.json").write_text("{}")
    text = io.StringIO()
    mended = replace(other_epochs(submitter), console=Console(file=text, width=200))
    assert mended.submit() == 4
    assert read_config(failed / "config.json").training.epochs == 3
    assert not (failed / "error.attempt1.worker0.json").exists()
    kept = submitter.folder.path / ".replaced" / "horovod-w01-r1.1"
    assert read_config(kept / "config.json").training.epochs == 2
    assert "training.epochs was 2, with which nothing was trained; replaced by 3" in text.getvalue()
    assert counted(submitter) == {"queued": 4}


def test_a_configuration_is_not_replaced_under_a_job_that_may_start(
    submitter: Submitter, fake: FakeSlurm
) -> None:
    submitter.submit()
    with pytest.raises(UserError, match=r"training\.epochs is 2 there, 3 in the study"):
        other_epochs(submitter).submit()
    assert not (submitter.folder.path / ".replaced").exists()


def test_a_configuration_with_which_something_was_trained_is_never_replaced(
    submitter: Submitter, fake: FakeSlurm
) -> None:
    submitter.submit()
    fake.set_all("FAILED")
    first = submitter.folder.study.configs()[0]
    write_record(submitter.folder.run_folder(first), first)
    with pytest.raises(UserError, match=rf"{first.run}/config.json holds another configuration"):
        other_epochs(submitter).submit()
    assert not (submitter.folder.path / ".replaced").exists()


def test_each_submission_of_a_complete_adaptive_study_adds_a_repeat_where_it_needs_one(
    submitter: Submitter, fake: FakeSlurm
) -> None:
    until = submitter.folder.study.model_copy(
        update={"repeats": 3, "until": Precision(half_width=0.03, most=4)}
    )
    adaptive = replace(submitter, folder=replace(submitter.folder, study=until))
    assert adaptive.submit() == 12
    assert adaptive.submit() == 0  # nothing is decided while runs are in the queue
    for config in until.configs():
        uneven = config.framework == "horovod" and config.repeat == 2
        write_record(
            submitter.folder.run_folder(config), config, images_per_second=150.0 if uneven else 100.0
        )
    fake.set_all("COMPLETED")
    assert adaptive.submit() == 4
    assert counted(adaptive) == {"complete": 12, "queued": 4}
    assert {row.repeat for row in study_rows(submitter.folder.path) if row.state == "queued"} == {4}


def test_more_repeats_of_a_complete_study_are_submitted_once(submitter: Submitter, fake: FakeSlurm) -> None:
    submitter.submit()
    complete_all(submitter)
    fake.set_all("COMPLETED")
    assert replace(submitter, more_repeats=2).submit() == 8
    assert submitter.submit() == 0
    assert counted(submitter) == {"complete": 4, "queued": 8}


def test_where_the_file_system_has_no_locks_a_file_keeps_a_second_terminal_out(
    submitter: Submitter, fake: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("slurm.study_lock.fcntl.flock", no_locks)
    claim = submitter.folder.path / ".claim"
    with (
        submitter.folder.locked(),
        pytest.raises(UserError, match=rf"process {os.getpid()} on .*remove {claim}"),
    ):
        submitter.submit()
    assert fake.jobs() == {}
    assert submitter.submit() == 4
    assert not claim.exists()


def cancel_sweep(submitter: Submitter) -> None:
    command = [
        sys.executable,
        "-m",
        "unet_scaling",
        "cancel",
        "sweep",
        "--logs",
        str(submitter.folder.path.parent),
    ]
    subprocess.run(command, cwd=PROJECT, check=True, capture_output=True)


def cancel_in_pauses(submitter: Submitter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cancel where the submission pauses; a program that runs is waited for in shorter pauses."""

    def pause(seconds: float) -> None:
        if seconds >= LEAST_PAUSE_SECONDS:
            cancel_sweep(submitter)

    monkeypatch.setattr("time.sleep", pause)


def states_of_jobs(fake: FakeSlurm) -> list[str]:
    return [facts["state"] for facts in fake.jobs().values()]


def test_a_submission_that_waits_for_cancelled_jobs_stops(
    submitter: Submitter, fake: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancel_in_pauses(submitter, monkeypatch)
    with pytest.raises(
        CancelledError, match=r"sweep was cancelled meanwhile.*the same command goes on"
    ) as stop:
        slurm.commands.submit.submit_and_wait(submitter)
    assert stop.value.exit_code == 75
    assert states_of_jobs(fake) == ["CANCELLED"] * 4


def test_a_submission_that_waits_for_room_in_the_queue_stops_once_the_study_is_cancelled(
    submitter: Submitter, fake: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancel_in_pauses(submitter, monkeypatch)
    monkeypatch.setattr(slurm.batch, "FIRST_PAUSE_SECONDS", LEAST_PAUSE_SECONDS)
    fake.plan("accept", "limit")
    with pytest.raises(CancelledError):
        submitter.submit()
    assert states_of_jobs(fake) == ["CANCELLED"]
    assert counted(submitter) == {"cancelled": 1, "waiting": 3}


def test_a_job_queued_while_the_study_is_cancelled_is_taken_back(
    submitter: Submitter, fake: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`cancel` looks before its job is there."""
    queue = Slurm.submit

    def queue_beside_cancel(self: Slurm, script: Path, token: str) -> str:
        mark_cancelled(submitter.folder.path)
        return queue(self, script, token)

    monkeypatch.setattr(Slurm, "submit", queue_beside_cancel)
    with pytest.raises(CancelledError):
        submitter.submit()
    assert states_of_jobs(fake) == ["CANCELLED"]
    assert counted(submitter) == {"cancelled": 1, "waiting": 3}


def test_status_as_json_has_the_agreed_keys(submitter: Submitter, fake: FakeSlurm) -> None:
    submitter.submit()
    words = ["status", "sweep", "--json", "--logs", str(submitter.folder.path.parent)]
    command = [sys.executable, "-m", "unet_scaling", *words]
    done = subprocess.run(command, cwd=PROJECT, check=True, capture_output=True, text=True)
    rows = json.loads(done.stdout)
    assert len(rows) == 4
    assert {"run", "framework", "workers", "repeat", "state", "reason", "job"} <= set(rows[0])


def test_a_local_start_refuses_while_a_job_of_the_study_may_run(
    submitter: Submitter, fake: FakeSlurm
) -> None:
    submitter.submit()
    points = submitter.folder.study.configs()
    for state in ("PENDING", "RUNNING"):
        fake.set_all(state)
        with pytest.raises(UserError, match=r"jobs 1000, .*1003 of this study .*cancel them: .*cancel"):
            require_ready(submitter.folder, points)
    fake.be_silent()
    with pytest.raises(UserError, match=r"jobs 1000, .* may be queued or running.*Slurm does not answer"):
        require_ready(submitter.folder, points)
    assert len(list(submitter.folder.path.glob("*/job.json"))) == 4


def test_a_local_start_without_slurm_at_hand_names_the_jobs(
    submitter: Submitter, fake: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitter.submit()
    monkeypatch.setenv("PATH", str(fake.home))
    with pytest.raises(UserError, match=r"jobs 1000, .*squeue not found.*remove .*/\*/job\.json"):
        require_ready(submitter.folder, submitter.folder.study.configs())


def test_a_run_made_again_locally_is_no_longer_judged_by_its_former_job(
    submitter: Submitter, fake: FakeSlurm
) -> None:
    submitter.submit()
    fake.set_all("FAILED")
    data = Path(submitter.folder.study.data["folder"])
    (data / "manifest.json").unlink()
    make_images(data, count=6)
    take_over(submitter.folder, submitter.folder.study.configs())
    complete_all(submitter)
    assert counted(submitter) == {"complete": 4}
    assert submitter.submit() == 0


def test_a_submission_refuses_while_local_workers_are_alive(submitter: Submitter, fake: FakeSlurm) -> None:
    with submitter.folder.locked():
        worker = subprocess.Popen(["sleep", "300"], close_fds=False)
    try:
        with pytest.raises(UserError, match=rf"{worker.pid} \(sleep\)"):
            submitter.submit()
    finally:
        worker.kill()
        worker.wait()
    assert fake.jobs() == {}
    assert submitter.submit() == 4


def test_a_forced_run_is_submitted_once_by_a_submission_that_waits(
    submitter: Submitter, fake: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitter.folder.prepare()
    complete_all(submitter)
    run = next(point for point in submitter.folder.study.configs() if point.run == "horovod-w01-r1")
    forced = replace(submitter, force=(run.run,))

    def finish(*_: object) -> bool:
        assert len(fake.jobs()) == 1, "the forced run was submitted again"
        if (submitter.folder.run_folder(run) / "run.jsonl").exists():
            return False
        write_record(submitter.folder.run_folder(run), run)
        fake.set_all("COMPLETED")
        return True

    monkeypatch.setattr(slurm.commands.submit, "wait_for_active", finish)
    slurm.commands.submit.submit_and_wait(forced)
    assert len(fake.jobs()) == 1


def test_status_tells_runs_that_the_study_no_longer_has(submitter: Submitter, fake: FakeSlurm) -> None:
    more = submitter.folder.study.model_copy(update={"repeats": 2})
    replace(submitter, folder=StudyFolder(submitter.folder.path, more)).submit()
    fake.set_all("FAILED")
    complete_all(submitter)
    submitter.folder.prepare()
    rows = study_rows(submitter.folder.path)
    assert {row.run for row in rows if row.surplus} == {row.run for row in rows if row.repeat == 2}
    table = status_table("sweep", rows)
    assert table.title == "sweep: 4 runs"
    assert table.caption == "4 invalid; 4 more that the study no longer has"


@pytest.mark.parametrize("answer", ["limit", "time"])
@pytest.mark.parametrize("disturbed", [False, True])
def test_a_complete_record_stays_until_its_successor_is_queued(
    answer: str, disturbed: bool, submitter: Submitter, fake: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitter.submit()
    complete_all(submitter)
    fake.set_all("COMPLETED")
    runs = tuple(config.run for config in submitter.folder.study.configs())
    monkeypatch.setattr("slurm.submit.is_to_be_repeated", lambda *_: True)
    again = {"repeat_disturbed": True} if disturbed else {"force": runs}
    fake.plan("accept", *[answer] * 3)
    with pytest.raises(UserError, match="3 not submitted"):
        replace(submitter, limit_wait_seconds=0, **again).submit()
    assert len(list(submitter.folder.path.glob("*/run.jsonl"))) == 3
    assert counted(submitter) == {"complete": 3, "queued": 1}


@pytest.mark.parametrize("limit", ["max_queued", "site"])
def test_a_submission_that_waits_refills_a_limited_queue(
    limit: str, submitter: Submitter, fake: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pause(_seconds: float) -> None:
        for config in submitter.folder.study.configs():
            note = read_submission(submitter.folder.run_folder(config))
            if note and note.job and fake.jobs()[note.job]["state"] == "PENDING":
                write_record(submitter.folder.run_folder(config), config)
        fake.set_all("COMPLETED")

    monkeypatch.setattr("time.sleep", pause)
    cluster = CLUSTER.model_copy(update={"max_queued": 1 if limit == "max_queued" else 9})
    fake.plan(*(["accept", "limit"] * 4 if limit == "site" else []))
    slurm.commands.submit.submit_and_wait(replace(submitter, cluster=cluster))
    assert counted(submitter) == {"complete": 4}
    assert len(fake.jobs()) == 4


def test_at_a_submit_limit_a_shape_is_not_taken_for_refused(submitter: Submitter, fake: FakeSlurm) -> None:
    fake.reject(nodes=2, kind="limit")
    assert submitter.submit() == 4


def test_attempts_are_capped_and_a_forced_run_has_all_of_them_again(
    submitter: Submitter, fake: FakeSlurm
) -> None:
    folder = submitter.folder.path / "horovod-w01-r1"
    for _ in range(slurm.attempts.MOST_FRUITLESS):
        assert submitter.submit() == 4
        fake.set_all("FAILED")
    assert submitter.submit() == 0
    assert replace(submitter, force=(folder.name,)).submit() == 1
    for left in range(1, slurm.attempts.MOST_FRUITLESS):
        fake.set_all("FAILED")
        note = read_submission(folder)
        assert note
        assert note.attempts == left
        assert submitter.submit() == 1


# A wrapper of a site whose program hangs, and sbatch at the controller's own limit.
HANGS = "#!/bin/sh\nsleep 600 &\necho begun\nwait\n"
WAITS = (
    "#!/bin/sh\necho 'sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying' >&2\n"
    + HANGS
)


def test_a_call_that_hangs_ends_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "squeue").write_text(HANGS.replace("&\n", f"& echo $! >{tmp_path}/child\n"))
    (tmp_path / "sbatch").write_text(WAITS)
    for name in ("squeue", "sbatch"):
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(slurm.scheduler, "CALL_SECONDS", 2)
    monkeypatch.setattr(slurm.scheduler, "STATE_PAUSES_SECONDS", ())
    begun = time.monotonic()
    with pytest.raises(UnreachableError, match="did not answer within 2 s"):
        Slurm().queue()
    child = Path("/proc", (tmp_path / "child").read_text().strip(), "stat")
    assert not child.exists() or child.read_text().rpartition(")")[2].split()[0] == "Z"
    monkeypatch.setattr(slurm.scheduler, "CALL_SECONDS", 600)
    monkeypatch.setattr(Slurm, "find", lambda self, token: None)
    with pytest.raises(LimitError, match="sleeping and retrying"):
        Slurm().submit(tmp_path / "job.sbatch", "token")
    assert time.monotonic() - begun < 60
