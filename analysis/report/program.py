"""Read a study, draw its figures, write its report and print it: what the command line asks for."""

import argparse
import gc
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table

from analysis.assembly.assemble import Report, make_report
from analysis.figures.catalogue import FIGURES
from analysis.figures.frame import Inputs
from analysis.figures.svg import DrawnFigure, picture
from analysis.judge.answer import study_file_name
from analysis.judge.decide import Kind
from analysis.read.load import load_study
from analysis.report.columns import TABLES, table_files
from analysis.report.exports import (
    answer_lines,
    export_files,
    played_short_columns,
    reproduction,
    speed_columns,
)
from analysis.report.index import write_index
from analysis.report.page import MAIN, report_page
from analysis.report.tables import Column, number_column
from analysis.study import Study, names_of
from analysis.text import clean, labelled
from unet_scaling.base.console import CleanConsole
from unet_scaling.base.errors import EXIT_BAD_DATA, EXIT_OK, UserError, or_user_error, required_module
from unet_scaling.base.files import READABLE, real_path, write_atomically
from unet_scaling.base.parallel import parallel_map
from unet_scaling.base.texts import called
from unet_scaling.format.known_studies import studies_table

PAGE_NAME = "report.html"
# What earlier versions wrote beside the page; removed, as it would be taken for what this version says.
FORMER_FILES = (
    "summary.tex", "epochs.parquet", "diagnosis.csv", "difference.csv", "network.csv", "fairness.csv",
    "left_out.csv", "evaluations.csv", "evaluation_scores.csv", "iou.csv", "iou_between_frameworks.csv",
    "cost.csv", *(f"{name}.png" for name in FIGURES),
)  # fmt: skip


def write_report(report: Report, folder: Path) -> list[Path]:
    """Write the report's files; the same study, in the same place, always gives the same bytes.

    The page comes last, so that what it names is there. Tables and figures of an earlier report that this
    one does not have are removed: they would be taken for its own. Raises UserError where they would be those
    of others, and OSError where the folder cannot be written; an earlier file is then still whole.
    """
    if folder.is_symlink():
        raise UserError(f"{folder} is a link; give --output {real_path(folder)}")
    started = draw_figures(report)
    contents = table_files(report) | export_files(report)
    subject = report.study.subject
    if again := reproduction(subject):
        contents[study_file_name(subject)] = again[0].encode()
    figures = by_section(report, started)
    for drawn in (drawn for of_section in figures.values() for drawn in of_section):
        contents[f"{drawn.name}.svg"] = drawn.svg
    contents[PAGE_NAME] = report_page(report, figures).encode()
    pictures = {f"{report.study.score.key(name)}.svg" for name in FIGURES}
    names = {table.name(report) for table in TABLES if table.is_file} | pictures
    claim_folder(folder, PAGE_NAME, names | contents.keys())
    for name, content in contents.items():
        write_atomically(folder / name, content, READABLE, durable=False)
    for name in {*names, *map(report.study.score.key, FORMER_FILES)} - contents.keys():
        (folder / name).unlink(missing_ok=True)
    return [folder / name for name in contents]


def claim_folder(folder: Path, page: str, names: Iterable[str]) -> None:
    """Make a folder for files of these names, with a page that stands for one that is not finished.

    Raises UserError where such files are there, and no page beside them: they are somebody's own.
    """
    if (folder / page).is_file():
        return
    if os.path.lexists(folder / page):
        raise UserError(f"{folder / page} is no file; name a folder of its own by --output")
    others = sorted(name for name in names if (folder / name).exists())
    if others:
        raise UserError(f"{folder} holds {others[0]}, and no {page}; name a folder of its own by --output")
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / page, "not finished: run the command again\n", READABLE, durable=False)


def draw_figures(report: Report) -> Iterable[DrawnFigure | None]:
    """Begin to draw all figures, and return those that the tables of the study allow."""
    return parallel_map(partial(_drawn, Inputs(report)), list(FIGURES))


def by_section(report: Report, figures: Iterable[DrawnFigure | None]) -> Mapping[str, Sequence[DrawnFigure]]:
    """Return the figures by the section of the page where they stand.

    On the first screen stands the speed-up with the IoU; of several sets of options, their ratios; of played
    runs only, their IoU.
    """
    inputs = Inputs(report)
    drawn = {name: each for each, name in zip(figures, FIGURES, strict=False) if each is not None}
    first = "ratio" if len(inputs.options) > 1 and "ratio" in drawn else "scaling"
    first = "quality" if inputs.study.runs.empty else first
    sections: dict[str, list[DrawnFigure]] = {}
    for name, each in drawn.items():
        sections.setdefault(MAIN if name == first else FIGURES[name].section, []).append(each)
    return sections


def _drawn(inputs: Inputs, name: str) -> DrawnFigure | None:
    """Draw a figure, if it can be: of played runs only the IoU is, of restricted studies the speed."""
    figure, study = FIGURES[name], inputs.study
    if figure.section in study.subject.kind.silent:
        return None
    charts = figure.known(inputs)
    if not charts:
        return None
    panels = [panel for group in zip(*(chart.panels() for chart in charts), strict=True) for panel in group]
    # Of one quantity in two panels the numbers are the same.
    alternative = " ".join(chart.alternative() for chart in {chart.y: chart for chart in charts}.values())
    return picture(panels, study.score.key(name), figure.caption(inputs, charts), alternative)


def report_study(options: argparse.Namespace) -> int:
    """Report on the records of a study, on older logs, or on a table."""
    if options.index:
        return _report_index(options.index)
    source: Path = options.study or options.reference or Path()
    folder = options.output or source / "report"
    if options.csv not in (None, "-") and real_path(Path(options.csv)).parent == real_path(folder):
        raise UserError(f"--output {folder} holds {options.csv} itself; name a folder of its own")
    if options.csv:
        tables = required_module("analysis.tables_of_others.csv_table", "report --csv")
        study: Study = tables.load_csv(options.csv, dict(options.column), options.work, dict(options.where))
    elif options.reference:
        logs = required_module("analysis.older_logs.logs", "report --reference")
        names = names_of() if options.names is None else logs.arm_names(options.names)
        study = logs.load_reference(source, logs.epoch_work(options.images, options.batch), names)
    else:
        study = load_study(source)
    if study.is_empty:
        print_left_out(study.all_left_out, report_console())
        further = f"; {called('status', source)} says which go on, and how" if options.study else ""
        reasons = f"{source} has no usable run; the reasons are listed above{further}"
        raise UserError(reasons, EXIT_BAD_DATA)
    # The study stays until the end: no search for garbage, in any process, needs to visit it.
    gc.freeze()
    report = make_report(replace(study, output=folder))
    with or_user_error(f"the report cannot be written to {folder}", "try --output"):
        write_report(report, folder)
    print_report(report, folder)
    print(f"\nreport: {folder}")
    return EXIT_OK


def _report_index(logs: Path) -> int:
    """Write one page over all studies, and list them."""
    with or_user_error(f"the page cannot be written to {logs}", "let it be written, or copy the folder"):
        path, rows = write_index(logs)
    report_console().print(studies_table(rows))
    print(f"\nindex: {path}")
    return EXIT_OK


# So wide that no number of the table is cut.
LEAST_WIDTH = 130
# What a terminal shows without scrolling far; the rest is in the files.
MOST_CONSOLE_ROWS = 60
MOST_LINES = 20
MOST_DIAGNOSES = 3
MOST_PRINTED = 4
ANSWER_STYLES: Mapping[Kind, str] = {
    "scale": "green", "stay": "cyan", "speed": "cyan", "undecided": "yellow", "unfair": "red",
    "played": "cyan", "script": "cyan", "maps": "cyan",
}  # fmt: skip


def print_report(report: Report, folder: Path) -> None:
    """Print the answers, and where the report is; then points, runs left out, notes, diagnoses, verdicts.

    Long tables and lists are cut; a line says in which file the rest is. `folder`: where the report is.
    """
    console = report_console()
    _print_answers(report, console)
    _print(console, f"report: {folder}")
    score = report.study.score
    columns = [*speed_columns(report), number_column(score.title, "iou", ".3f")]
    bounded = ("speed-up", "difference to 1 worker", score.title)
    _print_tables(console, report.study.name, report.points, columns, bounded, "summary.csv")
    kinds = f"{score.heading} of played and real runs"
    _print_tables(console, kinds, report.played.points, played_short_columns(report), bounded, "played.csv")
    print_left_out(report.study.all_left_out, console)
    print_list(console, "Notes", report.notes, "report.html")
    strongest = [report.doubted(str(each)) for each in report.diagnoses[:MOST_DIAGNOSES]]
    print_list(console, "Where the time goes", strongest, "summary.json")
    print_list(console, "", list(map(str, report.verdicts)), "comparison.csv")
    print_list(console, "Not equal in this comparison", report.doubts, "summary.json")


def report_console() -> Console:
    """Return standard output, at least so wide that no number of the table is cut."""
    return CleanConsole(highlight=False, width=max(Console().width, LEAST_WIDTH))


def print_left_out(all_left_out: pd.DataFrame, console: Console) -> None:
    """Print every run that is not used, and why."""
    left_out = all_left_out
    lines = list(left_out["run"] + ": " + left_out["reason"])
    print_list(console, f"Left out: {len(left_out)}", lines, "summary.json")


def _print(console: Console, text: str, style: str | None = None) -> None:
    console.print(clean(text), style=style, markup=False, soft_wrap=True)


def _print_answers(report: Report, console: Console) -> None:
    """Print what a reader can act on: the headline of each set of options, its tiles, the first next step."""
    if report.compared_options:
        _print(console, report.compared_options, "bold")
        console.print()
    for answer in report.answers[:MOST_PRINTED]:
        style = f"bold {ANSWER_STYLES[answer.kind]}"
        _print(console, labelled(answer.options, answer.headline), style)
        for line in answer_lines(report, replace(answer, next_steps=answer.next_steps[:1])):
            _print(console, f"  {line}")
        console.print()
    more = len(report.answers) - MOST_PRINTED
    if more > 0:
        _print(console, f"and {more:,} more answers in report.html")
        console.print()


def print_list(console: Console, title: str, lines: Sequence[str], rest: str) -> None:
    """Print the first lines of a list below its title, without one in bold; `rest` has the others."""
    if lines:
        console.print()
    if lines and title:
        _print(console, title)
    for line in lines[:MOST_LINES]:
        _print(console, f"  - {line}" if title else line, None if title else "bold")
    if len(lines) > MOST_LINES:
        _print(console, f"  and {len(lines) - MOST_LINES:,} more in {rest}")


def empty_table(columns: Iterable[Column], title: str = "") -> Table:
    """Return a table with these columns and no row."""
    table = Table(title=title or None, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    for column in columns:
        is_number = column.kind == "number"
        table.add_column(column.heading, justify="right" if is_number else "left", no_wrap=is_number)
    return table


def _print_tables(
    console: Console,
    name: str,
    points: pd.DataFrame,
    columns: Sequence[Column],
    bounded: Sequence[str],
    rest: str,
) -> None:
    """Print one table for each set of options; intervals only in columns `bounded`: others would not fit."""
    for options, rows in points.iloc[:MOST_CONSOLE_ROWS].groupby("options", sort=False):
        table = empty_table(columns, clean(f"{name}: {options!s}" if options else name))
        for _, series in rows.groupby(["framework", "knobs"], sort=False):
            for row in series.to_dict("records"):
                cells = [(column.heading in bounded, column.cell(row)) for column in columns]
                table.add_row(*(str(cell) if is_bounded else cell.text for is_bounded, cell in cells))
            table.add_section()
        console.print(table)
    if len(points) > MOST_CONSOLE_ROWS:
        _print(console, f"{len(points) - MOST_CONSOLE_ROWS:,} further points are in {rest}")
