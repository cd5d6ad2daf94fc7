"""Write the report of a study again whenever a record has changed, until all its runs are complete."""

import time
from dataclasses import dataclass
from pathlib import Path

from analysis.findings.precision import decide
from analysis.loading.load import load_study
from analysis.report.assemble import Report, make_report
from analysis.report.files import PAGE_NAME, write_report
from analysis.report.refresh import without_refresh
from unet_scaling.study.errors import EXIT_OK
from unet_scaling.study.files import READABLE, write_atomically
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

    Ends with 0 when all runs are complete and no repeat is to come, or at Ctrl-C; the last report stays.
    """
    print(f"writing {folder / PAGE_NAME} whenever a record changes; Ctrl-C ends this, and keeps the report")
    watched = Watched(study, folder, seconds)
    try:
        while not watched.is_over():
            time.sleep(seconds)
    except KeyboardInterrupt:
        print("ended; the report stays as it is")
    finally:
        _stop_refreshing(folder / PAGE_NAME)
    return EXIT_OK


@dataclass
class Watched:
    """A study whose report is kept up to date; `seen` are its files as of the last report."""

    study: Path
    folder: Path
    seconds: int
    seen: Fingerprint | None = None

    def is_over(self) -> bool:
        """Write the report where a record has changed; return whether no further change is to come."""
        now = fingerprint(self.study)
        if now == self.seen:
            return False
        self.seen = now
        complete, runs = _progress(self.study)
        loaded = load_study(self.study)
        if loaded.subject.runs.empty:
            self._say(f"{complete} of {count(runs, 'run')} complete; no report without one")
            return False
        report = make_report(loaded)
        over = complete == runs and not _asks_for_more(report)
        write_report(report, self.folder, refresh_seconds=0 if over else self.seconds)
        self._say(f"{complete} of {count(runs, 'run')} complete; report written")
        return over

    def _say(self, text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def fingerprint(study: Path) -> Fingerprint:
    """Return what changes when a record, or the study itself, does."""
    facts = [(path, path.stat()) for pattern in WATCHED for path in study.glob(pattern)]
    return frozenset((str(path), stat.st_size, stat.st_mtime_ns) for path, stat in facts)


def _progress(study: Path) -> tuple[int, int]:
    """Return how many runs of the study are complete, and how many it has."""
    recorded = recorded_study(study)
    folders = [study / config.run for config in recorded.configs()] if recorded else list_run_folders(study)
    return sum(run_state(folder).is_complete for folder in folders), len(folders)


def _asks_for_more(report: Report) -> bool:
    """Return whether the study will get a further repeat, as its intervals are still too wide."""
    until = report.study.until
    return until is not None and decide(report.study, report.comparisons, until).goes_on


def _stop_refreshing(page: Path) -> None:
    if page.exists():
        content = page.read_bytes()
        still = without_refresh(content)
        if still != content:
            write_atomically(page, still, READABLE)
