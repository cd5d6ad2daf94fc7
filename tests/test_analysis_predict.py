"""Predictions written before the runs: what they hold and what they refuse."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from analysis.__main__ import main
from analysis.loading.load import load_study
from analysis.loading.prediction_files import (
    PREDICTIONS_FOLDER,
    PredictionFile,
    file_sha256,
    read_prediction,
    series_sha256,
    write_prediction,
)
from analysis.prediction.command import counts_to_predict
from analysis.prediction.forecast import predict_study
from analysis.prediction.predictor import Predictor
from analysis.prediction.scaling_laws import Counts
from analysis.prediction.series import all_series
from tests.predicted import write_launches
from tests.records import make_point, make_workers, write_run
from unet_scaling.study.config import PROJECT
from unet_scaling.study.errors import UserError

LINEAR = {1: [0.1, 0.101, 0.099], 2: [0.1, 0.101, 0.099], 4: [0.1, 0.101, 0.099]}


def predicted(folder: Path, *workers: int) -> PredictionFile:
    return predict_study(folder, load_study(folder), workers)


def test_the_command_writes_a_file_and_prints_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_launches(tmp_path, LINEAR)
    write_launches(tmp_path, LINEAR, "horovod")
    assert main(["predict", str(tmp_path), "--for", "8,14"]) == 0
    (path,) = (tmp_path / PREDICTIONS_FOLDER).iterdir()
    found = read_prediction(path)
    names = [(point.framework, point.workers) for point in found.points]
    assert names == [("pytorch_native", 8), ("pytorch_native", 14), ("horovod", 8), ("horovod", 14)]
    told = capsys.readouterr().out
    assert str(path) in told
    assert "native DDP on 14 workers, from 1, 2, 4:" in told


def test_the_file_names_every_record_by_its_checksum(tmp_path: Path) -> None:
    write_launches(tmp_path, LINEAR)
    inputs = {each.file: each.sha256 for each in predicted(tmp_path, 8).inputs}
    assert len(inputs) == 9
    assert all(file_sha256(tmp_path / name) == digest for name, digest in inputs.items())


def test_throughput_and_step_time_are_of_one_prediction(tmp_path: Path) -> None:
    write_launches(tmp_path, LINEAR)
    (point,) = predicted(tmp_path, 8).points
    assert point.step_seconds.median == pytest.approx(0.1, rel=0.01)
    assert point.throughput.median == pytest.approx(8 * 8 / point.step_seconds.median)
    assert point.step_seconds.low is not None
    assert point.throughput.high == pytest.approx(8 * 8 / point.step_seconds.low)
    assert point.linear.median == pytest.approx(8 * 8 / 0.1)
    assert point.fitted_on == [1, 2, 4]


@pytest.mark.parametrize(
    ("counts", "asked", "said"),
    [
        ((1, 2, 4, 8), "8,14", "--for 8: a prediction whose inputs hold the point is none"),
        ((1, 2, 4), "1", "found '1'; allowed: numbers of at least 2"),
        ((1, 2, 4), "8,8", "names a count twice"),
        ((1, 2, 4), "eight", "found 'eight'; allowed"),
        ((1, 2), "8", "2 worker counts, at least 3 needed"),
        ((2, 4, 6), "8", "no run on 1 worker"),
    ],
)
def test_what_cannot_be_predicted_is_refused_in_words(
    tmp_path: Path, counts: tuple[int, ...], asked: str, said: str
) -> None:
    write_launches(tmp_path, dict.fromkeys(counts, (0.1,)))
    words = [sys.executable, "-m", "unet_scaling", "predict", str(tmp_path), "--for", asked]
    done = subprocess.run(
        words, cwd=PROJECT, capture_output=True, text=True, timeout=120, env=os.environ | {"COLUMNS": "200"}
    )
    assert done.returncode in (2, 65)
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / PREDICTIONS_FOLDER).exists()


@pytest.mark.parametrize("name", ["nowhere", "empty"])
def test_a_study_that_cannot_be_read_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"is no folder|has no run folders"):
        main(["predict", str(tmp_path / name), "--for", "8"])


def test_runs_of_which_none_is_usable_are_no_inputs(tmp_path: Path) -> None:
    write_run(tmp_path, end=None)
    with pytest.raises(UserError, match="it has no usable run"):
        main(["predict", str(tmp_path), "--for", "8"])


def test_a_run_without_its_end_is_neither_input_nor_obstacle(tmp_path: Path) -> None:
    write_launches(tmp_path, LINEAR)
    write_run(tmp_path, workers=8, end=None)
    assert not any("w08" in each.file for each in predicted(tmp_path, 8).inputs)


def test_counts_to_predict_are_ascending() -> None:
    assert counts_to_predict("14, 8") == [8, 14]


def test_a_file_is_never_written_again(tmp_path: Path) -> None:
    write_launches(tmp_path, LINEAR)
    made = predicted(tmp_path, 8)
    path = write_prediction(tmp_path, made)
    assert read_prediction(path) == made
    with pytest.raises(UserError, match="never written again"):
        write_prediction(tmp_path, made)


@pytest.mark.parametrize("change", ["number", "no checksum", "unknown key", "cut"])
def test_a_changed_file_is_not_read(tmp_path: Path, change: str) -> None:
    write_launches(tmp_path, LINEAR)
    path = write_prediction(tmp_path, predicted(tmp_path, 8))
    content = json.loads(path.read_text())
    if change == "number":
        content["points"][0]["throughput"]["median"] *= 1.1
    if change == "no checksum":
        del content["sha256"]
    if change == "unknown key":
        content["more"] = 1
    path.write_text(json.dumps(content) if change != "cut" else path.read_text()[:-40])
    with pytest.raises(ValueError, match=r"sha256|crc|Expecting|Unterminated|delimiter"):
        read_prediction(path)


def test_no_interval_where_nothing_measured_the_link_between_nodes(tmp_path: Path) -> None:
    for workers, step in {1: 0.1, 2: 0.1, 4: 0.1, 6: 0.1}.items():
        facts = [
            facts.model_copy(update={"host": f"node{1 + place // 6}"})
            for place, facts in enumerate(make_workers(workers))
        ]
        write_run(
            tmp_path, workers=workers, images_per_second=8 * workers / step, images_per_epoch=80 * workers,
            header={"workers": facts},
        )  # fmt: skip
    (series,) = all_series(load_study(tmp_path))
    forecast = Predictor(series, len(series.launches)).at(Counts(np.array([12.0]), np.array([2.0])))
    assert np.isnan(forecast.interval).all()
    assert "link between nodes" in forecast.why


def test_a_series_keeps_its_name_whatever_tells_its_runs_apart() -> None:
    first = make_point("horovod", 2, 1)
    assert series_sha256(first) == series_sha256(make_point("horovod", 8, 3, label="-x"))
    assert series_sha256(first) == series_sha256(
        make_point(
            "horovod",
            2,
            1,
            options={"training": {"checkpoint_minutes": 7, "epochs": 3, "batch_per_worker": 8}},
        )
    )
    assert series_sha256(first) != series_sha256(make_point("pytorch_native", 2, 1))
    assert series_sha256(first) != series_sha256(
        make_point("horovod", 2, 1, options={"horovod": {"cycle_time_ms": 5}})
    )
