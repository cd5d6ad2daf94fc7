"""The tables of a report as files: which columns, in which order, as CSV and Parquet."""

import io

import pandas as pd

from analysis.budget.diagnosis import diagnosis_table
from analysis.findings.speedup import COLUMNS
from analysis.report.assemble import Report
from analysis.study import NAMES, Study
from analysis.text import cleaned

ROUNDED = "%.10g"


def csv_tables(report: Report) -> dict[str, pd.DataFrame]:
    """The table of each CSV file, its columns as documented in docs/report.md."""
    tables = {
        "runs.csv": report.study.runs,
        "evaluations.csv": report.study.evaluations,
        "summary.csv": summary(report),
        "comparison.csv": report.comparisons,
        "budget.csv": report.overhead.budget,
        "difference.csv": report.overhead.differences,
        "network.csv": report.overhead.network,
        "ping_pong.csv": report.study.ping_pongs,
        "diagnosis.csv": diagnosis_table(report.diagnoses),
        "iou.csv": report.iou,
        "iou_between_frameworks.csv": report.iou_between,
        "cost.csv": report.cost,
        "predictions.csv": report.predictions,
        "fits.csv": report.fits,
        "fairness.csv": report.fairness,
        "left_out.csv": report.study.left_out,
    }
    return {name: _named(table, report.study) for name, table in tables.items()}


def _named(table: pd.DataFrame, study: Study) -> pd.DataFrame:
    """A table whose arms have the names that a user gave; else the frameworks are called as in records."""
    if study.names == NAMES or "framework" not in table.columns:
        return table
    return table.assign(framework=table["framework"].map(study.names))


def summary(report: Report) -> pd.DataFrame:
    """One row per point: the agreed columns, what else is known of a point, its options and axes.

    The throughput in the study's own unit is left out: it repeats images or epochs per second.
    """
    last = ["options", "knobs", *report.study.axes]
    internal = ["throughput", "throughput_low", "throughput_high"]
    further = [name for name in report.points.columns if name not in (*COLUMNS, *last, *internal)]
    return report.points[[*COLUMNS, *further, *last]]


def table_files(report: Report) -> dict[str, bytes]:
    """The contents of the table files, by file name."""
    files = {name: as_csv(table) for name, table in csv_tables(report).items()}
    return files | {"epochs.parquet": as_parquet(report.study.epochs)}


def as_csv(table: pd.DataFrame) -> bytes:
    """UTF-8, one header line, ten digits, empty where a value is not known."""
    return cleaned(table).to_csv(index=False, lineterminator="\n", float_format=ROUNDED).encode()


def as_parquet(table: pd.DataFrame) -> bytes:
    buffer = io.BytesIO()
    table.to_parquet(buffer, index=False)
    return buffer.getvalue()
