"""Parts of the page as plain values: sections, tables of cells, figures. The template renders them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

import pandas as pd

from analysis.study import Names
from analysis.text import UNKNOWN, Row, clean, interval_of, number, series_name

# A page of more rows is slow to open, and nobody reads them there.
_MOST_ROWS = 200
BADGES = {
    "yes": "yes",
    "no loss": "yes",
    "no": "no",
    "loss": "no",
    "diverges": "no",
    "not shown": "unknown",
    "not known": "unknown",
    "undecided": "unknown",
    "baseline": "baseline",
}


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
    """A shown column: its heading, and its cell for a row; of the `switched` ones the reader chooses one."""

    heading: str
    cell: Callable[[Row], Cell]
    kind: str = "number"
    switched: bool = False


GridRow = tuple[Cell, ...]


@dataclass(frozen=True)
class Grid:
    """A table of the page: its columns, and its rows under the options that they have in common.

    `more` is a line on rows cut. `leads`: it stands before the figures of its section.
    """

    name: str
    caption: str
    columns: tuple[Column, ...]
    groups: tuple[tuple[str, tuple[GridRow, ...]], ...]
    file: str
    more: str = ""
    leads: bool = False

    @property
    def rows(self) -> tuple[GridRow, ...]:
        """Return all rows, in order."""
        return tuple(row for _, rows in self.groups for row in rows)

    @property
    def choices(self) -> list[str]:
        """Return the headings of which the reader chooses one; none where there is nothing to choose."""
        headings = [column.heading for column in self.columns if column.switched]
        return headings if len(headings) > 1 else []


@dataclass(frozen=True)
class Drawing:
    """A figure of the page: its name, the SVG of its panels (of our own making, not escaped), its caption.

    A unit of an SVG is a pixel; it has its own width and height.
    """

    name: str
    panels: tuple[str, ...]
    caption: str


@dataclass(frozen=True)
class GalleryPicture:
    """A PNG of the page, as a data URL (empty where there is no such file), and what stands below it."""

    source: str
    title: str
    numbers: str = ""


@dataclass(frozen=True)
class Gallery:
    """Pictures side by side: a row for each image, by its name."""

    caption: str
    rows: tuple[tuple[str, tuple[GalleryPicture, ...]], ...]


@dataclass(frozen=True)
class Section:
    """A part of the page: its title, what it finds in one sentence, how to read it, and the evidence.

    `is_open` shows the evidence without a click; `absent` says why a figure is missing; `gallery` has
    pictures.
    """

    anchor: str
    title: str
    conclusion: str
    lead: str
    is_open: bool = False
    drawings: tuple[Drawing, ...] = ()
    grids: tuple[Grid, ...] = ()
    remarks: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    gallery: Gallery | None = None

    @property
    def is_empty(self) -> bool:
        """Return whether it has no evidence: the page then gives it one line."""
        return not (self.drawings or self.remarks or any(grid.groups for grid in self.grids))


def text_column(heading: str, name: str, kind: str = "text") -> Column:
    """Return a column of texts; of kind `run` each is a link to its folder where the page knows it.

    Of kind `badge` answers such as yes and no have the colours of the style sheet; of kind `mark` a row has
    "yes" where the value is true, else nothing.
    """

    def cell(row: Row) -> Cell:
        value = row[name]
        if kind == "mark":
            return Cell("yes", kind="yes") if value else Cell("")
        text = clean(value) if pd.notna(value) and value != "" else UNKNOWN
        return Cell(text, kind=BADGES.get(text, "text") if kind == "badge" else kind)

    return Column(heading, cell, "text")


def number_column(
    heading: str, name: str, form: str, *, scale: float = 1.0, bounded: bool = True, switched: bool = False
) -> Column:
    """Return a column of numbers divided by `scale`, with their intervals where `bounded`."""

    def cell(row: Row) -> Cell:
        value = row[name]
        shown = number(value if pd.isna(value) else value / scale, form)
        return Cell(shown, interval_of(row, name, form, scale) if bounded else "", "number")

    return Column(heading, cell, switched=switched)


def integer_column(heading: str, name: str) -> Column:
    """Return a column of counts."""
    return number_column(heading, name, ",.0f", bounded=False)


def framework_column(names: Names) -> Column:
    """Return the column of frameworks, with the options that vary in one of them."""
    return Column("framework", lambda row: Cell(series_name(row, names), kind=row["framework"]), "text")


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
    groups: dict[str, list[GridRow]] = {}
    for number_of_row, label in enumerate(labels):
        groups.setdefault(label, []).append(tuple(cells[column][number_of_row] for column in filled))
    is_cut = len(table) > len(rows)
    more = f"The first {_MOST_ROWS} of {len(table):,} rows; all are in {file}." if is_cut else ""
    shown = tuple((label, tuple(own)) for label, own in groups.items())
    return Grid(name, caption, tuple(filled), shown, file, more, leads)
