"""Decide which complete launches are made again because other programs or a stall disturbed them."""

from pathlib import Path

from rich.console import Console

from unet_scaling.study.disturbance import disturbance
from unet_scaling.study.record import DISTURBED_RECORDS, disturbed_records, set_launch_aside
from unet_scaling.study.run_state import RecordedRun

# A machine that stays busy disturbs each further launch as well: then more of them only cost time.
MOST_DISTURBED = 2


def disturbed_reason(run: RecordedRun) -> str:
    """Return why a complete run counts as disturbed; empty where it does not, or is not complete.

    One whose epochs all follow a start or a resume counts: each warms up, and none is timed. Not one that
    plays workers: no second of it counts, and its IoU does not depend on other programs.
    """
    if run.config.is_played or run.record is None or not run.record.complete:
        return ""
    if run.record.epochs and all(epoch.warmup for epoch in run.record.epochs):
        return "interrupted so often that each epoch warms up, and none is timed"
    return disturbance(run.record).reason


def is_to_be_repeated(run: RecordedRun, console: Console) -> bool:
    """Return whether a disturbed run is launched again; print why, or that it was often enough."""
    reason = disturbed_reason(run)
    if not reason:
        return False
    repeated = len(disturbed_records(run.folder)) < MOST_DISTURBED
    if repeated:
        outcome = f"launched again; its record is kept as {DISTURBED_RECORDS}"
    else:
        outcome = "disturbed again and again; it stays as it is, and the report says so"
    console.print(f"{run.config.run}: {reason}; {outcome}", markup=False)
    return repeated


def set_disturbed_aside(folder: Path) -> Path:
    """Keep record and maps of a disturbed launch under a name that says so; its run is launched again."""
    return set_launch_aside(folder, f"disturbed{len(disturbed_records(folder)) + 1}")
