"""Read a study, write its report and print it: what the command line asks for, once it is understood."""

import argparse
import gc
import time
from dataclasses import replace
from pathlib import Path

from analysis.csv_table import load_csv
from analysis.findings.precision import decide
from analysis.load import load_study
from analysis.older import arm_names, epoch_work, load_reference
from analysis.report.assemble import make_report
from analysis.report.console import print_left_out, print_report, report_console
from analysis.report.files import PAGE_NAME, write_report
from analysis.study import Study, names_of
from unet_scaling.study.errors import EXIT_BAD_DATA, EXIT_OK, UserError
from unet_scaling.study.record import RECORD_NAME
from unet_scaling.study.repeats import REPEATS_NAME
from unet_scaling.study.run_state import run_state
from unet_scaling.study.study_file import STUDY_NAME, list_run_folders, recorded_study
from unet_scaling.study.texts import count

# A change of these makes another report.
WATCHED = (STUDY_NAME, REPEATS_NAME, f"*/{RECORD_NAME}")


def report_records(options: argparse.Namespace) -> int:
    """Report on the records of a study, with --watch again and again."""
    source: Path = options.study
    if options.watch:
        return watch(source, options.output or source / "report", options.watch)
    return _report(load_study(source), source, options.output)


def report_reference(options: argparse.Namespace) -> int:
    """Report on logs in the older layout."""
    names = names_of() if options.names is None else arm_names(options.names)
    work = epoch_work(options.images, options.batch)
    study = load_reference(options.reference, work, names)
    return _report(study, options.reference, options.output)


def report_csv(options: argparse.Namespace) -> int:
    """Report on a table of the user's."""
    study = load_csv(options.csv, dict(options.column), options.weak)
    return _report(study, Path(), options.output)


def _report(study: Study, source: Path, output: Path | None) -> int:
    if study.subject.runs.empty:
        print_left_out(study, report_console())
        raise UserError(f"{source} has no usable run; the reasons are listed above", EXIT_BAD_DATA)
    # The study stays until the end: no search for garbage, in any process, needs to visit it.
    gc.freeze()
    folder = output or source / "report"
    report = make_report(replace(study, output=folder))
    try:
        write_report(report, folder)
    except OSError as error:
        raise UserError(f"the report cannot be written to {folder}: {error}; try --output") from None
    print_report(report, folder=folder)
    print(f"\nreport: {folder}")
    return EXIT_OK


def watch(study: Path, folder: Path, seconds: int) -> int:
    """Write the report again whenever a record has changed, looking every so many seconds.

    Ends with 0 when no further change is to come, or at Ctrl-C; the last report stays.
    """
    print(f"writing {folder / PAGE_NAME} whenever a record changes; Ctrl-C ends this, and keeps the report")
    seen = None
    try:
        while True:
            stats = [path.stat() for pattern in WATCHED for path in sorted(study.glob(pattern))]
            now = [(each.st_size, each.st_mtime_ns) for each in stats]
            if now != seen and no_more_to_come(study, folder):
                return EXIT_OK
            seen = now
            time.sleep(seconds)
    except KeyboardInterrupt:
        print("ended; the report stays as it is")
    return EXIT_OK


def no_more_to_come(study: Path, folder: Path) -> bool:
    """Write the report as of now; return whether every run has ended and no repeat is to come."""
    recorded = recorded_study(study)
    folders = [study / each.run for each in recorded.configs()] if recorded else []
    states = [run_state(each).state for each in folders or list_run_folders(study)]
    loaded = load_study(study)
    report = make_report(replace(loaded, output=folder)) if len(loaded.subject.runs) else None
    if report:
        write_report(report, folder)
    complete = states.count("complete")
    written = "report written" if report else "no report without one"
    progress = f"{complete} of {count(len(states), 'run')} complete"
    print(f"{time.strftime('%H:%M:%S')} {progress}; {written}", flush=True)
    if complete < len(states):
        # No repeat is added to a study with a run that diverged, nor can that run change.
        return set(states) <= {"complete", "diverged"}
    until = loaded.until
    return report is None or until is None or not decide(report.study, report.comparisons, until).goes_on
