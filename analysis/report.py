"""The report: its files, written whole or not at all, and what is printed of it."""

import os
import tempfile
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table

from analysis.load import Study
from analysis.plots import picture, scaling_figure
from analysis.speedup import interval_notes, summarise, summary_table, unequal_work
from analysis.verdict import NAMES, Verdict, verdicts

UNKNOWN = "—"
LEAST_WIDTH = 130


@dataclass(frozen=True)
class Report:
    """All that a report says, before it is written or printed."""

    study: Study
    points: pd.DataFrame
    verdicts: list[Verdict]
    notes: list[str]


def make_report(study: Study) -> Report:
    """Compare the runs of a study. Pure: nothing is read or written."""
    points = summarise(study)
    missing = points.loc[points["unknown"] != "", ["framework", "options", "knobs", "unknown"]]
    unknown = [_unknown(row) for row in missing.drop_duplicates().to_dict("records")]
    notes = [*unknown, *unequal_work(study), *interval_notes(points), *study.notes]
    return Report(study, points, verdicts(study), notes)


def _unknown(row: Mapping[Hashable, Any]) -> str:
    labels = [str(row[name]) for name in ("options", "knobs") if row[name]]
    series = ", ".join([NAMES[row["framework"]], *labels])
    return f"{series}: {row['unknown']}"


def write_report(report: Report, folder: Path) -> list[Path]:
    """Write the report's files; the same study always gives the same bytes.

    Raises OSError where the folder cannot be written; an earlier file is then still whole.
    """
    figure = scaling_figure(report.study, report.points, report.verdicts)
    files = {
        "runs.csv": _csv(report.study.runs.drop(columns=["options", "knobs"])),
        "summary.csv": _csv(summary_table(report.points)),
        "left_out.csv": _csv(report.study.left_out),
        "scaling.svg": picture(figure, "svg"),
        "scaling.png": picture(figure, "png"),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        write_whole(folder / name, content)
    return [folder / name for name in files]


def write_whole(path: Path, content: bytes) -> None:
    """Replace a file in one step: whoever reads it sees the old content or the new."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}-", delete=False) as temporary:
        try:
            temporary.write(content)
            temporary.flush()
            os.fsync(temporary.fileno())
            Path(temporary.name).chmod(0o644)
            Path(temporary.name).replace(path)
        except OSError:
            Path(temporary.name).unlink(missing_ok=True)
            raise


def _csv(table: pd.DataFrame) -> bytes:
    return table.to_csv(index=False, lineterminator="\n", float_format="%.10g").encode()


def print_report(report: Report, console: Console | None = None) -> None:
    """Print the points, what was left out and why, the notes, and the verdict."""
    console = console or report_console()
    for table in _tables(report.study, report.points):
        console.print(table)
    print_left_out(report.study, console)
    _print_list(console, "Notes", report.notes)
    console.print()
    for verdict in report.verdicts:
        console.print(str(verdict), style="bold", markup=False, soft_wrap=True)


def print_left_out(study: Study, console: Console) -> None:
    rows = study.left_out.to_dict("records")
    _print_list(console, f"Left out: {len(rows)}", [f"{row['run']}: {row['reason']}" for row in rows])


def report_console() -> Console:
    """Standard output, at least so wide that no number of the table is cut."""
    return Console(highlight=False, width=max(Console().width, LEAST_WIDTH))


def _print_list(console: Console, title: str, lines: Sequence[str]) -> None:
    if lines:
        console.print(f"\n{title}", markup=False)
    for line in lines:
        console.print(f"  - {line}", markup=False, soft_wrap=True)


def _tables(study: Study, points: pd.DataFrame) -> Iterator[Table]:
    """One table for each set of options."""
    for options, rows in points.groupby("options", sort=False):
        title = f"{study.name}: {options!s}" if options else study.name
        table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
        table.add_column("framework")
        for heading in ("workers", "repeats", study.unit, "speed-up", "efficiency", "deviation", "IoU"):
            table.add_column(heading, justify="right", no_wrap=True)
        for _, series in rows.groupby(["framework", "knobs"], sort=False):
            for row in series.to_dict("records"):
                name = ", ".join(part for part in (NAMES[row["framework"]], row["knobs"]) if part)
                table.add_row(name, *_cells(row))
            table.add_section()
        yield table


def _cells(row: Mapping[Hashable, Any]) -> list[str]:
    return [
        str(row["workers"]),
        str(row["repeats"]),
        number(row["throughput"], ".4g"),
        with_interval(row, "speedup", ".2f"),
        number(row["efficiency"], ".1%"),
        number(row["deviation"], ".1%"),
        with_interval(row, "iou", ".3f"),
    ]


def with_interval(row: Mapping[Hashable, Any], name: str, form: str) -> str:
    """A number with its interval, where there is one that is wider than a point."""
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    interval = f" [{low:{form}}, {high:{form}}]" if low < high else ""
    return number(row[name], form) + interval


def number(value: float, form: str) -> str:
    """A number for people; a dash where it is not known."""
    return UNKNOWN if pd.isna(value) else format(value, form).replace("%", " %")
