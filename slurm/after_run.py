"""The last line of a job script: say by the record what the run has come to, and start the job again.

  python -m slurm.after_run RUN_FOLDER [--requeue]

Ends with 0 for a complete run, 70 for a diverged one, 75 for one that stopped in order and is not
started again from here (slurm/submission.sh will), and 1 for a failed one.
"""

import argparse
import os
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from slurm.attempts import may_be_tried_again
from slurm.scheduler import CALL_SECONDS, UNCLEAR
from slurm.study_folder import run_state
from unet_scaling.study.errors import EXIT_BUG, EXIT_DIVERGED, EXIT_OK, EXIT_RESUME, run_program

EXIT_CODES = {"complete": EXIT_OK, "diverged": EXIT_DIVERGED, "stopped": EXIT_RESUME}
# A controller that is restarted is away for some seconds.
PAUSES_SECONDS = (2, 5, 10, 20)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m slurm.after_run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run_folder", type=Path)
    parser.add_argument("--requeue", action="store_true", help="ask Slurm to start this very job again")
    arguments = parser.parse_args()
    state = run_state(arguments.run_folder)
    _say(f"run {arguments.run_folder.name}: {state.state} {state.reason}".rstrip())
    # An attempt that dies before it opens its record leaves the one before: Slurm's count has it too.
    starts = int(os.environ.get("SLURM_RESTART_COUNT") or 0) + 1
    again = arguments.requeue and may_be_tried_again(arguments.run_folder, starts)
    if state.state == "stopped" and again:
        _say(_requeue(os.environ.get("SLURM_JOB_ID", "")))
    return EXIT_CODES.get(state.state, EXIT_BUG)


def _say(text: str) -> None:
    """Into the job's log, whose disk may be full: no reason not to start the run again."""
    with suppress(OSError):
        print(text, flush=True)


def _requeue(job: str) -> str:
    """Ask for the job to start again, a few times where Slurm is away; say what became of that."""
    refusal = _refusal_to_requeue(job)
    for pause in PAUSES_SECONDS:
        if not any(text in refusal for text in UNCLEAR):
            break
        time.sleep(pause)
        refusal = _refusal_to_requeue(job)
    return f"not requeued: {refusal}" if refusal else f"job {job} is requeued"


def _refusal_to_requeue(job: str) -> str:
    """Empty, or why Slurm does not start the job again: a site may not allow it."""
    try:
        done = subprocess.run(
            ["scontrol", "requeue", job], capture_output=True, text=True, timeout=CALL_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return (done.stderr.strip() or f"code {done.returncode}") if done.returncode else ""


if __name__ == "__main__":
    run_program(main)
