"""Read a study, write its report and print it: what the command line asks for, once it is understood."""

import argparse
import gc
from pathlib import Path

from analysis.csv_table import load_csv
from analysis.load import load_study
from analysis.older import arm_names, epoch_work, load_reference
from analysis.report.assemble import make_report
from analysis.report.console import print_left_out, print_report, report_console
from analysis.report.files import write_report
from analysis.report.watch import watch
from analysis.study import Study, names_of
from unet_scaling.study.errors import EXIT_BAD_DATA, EXIT_OK, UserError


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
    report = make_report(study)
    folder = output or source / "report"
    try:
        write_report(report, folder)
    except OSError as error:
        raise UserError(f"the report cannot be written to {folder}: {error}; try --output") from None
    print_report(report, folder=folder)
    print(f"\nreport: {folder}")
    return EXIT_OK
