"""Start-up and single steps: read from the record and from steps.parquet, and drawn with their stragglers."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import PathCollection

from analysis.figures.catalogue import FIGURES, draw
from analysis.figures.drawing.inputs import Inputs
from analysis.findings.comparison import compare
from analysis.findings.cost import cost_table
from analysis.findings.quality import iou_table
from analysis.findings.speedup import summarise
from analysis.loading.load import load_study
from analysis.loading.startup import startup_columns
from analysis.study import STARTUP_TABLE_COLUMNS, Study
from tests.records import write_run
from unet_scaling.measure.step_sample import STEPS_NAME, StepSample
from unet_scaling.study.config import FRAMEWORKS, PROJECT
from unet_scaling.study.files import write_verified
from unet_scaling.study.measurements import STARTUP_COLUMNS, Phase, Startup
from unet_scaling.study.record import RECORD_NAME, read_record

STEPS = 100
FORWARD_SECONDS, SYNC_SECONDS = 0.010, 0.002
STRAGGLER_SECONDS, LONGEST_SECONDS = 0.004, 0.5


def phases(workers: int, longest: float = 0.0) -> np.ndarray:
    """Seconds [workers, steps, phases]; the last of several workers is slower, the others wait."""
    seconds = np.zeros((workers, STEPS, len(Phase)))
    seconds[:, :, Phase.FORWARD] = FORWARD_SECONDS
    seconds[:, :, Phase.SYNC] = SYNC_SECONDS
    if workers > 1:
        seconds[-1, :, Phase.FORWARD] += STRAGGLER_SECONDS
        seconds[:-1, :, Phase.SYNC] += STRAGGLER_SECONDS
    seconds[:, STEPS // 2, Phase.FORWARD] += longest
    return seconds


def write_steps(run: Path, workers: int) -> None:
    """Write the step file of a run: a slow warm-up epoch, then one with a single long step."""
    sample = StepSample(workers, seed=0)
    sample.add(0, 0, 10 * phases(workers))
    sample.add(1, 0, phases(workers, LONGEST_SECONDS))
    content = sample.parquet()
    assert content is not None
    write_verified(run / STEPS_NAME, content)


def inputs_of(study: Study) -> Inputs:
    nothing = pd.DataFrame(columns=["options", "framework", "knobs"])
    return Inputs(study, summarise(study), compare(study), iou_table(study), cost_table(study), nothing, [])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both frameworks on 1, 2 and 4 workers with three repeats each."""
    folder = tmp_path_factory.mktemp("logs") / "steps"
    for framework in FRAMEWORKS:
        for workers in (1, 2, 4):
            for repeat in (1, 2, 3):
                run = write_run(folder, framework, workers, repeat, images_per_second=90.0 * workers)
                write_steps(run, workers)
    return folder


@pytest.fixture(scope="module")
def study(folder: Path) -> Study:
    return load_study(folder)


def test_steps_are_read_without_the_warm_up(study: Study) -> None:
    assert len(study.steps) == 2 * 3 * (1 + 2 + 4)
    workers = study.steps.merge(study.runs[["run", "workers"]], on="run")
    straggler = workers[(workers["workers"] == 4) & (workers["worker"] == 3)].iloc[0]
    other = workers[(workers["workers"] == 4) & (workers["worker"] == 0)].iloc[0]
    whole = FORWARD_SECONDS + SYNC_SECONDS + STRAGGLER_SECONDS
    assert straggler["steps"] == STEPS
    assert straggler["median_seconds"] == pytest.approx(whole)
    assert other["p95_seconds"] == pytest.approx(whole)
    assert straggler["maximum_seconds"] == pytest.approx(whole + LONGEST_SECONDS)
    assert straggler["work_seconds"] == pytest.approx(FORWARD_SECONDS + STRAGGLER_SECONDS)
    assert other["work_seconds"] == pytest.approx(FORWARD_SECONDS)


def test_the_figure_shows_every_workers_own_work_and_the_longest_step(study: Study) -> None:
    inputs = inputs_of(study)
    (axes,) = draw("steps", inputs).axes
    groups = [each for each in axes.collections if isinstance(each, PathCollection)]
    dots = np.concatenate([np.asarray(group.get_offsets(), dtype=np.float64) for group in groups])
    own = 1000 * np.array([FORWARD_SECONDS, FORWARD_SECONDS + STRAGGLER_SECONDS])
    assert len(dots) == 2 * (1 + 2 + 4)
    assert sorted(set(dots[:, 1].round(6))) == pytest.approx(own)
    longest = 1000 * (FORWARD_SECONDS + STRAGGLER_SECONDS + SYNC_SECONDS + LONGEST_SECONDS)
    crosses = [np.asarray(line.get_ydata(), dtype=float) for line in axes.lines if line.get_marker() == "x"]
    assert [float(heights[-1]) for heights in crosses] == pytest.approx([longest, longest])
    alternative = FIGURES["steps"].alternative(inputs)
    assert "native DDP 16 ms on 4 workers, longest 516 ms, worker 3 has most own work, 14 ms" in alternative


def test_a_damaged_step_file_becomes_a_note(tmp_path: Path) -> None:
    for workers in (1, 2):
        write_steps(write_run(tmp_path, "horovod", workers), workers)
    damaged = next(tmp_path.glob(f"*w02*/{STEPS_NAME}"))
    damaged.write_bytes(damaged.read_bytes()[:-1])
    study = load_study(tmp_path)
    assert set(study.steps["worker"]) == {0}
    assert any(f"{damaged.parent.name}: {STEPS_NAME} cannot be read" in note for note in study.notes)


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


def test_committed_records_have_their_start_and_no_single_steps() -> None:
    study = load_study(PROJECT / "logs" / "published_gap_mpich")
    inputs = inputs_of(study)
    assert len(study.startups) == study.runs["workers"].sum()
    assert FIGURES["startup"].missing(inputs) is None
    assert "steps.parquet" in str(FIGURES["steps"].missing(inputs))
