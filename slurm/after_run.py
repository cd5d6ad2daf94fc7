"""Print the state of a run by its record, and requeue its job: the last line of a job script.

  python -m slurm.after_run RUN_FOLDER [--requeue]

Ends with 0 for a complete run, 70 for a diverged one, 75 for one that stopped in order and is not
started again from here (slurm/submission.sh will), and 1 for a failed one.
"""

import argparse
import os
from contextlib import suppress
from pathlib import Path

from slurm.attempts import may_be_tried_again
from slurm.scheduler import Slurm, UnreachableError
from slurm.submissions import Submission, read_submission
from unet_scaling.study.errors import (
    EXIT_BUG,
    EXIT_DIVERGED,
    EXIT_OK,
    EXIT_RESUME,
    UserError,
    run_program,
)
from unet_scaling.study.run_state import State, run_state

EXIT_CODES: dict[State, int] = {"complete": EXIT_OK, "diverged": EXIT_DIVERGED, "resumable": EXIT_RESUME}


def main() -> int:
    arguments = _arguments()
    state = run_state(arguments.run_folder)
    code = EXIT_CODES.get(state.state, EXIT_BUG)
    _print(f"run {arguments.run_folder.name}: {state.state} {state.reason}".rstrip())
    # An attempt that dies before it opens its record leaves the one before: Slurm's count has it too.
    starts = int(os.environ.get("SLURM_RESTART_COUNT") or 0) + 1
    if code == EXIT_RESUME and arguments.requeue:
        submission = _submission(arguments.run_folder)
        if may_be_tried_again(arguments.run_folder, starts, submission.earlier if submission else 0):
            kept = tuple(submission.keep_variables) if submission else ()
            _print(_requeue(Slurm(keep=kept), os.environ.get("SLURM_JOB_ID", "")))
    return code


def _submission(folder: Path) -> Submission | None:
    try:
        return read_submission(folder)
    except UserError:  # a damaged file is no reason not to start the run again
        return None


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m slurm.after_run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run_folder", type=Path)
    parser.add_argument("--requeue", action="store_true", help="ask Slurm to start this very job again")
    return parser.parse_args()


def _print(text: str) -> None:
    """Print into the job's log; its disk may be full, which is no reason not to start the run again."""
    with suppress(OSError):
        print(text, flush=True)


def _requeue(slurm: Slurm, job: str) -> str:
    """Ask for the job to start again, a few times where Slurm is away; return the outcome."""
    try:
        slurm.requeue(job)
    except (UserError, UnreachableError) as error:  # a site may not allow it
        return f"not requeued: {error}"
    return f"job {job} is requeued"


if __name__ == "__main__":
    run_program(main)
