"""A table of the report: its file, its documented columns, and how the page shows it."""

import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

import pandas as pd

from analysis.report.assemble import Report
from analysis.report.view import Column, Grid, make_grid
from analysis.restriction import restriction_words
from analysis.study import Study
from analysis.text import clean, cleaned

# Ten digits: more than any measurement has, and the same on every processor.
FLOAT_FORMAT = "%.10g"
FORMULA = re.compile(r"^\s*[=+@-](?=.*[^\d.])")
BOUNDS = ("", "_low", "_high")
# Columns that several tables begin with.
POINT_KEYS = {"options, framework, knobs, workers": "the point"}
PAIR_KEYS = {
    "options, native_knobs, horovod_knobs, workers": "what is compared",
    "pairs": "repeats that both have",
}


@dataclass(frozen=True)
class PageTable:
    """How the page shows a table.

    `section` is the anchor of its section; `caption` may name the frameworks as {native} and {horovod}, the
    score as {score} and what the data consist of as {sample}; `columns` gives its columns; `rows` what of
    the file's table is shown; with `leads` it stands before the figures of its section.
    """

    section: str
    caption: str
    columns: Callable[[Report], Sequence[Column]]
    rows: Callable[[pd.DataFrame], pd.DataFrame] = lambda table: table
    leads: bool = False


@dataclass(frozen=True)
class Table:
    """One table of a report.

    `file` is written as its ending says, CSV or Parquet. `make` returns the table. `columns` describes every
    column, in the order of the file: "a, b" are two columns with one description, "x ±" is x with its
    interval, x_low and x_high. `about` is a sentence for docs/columns.md. Without `page` the page does not
    show it; with `second_page` it does so in two sections. With `needs_rows` there is no file
    without rows.
    """

    file: str
    make: Callable[[Report], pd.DataFrame]
    columns: Mapping[str, str]
    about: str = ""
    page: PageTable | None = None
    second_page: PageTable | None = None
    needs_rows: bool = False

    def is_made(self, report: Report) -> bool:
        """Return whether the report has this table: one that `needs_rows` only where there are any."""
        return not self.needs_rows or len(self.make(report)) > 0

    @property
    def names(self) -> list[str]:
        """Return the columns of the file; those of a study's axes come after them."""
        return [name for key in self.columns for name in column_names(key)]

    def written(self, report: Report) -> dict[str, str]:
        """Return what the columns are called in this report, by their names here."""
        score = report.study.score
        return {name: score.key(name) for name in self.names if score.has(name)}

    def name(self, report: Report) -> str:
        """Return the name of the file in this report."""
        return report.study.score.key(self.file)

    def content(self, report: Report) -> bytes:
        """Return the content of the file."""
        made = self.make(report)
        axes = [axis for axis in report.study.axes if axis in made.columns]
        written = self.written(report)
        table = _with_arm_names(made[[*written, *axes]].rename(columns=written), report.study)
        return as_parquet(table) if self.file.endswith(".parquet") else as_csv(table)

    @property
    def pages(self) -> list[PageTable]:
        """Return how the page shows it, in each section that does."""
        return [page for page in (self.page, self.second_page) if page]

    def grid(self, report: Report, page: PageTable) -> Grid:
        """Return the table as the page shows it."""
        made = self.make(report)
        rows = page.rows(made) if len(made) else made
        file = self.name(report)
        stem = PurePath(file).stem
        name = stem if page is self.page else f"{stem}-{page.section}"
        grid = make_grid(name, _caption(report, page), rows, page.columns(report), file)
        return replace(grid, leads=page.leads)


def _caption(report: Report, page: PageTable) -> str:
    native, horovod = report.study.compared_names
    score = report.study.score
    caption = page.caption.format(native=native, horovod=horovod, score=score.title, sample=score.sample)
    words = restriction_words(report.study)
    return f"{caption[:1].upper()}{caption[1:]}{f' ({words})' if words else ''}"


def column_names(key: str) -> list[str]:
    """Return the columns that a key of `Table.columns` stands for."""
    return [
        name.removesuffix(" ±") + end
        for name in key.split(", ")
        for end in (BOUNDS if name.endswith(" ±") else BOUNDS[:1])
    ]


def _with_arm_names(table: pd.DataFrame, study: Study) -> pd.DataFrame:
    """Return the table with the names that a user gave the arms; else frameworks are called as in records."""
    if not study.are_names_given or "framework" not in table.columns:
        return table
    return table.assign(framework=table["framework"].map(study.names))


def as_csv(table: pd.DataFrame) -> bytes:
    """Return UTF-8 with one header line, ten digits, empty where a value is not known."""
    return cleaned(table, _inert).to_csv(index=False, lineterminator="\n", float_format=FLOAT_FORMAT).encode()


def _inert(text: object) -> str:
    """Return a text that no spreadsheet takes for a formula."""
    return FORMULA.sub(r"'\g<0>", clean(text))


def as_parquet(table: pd.DataFrame) -> bytes:
    buffer = io.BytesIO()
    table.to_parquet(buffer, index=False)
    return buffer.getvalue()
