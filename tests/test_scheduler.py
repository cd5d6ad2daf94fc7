"""A scheduler that is not Slurm carries a study through submission, status, a requeue and cancellation."""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest
from jinja2 import ChoiceLoader, DictLoader

from slurm import after_run, render, submit
from slurm.commands import cancel
from slurm.commands.status import study_rows
from slurm.scheduler import SCHEDULERS
from slurm.scheduler.protocol import GONE, JobState, LimitError, is_over
from slurm.scheduler.slurm import Slurm
from slurm.submissions import Submission, read_submission
from slurm.submit import Submitter
from tests.peer_slurm import CLUSTER, make_submitter
from tests.records import make_study, write_record
from unet_scaling.base.errors import EXIT_RESUME
from unet_scaling.format.record_lines import End
from unet_scaling.study.study_file import read_config

RUNS = ("horovod-w01-r1", "pytorch_native-w01-r1")


@dataclass(frozen=True)
class Memory:
    """Jobs of this process, by their names."""

    cluster_name: str | None
    keep_variables: tuple[str, ...]
    jobs: ClassVar[dict[str, JobState]] = {}
    requeued: ClassVar[list[str]] = []
    ids: ClassVar[Iterator[int]] = itertools.count(1)
    most_jobs: ClassVar[int] = 2

    @staticmethod
    def check_option(option: str) -> str:
        return option

    def cluster(self) -> str:
        return "memory"

    def try_out(self, script: Path) -> None:
        assert script.exists()

    def submit(self, script: Path, token: str) -> str:
        if sum(not is_over(job.state) for job in self.jobs.values()) >= self.most_jobs:
            raise LimitError("the memory is full")
        self.jobs[token] = JobState("PENDING", job=f"{next(self.ids)}.here", name=token)
        return str(self.jobs[token].job)

    def queue(self) -> dict[str, JobState]:
        return dict(self.jobs)

    def ended(self, jobs: Iterable[str]) -> dict[str, JobState]:
        return {}

    def look_up(self, wanted: Mapping[str, str | None]) -> dict[str, JobState]:
        return {token: self.jobs.get(token, JobState(GONE)) for token in wanted}

    def requeue(self, job: str) -> None:
        self.requeued.append(job)

    def cancel(self, token: str) -> None:
        self.set(token, "CANCELLED")

    def set(self, token: str, state: str) -> None:
        self.jobs[token] = replace(self.jobs[token], state=state)

    def dropped_variables(self) -> list[str]:
        return []

    @staticmethod
    def this_job() -> tuple[str, int]:
        return "1.here", 0


@pytest.fixture
def submitter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Submitter:
    """Two runs, on a cluster whose scheduler is the memory of this process."""
    monkeypatch.setitem(SCHEDULERS, "memory", Memory)
    templates = render._templates()
    lines = DictLoader({"memory.jinja": "#MEMORY {{ token }}\n"})
    monkeypatch.setattr(templates, "loader", ChoiceLoader([lines, templates.loader or lines]))
    monkeypatch.setattr(Memory, "jobs", {})
    monkeypatch.setattr(Memory, "requeued", [])
    (tmp_path / "manifest.json").write_text("{}")
    study = make_study("sweep", tmp_path, training={"epochs": 2, "batch_per_worker": 1})
    cluster = CLUSTER.model_copy(update={"scheduler": "memory"})
    return make_submitter(tmp_path / "sweep", study, cluster=cluster, limit_wait_seconds=0)


def states(submitter: Submitter) -> dict[str, str]:
    return {row.run: row.state for row in study_rows(submitter.folder.path)}


def test_another_scheduler_carries_a_study(submitter: Submitter, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = submitter.folder.path
    memory = Memory("cm4", ())
    assert submitter.submit() == 2
    assert submitter.submit() == 0
    assert states(submitter) == dict.fromkeys(RUNS, "queued")
    script = (folder / RUNS[0] / render.SCRIPT_NAME).read_text()
    assert "#MEMORY sweep.horovod-w01-r1." in script
    assert "#SBATCH" not in script

    first = read_submission(folder / RUNS[0])
    assert first
    memory.set(first.token, "NODE_FAIL")
    assert states(submitter)[RUNS[0]] == "resumable"
    assert submitter.submit() == 1

    config = read_config(folder / RUNS[0] / "config.json")
    write_record(folder / RUNS[0], config, end=End(status="stopped", reason="asked", position=(1, 0)))
    monkeypatch.setattr("sys.argv", ["after_run", str(folder / RUNS[0]), "--requeue"])
    assert after_run.main() == EXIT_RESUME
    assert Memory.requeued == ["1.here"]

    monkeypatch.setattr(cancel, "FIRST_LOOK_SECONDS", 0)
    cancel.cancel_study(folder, submitter.console)
    assert states(submitter) == dict.fromkeys(RUNS, "cancelled")


def test_where_another_scheduler_takes_no_more_jobs_runs_wait(
    submitter: Submitter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Memory, "most_jobs", 1)
    with pytest.raises(submit.LaterError) as later:
        submitter.submit()
    assert len(later.value.runs) == 1
    assert sorted(states(submitter).values()) == ["queued", "waiting"]


def test_a_submission_without_the_name_of_a_scheduler_is_one_of_slurm() -> None:
    """As those are that were written before a cluster file could name one."""
    kept = {"token": "run.ab.1", "attempts": 1, "status": "queued", "cluster_name": "cm4"}
    assert Submission.model_validate(kept).get_scheduler() == Slurm("cm4")
