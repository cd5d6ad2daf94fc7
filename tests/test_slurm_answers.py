"""What an answer of Slurm is taken for: tables of forms, and of what no answer is."""

import itertools
from pathlib import Path

import pytest

from slurm.render import SCRIPT_NAME
from slurm.scheduler.protocol import (
    GONE,
    OVER_STATES,
    RUNNING_STATES,
    UNCLEAR,
    WAITING_STATES,
    JobState,
    UnreachableError,
)
from slurm.scheduler.slurm import LOST, Slurm, parse_job_id, read_ended, read_queue, read_shown
from slurm.states import KnownJobs, combine
from slurm.submissions import Submission
from unet_scaling.format.record import RECORD_NAME
from unet_scaling.format.run_state import SUBMITTABLE, RunState

HEADER = "JOBID|STATE|REASON|NAME|."
ROW = "12|PENDING|Priority|run.ab.1|."
RESTING = "JobId=12 JobName=run.ab.1 UserId=me(7) GroupId=x JobState=RUNNING Reason=None Dependency=(null)"
SUBMISSION = Submission(token="run.ab.1", attempts=1, status="queued", job="12")


@pytest.mark.parametrize(
    ("answer", "job"),
    [
        ("123\n", "123"), ("123;cm4\n", "123"), ("Submitted batch job 12\n", "12"),
        ("Submitted batch job 12 on cluster c1", "12"), ("Welcome to the site\n42;x\nBye", "42"),
        ("\x1b[32m7\x1b[0m  \r\n", "7"), ("", None), ("12a\n", None), ("id: 7", None), ("-12", None),
    ],
)  # fmt: skip
def test_the_job_id_is_found_in_any_form_and_line(answer: str, job: str | None) -> None:
    assert parse_job_id(answer) == job


@pytest.mark.parametrize(
    ("lines", "state", "whole"),
    [
        ([HEADER, ROW], "PENDING", True),
        (["CLUSTER: cm4", HEADER, ROW], "PENDING", True),
        (["slurm_load_jobs: \xfc", "", HEADER, ROW, "On Monday: 12 | see"], "PENDING", True),
        ([HEADER, "\x1b[1m12 | pending | Priority | run.ab.1 |.\x1b[0m"], "PENDING", True),
        ([HEADER, ROW, ROW], "PENDING", True),
        ([HEADER, "11|FAILED|None|run.ab.1|.", ROW], "PENDING", True),
        ([HEADER, ROW, "11|FAILED|None|run.ab.1|."], "PENDING", True),
        ([HEADER, "12|PENDING|a|b|run.ab.1|."], "PENDING", True),
        ([HEADER, "12_3|RUNNING|None|array|."], None, True),
        ([HEADER], None, True),
        ([ROW], "PENDING", False),
        ([HEADER, ROW, "13|RUNN"], "PENDING", False),
        ([HEADER, ROW[:-1]], None, False),
        ([HEADER[:-1]], None, False),
        ([], None, False),
    ],
)  # fmt: skip
def test_rows_of_squeue_are_read_and_a_cut_answer_is_seen(
    lines: list[str], state: str | None, whole: bool
) -> None:
    queue = read_queue("\n".join(lines))
    job = queue.jobs.get("run.ab.1")
    assert (job.state if job else None, queue.whole) == (state, whole)


def test_an_answer_of_squeue_that_ends_anywhere_never_changes_what_it_says() -> None:
    answer = f"{HEADER}\n{ROW}\n13|RUNNING|None|run.cd.1|.\n"
    complete = read_queue(answer)
    for end in range(len(answer) - 1):
        cut = read_queue(answer[:end])
        assert all(complete.jobs[name] == job for name, job in cut.jobs.items())
        assert not cut.whole or answer[:end].strip().endswith("|.")


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        (f"{RESTING}\n", "RUNNING"),
        (f"Welcome\n{RESTING} x", "RUNNING"),
        (RESTING.replace(" ", "\n   "), "RUNNING"),
        (RESTING.replace("run.ab.1", "my other job"), GONE),
        *((RESTING[:end], UNCLEAR) for end in range(0, RESTING.index(" Dependency"), 7)),
    ],
)
def test_a_job_that_is_shown_is_ours_by_its_name_alone(answer: str, state: str) -> None:
    assert read_shown(answer, "run.ab.1").state == state


def test_sacct_tells_ends_only() -> None:
    """A job that runs there may be one that slurmctld lost with its state."""
    lines = ["12|CANCELLED by 7|0:0|a.1", "13|RUNNING|0:0|b.1", "hello", "14|FAILED|3:0|c.1", "16|FAI"]
    found = read_ended("\n".join(lines))
    assert {name: (job.state, job.reason, job.job) for name, job in found.items()} == {
        "a.1": ("CANCELLED", "by 7", "12"),
        "c.1": ("FAILED", "with exit code 3", "14"),
    }


# squeue(1) of Slurm 22.05 to 25.11, and two that no version has.
STATES = {
    "queued": "PENDING CONFIGURING EXPEDITING POWER_UP_NODE REQUEUED REQUEUE_FED REQUEUE_HOLD SPECIAL_EXIT "
    "RESV_DEL_HOLD",
    "running": "RUNNING COMPLETING SUSPENDED SIGNALING STAGE_OUT STOPPED RESIZING UPDATE_DB",
    "resumable": "TIMEOUT NODE_FAIL PREEMPTED BOOT_FAIL DEADLINE REVOKED LAUNCH_FAILED RECONFIG_FAIL",
    "failed": "FAILED OUT_OF_MEMORY COMPLETED",
    "cancelled": "CANCELLED",
    "unknown": "NOT_OF_THIS_WORLD HIBERNATING",
    "lost": GONE,
}


@pytest.mark.parametrize(
    ("word", "state"), [(word, state) for state, words in STATES.items() for word in words.split()]
)
def test_each_state_of_a_job_is_one_of_a_run(word: str, state: str) -> None:
    assert combine(RunState("waiting"), SUBMISSION, JobState(word)).state == state
    assert (state in SUBMITTABLE) == (word in (*OVER_STATES, GONE))
    assert set(WAITING_STATES + RUNNING_STATES).isdisjoint(OVER_STATES)
    complete = combine(RunState("complete"), SUBMISSION, JobState(word)).state
    assert complete == {"queued": "queued", "running": "running"}.get(
        state, "complete" if word in ("COMPLETED", GONE, *STATES["unknown"].split()) else "invalid"
    )


@pytest.mark.parametrize("status", ["asking", "queued", "rejected", "limited"])
def test_nothing_unclear_makes_a_run_submittable_or_a_complete_one_incomplete(status: str) -> None:
    submission = SUBMISSION.model_copy(update={"status": status})
    for recorded, word in itertools.product(("waiting", "failed", "complete"), (UNCLEAR, "EXPLODING")):
        state = combine(RunState(recorded), submission, JobState(word)).state  # type: ignore[arg-type]
        if recorded == "complete":
            assert state == "complete"
        elif status in ("asking", "queued") or word != UNCLEAR:
            assert state == "unknown"


@pytest.mark.parametrize(
    "message",
    [
        "Socket timed out on send/recv operation", "Zero Bytes were transmitted or received",
        "Slurm backup controller in standby mode", "Unable to contact slurm controller (connect failure)",
        "Unexpected message received", "Broken pipe", "No route to host", "Protocol authentication error",
    ],
)  # fmt: skip
def test_after_these_nobody_knows_whether_there_is_a_job(message: str) -> None:
    assert LOST.search(f"sbatch: error: Batch job submission failed: {message}")


@pytest.mark.parametrize(
    "message",
    [
        "Requested time limit is invalid (missing or exceeds some limit)", "Invalid qos specification",
        "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)",
        "Requested node configuration is not available", "Resource temporarily unavailable",
        "Slurm temporarily unable to accept job, sleeping and retrying",
    ],
)  # fmt: skip
def test_these_are_refusals(message: str) -> None:
    assert not LOST.search(f"sbatch: error: Batch job submission failed: {message}")


SET_BY_USERS = {
    *("SQUEUE_PARTITION", "SQUEUE_FORMAT2", "SQUEUE_STATES", "SACCT_FORMAT", "SCANCEL_NAME", "SCANCEL_STATE"),
    *("SCONTROL_ALL", "SINFO_FORMAT", "SLURM_CLUSTERS", "SLURM_TIME_FORMAT", "SBATCH_PARTITION"),
    *("SALLOC_ACCOUNT", "SRUN_CPUS_PER_TASK"),
}
LEFT_BY_LAUNCHERS = {
    *("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK", "PMI_RANK", "PMI_FD", "PMIX_RANK"),
    *("OMPI_COMM_WORLD_RANK", "OMPI_MCA_ess", "HYDRA_LAUNCHER", "I_MPI_PIN_DOMAIN", "GOMP_CPU_AFFINITY"),
    *("KMP_AFFINITY", "OMP_PLACES", "OMP_PROC_BIND", "PALS_RANKID", "HOROVOD_RANK", "MV2_COMM_WORLD_RANK"),
    *("HOROVOD_GLOO_RENDEZVOUS_ADDR", "TORCHELASTIC_RUN_ID", "UNET_SCALING_STOP_AT"),
}
OF_THE_USER = {
    *("I_MPI_ROOT", "OMP_NUM_THREADS", "HOROVOD_CYCLE_TIME", "UNET_SCALING_CACHE", "PATH", "SLURM_CONF")
}


def test_calls_see_none_of_the_users_filters_and_jobs_nothing_of_another_launch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in (*SET_BY_USERS, *LEFT_BY_LAUNCHERS, *OF_THE_USER):
        monkeypatch.setenv(name, "x")
    slurm = Slurm(keep_variables=("SLURM_CLUSTERS", "OMPI_MCA_ess"))
    assert SET_BY_USERS & set(slurm.environment()) == {"SLURM_CLUSTERS"}
    in_job = set(slurm.environment(of_job=True))
    assert in_job & (SET_BY_USERS | LEFT_BY_LAUNCHERS) == {"SLURM_CLUSTERS", "OMPI_MCA_ess"}
    assert in_job >= OF_THE_USER
    assert set(slurm.dropped_variables()).isdisjoint(in_job)
    assert set(slurm.dropped_variables()) >= (SET_BY_USERS | LEFT_BY_LAUNCHERS) - in_job


def test_a_silent_slurm_ends_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(_: Slurm) -> None:
        raise UnreachableError("Connection refused")

    monkeypatch.setattr(Slurm, "queue", silent)
    submission = Submission(token="study.run.1", attempts=1, status="queued", job="7")
    (job,) = KnownJobs({Path("run"): submission}).find(Path("run"), submission)
    assert job == JobState(UNCLEAR, "Slurm does not answer: Connection refused")
    assert combine(RunState("failed", "killed"), submission, job).state == "unknown"


def test_a_complete_study_of_this_machine_asks_no_scheduler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where Slurm's commands are there and no controller is, each call takes seconds to fail."""
    asked: list[str] = []

    def queue(_: Slurm) -> dict[str, JobState]:
        asked.append("queue")
        return {}

    monkeypatch.setattr(Slurm, "queue", queue)
    (tmp_path / RECORD_NAME).touch()
    assert not KnownJobs({tmp_path: None}).find(tmp_path, None)
    assert not asked
    (tmp_path / SCRIPT_NAME).touch()  # of a submission whose job.json is lost
    KnownJobs({tmp_path: None})
    assert asked == ["queue"]


@pytest.mark.parametrize(
    "answers", [[[HEADER, ROW[:-1]]] * 3, [[ROW]] * 3, [[HEADER, "13|R"], [HEADER, ROW]]]
)
def test_a_part_of_the_queue_is_asked_for_again_and_taken_for_none(
    answers: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A live job that it lacks would be queued once more, where the files of its run are lost."""
    told = iter(answers)
    monkeypatch.setattr(Slurm, "call", lambda *_: "\n".join(next(told)))
    monkeypatch.setattr("slurm.scheduler.slurm.STATE_PAUSES_SECONDS", (0.0, 0.0))
    if len(answers) == 2:
        assert list(Slurm().queue()) == ["run.ab.1"]
    else:
        with pytest.raises(UnreachableError, match="not whole"):
            Slurm().queue()
