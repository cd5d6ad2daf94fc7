"""What each section of the page says it finds: the sentence agrees with the table below it."""

from dataclasses import replace
from pathlib import Path

import pytest

from analysis.loading.load import load_study
from analysis.report import conclusions
from analysis.report.assemble import Report, make_report
from analysis.report.links import run_links
from tests.records import write_run
from unet_scaling.study.config import FRAMEWORKS

# At each worker count: IoU of native DDP and of Horovod.
IOUS = {1: (0.8, 0.8), 2: (0.8, 0.8), 4: (0.8, 0.6)}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Horovod is slower from 2 workers on, and its IoU falls on 4; one run failed."""
    folder = tmp_path_factory.mktemp("conclusions") / "study"
    for repeat in range(1, 6):
        for workers, ious in IOUS.items():
            for framework, iou, slower in zip(FRAMEWORKS, ious, (1.0, 0.9), strict=True):
                speed = 100.0 * workers * (slower if workers > 1 else 1.0) + 0.1 * repeat
                write_run(folder, framework, workers, repeat, images_per_second=speed, iou=iou)
    write_run(folder, repeat=6, end=None)
    return make_report(load_study(folder))


def test_speed_names_both_frameworks_at_the_most_workers(report: Report) -> None:
    said = conclusions.speed_conclusion(report)
    assert said.startswith("On 4 workers the speed-up is ")
    assert "3.99" in said or "4.00" in said
    assert said.index("native DDP") < said.index("Horovod")


def test_iou_names_the_worker_counts_of_each_framework(report: Report) -> None:
    native, horovod = conclusions.iou_conclusion(report).split("; ")
    assert native == "Native DDP: not inferior on 2 and 4 workers"
    assert horovod == "Horovod: not inferior on 2 workers, inferior on 4 workers."


def test_comparisons_are_counted_by_outcome(report: Report) -> None:
    outcomes = report.comparisons["outcome"].value_counts()
    said = conclusions.comparison_conclusion(report)
    assert said.startswith("Of 3 comparisons: ")
    assert all(f"{outcome} at {points}" in said for outcome, points in outcomes.items())


def test_cost_names_the_fastest_and_the_cheapest_training(report: Report) -> None:
    said = conclusions.cost_conclusion(report)
    assert said.startswith("The fastest training is native DDP on 4 workers (")
    assert "cheapest" in said
    shown = report.cost.set_index(["framework", "workers"])
    shown.loc[("horovod", 4), "training_seconds_low"] = shown["training_seconds"].min()
    overlapping = replace(report, cost=shown.reset_index())
    assert said != conclusions.cost_conclusion(overlapping)
    assert "1 other" in conclusions.cost_conclusion(overlapping)


def test_fairness_counts_the_marks_and_names_what_is_not_met(report: Report) -> None:
    marks = report.fairness["mark"].value_counts()
    said = conclusions.fairness_conclusion(report)
    assert said.startswith(f"Of {len(report.fairness)} requirements {marks['yes']} met")
    assert all(check in said for check in report.fairness.loc[report.fairness["mark"] == "no", "check"][:2])


def test_nothing_is_said_of_what_was_not_recorded(report: Report) -> None:
    assert report.study.runs["busy_share"].isna().all()
    assert conclusions.runs_conclusion(report) == "30 runs."
    assert conclusions.left_out_conclusion(report) == "1 failed."
    assert conclusions.overhead_conclusion(report).startswith("No overhead budget: ")


def test_runs_are_linked_where_their_folders_lie_beside_the_report(report: Report, tmp_path: Path) -> None:
    (tmp_path / "horovod-w01-r1").mkdir()
    assert run_links(report, tmp_path / "report") == {"horovod-w01-r1": "../horovod-w01-r1/"}
    assert run_links(report, tmp_path / "elsewhere" / "report") == {}
