"""What `report` says of a study, by its files alone: the one door of the tests to the analysis."""

import io
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pandas.api.types import is_numeric_dtype

from analysis.__main__ import main
from analysis.assembly.assemble import Report, make_report
from analysis.compare.differences import compare_studies, comparison_files
from analysis.compare.two_studies import read_side
from analysis.judge.checks import fairness_checks
from analysis.older_logs.logs import epoch_work, load_reference
from analysis.read.load import load_study
from analysis.report.columns import TABLES, table_files
from analysis.report.exports import export_files, summary_json
from analysis.study import ABSENT, ASKED_COLUMNS, COMPARED, IS_READ, POINT, Study
from analysis.text import sentence
from unet_scaling.study.options import Criteria

Row = dict[str, Any]
# Columns of texts that may be empty as a whole.
EMPTY = (
    "options", "knobs", "native_knobs", "horovod_knobs", "unknown", "doubts", "why", "unscored", "disturbed",
    "speed",
)  # fmt: skip


@contextmanager
def without_figures() -> Iterator[None]:
    """Let commands draw nothing while the block runs: figures take most of their time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("analysis.report.program.draw_figures", lambda _: ())
        patch.setattr("analysis.compare.differences.forest", lambda _: [])
        patch.setattr("analysis.compare.differences.comparison_page", lambda *_: "")
        yield


class Told:
    """The tables and summary.json of a report, each made when a test asks for it."""

    def __init__(self, study: Study) -> None:
        self.study = study

    @cached_property
    def report(self) -> Report:
        return make_report(self.study)

    @cached_property
    def files(self) -> Mapping[str, bytes]:
        """The contents of the CSV files, of summary.json and of what papers take."""
        return table_files(self.report) | export_files(self.report)

    @cached_property
    def summary(self) -> Row:
        """The content of summary.json."""
        found: Row = json.loads(summary_json(self.report))
        return found

    def table(self, name: str) -> pd.DataFrame:
        """The table of this name, of a file or of summary.json; texts that are not there are empty."""
        (made,) = (table for table in TABLES if table.name(self.report) in (name, f"{name}.csv"))
        table = pd.read_csv(io.BytesIO(made.content(self.report)))
        texts = [name for name in table if name in EMPTY or not is_numeric_dtype(table[name])]
        return table.astype(dict.fromkeys(texts, object)).fillna(dict.fromkeys(texts, ""))

    def rows(self, name: str, **where: object) -> list[Row]:
        """The rows of a CSV file with these values."""
        rows = self.table(name).to_dict("records")
        found = [row for row in rows if all(row[key] == value for key, value in where.items())]
        return [{str(key): value for key, value in row.items()} for row in found]

    def row(self, name: str, **where: object) -> Row:
        """The one row of a CSV file with these values."""
        (found,) = self.rows(name, **where)
        return found

    def check(self, name: str) -> tuple[str, bool, str]:
        """Mark of a row of the fairness table, whether it withholds, and its fact."""
        # The table alone: a whole report takes four times as long.
        (row,) = (each for each in fairness_checks(self.study) if each.check == name)
        return row.mark, row.withholds, row.fact

    @property
    def left_out(self) -> Mapping[str, str]:
        """Why each run that is left out is."""
        rows = self.study.all_left_out.to_dict("records")
        return {row["run"]: f"{row['state']}: {row['reason']}" for row in rows}

    @property
    def notes(self) -> str:
        """All notes of the report."""
        return "\n".join(self.report.notes)

    @property
    def outcomes(self) -> list[str]:
        """What comes of each comparison of native DDP and Horovod."""
        return [row["outcome"] for row in self.rows("comparison")]


def all_said(answer: Mapping[str, Any]) -> str:
    """Return the headline and the remarks of an answer of summary.json in one line."""
    return "; ".join([answer["headline"], *answer["remarks"]])


def report_of(folder: Path, criteria: Criteria | None = None, *, asked: bool = True) -> Told:
    """The report on the records in a folder; without a study.json as if it asked for what is there."""
    study = load_study(folder)
    if asked and study.asked is None and study.headers:
        study = replace(study, asked=_asked(study))
    return Told(replace(study, criteria=criteria) if criteria else study)


def _asked(study: Study) -> pd.DataFrame:
    """The table of what is asked for, of a study that asks for 1 worker and more of both frameworks."""
    runs = study.runs
    found = runs[["run", "framework", "workers", "repeat"]].assign(
        point=runs.groupby(POINT, sort=False).ngroup(), fate=IS_READ
    )
    counts = {1, max(2, runs["workers"].max())}
    known = set(zip(runs["framework"], runs["workers"], strict=True))
    absent = [
        {"run": f"{framework}-{workers}", "framework": framework, "workers": workers, "repeat": 1,
         "point": f"{framework} {workers}", "fate": ABSENT}
        for framework in COMPARED for workers in counts if (framework, workers) not in known
    ]  # fmt: skip
    table = pd.concat([found, pd.DataFrame(absent)]) if absent else found
    return table.assign(label="", replaced=0, quiet_replaced=0)[list(ASKED_COLUMNS)]


def report_of_older(folder: Path, images: int | None = None, batch: int | None = None) -> Told:
    """The report on logs in the older layout; `images` of an epoch and `batch` are what a user states."""
    return Told(load_reference(folder, epoch_work(images, batch)))


def reported(folder: Path, *options: str) -> Path:
    """The folder of the files that the command writes on the records in a folder, but for the figures."""
    with without_figures():
        assert main([str(folder), *options]) == 0
    return folder / "report"


class Compared:
    """What `compare` says of two studies, by its files; nothing is drawn."""

    def __init__(self, a: Path, b: Path) -> None:
        with without_figures():
            self.comparison = compare_studies(read_side("A", a), read_side("B", b))
            self.files = comparison_files(self.comparison)

    @property
    def rows(self) -> list[Row]:
        """The points that both have; texts that are not there are empty."""
        return [row for row in self.all_rows if not row["only_in"]]

    @property
    def only(self) -> list[tuple[str, str, int, str]]:
        """The points of one study alone: which, framework, workers, knobs."""
        names = ("only_in", "framework", "workers", "knobs")
        return [tuple(row[name] for name in names) for row in self.all_rows if row["only_in"]]

    @cached_property
    def all_rows(self) -> list[Row]:
        table = pd.read_csv(io.BytesIO(self.files["compare.csv"]))
        texts = ["options", "knobs", "only_in", "doubts", "iou_remarks"]
        rows = table.astype(dict.fromkeys(texts, object)).fillna(dict.fromkeys(texts, "")).to_dict("records")
        return [{str(key): value for key, value in row.items()} for row in rows]

    @property
    def differing(self) -> Mapping[str, tuple[str, str]]:
        """The facts in which the studies differ, with the values of A and B."""
        table = pd.read_csv(io.BytesIO(self.files["compare_facts.csv"]), dtype=str)
        rows = table.to_dict("records")
        return {row["fact"]: (row["a"], row["b"]) for row in rows if row["differs"] == "True"}

    @property
    def text(self) -> str:
        """The answer, and what to know beside it."""
        return "\n".join(map(sentence, [self.comparison.headline, *self.comparison.notes]))
