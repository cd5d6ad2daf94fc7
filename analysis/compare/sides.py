"""The two studies of a comparison, called A and B, and the points of each with their options."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pandas as pd

from analysis.loading.load import load_study
from analysis.loading.options import flat_options, labels, shown
from analysis.loading.reference import load_reference
from analysis.study import POINT, Study
from unet_scaling.study.config import Framework
from unet_scaling.study.errors import EXIT_BAD_DATA, UserError
from unet_scaling.study.record_lines import Header

Letter = Literal["A", "B"]
# More reasons would hide the advice; left_out.csv of the study's own report has them all.
_MOST_REASONS = 3


@dataclass(frozen=True)
class StudyPoint:
    """A point of one study: its runs, and its options by flat key, {"training.precision": "fp32", ...}."""

    framework: Framework
    workers: int
    runs: tuple[str, ...]
    settings: Mapping[str, str]


@dataclass(frozen=True)
class StudySide:
    """One of the two studies, its folder and its points, in the order of its runs."""

    letter: Letter
    folder: Path
    study: Study
    points: tuple[StudyPoint, ...]

    @property
    def title(self) -> str:
        """Return "A (before)"."""
        return f"{self.letter} ({self.study.name})"

    def headers(self, points: Sequence[StudyPoint]) -> list[Header]:
        """Return the headers of the runs of these points; none of logs in the older layout."""
        headers = self.study.headers
        return [headers[run] for point in points for run in point.runs if run in headers]

    def label(self, point: StudyPoint, axes: Sequence[str]) -> tuple[str, str]:
        """Return what these axes say of a point: shared options, and knobs of its framework."""
        headers = self.headers([point])
        return labels(headers[0].config, axes) if headers else ("", "")


def read_side(letter: Letter, folder: Path) -> StudySide:
    """Return the study in a folder: its records, or logs in the older layout where it has no records.

    Raises UserError where the folder is missing or holds no usable run.
    """
    study = load_reference(folder) if _is_older_layout(folder) else load_study(folder)
    if study.runs.empty and len(study.subject.runs):
        played = study.played is not None
        runs = "played runs only (training.plays)" if played else "no run with an epoch after the warm-up"
        raise UserError(f"{letter} = {folder} has {runs}: there is no speed to compare", EXIT_BAD_DATA)
    if study.runs.empty:
        rows = study.left_out.iloc[:_MOST_REASONS].to_dict("records")
        reasons = "; ".join(f"{row['run']}: {row['reason']}" for row in rows)
        raise UserError(f"{letter} = {folder} has no usable run: {reasons}", EXIT_BAD_DATA)
    return StudySide(letter, folder, study, tuple(_points(study)))


def _is_older_layout(folder: Path) -> bool:
    """Return whether a folder itself holds logs; those beside records lie in the folders of their runs."""
    return folder.is_dir() and any(folder.glob("log_*.csv"))


def _points(study: Study) -> list[StudyPoint]:
    return [_point(study, runs) for _, runs in study.runs.groupby(POINT, sort=False)]


def _point(study: Study, rows: pd.DataFrame) -> StudyPoint:
    runs = tuple(rows["run"])
    framework: Framework = rows["framework"].iloc[0]
    header = study.headers.get(runs[0])
    options = flat_options(header.config) if header else {}
    settings = {name: shown(value) for name, value in options.items()}
    return StudyPoint(framework, int(rows["workers"].iloc[0]), runs, settings)
