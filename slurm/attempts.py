"""Decide how often a run is tried again: as long as attempts gain something, and a few times without."""

from pathlib import Path

from unet_scaling.study.record import RECORD_NAME, Record, attempt_records, read_record

# Not one, as a node or a file server may fail twice in a row.
MOST_FRUITLESS = 3
MOST_ATTEMPTS = 50


def may_be_tried_again(folder: Path, submissions: int = 0, earlier: int = 0) -> bool:
    """Return whether another attempt makes sense; `submissions` counts those that may have left no record.

    The first `earlier` attempts of the folder belong to a launch before, and do not count.
    """
    gains = gained(folder, earlier)
    attempts = max(submissions, len(gains))
    return attempts < MOST_ATTEMPTS and attempts - sum(gains) < MOST_FRUITLESS


def gained(folder: Path, earlier: int = 0) -> list[bool]:
    """Return for each attempt that left a record, in order, whether it got further than all before it."""
    gains = []
    furthest = (0, 0, 0)
    for path in [*attempt_records(folder), folder / RECORD_NAME][earlier:]:
        if path.exists():
            reached = _reached(read_record(path))
            gains.append(reached > furthest)
            furthest = max(furthest, reached)
    return gains


def _reached(record: Record) -> tuple[int, int, int]:
    """Return (epoch, step, step of the saliency maps) up to which an attempt is known to have come."""
    recorded = (len(record.epochs), 0, 0)
    if record.end is None or record.end.position is None:
        return recorded
    return max(recorded, (*record.end.position, record.end.explained or 0))
