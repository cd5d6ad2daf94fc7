"""The start of an attempt in its run folder: claim it, clear what earlier attempts left, begin the record."""

import time

from unet_scaling.group.group import Group
from unet_scaling.run.run_claim import OWNER_NAME, RunClaim
from unet_scaling.run.run_folder import RunFolder
from unet_scaling.run.weights import WEIGHTS_NAME
from unet_scaling.study.errors import UserError, report_name
from unet_scaling.study.files import remove_unfinished
from unet_scaling.study.measurements import STEPS_NAME
from unet_scaling.study.record import (
    RECORD_NAME,
    RecordWriter,
    earlier_attempts,
    read_record,
    set_record_aside,
)
from unet_scaling.study.study_file import CHECKPOINTS, LOG_NAME

CLAIM_POLL_SECONDS = 1.0


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
        _require_same_attempt(run)
        _remove_unfinished(run)
        if record.exists():
            set_record_aside(run.path)
        return RecordWriter(record)
    except OSError as error:
        raise UserError(f"the record cannot be written: {error}") from None


def _require_same_attempt(run: RunFolder) -> None:
    """Raise UserError where another attempt began, or even ended, while this one was starting."""
    record = run.path / RECORD_NAME
    begun = earlier_attempts(run.path) + record.exists()
    if begun + 1 != run.attempt or (record.exists() and read_record(record).complete):
        raise UserError(f"{run.path}: another attempt began while this one started; start it again")


def _remove_unfinished(run: RunFolder) -> None:
    # What killed workers of earlier attempts were writing: the largest, a checkpoint, may fill a quota.
    reports = report_name("*", "*")
    for names in (CHECKPOINTS, STEPS_NAME, WEIGHTS_NAME, LOG_NAME, OWNER_NAME, reports):
        remove_unfinished(run.path, names)
