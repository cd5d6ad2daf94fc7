"""What more workers cost in IoU: known losses with known noise, diverged seeds, missing evidence."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.findings.quality import iou_between_frameworks, iou_table
from analysis.findings.speedup import summarise
from analysis.loading.load import load_study
from analysis.statistics.intervals import median_intervals
from analysis.study import Study
from tests.records import write_run
from unet_scaling.study.config import Framework
from unet_scaling.study.options import Criteria
from unet_scaling.study.record_lines import End

DIVERGED = -1.0
Ious = Mapping[tuple[Framework, int], Sequence[float | None]]


def study_of(folder: Path, ious: Ious) -> Study:
    """A study with one run per IoU; their places are the repeats. DIVERGED is a run without an IoU."""
    for (framework, workers), values in ious.items():
        for repeat, iou in enumerate(values, start=1):
            lost = iou == DIVERGED
            end = End(status="diverged", reason="loss is nan") if lost else End(status="complete")
            write_run(folder, framework, workers, repeat, iou=0.5 if lost else iou, end=end)
    return load_study(folder)


def noisy(center: float, deviation: float, repeats: int, seed: int) -> list[float]:
    noise = np.random.default_rng(seed).normal(0, deviation, repeats)
    return list((center + noise).round(5))


def point(study: Study, workers: int, framework: Framework = "horovod") -> "pd.Series[Any]":
    table = iou_table(study)
    return table[(table["framework"] == framework) & (table["workers"] == workers)].iloc[0]


@pytest.mark.parametrize(
    ("loss", "deviation", "expected"),
    [(0.03, 0.005, "no"), (0.002, 0.005, "yes"), (0.002, 0.03, "not shown"), (-0.05, 0.005, "yes")],
)
def test_a_loss_of_iou_is_judged_by_its_interval(
    tmp_path: Path, loss: float, deviation: float, expected: str
) -> None:
    one, eight = noisy(0.8, deviation, 10, seed=1), noisy(0.8 - loss, deviation, 10, seed=2)
    found = point(study_of(tmp_path, {("horovod", 1): one, ("horovod", 8): eight}), 8)
    assert found["non_inferior"] == expected
    differences = np.subtract(eight, one)
    assert found["difference"] == pytest.approx(np.median(differences), abs=1e-6)
    assert found["difference_low"] < found["difference"] < found["difference_high"]


def test_the_margin_is_that_of_the_study(tmp_path: Path) -> None:
    one, eight = noisy(0.8, 0.001, 5, seed=1), noisy(0.78, 0.001, 5, seed=2)
    study = study_of(tmp_path, {("horovod", 1): one, ("horovod", 8): eight})
    assert point(study, 8)["non_inferior"] == "no"
    assert point(replace(study, criteria=Criteria(iou_margin=0.05)), 8)["non_inferior"] == "yes"


def test_differences_are_paired_by_repeat(tmp_path: Path) -> None:
    seeds = [0.60, 0.70, 0.80, 0.90, 0.65]
    study = study_of(tmp_path, {("horovod", 1): seeds, ("horovod", 2): [iou + 0.001 for iou in seeds]})
    found = point(study, 2)
    assert found["non_inferior"] == "yes"
    assert found[["difference_low", "difference_high"]].to_list() == pytest.approx([0.001, 0.001], abs=2e-6)
    assert found["pairs"] == 5


def test_medians_and_seeds_of_each_point(tmp_path: Path) -> None:
    found = point(study_of(tmp_path, {("horovod", 1): [0.7, 0.9, 0.71]}), 1)
    assert found["iou"] == pytest.approx(0.71)
    (interval,) = median_intervals([np.array([0.7, 0.9, 0.71])])
    assert found[["iou_low", "iou_high"]].to_list() == pytest.approx(interval)
    assert (found["seeds"], found["test_images"], found["non_inferior"]) == (3, 12, "baseline")
    assert "12 test images" in found["why"]


def test_no_interval_of_an_iou_leaves_0_to_1(tmp_path: Path) -> None:
    study = study_of(tmp_path, {("horovod", 1): [0.0, 0.001, 0.004], ("horovod", 2): [1.0, 0.999, 0.9]})
    for found in (iou_table(study), summarise(study)):
        assert found["iou_low"].tolist()[0] == 0
        assert found["iou_high"].tolist()[1] == 1


def test_a_diverged_seed_forbids_a_yes_and_is_said(tmp_path: Path) -> None:
    one, eight = noisy(0.8, 0.001, 5, seed=1), [*noisy(0.8, 0.001, 4, seed=2), DIVERGED]
    study = study_of(tmp_path, {("horovod", 1): one, ("horovod", 8): eight, ("horovod", 4): one})
    found = point(study, 8)
    assert (found["non_inferior"], found["pairs"], found["diverged"]) == ("not shown", 4, 1)
    assert found["difference_low"] > -0.01
    assert "1 run of this point diverged" in found["why"]
    assert point(study, 4)["diverged"] == 0
    assert point(study, 4)["non_inferior"] == "yes"


def test_a_diverged_seed_does_not_soften_a_no(tmp_path: Path) -> None:
    one, eight = noisy(0.8, 0.001, 5, seed=1), [*noisy(0.7, 0.001, 4, seed=2), DIVERGED]
    assert point(study_of(tmp_path, {("horovod", 1): one, ("horovod", 8): eight}), 8)["non_inferior"] == "no"


def test_a_diverged_run_is_blamed_on_the_point_of_its_options_alone(tmp_path: Path) -> None:
    for precision in ("fp32", "bf16"):
        for workers, repeat in ((1, 1), (1, 2), (2, 1), (2, 2)):
            if (precision, workers, repeat) == ("fp32", 2, 2):
                continue  # missing, so that only the options tell whose run diverged
            lost = (precision, workers, repeat) == ("bf16", 2, 2)
            end = End(status="diverged") if lost else End(status="complete")
            options = {"training": {"precision": precision}}
            write_run(tmp_path, "horovod", workers, repeat, options=options, label=precision, end=end)
    table = iou_table(load_study(tmp_path)).set_index(["options", "workers"])["diverged"]
    assert table["precision=bf16", 2] == 1
    assert table["precision=fp32", 2] == 0


def test_fewer_than_three_pairs_show_nothing_and_say_how_many_are_needed(tmp_path: Path) -> None:
    found = point(study_of(tmp_path, {("horovod", 1): [0.8] * 5, ("horovod", 2): [0.8, 0.8]}), 2)
    assert (found["non_inferior"], found["pairs"]) == ("not shown", 2)
    assert np.isnan(found["difference_low"])
    assert "2 repeats in common: at least 3 are needed, 5 recommended" in found["why"]


def test_an_interval_over_three_seeds_says_what_it_is_worth(tmp_path: Path) -> None:
    found = point(study_of(tmp_path, {("horovod", 1): [0.8] * 3, ("horovod", 2): [0.8] * 3}), 2)
    assert "75 % interval over 3 seeds" in found["why"]


def test_without_a_baseline_nothing_is_shown(tmp_path: Path) -> None:
    found = point(study_of(tmp_path, {("horovod", 2): [0.8] * 5, ("pytorch_native", 1): [0.8] * 5}), 2)
    assert (found["non_inferior"], found["pairs"]) == ("not shown", 0)
    assert "no run on 1 worker" in found["why"]


def test_an_unknown_iou_stays_unknown(tmp_path: Path) -> None:
    found = point(study_of(tmp_path, {("horovod", 1): [0.8] * 3, ("horovod", 2): [0.8, None, 0.8]}), 2)
    assert found[["iou", "iou_low", "difference"]].isna().all()
    assert found["non_inferior"] == "not shown"
    assert "IoU of a run is not known" in found["why"]


def test_logs_without_provenance_show_nothing(tmp_path: Path) -> None:
    study = study_of(tmp_path, {("horovod", 1): [0.8] * 5, ("horovod", 2): [0.8] * 5})
    unknown = replace(study, provenance_known=False, runs=study.runs.assign(test_images=float("nan")))
    found = point(unknown, 2)
    assert (found["non_inferior"], found["why"]) == ("not shown", "test images unknown")
    assert np.isnan(found["difference"])


@pytest.mark.parametrize(
    ("difference", "deviation", "expected"),
    [(0.001, 0.002, "yes"), (0.03, 0.002, "no"), (-0.03, 0.002, "no"), (0.001, 0.05, "not shown")],
)
def test_frameworks_are_equal_within_the_margin_on_both_sides(
    tmp_path: Path, difference: float, deviation: float, expected: str
) -> None:
    native, horovod = noisy(0.8 + difference, deviation, 8, seed=3), noisy(0.8, deviation, 8, seed=4)
    study = study_of(
        tmp_path, {("pytorch_native", 4): native, ("horovod", 4): horovod, ("horovod", 2): [0.8]}
    )
    (found,) = iou_between_frameworks(study).to_dict("records")
    assert (found["workers"], found["pairs"], found["equal_within_margin"]) == (4, 8, expected)
    assert found["difference"] == pytest.approx(np.median(np.subtract(native, horovod)), abs=1e-6)


def test_a_diverged_seed_of_either_framework_forbids_equality(tmp_path: Path) -> None:
    native, horovod = [*noisy(0.8, 0.001, 4, seed=1), DIVERGED], noisy(0.8, 0.001, 5, seed=2)
    study = study_of(tmp_path, {("pytorch_native", 4): native, ("horovod", 4): horovod})
    (found,) = iou_between_frameworks(study).to_dict("records")
    assert (found["equal_within_margin"], found["pairs"]) == ("not shown", 4)
    assert "1 run of native DDP diverged" in found["why"]


def test_one_framework_alone_has_nothing_to_be_compared_with(tmp_path: Path) -> None:
    table = iou_between_frameworks(study_of(tmp_path, {("horovod", 1): [0.8]}))
    assert table.empty
    assert "equal_within_margin" in table.columns


def test_points_judged_together_are_judged_as_if_alone(tmp_path: Path) -> None:
    ious: Ious = {
        ("horovod", 1): [0.7, 0.8, 0.75, 0.71],
        ("horovod", 2): [0.6, 0.9, 0.7],
        ("horovod", 4): [0.5],
    }
    table = iou_table(study_of(tmp_path, ious))
    for (_, workers), values in ious.items():
        (row,) = table[table["workers"] == workers].to_dict("records")
        (alone,) = median_intervals([np.array([round(float(value or 0), 6) for value in values])])
        assert [row["iou_low"], row["iou_high"]] == pytest.approx(alone, nan_ok=True)
