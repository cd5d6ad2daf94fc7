"""The facts of the attempts of a resumed run, also where its record is older than format 4."""

from pathlib import Path

from unet_scaling.study.record import read_record
from unet_scaling.study.record_lines import AttemptFacts, Header

START = (0, 0)


def with_earlier_attempts(header: Header, folder: Path) -> tuple[Header, bool]:
    """Return the header with the facts of every attempt that trained a part of it, and whether all are known.

    Older records have only the last attempt's. Those of the others stand in `run.attemptN.jsonl` beside
    it; one of them is not known where its file is missing or damaged.
    """
    if header.resumed is None or header.earlier:
        return header, True
    earlier: list[AttemptFacts] = []
    resumed_at = _start(header)
    known = True
    for number in range(header.attempt - 1, 0, -1):
        if resumed_at == START:
            break
        found, readable = _header(folder / f"run.attempt{number}.jsonl")
        known = known and readable
        # What began no earlier than the next attempt did has trained nothing that the next one kept.
        if found is not None and _start(found) < resumed_at:
            earlier.insert(0, found)
            resumed_at = _start(found)
    return header.model_copy(update={"earlier": earlier}), known and resumed_at == START


def _start(header: Header) -> tuple[int, int]:
    return (header.resumed.epoch, header.resumed.step) if header.resumed else START


def _header(path: Path) -> tuple[Header | None, bool]:
    """Return the header of an attempt and whether it is known; one that wrote none has trained nothing."""
    try:
        record = read_record(path)
    except OSError:
        return None, False
    return record.header, record.header is not None or not record.damaged
