"""A study under a Slurm that errs: never two live jobs of one run, none forgotten, none of others ended."""

import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import slurm.commands.status
import slurm.commands.submit
import slurm.scheduler.slurm
import slurm.states
import slurm.submit
from slurm.commands.cancel import cancel_study
from slurm.commands.status import study_rows
from slurm.commands.submit import submit_and_wait
from slurm.launch.study_folder import Cancellation
from slurm.submit import Submitter
from tests.peer_slurm import (
    ANSWER_FAULTS,
    LIVE,
    LONGEST_DELAY_SECONDS,
    OTHERS_JOB,
    SBATCH_FAULTS,
    TIMED,
    Clock,
    KilledError,
    PeerJob,
    PeerSlurm,
    make_submitter,
)
from tests.records import make_study, write_record
from unet_scaling.base.errors import UserError
from unet_scaling.format.record import RECORD_NAME, set_record_aside
from unet_scaling.format.record_lines import End
from unet_scaling.format.run_state import ACTIVE, SUBMITTABLE, run_state
from unet_scaling.study.study_file import read_config

FAULTS = st.lists(st.sampled_from(("", "", "", *SBATCH_FAULTS, *ANSWER_FAULTS)), max_size=8)
RUNS = ("horovod-w01-r1", "pytorch_native-w01-r1")
# In memory, where there is such a place: each history makes files and syncs them.
MEMORY = Path("/dev/shm")


class Histories(RuleBasedStateMachine):
    """A user, a cluster, and time."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None)
        self.clock = Clock()
        self.peer = PeerSlurm(self.clock)
        self.patch = pytest.MonkeyPatch()
        for module in TIMED:
            self.patch.setattr(module, "time", self.clock)
        self.patch.setattr(slurm.scheduler.slurm, "call_program", self.peer.run)
        root = Path(self.folder.name)
        (root / "manifest.json").write_text("{}")
        study = make_study("sweep", root, training={"epochs": 2, "batch_per_worker": 1})
        self.submitter = make_submitter(root / "sweep", study, limit_wait_seconds=20)

    @initialize(
        accounting=st.booleans(), most_jobs=st.sampled_from((1, 100)), max_queued=st.sampled_from((1, 9))
    )
    def site(self, accounting: bool, most_jobs: int, max_queued: int) -> None:
        self.peer.most_jobs = most_jobs
        self.peer.accounting = {} if accounting else None
        cluster = self.submitter.cluster.model_copy(update={"max_queued": max_queued})
        self.submitter = replace(self.submitter, cluster=cluster)

    def act(self, what: Callable[[], object], faults: list[str]) -> bool:
        """Do this while calls come to these faults; return whether it ended in order."""
        self.peer.faults = list(faults)
        try:
            what()
        except (UserError, KilledError):
            return False
        finally:
            self.peer.faults = []
            self.peer.beside = None
            self.clock.pass_time = lambda seconds: None
        return True

    def begun(self, force: tuple[str, ...] = ()) -> Submitter:
        cancellation = Cancellation(self.submitter.folder.path)
        return replace(self.submitter, force=force, cancellation=cancellation)

    @rule(faults=FAULTS, force=st.sampled_from(((), (), RUNS[:1], RUNS)), together=st.booleans())
    def submit(self, faults: list[str], force: tuple[str, ...], together: bool) -> None:
        self.act(replace(self.begun(force), one_allocation=together and not force).submit, faults)

    @rule(faults=FAULTS)
    def submit_beside_cancel(self, faults: list[str]) -> None:
        if not self.peer.live():
            self.peer.beside = lambda: cancel_study(self.submitter.folder.path, self.submitter.console)
            self.act(self.begun().submit, faults)

    @rule(faults=FAULTS, ends=st.lists(st.sampled_from(("COMPLETED", "NODE_FAIL", "FAILED")), max_size=4))
    def wait(self, faults: list[str], ends: list[str]) -> None:
        """Submit and stay; every job that one pause finds has ended by the next."""
        begun = self.clock.now

        def pass_time(_seconds: float) -> None:
            assert self.clock.now - begun < 7200, "it waits for ever"
            self.peer.arrive()
            for job in self.peer.jobs.values():
                if job.state in LIVE and job.name != OTHERS_JOB:
                    self.end(job, ends.pop() if ends else "COMPLETED")

        self.clock.pass_time = pass_time
        self.act(lambda: submit_and_wait(self.begun()), faults)

    @precondition(lambda self: self.submitter.folder.path.exists())
    @rule(faults=FAULTS)
    def cancel(self, faults: list[str]) -> None:
        if self.act(lambda: cancel_study(self.submitter.folder.path, self.submitter.console), faults):
            assert not self.peer.live(), "cancel said that it is done"

    @precondition(lambda self: self.submitter.folder.path.exists())
    @rule(faults=FAULTS)
    def status(self, faults: list[str]) -> None:
        rows = []
        self.act(lambda: rows.extend(study_rows(self.submitter.folder.path)), faults)
        states = {row.run: row.state for row in rows}
        if not set(faults) & {"cut row", "cut"}:  # a job without an id is known by the rows of squeue alone
            for job in self.peer.live():
                for run in set(states) & set(runs_of(job)):
                    assert states[run] not in SUBMITTABLE, f"{run} lives and is {states[run]}"

    @rule(seconds=st.sampled_from((5.0, 60.0, LONGEST_DELAY_SECONDS, 400.0)))
    def let_pass(self, seconds: float) -> None:
        self.clock.now += seconds
        self.peer.arrive()

    @rule(
        number=st.integers(0, 3),
        end=st.sampled_from(("RUNNING", "COMPLETED", "TIMEOUT", "FAILED", "CANCELLED")),
    )
    def go_on(self, number: int, end: str) -> None:
        jobs = [job for job in self.peer.jobs.values() if job.state in LIVE and job.name != OTHERS_JOB]
        for job in jobs[number : number + 1]:
            if end == "RUNNING":
                job.state = end
            else:
                self.end(job, end)

    def end(self, job: PeerJob, state: str) -> None:
        job.state = state
        if self.peer.accounting is not None:
            number = next(number for number, other in self.peer.jobs.items() if other is job)
            self.peer.accounting[number] = PeerJob(job.name, job.folder, state)
        for run in runs_of(job):
            folder = self.submitter.folder.path / run
            if state in ("COMPLETED", "TIMEOUT") and not run_state(folder).is_complete:
                if (folder / RECORD_NAME).exists():
                    set_record_aside(folder)
                stopped = End(status="stopped", reason="asked", position=(1, 0))
                end = End(status="complete") if state == "COMPLETED" else stopped
                write_record(folder, read_config(folder / "config.json"), end=end)

    @rule()
    def forget(self) -> None:
        self.peer.jobs = {number: job for number, job in self.peer.jobs.items() if job.state in LIVE}

    @rule(others=st.integers(0, 3))
    def lose_state(self, others: int) -> None:
        """Ids are given again, to other jobs of the user."""
        self.peer.lose_state()
        self.submit_others(others)

    @rule(others=st.integers(1, 2))
    def submit_others(self, others: int) -> None:
        for _ in range(others):
            self.peer.jobs[self.peer.next_id] = PeerJob(OTHERS_JOB, Path(), "RUNNING")
            self.peer.next_id += 1

    @invariant()
    def others_go_on(self) -> None:
        assert all(job.state == "RUNNING" for job in self.peer.jobs.values() if job.name == OTHERS_JOB)

    def teardown(self) -> None:
        """With an honest Slurm everything comes to its end."""
        try:
            self.peer.most_jobs = 100
            self.clock.now += 400
            self.end_all(0)
            incomplete: tuple[str, ...] = ()
            if self.submitter.folder.path.exists():
                rows = study_rows(self.submitter.folder.path)
                assert not [row for row in rows if row.state in ACTIVE], rows
                incomplete = tuple(row.run for row in rows if row.state != "complete")
            self.clock.pass_time = self.end_all
            submit_and_wait(self.begun(incomplete))
        finally:
            self.patch.undo()
            self.folder.cleanup()

    def end_all(self, _seconds: float) -> None:
        self.peer.arrive()
        for job in self.peer.live():
            self.end(job, "COMPLETED")


def runs_of(job: PeerJob) -> list[str]:
    """Return the runs of a job: the one whose folder it is, or those of its allocation's script."""
    if job.folder.name in RUNS:
        return [job.folder.name]
    script = job.folder / "job.sbatch"
    return [run for run in RUNS if run in script.read_text()] if script.exists() else []


def test_histories() -> None:
    """The same 100 each time; HISTORIES=2000 asks for more of them."""
    chosen = settings(
        max_examples=int(os.environ.get("HISTORIES", "100")), stateful_step_count=8, deadline=None,
        derandomize=True, suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    run_state_machine_as_test(Histories, settings=chosen)
