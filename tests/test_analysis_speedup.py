"""The numbers of a point, against known truths, and their intervals."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.findings.speedup import (
    SPEEDUP_COLUMNS,
    interval_notes,
    summarise,
    unequal_work,
)
from analysis.loading.load import load_study
from analysis.study import Study
from tests.records import write_run
from tests.simulated import Noise, Throughputs, sentence_of, simulate, study_from, study_with_pace
from unet_scaling.study.config import FRAMEWORKS, Framework

NOISE = np.array([0.0, 0.01, -0.012, 0.02, -0.018])
WORKERS = (1, 2, 4, 8, 16)


def point(study: Study, framework: Framework, workers: int) -> "pd.Series[Any]":
    points = summarise(study)
    return points[(points["framework"] == framework) & (points["workers"] == workers)].iloc[0]


def noisy(value: float, workers: int, repeats: int = 5) -> Sequence[float]:
    """Throughputs around a value, other ones for each worker count."""
    noise = np.tile(np.roll(NOISE, workers), repeats // len(NOISE))
    return list(value * np.exp(noise))


def test_speedup_is_exact_for_known_throughput_of_records(tmp_path: Path) -> None:
    for workers, value in ((1, 100.0), (4, 320.0)):
        write_run(tmp_path, "horovod", workers, images_per_second=value)
    four = point(load_study(tmp_path), "horovod", 4)
    assert four["images_per_second"] == pytest.approx(320, rel=1e-12)
    assert four["speedup"] == pytest.approx(3.2, rel=1e-12)
    assert four["efficiency"] == pytest.approx(0.8, rel=1e-12)
    assert four["deviation"] == pytest.approx(0.2, rel=1e-12)
    assert four["nodes"] == 1


def test_perfectly_linear_scaling_has_an_efficiency_of_1_within_its_interval() -> None:
    points = summarise(study_from({("horovod", n): noisy(100.0 * n, n) for n in WORKERS}, epoch_noise=0.01))
    assert (points["efficiency_low"] <= 1).all()
    assert (points["efficiency_high"] >= 1).all()
    np.testing.assert_allclose(points["efficiency"], 1, atol=0.03)


def test_the_serial_share_of_amdahls_law_is_recovered() -> None:
    truth = {n: 1 / (0.05 + 0.95 / n) for n in WORKERS}
    points = summarise(study_from({("horovod", n): noisy(100 * truth[n], n) for n in WORKERS}))
    np.testing.assert_allclose(points["speedup"], list(truth.values()), rtol=0.03)
    assert (points["speedup_low"] <= list(truth.values())).all()
    assert (points["speedup_high"] >= list(truth.values())).all()
    assert points["deviation"].iloc[-1] == pytest.approx(1 - truth[16] / 16, abs=0.02)
    assert points["deviation_low"].iloc[-1] > 0.35


def test_each_framework_has_its_own_baseline_and_both_have_the_faster_one_in_common() -> None:
    one: Throughputs = {("pytorch_native", 1): [100.0], ("horovod", 1): [50.0]}
    study = study_from({**one, ("pytorch_native", 2): [150.0], ("horovod", 2): [90.0]})
    assert point(study, "pytorch_native", 2)["speedup"] == pytest.approx(1.5)
    assert point(study, "horovod", 2)["speedup"] == pytest.approx(1.8)
    assert point(study, "pytorch_native", 2)["speedup_common"] == pytest.approx(1.5)
    assert point(study, "horovod", 2)["speedup_common"] == pytest.approx(0.9)
    assert point(study, "horovod", 2)["efficiency_common"] == pytest.approx(0.45)


def test_the_common_baseline_brings_its_own_noise() -> None:
    one: Throughputs = {("pytorch_native", 1): noisy(200.0, 3), ("horovod", 1): [100.0] * 5}
    two = point(study_from({**one, ("horovod", 2): [200.0] * 5}), "horovod", 2)
    assert two["speedup_low"] == pytest.approx(two["speedup_high"])
    assert two["speedup_common_low"] < 0.995 < 1.005 < two["speedup_common_high"]


def test_each_set_of_options_has_its_own_baseline(tmp_path: Path) -> None:
    for precision, one, two in (("fp32", 100.0, 180.0), ("bf16", 300.0, 330.0)):
        for workers, value in ((1, one), (2, two)):
            options = {"training": {"precision": precision}}
            write_run(tmp_path, "horovod", workers, images_per_second=value, options=options, label=precision)
    points = summarise(load_study(tmp_path))
    two_workers = points[points["workers"] == 2].set_index("training.precision")
    for name in ("speedup", "speedup_common"):
        assert two_workers[name]["fp32"] == pytest.approx(1.8)
        assert two_workers[name]["bf16"] == pytest.approx(1.1)


def test_numbers_are_medians_over_repeats() -> None:
    study = study_from({("horovod", 1): [90, 100, 500], ("horovod", 2): [10, 180, 190]})
    two = point(study, "horovod", 2)
    assert two["images_per_second"] == two["throughput"] == pytest.approx(180)
    assert two["speedup"] == pytest.approx(1.8)
    assert two["repeats"] == 3


def test_the_points_of_one_framework_without_a_baseline_are_not_divided_by_anything() -> None:
    both: Throughputs = {("pytorch_native", n): [100.0 * n] * 3 for n in (1, 2, 4)}
    study = study_from({**both, ("horovod", 2): [180.0] * 3, ("horovod", 4): [350.0] * 3})
    points = summarise(study)
    horovod, native = (points[points["framework"] == name] for name in ("horovod", "pytorch_native"))
    unknown = [name for name in points.columns if name.startswith(("speedup", "efficiency", "deviation"))]
    assert horovod[unknown].isna().all(axis=None)
    assert horovod["images_per_second"].tolist() == pytest.approx([180, 350])
    assert set(horovod["unknown"]) == {"speed-up: no run on 1 worker"}
    assert native["speedup"].tolist() == pytest.approx([1, 2, 4])
    assert native["speedup_common"].isna().all()
    assert set(native["unknown"]) == {""}


def test_a_missing_middle_point_changes_no_other() -> None:
    throughputs: Throughputs = {("horovod", n): noisy(90.0 * n, n) for n in (1, 2, 4)}
    whole = summarise(study_from(throughputs))
    gap = summarise(study_from({key: value for key, value in throughputs.items() if key[1] != 2}))
    kept = whole[whole["workers"] != 2].reset_index(drop=True)
    pd.testing.assert_frame_equal(gap, kept)


def test_doubled_repeats_double_nothing() -> None:
    both = {
        number: study_from({("horovod", n): noisy(100.0 * n, n, number) for n in (1, 2)})
        for number in (5, 10)
    }
    five, ten = (summarise(study) for study in both.values())
    assert ten["repeats"].tolist() == [10, 10]
    for name in ("images_per_second", "speedup", "efficiency", "images_per_epoch", "seconds_per_epoch"):
        np.testing.assert_allclose(ten[name], five[name])
    assert (
        ten["throughput_high"] - ten["throughput_low"] < five["throughput_high"] - five["throughput_low"]
    ).all()


def test_one_slow_launch_moves_the_median_little_and_stays_in_the_interval() -> None:
    slow = point(study_from({("horovod", 4): [400.0, 404.0, 280.0, 396.0, 402.0]}), "horovod", 4)
    assert slow["repeats"] == 5
    assert slow["throughput"] == pytest.approx(400)
    assert slow["throughput_low"] < 300


def test_what_a_repeat_has_in_common_cancels_in_the_speedup() -> None:
    """Repeats differ by up to 20 %, the speed-up is 2 in each; unequal repeats cannot be paired."""
    common = np.array([80.0, 90.0, 100.0, 95.0, 85.0])
    study = study_from({("horovod", 1): list(common), ("horovod", 2): list(2 * common)})
    paired = point(study, "horovod", 2)
    assert paired["speedup_high"] - paired["speedup_low"] < 1e-9
    study.runs.loc[study.runs["workers"] == 2, "repeat"] += 5
    apart = point(study, "horovod", 2)
    assert apart["speedup_high"] - apart["speedup_low"] > 0.3


def test_fewer_than_three_repeats_have_no_interval() -> None:
    study = study_from({("horovod", 1): [100, 101], ("horovod", 2): [180, 190]})
    bounds = [column for column in summarise(study).columns if column.endswith(("_low", "_high"))]
    assert {"speedup_low", "speedup_high", "iou_low", "iou_high"} < set(bounds)
    assert summarise(study)[bounds].isna().all(axis=None)


def test_three_repeats_have_an_interval_around_the_speedup() -> None:
    two = point(study_from({("horovod", 1): [98, 100, 102], ("horovod", 2): [170, 180, 190]}), "horovod", 2)
    assert two["speedup_low"] < two["speedup"] < two["speedup_high"]
    assert two["efficiency_low"] == pytest.approx(two["speedup_low"] / 2)
    assert two["deviation_high"] == pytest.approx(1 - two["efficiency_low"])


def test_the_noise_of_epochs_alone_gives_no_interval_where_launches_agree() -> None:
    """The unit of replication is the launch: launches that are equal leave nothing to be uncertain of."""
    study = study_from({("horovod", 1): [100.0] * 5}, epoch_noise=0.05)
    study.runs["images_per_second"] = 100.0
    one = point(study, "horovod", 1)
    assert (one["throughput_low"], one["throughput_high"]) == pytest.approx((100.0, 100.0))


def test_an_unknown_iou_makes_the_points_iou_unknown(tmp_path: Path) -> None:
    for repeat, iou in ((1, 0.8), (2, 0.81), (3, 0.82)):
        write_run(tmp_path, "horovod", repeat=repeat, iou=iou)
    study = load_study(tmp_path)
    known = point(study, "horovod", 1)
    assert known["iou"] == pytest.approx(0.81)
    assert known["iou_low"] < known["iou"] < known["iou_high"]
    study.runs.loc[0, "iou"] = np.nan
    assert point(study, "horovod", 1)[["iou", "iou_low", "iou_high"]].isna().all()


def test_nodes_are_unknown_where_the_runs_of_a_point_differ() -> None:
    study = study_from({("horovod", 1): [100.0] * 3, ("horovod", 2): [200.0] * 3})
    study.runs.loc[4, "nodes"] = 2.0
    points = summarise(study)
    assert points["nodes"].iloc[0] == 1
    assert np.isnan(points["nodes"].iloc[1])


def test_unequal_images_per_epoch_are_told_with_their_share() -> None:
    study = study_from({("horovod", 1): [100.0], ("horovod", 2): [200.0]})
    assert list(unequal_work(study)) == []
    study.runs["images_per_epoch"] = [48.0, 46.0]
    assert list(unequal_work(study)) == ["images per epoch: 48 to 46, 4.2 %"]


def test_the_notes_say_what_so_few_repeats_are_worth() -> None:
    few, three = (study_from({("horovod", 1): [100.0] * number}) for number in (2, 3))
    assert "at least 3 repeats" in "".join(interval_notes(summarise(few)))
    assert "in about 75 % of studies" in "".join(interval_notes(summarise(three)))
    assert not list(interval_notes(summarise(study_from({("horovod", 1): [100.0] * 6}))))


def test_the_agreed_columns_come_first() -> None:
    assert ",".join(summarise(study_with_pace(np.ones((1, 3)))).columns).startswith(
        "framework,workers,repeats,images_per_second,speedup,speedup_low,speedup_high,"
        "efficiency,deviation,iou,iou_low,iou_high"
    )
    assert len(SPEEDUP_COLUMNS) == 12


def test_the_order_of_runs_does_not_matter() -> None:
    study = simulate(1, Noise(0.02, 0.02, 0.02, 6), 3, 1.03)
    shuffled = replace(study, runs=study.runs.sample(frac=1, random_state=2))
    key = ["options", "framework", "workers"]
    first, second = (summarise(each).sort_values(key, ignore_index=True) for each in (study, shuffled))
    pd.testing.assert_frame_equal(first, second)


def test_epochs_per_second_are_the_throughput_where_images_are_not_counted() -> None:
    study = study_from({(framework, 1): [100.0, 101.0, 102.0] for framework in FRAMEWORKS})
    study.epochs["images"] = np.nan
    study.runs["images_per_second"] = np.nan
    one = point(replace(study, throughput="epochs_per_second", unit="epochs / s"), "horovod", 1)
    assert one["throughput"] == pytest.approx(0.101)
    assert one["throughput_low"] < 0.101 < one["throughput_high"]
    assert one[["images_per_second", "images_per_second_low"]].isna().all()
    assert "epochs/s" not in sentence_of({("pytorch_native", 1): [1.0], ("horovod", 1): [1.0]})
