"""Answers of studies that mislead easily: disturbed, incomplete, diverged, of unequal baselines."""

import shutil
from dataclasses import replace
from pathlib import Path

from analysis.loading.load import load_study
from analysis.report.assemble import make_report
from tests.budgets import Steps, write_budget_run
from tests.records import write_run
from tests.test_analysis_answer import (
    DIVERGED,
    answer_of,
    at_minute,
    both,
    tile_of,
    write_points,
)
from tests.test_disturbance import LOADED
from unet_scaling.study.config import FRAMEWORKS
from unet_scaling.study.options import Criteria


def write_without_iou(folder: Path) -> Path:
    """Five repeats of native DDP on 1 and 2 workers; those on 2 have no IoU."""
    for repeat in range(1, 6):
        for workers, iou in ((1, 0.8), (2, None)):
            header = {"started_utc": at_minute(2 * repeat + workers)}
            write_run(
                folder,
                "pytorch_native",
                workers,
                repeat,
                images_per_second=90.0 * workers + repeat,
                iou=iou,
                header=header,
            )
    return folder


def write_busy(folder: Path, repeats: int) -> Path:
    """Both frameworks in turn; other programs take cores of every run of native DDP on 2 workers."""
    begun = 0
    for repeat in range(1, repeats + 1):
        for workers in (1, 2):
            for framework in FRAMEWORKS[:: (-1) ** repeat]:
                is_busy = workers == 2 and framework == "pytorch_native"
                steps = Steps(forward=0.08, contended=LOADED) if is_busy else Steps()
                write_budget_run(
                    folder, framework, workers, repeat, steps, about={"started_utc": at_minute(begun)}
                )
                begun += 1
    return folder


def test_a_busy_machine_leaves_an_answer_undecided_with_its_numbers(tmp_path: Path) -> None:
    answer = answer_of(write_busy(tmp_path, 5))
    assert answer.kind == "undecided"
    assert answer.headline.startswith("Undecided: the machine was not quiet; so far ")
    assert "x on 2 workers" in answer.headline
    assert tile_of(answer, "Trust").light == "bad"
    assert "--repeat-disturbed" in answer.next_steps[0]


def test_few_repeats_on_a_busy_machine_still_say_what_was_measured(tmp_path: Path) -> None:
    answer = answer_of(write_busy(tmp_path, 2))
    assert answer.kind == "undecided"
    assert answer.headline.startswith("Undecided: 2 repeats per point carry no interval; so far ")
    assert "x on 2 workers, on a machine that was not quiet; 3 more repeats" in answer.headline


def test_one_repeat_is_singular(tmp_path: Path) -> None:
    answer = answer_of(write_points(tmp_path, both({1: (100, 0.8), 2: (190, 0.8)}), repeats=1))
    assert answer.headline.startswith("Undecided: 1 repeat per point carries no interval; ")
    assert tile_of(answer, "Speed").reasons[0] == "on 2 workers no verdict from 1 repeat"


def test_the_slower_framework_does_not_lead_by_its_slow_baseline(tmp_path: Path) -> None:
    """Each against itself, Horovod would have 1.96x and native DDP 1.90x; it is half as fast."""
    points = both({1: (100, 0.8), 2: (190, 0.8)}, {1: (50, 0.8), 2: (98, 0.8)})
    answer = answer_of(write_points(tmp_path, points, repeats=2, noise=(1.0, 1.0)))
    assert "so far Horovod 0.98x, native DDP 1.90x on 2 workers" in answer.headline


def test_repeats_that_suggest_the_other_framework_do_not_back_the_one_named(tmp_path: Path) -> None:
    """Native DDP is faster, but one of its launches diverged: its 4 others speak for it, not for Horovod."""
    speeds = both({1: (100.0, 0.8), 2: (190.0, 0.8)}, {1: (100.0, 0.8), 2: (150.0, 0.8)})
    write_points(tmp_path, speeds)
    shutil.rmtree(tmp_path / "pytorch_native-w02-r5")
    write_run(tmp_path, "pytorch_native", 2, 5, end=DIVERGED)
    answer = answer_of(tmp_path)
    assert "2 workers with native DDP are faster, but 1 of its 5 runs diverged" in answer.headline
    assert "suggest" not in answer.headline


def test_an_iou_that_is_not_known_is_not_called_a_difference(tmp_path: Path) -> None:
    answer = answer_of(write_without_iou(tmp_path))
    assert answer.kind == "undecided"
    assert answer.headline.endswith("but its IoU is not known for every run")
    assert tile_of(answer, "IoU").light == "unknown"
    assert not any("narrow the intervals" in step for step in answer.next_steps)


def test_a_baseline_that_diverged_is_named_and_not_asked_for_again(tmp_path: Path) -> None:
    write_points(tmp_path, {"pytorch_native": {2: (190, 0.8)}})
    for repeat in (1, 2, 3):
        write_run(tmp_path, "pytorch_native", 1, repeat, end=DIVERGED)
    answer = answer_of(tmp_path)
    assert answer.headline.endswith("; every run diverged on 1 worker with native DDP")
    assert answer.next_steps[0].startswith("runs on 1 worker diverged: lower training.learning_rate, then ")


def test_the_tiles_are_of_the_point_that_an_undecided_headline_names(tmp_path: Path) -> None:
    """Of two points as fast, one is below the floor, and the other may be."""
    write_points(tmp_path, both({1: (100, 0.8), 2: (197, 0.8)}))
    study = replace(load_study(tmp_path), criteria=Criteria(efficiency_floor=0.99))
    (answer,) = make_report(study).answers
    assert answer.headline.startswith("Undecided: Horovod on 2 workers is the fastest that may qualify")
    assert tile_of(answer, "Speed").detail.startswith("2 workers with Horovod: ")
    assert tile_of(answer, "Speed").light == "caution"
    assert answer.next_steps[0].startswith("set repeats = 10, then .venv/bin/unet-scaling run ")
    assert answer.next_steps[0].endswith("would narrow the intervals")


def test_the_reasons_of_trust_do_not_repeat_its_detail(tmp_path: Path) -> None:
    trust = tile_of(answer_of(write_points(tmp_path, both({1: (100, 0.8), 2: (190, 0.8)}))), "Trust")
    assert trust.light == "caution"
    assert trust.reasons
    assert not any(reason in trust.detail for reason in trust.reasons)


def test_an_interval_of_a_difference_of_iou_has_signs_at_both_ends(tmp_path: Path) -> None:
    """IoU is higher on 2 workers, by 0.03 in the median."""
    for repeat in range(1, 6):
        write_run(tmp_path, workers=1, repeat=repeat, iou=0.8)
        write_run(tmp_path, workers=2, repeat=repeat, images_per_second=190.0, iou=0.815 + 0.005 * repeat)
    detail = tile_of(answer_of(tmp_path), "IoU").detail
    assert detail.endswith(": +0.030 [+0.021, +0.039], margin 0.01")


def test_that_drift_cannot_be_checked_is_said_beside_what_weighs_more(tmp_path: Path) -> None:
    trust = tile_of(answer_of(write_points(tmp_path, both({1: (100, 0.8), 2: (190, 0.8)}))), "Trust")
    assert trust.detail.startswith("machine quiet: not known: ")
    assert "drift" not in trust.detail
    assert "20 of 20 runs too short to be checked for drift" in trust.reasons


def test_the_cost_on_one_worker_is_one_number(tmp_path: Path) -> None:
    points = {framework: {1: (100.0, 0.8)} for framework in FRAMEWORKS}
    cost = tile_of(answer_of(write_points(tmp_path, points)), "Time and cost")
    assert cost.value == "2.88 s"
    assert "worker-seconds" not in cost.detail
