"""End the jobs of a study that are queued or running, and no others; submissions that wait stop."""

import time
from pathlib import Path

from rich.console import Console

from slurm.commands.options import add_submitted_study, find_submitted_study, new_console
from slurm.launch.study_folder import mark_cancelled
from slurm.scheduler.protocol import GONE, UNCLEAR, UnreachableError, is_over
from slurm.states import Submission, find_states, read_submissions
from unet_scaling.base.command_line import CommandLine
from unet_scaling.base.errors import UserError
from unet_scaling.format.run_state import ACTIVE

# How long to look for jobs that are left or whose answer was lost: longer than a job can be queued late.
CANCEL_SECONDS = 300.0
FIRST_LOOK_SECONDS = 1.0
LAST_LOOK_SECONDS = 30.0


def main() -> None:
    cancel_study(find_submitted_study(command_line().parse_args()), new_console())


def command_line() -> CommandLine:
    parser = CommandLine("unet-scaling cancel", __doc__)
    add_submitted_study(parser)
    return parser


def cancel_study(folder: Path, console: Console) -> None:
    """Cancel the jobs of this study until none is queued or running, and stop submissions of the study.

    Raises UserError, naming what is left.
    """
    untold = ""
    try:
        mark_cancelled(folder)
    except OSError as error:
        cure = "a submission that waits submits again: end it by Ctrl-C"
        untold = f"{folder} cannot be written: {error}; {cure}"
    cancelled: dict[str, str] = {}
    end = time.monotonic() + CANCEL_SECONDS
    pause = FIRST_LOOK_SECONDS
    try:
        while left := _live_jobs(folder):
            for token, (submission, job) in left.items():
                if token not in cancelled and not job:
                    console.print(f"{token}: Slurm's answer was lost; waiting for what it says")
                submission.get_scheduler().cancel(token)
                cancelled[token] = job or cancelled.get(token, "")
            if time.monotonic() > end:
                raise UserError(f"{folder.name}: not over yet, say it again: {', '.join(left)}")
            time.sleep(pause)
            pause = min(2 * pause, LAST_LOOK_SECONDS)
    except UnreachableError as error:
        told = f"{len(cancelled)} jobs cancelled" if cancelled else "no job was cancelled"
        raise UserError(f"{told}, Slurm does not answer: {error}") from None
    jobs = sorted(filter(None, cancelled.values()), key=lambda job: (len(job), job))
    console.print(f"{folder.name}: {len(jobs)} jobs cancelled {' '.join(jobs)}".rstrip())
    if untold:
        raise UserError(untold)


def _live_jobs(folder: Path) -> dict[str, tuple[Submission, str]]:
    """Return by name the submission and id, if known, of each job that may live and was not told to end."""
    submissions = read_submissions(folder)
    live = {}
    for run_folder, state, job in find_states(submissions):
        submission = submissions[run_folder]
        if submission is None or job is None or is_over(job.state) or job.state in (GONE, "COMPLETING"):
            continue
        if job.state != UNCLEAR or state.state in ACTIVE:
            live[job.name or submission.token] = (submission, job.job or submission.job or "")
    return live
