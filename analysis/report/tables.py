"""A table of the report: its file, its documented columns, and its cells on page, terminal and paper."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import PurePath
from textwrap import dedent

import pandas as pd

from analysis.assembly.assemble import Report
from analysis.study import BUILT_IN_SCORE, COMPARED, ENDS, POINT, Names, Study
from analysis.text import UNKNOWN, Row, capitalised, clean, cleaned, interval_of, number, series_name, unit_of

# Ten digits: more than any measurement has, and the same on every processor.
FLOAT_FORMAT = "%.10g"
FORMULA = re.compile(r"^\s*[=+@-](?=.*[^\d.])")
UNITS = {"ms": 1e-3, "MB": 1e6, "GB": 1e9}
# A page of more rows is slow to open, and nobody reads them there.
_MOST_ROWS = 200
BADGES = {
    "yes": "yes", "no loss": "yes", "no": "no", "loss": "no", "diverges": "no", "not shown": "unknown",
    "not known": "unknown", "undecided": "unknown", "baseline": "baseline",
    "suggests yes": "unknown", "suggests no": "unknown", "not judged": "unknown",
}  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """One cell: its text, its interval, and its kind: text, number, run, a framework, or that of a badge."""

    text: str
    interval: str = ""
    kind: str = "text"

    def __str__(self) -> str:
        return f"{self.text} {self.interval}".rstrip()


@dataclass(frozen=True)
class Column:
    """A shown column: its heading, and its cell for a row."""

    heading: str
    cell: Callable[[Row], Cell]
    kind: str = "number"


@dataclass(frozen=True)
class Grid:
    """A table of the page: its columns, and its rows under the options that they have in common.

    `more` is a line on rows cut. `leads`: it stands before the figures of its section.
    """

    name: str
    caption: str
    columns: tuple[Column, ...]
    groups: tuple[tuple[str, tuple[tuple[Cell, ...], ...]], ...]
    file: str
    more: str = ""
    leads: bool = False


def text_column(heading: str, name: str, kind: str = "text") -> Column:
    """Return a column of texts; of kind `badge` answers such as yes and no have colours of their own."""

    def cell(row: Row) -> Cell:
        value = row[name]
        text = clean(value) if pd.notna(value) and value != "" else UNKNOWN
        return Cell(text, kind=BADGES.get(text, "text") if kind == "badge" else kind)

    return Column(heading, cell, "text")


def number_column(heading: str, name: str, form: str, *, scale: float = 1.0, bounded: bool = True) -> Column:
    """Return a column of numbers divided by `scale`, with their intervals where `bounded`."""

    def cell(row: Row) -> Cell:
        value = row[name]
        shown = number(value if pd.isna(value) else value / scale, form)
        return Cell(shown, interval_of(row, name, form, scale) if bounded else "", "number")

    return Column(heading, cell)


def integer_column(heading: str, name: str) -> Column:
    """Return a column of counts."""
    return number_column(heading, name, ",.0f", bounded=False)


def make_grid(
    name: str, caption: str, table: pd.DataFrame, columns: Sequence[Column], file: str, leads: bool = False
) -> Grid:
    """Return a table of the page, without empty columns and without rows beyond the first 200.

    Rows that are sorted by their options stand under them; else the options are a column.
    """
    rows = table.iloc[:_MOST_ROWS].to_dict("records")
    labels = [clean(row.get("options", "")) for row in rows]
    if len(set(labels)) < len([*groupby(labels)]):
        labels = [""] * len(rows)
        columns = [text_column("options", "options"), *columns]
    cells = {column: [column.cell(row) for row in rows] for column in columns}
    filled = [column for column in columns if any(cell.text not in ("", UNKNOWN) for cell in cells[column])]
    groups: dict[str, list[tuple[Cell, ...]]] = {}
    for number_of_row, label in enumerate(labels):
        groups.setdefault(label, []).append(tuple(cells[column][number_of_row] for column in filled))
    is_cut = len(table) > len(rows)
    more = f"The first {_MOST_ROWS} of {len(table):,} rows; all are in {file}." if is_cut else ""
    shown = tuple((label, tuple(own)) for label, own in groups.items())
    return Grid(name, caption, tuple(filled), shown, file, more, leads)


@dataclass(frozen=True)
class ColumnLine:
    """Columns of a file with one meaning, and how the page shows the first of them where it has a `form`.

    The form is `text`, `run` or `badge` (text_column); `framework`; `point` (with its workers);
    or a number's format and what applies: `±` (with its interval), a unit of UNITS, `time` or `hours` (in the
    unit that reads best, which the heading names).
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
            for end in (ENDS if key.endswith(" ±") else ("",))
        ]
        return cls(tuple(names), meaning, heading, form, in_file)

    def columns(self, table: pd.DataFrame, study: Study) -> list[Column]:
        """Return the columns of the page, for what is in this table."""
        if not self.form:
            return []
        if self.form in ("point", "framework"):
            keys = point_keys(study.names)
            return keys if self.form == "point" else keys[:1]
        name = self.names[0]
        words = words_of(study)
        form, *marks = self.form.split()
        if form in ("text", "run", "badge"):
            return [text_column(self.heading.format_map(words), name, form)]
        scale = next((UNITS[mark] for mark in marks if mark in UNITS), 1.0)
        if "time" in marks:
            scale, words["time"] = unit_of(table[name].max())
        if "hours" in marks:
            # One unit for all columns of a table.
            seconds, words["hours"] = unit_of(3600 * table["worker_hours"].max(), is_long=True)
            scale = seconds / 3600
        heading = self.heading.format_map(words)
        return [number_column(heading, name, form, scale=scale, bounded="±" in marks)]


def column_lines(text: str) -> list[ColumnLine]:
    """Return the columns of a text with one `ColumnLine` a line, continued where indented."""
    lines = re.sub(r"\n +", " ", dedent(text)).splitlines()
    return [ColumnLine.of(line) for line in lines if line]


# The columns of compare.csv, and of the table of points that `compare` shows.
COMPARE_LINES = column_lines("""
    framework | as in the study file | | framework
    workers | | workers | ,.0f
    options | options that vary within a study and did not change between them
    knobs | the same, of this framework alone
    only_in | A or B, where only one study has the point; else empty
    launches_a | launches of A that count for speed | launches A | ,.0f
    launches_b | | launches B | ,.0f
    throughput_a | median over them, in images / s (older logs: epochs / h) | A | ~4
    throughput_b | | B | ~4
    ratio ± | throughput of B / A, ratio of the medians; its interval holds for all points together
        | B / A | .3f ±
    coverage | in how many studies it holds; empty below 3 launches | confidence | .0%
    p_adjusted, comparisons | probability by chance, corrected by Holm for so many points
    outcome | A faster, B faster, equal within 3 % (`equal_within`), suggests one of these (3 or 4 launches),
        cannot tell, withheld, or not enough repeats | speed | text
    doubts | launches disturbed, at the same time, or of both studies: then nothing is claimed
    launches_needed | launches of each study that tell at 80 % power, if ratio and variation stay
    seeds_a, seeds_b | runs with an IoU
    seeds_paired | seeds that both have, compared as pairs; 0: unpaired
    iou_a, iou_b | median over the seeds
    iou_difference ± | IoU of B - A: median of the pairs, or difference of the medians; its interval holds
        for all points together | difference of {score} | +.4f ±
    iou_p_adjusted |
    iou_outcome | A higher, B higher, equal within the margin, cannot tell, nothing learned (no more than a
        constant prediction scores), not enough repeats, or refused | outcome | text
    iou_remarks | why it is refused, or how seeds were compared and how many runs diverged
    """)


@dataclass(frozen=True)
class Table:
    """One table of a report.

    `file` is its name, in CSV; one without an ending is a key of summary.json, which has the rows of tables
    without a file. `make` returns the table; `lines` are its columns in the order of the file (see
    `column_lines`). `about` is a sentence for docs/columns.md. With a `section`, the page shows it there
    under a `caption`, with `leads` before the figures; `rows` returns what it shows of the table. There is no
    file without rows. `widens` is the file to whose rows it adds its columns, there with a `prefix` where
    they do not name the score.
    """

    file: str
    make: Callable[[Report], pd.DataFrame]
    lines: str
    about: str = ""
    section: str = ""
    caption: str = ""
    rows: Callable[[pd.DataFrame], pd.DataFrame] = lambda table: table
    leads: bool = False
    widens: str = ""
    prefix: str = ""

    @cached_property
    def column_lines(self) -> list[ColumnLine]:
        """Return its columns."""
        return column_lines(self.lines)

    @property
    def is_file(self) -> bool:
        """Return whether it has a file of its own."""
        return self.file.endswith(".csv")

    @property
    def title(self) -> str:
        """Return where it is written, in Markdown."""
        return f"`{self.file}`" if self.is_file else f"`summary.json`: `{self.file}`"

    @property
    def names(self) -> list[str]:
        """Return the columns of the file; those of a study's axes come after them."""
        return [name for line in self.column_lines if line.in_file for name in line.names]

    def is_made(self, report: Report) -> bool:
        """Return whether the report has this table, which has rows."""
        return len(self.make(report)) > 0

    def written(self, report: Report) -> dict[str, str]:
        """Return what the columns are called in this report, by their names here."""
        score = report.study.score
        return {name: score.key(name) for name in self.names if score.has(name)}

    @property
    def key(self) -> list[str]:
        """Return the columns that name a point, or a pair of points, in a table that widens another."""
        return self.names[: len(POINT)]

    def further_names(self, report: Report) -> dict[str, str]:
        """Return what the columns that it adds to a file are called there."""
        written = self.written(report)
        return {
            name: key if BUILT_IN_SCORE in name.split("_") else report.study.score.key(self.prefix + name)
            for name, key in written.items()
            if name not in self.key
        }

    def name(self, report: Report) -> str:
        """Return the name of the file in this report."""
        return report.study.score.key(self.file)

    def content(self, report: Report, wider: Sequence["Table"] = ()) -> bytes:
        """Return the content of the file, with the columns of the tables that widen it."""
        made = self.make(report)
        study = report.study
        written = self.written(report)
        axes = [axis for axis in study.axes if axis in made.columns]
        table = made[[*written, *axes]].rename(columns=written)
        for other in wider:
            added = {name: key for name, key in other.further_names(report).items() if key not in table}
            if other.is_made(report):
                further = other.make(report)[[*other.key, *added]].rename(columns=added)
                table = table.merge(further, on=other.key, how="left")
            table = table.reindex(columns=[*table, *(key for key in added.values() if key not in table)])
        if study.are_names_given and "framework" in table.columns:
            table = table.assign(framework=table["framework"].map(study.names))
        return as_csv(table)

    def columns(self, report: Report, table: pd.DataFrame | None = None) -> list[Column]:
        """Return the columns that the page shows of a table, by default of all rows."""
        shown = self.make(report) if table is None else table
        return [column for line in self.column_lines for column in line.columns(shown, report.study)]

    def grid(self, report: Report) -> Grid:
        """Return the table as the page shows it."""
        made = self.make(report)
        rows = self.rows(made) if len(made) else made
        file = self.name(report) if self.is_file else "summary.json"
        caption = report.study.kind.marked(capitalised(self.caption.format_map(words_of(report.study))))
        name = f"{PurePath(self.name(report)).stem}-{report.study.score.key(self.section)}"
        return make_grid(name, caption, rows, self.columns(report, rows), file, self.leads)


def point_keys(names: Names) -> list[Column]:
    """Return the columns that name a point: the framework with its knobs, and the workers."""
    framework = Column("framework", lambda row: Cell(series_name(row, names), kind=row["framework"]), "text")
    return [framework, integer_column("workers", "workers")]


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
    """Return UTF-8 with one header line, ten digits, empty where a value is not known.

    No text is what a spreadsheet takes for a formula.
    """
    inert = cleaned(table, lambda text: FORMULA.sub(r"'\g<0>", clean(text)))
    return inert.to_csv(index=False, lineterminator="\n", float_format=FLOAT_FORMAT).encode()
