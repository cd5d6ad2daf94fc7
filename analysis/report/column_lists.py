"""Write the column lists of docs/columns.md, and the names that no score may have, from the list of tables.

python -m analysis.report.column_lists           print the lists
python -m analysis.report.column_lists --write   write both, the lists between their marks in docs/columns.md
"""

import sys
from pathlib import PurePath

from analysis.figures.catalogue import FIGURES
from analysis.report.columns import TABLES
from analysis.report.tables import COMPARE_LINES
from analysis.study import BUILT_IN_COLUMNS, BUILT_IN_SCORE, SCORE_ENDINGS, TAKEN_NAMES_FILE
from unet_scaling import PROJECT

PAGE = PROJECT / "docs" / "columns.md"
BEGIN = "<!-- tables: written by python -m analysis.report.column_lists --write -->\n"
END = "<!-- end of tables -->\n"
COMPARE_ABOUT = "Of `unet-scaling compare`: one row per point, those of one study alone last."
# Of summary.json, compare.csv, and files that are no tables.
FURTHER_NAMES = (
    "answers", "application", "checks", "compare", "criteria", "doubts", "launches", "launches_needed",
    "notes", "only_in", "points", "provenance", "recommendations", "report", "schema_version", "seeds_paired",
    "study", "throughput", "throughput_unit", "verdicts",
)  # fmt: skip


def column_lists() -> str:
    """Return the columns of every table as Markdown."""
    lists = [
        (table.file, table.about, {line.names: line.meaning for line in table.column_lines if line.in_file})
        for table in TABLES
    ]
    lists.append(("compare.csv", COMPARE_ABOUT, {line.names: line.meaning for line in COMPARE_LINES}))
    parts = []
    for file, about, columns in lists:
        rows = [
            f"| {', '.join(f'`{name}`' for name in names)} | {meaning} |".replace("|  |", "| |")
            for names, meaning in columns.items()
        ]
        head = [f"### `{file}`", "", *([about, ""] if about else []), "| column | meaning |", "|---|---|"]
        parts += [*head, *rows, ""]
    return "\n".join(parts)


def taken_names() -> str:
    """Return the names of columns, files, figures and keys besides those named for the score, one a line."""
    names = [name for table in TABLES for name in (*table.names, PurePath(table.file).stem)]
    every = (*names, *FIGURES, *FURTHER_NAMES)
    taken = {SCORE_ENDINGS.sub("", name) for name in every if BUILT_IN_SCORE not in name.split("_")}
    return "".join(f"{name}\n" for name in sorted(taken - BUILT_IN_COLUMNS))


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
