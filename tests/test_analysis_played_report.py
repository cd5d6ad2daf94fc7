"""Reports of played runs as a user meets them: the page, the files, the figure, and the command."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from analysis.__main__ import main
from analysis.compare.sides import read_side
from analysis.figures.catalogue import FIGURES, draw
from analysis.figures.drawing.inputs import Inputs
from analysis.loading.load import load_study
from analysis.played.plan import ONLY_AT_THE_END
from analysis.played.speeds import NO_SPEED
from analysis.prediction.notes import UNSEEN_LINK
from analysis.report.assemble import Report, make_report
from analysis.report.console import print_report
from analysis.report.figure_files import inputs_of
from tests.played_runs import DIVERGED, near, write_all_played, write_curve, write_real
from unet_scaling.study.config import PROJECT
from unet_scaling.study.errors import UserError
from unet_scaling.study.options import Criteria

PAGE = PROJECT / "docs" / "plan_quality.md"
RULES = {"linear": (0.799, 0.792, 0.713), "square_root": (0.801, 0.8, 0.797), "none": (0.798, 0.781, 0.752)}


def write_rules(folder: Path) -> Path:
    """Three rules for the rate: the square root keeps the IoU up to 14, the others lose some before."""
    for number, (rule, ious) in enumerate(RULES.items()):
        played = {1: near(0.8, deviation=0.002)}
        for place, (plays, iou) in enumerate(zip((4, 8, 14), ious, strict=True)):
            played[plays] = near(iou, deviation=0.002, seed=10 * number + place + 2)
        write_all_played(folder, played, training={"rate_scaling": rule}, label=f"-{rule}")
    return folder


@pytest.fixture(scope="module")
def only_played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report folder of a study whose every run is played."""
    folder = write_rules(tmp_path_factory.mktemp("logs") / "plan")
    main([str(folder)])
    return folder / "report"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """The report of real runs of 3 epochs on 1, 2 and 4 workers, and of played ones of 8 epochs."""
    folder = tmp_path_factory.mktemp("logs") / "both"
    for workers, speed in ((1, 100.0), (2, 195.0), (4, 380.0)):
        write_real(folder, workers, near(0.5, seed=workers), speed)
    for repeat in (1, 2, 3):
        for plays, late in ((1, 0), (4, 1), (8, 2), (14, 3)):
            write_curve(folder, plays, repeat, [min(0.8, 0.5 + 0.1 * max(0, n - late)) for n in range(8)])
    return make_report(load_study(folder))


def planned(report: Report) -> pd.DataFrame:
    return report.played.plan.set_index("workers")


def quality_inputs(folder: Path) -> Inputs:
    return inputs_of(make_report(load_study(folder)))


def test_a_study_of_played_runs_has_a_whole_report_without_a_speed(only_played: Path) -> None:
    page = (only_played / "report.html").read_text()
    assert "IoU only: played" in page
    assert "Up to 14 workers keep the IoU" in page
    assert page.count("not measured") >= 2
    visible = re.sub(r"<style.*?</style>|<svg.*?</svg>", "", page, flags=re.DOTALL)
    assert not re.search(r"\d (images|epochs) / s|speed-up of|\d+(\.\d+)?x\b", visible)
    assert {path.stem for path in only_played.glob("*.svg")} == {"quality"}


def test_files_for_programs_and_papers_hold_the_played_points(only_played: Path) -> None:
    content = json.loads((only_played / "summary.json").read_text())
    assert content["points"] == []
    assert {row["kind"] for row in content["played"]} == {"played"}
    assert content["answers"][0]["kind"] == "played"
    assert len(pd.read_csv(only_played / "played.csv")) == 12
    assert len(pd.read_csv(only_played / "played_runs.csv")) == 60
    assert pd.read_csv(only_played / "runs.csv").empty
    assert "keep the IoU" in (only_played / "summary.md").read_text()
    assert "square\\_root" in (only_played / "summary.tex").read_text()
    assert "plays = [1, 4, 8, 14]" in (only_played / "tiny.toml").read_text()


def test_no_file_of_a_played_study_holds_one_of_its_seconds(only_played: Path) -> None:
    times = re.compile(r"images_per_second|training_seconds|seconds_per_epoch|worker_hours")
    for path in only_played.glob("*.csv"):
        table = pd.read_csv(path)
        named = [name for name in map(str, table) if times.search(name)]
        assert table[named].isna().all(axis=None), path.name


def test_the_page_of_the_documentation_shows_what_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    print_report(make_report(load_study(write_rules(tmp_path / "plan_quality"))))
    printed = capsys.readouterr().out
    (block,) = re.findall(r"^```\n(of 3 sets.*?)\.\.\.\n```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(block.splitlines()) > 8
    assert printed.startswith(block), f"{PAGE.name} shows another output:\n{printed[:2500]}"


def test_measured_and_predicted_speeds_give_the_time_to_the_target(report: Report) -> None:
    plan = planned(report)
    assert dict(plan["speed"]) == {1: "measured", 4: "measured", 8: "predicted", 14: "predicted"}
    assert list(plan["epochs_to_target"]) == [4, 5, 6, 7]
    assert set(plan["target_iou"]) == {0.79}
    seconds = 5 * 224 / 380.0
    assert plan.loc[4, "seconds_to_target"] == pytest.approx(seconds, rel=0.01)
    assert plan.loc[4, "worker_hours_to_target"] == pytest.approx(4 * seconds / 3600, rel=0.01)
    assert (plan["seconds_to_target_low"] < plan["seconds_to_target"]).all()
    assert (plan["seconds_to_target"] < plan["seconds_to_target_high"]).all()
    assert UNSEEN_LINK in str(plan.loc[14, "why"])


def test_the_tile_says_whether_the_speed_is_measured_or_predicted(report: Report) -> None:
    (tile,) = (tile for tile in report.answers[-1].tiles if tile.title == "Time and cost")
    assert "on 14 workers IoU 0.79 after 7 epochs" in tile.detail
    assert tile.detail.endswith("by predicted speed")


def test_without_real_runs_no_time_to_the_target_is_known(tmp_path: Path) -> None:
    plan = planned(make_report(load_study(write_all_played(tmp_path, {1: near(0.8), 8: near(0.8)}))))
    assert plan["epochs_to_target"].notna().all()
    assert plan["seconds_to_target"].isna().all()
    assert set(plan["why"]) == {f"IoU {ONLY_AT_THE_END}; {NO_SPEED}"}


def test_real_runs_of_another_batch_give_no_speed(tmp_path: Path) -> None:
    write_real(tmp_path, 1, near(0.8), 100)
    write_all_played(tmp_path, {1: near(0.8), 8: near(0.8)}, training={"batch_per_worker": 4})
    assert set(planned(make_report(load_study(tmp_path)))["speed"]) == {""}


def test_runs_that_diverge_or_stay_below_never_reach_the_target(tmp_path: Path) -> None:
    write_all_played(tmp_path, {1: near(0.8), 8: [*near(0.8, 2), *[DIVERGED] * 3], 14: near(0.5)})
    plan = planned(make_report(load_study(tmp_path)))
    assert list(plan["runs_to_target"]) == [5, 2, 0]
    assert plan.loc[[8, 14], "epochs_to_target"].isna().all()


def test_without_a_run_on_1_worker_there_is_no_target(tmp_path: Path) -> None:
    plan = planned(make_report(load_study(write_all_played(tmp_path, {8: near(0.8)}))))
    assert plan["target_iou"].isna().all()
    assert str(plan.loc[8, "why"]).startswith("no IoU to reach")


def test_a_stated_target_is_that_of_the_plan(tmp_path: Path) -> None:
    study = load_study(write_all_played(tmp_path, {1: near(0.8), 8: near(0.8)}))
    stated = replace(study, criteria=Criteria(target_iou=0.9))
    assert set(planned(make_report(stated))["runs_to_target"]) == {0}


def test_played_marks_are_open_and_real_ones_filled(tmp_path: Path) -> None:
    write_real(tmp_path, 1, near(0.8), 100)
    inputs = quality_inputs(write_all_played(tmp_path, {1: near(0.8), 8: [*near(0.76, 4), DIVERGED]}))
    (axes,) = draw("quality", inputs).axes
    faces = {
        str(line.get_label()): line.get_markerfacecolor() for line in axes.lines if line.get_marker() == "o"
    }
    assert faces["native DDP, played"] == "#ffffff"
    assert faces["native DDP, real"] == "#004488"
    assert "diverges" in {text.get_text() for text in axes.texts}


def test_the_caption_says_played_and_what_is_left_out(tmp_path: Path) -> None:
    for number in range(1, 9):
        training = {"learning_rate": 0.001 * number}
        write_all_played(
            tmp_path, {1: [0.8], 8: [0.7 + 0.01 * number]}, training=training, label=f"-{number}"
        )
    inputs = quality_inputs(tmp_path)
    caption = FIGURES["quality"].caption(inputs)
    assert caption.startswith("16 played runs. Open marks: played")
    assert "No intervals: they need 3 seeds." in caption
    assert "2 more sets of options" in caption
    assert len(draw("quality", inputs).axes) == 6
    assert "native DDP (learning_rate=0.001) 0.710 on 8 workers, played" in FIGURES["quality"].alternative(
        inputs
    )


def test_a_comparison_of_studies_takes_no_played_run(tmp_path: Path) -> None:
    write_all_played(tmp_path / "plan", {1: near(0.8), 8: near(0.8)})
    with pytest.raises(UserError, match="has played runs only"):
        read_side("A", tmp_path / "plan")


def test_a_study_of_which_every_played_run_diverged_has_no_report_and_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_all_played(tmp_path / "lost", {1: [DIVERGED] * 3})
    with pytest.raises(UserError, match="no usable run"):
        main([str(tmp_path / "lost")])
    assert "diverged: loss is nan" in capsys.readouterr().out
