"""The numbers of a point, their intervals, and the verdict."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.intervals import coverage, median_interval, ratio_interval
from analysis.load import Study, load_study
from analysis.speedup import COLUMNS, summarise, unequal_work
from analysis.verdict import verdicts
from tests.records import write_run
from unet_scaling.config import FRAMEWORKS, Framework

Throughputs = Mapping[tuple[Framework, int], Sequence[float]]


def study_of(folder: Path, throughputs: Throughputs) -> Study:
    """A study with one run per throughput, in images per second; their places are the repeats."""
    for (framework, workers), values in throughputs.items():
        for repeat, value in enumerate(values, start=1):
            write_run(folder, framework, workers, repeat, images_per_second=value)
    return load_study(folder)


def point(study: Study, framework: Framework, workers: int) -> "pd.Series[Any]":
    points = summarise(study)
    return points[(points["framework"] == framework) & (points["workers"] == workers)].iloc[0]


def verdict_of(folder: Path, throughputs: Throughputs) -> str:
    (verdict,) = verdicts(study_of(folder, throughputs))
    return str(verdict)


def test_speedup_is_exact_for_known_throughput(tmp_path: Path) -> None:
    study = study_of(tmp_path, {("horovod", 1): [100.0], ("horovod", 4): [320.0]})
    four = point(study, "horovod", 4)
    assert four["images_per_second"] == pytest.approx(320, rel=1e-12)
    assert four["speedup"] == pytest.approx(3.2, rel=1e-12)
    assert four["efficiency"] == pytest.approx(0.8, rel=1e-12)
    assert four["deviation"] == pytest.approx(0.2, rel=1e-12)


def test_each_framework_has_its_own_baseline(tmp_path: Path) -> None:
    one: Throughputs = {("pytorch_native", 1): [100.0], ("horovod", 1): [50.0]}
    study = study_of(tmp_path, {**one, ("pytorch_native", 2): [150.0], ("horovod", 2): [90.0]})
    assert point(study, "pytorch_native", 2)["speedup"] == pytest.approx(1.5)
    assert point(study, "horovod", 2)["speedup"] == pytest.approx(1.8)


def test_each_set_of_options_has_its_own_baseline(tmp_path: Path) -> None:
    for precision, one, two in (("fp32", 100.0, 180.0), ("bf16", 300.0, 330.0)):
        for workers, value in ((1, one), (2, two)):
            options = {"training": {"precision": precision}}
            write_run(tmp_path, "horovod", workers, images_per_second=value, options=options, label=precision)
    points = summarise(load_study(tmp_path))
    two_workers = points[points["workers"] == 2].set_index("training.precision")["speedup"]
    assert two_workers["fp32"] == pytest.approx(1.8)
    assert two_workers["bf16"] == pytest.approx(1.1)


def test_numbers_are_medians_over_repeats(tmp_path: Path) -> None:
    study = study_of(tmp_path, {("horovod", 1): [90, 100, 500], ("horovod", 2): [10, 180, 190]})
    assert point(study, "horovod", 2)["images_per_second"] == pytest.approx(180)
    assert point(study, "horovod", 2)["speedup"] == pytest.approx(1.8)
    assert point(study, "horovod", 2)["repeats"] == 3


def test_without_a_baseline_the_speedup_is_unknown_and_the_throughput_is_not(tmp_path: Path) -> None:
    two = point(study_of(tmp_path, {("horovod", 2): [180.0]}), "horovod", 2)
    assert two["images_per_second"] == pytest.approx(180)
    assert two[["speedup", "speedup_low", "efficiency", "deviation"]].isna().all()
    assert two["unknown"] == "speed-up: no run on 1 worker"


def test_fewer_than_three_repeats_have_no_interval(tmp_path: Path) -> None:
    study = study_of(tmp_path, {("horovod", 1): [100, 101], ("horovod", 2): [180, 190]})
    bounds = [column for column in summarise(study).columns if column.endswith(("_low", "_high"))]
    assert {"speedup_low", "speedup_high", "iou_low", "iou_high"} < set(bounds)
    assert summarise(study)[bounds].isna().all(axis=None)


def test_three_repeats_have_an_interval_around_the_speedup(tmp_path: Path) -> None:
    study = study_of(tmp_path, {("horovod", 1): [98, 100, 102], ("horovod", 2): [170, 180, 190]})
    two = point(study, "horovod", 2)
    assert two["speedup_low"] < two["speedup"] < two["speedup_high"]
    assert two["efficiency_low"] == pytest.approx(two["speedup_low"] / 2)


def test_an_unknown_iou_makes_the_points_iou_unknown(tmp_path: Path) -> None:
    study = study_of(tmp_path, {("horovod", 1): [100, 100, 100]})
    study.runs.loc[0, "iou"] = np.nan
    assert point(study, "horovod", 1)[["iou", "iou_low", "iou_high"]].isna().all()


def test_unequal_images_per_epoch_are_told_with_their_share(tmp_path: Path) -> None:
    write_run(tmp_path, "horovod", 1, images_per_epoch=48)
    write_run(tmp_path, "horovod", 2, images_per_epoch=46)
    assert list(unequal_work(load_study(tmp_path))) == ["images per epoch: 48 to 46, 4.2 %"]


def test_the_agreed_columns_come_first() -> None:
    assert ",".join(COLUMNS) == (
        "framework,workers,repeats,images_per_second,speedup,speedup_low,speedup_high,"
        "efficiency,deviation,iou,iou_low,iou_high"
    )


def test_the_interval_of_few_launches_is_their_range() -> None:
    assert median_interval([3.0, 1.0, 2.0]) == (1.0, 3.0)


def test_coverage_is_that_of_the_range_and_at_most_nominal() -> None:
    assert [coverage(repeats) for repeats in (3, 4, 5, 6, 50)] == [0.75, 0.875, 0.9375, 0.95, 0.95]


def test_the_median_interval_covers_the_true_median_as_often_as_stated() -> None:
    random = np.random.default_rng(1)
    hits = [low <= 0 <= high for low, high in (median_interval(random.normal(size=5)) for _ in range(200))]
    assert np.mean(hits) == pytest.approx(coverage(5), abs=0.05)


def test_pairing_removes_what_the_launches_of_a_repeat_have_in_common() -> None:
    common = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    assert ratio_interval(2 * common, common, paired=True) == (2.0, 2.0)
    low, high = ratio_interval(2 * common, common, paired=False)
    assert low < 1.0
    assert high > 4.0


def test_intervals_are_the_same_every_time() -> None:
    first, second = np.random.default_rng(2).normal(100, 5, size=(2, 30))
    intervals = [ratio_interval(first, second, paired=False) for _ in range(2)]
    assert intervals[0] == intervals[1]


def test_the_verdict_names_the_faster_framework_with_its_interval(tmp_path: Path) -> None:
    native, horovod = [108.0, 112.0, 115.0, 112.0, 110.0], [100.0] * 5
    sentence = verdict_of(tmp_path, {("pytorch_native", 4): native, ("horovod", 4): horovod})
    assert sentence.startswith("At 4 workers native DDP is 12 % faster than Horovod [8, 15]")
    assert "(94 % interval, 5 repeats)" in sentence


def test_the_verdict_is_symmetric_in_the_frameworks(tmp_path: Path) -> None:
    native, horovod = [100.0] * 5, [108.0, 112.0, 115.0, 112.0, 110.0]
    sentence = verdict_of(tmp_path, {("pytorch_native", 4): native, ("horovod", 4): horovod})
    assert sentence.startswith("At 4 workers Horovod is 12 % faster than native DDP [8, 15]")


def test_the_verdict_pairs_runs_of_one_repeat(tmp_path: Path) -> None:
    """The repeats differ by a factor of 5 and the frameworks by 1.1 in each of them."""
    horovod = [100.0, 200.0, 300.0, 400.0, 500.0]
    native = [1.1 * value for value in horovod]
    sentence = verdict_of(tmp_path, {("pytorch_native", 2): native, ("horovod", 2): horovod})
    assert sentence.startswith("At 2 workers native DDP is 10 % faster than Horovod [10, 10]")


def test_an_interval_that_holds_1_is_no_significant_difference(tmp_path: Path) -> None:
    native, horovod = [95.0, 101.0, 103.0], [100.0] * 3
    sentence = verdict_of(tmp_path, {("pytorch_native", 1): native, ("horovod", 1): horovod})
    assert "At 1 worker no significant difference" in sentence
    assert "ratio 1.010 [0.950, 1.030]" in sentence


def test_too_few_repeats_give_no_verdict(tmp_path: Path) -> None:
    one: Throughputs = {("pytorch_native", 1): [100.0] * 2, ("horovod", 1): [100.0] * 2}
    two: Throughputs = {("pytorch_native", 2): [187.0] * 2, ("horovod", 2): [162.0] * 2}
    assert verdict_of(tmp_path, {**one, **two}) == (
        "not enough repeats for a verdict: 2 per point, at least 3 needed (5 recommended); "
        "measured so far: DDP 1.87x, Horovod 1.62x (2 workers)"
    )


def test_too_few_repeats_without_a_baseline_tell_the_throughput(tmp_path: Path) -> None:
    sentence = verdict_of(tmp_path, {("pytorch_native", 2): [187.0], ("horovod", 2): [162.0]})
    assert "DDP 187 images/s, Horovod 162 images/s" in sentence


def test_repeats_without_a_partner_do_not_count(tmp_path: Path) -> None:
    study = study_of(tmp_path, {("pytorch_native", 2): [100.0] * 3})
    for repeat in (3, 4, 5):
        write_run(tmp_path, "horovod", 2, repeat)
    (verdict,) = verdicts(load_study(tmp_path))
    assert len(study.runs) == 3
    assert verdict.sentence.startswith("not enough repeats for a verdict: 1 that both frameworks have")


def test_the_verdict_is_about_the_largest_common_worker_count(tmp_path: Path) -> None:
    both: Throughputs = {("pytorch_native", 2): [100.0] * 3, ("horovod", 2): [90.0] * 3}
    sentence = verdict_of(tmp_path, {**both, ("pytorch_native", 4): [200.0] * 3})
    assert sentence.startswith("At 2 workers")


def test_one_framework_alone_gives_no_verdict(tmp_path: Path) -> None:
    sentence = verdict_of(tmp_path, {("pytorch_native", 1): [100.0] * 3})
    assert sentence == "no verdict: there is no usable run of Horovod"


def test_frameworks_without_a_common_worker_count_give_no_verdict(tmp_path: Path) -> None:
    sentence = verdict_of(tmp_path, {("pytorch_native", 1): [100.0], ("horovod", 2): [100.0]})
    assert sentence == "no verdict: the frameworks have no worker count in common"


def test_every_set_of_options_has_its_own_verdict(tmp_path: Path) -> None:
    for precision in ("fp32", "bf16"):
        for framework in FRAMEWORKS:
            options = {"training": {"precision": precision}}
            write_run(tmp_path, framework, options=options, label=f"-{precision}")
    first, second = verdicts(load_study(tmp_path))
    assert str(first).startswith("[precision=bf16] not enough")
    assert str(second).startswith("[precision=fp32] not enough")
