"""A Slurm in this process that errs as it is told: behind the real command lines, with a clock of its own.

It knows jobs by id, queues late what sbatch has long given up, and loses, cuts, doubles or decorates any
answer. What must never be it raises at once: two live jobs of one run, or another's job that we ended.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

import slurm.commands.cancel
import slurm.commands.status
import slurm.commands.submit
import slurm.scheduler.slurm
import slurm.submissions
import slurm.submit
import unet_scaling.base.texts
from slurm.cluster import Cluster
from slurm.launch.study_folder import Cancellation, StudyFolder
from slurm.scheduler.slurm import CALL_SECONDS, Printed
from slurm.submissions import get_run_part
from slurm.submit import Submitter
from unet_scaling.study.config import StudyConfig

# Whose time is the clock's.
TIMED = (
    slurm.scheduler.slurm, slurm.submissions, slurm.submit, slurm.commands.cancel, slurm.commands.status,
    slurm.commands.submit, unet_scaling.base.texts,
)  # fmt: skip

# The last is a state that no Slurm has yet.
LIVE = ("PENDING", "RUNNING", "HIBERNATING")
LONGEST_DELAY_SECONDS = 100.0
HEADER = "JOBID|STATE|REASON|NAME|."
CLUSTER = Cluster(launcher="srun", gpus_per_node=2, cores_per_worker=1, time="10", cluster_name="cm4")
OTHERS_JOB = "another.job.of-the-user"
LOST = (
    "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation",
    "slurm_load_jobs error: Zero Bytes were transmitted or received",
    "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)",
    "error: Slurm backup controller in standby mode",
)
SBATCH_FAULTS = ("queued", "late", "lost", "hang", "hang late", "limit", "full", "refuse", "no id", "kill")
ANSWER_FAULTS = ("lost", "hang", "empty", "cut", "cut row", "wordy", "double", "reordered", "kill")


def make_submitter(folder: Path, study: StudyConfig, **changes: Any) -> Submitter:
    """The submission of a study into a folder; `changes` are further options of it."""
    options: dict[str, Any] = {"cluster": CLUSTER, "console": Console(quiet=True)}
    return Submitter(
        folder=StudyFolder(folder, study),
        cancellation=Cancellation(folder),
        **(options | changes),
    )


class KilledError(BaseException):
    """The end of our own process, at this moment."""


class Clock:
    """Stands for the module `time` in ours; each pause also lets jobs go on by `pass_time`."""

    def __init__(self) -> None:
        self.now = 1000.0
        # By how much the clock of the login node that is used differs from that of the controller.
        self.ahead = 0.0
        self.pass_time: Callable[[float], None] = lambda seconds: None

    def time(self) -> float:
        return self.now + self.ahead

    monotonic = time

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.pass_time(seconds)


@dataclass
class PeerJob:
    name: str
    folder: Path
    state: str = "PENDING"
    script: str = ""


@dataclass
class PeerSlurm:
    """`faults` is what comes of the next calls, one each; when there are none left it is honest."""

    clock: Clock
    faults: list[str] = field(default_factory=list)
    jobs: dict[int, PeerJob] = field(default_factory=dict)
    late: list[tuple[float, PeerJob]] = field(default_factory=list)
    next_id: int = 1
    most_jobs: int = 100
    # What comes of the next request of sbatch that is no trial, whatever the faults.
    sbatch_fault: str = ""
    accounting: dict[int, PeerJob] | None = None
    # Called while sbatch is under way, or where `beside_call` is given, before so many calls from now.
    beside: Callable[[], None] | None = None
    beside_call: int = 0
    name: str = str(CLUSTER.cluster_name)

    def run(
        self, command: Sequence[str], environment: Mapping[str, str], folder: Path | None, stop_at: str
    ) -> Printed:
        """In place of `slurm.scheduler.slurm.call_program`."""
        self.clock.now += 0.05
        self.arrive()
        if self.beside_call == 1:
            self.go_beside()
        self.beside_call = max(0, self.beside_call - 1)
        fault = self.faults.pop(0) if self.faults else ""
        program, *words = command
        if words[0].startswith("--clusters"):
            assert words.pop(0) == f"--clusters={self.name}", command
        if program == "sbatch":
            assert folder is not None
            return self.sbatch(words, folder, fault, stop_at)
        if program == "scancel":
            return self.scancel(words, fault)
        known = {"squeue": self.squeue, "scontrol": self.scontrol, "sacct": self.sacct}
        code, out, error = known[program](words)
        return self.answered(fault, code, out, error)

    def answered(self, fault: str, code: int, out: str, error: str = "") -> Printed:
        """Return an answer as this fault lets it come."""
        if fault == "kill":
            raise KilledError
        if fault in ("lost", "queued", "late"):
            return (1, b"", LOST[len(out) % len(LOST)].encode())
        if fault.startswith("hang"):
            self.clock.now += 60
            return (None, out[: len(out) // 2].encode(), b"")
        if fault == "empty":
            return (0, b"", b"")
        if fault == "cut":
            out = out[: len(out) * 2 // 3]
        elif fault == "cut row":
            out = out[: out.rstrip("\n").rfind("\n") + 1]
        elif fault == "wordy":
            lower = out.lower() if "|." in out else out
            out = f"CLUSTER: cm4\n\x1b[1mWelc\xf6me | of 12\x1b[0m\n{lower}bye\n"
        elif fault == "reordered":
            out = "".join(reversed(out.splitlines(keepends=True)))
        elif fault == "double":
            out = out + out
        return (code, out.encode("latin-1"), error.encode())

    def sbatch(self, words: list[str], folder: Path, fault: str, stop_at: str) -> Printed:
        option, name_of_script = words
        script = (folder / name_of_script).read_text()  # sbatch reads it as it starts
        if self.beside and option == "--parsable" and not self.beside_call:
            end = self.clock.now + CALL_SECONDS
            self.go_beside()
            if self.clock.now > end:  # sbatch was ended before it had sent its request
                return (None, b"", b"")
        if option == "--parsable" and self.sbatch_fault:
            fault, self.sbatch_fault = self.sbatch_fault, ""
        live = sum(job.state in LIVE and job.name != OTHERS_JOB for job in self.jobs.values())
        if option == "--test-only":
            if fault in ("limit", "refuse"):
                return 1, b"", b"QOSMaxSubmitJobPerUserLimit" if fault == "limit" else b"allocation failure"
            return self.answered("lost" if fault in ("lost", "hang") else "", 0, "")
        if fault == "refuse":
            return (1, b"", b"sbatch: error: Batch job submission failed: Invalid qos specification")
        if fault == "full":
            assert stop_at
            waits = "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying"
            return (None, b"", waits.encode())
        if fault == "limit" or live >= self.most_jobs:
            return (1, b"", b"sbatch: error: AssocMaxSubmitJobLimit\nsbatch: error: failed")
        if fault in ("lost", "hang"):
            return self.answered(fault, 1, "")
        name = re.search(r"#SBATCH --job-name=(\S+)", script)
        assert name
        job = PeerJob(name.group(1), folder, script=script)
        if fault.endswith("late"):
            self.late.append((self.clock.now + LONGEST_DELAY_SECONDS, job))
            return self.answered(fault, 0, "")
        number = self.enter(job)
        if fault in ("queued", "kill", "no id"):
            return self.answered("empty" if fault == "no id" else fault, 0, "")
        return self.answered(fault, 0, f"{number}\n")

    def go_beside(self) -> None:
        beside, self.beside = self.beside, None
        self.beside_call = 0
        if beside:
            beside()

    def arrive(self) -> None:
        """Take in what was late."""
        due = [job for when, job in self.late if when <= self.clock.now]
        self.late = [(when, job) for when, job in self.late if when > self.clock.now]
        for job in due:
            self.enter(job)

    def require_one_job(self, job: PeerJob) -> None:
        twins = [other.name for other in self.jobs.values() if other.state in LIVE and same_run(other, job)]
        assert not twins, f"{job.name} is queued beside {twins}"

    def enter(self, job: PeerJob) -> int:
        self.require_one_job(job)
        number = self.next_id
        self.next_id += 1
        self.jobs[number] = job
        return number

    def squeue(self, words: list[str]) -> tuple[int, str, str]:
        assert words == ["--all", "--me", "--states=all", "--format=%i|%T|%r|%j|."], words
        rows = [f"{number}|{job.state}|None|{job.name}|." for number, job in self.jobs.items()]
        return 0, "\n".join([HEADER, *rows, ""]), ""

    def scontrol(self, words: list[str]) -> tuple[int, str, str]:
        if words == ["show", "config"]:
            return 0, f"Configuration data as of now\nClusterName             = {self.name}\nX = y\n", ""
        assert words[:3] == ["--oneliner", "show", "job"], words
        job = self.jobs.get(int(words[3]))
        if job is None:
            return 1, "", "slurm_load_jobs error: Invalid job id specified"
        shown = f"JobId={words[3]} JobName={job.name} UserId=me(7) JobState={job.state} Reason=None End=x"
        return 0, f"{shown}\n", ""

    def sacct(self, words: list[str]) -> tuple[int, str, str]:
        if self.accounting is None:
            return 1, "", "Slurm accounting storage is disabled"
        ids = map(int, words[-1].removeprefix("--jobs=").split(","))
        rows = [(number, self.accounting[number]) for number in ids if number in self.accounting]
        return 0, "".join(f"{number}|{job.state}|0:0|{job.name}\n" for number, job in rows), ""

    def scancel(self, words: list[str], fault: str) -> Printed:
        assert len(words) == 1
        assert words[0].startswith("--name=")
        if fault not in ("lost", "hang", "kill"):
            for job in self.jobs.values():
                if f"--name={job.name}" == words[0] and job.state in LIVE:
                    assert job.name != OTHERS_JOB
                    job.state = "CANCELLED"
        return self.answered("lost" if fault == "queued" else fault, 0, "")

    def lose_state(self) -> None:
        """Start anew without a state: all jobs are ended by their nodes, and ids begin again."""
        self.jobs.clear()
        self.late.clear()
        self.next_id = 1

    def live(self) -> list[PeerJob]:
        """Return our jobs that live or will."""
        jobs = [*self.jobs.values(), *(job for _, job in self.late)]
        return [job for job in jobs if job.state in LIVE and job.name != OTHERS_JOB]


def same_run(one: PeerJob, other: PeerJob) -> bool:
    return get_run_part(one.name) == get_run_part(other.name)
