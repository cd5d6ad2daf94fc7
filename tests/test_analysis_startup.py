"""The start of a run: read from its record, and drawn in its parts."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.figures.catalogue import FIGURES, draw
from analysis.figures.drawing.inputs import Inputs
from analysis.findings.comparison import compare
from analysis.findings.cost import cost_table
from analysis.findings.quality import iou_table
from analysis.findings.speedup import summarise
from analysis.loading.budget_columns import startup_columns
from analysis.loading.load import load_study
from analysis.study import STARTUP_TABLE_COLUMNS, Study
from tests.records import write_run
from unet_scaling.study.config import FRAMEWORKS, PROJECT
from unet_scaling.study.measurements import STARTUP_COLUMNS, Startup
from unet_scaling.study.record import RECORD_NAME, read_record


def inputs_of(study: Study) -> Inputs:
    nothing = pd.DataFrame(columns=["options", "framework", "knobs"])
    return Inputs(study, summarise(study), compare(study), iou_table(study), cost_table(study), nothing, [])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both frameworks on 1, 2 and 4 workers with three repeats each."""
    folder = tmp_path_factory.mktemp("logs") / "start"
    for framework in FRAMEWORKS:
        for workers in (1, 2, 4):
            for repeat in (1, 2, 3):
                write_run(folder, framework, workers, repeat, images_per_second=90.0 * workers)
    return folder


@pytest.fixture(scope="module")
def study(folder: Path) -> Study:
    return load_study(folder)


def test_the_start_is_read_from_the_record(folder: Path) -> None:
    record = read_record(next(folder.glob("*w02*")) / RECORD_NAME)
    assert all(len(column) == 0 for column in startup_columns(record).values())
    startup = Startup.model_validate({name: [1.0, 2.0] for name in STARTUP_COLUMNS})
    columns = startup_columns(replace(record, startup=startup))
    assert list(columns["worker"]) == [0, 1]
    assert all(list(columns[name]) == [1.0, 2.0] for name in STARTUP_COLUMNS)


def test_the_start_is_drawn_in_parts_that_sum_to_the_whole(study: Study) -> None:
    rows = [
        {"run": run, "worker": worker} | dict.fromkeys(STARTUP_COLUMNS, float(worker + repeat))
        for run, workers, repeat in study.runs[["run", "workers", "repeat"]].itertuples(index=False)
        for worker in range(workers)
    ]
    known = replace(study, startups=pd.DataFrame(rows, columns=list(STARTUP_TABLE_COLUMNS)))
    inputs = inputs_of(known)
    axes, _ = draw("startup", inputs).axes
    heights = np.array([[bar.get_height() for bar in bars] for bars in axes.containers])
    np.testing.assert_allclose(heights, np.tile([2.0, 2.5, 3.5], (len(STARTUP_COLUMNS), 1)))
    (whole,) = [line for line in axes.lines if line.get_label() == "whole"]
    np.testing.assert_allclose(np.asarray(whole.get_ydata(), dtype=float), heights.sum(axis=0))
    assert "native DDP 21.0 s on 4 workers (imports 3.5 s" in FIGURES["startup"].alternative(inputs)


def test_committed_records_have_their_start() -> None:
    study = load_study(PROJECT / "logs" / "published_gap_mpich")
    inputs = inputs_of(study)
    assert len(study.startups) == study.runs["workers"].sum()
    assert FIGURES["startup"].missing(inputs) is None
