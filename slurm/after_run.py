"""Decide what follows a run that has ended: a requeue, another attempt, or a launch of a disturbed one again.

  python -m slurm.after_run RUN_FOLDER [--requeue]

is the last line of a job script: it prints the state of the run by its record. It ends with 0 for a complete
run, 70 for a diverged one, 75 for one that stopped in order and is not started again from here, and 1 for a
failed one.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from slurm.scheduler import get_scheduler
from slurm.scheduler.protocol import UnreachableError
from slurm.submissions import read_submission
from unet_scaling.base.command_line import CommandLine
from unet_scaling.base.errors import EXIT_BUG, EXIT_DIVERGED, EXIT_OK, EXIT_RESUME, UserError, run_program
from unet_scaling.base.texts import count
from unet_scaling.format.disturbance import MOST_DISTURBED, disturbance
from unet_scaling.format.record import (
    DISTURBED_RECORDS,
    RECORD_NAME,
    attempt_records,
    disturbed_records,
    read_any_record,
    set_launch_aside,
)
from unet_scaling.format.run_state import RecordedRun, State, run_state

EXIT_CODES: dict[State, int] = {"complete": EXIT_OK, "diverged": EXIT_DIVERGED, "resumable": EXIT_RESUME}
# A node or a file server may fail twice in a row.
MOST_FRUITLESS = 3
MOST_ATTEMPTS = 50


def main() -> int:
    parser = CommandLine("python -m slurm.after_run", __doc__)
    parser.add_argument("run_folder", type=Path)
    parser.add_argument("--requeue", action="store_true", help="ask Slurm to start this very job again")
    arguments = parser.parse_args()
    folder: Path = arguments.run_folder
    state = run_state(folder)
    code = EXIT_CODES.get(state.state, EXIT_BUG)
    _print(f"run {folder.name}: {state.state} {state.reason}".rstrip())
    if code != EXIT_RESUME or not arguments.requeue:
        return code
    try:
        submission = read_submission(folder)
    except UserError:  # a damaged file is no reason not to start the run again
        submission = None
    # Within a job the scheduler asks the job's own cluster, so that none is named.
    scheduler = get_scheduler()
    if submission:
        scheduler = get_scheduler(submission.scheduler, keep_variables=submission.keep_variables)
    job, restarts = scheduler.this_job()
    # The count of starts includes attempts that died before they opened a record of their own.
    if may_be_tried_again(folder, restarts + 1, submission.earlier if submission else 0):
        try:
            scheduler.requeue(job)
        except (UserError, UnreachableError) as error:  # a site may not allow it
            _print(f"not requeued: {error}")
        else:
            _print(f"job {job} is requeued")
    return code


def _print(text: str) -> None:
    """Print into the job's log; its disk may be full, which is no reason not to start the run again."""
    with suppress(OSError):
        print(text, flush=True)


def may_be_tried_again(folder: Path, submissions: int = 0, earlier: int = 0) -> bool:
    """Return whether another attempt makes sense, by how far those before came.

    `submissions` also counts attempts that left no record. The first `earlier` attempts of the folder do not
    count, as they are of a launch before.
    """
    gains = list_gains(folder, earlier)
    attempts = max(submissions, len(gains))
    return attempts < MOST_ATTEMPTS and attempts - sum(gains) < MOST_FRUITLESS


def list_gains(folder: Path, earlier: int = 0) -> list[bool]:
    """Return for each attempt that left a record, in order, whether it got further than all before it."""
    gains = []
    furthest = (0, 0, 0)
    for path in [*attempt_records(folder), folder / RECORD_NAME][earlier:]:
        if path.exists():
            record = read_any_record(path)
            # (epoch, step, step of the saliency maps) up to which it is known to have come.
            reached = (len(record.epochs), 0, 0)
            if record.end and record.end.position:
                reached = max(reached, (*record.end.position, record.end.explained or 0))
            gains.append(reached > furthest)
            furthest = max(furthest, reached)
    return gains


def explain_disturbance(run: RecordedRun) -> str:
    """Return why a complete run counts as disturbed; empty where it does not, or is not complete.

    A run of which each epoch warms up counts as disturbed, too: none of its epochs is timed. A run that plays
    workers never does: its seconds do not count, and its IoU does not depend on other programs.
    """
    if run.config.is_played or run.record is None or not run.record.complete:
        return ""
    if run.record.epochs and all(epoch.warmup for epoch in run.record.epochs):
        return "interrupted so often that each epoch warms up, and none is timed"
    return disturbance(run.record).reason


def is_to_be_repeated(run: RecordedRun, console: Console) -> bool:
    """Return whether a complete run is launched again because it was disturbed; print the decision."""
    reason = explain_disturbance(run)
    if not reason:
        return False
    repeated = len(disturbed_records(run.folder)) < MOST_DISTURBED
    if repeated:
        outcome = f"will be launched again; its record is kept as {DISTURBED_RECORDS}"
    else:
        outcome = "disturbed again and again; it stays as it is, and the report says so"
    console.print(f"{run.config.run}: {reason}; {outcome}")
    return repeated


@dataclass
class RepeatedLaunches:
    """How many launches one `run` may still make again for being disturbed: it ends on a busy machine, too.

    At first as many as one repeat of the study has. None any more once all launches of a repeat, of several,
    were disturbed: what goes on that long would disturb further ones as well. `cure` is the command that
    measures on a quiet machine what was left as it is.
    """

    left: int
    cure: str
    _is_told: bool = field(default=False, init=False)

    def choose(self, block: Sequence[RecordedRun], console: Console) -> list[RecordedRun]:
        """Return the launches of a repeat to launch again; print once from when on disturbed ones stay."""
        disturbed = [run for run in block if explain_disturbance(run)]
        all_were = len(disturbed) == len(block) > 1
        if all_were:
            self.left = 0
        chosen = [run for run in disturbed[: self.left] if is_to_be_repeated(run, console)]
        if len(disturbed) > self.left and not self._is_told:
            self._is_told = True
            seen = "as many launches as one repeat has were made again for being disturbed"
            if all_were:
                why = explain_disturbance(disturbed[0])
                seen = f"all {count(len(block), 'launch')} of a repeat were disturbed, such as: {why}"
            console.print(
                f"the machine is busy: {seen}; from here on, disturbed ones stay as they are; "
                f"on a quiet machine, {self.cure} measures them anew"
            )
        self.left -= len(chosen)
        return chosen


def set_disturbed_aside(folder: Path) -> Path:
    """Rename record and maps of a disturbed launch, so that the run can be launched again."""
    return set_launch_aside(folder, f"disturbed{len(disturbed_records(folder)) + 1}")


if __name__ == "__main__":
    run_program(main)
