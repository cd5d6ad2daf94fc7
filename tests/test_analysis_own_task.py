"""The words of a report on a task that a file defines: its score and its samples, never IoU and images."""

import json
import re
from pathlib import Path

import pandas as pd
import pytest

from analysis.__main__ import main as report
from analysis.compare.command import main as compare
from analysis.compare.show import COMPARE_COLUMNS
from analysis.figures.catalogue import FIGURES
from analysis.report.columns import taken_names
from analysis.report.tables import TABLES
from analysis.score import TAKEN_NAMES_FILE, Score
from tests.own_task_records import OTHER_SCORE, SCORE, as_own_task
from tests.played_runs import near, write_all_played, write_real
from tests.records import write_run
from unet_scaling.study.config import FRAMEWORKS

# In sentences and names, but not in words such as "previous", in names that the user gave, nor in the columns
# that all tasks have (images, test_images, joules_per_image) and "image/svg+xml".
FOREIGN = re.compile(r"(?i)(?<![a-z])iou(?!_weight)(?![a-z])|(?<![\w/,])images?(?![\w/])")
TEXTS = (".csv", ".html", ".json", ".md", ".svg", ".tex", ".toml")


def measured(folder: Path) -> Path:
    """Both frameworks on 1 to 4 workers; 4 lose more than the margin."""
    for framework in FRAMEWORKS:
        for workers in (1, 2, 4):
            for repeat, score in enumerate(near(0.8 - 0.05 * (workers == 4)), start=1):
                speed = 100.0 * workers + repeat
                write_run(folder, framework, workers, repeat, images_per_second=speed, iou=score)
    return as_own_task(folder, iou_weight=2)


def foreign_words(folder: Path) -> set[str]:
    """Texts of the built-in task in the files of a report, with the name of the file."""
    found = set()
    for path in folder.iterdir():
        if path.suffix in TEXTS:
            found |= {
                f"{path.name}: {word[0]}" for word in FOREIGN.finditer(f"{path.name} {path.read_text()}")
            }
    return found


def test_measured_runs_are_told_in_the_words_of_their_task(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = measured(tmp_path / "mine")
    assert report([str(study)]) == 0
    assert foreign_words(study / "report") == set()
    printed = capsys.readouterr().out
    assert "top accuracy" in printed
    assert "IoU" not in printed
    content = json.loads((study / "report" / "summary.json").read_text())
    assert content["criteria"]["score_margin"] == 0.01
    assert {f"{SCORE}_low", SCORE} <= {*content["points"][0]}
    assert {tile["title"] for tile in content["answers"][0]["tiles"]} >= {"Top accuracy"}
    assert "an top" not in (study / "report" / "report.html").read_text()


def test_every_score_has_its_interval_and_only_the_first_is_judged(tmp_path: Path) -> None:
    study = measured(tmp_path / "mine")
    assert report([str(study)]) == 0
    folder = study / "report"
    scores = pd.read_csv(folder / "task_scores.csv")
    assert len(scores) == 2 * 6
    judged = scores[scores["judged"]]
    assert set(judged["score"]) == {SCORE}
    points = pd.read_csv(folder / "summary.csv")
    assert judged["value_low"].tolist() == pytest.approx(points[f"{SCORE}_low"].tolist())
    other = scores[~scores["judged"]]
    assert set(other["score"]) == {OTHER_SCORE}
    assert (other["value_low"] < other["value"]).all()
    assert (other["value"] < other["value_high"]).all()
    runs = pd.read_csv(folder / "runs.csv")
    first = runs.iloc[0]
    assert first["scores"].startswith(f"{SCORE}={first[SCORE]:.6g}, {OTHER_SCORE}=")
    evaluations = pd.read_csv(folder / "evaluation_scores.csv")
    assert evaluations["run"].nunique() == len(runs)
    assert "Further scores of the task" in (folder / "report.html").read_text()


def test_a_built_in_task_has_no_table_of_further_scores(tmp_path: Path) -> None:
    write_run(tmp_path / "plain", "pytorch_native", 1, 1)
    assert report([str(tmp_path / "plain")]) == 0
    found = [path.name for path in (tmp_path / "plain" / "report").glob("*_scores.csv")]
    assert found == ["prediction_scores.csv"]


def test_the_taken_names_are_those_of_today() -> None:
    assert TAKEN_NAMES_FILE.read_text() == taken_names(), "make docs"


def test_no_name_of_a_score_is_that_of_another_column(tmp_path: Path) -> None:
    """Every column that there is, and what it begins with, may be the name of a score."""
    tables = [[name for name in table.names if Score("x").has(name)] for table in TABLES]
    tables += [[*COMPARE_COLUMNS], [table.file.partition(".")[0] for table in TABLES], [*FIGURES]]
    for name in {part for names in tables for column in names for part in beginnings(column)}:
        for names in tables:
            written = [Score(name).key(column) for column in names]
            assert len(set(written)) == len(written), f"{name}: make docs"


def beginnings(column: str) -> set[str]:
    """The parts of a name up to each "_"; of names for IoU none, which a task may use as its own."""
    words = column.split("_")
    return set() if "iou" in words else {"_".join(words[: end + 1]) for end in range(len(words))}


@pytest.mark.parametrize(
    ("score", "column"), [("dice", "dice"), ("loss", "loss_score"), ("workers", "workers_score")]
)
def test_a_score_may_have_any_name(score: str, column: str, tmp_path: Path) -> None:
    write_run(tmp_path / "mine", "pytorch_native", 1, 1, iou=0.8)
    study = as_own_task(tmp_path / "mine", score=score)
    assert report([str(study)]) == 0
    folder = study / "report"
    for file in ("runs.csv", "evaluations.csv", "summary.csv"):
        header = (folder / file).read_text().splitlines()[0].split(",")
        assert len(set(header)) == len(header), file
    assert pd.read_csv(folder / "runs.csv")[column].tolist() == [pytest.approx(0.8, abs=1e-4)]
    point = json.loads((folder / "summary.json").read_text())["points"][0]
    assert (point["workers"], point[column]) == (1, pytest.approx(0.8, abs=1e-4))


def test_a_name_that_the_user_gave_is_no_word_of_ours(tmp_path: Path) -> None:
    """A study called iou, and a task with two values of an option called iou_weight."""
    study = tmp_path / "iou"
    for weight, label in ((1, "-a"), (2, "-b")):
        part = tmp_path / f"weight{weight}"
        for repeat in (1, 2, 3):
            write_run(part, "pytorch_native", 1, repeat, label=label)
        for run in as_own_task(part, iou_weight=weight).iterdir():
            study.mkdir(exist_ok=True)
            run.rename(study / run.name)
    assert report([str(study)]) == 0
    page = (study / "report" / "report.html").read_text()
    assert "iou_weight=1" in page
    assert "<strong>iou</strong>" in page
    assert "task.options.iou_weight" in pd.read_csv(study / "report" / "runs.csv").columns


def test_played_runs_alone_are_told_in_the_words_of_their_task(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = as_own_task(write_all_played(tmp_path / "played", {1: near(0.8), 8: near(0.7)}))
    assert report([str(study)]) == 0
    assert foreign_words(study / "report") == set()
    printed = capsys.readouterr().out
    assert "Even 8 workers lose" in printed
    assert "Top accuracy" in printed
    assert "IoU" not in printed


def test_played_and_real_runs_are_told_in_the_words_of_their_task(tmp_path: Path) -> None:
    write_real(tmp_path / "both", 1, near(0.8), 100.0)
    study = as_own_task(write_all_played(tmp_path / "both", {1: near(0.8), 8: near(0.799)}))
    assert report([str(study)]) == 0
    assert foreign_words(study / "report") == set()
    assert "keep the top accuracy" in (study / "report" / "report.html").read_text()


def test_a_comparison_is_told_in_the_words_of_the_task(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = measured(tmp_path / "a")
    b = tmp_path / "b"
    for framework in FRAMEWORKS:
        for repeat, score in enumerate(near(0.7), start=1):
            write_run(b, framework, 1, repeat, images_per_second=100.0 + repeat, iou=score)
    as_own_task(b, iou_weight=2)
    assert compare([str(a), str(b), "--output", str(tmp_path / "out")]) == 0
    assert foreign_words(tmp_path / "out") == set()
    printed = capsys.readouterr().out
    assert "Top accuracy is higher in A (a)" in printed
    assert f"{SCORE}_difference" in pd.read_csv(tmp_path / "out" / "compare.csv").columns
