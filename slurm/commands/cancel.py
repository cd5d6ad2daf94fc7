"""End the jobs of a study that are queued or running, and no others; submissions that wait stop."""

import time
from pathlib import Path

from rich.console import Console

from slurm.commands.options import add_submitted_study, find_submitted_study, new_console
from slurm.launch.study_folder import mark_cancelled
from slurm.scheduler.protocol import ELSEWHERE, GONE, UNCLEAR, Scheduler, UnreachableError, is_over
from slurm.states import KnownJobs, find_states
from slurm.submissions import read_submission
from unet_scaling.base.command_line import CommandLine
from unet_scaling.base.errors import EXIT_RESUME, UserError, reason_of
from unet_scaling.format.run_state import ACTIVE
from unet_scaling.study.study_file import list_run_folders, recorded_study

# How long to look for jobs that are left or whose answer was lost: longer than a job can be queued late.
CANCEL_SECONDS = 300.0
FIRST_LOOK_SECONDS = 1.0
LAST_LOOK_SECONDS = 30.0


def main() -> None:
    study = find_submitted_study(command_line().parse_args(), "there is nothing to cancel")
    cancel_study(study, new_console())


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
        untold = f"{folder} cannot be written: {reason_of(error)}; {cure}"
    cancelled: dict[str, str] = {}
    end = time.monotonic() + CANCEL_SECONDS
    pause = FIRST_LOOK_SECONDS
    try:
        while True:
            left, elsewhere = _live_jobs(folder)
            if not left:
                break
            for token, (scheduler, job) in left.items():
                if token not in cancelled and not job:
                    console.print(f"{token}: Slurm's answer was lost; waiting for what it says")
                scheduler.cancel(token)
                cancelled[token] = job or cancelled.get(token, "")
            if time.monotonic() > end:
                raise UserError(f"{folder.name}: not over yet, say it again: {', '.join(left)}")
            time.sleep(pause)
            pause = min(2 * pause, LAST_LOOK_SECONDS)
    except UnreachableError as error:
        told = f"{len(cancelled)} jobs cancelled" if cancelled else "no job was cancelled"
        raise UserError(f"{told}, Slurm does not answer: {error}", EXIT_RESUME) from None
    jobs = sorted(filter(None, cancelled.values()), key=lambda job: (len(job), job))
    console.print(f"{folder.name}: {len(jobs)} jobs cancelled {' '.join(jobs)}".rstrip())
    if elsewhere:
        raise UserError("\n  ".join(["not cancelled:", *elsewhere]), EXIT_RESUME)
    if untold:
        raise UserError(untold)


def _live_jobs(folder: Path) -> tuple[dict[str, tuple[Scheduler, str]], list[str]]:
    """Return by name the scheduler and id, if known, of each job that may live and was not told to end.

    And a line for each run whose job is one of another cluster. Raises UnreachableError where Slurm does not
    say whether a run has a job of which no submission is known, and nothing else is left to cancel.
    """
    study = recorded_study(folder)
    names = [path.name for path in list_run_folders(folder)] + (study.run_names() if study else [])
    submissions = {folder / name: read_submission(folder / name) for name in names}
    known = KnownJobs(submissions, is_cancelling=True)
    if known.is_local and known.silence:
        raise UnreachableError(known.silence)
    live = {}
    elsewhere = []
    silence = ""
    for run_folder, state, jobs in find_states(submissions, known=known):
        submission = submissions[run_folder]
        for job in jobs:
            if job.state == ELSEWHERE and state.state in ACTIVE:
                elsewhere.append(f"{run_folder.name}: {state.reason}")
            if is_over(job.state) or job.state in (GONE, ELSEWHERE, "COMPLETING"):
                continue
            if job.state == UNCLEAR and state.state not in ACTIVE:
                continue
            if not (submission or job.job):
                silence = job.reason
                continue
            token = job.name or (submission.token if submission else "")
            noted = submission.job if submission and submission.token == token else None
            live[token] = (known.scheduler_of(job, submission), job.job or noted or "")
    if silence and not live:
        raise UnreachableError(silence)
    return live, elsewhere
