"""Write the report of a study again whenever a record has changed, until all its runs have ended."""

import time
from dataclasses import dataclass
from pathlib import Path

from analysis.findings.precision import decide
from analysis.load import load_study
from analysis.report.assemble import Report, make_report
from analysis.report.files import PAGE_NAME, write_report
from unet_scaling.study.errors import EXIT_OK
from unet_scaling.study.record import RECORD_NAME
from unet_scaling.study.repeats import REPEATS_NAME
from unet_scaling.study.run_state import run_state
from unet_scaling.study.study_file import STUDY_NAME, list_run_folders, recorded_study
from unet_scaling.study.texts import count

# A change of these makes another report.
WATCHED = (STUDY_NAME, REPEATS_NAME, f"*/{RECORD_NAME}")

# Path, size and time of the last change of each file that is watched.
Fingerprint = frozenset[tuple[str, int, int]]


def watch(study: Path, folder: Path, seconds: int) -> int:
    """Keep the report in `folder` that of the study, looking at its records every so many seconds.

    Ends with 0 when every run is complete or diverged and no repeat is to come, or at Ctrl-C; the last report
    stays.
    """
    print(f"writing {folder / PAGE_NAME} whenever a record changes; Ctrl-C ends this, and keeps the report")
    watched = Watched(study, folder)
    try:
        while not watched.is_over():
            time.sleep(seconds)
    except KeyboardInterrupt:
        print("ended; the report stays as it is")
    return EXIT_OK


@dataclass
class Watched:
    """A study whose report is kept up to date; `seen` are its files as of the last report."""

    study: Path
    folder: Path
    seen: Fingerprint | None = None

    def is_over(self) -> bool:
        """Write the report where a record has changed; return whether no further change is to come."""
        now = fingerprint(self.study)
        if now == self.seen:
            return False
        self.seen = now
        recorded = recorded_study(self.study)
        folders = [self.study / each.run for each in recorded.configs()] if recorded else []
        states = [run_state(folder).state for folder in folders or list_run_folders(self.study)]
        loaded = load_study(self.study)
        report = make_report(loaded) if len(loaded.subject.runs) else None
        if report:
            write_report(report, self.folder)
        complete = states.count("complete")
        written = "report written" if report else "no report without one"
        progress = f"{complete} of {count(len(states), 'run')} complete"
        print(f"{time.strftime('%H:%M:%S')} {progress}; {written}", flush=True)
        if complete < len(states):
            # No repeat is added to a study with a run that diverged, nor can that run change.
            return set(states) <= {"complete", "diverged"}
        return report is None or not _asks_for_more(report)


def _asks_for_more(report: Report) -> bool:
    """Return whether the study will get a further repeat, as its intervals are still too wide."""
    until = report.study.until
    return until is not None and decide(report.study, report.comparisons, until).goes_on


def fingerprint(study: Path) -> Fingerprint:
    """Return what changes when a record, or the study itself, does."""
    facts = [(path, path.stat()) for pattern in WATCHED for path in study.glob(pattern)]
    return frozenset((str(path), stat.st_size, stat.st_mtime_ns) for path, stat in facts)
