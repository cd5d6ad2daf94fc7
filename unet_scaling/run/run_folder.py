"""The folder of a run: what to train is read from it, what happened is written into it.

config.json                    what to train; written by the submission
run.jsonl                     the record of the newest attempt
run.attempt1.jsonl, ...       records of earlier attempts that did not finish
error.attempt1.worker0.json   why a worker of an attempt failed
steps.parquet                 the phases of single steps; of a run whose budget was on
checkpoint-*.pt               from which the next attempt goes on; of a run that is not complete
log.csv  weights.pt           the older study's log, the trained weights; of a complete run
pictures.json                 of the first test images, with what was predicted; of a complete run
*.sha256                      of the steps, checkpoints and weights beside it
"""

import argparse
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from unet_scaling.group.facts import speed_variables
from unet_scaling.group.group import Group
from unet_scaling.group.watchdog import start_watchdog, thread_ids
from unet_scaling.run.failure import abort_after_timeout, abort_worker, reporting_errors
from unet_scaling.run.run_claim import OWNER_NAME, RunClaim
from unet_scaling.run.safe_points import Interruption
from unet_scaling.run.weights import WEIGHTS_NAME
from unet_scaling.study.command_line import LAUNCH_HINT
from unet_scaling.study.config import RunConfig
from unet_scaling.study.dilation import dilated
from unet_scaling.study.errors import EXIT_BAD_DATA, UserError, report_name
from unet_scaling.study.files import remove_unfinished
from unet_scaling.study.measurements import STEPS_NAME
from unet_scaling.study.record import (
    RECORD_NAME,
    RecordWriter,
    attempt_records,
    read_record,
    set_record_aside,
)
from unet_scaling.study.record_lines import PICTURES_NAME
from unet_scaling.study.study_file import CHECKPOINTS, LOG_NAME, config_path, read_config

CLAIM_POLL_SECONDS = 1.0


@dataclass(frozen=True)
class RunFolder:
    """A run that may start: its folder, its configuration, and the number of this attempt (from 1).

    `threads` are those of the process before it joins its group: what the group adds carries gradients.
    `environment` are the variables that decide speed before the framework sets those of its options.
    """

    path: Path
    config: RunConfig
    attempt: int
    threads: frozenset[int] = field(default_factory=thread_ids)
    environment: dict[str, str] = field(default_factory=speed_variables)
    opened: float = field(default_factory=time.perf_counter)
    interruption: Interruption = field(default_factory=Interruption)


@contextmanager
def open_run(description: str) -> Iterator[RunFolder]:
    """Yield the run folder that the command line names; an error inside is reported in the folder.

    Raises UserError where there is nothing to train, or where anyone may write into the folder.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "run_folder", type=Path, help=f"folder with a config.json, as {LAUNCH_HINT} makes them"
    )
    path: Path = parser.parse_args().run_folder
    config = read_config(config_path(path))
    attempt = _next_attempt(path)
    interruption = Interruption()
    interruption.listen(partial(abort_worker, path, config, attempt))
    run = RunFolder(path, config, attempt, interruption=interruption)
    if config.workers > 1:
        limit_seconds = dilated(config.training.timeout_seconds)
        start_watchdog(limit_seconds, partial(abort_after_timeout, path, config, attempt))
    with reporting_errors(path, config, run.attempt):
        yield run


def _next_attempt(path: Path) -> int:
    """Return the number of the attempt that may start here, from 1; UserError where none may."""
    if path.stat().st_mode & stat.S_IWOTH:
        raise UserError(f"{path} may be written by anyone: chmod o-w {path}")
    record = path / RECORD_NAME
    is_complete = False
    try:
        is_complete = read_record(record).complete
    except FileNotFoundError:
        pass
    except OSError as error:
        cure = "move it away, or use another run folder"
        raise UserError(f"{record} cannot be read: {error.strerror}; {cure}", EXIT_BAD_DATA) from None
    if is_complete:
        raise UserError(f"{record} is complete; a completed run is never touched. Use another run folder")
    return len(attempt_records(path)) + record.exists() + 1


def take_run_folder(run: RunFolder, group: Group, claim: RunClaim) -> None:
    """Make the run folder this attempt's; UserError on every worker where another attempt is alive.

    Worker 0 claims; all workers return from each try together, so that none is blocked beyond its time-out.
    """
    printed = ""
    while True:
        own = group.run_on_all(lambda: _try_to_take(run, claim) if group.rank == 0 else "")
        owner = group.gather_strings(own)[0]
        if not owner:
            return
        if group.rank == 0 and owner != printed:
            print(f"waiting for the end of an earlier attempt: {owner}", flush=True)
        printed = owner
        time.sleep(CLAIM_POLL_SECONDS)


def _try_to_take(run: RunFolder, claim: RunClaim) -> str:
    """Return the owner whose end is waited for; empty where the folder is this attempt's."""
    try:
        owner = claim.try_to_take()
        if not owner:
            # Reports of an attempt of this number that was refused would explain how this one ends.
            for path in run.path.glob(report_name(run.attempt, "*")):
                path.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"the run folder cannot be claimed: {error}") from None
    return owner


def new_record(run: RunFolder) -> RecordWriter:
    """Return the writer of this attempt's record; that of the attempt before is set aside.

    Raises UserError where it cannot be written, and where another attempt began meanwhile.
    """
    record = run.path / RECORD_NAME
    try:
        begun = len(attempt_records(run.path)) + record.exists()
        if begun + 1 != run.attempt or (record.exists() and read_record(record).complete):
            raise UserError(f"{run.path}: another attempt began while this one started; start it again")
        # What killed workers of earlier attempts were writing: the largest, a checkpoint, may fill a quota.
        reports = report_name("*", "*")
        for names in (CHECKPOINTS, STEPS_NAME, WEIGHTS_NAME, LOG_NAME, PICTURES_NAME, OWNER_NAME, reports):
            remove_unfinished(run.path, names)
        if record.exists():
            set_record_aside(run.path)
        return RecordWriter(record)
    except OSError as error:
        raise UserError(f"the record cannot be written: {error}") from None
