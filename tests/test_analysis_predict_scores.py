"""Predictions of files held against later runs: which ones may be, and scores checked by hand."""

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.figures.catalogue import draw
from analysis.figures.prediction import caption
from analysis.loading.forecasts import AVERAGE, CHANGED, HOLDS_THE_POINT, UNMEASURED
from analysis.loading.load import load_study
from analysis.loading.prediction_files import (
    PREDICTIONS_FOLDER,
    InputFile,
    PredictionFile,
    file_sha256,
    write_prediction,
)
from analysis.prediction.forecast import predict_study
from analysis.prediction.scoring import interval_score, score_notes, score_table
from analysis.report.assemble import make_report
from analysis.report.figure_files import FigureFiles, inputs_of
from analysis.report.sections import sections
from analysis.statistics.intervals import share_interval
from tests.predicted import LATER, write_launches
from tests.records import write_run
from unet_scaling.study.files import CHECKSUM_KEY, write_json_with_checksum

KNOWN = {1: [0.1, 0.102, 0.098], 2: [0.11, 0.112, 0.108], 4: [0.115, 0.117, 0.113]}


@pytest.fixture
def predicted(tmp_path: Path) -> Path:
    """The folder of a study of 1, 2 and 4 workers with a prediction of 8, and the runs on 8 of later."""
    write_launches(tmp_path, KNOWN)
    write_prediction(tmp_path / PREDICTIONS_FOLDER, predict_study(tmp_path, load_study(tmp_path), [8]))
    write_launches(tmp_path, {8: [0.12] * 3}, header={"started_utc": LATER})
    return tmp_path


def file_of(folder: Path) -> Path:
    (path,) = (folder / PREDICTIONS_FOLDER).iterdir()
    return path


def change(folder: Path, **changes: object) -> None:
    """Replace fields of the prediction file as someone would who knows its checksum."""
    path = file_of(folder)
    content = json.loads(path.read_text()) | changes
    del content[CHECKSUM_KEY]
    write_json_with_checksum(path, content)


def averages(folder: Path) -> pd.DataFrame:
    scores = score_table(load_study(folder))
    return scores[scores["model"] == AVERAGE]


def test_a_prediction_that_is_older_than_its_runs_is_scored(predicted: Path) -> None:
    (row,) = averages(predicted).to_dict("records")
    assert row["unscored"] == ""
    assert row["measured"] == pytest.approx(8 * 8 / 0.12)
    assert row["error"] == pytest.approx(row["predicted"] / row["measured"] - 1)
    assert row["linear_error"] == pytest.approx(0.12 / 0.1 - 1)
    assert row["counted"]
    assert row["inside"] in ("yes", "no")


def test_a_prediction_without_runs_waits_for_them(tmp_path: Path) -> None:
    write_launches(tmp_path, KNOWN)
    write_prediction(tmp_path / PREDICTIONS_FOLDER, predict_study(tmp_path, load_study(tmp_path), [8]))
    (row,) = averages(tmp_path).to_dict("records")
    assert row["unscored"] == UNMEASURED
    assert np.isnan(row["error"])
    assert not row["counted"]


@pytest.mark.parametrize("left_behind", ["usable", "failed", "attempt set aside"])
def test_a_prediction_younger_than_a_run_of_the_point_is_not_scored(
    predicted: Path, left_behind: str
) -> None:
    """Also where only a run that failed was there to look at."""
    early = {"started_utc": "2025-01-31T12:00:00Z"}
    if left_behind == "attempt set aside":
        folder = write_run(predicted, workers=8, repeat=4, end=None, header=early)
        (folder / "run.jsonl").rename(folder / "run.attempt1.jsonl")
    else:
        changes = {"end": None} if left_behind == "failed" else {}
        write_run(predicted, workers=8, repeat=4, images_per_epoch=640, header=early, **changes)  # type: ignore[arg-type]
    (row,) = averages(predicted).to_dict("records")
    assert "its first run began 2025-01-31T12:00:00+00:00" in row["unscored"]
    assert np.isnan(row["error"])


def test_a_record_that_cannot_be_read_may_be_older_than_the_prediction(predicted: Path) -> None:
    folder = write_run(predicted, workers=8, repeat=4, end=None, header={"started_utc": LATER})
    (folder / "run.jsonl").unlink()
    (folder / "run.jsonl").mkdir()
    assert "its first run began 0001-01-01" in averages(predicted)["unscored"].iloc[0]


def test_a_prediction_of_the_same_second_is_not_scored(predicted: Path) -> None:
    change(predicted, written_utc=LATER)
    assert "its first run began" in averages(predicted)["unscored"].iloc[0]


def test_a_file_dated_back_whose_inputs_hold_the_point_is_not_scored(predicted: Path) -> None:
    """Whoever predicts from the run itself and dates the file back still names that run's checksum."""
    seen = predicted / "pytorch_native-w08-r1" / "run.jsonl"
    held = InputFile(file="other/name.jsonl", sha256=file_sha256(seen)).model_dump()
    change(predicted, inputs=[*json.loads(file_of(predicted).read_text())["inputs"], held])
    assert averages(predicted)["unscored"].tolist() == [HOLDS_THE_POINT]


def test_a_prediction_whose_inputs_were_exchanged_is_not_scored(predicted: Path) -> None:
    """Also where one is gone; one that was only set aside is still what it was."""
    place = predicted / "pytorch_native-w02-r1"
    (place / "run.jsonl").rename(place / "run.attempt1.jsonl")
    assert averages(predicted)["unscored"].tolist() == [""]
    shutil.rmtree(place)
    assert CHANGED in averages(predicted)["unscored"].iloc[0]
    write_launches(predicted, {2: [0.2]})
    (row,) = averages(predicted).to_dict("records")
    assert place.name in row["unscored"]
    assert np.isnan(row["error"])


def test_a_tampered_file_is_left_out_and_noted(predicted: Path) -> None:
    path = file_of(predicted)
    content = json.loads(path.read_text())
    content["points"][0]["throughput"]["median"] *= 1.01
    path.write_text(json.dumps(content))
    study = load_study(predicted)
    assert study.forecasts.empty
    assert any(f"{PREDICTIONS_FOLDER}/{path.name} cannot be read" in note for note in study.notes)


def test_of_several_files_the_last_before_the_runs_counts(predicted: Path) -> None:
    first = PredictionFile.model_validate_json(_content(file_of(predicted)))
    older = first.model_copy(update={"written_utc": "2025-01-01T00:00:00+00:00"})
    write_prediction(predicted / PREDICTIONS_FOLDER, older)
    scores = averages(predicted)
    assert scores["counted"].sum() == 1
    assert scores.loc[scores["counted"], "written_utc"].tolist() == [first.written_utc]


def _content(path: Path) -> str:
    content = json.loads(path.read_text())
    del content[CHECKSUM_KEY]
    return json.dumps(content)


def test_a_further_axis_of_the_study_hides_no_prediction(predicted: Path) -> None:
    """Labels change as soon as another option varies; what was predicted is still the same series."""
    write_run(
        predicted,
        workers=1,
        repeat=1,
        options={"training": {"precision": "bf16", "epochs": 3, "batch_per_worker": 8}},
        label="-bf16",
    )
    (row,) = averages(predicted).to_dict("records")
    assert row["options"] == "precision=fp32"
    assert row["unscored"] == ""


def test_interval_scores_by_hand() -> None:
    """Inside: the width. Outside: 2 / 0.05 = 40 times the distance besides."""
    low = np.array([90.0, 90.0, 90.0, 100.0])
    high = np.array([110.0, 110.0, 110.0, 100.0])
    measured = np.array([100.0, 111.0, 85.0, 101.0])
    assert interval_score(low, high, measured) == pytest.approx([20, 60, 220, 40])


def test_the_interval_of_a_coverage_is_exact() -> None:
    """Of 10 held 10: the lower end p solves p^10 = 0.025; of 0 held the upper one (1 - p)^10 = 0.025."""
    assert share_interval(10, 10) == pytest.approx((0.025**0.1, 1.0))
    assert share_interval(0, 10) == pytest.approx((0.0, 1 - 0.025**0.1))


def scored(errors: list[float], inside: list[str]) -> pd.DataFrame:
    """Scores of points that differ in their error alone."""
    size = len(errors)
    return pd.DataFrame(
        {
            "model": [AVERAGE] * size,
            "counted": [True] * size,
            "unscored": [""] * size,
            "error": errors,
            "linear_error": [0.2] * size,
            "inside": inside,
            "interval_score": [0.1] * size,
            "linear_interval_score": [0.4] * size,
            "file": ["one.json"] * size,
        }
    )


def test_the_summary_by_hand() -> None:
    notes = list(score_notes(scored([0.01, -0.06, 0.02], ["yes", "no", "yes"])))
    assert "3 predictions: error -1.0 % in the mean, 3.0 % without the sign, -6.0 % at worst" in notes[0]
    assert "linear scaling (b/N) 20.0 % and 20.0 %" in notes[0]
    assert "2 of 3 intervals hold what was measured: 67 % [9, 99]" in notes[1]
    assert "interval score 10.0 % of the throughput, that of linear scaling 40.0 %" in notes[1]


def test_without_files_nothing_is_said(tmp_path: Path) -> None:
    write_launches(tmp_path, KNOWN)
    assert list(score_notes(score_table(load_study(tmp_path)))) == []


def test_the_report_shows_the_scores(predicted: Path) -> None:
    report = make_report(load_study(predicted))
    (section,) = [each for each in sections(report, FigureFiles({}, {})) if each.anchor == "prediction"]
    assert any("written before the runs, 1 prediction" in remark.lower() for remark in section.remarks)
    assert any("prediction_scores" in grid.name for grid in section.grids)


def test_a_file_is_dated_by_the_clock(predicted: Path) -> None:
    written = datetime.fromisoformat(json.loads(file_of(predicted).read_text())["written_utc"])
    assert abs((datetime.now(UTC) - written).total_seconds()) < 3600


def test_the_figure_draws_what_was_written_before_the_runs(predicted: Path) -> None:
    """Beside the held-out prediction of the same count, on the other side of its median."""
    inputs = inputs_of(make_report(load_study(predicted)))
    (axes,) = draw("prediction", inputs).axes
    (filed,) = averages(predicted).to_dict("records")
    at = {tuple(line.get_xydata()[0]) for line in axes.lines if "predicted" in str(line.get_label())}  # type: ignore[arg-type, index]
    assert any(x < 8 and y == pytest.approx(filed["predicted"]) for x, y in at)
    assert any(x > 8 for x, _ in at)
    assert "Left of a median, native DDP: written before the runs" in caption(inputs)
