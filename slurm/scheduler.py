"""Call Slurm: try, submit, find, ask, requeue, cancel. Everything else is an error.

Commands are lists, never shell text. An answer that cannot be understood is an error with the raw text.
"""

import os
import re
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from unet_scaling.study.errors import UserError
from unet_scaling.study.retry import retry

# Set by an interactive job, these would silently override what the script says.
INHERITED = re.compile(r"^(SBATCH|SLURM|SRUN|SALLOC)_")
KEPT_VARIABLES = ("SLURM_CONF",)
LIMITS = ("QOSMaxSubmitJob", "AssocMaxSubmitJob", "MaxSubmitJob", "AssocGrpSubmitJobs", "QOSGrpSubmitJobs")
# A controller that is just starting answers with something else than what was asked for.
UNCLEAR = (
    "Socket timed out",
    "Unable to contact slurm controller",
    "Connection refused",
    "timed out",
    "Unexpected message received",
)
CALL_SECONDS = 60
# Longer together than Slurm's MessageTimeout of 10 s: an answer that was lost may still have queued the job.
FIND_PAUSES_SECONDS = (2.0,) * 8
STATE_PAUSES_SECONDS = (1.0, 2.0)
# A controller that is restarted is away for some seconds.
REQUEUE_PAUSES_SECONDS = (2.0, 5.0, 10.0, 20.0)


class UnreachableError(Exception):
    """Slurm did not answer, or not clearly. Nothing follows from it about any job."""


class RejectedError(Exception):
    """Slurm refused a job, with its own words."""


class LimitError(Exception):
    """Slurm takes no further job from this user now."""


@dataclass(frozen=True)
class JobState:
    """The state of a job in Slurm's words, and the reason that Slurm gives for it."""

    state: str
    reason: str = ""


def ask_slurm(command: Sequence[str]) -> str:
    """Return the answer of a command that only asks. Raises UserError, or UnreachableError if unclear."""
    return _call(command)


def clean_environment() -> dict[str, str]:
    """Return the environment without what an interactive job would impose on a submission."""
    return {
        name: value
        for name, value in os.environ.items()
        if name in KEPT_VARIABLES or not INHERITED.match(name)
    }


def inherited_variables() -> list[str]:
    """Return the names that `clean_environment` leaves out, to be shown to the user."""
    return sorted(set(os.environ) - set(clean_environment()))


def try_out(script: Path) -> None:
    """Ask Slurm whether it would take this script. Raises RejectedError or UnreachableError."""
    _sbatch("--test-only", script)


def submit(script: Path, token: str) -> str:
    """Queue the script and return the job's id.

    After an answer that leaves open whether the job was queued, looks for a job of that name for
    longer than an answer can be late, and takes it over. Raises RejectedError, LimitError, or
    UnreachableError when it stays open; then no other job of that name may be submitted before `find`
    has had an answer.
    """
    try:
        return parse_job_id(_sbatch("--parsable", script))
    except UnreachableError as error:
        try:
            return retry(partial(_existing, token), FIND_PAUSES_SECONDS, UnreachableError)
        except UnreachableError:
            raise UnreachableError(f"{error}; no job named {token} was found afterwards") from error


def parse_job_id(answer: str) -> str:
    """Return the job id of an answer of `sbatch --parsable`: the last line, before any `;cluster`."""
    lines = answer.strip().splitlines()
    job = lines[-1].partition(";")[0].strip() if lines else ""
    if not re.fullmatch(r"[0-9]+", job):
        raise UserError(f"sbatch answered {answer.strip()!r}, which is no job id; is sbatch wrapped here?")
    return job


def find(token: str) -> str | None:
    """Return the id of the job of this name, also of one just ended; None where Slurm knows none.

    Raises UnreachableError.
    """
    answer = _call(["squeue", "--noheader", "--me", "--states=all", "--format=%i", f"--name={token}"])
    jobs = answer.split()
    return jobs[0] if jobs else None


def job_states(jobs: Iterable[str]) -> dict[str, JobState]:
    """Return the states of these jobs; one that Slurm has forgotten is absent. Raises UnreachableError."""
    wanted = sorted(set(jobs), key=int)
    if not wanted:
        return {}
    return retry(lambda: _ended(wanted) | _queued(wanted), STATE_PAUSES_SECONDS, UnreachableError)


def requeue(job: str) -> None:
    """Let Slurm start this job again. Raises UserError where it refuses, or UnreachableError."""
    retry(lambda: _call(["scontrol", "requeue", job]), REQUEUE_PAUSES_SECONDS, UnreachableError)


def cancel(jobs: Sequence[str]) -> None:
    """Cancel these jobs. Raises UnreachableError."""
    if jobs:
        _call(["scancel", *jobs])


def _queued(jobs: Sequence[str]) -> dict[str, JobState]:
    """Return what slurmctld still knows, also of jobs that ended a short while ago, by squeue."""
    answer = _call(["squeue", "--noheader", "--me", "--states=all", "--format=%i|%T|%r"])
    rows = [line.split("|", maxsplit=2) for line in answer.splitlines()]
    return {
        job: JobState(state, "" if reason == "None" else reason) for job, state, reason in rows if job in jobs
    }


def _ended(jobs: Sequence[str]) -> dict[str, JobState]:
    """Return what the accounting database knows; nothing where the site has none."""
    command = ["sacct", "--noheader", "--parsable2", "--allocations", "--format=JobID,State,ExitCode"]
    try:
        answer = _call([*command, f"--jobs={','.join(jobs)}"])
    except (UnreachableError, UserError):
        return {}
    states = {}
    for line in answer.splitlines():
        job, state_and_reason, code = line.split("|", maxsplit=2)
        state, _, reason = state_and_reason.partition(" ")
        if job in jobs and state:
            states[job] = JobState(state, reason or _why_failed(state, code))
    return states


def _why_failed(state: str, code: str) -> str:
    """Return why a job FAILED, from sacct's `exit code:signal`; of other ends the state says it."""
    exit_code, _, signal = code.partition(":")
    if state != "FAILED":
        return ""
    return f"by signal {signal}" if signal not in ("", "0") else f"with exit code {exit_code}"


def _existing(token: str) -> str:
    """Return the id of the job of this name. Raises UnreachableError, also where there is none yet."""
    job = find(token)
    if job is None:
        raise UnreachableError(f"no job named {token}")
    return job


def _sbatch(option: str, script: Path) -> str:
    """Call sbatch with one option in the script's own folder, where its output goes."""
    try:
        return _call(["sbatch", option, script.name], folder=script.parent)
    except UserError as error:
        text = str(error)
        if any(limit in text for limit in LIMITS):
            raise LimitError(text) from None
        raise RejectedError(text) from None


def _call(command: Sequence[str], folder: Path | None = None) -> str:
    """Return what a Slurm command prints. Raises UserError for a refusal, UnreachableError if unclear."""
    try:
        done = subprocess.run(
            command, cwd=folder, env=clean_environment(), capture_output=True, text=True,
            stdin=subprocess.DEVNULL, timeout=CALL_SECONDS,
        )  # fmt: skip
    except FileNotFoundError:
        raise UserError(
            f"{command[0]} not found: is this a machine of the cluster, are its modules loaded?"
        ) from None
    except subprocess.TimeoutExpired:
        raise UnreachableError(f"{command[0]} did not answer within {CALL_SECONDS} s") from None
    if done.returncode == 0:
        return done.stdout
    message = " ".join(done.stderr.split()) or f"{command[0]} ended with code {done.returncode}"
    if any(text in message for text in UNCLEAR):
        raise UnreachableError(message)
    raise UserError(message)
