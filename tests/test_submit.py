"""The submission against a Slurm in this process, story by story; histories by chance: test_slurm_peer.py."""

import errno
import fcntl
import itertools
import json
import os
import shutil
import stat
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import slurm.after_run
import slurm.commands.submit
import slurm.scheduler.slurm
import slurm.submissions
import slurm.submit
from slurm.commands.cancel import cancel_study
from slurm.commands.status import show_status, status_table, study_rows
from slurm.launch.local import require_ready, take_over
from slurm.launch.study_folder import CancelledError, StudyFolder, locked, mark_cancelled
from slurm.scheduler.protocol import LimitError, UnreachableError
from slurm.scheduler.slurm import Printed, Slurm
from slurm.submissions import LATEST_JOB_SECONDS, read_submission
from slurm.submit import Submitter
from tests.cluster import wait_until
from tests.peer_slurm import CLUSTER, TIMED, Clock, PeerSlurm, make_submitter
from tests.records import make_study, write_record
from tests.studies import make_images
from unet_scaling.base.errors import EXIT_RESUME, UserError
from unet_scaling.study.repeats import Precision
from unet_scaling.study.study_file import OUTPUT_NAME, read_config

LEAST_PAUSE_SECONDS = 5.0
RUN = "horovod-w01-r1"


@dataclass
class Site(PeerSlurm):
    """Answers submissions as planned, then honestly; silent while it is told to be."""

    plan: list[str] = field(default_factory=list)
    is_silent: bool = False

    def run(
        self, command: Sequence[str], environment: Mapping[str, str], folder: Path | None, stop_at: str
    ) -> Printed:
        if self.is_silent:
            return self.answered("lost", 1, "")
        return super().run(command, environment, folder, stop_at)

    def sbatch(self, words: list[str], folder: Path, fault: str, stop_at: str) -> Printed:
        if words[0] == "--parsable" and self.plan:
            fault = self.plan.pop(0)
        return super().sbatch(words, folder, fault, stop_at)

    def set_all(self, state: str) -> None:
        for job in self.jobs.values():
            job.state = state

    def states(self) -> list[str]:
        return [job.state for job in self.jobs.values()]


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Site:
    made = Site(Clock())
    for module in TIMED:
        monkeypatch.setattr(module, "time", made.clock)
    monkeypatch.setattr(slurm.scheduler.slurm, "call_program", made.run)
    return made


@pytest.fixture
def submitter(site: Site, tmp_path: Path) -> Submitter:
    """Both frameworks at 1 and 4 workers, one repeat: four runs."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "manifest.json").write_text("{}")
    training = {"epochs": 2, "batch_per_worker": 1}
    study = make_study("sweep", data, workers=[1, 4], training=training)
    return make_submitter(tmp_path / "logs" / "sweep", study, limit_wait_seconds=60)


def counted(submitter: Submitter) -> dict[str, int]:
    return dict(Counter(row.state for row in study_rows(submitter.folder.path)))


def complete_all(submitter: Submitter) -> None:
    for point in submitter.folder.study.configs():
        write_record(submitter.folder.run_folder(point), point)


def with_study(submitter: Submitter, **changes: object) -> Submitter:
    study = submitter.folder.study.model_copy(update=changes)
    return replace(submitter, folder=replace(submitter.folder, study=study))


def test_each_run_is_submitted_once_again_after_a_lost_node_and_never_once_complete(
    submitter: Submitter, site: Site
) -> None:
    assert submitter.submit() == 4
    assert submitter.submit() == 0
    assert counted(submitter) == {"queued": 4}
    site.set_all("NODE_FAIL")
    assert submitter.submit() == 4
    assert len({job.name for job in site.jobs.values()}) == 8
    complete_all(submitter)
    site.jobs.clear()  # as Slurm forgets them
    assert counted(submitter) == {"complete": 4}
    assert submitter.submit() == 0


def test_runs_beyond_the_budget_are_not_submitted(submitter: Submitter, site: Site) -> None:
    with pytest.raises(
        UserError, match=r"--budget 0\.9 node-hours: .* 1\.0 node-hours, 1\.7 GPU-hours; nothing"
    ):
        replace(submitter, budget_node_hours=0.9).submit()
    assert not site.jobs
    assert replace(submitter, budget_node_hours=1.0).submit() == 4


def test_a_complete_record_of_a_failed_job_is_not_run_again_unless_forced(
    submitter: Submitter, site: Site
) -> None:
    submitter.submit()
    complete_all(submitter)
    site.set_all("FAILED")
    assert submitter.submit() == 0
    assert replace(submitter, force=(RUN,)).submit() == 1
    assert (submitter.folder.path / RUN / "run.attempt1.jsonl").exists()
    assert not (submitter.folder.path / RUN / "run.jsonl").exists()


def test_attempts_are_capped_and_a_forced_run_has_all_of_them_again(submitter: Submitter, site: Site) -> None:
    for _ in range(slurm.after_run.MOST_FRUITLESS):
        assert submitter.submit() == 4
        site.set_all("FAILED")
    assert submitter.submit() == 0
    assert replace(submitter, force=(RUN,)).submit() == 1
    for left in range(1, slurm.after_run.MOST_FRUITLESS):
        site.set_all("FAILED")
        note = read_submission(submitter.folder.path / RUN)
        assert note
        assert note.attempts == left
        assert submitter.submit() == 1


@pytest.mark.parametrize("answer", ["limit", "refuse"])
@pytest.mark.parametrize("disturbed", [False, True])
def test_a_complete_record_stays_until_its_successor_is_queued(
    answer: str, disturbed: bool, submitter: Submitter, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitter.submit()
    complete_all(submitter)
    site.set_all("COMPLETED")
    runs = tuple(config.run for config in submitter.folder.study.configs())
    monkeypatch.setattr("slurm.submit.is_to_be_repeated", lambda *_: True)
    again = {"repeat_disturbed": True} if disturbed else {"force": runs}
    site.plan = ["", *[answer] * 3]
    with pytest.raises(UserError, match="3 not submitted"):
        replace(submitter, limit_wait_seconds=0, **again).submit()
    assert len(list(submitter.folder.path.glob("*/run.jsonl"))) == 3
    assert counted(submitter) == {"complete": 3, "queued": 1}


@pytest.mark.parametrize("limit", ["max_queued", "site"])
def test_a_waiting_submission_refills_a_limited_queue(limit: str, submitter: Submitter, site: Site) -> None:
    def pass_time(_seconds: float) -> None:
        assert site.states().count("PENDING") <= 1
        for config in submitter.folder.study.configs():
            note = read_submission(submitter.folder.run_folder(config))
            if note and note.job and site.jobs[int(note.job)].state == "PENDING":
                write_record(submitter.folder.run_folder(config), config)
        site.set_all("COMPLETED")

    site.clock.pass_time = pass_time
    site.most_jobs = 1 if limit == "site" else 9
    cluster = CLUSTER.model_copy(update={"max_queued": 1 if limit == "max_queued" else 9})
    slurm.commands.submit.submit_and_wait(replace(submitter, cluster=cluster))
    assert counted(submitter) == {"complete": 4}
    assert len(site.jobs) == 4


def test_at_a_submit_limit_a_shape_is_not_taken_for_refused(submitter: Submitter, site: Site) -> None:
    site.faults = ["limit"]  # of `sbatch --test-only`
    assert submitter.submit() == 4


def test_after_a_lost_answer_nobody_calls_a_run_rejected(submitter: Submitter, site: Site) -> None:
    """The job may be queued late: its run may not be submitted again at once."""
    site.plan = ["lost"]
    with pytest.raises(UserError):
        submitter.submit()
    assert counted(submitter) == {"unknown": 1, "queued": 3}


def test_one_allocation_is_one_job_for_all_runs(submitter: Submitter, site: Site) -> None:
    together = replace(submitter, one_allocation=True)
    together.submit()
    assert len(site.jobs) == 1
    assert counted(submitter) == {"queued": 4}
    site.set_all("RUNNING")
    first = submitter.folder.study.configs()[0]
    write_record(submitter.folder.run_folder(first), first)
    assert counted(submitter) == {"complete": 1, "running": 3}
    site.set_all("TIMEOUT")
    assert counted(submitter) == {"complete": 1, "resumable": 3}
    assert together.submit() == 3
    script = (submitter.folder.path / "allocation-2" / "job.sbatch").read_text()
    assert script.count("\nrun ") == 3


@pytest.mark.parametrize("one_allocation", [False, True])
def test_what_a_submission_leaves_is_private(one_allocation: bool, submitter: Submitter, site: Site) -> None:
    """The output of jobs too: Slurm adds to a file that is there."""
    replace(submitter, one_allocation=one_allocation).submit()
    study = submitter.folder.path
    runs = [point.run for point in submitter.folder.study.configs()]
    jobs = sorted(path.parent.name for path in study.glob("*/job.sbatch"))
    assert jobs == (["allocation-1"] if one_allocation else sorted(runs))
    assert {path.parent.name for path in study.glob("*/output.log")} == set(jobs)
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in study.rglob("*")}
    assert {path for path, mode in modes.items() if mode & 0o077} == set()


def test_a_configuration_is_replaced_only_where_nothing_was_trained_and_no_job_may_start(
    submitter: Submitter, site: Site
) -> None:
    submitter.submit()
    folder = submitter.folder.path / RUN
    mended = with_study(submitter, training=submitter.folder.study.training | {"epochs": 3})
    with pytest.raises(UserError, match=r"training\.epochs is 2 there, 3 in the study"):
        mended.submit()
    site.set_all("FAILED")
    write_record(folder, read_config(folder / "config.json"))
    with pytest.raises(UserError, match=rf"{RUN}/config.json holds another configuration"):
        mended.submit()
    assert not (submitter.folder.path / ".replaced").exists()
    (folder / "run.jsonl").unlink()
    (folder / "error.attempt1.worker0.json").write_text("{}")
    assert mended.submit() == 4
    assert read_config(folder / "config.json").training.epochs == 3
    assert not (folder / "error.attempt1.worker0.json").exists()
    kept = submitter.folder.path / ".replaced" / f"{RUN}.1"
    assert read_config(kept / "config.json").training.epochs == 2


def test_each_submission_of_a_complete_adaptive_study_adds_a_repeat_where_it_needs_one(
    submitter: Submitter, site: Site
) -> None:
    adaptive = with_study(submitter, repeats=3, until=Precision(half_width=0.03, most=4))
    assert adaptive.submit() == 12
    assert adaptive.submit() == 0  # nothing is decided while runs are in the queue
    for config in adaptive.folder.study.configs():
        uneven = config.framework == "horovod" and config.repeat == 2
        speed = 150.0 if uneven else 100.0
        write_record(submitter.folder.run_folder(config), config, images_per_second=speed)
    site.set_all("COMPLETED")
    assert adaptive.submit() == 4
    assert counted(adaptive) == {"complete": 12, "queued": 4}
    assert {row.repeat for row in study_rows(submitter.folder.path) if row.state == "queued"} == {4}


def test_more_repeats_of_a_complete_study_are_submitted_once(submitter: Submitter, site: Site) -> None:
    submitter.submit()
    complete_all(submitter)
    site.set_all("COMPLETED")
    assert replace(submitter, repeats_to_add=2).submit() == 8
    assert submitter.submit() == 0
    assert counted(submitter) == {"complete": 4, "queued": 8}


def test_where_the_file_system_has_no_locks_a_file_keeps_a_second_terminal_out(
    submitter: Submitter, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("slurm.launch.study_folder.fcntl.flock", no_locks)
    claim = submitter.folder.path / ".claim"
    with (
        locked(submitter.folder.path),
        pytest.raises(UserError, match=rf"process {os.getpid()} on .*{claim}"),
    ):
        submitter.submit()
    assert not site.jobs
    assert submitter.submit() == 4
    assert not claim.exists()


def test_a_submission_refuses_while_local_workers_are_alive(submitter: Submitter, site: Site) -> None:
    with locked(submitter.folder.path):
        worker = subprocess.Popen(["sleep", "300"], close_fds=False)
    try:
        with pytest.raises(UserError, match=rf"{worker.pid} \(sleep\)"):
            submitter.submit()
    finally:
        worker.kill()
        worker.wait()
    assert not site.jobs
    assert submitter.submit() == 4


@pytest.mark.parametrize(
    ("plan", "jobs", "left"), [([], 4, {"cancelled": 4}), (["", "limit"], 1, {"cancelled": 1, "waiting": 3})]
)
def test_a_submission_that_waits_for_cancelled_jobs_or_room_in_the_queue_stops_once_the_study_is_cancelled(
    plan: list[str], jobs: int, left: dict[str, int], submitter: Submitter, site: Site
) -> None:
    def pass_time(seconds: float) -> None:
        if seconds >= LEAST_PAUSE_SECONDS:
            cancel_study(submitter.folder.path, submitter.console)

    site.clock.pass_time = pass_time
    site.plan = plan
    with pytest.raises(CancelledError) as stop:
        submitter.submit() if plan else slurm.commands.submit.submit_and_wait(submitter)
    assert stop.value.exit_code == 75
    assert site.states() == ["CANCELLED"] * jobs
    assert counted(submitter) == left


def test_a_job_queued_while_the_study_is_cancelled_is_taken_back(submitter: Submitter, site: Site) -> None:
    """`cancel` looks before the job is there."""
    site.beside = lambda: mark_cancelled(submitter.folder.path)
    with pytest.raises(CancelledError):
        submitter.submit()
    assert site.states() == ["CANCELLED"]
    assert counted(submitter) == {"cancelled": 1, "waiting": 3}


def test_status_has_the_agreed_keys_and_tells_runs_that_the_study_no_longer_has(
    submitter: Submitter, site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    with_study(submitter, repeats=2).submit()
    site.set_all("FAILED")
    complete_all(submitter)
    submitter.folder.prepare()
    rows = study_rows(submitter.folder.path)
    assert {row.run for row in rows if row.surplus} == {row.run for row in rows if row.repeat == 2}
    table = status_table("sweep", rows)
    assert table.title == "sweep: 4 runs"
    assert table.caption == "4 invalid; 4 more that the study no longer has"
    show_status(submitter.folder.path, submitter.console, as_json=True, watch=False)
    told = json.loads(capsys.readouterr().out)
    assert len(told) == len(rows) == 8
    assert {"run", "framework", "workers", "repeat", "state", "reason", "job", "surplus"} <= set(told[0])


def test_a_local_start_refuses_while_a_job_of_the_study_may_run(
    submitter: Submitter, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitter.submit()
    points = submitter.folder.study.configs()
    for state in ("PENDING", "RUNNING"):
        site.set_all(state)
        with pytest.raises(UserError, match=r"jobs 1, 2, 3, 4 of this study .*cancel them: .*cancel"):
            require_ready(submitter.folder, points)
    site.is_silent = True
    with pytest.raises(UserError, match=r"jobs 1, .* may be queued or running.*Slurm does not answer"):
        require_ready(submitter.folder, points)

    def no_program(*_: object) -> Printed:
        raise FileNotFoundError

    monkeypatch.setattr(slurm.scheduler.slurm, "call_program", no_program)
    with pytest.raises(UserError, match=r"jobs 1, .*squeue not found"):
        require_ready(submitter.folder, points)
    assert len(list(submitter.folder.path.glob("*/job.json"))) == 4


def test_a_study_that_cannot_start_leaves_no_folder(submitter: Submitter, site: Site) -> None:
    """Its runs would stand in every later report as waiting."""
    away = replace(submitter, cluster=CLUSTER.model_copy(update={"prologue": "no/such.sh"}))
    with pytest.raises(UserError, match=r"no/such\.sh does not exist; name a shell file"):
        away.submit()
    (Path(submitter.folder.study.data["folder"]) / "manifest.json").unlink()
    with pytest.raises(UserError, match="the images are not checked"):
        submitter.submit()
    with pytest.raises(UserError, match="the images are not checked"):
        slurm.commands.submit.submit_and_wait(submitter)
    assert not [path for path in submitter.folder.path.iterdir() if path.is_dir()]


def test_a_run_made_again_locally_is_no_longer_judged_by_its_former_job(
    submitter: Submitter, site: Site
) -> None:
    submitter.submit()
    site.set_all("FAILED")
    data = Path(submitter.folder.study.data["folder"])
    (data / "manifest.json").unlink()
    make_images(data, count=6)
    take_over(submitter.folder, submitter.folder.study.configs())
    complete_all(submitter)
    assert counted(submitter) == {"complete": 4}
    assert submitter.submit() == 0


def test_a_forced_run_is_submitted_once_by_a_submission_that_waits(submitter: Submitter, site: Site) -> None:
    submitter.folder.prepare()
    complete_all(submitter)
    folder = submitter.folder.path / RUN

    def pass_time(_seconds: float) -> None:
        assert len(site.jobs) == 1, "the forced run was submitted again"
        write_record(folder, read_config(folder / "config.json"))
        site.set_all("COMPLETED")

    site.clock.pass_time = pass_time
    slurm.commands.submit.submit_and_wait(replace(submitter, force=(RUN,)))
    assert len(site.jobs) == 1


def test_of_two_submissions_that_see_no_lock_one_queues_each_run(
    submitter: Submitter, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    told = []

    def submit_beside() -> None:
        with pytest.raises(UserError) as second:
            submitter.submit()
        told.append(second.value)

    site.beside = submit_beside
    with pytest.raises(UserError) as first:
        submitter.submit()
    told.append(first.value)
    assert [error.exit_code for error in told] == [75, 75]
    assert len(site.jobs) == 4
    assert submitter.submit() == 0
    assert counted(submitter) == {"queued": 4}


def test_a_job_is_named_by_study_and_run_and_one_named_by_its_run_alone_is_known(
    submitter: Submitter, site: Site
) -> None:
    submitter.submit()
    run_parts = [job.name.rpartition(".")[0] for job in site.jobs.values()]
    digests = {part.rpartition(".")[2] for part in run_parts}
    assert all(part.startswith("sweep.") for part in run_parts)
    assert len(digests) == 4
    for job in site.jobs.values():
        job.name = job.name.removeprefix("sweep.")
    for path in submitter.folder.path.glob("*/*"):
        if path.name != "config.json":
            path.unlink()
    assert counted(submitter) == {"queued": 4}
    assert submitter.submit() == 0


def test_where_claims_are_lost_the_job_of_the_greater_id_goes(
    submitter: Submitter, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two jobs of the first run are queued; the others are those of the second submission."""

    def submit_beside() -> None:
        for path in submitter.folder.path.glob("*/*"):
            if path.name != "config.json":
                path.unlink()
        submitter.submit()

    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    monkeypatch.setattr(site, "require_one_job", lambda _: None)
    site.beside = submit_beside
    with pytest.raises(UserError, match="3 not submitted"):
        submitter.submit()
    assert site.states() == ["PENDING"] * 4 + ["CANCELLED"]
    assert submitter.submit() == 0


@pytest.mark.parametrize("state", ["PENDING", "RUNNING"])
@pytest.mark.parametrize("together", [False, True])
def test_a_live_job_counts_where_no_file_names_it(
    together: bool, state: str, submitter: Submitter, site: Site
) -> None:
    """As after a clean-up, or with a restored snapshot of the folder."""
    submitter = replace(submitter, one_allocation=together)
    submitter.submit()
    jobs = len(site.jobs)
    site.set_all(state)
    for path in submitter.folder.path.glob("*/*"):
        if path.name != "config.json":
            path.unlink()
    if together:  # only its script tells which runs it holds
        assert counted(submitter) == {"unknown": 4}
        with pytest.raises(
            UserError, match="job 1 may hold this run: the script of allocation-1 is lost"
        ) as told:
            submitter.submit()
        assert told.value.exit_code == EXIT_RESUME
    else:
        assert counted(submitter) == {"queued" if state == "PENDING" else "running": 4}
        assert submitter.submit() == 0
    with pytest.raises(UserError, match=r"jobs 1.* of this study"):
        require_ready(submitter.folder, submitter.folder.study.configs())
    shutil.rmtree(submitter.folder.path / RUN)
    cancel_study(submitter.folder.path, submitter.console)
    assert site.states() == ["CANCELLED"] * jobs


def test_a_job_that_only_may_hold_a_run_makes_no_second_one_of_it(submitter: Submitter, site: Site) -> None:
    """One run is in an allocation whose script is lost; the job of another run is its own."""
    study = submitter.folder.study
    one = study.model_copy(update={"workers": [1], "repeats": 1, "frameworks": ["horovod"]})
    replace(submitter, folder=StudyFolder(submitter.folder.path, one), one_allocation=True).submit()
    submitter.submit()
    for path in submitter.folder.path.glob("*/*"):
        if path.name != "config.json":
            path.unlink()
    before = site.states()
    with pytest.raises(UserError, match="job 1 may hold this run"):
        submitter.submit()
    assert site.states() == before


def test_a_job_of_another_cluster_is_named_and_neither_cancelled_nor_submitted_again(
    submitter: Submitter, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def go_to(place: Site) -> None:
        monkeypatch.setattr(slurm.scheduler.slurm, "call_program", place.run)
        slurm.scheduler.slurm._ask_cluster.cache_clear()

    unnamed = replace(submitter, cluster=CLUSTER.model_copy(update={"cluster_name": None}))
    there = Site(site.clock, name="there")
    go_to(there)
    unnamed.submit()
    go_to(site)
    for act in (
        unnamed.submit,
        lambda: slurm.commands.submit.submit_and_wait(unnamed),
        lambda: cancel_study(unnamed.folder.path, unnamed.console),
    ):
        with pytest.raises(UserError, match=f"{RUN}: job . is one of cluster there, and this is cm4") as told:
            act()
        assert told.value.exit_code == 75
    assert counted(unnamed) == {"unknown": 4}
    assert not site.jobs
    assert there.states() == ["PENDING"] * 4
    go_to(there)
    cancel_study(unnamed.folder.path, unnamed.console)
    assert there.states() == ["CANCELLED"] * 4


@pytest.mark.parametrize("ahead_seconds", [0.0, 600.0, -600.0])
def test_a_submission_after_a_lost_answer_says_when_it_will_be_known(
    ahead_seconds: float, submitter: Submitter, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also on another login node, whose clock differs by more than a request can be late."""
    site.plan = ["lost"]
    with pytest.raises(UserError, match=r"not known whether it is queued.* known in 180 s"):
        submitter.submit()
    if ahead_seconds:
        site.clock.ahead = ahead_seconds
        monkeypatch.setattr(slurm.submissions, "machine_id", lambda: "another machine")
    with pytest.raises(UserError, match=r"1 run not known .*\n.*known in \d+ s") as told:
        submitter.submit()
    assert told.value.exit_code == 75
    assert len(site.jobs) == 3
    site.clock.now += LATEST_JOB_SECONDS
    assert submitter.submit() == 1
    assert submitter.submit() == 0


def test_a_submission_while_slurm_is_silent_ends_with_75(submitter: Submitter, site: Site) -> None:
    submitter.submit()
    site.is_silent = True
    with pytest.raises(UserError, match="4 runs not known") as told:
        submitter.submit()
    assert told.value.exit_code == 75


# A wrapper of a site whose program hangs, and sbatch at the controller's own limit.
HANGS = "#!/bin/sh\nsleep 600 &\necho begun\nwait\n"
WAITS = (
    "#!/bin/sh\necho 'sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying' >&2\n"
    + HANGS
)


def has_ended(process: str) -> bool:
    try:
        return Path("/proc", process, "stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_call_that_hangs_ends_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of the first call is over once its child is there; the second ends by what it says."""
    child = tmp_path / "child"
    (tmp_path / "squeue").write_text(HANGS.replace("&\n", f"& echo $! >{child}\n"))
    (tmp_path / "sbatch").write_text(WAITS)
    for name in ("squeue", "sbatch"):
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    looks = itertools.count()

    def now() -> float:
        return 100.0 * next(looks) if child.exists() and child.read_text().strip() else 0.0

    monkeypatch.setattr(slurm.scheduler.slurm, "STATE_PAUSES_SECONDS", ())
    with monkeypatch.context() as patch:
        patch.setattr(slurm.scheduler.slurm, "time", SimpleNamespace(monotonic=now))
        with pytest.raises(UnreachableError, match="squeue did not answer"):
            Slurm().queue()
    wait_until(lambda: has_ended(child.read_text().strip()), "what the call started to end", 60, pause=0.05)
    monkeypatch.setattr(slurm.scheduler.slurm, "CALL_SECONDS", 600)
    monkeypatch.setattr(Slurm, "find", lambda self, token: None)
    with pytest.raises(LimitError, match="sleeping and retrying"):
        Slurm().submit(tmp_path / "job.sbatch", "token")


def test_workers_that_are_being_started_again(tmp_path: Path) -> None:
    """Their launcher has the output open before a worker claims the folder; a reader is none."""
    study = make_study("again", tmp_path)
    (config, *_) = StudyFolder(tmp_path / "again", study).prepare()
    output = tmp_path / "again" / config.run / OUTPUT_NAME
    output.write_text("of the launch before\n")

    def state_beside(mode: str) -> tuple[str, str]:
        program = f"file = open({str(output)!r}, {mode!r}); print(flush=True); input()"
        command = [sys.executable, "-c", program]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
            assert other.stdout
            other.stdout.readline()
            row = next(row for row in study_rows(tmp_path / "again") if row.run == config.run)
            other.communicate(b"\n")
        return row.state, row.reason

    assert state_beside("a") == ("running", "starting")
    state, reason = state_beside("r")
    assert state == "failed"
    assert "neither a record nor a reason" in reason
