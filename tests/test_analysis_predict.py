"""Predictions written before the runs: what they hold, what they refuse, and how models are averaged."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from analysis.__main__ import main
from analysis.loading.load import load_study
from analysis.loading.ping_pongs import Link
from analysis.loading.prediction_files import (
    PREDICTIONS_FOLDER,
    PredictionFile,
    file_sha256,
    read_prediction,
    series_sha256,
    write_prediction,
)
from analysis.prediction.averaging import (
    LUCKY_ERROR_SHARE,
    ModelForecast,
    Predictor,
    expected_weights,
    skill_weights,
)
from analysis.prediction.command import counts_to_predict
from analysis.prediction.forecast import predict_study
from analysis.prediction.scaling_laws import Counts
from analysis.prediction.series import all_series, count_at
from analysis.study import COMPARED
from tests.predicted import make_step, write_launches, write_link, write_profile
from tests.records import GRADIENT_BYTES, make_point, make_workers, write_run
from unet_scaling.study.compute_profile import COMPUTE_NAME
from unet_scaling.study.config import PROJECT, WRAPPERS, Framework
from unet_scaling.study.errors import UserError

LINEAR = {1: [0.1, 0.101, 0.099], 2: [0.1, 0.101, 0.099], 4: [0.1, 0.101, 0.099]}
READY = [0.02, 0.05]


def knee_seconds(workers: int, link: Link) -> float:
    """Two messages of half the gradients each: the first may hide behind the second's backward pass."""
    half = GRADIENT_BYTES // 2
    first = READY[0] + link.all_reduce(workers, half)
    end = max(first, READY[1]) + link.all_reduce(workers, half)
    return 0.05 + end


def write_knee_study(
    folder: Path, counts: Sequence[int], link: Link, framework: Framework = "pytorch_native"
) -> None:
    """A study whose steps follow a timeline of two buckets, with its profile and a ping-pong."""
    launches = {n: [knee_seconds(n, link) if n > 1 else 0.1] * 3 for n in counts}
    options = {str(framework): {"bucket_cap_mb": 0.9 * GRADIENT_BYTES / 2 / 2**20}}
    for workers, steps in launches.items():
        for repeat, seconds in enumerate(steps, start=1):
            write_run(
                folder, framework, workers, repeat, images_per_second=8 * workers / seconds,
                images_per_epoch=80 * workers, options=options,
            )  # fmt: skip
    alone = folder / f"{framework}-w01-r1"
    write_profile(alone, [make_step(READY)] * 5)
    write_link(alone, link.latency_seconds, link.bytes_per_second)


def predicted(folder: Path, *workers: int) -> PredictionFile:
    return predict_study(folder, load_study(folder), workers)


def predictor_of(folder: Path) -> Predictor:
    (series,) = all_series(load_study(folder))
    return Predictor(series, len(series.launches))


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
    assert "without the bucket timeline: no run on 1 worker has a compute.json" in told


def test_the_file_names_every_record_by_its_checksum(tmp_path: Path) -> None:
    write_knee_study(tmp_path, (1, 2, 4), Link(1e-4, 1e9))
    inputs = {each.file: each.sha256 for each in predicted(tmp_path, 8).inputs}
    assert len(inputs) == 9 + 2
    assert {Path(name).name for name in inputs} == {"run.jsonl", "compute.json", "ping_pong.json"}
    assert all(file_sha256(tmp_path / name) == digest for name, digest in inputs.items())


def write_emulated_study(study: Path, profile: Path) -> Path:
    """Both frameworks on 1, 2 and 4 emulated workers, with a link; returns the profile by which they wait."""
    profile.mkdir()
    write_profile(profile, [make_step(READY)] * 3)
    path = profile / COMPUTE_NAME
    compute = {"name": "recorded", "sha256": file_sha256(path), "device": "cpu", "assumption": None}
    for framework in COMPARED:
        for workers in (1, 2, 4):
            write_run(
                study, framework, workers, images_per_second=80 * workers, images_per_epoch=80 * workers,
                options={"emulation": {"compute": str(path)}}, header={"compute": compute},
            )  # fmt: skip
    write_link(study / "pytorch_native-w01-r1", 1e-4, 1e9)
    return path


def test_an_emulated_study_is_predicted_from_the_profile_that_its_workers_waited_by(tmp_path: Path) -> None:
    path = write_emulated_study(tmp_path / "study", tmp_path / "recorded")
    prediction = predicted(tmp_path / "study", 8)
    assert {model.model for point in prediction.points for model in point.models} >= {"bucket timeline"}
    named = [each for each in prediction.inputs if each.file == str(path)]
    assert [each.sha256 for each in named] == [file_sha256(path)]


def test_a_profile_that_was_changed_is_one_note_and_no_model(tmp_path: Path) -> None:
    path = write_emulated_study(tmp_path / "study", tmp_path / "recorded")
    write_profile(path.parent, [make_step(READY)] * 4)
    study = load_study(tmp_path / "study")
    assert not study.profiles
    (note,) = (note for note in study.notes if "was changed" in note)
    assert "after pytorch_native-w01-r1, horovod-w01-r1 waited by it" in note


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


@pytest.mark.parametrize("framework", ["pytorch_native", *WRAPPERS])
def test_a_timeline_knows_the_knee_that_small_counts_do_not_show(
    tmp_path: Path, framework: Framework
) -> None:
    """Up to 4 workers the first message hides: whoever extends the curve is far off at 32.

    What wraps DDP sends its buckets, and knows no cycles.
    """
    link = Link(3.5e-4, 1e9)
    write_knee_study(tmp_path, (1, 2, 4), link, framework)
    at = count_at(predictor_of(tmp_path).counts, 64)
    forecast = predictor_of(tmp_path).at(at)
    sum_of_terms, timeline = forecast.models
    truth = knee_seconds(64, link)
    assert timeline.seconds == pytest.approx(truth, rel=1e-6)
    assert abs(np.log(sum_of_terms.seconds / truth)) > 0.1
    low, high = forecast.interval
    assert low <= truth <= high
    assert forecast.held_out == 0
    # Neither was seen to err: what the timeline expects to err by is far less, and not believed to the end.
    assert 0.5 < timeline.weight < 0.9


def test_the_model_that_was_right_at_a_held_out_count_weighs_more(tmp_path: Path) -> None:
    link = Link(2.5e-3, 1e9)
    write_knee_study(tmp_path, (1, 2, 4, 8, 16), link)
    forecast = predictor_of(tmp_path).at(count_at(predictor_of(tmp_path).counts, 32))
    assert forecast.held_out == 2
    weights = {model.model: model.weight for model in forecast.models}
    assert sum(weights.values()) == pytest.approx(1)
    assert weights["bucket timeline"] > 0.6


def test_weights_are_one_over_the_mean_squared_error() -> None:
    errors = np.array([[0.03, 0.0], [0.04, 0.01]])
    square = np.array([(0.03**2 + 0.04**2) / 2, 0.01**2 / 2]) + LUCKY_ERROR_SHARE**2
    assert skill_weights(errors) == pytest.approx(1 / square / (1 / square).sum())


def test_a_model_that_expects_to_be_far_off_weighs_little_and_no_model_weighs_all() -> None:
    def model(spread: float) -> ModelForecast:
        return ModelForecast("", 1.0, np.exp(spread * np.array([-1.0, 1.0])))

    assert expected_weights([model(0.01), model(0.01)]) == pytest.approx([0.5, 0.5])
    assert expected_weights([model(0.01), model(0.05)])[0] == pytest.approx(0.5, abs=0.02)
    assert expected_weights([model(0.1), model(1.0)])[0] > 0.95


def test_a_timeline_is_held_against_counts_that_it_did_not_see(tmp_path: Path) -> None:
    """Its interval is as wide as it was wrong: steps that it cannot explain make it say little."""
    link = Link(1e-4, 1e9)
    write_knee_study(tmp_path / "right", (1, 2, 4), link)
    write_launches(tmp_path / "wrong", {1: [0.1] * 3, 2: [0.17] * 3, 4: [0.2] * 3})
    alone = tmp_path / "wrong" / "pytorch_native-w01-r1"
    write_profile(alone, [make_step(READY)] * 5)
    write_link(alone, link.latency_seconds, link.bytes_per_second)
    widths, weights = [], []
    for name in ("right", "wrong"):
        predictor = predictor_of(tmp_path / name)
        (timeline,) = predictor.at(count_at(predictor.counts, 8)).models[1:]
        low, high = timeline.interval
        widths.append(high / low)
        weights.append(timeline.weight)
    assert widths[0] < 1.01
    assert widths[1] > 2
    # With no count held out, a model weighs by what it expects of itself.
    assert weights[1] < 0.3 < weights[0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("no profile", "no run on 1 worker has a compute.json"),
        ("other batch", "another batch or image size"),
        ("no link", "no probe and no ping-pong"),
        ("other link", "no probe or ping-pong timed the link"),
    ],
)
def test_a_timeline_without_evidence_is_absent_and_says_why(tmp_path: Path, change: str, said: str) -> None:
    write_launches(tmp_path, LINEAR)
    alone = tmp_path / "pytorch_native-w01-r1"
    if change != "no profile":
        write_profile(alone, [make_step(READY)] * 3, batch=16 if change == "other batch" else 8)
    if change != "no link":
        hosts = ("node1", "node2") if change == "other link" else ("node1", "node1")
        write_link(alone, 1e-4, 1e9, hosts)
    (point,) = predicted(tmp_path, 8).points
    assert [model.model for model in point.models] == ["sum of terms"]
    assert point.models[0].weight == 1
    assert said in point.absent["bucket timeline"]


def test_an_assumed_profile_is_named_an_assumption(tmp_path: Path) -> None:
    write_launches(tmp_path, LINEAR)
    alone = tmp_path / "pytorch_native-w01-r1"
    write_profile(alone, [make_step(READY)], assumption="63 ms by memory traffic")
    write_link(alone, 1e-4, 1e9)
    (point,) = predicted(tmp_path, 8).points
    assert "the profile is an assumption: 63 ms by memory traffic" in point.remarks


def test_a_damaged_profile_is_a_note_and_no_model(tmp_path: Path) -> None:
    write_launches(tmp_path, LINEAR)
    (tmp_path / "pytorch_native-w01-r1" / "compute.json").write_text('{"format": 1}')
    study = load_study(tmp_path)
    assert any("compute.json" in note for note in study.notes)
    assert not study.profiles


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
    predictor = predictor_of(tmp_path)
    forecast = predictor.at(Counts(np.array([12.0]), np.array([2.0])))
    assert np.isnan(forecast.interval).all()
    assert "link between nodes" in forecast.why


def test_a_probe_of_more_workers_than_are_known_is_not_used(tmp_path: Path) -> None:
    write_knee_study(tmp_path, (1, 2, 4), Link(1e-4, 1e9))
    (series,) = all_series(load_study(tmp_path))
    assert not isinstance(series.evidence, str)
    assert len(series.evidence.links_for(2, 1.0)) == 1
    assert series.evidence.links_for(2, 2.0) == []


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
