"""Parts of the page as plain values: sections, tables of cells, figures. The template renders them."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter

import pandas as pd

from analysis.study import Names
from analysis.text import UNKNOWN, Row, clean, count, interval_of, number, series_name

# A page of more rows is slow to open, and nobody reads them there.
_MOST_ROWS = 200
# Two rows of a wide page; more of one figure would hide what comes after it.
_MOST_PANELS = 4
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
    """One cell: its text, the interval beside it, and its kind: text, number, run, a framework, or a badge.

    `choice` is the number of the quantity that it belongs to, from 1 on, in a table that shows one of
    several; 0 where it is always shown.
    """

    text: str
    interval: str = ""
    kind: str = "text"
    choice: int = 0

    def __str__(self) -> str:
        return f"{self.text} {self.interval}".rstrip()


@dataclass(frozen=True)
class Column:
    """A column of a shown table: its heading, and its cell for a row of the data.

    Of the `switched` columns of a table the page shows the one that its reader chooses.
    """

    heading: str
    cell: Callable[[Row], Cell]
    kind: str = "number"
    switched: bool = False


GridRow = tuple[Cell, ...]
# Options, and the rows that have them.
GridGroup = tuple[str, tuple[GridRow, ...]]


@dataclass(frozen=True)
class Grid:
    """A table of the page: caption, headings with their kind, rows, its file, and a line on rows cut.

    `groups` are the rows under the options that they have in common, in order. `leads`: it stands before
    the figures of its section.
    """

    name: str
    caption: str
    headings: tuple[Cell, ...]
    groups: tuple[GridGroup, ...]
    file: str
    more: str = ""
    leads: bool = False

    @property
    def rows(self) -> tuple[GridRow, ...]:
        """Return all rows, in order."""
        return tuple(row for _, rows in self.groups for row in rows)

    @property
    def choices(self) -> tuple[str, ...]:
        """Return the quantities of which the reader chooses one; none where there is nothing to choose."""
        headings = tuple(heading.text for heading in self.headings if heading.choice)
        return headings if len(headings) > 1 else ()


@dataclass(frozen=True)
class Drawing:
    """A figure of the page: its name, the SVG of its panels (of our own making, not escaped), its caption.

    A unit of an SVG is a pixel; it has its own width and height.
    """

    name: str
    panels: tuple[str, ...]
    caption: str

    @property
    def shown(self) -> tuple[str, ...]:
        """Return the panels that are shown without a click."""
        return self.panels[:_MOST_PANELS]

    @property
    def folded(self) -> tuple[str, ...]:
        """Return the panels that are folded."""
        return self.panels[_MOST_PANELS:]

    @property
    def folded_line(self) -> str:
        """Return how many panels are folded."""
        return count(len(self.folded), "more panel")


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

    @property
    def width(self) -> int:
        """Return how many pictures the longest row has."""
        return max(len(pictures) for _, pictures in self.rows)


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
        return not (self.drawings or self.remarks or any(grid.rows for grid in self.grids))


def text_column(heading: str, name: str) -> Column:
    return Column(heading, lambda row: Cell(_known(row[name])), "text")


def integer_column(heading: str, name: str) -> Column:
    return number_column(heading, name, ",.0f", bounded=False)


def run_column(heading: str, name: str) -> Column:
    """Return a column of runs, each a link to its folder where the page knows it."""
    return Column(heading, lambda row: Cell(_known(row[name]), kind="run"), "text")


def number_column(
    heading: str, name: str, form: str, *, scale: float = 1.0, bounded: bool = True, switched: bool = False
) -> Column:
    """Return a column of numbers divided by `scale`, with their intervals where `bounded`."""

    def cell(row: Row) -> Cell:
        value = row[name]
        shown = number(value if pd.isna(value) else value / scale, form)
        return Cell(shown, interval_of(row, name, form, scale) if bounded else "", "number")

    return Column(heading, cell, switched=switched)


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
    """Return a table of the page, without empty columns and without rows beyond the first 200.

    Rows that are sorted by their options stand under them; else the options are a column.
    """
    shown = table.iloc[:_MOST_ROWS]
    labels = _group_labels(shown)
    if labels is None:
        columns = [text_column("options", "options"), *columns]
    headings, cells = _transposed(_numbered(_filled_columns(shown, columns)))
    groups = _grouped(labels or [""] * len(shown), zip(*cells, strict=True))
    return Grid(name, caption, headings, groups, file, _cut(len(table), file))


def _transposed(
    columns: Iterable[tuple[Cell, Sequence[Cell]]],
) -> tuple[tuple[Cell, ...], list[Sequence[Cell]]]:
    """Return the headings, and the cells of each column."""
    filled = list(columns)
    return tuple(heading for heading, _ in filled), [cells for _, cells in filled]


def _group_labels(table: pd.DataFrame) -> list[str] | None:
    """Return the options of each row, empty where the table has none; None where they are not sorted."""
    labels = list(map(clean, table["options"])) if "options" in table else [""] * len(table)
    return labels if len(set(labels)) == len([*groupby(labels)]) else None


def _grouped(labels: Sequence[str], rows: Iterable[GridRow]) -> tuple[GridGroup, ...]:
    labelled_rows = zip(labels, rows, strict=True)
    return tuple((label, tuple(row for _, row in of)) for label, of in groupby(labelled_rows, itemgetter(0)))


def _filled_columns(
    table: pd.DataFrame, columns: Sequence[Column]
) -> Iterator[tuple[Column, Sequence[Cell]]]:
    """Yield the cells of each column that is not empty."""
    rows = table.to_dict("records")
    for column in columns:
        cells = [column.cell(row) for row in rows]
        if any(cell.text not in _EMPTY for cell in cells):
            yield column, cells


def _numbered(
    filled: Iterable[tuple[Column, Sequence[Cell]]],
) -> Iterator[tuple[Cell, Sequence[Cell]]]:
    """Yield heading and cells of each column, with its number among those of which one is shown."""
    numbers = itertools.count(1)
    for column, cells in filled:
        choice = next(numbers) if column.switched else 0
        heading = Cell(column.heading, kind=column.kind, choice=choice)
        yield heading, [replace(cell, choice=choice) for cell in cells]


def _cut(rows: int, file: str) -> str:
    return f"The first {_MOST_ROWS} of {rows:,} rows; all are in {file}." if rows > _MOST_ROWS else ""


def _known(value: object) -> str:
    return clean(value) if pd.notna(value) and value != "" else UNKNOWN  # type: ignore[call-overload]
