"""The submissions of a run: job.json, and the claims by which each is made once.

Each try to queue a job of a run has a number. Before the scheduler is asked, the file `.try-NUMBER` is
created in the run's folder, which only one process can do, whichever host it is on. Of two submissions that
have read the same past, one creates the file and the other leaves the run; locks may do nothing in silence.

These files stay, so nobody has to judge whether a process of another host is alive: a submission that ended
before it wrote job.json is one whose answer was lost, and is looked for by the name that its claim holds.
"""

import os
import re
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Literal
from uuid import uuid4

from pydantic import Field

from slurm.scheduler import DEFAULT_SCHEDULER, get_scheduler
from slurm.scheduler.protocol import Scheduler
from unet_scaling.base.errors import UserError, reason_of
from unet_scaling.base.files import (
    create_once,
    json_with_checksum,
    read_json_with_checksum,
    read_regular,
    write_atomically,
    write_json_with_checksum,
)
from unet_scaling.base.texts import short_digest
from unet_scaling.base.validation import StrictModel, validated
from unet_scaling.run.run_claim import machine_id
from unet_scaling.study.study_file import JOB_NAME, list_run_folders

# "asking": the answer is not known, so that the job may exist. "limited": the queue had no room for it.
SubmissionStatus = Literal["asking", "queued", "rejected", "limited"]
# A request of sbatch reaches the queue earlier or never: MessageTimeout is 10 s, at large sites up to 100 s.
LATEST_JOB_SECONDS = 180.0
CLAIM_PREFIX = ".try-"
# Of a study's name in those of its jobs: the whole has to fit the 255 characters of Slurm's accounting.
MOST_STUDY_CHARACTERS = 24
FORMER_JOB_NAME = "job.before_local.json"


class Submission(StrictModel):
    """The content of job.json, and of a claim.

    token: the name of the job.
    attempts: how many jobs of the run may have started.
    earlier: how many attempts in the folder belong to launches before the last forced start.
    shared: whether the job runs several runs, one after the other.
    number: of the try to queue a job of this run; 0 before there were claims.
    cluster: the name that the cluster itself has, which was asked; "" where it is not known.
    asked_by: the process that asked. machine, uptime_seconds: the clock by which it knows when it did.
    """

    token: str
    attempts: int
    status: SubmissionStatus
    job: str | None = None
    reason: str = ""
    shared: bool = False
    earlier: int = 0
    asked_at: float = 0.0
    scheduler: str = DEFAULT_SCHEDULER
    cluster_name: str | None = None
    keep_variables: list[str] = Field([])
    number: int = 0
    cluster: str = ""
    asked_by: str = ""
    machine: str = ""
    uptime_seconds: float = 0.0

    def get_scheduler(self) -> Scheduler:
        """Return the scheduler that was asked."""
        return get_scheduler(self.scheduler, self.cluster_name, self.keep_variables)


def name_this_process() -> str:
    """Return the process and its host, for people."""
    return f"process {os.getpid()} on {socket.gethostname()}"


def new_token(label: str, folder: Path) -> str:
    """Return a job name that no other job ever has; those of a run differ in the last part."""
    return f"{name_run_part(label, folder)}.{uuid4().hex[:12]}"


def label_run(folder: Path) -> str:
    """Return how the names of jobs of a run begin: with the study, of which squeue shows 8 characters."""
    study = re.sub(r"[^A-Za-z0-9._+=-]", "_", folder.resolve().parent.name)
    return f"{study[:MOST_STUDY_CHARACTERS]}.{folder.name}"


def name_run_part(label: str, folder: Path) -> str:
    """Return what the names of all jobs of one run, or of one allocation, have in common."""
    return f"{label}.{short_digest(str(folder.resolve()))}"


def get_run_part(token: str) -> str:
    """Return what this job's name has in common with those of all jobs of its run."""
    return token.rpartition(".")[0]


def read_submission(folder: Path) -> Submission | None:
    """Return the newest submission of a run; None where it was never submitted. Raises UserError.

    One of which there is a claim and no later job.json may have been made, or be under way: its status is
    "asking".
    """
    newest = _read(folder / JOB_NAME)
    claimed = max(_list_claims(folder), default=0)
    if claimed > (newest.number if newest else 0):
        newest = _read(folder / f"{CLAIM_PREFIX}{claimed}")
    return newest


def _read(path: Path) -> Submission | None:
    try:
        return validated(Submission, read_json_with_checksum(path), str(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        problem = f"{path} cannot be read: {reason_of(error)}"
        raise UserError(f"{problem}; rename it after checking squeue") from None


def _list_claims(folder: Path) -> Iterable[int]:
    names = (path.name.removeprefix(CLAIM_PREFIX) for path in folder.glob(f"{CLAIM_PREFIX}*"))
    return (int(name) for name in names if re.fullmatch("[0-9]+", name))


def claim(folder: Path, submission: Submission) -> bool:
    """Create the claim of this try; False where another submission created it before. Raises OSError."""
    path = folder / f"{CLAIM_PREFIX}{submission.number}"
    return create_once(path, json_with_checksum(submission.model_dump(mode="json")))


def write_submission(folder: Path, submission: Submission) -> None:
    """Write the newest submission of a run."""
    write_json_with_checksum(folder / JOB_NAME, submission.model_dump(mode="json"))


def read_submissions(study: Path) -> dict[Path, Submission | None]:
    """Return the newest submission of each run folder, by name; None where it was never submitted."""
    return {folder: read_submission(folder) for folder in list_run_folders(study)}


def set_submissions_aside(folder: Path) -> None:
    """Let former jobs of a run, which have ended, no longer decide its state."""
    for number in _list_claims(folder):
        (folder / f"{CLAIM_PREFIX}{number}").unlink()
    with suppress(FileNotFoundError):
        (folder / JOB_NAME).rename(folder / FORMER_JOB_NAME)


def seconds_until_known(folder: Path, submission: Submission) -> float:
    """Return for how long the job may still be queued, where nobody knows whether it was; 0: no longer.

    Clocks of hosts are not compared: each waits by its own from when it asked, or first looked for the job.
    """
    now = time.monotonic()
    machine = machine_id()
    begun = submission.uptime_seconds
    if submission.machine != machine or not machine:
        tail = submission.token.rpartition(".")[2]
        note = folder / f".looked-{submission.number}-{tail}-{short_digest(machine)}"
        try:
            begun = float(read_regular(note))
        except (OSError, ValueError):
            begun = now
            with suppress(OSError):
                write_atomically(note, f"{now}\n")
    return max(0.0, begun + LATEST_JOB_SECONDS - now)
