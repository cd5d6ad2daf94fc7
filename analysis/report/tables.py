"""A table of the report: its file, its documented columns, and how the page shows them."""

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePath
from textwrap import dedent

import pandas as pd

from analysis.report.assemble import Report
from analysis.report.view import (
    Column,
    Grid,
    framework_column,
    integer_column,
    make_grid,
    number_column,
    text_column,
)
from analysis.restriction import restriction_words
from analysis.study import COMPARED, Study
from analysis.text import capitalised, clean, cleaned, unit_of

# Ten digits: more than any measurement has, and the same on every processor.
FLOAT_FORMAT = "%.10g"
FORMULA = re.compile(r"^\s*[=+@-](?=.*[^\d.])")
UNITS = {"ms": 1e-3, "MB": 1e6, "GB": 1e9, "MiB": 2**20}
_PARTS_OF_HOURS = {"s": "seconds", "min": "minutes", "h": "hours"}


@dataclass(frozen=True)
class ColumnLine:
    """Columns of a file with one meaning, and how the page shows the first of them where it has a `form`.

    The form is `text`, `run`, `badge` or `mark` (view.text_column); `framework`; `point` (with its workers);
    or a number's format and what applies: `±` (with its interval), a unit of UNITS, `time` or `hours` (in the
    unit that reads best, which the heading names), `switched`.
    """

    names: tuple[str, ...]
    meaning: str
    heading: str
    form: str
    in_file: bool

    @classmethod
    def of(cls, line: str) -> "ColumnLine":
        """Return the columns of a line "a, b ± | meaning | heading | form".

        "x ±" is x with its interval, x_low and x_high; "(x)" only the page shows, not the file.
        """
        keys, meaning, heading, form = map(str.strip, f"{line}|||".split("|")[:4])
        in_file = not keys.startswith("(")
        names = [
            key.removesuffix(" ±") + end
            for key in keys.strip("()").split(", ")
            for end in (("", "_low", "_high") if key.endswith(" ±") else ("",))
        ]
        return cls(tuple(names), meaning, heading, form, in_file)

    def columns(self, table: pd.DataFrame, report: Report) -> list[Column]:
        """Return the columns of the page, for what is in this table."""
        if not self.form:
            return []
        if self.form in ("point", "framework"):
            keys = point_keys(report)
            return keys if self.form == "point" else keys[:1]
        name = self.names[0]
        words = words_of(report.study)
        form, *marks = self.form.split()
        if form in ("text", "run", "badge", "mark"):
            return [text_column(self.heading.format_map(words), name, form)]
        scale = next((UNITS[mark] for mark in marks if mark in UNITS), 1.0)
        if "time" in marks:
            scale, words["time"] = unit_of(table[name])
        if "hours" in marks:
            # One unit for all columns of a table.
            seconds, unit = unit_of(3600 * table["worker_hours"])
            scale, words["hours"] = seconds / 3600, _PARTS_OF_HOURS[unit]
        heading = self.heading.format_map(words)
        bounded, switched = "±" in marks, "switched" in marks
        return [number_column(heading, name, form, scale=scale, bounded=bounded, switched=switched)]


@dataclass(frozen=True)
class Table:
    """One table of a report.

    `file` is written as its ending says, CSV or Parquet. `make` returns the table; `lines` are its columns in
    the order of the file, one `ColumnLine` a line, continued where indented. `about` is a sentence for
    docs/columns.md. With a `section`, the page shows it there under a `caption`, with `leads` before the
    figures; `rows` returns what it shows of the table. With `needs_rows` there is no file without rows.
    """

    file: str
    make: Callable[[Report], pd.DataFrame]
    lines: str
    about: str = ""
    section: str = ""
    caption: str = ""
    rows: Callable[[Report, pd.DataFrame], pd.DataFrame] = lambda _report, table: table
    leads: bool = False
    needs_rows: bool = False

    @cached_property
    def column_lines(self) -> list[ColumnLine]:
        """Return its columns."""
        lines = re.sub(r"\n +", " ", dedent(self.lines)).splitlines()
        return [ColumnLine.of(line) for line in lines if line]

    @property
    def names(self) -> list[str]:
        """Return the columns of the file; those of a study's axes come after them."""
        return [name for line in self.column_lines if line.in_file for name in line.names]

    def is_made(self, report: Report) -> bool:
        """Return whether the report has this table: one that `needs_rows` only where there are any."""
        return not self.needs_rows or len(self.make(report)) > 0

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
        study = report.study
        written = self.written(report)
        axes = [axis for axis in study.axes if axis in made.columns]
        table = made[[*written, *axes]].rename(columns=written)
        if study.are_names_given and "framework" in table.columns:
            table = table.assign(framework=table["framework"].map(study.names))
        if self.file.endswith(".csv"):
            return as_csv(table)
        buffer = io.BytesIO()
        table.to_parquet(buffer, index=False)
        return buffer.getvalue()

    def columns(self, report: Report, table: pd.DataFrame | None = None) -> list[Column]:
        """Return the columns that the page shows of a table, by default of all rows."""
        shown = self.make(report) if table is None else table
        return [column for line in self.column_lines for column in line.columns(shown, report)]

    def grid(self, report: Report) -> Grid:
        """Return the table as the page shows it."""
        made = self.make(report)
        rows = self.rows(report, made) if len(made) else made
        file = self.name(report)
        restricted = restriction_words(report.study)
        caption = capitalised(self.caption.format_map(words_of(report.study)))
        caption += f" ({restricted})" if restricted else ""
        name = f"{PurePath(file).stem}-{report.study.score.key(self.section)}"
        return make_grid(name, caption, rows, self.columns(report, rows), file, self.leads)


def point_keys(report: Report) -> list[Column]:
    """Return the columns that name a point."""
    return [framework_column(report.study.names), integer_column("workers", "workers")]


def words_of(study: Study) -> dict[str, str]:
    """Return what headings and captions name: both frameworks, their short names, score, samples and unit."""
    native, horovod = study.compared_names
    short = [study.short_names[framework] for framework in COMPARED]
    return {
        "native": native,
        "horovod": horovod,
        "short_native": short[0],
        "short_horovod": short[1],
        "score": study.score.title,
        "sample": study.score.sample,
        "unit": study.unit,
    }


def as_csv(table: pd.DataFrame) -> bytes:
    """Return UTF-8 with one header line, ten digits, empty where a value is not known."""
    return cleaned(table, _inert).to_csv(index=False, lineterminator="\n", float_format=FLOAT_FORMAT).encode()


def _inert(text: object) -> str:
    """Return a text that no spreadsheet takes for a formula."""
    return FORMULA.sub(r"'\g<0>", clean(text))
