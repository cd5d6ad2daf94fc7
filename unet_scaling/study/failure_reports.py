"""Reports of workers that failed: one JSON file per worker and attempt in the run folder."""

from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path

from unet_scaling.study.errors import WaitedTooLongError, report_name
from unet_scaling.study.files import read_json_with_checksum
from unet_scaling.study.validation import StrictModel

WAITED = WaitedTooLongError.__name__


class FailureReport(StrictModel):
    """The reason why a worker of an attempt failed; `during` names the part of the program."""

    attempt: int
    worker: int
    workers: int
    host: str
    utc: str
    error: str
    message: str
    during: str
    traceback: str


def failure_reason(folder: Path, after: int = 0) -> str:
    """Return the message of the first worker that failed in the newest attempt; empty where none left one.

    `after` leaves out the attempts up to that one.
    """
    try:
        reports = [_read(path) for path in sorted(folder.glob(report_name("*", "*")))]
    except (OSError, ValueError) as error:
        return f"a report of a worker that failed in {folder} cannot be read: {error}"
    newest = max((report.attempt for report in reports), default=0)
    if newest <= after:
        return ""
    return _reason_of_attempt([report for report in reports if report.attempt == newest])


def _reason_of_attempt(reports: Sequence[FailureReport]) -> str:
    first = min(reports, key=attrgetter("utc"))
    reason = f"worker {first.worker} on {first.host}: {first.message}"
    return reason + _without_report(reports) if first.error == WAITED else reason


def _read(path: Path) -> FailureReport:
    return FailureReport.model_validate(read_json_with_checksum(path))


def _without_report(reports: Sequence[FailureReport]) -> str:
    """Name the workers that did not report waiting too: one of them is what the others waited for.

    A worker that was stopped may still report its own end, which does not count here.
    """
    waited = {report.worker for report in reports if report.error == WAITED}
    others = sorted(set(range(reports[0].workers)) - waited)
    return f"; worker {', '.join(map(str, others))} did not report" if others else ""
