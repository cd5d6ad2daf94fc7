"""Throughput of larger counts: known truths, files written before the runs, and which of them are scored."""

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.__main__ import main
from analysis.predict.speed import Counts, fit_step_time, step_matrix
from analysis.study import Array
from tests.records import make_workers, write_run
from tests.reports import report_of
from unet_scaling.base.errors import EXIT_BAD_DATA, EXIT_USAGE, UserError
from unet_scaling.base.files import CHECKSUM_KEY, write_json_with_checksum
from unet_scaling.study.config import Framework

BATCH = 8
STEPS = 10
LATER = "2126-01-01T00:00:00+00:00"
COUNTS = (1, 2, 4, 6, 8, 14)
KNOWN = {1: [0.1, 0.102, 0.098], 2: [0.11, 0.112, 0.108], 4: [0.115, 0.117, 0.113]}
# 0.1 s on 1 worker, and 10 ms for each message round after that.
LATENCY = {n: [0.1 + 0.01 * (n - 1)] * 3 for n in (1, 2, 4, 8)}


def write_launches(
    folder: Path,
    seconds: Mapping[int, Sequence[float]],
    framework: Framework = "pytorch_native",
    header: Mapping[str, object] | None = None,
) -> None:
    """Runs of these seconds per step, by worker count; their places are the repeats."""
    for workers, launches in seconds.items():
        for repeat, step in enumerate(launches, start=1):
            images = STEPS * BATCH * workers
            rate = images / STEPS / step
            write_run(
                folder, framework, workers, repeat,
                images_per_second=rate, images_per_epoch=images, header=header,
            )  # fmt: skip


def counts_of(workers: Sequence[int]) -> Counts:
    return Counts(np.array(workers, dtype=np.float64), np.full(len(workers), np.nan))


def truth(workers: Sequence[int], *terms: float) -> Array:
    """Seconds of a step: compute, transfer, transfer between nodes, latency, imbalance."""
    return np.asarray(step_matrix(counts_of(workers)) @ np.array(terms))


def test_known_terms_are_recovered_and_every_larger_count_checks_every_fit(tmp_path: Path) -> None:
    seconds = truth(COUNTS, 0.1, 0.02, 0, 0.001, 0)
    write_launches(tmp_path, dict(zip(COUNTS, seconds[:, None], strict=True)))
    terms = fit_step_time(counts_of(COUNTS), list(seconds[:, None])).terms
    assert terms == pytest.approx([0.1, 0.02, 0, 0.001, 0], rel=0.05, abs=1e-4)
    rows = [(row["fitted_on"], row["workers"]) for row in report_of(tmp_path).rows("predictions")]
    assert rows == [("1-4", 6), ("1-4", 8), ("1-4", 14), ("1-6", 8), ("1-6", 14), ("1-8", 14)]


def test_nothing_measured_beyond_the_split_is_used(tmp_path: Path) -> None:
    seconds = KNOWN | {8: [0.15] * 3, 14: [0.16] * 3}
    write_launches(tmp_path / "one", seconds)
    write_launches(tmp_path / "other", seconds | {8: [0.45] * 3, 14: [0.9] * 3})
    both = [report_of(tmp_path / name).rows("predictions") for name in ("one", "other")]
    names = ("workers", "predicted", "predicted_low", "predicted_high")
    first, other = (
        [[row[name] for name in names] for row in rows if row["fitted_on"] == "1-4"] for rows in both
    )
    assert first == other
    last = [next(row["predicted"] for row in rows if row["fitted_on"] == "1-8") for rows in both]
    assert last[0] != last[1]


def test_dropped_images_are_no_speed(tmp_path: Path) -> None:
    """104 images: 13 steps of 8 on 1 worker, 3 of 32 on 4; every step takes 0.1 s, so scaling is perfect."""
    for workers in (1, 2, 3, 4):
        images = 104 // (BATCH * workers) * BATCH * workers
        write_run(tmp_path, workers=workers, images_per_second=workers * BATCH / 0.1, images_per_epoch=images)
    row = report_of(tmp_path).row("predictions")
    assert row["predicted"] == pytest.approx(4 * BATCH / 0.1)
    assert row["predicted_high"] == pytest.approx(row["predicted_low"])


@pytest.mark.parametrize(
    ("workers", "reason"),
    [((2, 4, 8, 16), "no run on 1 worker"), ((1, 8), "2 worker counts"), ((1,), "1 worker count")],
)
def test_a_series_that_cannot_be_predicted_says_why(
    tmp_path: Path, workers: Sequence[int], reason: str
) -> None:
    write_launches(tmp_path, dict.fromkeys(workers, (0.1,)))
    found = report_of(tmp_path)
    assert found.rows("predictions") == []
    (note,) = found.report.prediction_notes
    assert reason in note


def test_no_interval_across_a_link_that_was_not_measured(tmp_path: Path) -> None:
    for workers in (1, 2, 4, 8):
        facts = [
            each.model_copy(update={"host": f"node{1 + each.worker // 4}"}) for each in make_workers(workers)
        ]
        write_launches(tmp_path, {workers: (0.1,)}, header={"workers": facts})
    row = report_of(tmp_path).row("predictions", fitted_on="1-4", workers=8)
    assert np.isnan([row["predicted_low"], row["predicted_high"]]).all()
    assert "link between nodes" in row["why"]


@pytest.mark.parametrize(
    "terms", [(100, 0, 0, 0, 0), (100, 60, 0, 0, 0), (100, 0, 0, 1, 0), (100, 15, 0, 0.6, 5)]
)
def test_intervals_hold_what_is_measured_in_most_studies(terms: tuple[float, ...]) -> None:
    """docs/background/prediction.md: 92 to 99 % over all truths, here of 40 studies each."""
    random = np.random.default_rng(1)
    held = 0
    for _ in range(40):
        *fitted, last = (
            np.exp(0.01 * random.standard_normal((5, 5))) * truth((1, 2, 4, 8, 14), *terms)[:, None]
        )
        _, low, high = fit_step_time(counts_of((1, 2, 4, 8)), tuple(fitted)).at(counts_of([14])).bounded
        held += low <= float(np.median(last)) <= high
    assert held >= 36


def test_throughput_is_positive_however_wild_the_points() -> None:
    random = np.random.default_rng(5)
    for number in range(20):
        launches = tuple(np.exp(random.normal(0, 1.5, 1 + number % 4)) for _ in range(4))
        fitted = fit_step_time(counts_of((1, 2, 4, 8)), launches)
        _, low, high = fitted.at(counts_of([64])).bounded
        assert (fitted.terms >= 0).all()
        assert 0 < low < high < np.inf


# Seconds of a step by workers, and up to how many workers the efficiency keeps its floor.
REACHES: Mapping[str, tuple[Mapping[int, Sequence[float]], int | None]] = {
    "latency": (LATENCY, 4),
    "perfect, as far as predictions reach": (dict.fromkeys((1, 2, 4), (0.1,) * 3), 8),
    "two counts": ({1: [0.1] * 3, 2: [0.11] * 3}, 2),
    "none": ({1: [0.1] * 3, 2: [0.2] * 3, 4: [0.4] * 3}, None),
    "an interval below the floor": ({1: [0.1] * 5, 2: [0.11] * 5, 4: [0.1, 0.12, 0.12, 0.3, 0.12]}, 2),
    "one launch below the floor": ({1: [0.1] * 3, 2: [0.11] * 3, 4: [0.25], 8: [0.12] * 3}, 2),
}


@pytest.mark.parametrize("case", REACHES)
def test_the_reach_is_the_last_count_before_one_that_falls_below(tmp_path: Path, case: str) -> None:
    seconds, reach = REACHES[case]
    write_launches(tmp_path, seconds)
    said = "".join(report_of(tmp_path).report.request_sentences)
    found = re.search(r"up to (\d+) workers", said)
    assert (int(found[1]) if found else None) == reach, said


def predict(folder: Path, counts: str = "8") -> Path:
    """Predict by the command; the file that it writes."""
    before = {*folder.glob("predictions/*")}
    assert main(["predict", str(folder), "--for", counts]) == 0
    (path,) = {*folder.glob("predictions/*")} - before
    return path


@pytest.mark.parametrize(
    ("counts", "asked", "code"),
    [((1, 2, 4, 8), "8,14", EXIT_USAGE), ((1, 2), "8", EXIT_BAD_DATA), ((2, 4, 6), "8", EXIT_BAD_DATA)],
    ids=["measured", "two counts", "no baseline"],
)
def test_what_cannot_be_predicted_is_refused(
    tmp_path: Path, counts: Sequence[int], asked: str, code: int, told: Callable[[str], None]
) -> None:
    write_launches(tmp_path / "study", dict.fromkeys(counts, (0.1,)))
    with pytest.raises(UserError) as refused:
        main(["predict", str(tmp_path / "study"), "--for", asked])
    assert refused.value.exit_code == code
    told(str(refused.value))
    assert not (tmp_path / "study" / "predictions").exists()


def test_how_far_out_a_prediction_goes_is_said(tmp_path: Path) -> None:
    write_launches(tmp_path, KNOWN)
    content = json.loads(predict(tmp_path, "8,64").read_text())
    said = {point["workers"]: " ".join(point["remarks"]) for point in content["points"]}
    assert "16 times the most workers measured" in said[64]
    assert "times the most" not in said[8]


@pytest.fixture
def predicted(tmp_path: Path) -> Path:
    """A study of 1, 2 and 4 workers with a prediction of 8, and the runs on 8 of later."""
    write_launches(tmp_path, KNOWN)
    predict(tmp_path)
    write_launches(tmp_path, {8: [0.12] * 3}, header={"started_utc": LATER})
    return tmp_path


def change(folder: Path, **changes: object) -> None:
    """Replace fields of the prediction file as someone would who knows its checksum."""
    (path,) = (folder / "predictions").iterdir()
    content = json.loads(path.read_text()) | changes
    del content[CHECKSUM_KEY]
    write_json_with_checksum(path, content)


def early(folder: Path, **changes: Any) -> Path:
    header = {"started_utc": "2025-01-31T12:00:00Z"}
    return write_run(folder, workers=8, repeat=4, images_per_epoch=640, header=header, **changes)


def set_aside(folder: Path) -> None:
    run = early(folder, end=None)
    (run / "run.jsonl").rename(run / "run.attempt1.jsonl")


def unreadable(folder: Path) -> None:
    record = early(folder, end=None) / "run.jsonl"
    record.unlink()
    record.mkdir()


def holding_the_point(folder: Path) -> None:
    """Whoever predicts from the run itself and dates the file back still names that run's checksum."""
    (path,) = (folder / "predictions").iterdir()
    inputs = json.loads(path.read_text())["inputs"]
    seen = folder / "pytorch_native-w01-r1" / "run.jsonl"
    run = folder / "pytorch_native-w08-r1" / "run.jsonl"
    (own,) = (each for each in inputs if each["file"].startswith("pytorch_native-w01-r1"))
    assert seen.is_file()
    change(folder, inputs=[*inputs, own | {"file": "other/name.jsonl", "sha256": sha256_of(run)}])


def sha256_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def without_an_input(folder: Path) -> None:
    shutil.rmtree(folder / "pytorch_native-w02-r1")


def not_measured(folder: Path) -> None:
    for run in folder.glob("*-w08-*"):
        shutil.rmtree(run)


def exchanged_input(folder: Path) -> None:
    without_an_input(folder)
    write_launches(folder, {2: [0.2]})


UNSCORED: Mapping[str, tuple[Callable[[Path], object], str]] = {
    "younger than a run": (early, "its first run began 2025-01-31"),
    "younger than a failed run": (lambda folder: early(folder, end=None), "its first run began 2025-01-31"),
    "younger than an attempt": (set_aside, "its first run began 2025-01-31"),
    "a record that cannot be read": (unreadable, "its first run began 0001-01-01"),
    "of the same second": (lambda folder: change(folder, written_utc=LATER), "its first run began"),
    "made from the point": (holding_the_point, "its inputs hold a record of this point"),
    "an input is gone": (without_an_input, "pytorch_native-w02-r1"),
    "an input is another": (exchanged_input, "pytorch_native-w02-r1"),
    "not measured": (not_measured, "not measured yet"),
}  # fmt: skip


@pytest.mark.parametrize("case", UNSCORED)
def test_a_prediction_that_could_know_its_runs_is_not_scored(predicted: Path, case: str) -> None:
    spoil, reason = UNSCORED[case]
    spoil(predicted)
    row = report_of(predicted).row("prediction_scores")
    assert reason in row["unscored"]
    assert np.isnan(row["error"])
    assert not row["counted"]


def test_an_interval_that_misses_is_named(predicted: Path) -> None:
    (path,) = (predicted / "predictions").iterdir()
    (point,) = json.loads(path.read_text())["points"]
    change(predicted, points=[point | {"throughput": {"median": 10.0, "low": 9.0, "high": 11.0}}])
    row = report_of(predicted).row("prediction_scores")
    assert row["inside"] == "no"


def test_an_input_that_was_set_aside_and_a_further_axis_hide_no_prediction(predicted: Path) -> None:
    run = predicted / "pytorch_native-w02-r1"
    (run / "run.jsonl").rename(run / "run.attempt1.jsonl")
    options = {"training": {"precision": "bf16", "epochs": 3, "batch_per_worker": 1}}
    write_run(predicted, workers=1, repeat=1, options=options, label="-bf16")
    row = report_of(predicted).row("prediction_scores")
    assert (row["options"], row["unscored"]) == ("precision=fp32", "")


@pytest.mark.parametrize("damage", ["a number", "no checksum", "an unknown key", "cut"])
def test_a_changed_file_is_left_out_and_named(predicted: Path, damage: str) -> None:
    (path,) = (predicted / "predictions").iterdir()
    content = json.loads(path.read_text())
    if damage == "a number":
        content["points"][0]["throughput"]["median"] *= 1.01
    if damage == "no checksum":
        del content[CHECKSUM_KEY]
    if damage == "an unknown key":
        content["more"] = 1
    path.write_text(path.read_text()[:-40] if damage == "cut" else json.dumps(content))
    found = report_of(predicted)
    assert found.study.forecasts.empty
    assert any(f"predictions/{path.name} cannot be read" in note for note in found.study.notes)


def test_of_several_files_the_last_before_the_runs_counts(predicted: Path) -> None:
    (path,) = (predicted / "predictions").iterdir()
    content = json.loads(path.read_text())
    del content[CHECKSUM_KEY]
    older = content | {"written_utc": "2025-01-01T00:00:00+00:00"}
    write_json_with_checksum(path.with_name(f"older-{path.name}"), older)
    counted = report_of(predicted).rows("prediction_scores", counted=True)
    assert [row["written_utc"] for row in counted] == [content["written_utc"]]
