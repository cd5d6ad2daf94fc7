"""Warnings about epochs that are not steady, and about launches unlike the others of their point."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from analysis.findings.speedup import summarise
from analysis.findings.steadiness import outlier_notes, outlying_launches, run_steadiness, steadiness_notes
from analysis.study import Study
from tests.simulated import Throughputs, study_from, study_with_pace


def noisy_pace(runs: int, epochs: int, noise: float = 0.02) -> NDArray[np.float64]:
    """Seconds of each epoch of steady runs."""
    return np.asarray(
        10 * np.exp(np.random.default_rng(1).normal(0, noise, (runs, epochs))), dtype=np.float64
    )


def only(study: Study) -> "pd.Series[Any]":
    (_, row), *_ = run_steadiness(study).iterrows()
    return row


def test_steady_runs_are_rarely_called_unsteady() -> None:
    table = run_steadiness(study_with_pace(noisy_pace(2000, 40)))
    assert (table["steady"] == "no").mean() < 0.005


def test_steady_runs_give_no_note() -> None:
    assert list(steadiness_notes(study_with_pace(noisy_pace(5, 40)))) == []


def test_a_slow_start_is_named_with_its_size_its_epoch_and_the_cure() -> None:
    pace = noisy_pace(5, 40)
    pace[2, :6] *= 1.25
    (note,) = steadiness_notes(study_with_pace(pace))
    assert note.startswith(
        "1 of 5 runs is not steady after the warm-up: for the same work run2 takes 21 % less"
    )
    assert "from epoch 7 after the warm-up on" in note
    assert note.endswith("leave out more of them as warm-up, until the rest is steady")


def test_a_drift_is_measured_from_the_first_epochs_to_the_last() -> None:
    row = only(study_with_pace(noisy_pace(1, 60) * np.linspace(1, 1.1, 60)))
    assert row["steady"] == "no"
    assert row["drift"] == pytest.approx(0.1, abs=0.03)
    assert row["drift_probability"] < 0.001


def test_a_shift_says_where_and_how_much() -> None:
    pace = noisy_pace(1, 60)
    pace[0, 30:] *= 0.9
    row = only(study_with_pace(pace))
    assert row["shift"] == pytest.approx(-0.1, abs=0.02)
    assert row["shift_epoch"] == 31


def test_a_significant_change_too_small_to_matter_is_no_warning() -> None:
    row = only(study_with_pace(noisy_pace(1, 60, noise=0.0005) * np.linspace(1, 1.01, 60)))
    assert row["drift_probability"] < 0.001
    assert row["steady"] == "yes"


def test_one_slow_epoch_in_the_middle_is_no_shift() -> None:
    pace = noisy_pace(1, 20)
    pace[0, 10] *= 3
    assert only(study_with_pace(pace))["steady"] == "yes"


def test_short_runs_are_not_checked_and_counted() -> None:
    study = study_with_pace(noisy_pace(3, 7))
    assert run_steadiness(study)["drift"].isna().all()
    (note,) = steadiness_notes(study)
    assert note == "3 of 3 runs are too short to be checked for drift: fewer than 8 epochs after the warm-up"


def test_warmup_epochs_are_not_looked_at() -> None:
    pace = noisy_pace(1, 30)
    pace[0, :3] *= 5
    study = study_with_pace(pace)
    study.epochs.loc[study.epochs["epoch"] < 3, "warmup"] = True
    assert only(study)["steady"] == "yes"


def test_epochs_of_exactly_equal_length_are_steady() -> None:
    assert only(study_with_pace(np.full((1, 20), 10.0)))["steady"] == "yes"


def test_many_unsteady_runs_give_one_note_that_names_the_worst() -> None:
    pace = noisy_pace(50, 40) * np.linspace(1, 1.2, 40)
    pace[17] *= np.linspace(1, 1.5, 40)
    (note,) = steadiness_notes(study_with_pace(pace))
    assert note.startswith(
        "50 of 50 runs are not steady after the warm-up, the worst ones: for the same work run17 "
    )
    assert note.count(" takes ") == 3


def test_one_launch_30_percent_slow_is_named_and_kept() -> None:
    study = study_from({("horovod", 4): [100.0, 101.0, 70.0, 99.0, 100.5]}, epoch_noise=0.01)
    (note,) = outlier_notes(study)
    assert note.startswith("1 of 5 launches is far from the others of the same point: run2 is 30 % slower")
    assert "(Horovod, 4 workers); kept" in note
    assert summarise(study)["repeats"].tolist() == [5]


def test_a_launch_is_compared_with_its_own_point_only() -> None:
    study = study_from({("horovod", 1): [100.0, 101.0, 99.0], ("horovod", 4): [400.0, 401.0, 399.0]})
    assert outlying_launches(study).empty


def test_launches_that_differ_little_are_no_outliers_however_alike_the_others_are() -> None:
    assert outlying_launches(study_from({("horovod", 1): [100.0, 100.0, 100.0, 100.0, 95.0]})).empty


def test_wide_noise_makes_no_outlier() -> None:
    assert outlying_launches(study_from({("horovod", 1): [60.0, 80.0, 100.0, 120.0, 140.0]})).empty


ORDINARY: Throughputs = {
    ("pytorch_native", 1): [100.0, 104.0, 101.0],
    ("pytorch_native", 2): [180.0, 176.0, 190.0],
    ("horovod", 1): [98.0, 101.0, 100.0],
}


@pytest.mark.parametrize(("outlier", "other"), [(1.25, 0.95), (1.92, 0.81), (0.8, 1.05), (0.52, 1.12)])
def test_names_an_outlier_of_three_launches_whatever_its_size(outlier: float, other: float) -> None:
    """The distance between the two others is a fifth of the outlier's: alone these three say nothing."""
    points = {**ORDINARY, ("horovod", 2): [160.0, 160.0 * other, 160.0 * outlier]}
    far = outlying_launches(study_from(points)).iloc[0]
    assert (far["framework"], far["workers"], far["repeat"]) == ("horovod", 2, 3)
    assert far["distance"] == pytest.approx(outlier - 1)


def test_names_both_outliers_of_five_launches() -> None:
    study = study_from({**ORDINARY, ("horovod", 4): [300.0, 303.0, 298.0, 375.0, 576.0]})
    assert outlying_launches(study)["repeat"].tolist() == [5, 4]


@pytest.mark.parametrize(("launches", "noise"), [(3, 0.05), (3, 0.2), (5, 0.05), (5, 0.2)])
def test_rarely_names_a_launch_where_none_is_an_outlier(launches: int, noise: float) -> None:
    random = np.random.default_rng(2)
    points: Throughputs = {
        ("horovod", workers): list(100 * np.exp(random.normal(0, noise, launches))) for workers in range(200)
    }
    study = study_from(points, epochs=2)
    assert len(outlying_launches(study)) / len(study.runs) < 0.02


def test_a_point_of_wide_noise_is_no_heap_of_outliers() -> None:
    wide: Throughputs = {("horovod", 8): [600.0, 800.0, 1000.0, 1200.0, 1400.0]}
    assert outlying_launches(study_from({**ORDINARY, **wide})).empty


def test_two_launches_cannot_say_which_of_them_is_the_outlier() -> None:
    assert outlying_launches(study_from({("horovod", 1): [100.0, 50.0]})).empty


def test_many_outliers_give_one_note_with_the_farthest_first() -> None:
    points: Throughputs = {
        ("horovod", workers): [100.0, 101.0, 90.0 - 5 * workers, 99.0, 100.5] for workers in range(1, 9)
    }
    (note,) = outlier_notes(study_from(points))
    assert note.startswith(
        "8 of 40 launches are far from the others of the same point, the worst ones: run37 is 50 %"
    )
    assert note.count(" slower than ") == 3
