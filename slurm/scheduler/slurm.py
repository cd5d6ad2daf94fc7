"""Call Slurm: the only place that does.

A controller that lost its state gives ids again, and every answer may be lost, late, cut, filtered or
decorated. So a job counts as gone only where Slurm, asked for that job, says twice that there is none; and as
refused only where Slurm says so and then knows no job of that name.
"""

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from slurm.scheduler import sbatch_options
from slurm.scheduler.protocol import (
    GONE,
    UNCLEAR,
    JobState,
    LimitError,
    RejectedError,
    UnreachableError,
    is_over,
)
from unet_scaling.base.errors import UserError
from unet_scaling.base.texts import retry
from unet_scaling.group.identity import IDENTITY_VARIABLES

# Variables that give options to Slurm's commands, set by a user's shell or an interactive job.
OF_SLURM = re.compile(r"S(BATCH|LURMD?|RUN|ALLOC|QUEUE|ACCT(MGR)?|CANCEL|INFO|CONTROL|TAT|PRIO|HARE)_")
# Variables beside IDENTITY_VARIABLES by which another launch says how and on which cores to start.
OF_LAUNCHERS = re.compile(
    r"(GROUP_WORLD_SIZE|NODE_RANK)$|PET_|PMI\d_|PMIX_|PRTE_|ORTE_|OMPI_|HYDRA_|MPIR_LOCAL|MPIEXEC_"
    r"|I_MPI_(PIN|PMI|HYDRA|OFI_LIBRARY_INTERNAL_RANK)"
    r"|(GOMP_CPU|KMP)_AFFINITY$|KMP_HW_SUBSET$|OMP_(PROC_BIND|PLACES)$|UNET_SCALING_(?!CACHE$)"
)
KEPT_VARIABLES = ("SLURM_CONF",)
LIMITS = (
    "QOSMaxSubmitJob", "AssocMaxSubmitJob", "MaxSubmitJob", "AssocGrpSubmitJobs", "QOSGrpSubmitJobs",
    "sleeping and retrying", "job queue full", "resource temporarily unavailable",
)  # fmt: skip
# sbatch prints this and tries again for two minutes; it is ended instead.
WAITS_ITSELF = "sleeping and retrying"
# Errors after which Slurm may or may not have done what was asked (slurm_errno.c, and errno of sockets).
LOST = re.compile(
    r"(?i)timed out|contact slurm|connection (failure|refused|reset)|communication|message (receive|send)|"
    r"unexpected message|zero bytes|not all data|standby|broken pipe|no route|unreachable|interrupted|"
    r"authentication|credential|endpoint|insane message|negative length|munge|"
    r"connect failure|shut(ting)? ?down|protocol version|slurmdbd"
)
CUT = "the answer of squeue is not whole"
NO_SUCH_JOB = "Invalid job id specified"
CALL_SECONDS = 60
CALL_LOOK_SECONDS = 0.2
# Together longer than Slurm's MessageTimeout of 10 s: a request whose answer was lost may queue a job late.
FIND_PAUSES_SECONDS = (2.0,) * 8
STATE_PAUSES_SECONDS = (1.0, 2.0)
# How often Slurm has to say that there is no such job, with a pause between.
LOOKS = 2
SECOND_LOOK_SECONDS = 1.0
# A controller that is restarted is away for some seconds.
REQUEUE_PAUSES_SECONDS = (2.0, 5.0, 10.0, 20.0)
JOBS_PER_CALL = 500
CLUSTER_NAME = re.compile(r"(?m)^ClusterName\s*=\s*(\S+)")
NOISE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|[\x00-\x08\x0e-\x1f]")
# The exit code of a program, None where it was ended before its end, and what it printed.
Printed = tuple[int | None, bytes, bytes]


class RefusedError(UserError):
    """Slurm refused a call, with its own words."""


@dataclass(frozen=True)
class Queue:
    """The jobs of squeue's answer by name; `whole`: nothing of the answer seems to be missing."""

    jobs: dict[str, JobState]
    whole: bool


@dataclass(frozen=True)
class Slurm:
    """The Slurm of this machine, or the cluster that it names. What its methods promise: see `Scheduler`."""

    cluster_name: str | None = None
    keep_variables: tuple[str, ...] = ()

    @staticmethod
    def check_option(option: str) -> str:
        return sbatch_options.check_option(option)

    def cluster(self) -> str:
        return self.cluster_name or _ask_cluster(self)

    def try_out(self, script: Path) -> None:
        command = ["sbatch", "--test-only", script.name]
        try:
            retry(lambda: self.call(command, script.parent), STATE_PAUSES_SECONDS, UnreachableError)
        except RefusedError as error:
            if not _is_limit(str(error)):
                raise RejectedError(str(error)) from None

    def submit(self, script: Path, token: str) -> str:
        """Queue the script and return the job's id.

        Where the answer does not tell whether the job was queued, looks for a job of that name for longer
        than it can be late, and takes it over; once also after a refusal.
        """
        try:
            answer = self.call(["sbatch", "--parsable", script.name], script.parent, WAITS_ITSELF)
            job = parse_job_id(answer)
            if job is None:
                raise UnreachableError(f"sbatch answered {answer.strip()!r}, which is no job id")
        except UnreachableError as error:
            for pause in FIND_PAUSES_SECONDS:
                time.sleep(pause)
                with suppress(UnreachableError):
                    if job := self.find(token):
                        return job
            raise UnreachableError(f"{error}; no job named {token} was found afterwards") from error
        except RefusedError as error:
            job = self.find(token)
            if job is None and _is_limit(str(error)):
                raise LimitError(str(error)) from None
            if job is None:
                raise RejectedError(str(error)) from None
        return job

    def find(self, token: str) -> str | None:
        """Return the id of the job of this name; None where there is none. Raises UnreachableError."""
        queue = self._ask_queue()
        if token in queue.jobs:
            return queue.jobs[token].job
        if not queue.whole:
            raise UnreachableError(CUT)
        return None

    def queue(self) -> dict[str, JobState]:
        """Return what slurmctld knows of the user's jobs, also some that ended. Raises UnreachableError.

        A part of the answer is none: a job that it lacks would be queued again where its files are lost.
        """

        return self._ask_queue(whole=True).jobs

    def _ask_queue(self, *, whole: bool = False) -> Queue:
        """Return the answer of squeue, also a part of it unless `whole`. Raises UnreachableError."""

        def ask() -> Queue:
            queue = read_queue(
                self.call(["squeue", "--all", "--me", "--states=all", "--format=%i|%T|%r|%j|."])
            )
            if whole and not queue.whole:
                raise UnreachableError(CUT)
            return queue

        try:
            return retry(ask, STATE_PAUSES_SECONDS, UnreachableError)
        except RefusedError as error:
            raise UnreachableError(str(error)) from None

    def ended(self, jobs: Iterable[str]) -> dict[str, JobState]:
        """Return by name what the accounting knows of these jobs; nothing where the site has none."""
        wanted = sorted(set(jobs), key=int)
        form = ["--noheader", "--parsable2", "--allocations", "--format=JobID,State,ExitCode,JobName"]
        states: dict[str, JobState] = {}
        for begin in range(0, len(wanted), JOBS_PER_CALL):
            try:
                some = ",".join(wanted[begin : begin + JOBS_PER_CALL])
                answer = self.call(["sacct", *form, f"--jobs={some}"])
            except (UnreachableError, UserError):
                break
            states |= read_ended(answer)
        return states

    def look_up(self, wanted: Mapping[str, str | None]) -> dict[str, JobState]:
        """Return by name the state of each of these jobs: GONE where Slurm says twice that there is none."""
        found: dict[str, JobState] = {}
        open_still = dict(wanted)
        for look in range(LOOKS):
            if look:
                time.sleep(SECOND_LOOK_SECONDS)
            try:
                queue = self._ask_queue()
                for token, job in open_still.items():
                    found[token] = queue.jobs.get(token) or self._shown(token, job, queue.whole)
            except UnreachableError as error:
                unclear = JobState(UNCLEAR, f"Slurm does not answer: {error}")
                return found | dict.fromkeys(open_still, unclear)
            open_still = {token: job for token, job in open_still.items() if found[token].state == GONE}
            if not open_still:
                break
        return found

    def _shown(self, token: str, job: str | None, is_absent: bool) -> JobState:
        """Return the state by `scontrol show job`; without an id, by whether a whole queue lacks the job."""
        if job is None:
            return JobState(GONE) if is_absent else JobState(UNCLEAR, "the answer of squeue is cut")
        try:
            return read_shown(self.call(["scontrol", "--oneliner", "show", "job", job]), token)
        except RefusedError as error:
            return JobState(GONE if NO_SUCH_JOB in str(error) else UNCLEAR, str(error))

    def requeue(self, job: str) -> None:
        command = ["scontrol", "requeue", job]
        retry(lambda: self.call(command), REQUEUE_PAUSES_SECONDS, UnreachableError)

    def cancel(self, token: str) -> None:
        retry(lambda: self.call(["scancel", f"--name={token}"]), STATE_PAUSES_SECONDS, UnreachableError)

    def environment(self, of_job: bool = False) -> dict[str, str]:
        """Return the variables for a call of Slurm, or for a submission, whose job inherits them."""
        kept = (*KEPT_VARIABLES, *self.keep_variables)

        def is_dropped(name: str) -> bool:
            of_launch = of_job and (name.startswith(IDENTITY_VARIABLES) or OF_LAUNCHERS.match(name))
            return bool(of_launch or OF_SLURM.match(name))

        return {name: text for name, text in os.environ.items() if name in kept or not is_dropped(name)}

    def dropped_variables(self) -> list[str]:
        return sorted(set(os.environ) - set(self.environment(of_job=True)))

    @staticmethod
    def this_job() -> tuple[str, int]:
        return os.environ.get("SLURM_JOB_ID", ""), int(os.environ.get("SLURM_RESTART_COUNT") or 0)

    def nodes(self, columns: str) -> str:
        """Return the lines of sinfo in these columns."""
        return self.call(["sinfo", "--noheader", f"--format={columns}"])

    def configuration(self) -> str:
        """Return the lines of `scontrol show config`."""
        return self.call(["scontrol", "show", "config"])

    def call(self, command: Sequence[str], folder: Path | None = None, stop_at: str = "") -> str:
        """Return what a command prints. Raises RefusedError, UnreachableError if unclear, or UserError."""
        program, *words = command
        cluster = [f"--clusters={self.cluster_name}"] if self.cluster_name else []
        environment = (
            self.environment(of_job=True) if program == "sbatch" else self.environment() | {"LC_ALL": "C"}
        )
        try:
            code, out, errors = call_program([program, *cluster, *words], environment, folder, stop_at)
        except FileNotFoundError:
            raise UserError(
                f"{program} not found: is this a machine of the cluster, are its modules loaded?"
            ) from None
        message = " ".join(_lines(errors))
        if code == 0:
            return "\n".join(_lines(out))
        if stop_at and stop_at in message:
            raise RefusedError(message)
        if code is None:
            raise UnreachableError(f"{program} did not answer within {CALL_SECONDS} s {message}".rstrip())
        if code < 0 or not message or LOST.search(message):
            raise UnreachableError(message or f"{program} ended with code {code}")
        raise RefusedError(message)


@cache
def _ask_cluster(scheduler: Slurm) -> str:
    try:
        answer = retry(scheduler.configuration, STATE_PAUSES_SECONDS, UnreachableError)
    except UserError:  # a site may not allow it
        return ""
    named = CLUSTER_NAME.search(answer)
    if named is None:
        raise UnreachableError("scontrol show config names no cluster")
    return named.group(1)


def call_program(
    command: Sequence[str], environment: Mapping[str, str], folder: Path | None, stop_at: str
) -> Printed:
    """Run a program; end it with all that it started after CALL_SECONDS, or once its errors hold `stop_at`.

    It prints into memory: a pipe could be held open by what it started. It has a session of its own, so that
    the terminal's Ctrl-C does not end it in the midst of a submission.
    """
    with os.fdopen(os.memfd_create("out"), "rb") as out, os.fdopen(os.memfd_create("error"), "rb") as error:

        def printed(file: int) -> bytes:
            return os.pread(file, os.fstat(file).st_size, 0)

        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=error,
            start_new_session=True,
        )  # fmt: skip
        end = time.monotonic() + CALL_SECONDS
        waits = stop_at.encode()
        try:
            while process.poll() is None and time.monotonic() < end:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(CALL_LOOK_SECONDS)
                if waits and waits in printed(error.fileno()):
                    break
            code = process.poll()
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        return code, printed(out.fileno()), printed(error.fileno())


def parse_job_id(answer: str) -> str | None:
    """Return the job id of sbatch's answer, in whichever line and form it stands; None if there is none."""
    form = re.compile(r"(?:Submitted batch job )?([0-9]+)(?:;[\w.-]+| on cluster [\w.-]+)?")
    found = [match for line in _lines(answer) if (match := form.fullmatch(line))]
    return found[-1].group(1) if found else None


def read_queue(answer: str) -> Queue:
    """Return the jobs in lines of `id|state|reason|name|.`; all else is skipped.

    The answer is whole where it has the header line and no line that is only the beginning of a row.
    """
    jobs: dict[str, JobState] = {}
    headed = cut = False
    for line in _lines(answer):
        fields = [field.strip() for field in line.removesuffix(".").split("|")]
        if not line.endswith(".") or len(fields) < 5 or fields[-1]:
            cut |= re.match(r"[0-9_]+ *(\||$)", line) is not None
        elif fields[0].upper() == "JOBID":
            headed = True
        elif re.fullmatch(r"[0-9]+", fields[0]):
            job, state, *reason, name, _ = fields
            known = jobs.get(name)
            if known is None or is_over(known.state):
                reasons = "|".join(reason)
                jobs[name] = JobState(state.upper(), "" if reasons == "None" else reasons, job, name)
    return Queue(jobs, headed and not cut)


def read_ended(answer: str) -> dict[str, JobState]:
    """Return by name the jobs that are over in lines `id|state|exit code|name` of sacct.

    A job that runs by sacct may be one that slurmctld has lost.
    """
    states = {}
    for line in _lines(answer):
        job, state_and_reason, code, name = [*line.split("|", maxsplit=3), "", "", ""][:4]
        state, _, reason = state_and_reason.partition(" ")
        state = state.rstrip("+").upper()
        if job.isdigit() and is_over(state):
            states[name] = JobState(state, reason or _why_failed(state, code), job)
    return states


def read_shown(answer: str, token: str) -> JobState:
    """Return the state of the job by `scontrol show job`; GONE where its id is now that of another job."""
    rows = re.findall(
        r"JobId=([0-9]+)\s.*?JobName=(.*?)\s+UserId=.*?JobState=(\S+)\s+Reason=(\S+)\s", answer, re.DOTALL
    )
    for job, name, state, reason in rows:
        if name == token:
            return JobState(state.upper(), "" if reason == "None" else reason, job, name)
    return JobState(GONE) if rows else JobState(UNCLEAR, f"scontrol answered {answer[:80]!r}")


def _is_limit(message: str) -> bool:
    return any(limit.lower() in message.lower() for limit in LIMITS)


def _why_failed(state: str, code: str) -> str:
    """Return why a job FAILED, from sacct's `exit code:signal`; empty for other states."""
    exit_code, _, signal_number = code.partition(":")
    if state != "FAILED":
        return ""
    return f"by signal {signal_number}" if signal_number not in ("", "0") else f"with exit code {exit_code}"


def _lines(answer: bytes | str) -> list[str]:
    """Return the lines of an answer without colours, padding and control characters."""
    text = answer if isinstance(answer, str) else answer.decode(errors="replace")
    return [line.strip() for line in NOISE.sub("", text).splitlines() if line.strip()]
