"""Write the column lists of docs/report.md from the list of tables.

python -m analysis.report.columns           print them
python -m analysis.report.columns --write   write them between their marks in docs/report.md
"""

import sys

from analysis.report.table import Table, column_names
from analysis.report.tables import TABLES
from unet_scaling.study.config import PROJECT

PAGE = PROJECT / "docs" / "report.md"
BEGIN = "<!-- tables: written by python -m analysis.report.columns --write -->\n"
END = "<!-- end of tables -->\n"


def column_lists() -> str:
    """Return the columns of every table as Markdown."""
    return "\n".join(map(_column_list, TABLES))


def _column_list(table: Table) -> str:
    about = [table.about, ""] if table.about else []
    rows = [f"| {_code(key)} | {meaning} |".replace("|  |", "| |") for key, meaning in table.columns.items()]
    return "\n".join([f"### `{table.file}`", "", *about, "| column | meaning |", "|---|---|", *rows, ""])


def _code(key: str) -> str:
    return ", ".join(f"`{name}`" for name in column_names(key))


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
    else:
        print(column_lists())
