"""What a page is made of: sections, tables of cells, figures. Plain values; the template draws them."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd

from analysis.study import Names
from analysis.text import UNKNOWN, Row, clean, interval_of, number, series_name

MOST_ROWS = 200
VIEW_BOX = re.compile(r'viewBox="0 0 (?P<width>[0-9.]+) (?P<height>[0-9.]+)"')
WIDE = 1.7
EMPTY = ("", UNKNOWN)
MARKS = {
    "yes": "yes",
    "no": "no",
    "not shown": "unknown",
    "not known": "unknown",
    "baseline": "baseline",
}


@dataclass(frozen=True)
class Cell:
    """One cell: its text, the interval beside it, and its kind: text, number, a framework, or a mark."""

    text: str
    interval: str = ""
    kind: str = "text"


@dataclass(frozen=True)
class Grid:
    """A table: its caption, headings with their kind, rows whose first cell names them, and what is cut."""

    name: str
    caption: str
    headings: tuple[Cell, ...]
    rows: tuple[tuple[Cell, ...], ...]
    more: str = ""


@dataclass(frozen=True)
class Drawing:
    """A figure of the page: its name, the SVG (made by the project itself, not escaped) and its caption."""

    name: str
    svg: str
    caption: str

    @property
    def wide(self) -> bool:
        """Whether it has several panels side by side."""
        box = VIEW_BOX.search(self.svg)
        return box is not None and float(box["width"]) > WIDE * float(box["height"])


@dataclass(frozen=True)
class Section:
    """A part of the page. `folded`: shown as a line that opens."""

    anchor: str
    title: str
    lead: str
    drawings: tuple[Drawing, ...] = ()
    grids: tuple[Grid, ...] = ()
    remarks: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    folded: bool = False


@dataclass(frozen=True)
class Column:
    """How a column of a grid is made from a row of a table."""

    heading: str
    cell: Callable[[Row], Cell]
    kind: str = "number"


def text(heading: str, name: str) -> Column:
    return Column(heading, lambda row: Cell(_known(row[name])), "text")


def whole(heading: str, name: str) -> Column:
    return figure(heading, name, ",.0f", bounded=False)


def figure(heading: str, name: str, form: str, *, scale: float = 1.0, bounded: bool = True) -> Column:
    """A number, divided by `scale`, with its interval where the table has one."""

    def cell(row: Row) -> Cell:
        within = interval_of(row, name, form, scale) if bounded else ""
        value = row[name]
        return Cell(number(value if pd.isna(value) else value / scale, form), within, "number")

    return Column(heading, cell)


def mark(heading: str, name: str) -> Column:
    return Column(
        heading, lambda row: Cell(_known(row[name]), kind=MARKS.get(str(row[name]), "text")), "text"
    )


def series(names: Names) -> Column:
    return Column("framework", lambda row: Cell(series_name(row, names), kind=row["framework"]), "text")


def grid(name: str, caption: str, table: pd.DataFrame, columns: Sequence[Column], whole_in: str = "") -> Grid:
    """A table of the page; columns that are empty in every row are left out, long tables cut."""
    if table.get("options", pd.Series(dtype=str)).ne("").any():
        columns = [text("options", "options"), *columns]
    shown = table.iloc[:MOST_ROWS].to_dict("records")
    cells = [[column.cell(row) for row in shown] for column in columns]
    kept = [number for number, column in enumerate(cells) if any(cell.text not in EMPTY for cell in column)]
    columns, cells = [columns[number] for number in kept], [cells[number] for number in kept]
    rows = tuple(zip(*cells, strict=True))
    more = (
        f"The first {MOST_ROWS} of {len(table):,} rows; all are in {whole_in}."
        if len(table) > MOST_ROWS
        else ""
    )
    return Grid(
        name, caption, tuple(Cell(column.heading, kind=column.kind) for column in columns), rows, more
    )


def _known(value: object) -> str:
    return clean(value) if pd.notna(value) and value != "" else UNKNOWN  # type: ignore[call-overload]
