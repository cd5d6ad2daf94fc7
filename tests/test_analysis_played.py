"""Played runs: their IoU counts at the workers that they play, their seconds nowhere."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from analysis.loading.load import load_study
from analysis.played.kept import kept_ious, kept_sentence
from analysis.played.points import played_table
from analysis.report.assemble import Report, make_report
from analysis.study import Study
from tests.played_runs import DIVERGED, near, write_all_played, write_played, write_real
from tests.records import digest, make_workers
from unet_scaling.study.options import Criteria


def report_of(folder: Path) -> Report:
    return make_report(load_study(folder))


def rows_of(study: Study, kind: str = "played") -> dict[int, dict[str, Any]]:
    """Rows of one kind by workers, of a study with one series."""
    table = played_table(study)
    rows = table[table["kind"] == kind].to_dict("records")
    return {int(row["workers"]): {str(name): value for name, value in row.items()} for row in rows}


def sentence_of(study: Study) -> str:
    (kept,) = kept_ious(played_table(study))
    return kept_sentence(kept, study)


def test_played_runs_stand_apart_with_the_workers_that_they_play(tmp_path: Path) -> None:
    study = load_study(write_all_played(tmp_path, {1: near(0.8), 8: near(0.8)}))
    assert study.runs.empty
    assert study.played is not None
    assert sorted(study.played.runs["workers"].unique()) == [1, 8]
    assert set(study.played.runs["options"]) == {""}
    assert study.subject is study.played


def test_no_second_of_a_played_run_is_known_to_the_analysis(tmp_path: Path) -> None:
    played = load_study(write_all_played(tmp_path, {1: near(0.8), 8: near(0.8)})).played
    assert played is not None
    times = [name for name in map(str, played.runs) if "second" in name or name == "busy_share"]
    assert times
    assert played.runs[times].isna().all(axis=None)
    assert played.evaluations[["training_seconds", "seconds"]].isna().all(axis=None)
    assert all(getattr(played, name).empty for name in ("epochs", "budgets", "probes", "startups"))


def test_speed_of_real_runs_does_not_depend_on_played_ones_beside_them(tmp_path: Path) -> None:
    for name in ("alone", "beside"):
        write_real(tmp_path / name, 1, near(0.8), 100)
        write_real(tmp_path / name, 2, near(0.8), 190)
    write_all_played(tmp_path / "beside", {1: near(0.8), 2: near(0.8), 8: near(0.7)})
    alone, beside = report_of(tmp_path / "alone"), report_of(tmp_path / "beside")
    for part in ("points", "comparisons", "iou", "cost", "checks", "predictions"):
        assert str(getattr(alone, part)) == str(getattr(beside, part)), part
    assert "played" not in alone.answers[0].headline


def test_the_largest_number_of_workers_without_loss_and_the_loss_behind_it(tmp_path: Path) -> None:
    ious = {1: near(0.8), 4: near(0.799, seed=2), 8: near(0.798, seed=3), 14: near(0.76, seed=4)}
    study = load_study(write_all_played(tmp_path, ious))
    assert [row["verdict"] for row in rows_of(study).values()] == ["baseline", "no loss", "no loss", "loss"]
    assert sentence_of(study) == "up to 8 workers keep the IoU; 14 lose 0.041 [0.038, 0.042]"
    assert rows_of(study)[14]["difference"] == pytest.approx(-0.04, abs=0.002)


@pytest.mark.parametrize(
    ("ious", "said"),
    [
        ({1: near(0.8), 4: near(0.8), 8: near(0.8)}, "up to 8 workers keep the IoU, the most tried"),
        ({1: near(0.8), 4: near(0.7)}, "even 4 workers lose 0.100"),
        ({1: near(0.8), 4: near(0.8), 8: [*near(0.8, 3), DIVERGED, DIVERGED]}, "as 8 diverges (2 of 5 runs)"),
        ({1: near(0.8), 8: [DIVERGED] * 5}, "even training as 8 workers diverges (5 of 5 runs)"),
        ({1: [0.8], 8: [0.8]}, "undecided from 8 workers on (1 seed in common with 1 worker"),
        ({1: near(0.8), 8: near(0.795, deviation=0.02)}, "undecided from 8 workers on (difference"),
        ({4: near(0.8), 8: near(0.8)}, "undecided: no run on 1 worker to compare with"),
        ({1: near(0.8)}, "undecided: no run trained as more than 1 worker"),
        ({1: near(0.8), 8: [0.8, 0.8, 0.8, None]}, "(the IoU of a run is not known)"),
        ({1: [*near(0.8, 4), DIVERGED], 8: near(0.8)}, "; even 1 worker diverges for 1 seed"),
        ({1: near(0.8), 4: near(0.8), 8: near(0.78, deviation=0.02), 14: near(0.8)}, "; 14 keep it"),
    ],
)  # fmt: skip
def test_the_finding_says_no_more_than_its_runs(
    tmp_path: Path, ious: dict[int, Sequence[float | None]], said: str
) -> None:
    assert said in sentence_of(load_study(write_all_played(tmp_path, ious)))


def test_a_seed_missing_at_one_number_is_left_out_there_and_said(tmp_path: Path) -> None:
    study = load_study(write_all_played(tmp_path, {1: near(0.8), 8: near(0.8)[:4]}))
    row = rows_of(study)[8]
    assert (row["pairs"], row["verdict"]) == (4, "no loss")
    assert "1 of 5 seeds of 1 worker missing here" in row["why"]


def test_the_margin_is_that_of_the_study(tmp_path: Path) -> None:
    study = load_study(write_all_played(tmp_path, {1: near(0.8), 8: near(0.77, seed=2)}))
    assert rows_of(study)[8]["verdict"] == "loss"
    assert rows_of(replace(study, criteria=Criteria(iou_margin=0.05)))[8]["verdict"] == "no loss"


def test_real_runs_on_1_worker_are_the_baseline_of_played_ones(tmp_path: Path) -> None:
    write_real(tmp_path, 1, near(0.8), 100)
    study = load_study(write_all_played(tmp_path, {8: near(0.8)}))
    assert rows_of(study)[8]["verdict"] == "no loss"
    assert rows_of(study, "real")[1]["verdict"] == "baseline"


def test_of_two_kinds_at_one_number_the_worse_verdict_counts(tmp_path: Path) -> None:
    write_real(tmp_path, 1, near(0.8), 100)
    write_real(tmp_path, 2, near(0.7, seed=2), 190)
    report = report_of(write_all_played(tmp_path, {1: near(0.8), 2: near(0.8), 8: near(0.8)}))
    assert report.played.kept[0].workers == 1
    assert any("do not agree" in note for note in report.notes)


def test_of_two_kinds_the_one_with_more_seeds_decides_what_the_other_leaves_open(tmp_path: Path) -> None:
    ious = [0.80, 0.79, 0.81, 0.80, 0.805]
    write_real(tmp_path, 1, ious, 100)
    write_real(tmp_path, 2, ious, 190)
    write_all_played(tmp_path, {2: ious[:2]})
    played = played_table(load_study(tmp_path))
    assert list(played.loc[played["workers"] == 2, "verdict"]) == ["undecided", "no loss"]
    (kept,) = kept_ious(played)
    assert kept.workers == 2


def test_played_and_real_runs_of_one_seed_are_held_against_each_other(tmp_path: Path) -> None:
    write_real(tmp_path, 1, near(0.8), 100)
    write_real(tmp_path, 2, near(0.8, seed=2), 190)
    report = report_of(write_all_played(tmp_path, {1: near(0.8), 2: near(0.8, seed=2)}))
    assert "played and real runs agree: the largest difference of their IoU is 0.0000" in report.notes[-1]
    assert "(10 pairs of one seed)" in report.notes[-1]
    assert not any("cores per worker" in note for note in report.notes)


def test_played_runs_on_other_cores_than_real_ones_are_not_comparable_seed_by_seed(tmp_path: Path) -> None:
    write_real(tmp_path, 1, near(0.8), 100)
    for repeat, iou in enumerate(near(0.8), start=1):
        write_played(tmp_path, 1, repeat, iou, header={"workers": make_workers(1, cores_each=2)})
    assert any(
        "played runs had 2 cores per worker, real ones 1" in note for note in report_of(tmp_path).notes
    )


def test_runs_of_other_epochs_are_another_set_of_options(tmp_path: Path) -> None:
    write_real(tmp_path, 1, near(0.6), 100)
    write_all_played(tmp_path, {1: near(0.8), 8: near(0.8)}, training={"epochs": 6})
    table = played_table(load_study(tmp_path))
    assert set(zip(table["options"], table["kind"], strict=True)) == {
        ("epochs=6", "played"),
        ("epochs=3", "real"),
    }


def test_played_runs_that_learned_from_other_data_than_the_real_ones_are_refused(tmp_path: Path) -> None:
    write_real(tmp_path, 1, near(0.8), 100)
    for repeat in (1, 2, 3):
        write_played(tmp_path, 8, repeat, 0.8, header={"manifest_sha256": digest("others")})
    study = load_study(tmp_path)
    assert study.played is not None
    assert study.played.runs.empty
    reasons = study.all_left_out["reason"]
    assert reasons.str.contains("manifest: ").all()
    assert reasons.str.contains("not played").all()


def test_played_runs_of_two_data_sets_are_never_one_curve(tmp_path: Path) -> None:
    for repeat in (1, 2, 3):
        write_played(tmp_path, 1, repeat, 0.8)
        write_played(tmp_path, 8, repeat, 0.8, header={"manifest_sha256": digest("others")})
    assert len(load_study(tmp_path).all_left_out) == 3


def test_played_runs_may_be_of_another_host_and_commit_than_the_real_ones(tmp_path: Path) -> None:
    write_real(tmp_path, 1, near(0.8), 100)
    header = {"commit": "f" * 40, "workers": make_workers(1, device="NVIDIA H200", host="laptop")}
    for plays, repeat in product((4, 8), (1, 2, 3)):
        write_played(tmp_path, plays, repeat, 0.8, header=header)
    study = load_study(tmp_path)
    assert study.all_left_out.empty
    assert len(study.runs) == 5


def test_played_runs_of_two_commits_are_not_held_against_each_other(tmp_path: Path) -> None:
    write_all_played(tmp_path, {1: near(0.8), 8: near(0.8)})
    for repeat in (1, 2, 3):
        write_played(tmp_path, 4, repeat, 0.8, header={"commit": "f" * 40})
    left_out = load_study(tmp_path).all_left_out
    assert set(left_out["workers"]) == {4}
    assert left_out["reason"].str.startswith("commit: ").all()


def test_one_training_played_by_1_and_by_2_workers_counts_once(tmp_path: Path) -> None:
    for repeat in (1, 2, 3):
        for workers in (1, 2):
            write_played(tmp_path, 4, repeat, 0.8, workers=workers)
    study = load_study(tmp_path)
    assert study.played is not None
    assert len(study.played.runs) == 3
    assert study.all_left_out["reason"].str.startswith("the same repeat of the same point as").all()


def test_as_many_played_workers_as_real_ones_are_played_all_the_same(tmp_path: Path) -> None:
    for repeat in (1, 2, 3):
        write_played(tmp_path, 2, repeat, 0.8, workers=2)
    study = load_study(tmp_path)
    assert study.runs.empty
    assert rows_of(study)[2]["seeds"] == 3


def test_a_diverged_played_run_does_not_count_against_real_workers(tmp_path: Path) -> None:
    write_real(tmp_path, 1, near(0.8), 100)
    write_real(tmp_path, 8, near(0.8), 700)
    report = report_of(write_all_played(tmp_path, {1: near(0.8), 8: [*near(0.8, 4), DIVERGED]}))
    assert report.iou["diverged"].sum() == 0
    assert report.played.points["diverged"].sum() == 1
    assert len(report.study.all_left_out) == 1


def test_frameworks_that_agree_share_a_sentence_and_others_do_not(tmp_path: Path) -> None:
    for name, loss in (("agree", 0.0), ("differ", 0.05)):
        write_all_played(tmp_path / name, {1: near(0.8), 8: near(0.8)})
        write_all_played(tmp_path / name, {1: near(0.8), 8: near(0.8 - loss)}, framework="horovod")
    agree, differ = (report_of(tmp_path / name).answers[0].headline for name in ("agree", "differ"))
    assert agree.startswith("Up to 8 workers keep the IoU")
    assert "Native DDP: up to 8 workers keep the IoU" in differ
    assert "Horovod: even 8 workers lose 0.050" in differ


def test_the_rule_that_keeps_the_iou_farthest_is_named_first(tmp_path: Path) -> None:
    ends = {"linear": 0.7, "square_root": 0.8, "none": 0.75}
    for rule, iou in ends.items():
        ious = {1: near(0.8), 4: near(0.8 if rule != "none" else 0.75), 14: near(iou)}
        write_all_played(tmp_path, ious, training={"rate_scaling": rule}, label=f"-{rule}")
    report = report_of(tmp_path)
    assert report.compared_options == (
        "of 3 sets of options the IoU is kept farthest, up to 14 workers, with [rate_scaling=square_root]; "
        "up to 4 with [rate_scaling=linear]; less far with 1 more set"
    )
    assert [answer.options for answer in report.answers] == [
        f"rate_scaling={rule}" for rule in ("square_root", "linear", "none")
    ]
    best = report.played.points[report.played.points["best"]]
    assert set(best.loc[best["workers"] == 14, "options"]) == {"rate_scaling=square_root"}
    assert not (best["workers"] == 1).any()


def test_the_finding_joins_the_headline_of_real_runs(tmp_path: Path) -> None:
    for workers, speed in ((1, 100.0), (2, 195.0)):
        write_real(tmp_path, workers, near(0.8, seed=workers), speed)
    write_all_played(tmp_path, {1: near(0.8), 8: near(0.8), 14: near(0.76)})
    (answer,) = report_of(tmp_path).answers
    assert answer.headline.startswith("Use native DDP on 2 workers: ")
    assert "; by played and real runs up to 8 workers keep the IoU; 14 lose 0.04" in answer.headline


@pytest.mark.parametrize("part", ["points", "cost", "comparisons", "iou", "predictions", "iou_between"])
def test_a_study_of_played_runs_has_no_row_in_any_table_of_speed(tmp_path: Path, part: str) -> None:
    table = getattr(report_of(write_all_played(tmp_path, {1: near(0.8), 8: near(0.8)})), part)
    assert isinstance(table, pd.DataFrame)
    assert table.empty
