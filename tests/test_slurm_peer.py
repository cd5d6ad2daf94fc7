"""A study under a Slurm that errs: never two live jobs of one run, none forgotten, none of others ended.

Two login nodes whose locks do not see each other and whose clocks differ by minutes, of one cluster or two,
with files that vanish; a submission that ends with 0 leaves nothing open.
"""

import fcntl
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
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
import slurm.submissions
import slurm.submit
from slurm.after_run import MOST_FRUITLESS
from slurm.commands.cancel import cancel_study
from slurm.commands.status import study_rows
from slurm.commands.submit import submit_and_wait
from slurm.launch.study_folder import Cancellation
from slurm.submissions import CLAIM_PREFIX, LATEST_JOB_SECONDS, read_submission
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
from unet_scaling.format.record import RECORD_NAME, set_record_aside, take_launch_back
from unet_scaling.format.record_lines import End
from unet_scaling.format.run_state import ACTIVE, SUBMITTABLE, run_state
from unet_scaling.study.study_file import read_config

FAULTS = st.lists(st.sampled_from(("", "", "", *SBATCH_FAULTS, *ANSWER_FAULTS)), max_size=8)
RUNS = ("horovod-w01-r1", "pytorch_native-w01-r1")
# By how much the clocks of the two login nodes are ahead.
CLOCKS_SECONDS = (0.0, 420.0)
# In memory, where there is such a place: each history makes files and syncs them.
MEMORY = Path("/dev/shm")


class Histories(RuleBasedStateMachine):
    """A user, two login nodes, one cluster or two, and time."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None)
        self.clock = Clock()
        self.peers = [PeerSlurm(self.clock), PeerSlurm(self.clock)]
        self.node = 0
        self.files_lost = False
        self.patch = pytest.MonkeyPatch()
        for module in TIMED:
            self.patch.setattr(module, "time", self.clock)
        # As a file system does that keeps locks to one node.
        self.patch.setattr(fcntl, "flock", lambda *_: None)
        root = Path(self.folder.name)
        (root / "manifest.json").write_text("{}")
        study = make_study("sweep", root, training={"epochs": 2, "batch_per_worker": 1})
        self.submitter = make_submitter(root / "sweep", study, limit_wait_seconds=20)
        self.use_node(0)

    @property
    def peer(self) -> PeerSlurm:
        """Return the Slurm that this login node calls."""
        return self.peers[self.node]

    @initialize(
        accounting=st.booleans(),
        most_jobs=st.sampled_from((1, 100)),
        max_queued=st.sampled_from((1, 9)),
        clusters=st.sampled_from((1, 1, 2)),
    )
    def site(self, accounting: bool, most_jobs: int, max_queued: int, clusters: int) -> None:
        if clusters == 1:
            self.peers[1] = self.peers[0]
        else:
            self.peers[1].name = "another"
        for peer in self.peers:
            peer.most_jobs = most_jobs
            peer.accounting = {} if accounting else None
        changes = {"max_queued": max_queued, "cluster_name": None}
        cluster = self.submitter.cluster.model_copy(update=changes)
        self.submitter = replace(self.submitter, cluster=cluster)
        self.use_node(0)

    def use_node(self, node: int) -> None:
        """Go to another login node: another machine, clock, process and perhaps cluster."""
        self.node = node
        self.clock.ahead = CLOCKS_SECONDS[node]
        for module in (slurm.submissions, slurm.submit):
            self.patch.setattr(module, "machine_id", lambda: f"machine {node}")
        self.patch.setattr(slurm.scheduler.slurm, "call_program", self.peer.run)
        slurm.scheduler.slurm._ask_cluster.cache_clear()

    @rule()
    def change_node(self) -> None:
        self.use_node(1 - self.node)

    @property
    def is_of_two_clusters(self) -> bool:
        return self.peers[0] is not self.peers[1]

    def live(self) -> list[PeerJob]:
        """Return our jobs of all clusters that live or will."""
        return [job for peer in {id(peer): peer for peer in self.peers}.values() for job in peer.live()]

    def act(self, what: Callable[[], object], faults: list[str]) -> bool:
        """Do this while calls come to these faults; return whether it ended in order."""
        # Where files are lost, nothing but its row tells of a job.
        self.peer.faults = [fault for fault in faults if not (fault == "cut row" and self.files_lost)]
        try:
            what()
        except (UserError, KilledError):
            return False
        finally:
            for peer in self.peers:
                peer.faults = []
                peer.sbatch_fault = ""
                peer.beside = None
            self.clock.pass_time = lambda seconds: None
        return True

    def begun(self, force: tuple[str, ...] = ()) -> Submitter:
        cancellation = Cancellation(self.submitter.folder.path)
        return replace(self.submitter, force=force, cancellation=cancellation)

    @rule(faults=FAULTS, force=st.sampled_from(((), (), RUNS[:1], RUNS)), together=st.booleans())
    def submit(self, faults: list[str], force: tuple[str, ...], together: bool) -> None:
        submitter = replace(self.begun(force), one_allocation=together and not force)
        if self.act(submitter.submit, faults):
            self.require_nothing_open()

    @rule(
        fault=st.sampled_from(("late", "hang late", "queued", "no id")),
        seconds=st.sampled_from((0.0, 60.0, LATEST_JOB_SECONDS)),
        changes=st.booleans(),
    )
    def submit_again_soon(self, fault: str, seconds: float, changes: bool) -> None:
        """The answer of sbatch is lost, and somebody submits again before the job may be seen."""
        self.peer.sbatch_fault = fault
        self.act(self.begun().submit, [])
        self.clock.now += seconds
        if changes:
            self.change_node()
        self.submit([], (), False)

    def require_nothing_open(self) -> None:
        """After an exit code of 0 each run is complete, in the queue of this cluster, or was given up."""
        queued = [run for job in self.peer.jobs.values() if job.state in LIVE[:2] for run in runs_of(job)]
        for run in RUNS:
            folder = self.submitter.folder.path / run
            note = read_submission(folder)
            is_given_up = note and note.attempts >= MOST_FRUITLESS
            assert run in queued or run_state(folder).is_complete or is_given_up, f"{run} is open"

    @rule(faults=FAULTS)
    def submit_beside_cancel(self, faults: list[str]) -> None:
        if not self.live():
            self.peer.beside = lambda: cancel_study(self.submitter.folder.path, self.submitter.console)
            self.act(self.begun().submit, faults)

    @rule(
        faults=FAULTS,
        others=FAULTS,
        call=st.integers(1, 12),
        together=st.booleans(),
        others_together=st.booleans(),
    )
    def submit_on_both_nodes(
        self, faults: list[str], others: list[str], call: int, together: bool, others_together: bool
    ) -> None:
        """While this node waits for one of its calls, the other one submits."""
        here = self.node

        def submit_there() -> None:
            kept = self.peer.faults
            self.use_node(1 - here)
            self.peer.faults = list(others)
            with suppress(UserError, KilledError):
                replace(self.begun(), one_allocation=others_together).submit()
            self.use_node(here)
            self.peer.faults = kept

        self.peer.beside, self.peer.beside_call = submit_there, call
        self.act(replace(self.begun(), one_allocation=together).submit, faults)
        self.peer.beside_call = 0

    @rule(faults=FAULTS, ends=st.lists(st.sampled_from(("COMPLETED", "NODE_FAIL", "FAILED")), max_size=4))
    def wait(self, faults: list[str], ends: list[str]) -> None:
        """Submit and stay; every job that one pause finds has ended by the next."""
        begun = self.clock.now

        def pass_time(_seconds: float) -> None:
            assert self.clock.now - begun < 7200, "it waits for ever"
            self.peer.arrive()
            for job in self.live():
                self.end(job, ends.pop() if ends else "COMPLETED")

        self.clock.pass_time = pass_time
        self.act(lambda: submit_and_wait(self.begun()), faults)

    @precondition(lambda self: self.submitter.folder.path.exists())
    @rule(faults=FAULTS)
    def cancel(self, faults: list[str]) -> None:
        if self.act(lambda: cancel_study(self.submitter.folder.path, self.submitter.console), faults):
            assert not self.live(), "cancel said that it is done"

    @precondition(lambda self: self.submitter.folder.path.exists())
    @rule(faults=FAULTS)
    def status(self, faults: list[str]) -> None:
        rows = []
        self.act(lambda: rows.extend(study_rows(self.submitter.folder.path)), faults)
        states = {row.run: row.state for row in rows}
        # A job without an id is known by the rows of squeue alone, one without a file by its answer.
        if not set(faults) & {"cut row", "cut"} and not (self.files_lost and faults):
            for job in self.live():
                for run in set(states) & set(runs_of(job)):
                    assert states[run] not in SUBMITTABLE, f"{run} lives and is {states[run]}"

    @rule(seconds=st.sampled_from((5.0, 60.0, LONGEST_DELAY_SECONDS, 400.0)))
    def let_pass(self, seconds: float) -> None:
        self.clock.now += seconds
        for peer in self.peers:
            peer.arrive()

    @rule(
        number=st.integers(0, 3),
        end=st.sampled_from(("RUNNING", "HIBERNATING", "COMPLETED", "TIMEOUT", "FAILED", "CANCELLED")),
    )
    def go_on(self, number: int, end: str) -> None:
        for job in self.live()[number : number + 1]:
            if end in LIVE:
                job.state = end
            else:
                self.end(job, end)

    def end(self, job: PeerJob, state: str) -> None:
        job.state = state
        for peer in self.peers:
            for number, other in peer.jobs.items():
                if other is job and peer.accounting is not None:
                    peer.accounting[number] = PeerJob(job.name, job.folder, state)
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

    @rule(what=st.sampled_from(("job.json", "claims", "scripts", "all", "all")), run=st.sampled_from(RUNS))
    def lose_files(self, what: str, run: str) -> None:
        """Restore a snapshot, or clean up.

        Not all that tells of a request that is still under way, or of a job of another cluster, is lost:
        nobody could know of such a job then.
        """
        study = self.submitter.folder.path
        is_known_by_files = self.is_of_two_clusters or any(peer.late for peer in self.peers)
        if what == "all" and is_known_by_files:
            return
        patterns = {
            "job.json": [f"{run}/job.json"],
            "claims": [f"{run}/{CLAIM_PREFIX}*"],
            "scripts": ["*/job.sbatch"],
            "all": ["*/job.json", f"*/{CLAIM_PREFIX}*", "*/job.sbatch"],
        }[what]
        if what == "claims" and not (study / run / "job.json").exists() and is_known_by_files:
            return
        if what == "job.json" and not list((study / run).glob(f"{CLAIM_PREFIX}*")) and is_known_by_files:
            return
        self.files_lost = True
        for path in [path for pattern in patterns for path in study.glob(pattern)]:
            path.unlink()

    @rule(faults=FAULTS)
    def submit_after_a_loss(self, faults: list[str]) -> None:
        """Files of jobs that live are lost, and somebody submits again."""
        self.submit([], (), False)
        self.lose_files("all", RUNS[0])
        self.submit(faults, (), False)

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
        for peer in self.peers:
            assert all(job.state == "RUNNING" for job in peer.jobs.values() if job.name == OTHERS_JOB)

    @invariant()
    def no_run_has_two_live_jobs(self) -> None:
        live = [run for job in self.live() for run in runs_of(job)]
        assert len(live) == len(set(live)), live

    def teardown(self) -> None:
        """With an honest Slurm everything comes to its end."""
        try:
            for peer in self.peers:
                peer.most_jobs = 100
            self.clock.now += LONGEST_DELAY_SECONDS
            self.end_all(0)
            incomplete: tuple[str, ...] = ()
            if self.submitter.folder.path.exists():
                study_rows(self.submitter.folder.path)
                self.clock.now += LATEST_JOB_SECONDS  # from the first look on this node
                rows = study_rows(self.submitter.folder.path)
                if self.is_of_two_clusters:
                    # Of a job of the other cluster only its record tells; the user goes there, or waits.
                    return
                assert not [row for row in rows if row.state in ACTIVE], rows
                incomplete = tuple(row.run for row in rows if row.state != "complete")
            self.clock.pass_time = self.end_all
            submit_and_wait(self.begun(incomplete))
        finally:
            self.patch.undo()
            self.folder.cleanup()

    def end_all(self, _seconds: float) -> None:
        for peer in self.peers:
            peer.arrive()
        for job in self.live():
            self.end(job, "COMPLETED")


def runs_of(job: PeerJob) -> list[str]:
    """Return the runs of a job: the one whose folder it is, or those of its allocation's script."""
    return [job.folder.name] if job.folder.name in RUNS else [run for run in RUNS if run in job.script]


def test_histories() -> None:
    """The same 100 each time; HISTORIES=2000 asks for more of them, and SEED=1 for others."""
    number = int(os.environ.get("SEED", "0"))
    print(f"SEED={number}")
    chosen = settings(
        max_examples=int(os.environ.get("HISTORIES", "100")), stateful_step_count=12, deadline=None,
        database=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate],
    )  # fmt: skip
    run_state_machine_as_test(seed(number)(Histories), settings=chosen)


def test_refused_beside_a_run_of_another_cluster() -> None:
    """Only that cluster tells how the job ended; `submit --wait` says so, and does not wait for ever."""
    history = Histories()
    history.site(accounting=False, clusters=2, most_jobs=1, max_queued=9)
    history.submit_on_both_nodes(
        call=2, faults=["hang", "cut"], others=[], others_together=False, together=True
    )
    history.submit(faults=["cut", "kill"], force=(), together=True)
    history.forget()
    faults = ["refuse", "refuse", "lost", "lost", "full", "double", "no id", ""]
    history.wait(ends=["FAILED", "NODE_FAIL", "FAILED", "FAILED"], faults=faults)
    history.teardown()


def test_forced_soon_after_a_lost_answer() -> None:
    """The complete record of a run does not tell that a request for its job is still under way."""
    history = Histories()
    history.site(accounting=True, clusters=1, most_jobs=100, max_queued=9)
    history.wait(ends=[], faults=[])
    history.peer.sbatch_fault = "hang late"
    history.act(history.begun(RUNS[:1]).submit, [])
    folder = history.submitter.folder.path / RUNS[0]
    for record in folder.glob("run.*.jsonl"):
        take_launch_back(record)
    history.submit(faults=[], force=RUNS[:1], together=False)
    history.let_pass(seconds=LONGEST_DELAY_SECONDS)
    history.no_run_has_two_live_jobs()
    history.teardown()


@pytest.mark.verify
def test_many_histories(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HISTORIES", "2000")
    test_histories()
