"""Worker-hours and node-hours, the time to an IoU, runs that never reach it, and the Pareto set by hand."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.findings.cost import cost_table, iou_curves, pareto, target_of
from analysis.loading.load import load_study
from analysis.statistics.intervals import median_intervals
from analysis.study import Study
from tests.records import make_workers, write_run
from unet_scaling.study.config import Framework
from unet_scaling.study.options import Criteria

EPOCHS_OF_THE_CLOCK = 6  # three epochs, of which the warm-up takes four times as long
Curve = Sequence[tuple[float, float]]
Throughputs = Mapping[tuple[Framework, int], Sequence[float]]


def study_of(
    folder: Path, points: Mapping[tuple[Framework, int], Sequence[float]], images: int = 3600
) -> Study:
    """A study with one run per throughput in images per second; their places are the repeats."""
    for (framework, workers), values in points.items():
        for repeat, value in enumerate(values, start=1):
            write_run(folder, framework, workers, repeat, images_per_second=value, images_per_epoch=images)
    return load_study(folder)


def with_evaluations(study: Study, curves: Mapping[str, Curve]) -> Study:
    """The study with other evaluations: {run: [(training seconds, IoU), ...]}."""
    rows = [
        {"run": run, "training_seconds": seconds, "iou": iou}
        for run, curve in curves.items()
        for seconds, iou in curve
    ]
    return replace(study, evaluations=pd.DataFrame(rows, columns=["run", "training_seconds", "iou"]))


def point(study: Study, workers: int) -> "pd.Series[Any]":
    table = cost_table(study)
    return table[table["workers"] == workers].iloc[0]


def three_runs(folder: Path, curves: Sequence[Curve], target: float | None = None, workers: int = 4) -> Study:
    """Three runs on one node that train for 216 s each."""
    study = with_evaluations(
        study_of(folder, {("horovod", workers): [100.0] * 3}),
        {f"horovod-w{workers:02d}-r{repeat}": curve for repeat, curve in enumerate(curves, start=1)},
    )
    return replace(study, criteria=Criteria(target_iou=target))


def test_hours_of_a_run_and_of_an_epoch(tmp_path: Path) -> None:
    found = point(study_of(tmp_path, {("horovod", 4): [90.0, 100.0, 120.0]}), 4)
    assert found["training_seconds"] == pytest.approx(36 * EPOCHS_OF_THE_CLOCK)
    assert found["worker_hours"] == pytest.approx(4 * 36 * EPOCHS_OF_THE_CLOCK / 3600)
    assert found["node_hours"] == pytest.approx(36 * EPOCHS_OF_THE_CLOCK / 3600)
    assert found["worker_hours_per_epoch"] == pytest.approx(4 * 36 / 3600)
    assert found["node_hours_per_epoch"] == pytest.approx(36 / 3600)
    ((low, high),) = median_intervals(
        [np.array([seconds * EPOCHS_OF_THE_CLOCK for seconds in (40.0, 36.0, 30.0)])]
    )
    assert found["training_seconds_low"] == pytest.approx(low)
    assert found["worker_hours_high"] == pytest.approx(4 * high / 3600)


def test_two_launches_have_no_interval(tmp_path: Path) -> None:
    found = point(study_of(tmp_path, {("horovod", 4): [90.0, 100.0]}), 4)
    assert not np.isnan(found["worker_hours"])
    assert found[["training_seconds_low", "worker_hours_low", "node_hours_high"]].isna().all()


def test_node_hours_count_distinct_hosts(tmp_path: Path) -> None:
    hosts = make_workers(2, host="node1") + make_workers(2, host="node2")
    write_run(tmp_path, "horovod", 4, images_per_epoch=3600, header={"workers": hosts})
    found = point(load_study(tmp_path), 4)
    assert found["nodes"] == 2
    assert found["node_hours"] == pytest.approx(2 * 36 * EPOCHS_OF_THE_CLOCK / 3600)


def test_node_hours_of_launches_on_different_numbers_of_nodes(tmp_path: Path) -> None:
    study = study_of(tmp_path, {("horovod", 4): [100.0, 100.0, 100.0]})
    found = point(replace(study, runs=study.runs.assign(nodes=[1.0, 2.0, 4.0])), 4)
    assert np.isnan(found["nodes"])
    hour = 36 * EPOCHS_OF_THE_CLOCK / 3600
    (bounds,) = median_intervals([np.array([hour, 2 * hour, 4 * hour])])
    assert found["node_hours"] == pytest.approx(2 * hour)
    assert found[["node_hours_low", "node_hours_high"]].to_list() == pytest.approx(bounds)
    assert found["worker_hours_high"] == pytest.approx(4 * hour)


def test_unknown_hosts_leave_node_hours_unknown(tmp_path: Path) -> None:
    study = study_of(tmp_path, {("horovod", 4): [100.0] * 3})
    found = point(replace(study, runs=study.runs.assign(nodes=float("nan"))), 4)
    assert found[["nodes", "node_hours", "node_hours_low", "node_hours_per_epoch"]].isna().all()
    assert not np.isnan(found["worker_hours_low"])


@pytest.mark.parametrize(("lowest", "expected"), [(0.8, 0.79), (0.7999, 0.78), (0.29, 0.28), (0.58, 0.57)])
def test_the_default_target_is_what_every_run_on_1_worker_reaches_less_the_margin(
    tmp_path: Path, lowest: float, expected: float
) -> None:
    curves: list[Curve] = [[(10, 0.5), (216, 0.95)], [(10, lowest), (216, 0.1)], [(216, 0.9)]]
    study = three_runs(tmp_path, curves, workers=1)
    assert target_of(study).iou == expected
    assert point(study, 1)["runs_to_target"] == 3


def test_a_score_far_below_that_of_1_worker_is_no_target(tmp_path: Path) -> None:
    study = study_of(tmp_path, {("horovod", 1): [100.0], ("horovod", 4): [300.0]})
    study = with_evaluations(study, {"horovod-w01-r1": [(216, 0.94)], "horovod-w04-r1": [(4, 0.18)]})
    assert target_of(study).iou == pytest.approx(0.93)
    assert point(study, 1)["seconds_to_target"] == 216
    assert point(study, 4)["runs_to_target"] == 0
    assert np.isnan(point(study, 4)["seconds_to_target"])


def test_the_target_of_the_study_stands(tmp_path: Path) -> None:
    study = three_runs(tmp_path, [[(10, 0.9), (216, 0.95)]] * 3, target=0.93)
    assert (target_of(study).iou, target_of(study).source) == (0.93, "stated by the study")
    assert point(study, 4)["seconds_to_target"] == 216


def test_an_evaluation_only_at_the_end_gives_an_upper_bound(tmp_path: Path) -> None:
    assert "upper bound" in target_of(three_runs(tmp_path, [[(216, 0.9)]] * 3, workers=1)).meaning
    during = with_evaluations(
        load_study(tmp_path), {f"horovod-w01-r{n}": [(9, 0.8), (216, 0.9)] for n in (1, 2, 3)}
    )
    assert "first evaluation" in target_of(during).meaning


def test_a_run_of_unknown_iou_leaves_no_target(tmp_path: Path) -> None:
    study = three_runs(tmp_path, [[(216, 0.9)], [(216, float("nan"))], [(216, 0.9)]], workers=1)
    assert np.isnan(target_of(study).iou)
    assert point(study, 1)[["target_iou", "seconds_to_target", "worker_hours_to_target"]].isna().all()
    assert point(study, 1)["runs_to_target"] == 0


def test_logs_without_provenance_have_no_target_and_no_curves(tmp_path: Path) -> None:
    study = replace(three_runs(tmp_path, [[(216, 0.9)]] * 3), provenance_known=False)
    assert np.isnan(target_of(study).iou)
    assert iou_curves(study).empty
    assert not iou_curves(replace(study, provenance_known=True)).empty


def test_time_to_target_is_that_of_the_first_evaluation_that_reaches_it(tmp_path: Path) -> None:
    curves = [[(50, 0.7), (100, 0.8), (216, 0.78)], [(90, 0.8), (216, 0.9)], [(120, 0.85), (216, 0.9)]]
    found = point(three_runs(tmp_path, curves, target=0.8), 4)
    assert found["seconds_to_target"] == 100
    (bounds,) = median_intervals([np.array([100, 90, 120])])
    assert found[["seconds_to_target_low", "seconds_to_target_high"]].to_list() == pytest.approx(bounds)
    assert found["worker_hours_to_target"] == pytest.approx(4 * 100 / 3600)
    assert found["node_hours_to_target"] == pytest.approx(100 / 3600)
    assert found["runs_to_target"] == 3


def test_a_minority_that_never_reaches_the_target_moves_the_median_and_takes_the_interval(
    tmp_path: Path,
) -> None:
    curves = [[(50, 0.8), (216, 0.9)], [(90, 0.8), (216, 0.9)], [(216, 0.7)]]
    found = point(three_runs(tmp_path, curves, target=0.8), 4)
    assert found["seconds_to_target"] == 90
    assert found["runs_to_target"] == 2
    assert found[["seconds_to_target_low", "worker_hours_to_target_high"]].isna().all()


def test_a_majority_that_never_reaches_the_target_leaves_it_unknown(tmp_path: Path) -> None:
    found = point(three_runs(tmp_path, [[(50, 0.8)], [(216, 0.7)], [(216, 0.7)]], target=0.8), 4)
    assert found[["seconds_to_target", "worker_hours_to_target", "node_hours_to_target"]].isna().all()
    assert found["runs_to_target"] == 1


def test_a_run_that_stopped_before_the_median_leaves_it_unknown(tmp_path: Path) -> None:
    study = three_runs(tmp_path, [[(100, 0.8)], [(200, 0.8)], [(150, 0.7)]], target=0.8)
    assert point(study, 4)["seconds_to_target"] == 200
    stopped = replace(study, runs=study.runs.assign(training_seconds=[216.0, 216.0, 150.0]))
    assert np.isnan(point(stopped, 4)["seconds_to_target"])


def test_curves_have_every_evaluation_in_worker_hours(tmp_path: Path) -> None:
    curves = iou_curves(three_runs(tmp_path, [[(50, 0.7), (216, 0.9)], [(216, 0.8)], [(216, 0.8)]]))
    assert len(curves) == 4
    assert curves["worker_hours"].to_list() == pytest.approx([4 * s / 3600 for s in (50, 216, 216, 216)])
    assert curves["repeat"].to_list() == [1, 1, 2, 3]


def test_the_pareto_set_by_hand() -> None:
    times = np.array([8.0, 4.0, 4.0, 2.0, 2.0, 1.0, float("nan"), 8.0])
    costs = np.array([8.0, 9.0, 8.5, 10.0, 10.0, 9.9, 1.0, 8.1])
    assert pareto(times, costs).tolist() == [True, False, True, False, False, True, False, False]


def test_equal_points_are_both_in_the_pareto_set_and_rounding_does_not_decide() -> None:
    assert pareto(np.array([1.0, 1.0]), np.array([2.0, 2.0])).tolist() == [True, True]
    assert pareto(np.array([2.0, 1.0]), np.array([8.0, 8.0 + 1e-14])).tolist() == [False, True]


def test_the_pareto_set_of_equal_epochs(tmp_path: Path) -> None:
    study = study_of(
        tmp_path, {("horovod", 1): [100.0], ("horovod", 2): [90.0], ("pytorch_native", 2): [180.0]}
    )
    table = cost_table(replace(study, criteria=Criteria(target_iou=0.99))).set_index(["framework", "workers"])
    assert set(table["pareto_of"]) == {"seconds and worker-hours of 3 epochs"}
    assert table["pareto"].to_dict() == {
        ("horovod", 1): True,
        ("horovod", 2): False,
        ("pytorch_native", 2): True,
    }


def test_the_pareto_set_uses_the_time_to_the_target_where_all_points_have_one(tmp_path: Path) -> None:
    study = study_of(tmp_path, {("horovod", 1): [100.0], ("horovod", 2): [180.0]})
    curves = {"horovod-w01-r1": [(50, 0.8), (216, 0.8)], "horovod-w02-r1": [(60, 0.8), (120, 0.8)]}
    table = cost_table(with_evaluations(study, curves))
    assert set(table["pareto_of"]) == {"seconds and worker-hours to an IoU of 0.79"}
    assert table["pareto"].to_list() == [True, False]


def test_one_point_without_the_target_puts_all_on_equal_epochs(tmp_path: Path) -> None:
    study = study_of(tmp_path, {("horovod", 1): [100.0], ("horovod", 2): [180.0]})
    curves = {"horovod-w01-r1": [(216, 0.8)], "horovod-w02-r1": [(120, 0.7)]}
    table = cost_table(replace(with_evaluations(study, curves), criteria=Criteria(target_iou=0.75)))
    assert set(table["pareto_of"]) == {"seconds and worker-hours of 3 epochs"}
    assert table["pareto"].to_list() == [True, True]


def test_unequal_epochs_are_compared_by_the_epoch(tmp_path: Path) -> None:
    study = study_of(tmp_path, {("horovod", 1): [100.0], ("horovod", 2): [180.0]})
    shorter = study.epochs[~((study.epochs["run"] == "horovod-w02-r1") & (study.epochs["epoch"] == 2))]
    table = cost_table(replace(study, epochs=shorter, criteria=Criteria(target_iou=0.99)))
    assert set(table["pareto_of"]) == {"seconds and worker-hours of one epoch"}
    assert table["pareto"].to_list() == [True, True]


def test_a_study_without_runs_gives_an_empty_table(tmp_path: Path) -> None:
    study = study_of(tmp_path, {("horovod", 1): [100.0]})
    empty = replace(study, runs=study.runs.iloc[:0], evaluations=study.evaluations.iloc[:0])
    assert cost_table(empty).empty
    assert "pareto" in cost_table(empty).columns


def test_points_keep_the_order_of_the_study(tmp_path: Path) -> None:
    one = [100.0]
    study = study_of(tmp_path, {(f, w): one for f in ("horovod", "pytorch_native") for w in (10, 2, 1)})
    order = ["framework", "workers"]
    expected = study.runs[order].to_numpy().tolist()
    assert cost_table(study)[order].to_numpy().tolist() == expected
    assert expected[0] == ["pytorch_native", 1]
