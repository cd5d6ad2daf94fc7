"""The list of all tables of a report: a new table is one entry here or in a part, and what makes it.

From an entry come the file, the page's table and, by `python -m analysis.report.columns --write`, its
columns in docs/columns.md.
"""

from analysis.report import page_columns as shown
from analysis.report.assemble import Report
from analysis.report.table import PageTable, Table
from analysis.report.tables_of_iou_and_cost import COST_TABLES, IOU_TABLES
from analysis.report.tables_of_overhead import OVERHEAD_TABLES
from analysis.report.tables_of_played import PLAYED_TABLES
from analysis.report.tables_of_saliency import SALIENCY_TABLES
from analysis.report.tables_of_speed import SPEED_TABLES
from analysis.report.view import Grid

FAIRNESS_TABLES = (
    Table(
        "fairness.csv",
        lambda report: report.fairness,
        {
            "check": "what should be equal in the runs compared; rows that compare native DDP with another "
            "framework than Horovod end with its name",
            "mark": "yes, no, or not known",
            "fact": "what the records say",
            "withholds": "true: neither framework is called faster where the fact says",
        },
        page=PageTable(
            "fairness",
            "What is equal in the runs compared",
            shown.of_fairness,
        ),
    ),
    Table(
        "left_out.csv",
        lambda report: report.study.all_left_out,
        {
            "run": "name of its folder or log",
            "state": "as in `unet-scaling status`: waiting, failed, resumable, diverged, invalid; of "
            "complete runs: no throughput, refused, or invalid where the record contradicts itself or a "
            "dilated cluster was not slowed as it should be",
            "reason": "with file and line, or the fact and both values",
            "framework, workers, repeat": "where known",
            "options, knobs": "as in the other tables, where the point is known",
        },
        page=PageTable(
            "left-out",
            "Runs left out",
            shown.of_left_out,
        ),
    ),
)
TABLES = (
    *SPEED_TABLES, *OVERHEAD_TABLES, *IOU_TABLES, *PLAYED_TABLES, *COST_TABLES,
    *SALIENCY_TABLES, *FAIRNESS_TABLES,
)  # fmt: skip


def table_files(report: Report) -> dict[str, bytes]:
    """Return the contents of the table files, by file name."""
    return {table.name(report): table.content(report) for table in TABLES if table.is_made(report)}


def grids(report: Report, section: str) -> tuple[Grid, ...]:
    """Return the tables that a section of the page shows."""
    made = [table for table in TABLES if table.is_made(report)]
    pages = [(table, page) for table in made for page in table.pages if page.section == section]
    return tuple(table.grid(report, page) for table, page in pages)
