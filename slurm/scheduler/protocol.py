"""What the program asks of a scheduler, and the words in which a scheduler answers.

To add a scheduler: a class with the methods of `Scheduler` in a file of this folder, its row in `SCHEDULERS`
(__init__.py), and slurm/templates/NAME.jinja with the lines of a job script that this scheduler reads.

A further scheduler also needs what other files know of Slurm alone:
- unet_scaling/group/identity.py: variables that give a process its rank, and the job its hosts and id;
  `JOB_VARIABLES` of unet_scaling/group/worker.py, which the record keeps;
  SLURM_RESTART_COUNT of unet_scaling/run/run_claim.py, by which an attempt is known
- slurm/templates/header.jinja: SLURM_JOB_END_TIME, without which the limit counts from the job's start
- slurm/commands/new.py: without an answer of sinfo it writes no cluster file
- messages that say Slurm, squeue or scancel
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

# The states of a job, in Slurm's words; other schedulers translate theirs into these.
WAITING_STATES = (
    "PENDING", "CONFIGURING", "EXPEDITING", "POWER_UP_NODE", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD",
    "SPECIAL_EXIT", "RESV_DEL_HOLD",
)  # fmt: skip
RUNNING_STATES = (
    "RUNNING", "COMPLETING", "SUSPENDED", "SIGNALING", "STAGE_OUT", "STOPPED", "RESIZING", "UPDATE_DB",
)  # fmt: skip
# The job was ended from outside: the run can be submitted again unchanged.
INTERRUPTED_STATES = (
    "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE", "REVOKED", "LAUNCH_FAILED", "RECONFIG_FAIL",
)  # fmt: skip
OVER_STATES = (*INTERRUPTED_STATES, "COMPLETED", "FAILED", "CANCELLED", "OUT_OF_MEMORY")
# In place of a state. GONE: the scheduler knows no such job. UNCLEAR: it did not answer, or not clearly.
# ELSEWHERE: the job is one of another cluster.
GONE = "GONE"
UNCLEAR = "UNCLEAR"
ELSEWHERE = "ELSEWHERE"


class UnreachableError(Exception):
    """The scheduler did not answer, or not clearly. Nothing follows from it about any job."""


class RejectedError(Exception):
    """The scheduler refused a job, with its own words."""


class LimitError(Exception):
    """The scheduler takes no further job from this user now."""


@dataclass(frozen=True)
class JobState:
    """The state of a job, the reason that the scheduler gives for it, and the job's id and name."""

    state: str
    reason: str = ""
    job: str | None = None
    name: str = ""


def is_over(state: str) -> bool:
    """Return whether a job in this state has ended; one in a state that is not known here may live."""
    return state in OVER_STATES


class Scheduler(Protocol):
    """A queue of jobs. Two that were made with the same arguments are equal and have the same hash.

    A job is known by its name, the `token` of a submission, which no other job ever has. All methods that ask
    the scheduler raise UnreachableError where it does not answer, and UserError where it refuses, unless they
    say that they raise nothing.
    """

    def __init__(self, cluster_name: str | None, keep_variables: tuple[str, ...]) -> None:
        """Take the keys of the cluster file that say which cluster is asked, and by which variables."""

    @staticmethod
    def check_option(option: str) -> str:
        """Return an entry of `options` of a cluster file. Raises ValueError where it cannot be passed on."""

    def cluster(self) -> str:
        """Return the name that the cluster has itself, asked once by a process; "" where it has none.

        Raises UnreachableError.
        """

    def try_out(self, script: Path) -> None:
        """Ask whether the scheduler would take this script, now or later. Raises RejectedError if not."""

    def submit(self, script: Path, token: str) -> str:
        """Queue the script and return the job's id. Raises RejectedError, LimitError.

        UnreachableError: it is not known whether there is a job, also not by looking for one of that name.
        """

    def queue(self) -> dict[str, JobState]:
        """Return the user's jobs by name: at least those that wait or run."""

    def ended(self, jobs: Iterable[str]) -> dict[str, JobState]:
        """Return by name how jobs of these ids ended, as far as it is known. Raises nothing."""

    def look_up(self, wanted: Mapping[str, str | None]) -> dict[str, JobState]:
        """Return by name the state of each of these jobs, whose ids are given where known. Raises nothing.

        GONE only where it is certain that there is no such job; UNCLEAR with the reason where it is not.
        """

    def requeue(self, job: str) -> None:
        """Start this job again, once it has ended."""

    def cancel(self, token: str) -> None:
        """Cancel the job of this name, if there is one."""

    def dropped_variables(self) -> list[str]:
        """Return the names of variables of this process that no job inherits."""

    @staticmethod
    def this_job() -> tuple[str, int]:
        """Return the id of the job that this process belongs to, and how often it was started again."""
