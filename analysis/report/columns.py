"""Write the column lists of docs/columns.md, and the names that no score may have, from the list of tables.

python -m analysis.report.columns           print the lists
python -m analysis.report.columns --write   write both, the lists between their marks in docs/columns.md
"""

import sys
from collections.abc import Iterator
from pathlib import PurePath

from analysis.figures.catalogue import FIGURES
from analysis.report.table import Table, column_names
from analysis.report.tables import TABLES
from analysis.score import BUILT_IN_COLUMNS, BUILT_IN_SCORE, ENDS, TAKEN_NAMES_FILE
from unet_scaling.study.config import PROJECT

PAGE = PROJECT / "docs" / "columns.md"
BEGIN = "<!-- tables: written by python -m analysis.report.columns --write -->\n"
END = "<!-- end of tables -->\n"
# Of summary.json, compare.csv, and files that are no tables.
FURTHER_NAMES = (
    "answers", "application", "checks", "compare", "criteria", "doubts", "launches", "launches_needed",
    "notes", "only_in", "points", "provenance", "recommendations", "report", "schema_version", "seeds_paired",
    "study", "throughput", "throughput_unit", "verdicts",
)  # fmt: skip


def column_lists() -> str:
    """Return the columns of every table as Markdown."""
    return "\n".join(map(_column_list, TABLES))


def _column_list(table: Table) -> str:
    about = [table.about, ""] if table.about else []
    rows = [f"| {_code(key)} | {meaning} |".replace("|  |", "| |") for key, meaning in table.columns.items()]
    return "\n".join([f"### `{table.file}`", "", *about, "| column | meaning |", "|---|---|", *rows, ""])


def _code(key: str) -> str:
    return ", ".join(f"`{name}`" for name in column_names(key))


def taken_names() -> str:
    """Return the names of columns, files, figures and keys besides those named for the score, one a line."""
    taken = {ENDS.sub("", name) for name in _names() if BUILT_IN_SCORE not in name.split("_")}
    return "".join(f"{name}\n" for name in sorted(taken - BUILT_IN_COLUMNS))


def _names() -> Iterator[str]:
    for table in TABLES:
        yield from (*table.names, PurePath(table.file).stem)
    yield from (*FIGURES, *FURTHER_NAMES)


def with_column_lists(page: str) -> str:
    """Return the page with the column lists of today between its marks; raise ValueError without marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{PAGE} lacks the line {BEGIN!r} or {END!r}")
    return f"{before}{BEGIN}\n{column_lists()}\n{END}{after}"


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(with_column_lists(PAGE.read_text()))
        TAKEN_NAMES_FILE.write_text(taken_names())
    else:
        print(column_lists())
