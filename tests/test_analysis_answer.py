"""The answer of a study: a headline that claims no more than the evidence, in studies where that is easy."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from analysis.findings.answer import Answer
from analysis.findings.tiles import Tile
from analysis.loading.load import load_study
from analysis.loading.reference import load_reference
from analysis.report.assemble import Report, make_report
from tests.records import make_workers, write_run
from tests.report_studies import START, write_one_after_the_other, write_study
from unet_scaling.study.config import FRAMEWORKS, Framework
from unet_scaling.study.options import Criteria
from unet_scaling.study.record_lines import End

# Launches of a point differ by so much.
NOISE = (0.99, 1.0, 1.01, 1.0, 1.005)
DIVERGED = End(status="diverged", reason="loss is nan")

# Of a framework, images per second and IoU at each worker count.
Points = Mapping[int, tuple[float, float]]


def write_points(
    folder: Path, of: Mapping[Framework, Points], repeats: int = 5, noise: Sequence[float] = NOISE, **run: Any
) -> Path:
    """Runs of these points, in blocks, after those in the folder; `run` is passed on to `write_run`.

    Horovod has the noise in reverse order, so that the frameworks differ by it.
    """
    begun = len(list(folder.glob("*")))
    for repeat in range(1, repeats + 1):
        for framework, points in of.items():
            factor = noise[repeat - 1 if framework == "pytorch_native" else -repeat]
            for workers, (speed, iou) in points.items():
                write_run(
                    folder,
                    framework,
                    workers,
                    repeat,
                    images_per_second=speed * factor,
                    iou=round(iou + 0.001 * NOISE[repeat - 1], 6),
                    **{"header": {"started_utc": at_minute(begun)}} | run,
                )
                begun += 1
    return folder


def at_minute(minute: int) -> str:
    return f"{START + timedelta(minutes=minute):%Y-%m-%dT%H:%M:%SZ}"


def both(points: Points, horovod: Points | None = None) -> dict[Framework, Points]:
    return {"pytorch_native": points, "horovod": horovod or points}


def report_of(folder: Path) -> Report:
    return make_report(load_study(folder))


def answer_of(folder: Path) -> Answer:
    (answer,) = report_of(folder).answers
    return answer


def tile_of(answer: Answer, title: str) -> Tile:
    return next(tile for tile in answer.tiles if tile.title == title)


def test_names_framework_count_speed_iou_and_cost(tmp_path: Path) -> None:
    answer = answer_of(write_study(tmp_path))
    assert answer.kind == "scale"
    assert answer.headline == (
        "Use native DDP on 4 workers: 3.8x, IoU -0.003, 2.98 worker-seconds a training"
    )
    assert [tile.title for tile in answer.tiles] == ["Speed", "IoU", "Time and cost", "Trust"]
    assert [tile.light for tile in answer.tiles[:3]] == ["good", "good", "good"]
    assert any("on 4 workers native DDP is 11 % faster" in line for line in answer.tiles[0].reasons)


def test_workers_are_called_gpus_where_the_records_name_gpus(tmp_path: Path) -> None:
    for number, framework in enumerate(FRAMEWORKS * 3):
        for workers in (1, 2):
            header = {
                "workers": make_workers(workers, device="NVIDIA H200"),
                "started_utc": at_minute(2 * number + workers),
            }
            speed = 99.0 * workers
            write_run(tmp_path, framework, workers, number // 2 + 1, images_per_second=speed, header=header)
    headline = answer_of(tmp_path).headline
    assert " on 2 GPUs: 2.0x, " in headline
    assert " GPU-seconds a training" in headline


def test_a_collapse_of_the_iou_goes_before_the_speed(tmp_path: Path) -> None:
    answer = answer_of(write_points(tmp_path, both({1: (100, 0.33), 2: (190, 0.01)})))
    assert answer.kind == "stay"
    assert (
        answer.headline
        == "Do not scale out: 2 workers are 1.9x as fast as 1, but IoU falls from 0.33 to 0.01"
    )
    assert tile_of(answer, "IoU").light == "bad"
    assert tile_of(answer, "Speed").light == "good"


def test_disjoint_hosts_in_turn_are_no_fair_comparison(tmp_path: Path) -> None:
    answer = answer_of(write_one_after_the_other(tmp_path))
    assert answer.kind == "unfair"
    assert answer.headline.startswith("No fair comparison, as the fairness table says no to: same nodes")
    assert answer.headline.endswith("; measured Horovod 1.78x, native DDP 2.00x on 2 workers")
    assert "Use" not in answer.headline
    assert tile_of(answer, "Trust").light == "bad"
    assert tile_of(answer, "Speed").light == "caution"
    assert any("--one-allocation" in step for step in answer.next_steps)


def test_a_baseline_on_another_day_makes_no_fair_efficiency(tmp_path: Path) -> None:
    """All larger counts are below the floor, but of a baseline that another machine state measured."""
    points = both({2: (90, 0.8), 4: (95, 0.8)})
    write_points(tmp_path, points)
    write_points(tmp_path, both({1: (100, 0.8)}), header={"started_utc": "2025-01-12T12:00:00Z"})
    answer = answer_of(tmp_path)
    assert answer.kind == "unfair"
    assert "same baseline" in answer.headline
    assert any("measure 1 worker again" in step for step in answer.next_steps)


def test_an_efficiency_above_one_is_no_fair_baseline(tmp_path: Path) -> None:
    answer = answer_of(write_points(tmp_path, both({1: (100, 0.8), 2: (250, 0.8)})))
    assert answer.kind == "unfair"
    assert answer.headline.startswith("No fair baseline: the runs on 1 worker were slowed by something")
    assert tile_of(answer, "Speed").light != "good"


def test_a_collapse_of_the_iou_beside_an_impossible_speed_says_no_speed(tmp_path: Path) -> None:
    answer = answer_of(write_points(tmp_path, both({1: (100, 0.33), 2: (250, 0.01)})))
    assert answer.kind == "stay"
    assert answer.headline == "Do not scale out: on 2 workers IoU falls from 0.33 to 0.01"


def test_two_repeats_are_undecided_and_the_time_of_more_is_told(tmp_path: Path) -> None:
    speeds = both({1: (100, 0.8), 2: (187, 0.8)}, {1: (100, 0.8), 2: (162, 0.8)})
    answer = answer_of(write_points(tmp_path, speeds, repeats=2, noise=(1.0, 1.0)))
    assert answer.kind == "undecided"
    assert answer.headline == (
        "Undecided: 2 repeats per point carry no interval; so far Horovod 1.62x, native DDP 1.87x on "
        "2 workers; 3 more repeats (at least 33 s) would give one"
    )
    assert tile_of(answer, "Trust").light == "bad"
    assert tile_of(answer, "Speed").light == "unknown"
    assert answer.next_steps[0].startswith("set repeats = 5, then .venv/bin/unet-scaling run ")


def test_an_efficiency_whose_interval_holds_the_floor_is_undecided(tmp_path: Path) -> None:
    write_points(tmp_path, both({1: (100, 0.8)}))
    write_points(tmp_path, both({2: (140, 0.8)}), noise=(0.5, 1.4, 0.9, 1.0, 1.2))
    answer = answer_of(tmp_path)
    assert answer.kind == "undecided"
    assert "may be below the floor" in answer.headline
    assert tile_of(answer, "Speed").light == "caution"


def test_the_faster_framework_with_a_lower_iou_is_not_the_one_to_use(tmp_path: Path) -> None:
    native = {1: (100, 0.8), 8: (700, 0.8)}
    horovod = {1: (100, 0.8), 8: (760, 0.6)}
    answer = answer_of(write_points(tmp_path, both(native, horovod)))
    assert answer.kind == "scale"
    assert answer.headline.startswith("Use native DDP on 8 workers: 7.0x, IoU ±0.000")
    assert answer.headline.endswith("8 workers with Horovod are faster, but IoU falls from 0.80 to 0.60")
    assert any("Horovod is 9 % faster than native DDP" in line for line in answer.tiles[0].reasons)


def test_one_worker_alone_says_nothing_of_scaling(tmp_path: Path) -> None:
    answer = answer_of(write_points(tmp_path, both({1: (110, 0.8)}, {1: (100, 0.8)})))
    assert answer.kind == "undecided"
    assert "On 1 worker native DDP is 10 % faster than Horovod" in answer.headline
    assert "only 1 worker was measured" in answer.headline
    assert tile_of(answer, "IoU").light == "unknown"
    assert answer.next_steps[-1] == "add larger worker counts to the study"


def test_one_framework_alone_is_no_choice_between_two(tmp_path: Path) -> None:
    answer = answer_of(write_points(tmp_path, {"horovod": {1: (100, 0.8), 2: (190, 0.8)}}))
    assert answer.kind == "scale"
    assert answer.headline.startswith("Use Horovod on 2 workers: 1.9x")
    assert answer.headline.endswith("native DDP has no usable run")


def test_one_count_without_baseline_answers_speed_and_leaves_scaling_open(tmp_path: Path) -> None:
    answer = answer_of(write_points(tmp_path, both({8: (880, 0.8)}, {8: (800, 0.8)})))
    assert answer.kind == "undecided"
    assert answer.headline.startswith("On 8 workers native DDP is 10 % faster than Horovod [")
    assert (
        "whether to scale out is undecided: no usable run of native DDP and Horovod on 1 worker"
        in answer.headline
    )
    assert tile_of(answer, "Speed").light == "unknown"


def test_frameworks_that_do_not_differ_are_both_named(tmp_path: Path) -> None:
    answer = answer_of(write_points(tmp_path, both({1: (100, 0.8), 2: (190, 0.8)})))
    assert answer.kind == "scale"
    assert answer.headline.startswith("Use native DDP or Horovod on 2 workers: 1.9x, IoU ±0.000")
    assert answer.headline.endswith("; no significant difference")


def test_diverged_runs_at_the_largest_count_stand_in_the_headline(tmp_path: Path) -> None:
    points = {1: (100.0, 0.8), 2: (195.0, 0.8), 4: (380.0, 0.8)}
    write_points(tmp_path, {"pytorch_native": points})
    write_run(tmp_path, "pytorch_native", 4, 6, end=DIVERGED)
    answer = answer_of(tmp_path)
    assert answer.headline.startswith("Use native DDP on 2 workers: ")
    assert "4 workers with native DDP are faster, but 1 of its 6 runs diverged" in answer.headline


def test_a_largest_count_of_which_every_run_diverged_is_not_forgotten(tmp_path: Path) -> None:
    write_points(tmp_path, {"pytorch_native": {1: (100.0, 0.8), 2: (195.0, 0.8)}})
    for repeat in (1, 2, 3):
        write_run(tmp_path, "pytorch_native", 8, repeat, end=DIVERGED)
    answer = answer_of(tmp_path)
    assert answer.headline.startswith("Use native DDP on 2 workers: ")
    assert answer.headline.endswith("; every run diverged on 8 workers with native DDP")
    assert not any("largest measured" in step for step in answer.next_steps)


def test_three_repeats_only_suggest_the_faster_framework(tmp_path: Path) -> None:
    points = both({1: (100, 0.8), 2: (195, 0.8)}, {1: (100, 0.8), 2: (170, 0.8)})
    answer = answer_of(write_points(tmp_path, points, repeats=3))
    assert answer.headline.startswith("Use native DDP on 2 workers: ")
    assert answer.headline.endswith("; 3 repeats suggest that it is the faster framework")
    assert tile_of(answer, "Trust").light == "caution"


def test_a_low_floor_does_not_make_slower_than_one_worker_worth_it(tmp_path: Path) -> None:
    write_points(tmp_path, both({1: (100, 0.8), 2: (80, 0.8)}))
    study = replace(load_study(tmp_path), criteria=Criteria(efficiency_floor=0.3))
    (answer,) = make_report(study).answers
    assert answer.kind == "stay"
    assert answer.headline == (
        "Do not scale out: 2 workers are slower than 1 (0.80x), "
        "and an efficiency of 0.40 is below the floor of 0.5"
    )


def test_a_count_that_is_slower_than_one_is_not_called_faster(tmp_path: Path) -> None:
    answer = answer_of(write_points(tmp_path, both({1: (100, 0.8), 2: (60, 0.8)})))
    assert answer.kind == "stay"
    assert (
        "2 workers are slower than 1 (0.60x), and an efficiency of 0.30 is below the floor of 0.7"
        in answer.headline
    )
    assert tile_of(answer, "Speed").light == "bad"


def test_sets_of_options_that_disagree_have_an_answer_each_and_none_is_best(tmp_path: Path) -> None:
    for rate, iou in ((0.001, 0.8), (0.1, 0.2)):
        options = {"training": {"learning_rate": rate}}
        points = both({1: (100, 0.8), 2: (190, iou)})
        write_points(tmp_path, points, options=options, label=f"-{rate}")
    report = report_of(tmp_path)
    assert [(answer.options, answer.kind) for answer in report.answers] == [
        ("learning_rate=0.001", "scale"),
        ("learning_rate=0.1", "stay"),
    ]
    assert report.compared_options.startswith("2 sets of options that differ in learning_rate: ")
    assert "the fastest without a lower IoU is learning_rate=0.001 on 2 workers" in report.compared_options


def test_a_faster_set_of_options_with_a_lower_iou_is_not_best(tmp_path: Path) -> None:
    for rate, speed, iou in ((0.001, 100.0, 0.8), (0.1, 200.0, 0.4)):
        options = {"training": {"learning_rate": rate}}
        points = both({1: (speed, iou), 2: (1.9 * speed, iou)})
        write_points(tmp_path, points, options=options, label=f"-{rate}")
    report = report_of(tmp_path)
    assert {answer.kind for answer in report.answers} == {"scale"}
    assert "which is best is not shown" in report.compared_options


def test_the_most_decided_answer_comes_first(tmp_path: Path) -> None:
    for rate, repeats in ((0.001, 2), (0.1, 5)):
        options = {"training": {"learning_rate": rate}}
        points = both({1: (100, 0.8), 2: (190, 0.8)})
        write_points(tmp_path, points, repeats, options=options, label=f"-{rate}")
    report = report_of(tmp_path)
    assert [answer.kind for answer in report.answers] == ["scale", "undecided"]
    assert "not every one has a decided answer" in report.compared_options


def test_a_speedup_whose_interval_holds_one_is_not_called_faster(tmp_path: Path) -> None:
    write_points(tmp_path, both({1: (100, 0.8)}))
    write_points(tmp_path, both({2: (105, 0.2)}), noise=(0.9, 1.1, 0.95, 1.0, 1.05))
    answer = answer_of(tmp_path)
    assert answer.headline == (
        "Do not scale out: 2 workers are not shown to be faster than 1 (1.1x), "
        "but IoU falls from 0.80 to 0.20"
    )


def test_a_refused_baseline_leaves_scaling_open(tmp_path: Path) -> None:
    write_points(tmp_path, both({1: (100, 0.8), 2: (190, 0.8)}, {2: (150, 0.8)}))
    write_points(tmp_path, {"horovod": {1: (100, 0.8)}}, header={"test_images": 30})
    answer = answer_of(tmp_path)
    assert answer.kind == "undecided"
    assert answer.headline.startswith("On 2 workers native DDP is ")
    assert answer.headline.endswith("scale out is undecided: no usable run of Horovod on 1 worker")
    assert any(step.startswith("add 1 to workers in the study, for Horovod") for step in answer.next_steps)


def test_older_logs_say_what_they_show_and_that_it_decides_nothing(tmp_path: Path) -> None:
    for name, seconds in (("log_1", 80.0), ("log_14", 8.0), ("log_hvd_1", 80.0), ("log_hvd_14", 10.0)):
        rows = [f"{epoch},{seconds},0.5,0.001,{3 * seconds},1.0,0.9" for epoch in range(3)]
        header = ",time_per_epoch,loss,lr,training_time,test_time,iou"
        (tmp_path / f"{name}.csv").write_text("\n".join([header, *rows, ""]))
    (answer,) = make_report(load_reference(tmp_path)).answers
    assert answer.kind == "undecided"
    assert answer.headline == (
        "Undecided: one run per point and no provenance; the logs show Horovod 8.00x, native DDP 10.00x on "
        "14 workers"
    )
    assert {tile_of(answer, title).light for title in ("Speed", "IoU", "Trust")} == {"unknown"}


@pytest.mark.parametrize("study", ["published_gap_controller", "published_gap_openmpi"])
def test_the_published_runs_say_not_to_scale_out(study: str) -> None:
    answers = report_of(Path("logs") / study).answers
    assert {answer.kind for answer in answers} == {"stay"}
    assert all(answer.headline.endswith("IoU falls from 0.33 to 0.01") for answer in answers)
