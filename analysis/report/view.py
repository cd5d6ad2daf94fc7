"""Parts of the page as plain values: sections, tables of cells, figures. The template renders them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd

from analysis.study import Names
from analysis.text import UNKNOWN, Row, clean, interval_of, number, series_name

# A page of more rows is slow to open, and nobody reads them there.
_MOST_ROWS = 200
_EMPTY = ("", UNKNOWN)
BADGES = {
    "yes": "yes",
    "no": "no",
    "not shown": "unknown",
    "not known": "unknown",
    "baseline": "baseline",
}


@dataclass(frozen=True)
class Cell:
    """One cell: its text, the interval beside it, and its kind: text, number, a framework, or a badge."""

    text: str
    interval: str = ""
    kind: str = "text"

    def __str__(self) -> str:
        return f"{self.text} {self.interval}".rstrip()


@dataclass(frozen=True)
class Column:
    """A column of a shown table: its heading, and its cell for a row of the data."""

    heading: str
    cell: Callable[[Row], Cell]
    kind: str = "number"


@dataclass(frozen=True)
class Grid:
    """A table of the page: caption, headings with their kind, rows, and a line on rows that are cut."""

    name: str
    caption: str
    headings: tuple[Cell, ...]
    rows: tuple[tuple[Cell, ...], ...]
    more: str = ""


@dataclass(frozen=True)
class Drawing:
    """A figure of the page: its name, the SVG of its panels (of our own making, not escaped), its caption.

    A unit of an SVG is a pixel; it has its own width and height.
    """

    name: str
    panels: tuple[str, ...]
    caption: str


@dataclass(frozen=True)
class Section:
    """A part of the page; `folded` shows it as a line that opens, `absent` says why a figure is missing."""

    anchor: str
    title: str
    lead: str
    drawings: tuple[Drawing, ...] = ()
    grids: tuple[Grid, ...] = ()
    remarks: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    folded: bool = False


def text_column(heading: str, name: str) -> Column:
    return Column(heading, lambda row: Cell(_known(row[name])), "text")


def integer_column(heading: str, name: str) -> Column:
    return number_column(heading, name, ",.0f", bounded=False)


def number_column(heading: str, name: str, form: str, *, scale: float = 1.0, bounded: bool = True) -> Column:
    """Return a column of numbers divided by `scale`, with their intervals where `bounded`."""

    def cell(row: Row) -> Cell:
        value = row[name]
        shown = number(value if pd.isna(value) else value / scale, form)
        return Cell(shown, interval_of(row, name, form, scale) if bounded else "", "number")

    return Column(heading, cell)


def badge_column(heading: str, name: str) -> Column:
    """Return a column of answers such as yes and no, coloured by the style sheet."""
    return Column(
        heading, lambda row: Cell(_known(row[name]), kind=BADGES.get(str(row[name]), "text")), "text"
    )


def framework_column(names: Names) -> Column:
    """Return the column of frameworks, with the options that vary in one of them."""
    return Column("framework", lambda row: Cell(series_name(row, names), kind=row["framework"]), "text")


def make_grid(
    name: str, caption: str, table: pd.DataFrame, columns: Sequence[Column], file: str = ""
) -> Grid:
    """Return a table of the page, without empty columns and without rows beyond the first 200."""
    if table.get("options", pd.Series(dtype=str)).ne("").any():
        columns = [text_column("options", "options"), *columns]
    filled = _filled_columns(table.iloc[:_MOST_ROWS], columns)
    headings = tuple(Cell(column.heading, kind=column.kind) for column in filled)
    shown = tuple(zip(*filled.values(), strict=True))
    return Grid(name, caption, headings, shown, _cut(len(table), file))


def _filled_columns(table: pd.DataFrame, columns: Sequence[Column]) -> dict[Column, list[Cell]]:
    """Return the cells of each column that is not empty."""
    rows = table.to_dict("records")
    cells = {column: [column.cell(row) for row in rows] for column in columns}
    return {column: of for column, of in cells.items() if any(cell.text not in _EMPTY for cell in of)}


def _cut(rows: int, file: str) -> str:
    return f"The first {_MOST_ROWS} of {rows:,} rows; all are in {file}." if rows > _MOST_ROWS else ""


def _known(value: object) -> str:
    return clean(value) if pd.notna(value) and value != "" else UNKNOWN  # type: ignore[call-overload]
