"""Slurm, as far as a submission needs it: try, submit, find, ask, cancel. Everything else is an error.

Commands are lists, never shell text. An answer that cannot be understood is an error with the raw text.
"""

import os
import re
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from unet_scaling.study.errors import UserError

# Set by an interactive job, these would silently override what the script says.
INHERITED = re.compile(r"^(SBATCH|SLURM|SRUN|SALLOC)_")
KEPT = ("SLURM_CONF",)
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
# Longer than Slurm's MessageTimeout of 10 s: an answer that was lost may still have queued the job.
SETTLE_SECONDS = 15


class UnreachableError(Exception):
    """Slurm did not answer, or not clearly. Nothing follows from it about any job."""


class RejectedError(Exception):
    """Slurm refused a job, with its own words."""


class LimitError(Exception):
    """Slurm takes no further job from this user now."""


@dataclass(frozen=True)
class JobState:
    """What Slurm says of a job: its state in Slurm's words, the reason it gives, and its nodes."""

    state: str
    reason: str = ""
    nodes: str = ""
    expected_end: str = ""


def clean_environment() -> dict[str, str]:
    """The environment without what an interactive job would impose on a submission."""
    return {name: value for name, value in os.environ.items() if name in KEPT or not INHERITED.match(name)}


def inherited_variables() -> list[str]:
    """Names that `clean_environment` leaves out, to be told to the user."""
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
        found = _find_for(token, SETTLE_SECONDS)
        if found is None:
            raise UnreachableError(f"{error}; no job named {token} was found afterwards") from error
        return found


def parse_job_id(answer: str) -> str:
    """The job id in `sbatch --parsable`'s answer: the last line, before any `;cluster`."""
    lines = answer.strip().splitlines()
    job = lines[-1].partition(";")[0].strip() if lines else ""
    if not re.fullmatch(r"[0-9]+", job):
        raise UserError(f"sbatch answered {answer.strip()!r}, which is no job id; is sbatch wrapped here?")
    return job


def find(token: str) -> str | None:
    """The id of the job of this name that Slurm knows, also of one just ended. Raises UnreachableError."""
    answer = _call(["squeue", "--noheader", "--me", "--states=all", "--format=%i", f"--name={token}"])
    jobs = answer.split()
    return jobs[0] if jobs else None


def job_states(jobs: Iterable[str], attempts: int = 3) -> dict[str, JobState]:
    """What Slurm knows of these jobs; a forgotten one is absent. UnreachableError after `attempts`."""
    wanted = sorted(set(jobs), key=int)
    if not wanted:
        return {}
    for attempt in range(1, attempts + 1):
        try:
            return _ended(wanted) | _queued(wanted)
        except UnreachableError:
            if attempt == attempts:
                raise
            time.sleep(attempt)
    raise AssertionError("the last attempt returns or raises")


def cancel(jobs: Sequence[str]) -> None:
    """Cancel these jobs. Raises UnreachableError."""
    if jobs:
        _call(["scancel", *jobs])


def _queued(jobs: Sequence[str]) -> dict[str, JobState]:
    """Jobs that slurmctld still knows, by squeue. It also shows those that ended a short while ago."""
    answer = _call(["squeue", "--noheader", "--me", "--states=all", "--format=%i|%T|%r|%N|%e"])
    found = {}
    for line in answer.splitlines():
        job, state, reason, nodes, end = line.split("|", maxsplit=4)
        if job in jobs:
            found[job] = JobState(state, "" if reason == "None" else reason, nodes, end)
    return found


def _ended(jobs: Sequence[str]) -> dict[str, JobState]:
    """Jobs in the accounting database; nothing where the site has none."""
    columns = "--format=JobID,State,ExitCode,NodeList,End"
    command = ["sacct", "--noheader", "--parsable2", "--allocations", columns]
    try:
        answer = _call([*command, f"--jobs={','.join(jobs)}"])
    except (UnreachableError, UserError):
        return {}
    found = {}
    for line in answer.splitlines():
        job, said, code, nodes, end = line.split("|", maxsplit=4)
        state, _, reason = said.partition(" ")
        if job in jobs and state:
            found[job] = JobState(state, reason or _why_failed(state, code), nodes, end)
    return found


def _why_failed(state: str, code: str) -> str:
    """Return why a job FAILED, from sacct's `exit code:signal`; of other ends the state says it."""
    exit_code, _, signal = code.partition(":")
    if state != "FAILED":
        return ""
    return f"by signal {signal}" if signal not in ("", "0") else f"with exit code {exit_code}"


def _find_for(token: str, seconds: float) -> str | None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            found = find(token)
        except UnreachableError:
            found = None
        if found is not None or time.monotonic() >= deadline:
            return found
        time.sleep(min(2.0, seconds))


def _sbatch(option: str, script: Path) -> str:
    """sbatch with one option, from the script's own folder, where its output goes."""
    try:
        return _call(["sbatch", option, script.name], folder=script.parent)
    except UserError as error:
        text = str(error)
        if any(limit in text for limit in LIMITS):
            raise LimitError(text) from None
        raise RejectedError(text) from None


def _call(command: Sequence[str], folder: Path | None = None) -> str:
    """What a Slurm command prints. UserError carries what Slurm refused, UnreachableError all unclear."""
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
    said = " ".join(done.stderr.split()) or f"{command[0]} ended with code {done.returncode}"
    if any(text in said for text in UNCLEAR):
        raise UnreachableError(said)
    raise UserError(said)
