"""Runs of scripts are reported each arm by itself: no verdict, no advice, and never beside other runs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from analysis.compare.program import compare_folders
from analysis.figures.catalogue import FIGURES
from analysis.loading.load import load_study
from analysis.prediction.forecast import predict_study
from analysis.report.assemble import Report, make_report
from analysis.report.figure_files import draw_figures, inputs_of
from analysis.report.files import write_report
from analysis.report.html import page
from analysis.report.latex import summary_latex
from analysis.report.markdown import summary_markdown
from analysis.report.summary_json import summary_json
from analysis.restriction import restriction_words
from tests.records import write_run
from tests.script_records import EPOCHS, write_script_run
from unet_scaling.study.config import Framework
from unet_scaling.study.errors import UserError
from unet_scaling.study.record import RECORD_NAME, read_record
from unet_scaling.study.record_lines import End

WORDS = "recorded in scripts, arms not proven equal"
ARMS: tuple[Framework, ...] = ("pytorch_native", "horovod", "lightning")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three arms on 1 and 2 workers, five launches each, of which Horovod's are twice as slow."""
    folder = tmp_path_factory.mktemp("arms")
    for framework in ARMS:
        for workers in (1, 2):
            for repeat in range(1, 6):
                speed = (50.0 if framework == "horovod" else 100.0) * workers**0.9 * (1 + repeat / 1000)
                write_script_run(folder, framework, workers, repeat, images_per_second=speed)
    return folder


@pytest.fixture(scope="module")
def report(folder: Path) -> Report:
    return make_report(load_study(folder))


def test_no_framework_is_called_faster_and_none_recommended(report: Report) -> None:
    assert report.verdicts == []
    assert report.recommendations == []
    assert report.request_sentences == []
    assert report.comparisons.empty
    assert report.wrappers.empty
    assert report.overhead.differences.empty
    assert len(report.answers) == len(ARMS)
    assert {answer.kind for answer in report.answers} == {"script"}


def test_every_arm_has_its_own_speed_up(report: Report) -> None:
    assert len(report.points) == 2 * len(ARMS)
    of_two = report.points[report.points["workers"] == 2]
    assert of_two["speedup"].tolist() == pytest.approx([2**0.9] * len(ARMS))
    # The faster arm on 1 worker is no baseline of another arm.
    assert of_two["speedup_common"].tolist() == pytest.approx(of_two["speedup"].tolist())


def test_every_text_says_that_the_arms_are_not_proven_equal(report: Report) -> None:
    assert restriction_words(report.study) == WORDS
    assert all(answer.headline.lower().startswith(WORDS) for answer in report.answers)
    figures = draw_figures(report)
    assert all(file.caption.lower().startswith(WORDS) for file in figures.drawn.values())
    assert {"scaling", "budget"} >= set(figures.drawn) >= {"scaling"}
    texts = [
        page(report, figures), summary_markdown(report), summary_latex(report), summary_json(report),
    ]  # fmt: skip
    for text in texts:
        assert "arms not proven equal" in text
        for claim in ("Native DDP is faster", "Horovod is faster", "significant", "Train with", "Use native"):
            assert claim not in text


def test_the_fairness_table_names_it_and_the_notes_say_why(report: Report) -> None:
    first = report.checks[0]
    assert (first.check, first.mark, first.withholds) == ("arms proven equal", "no", True)
    assert report.doubts[0].startswith("arms proven equal: no")
    assert "train_horovod.py" in report.notes[0]
    assert "nothing is recommended" in report.notes[0]


def test_nothing_is_said_of_what_was_learned(report: Report) -> None:
    inputs = inputs_of(report)
    assert {tile.value for answer in report.answers for tile in answer.tiles[1:3]} == {"not recorded"}
    assert FIGURES["scaling"].missing(inputs) is None
    drawn = set(draw_figures(report).drawn)
    assert not drawn & {"loss", "quality", "cost", "time_to_iou"}


def test_the_report_is_written_with_its_provenance(report: Report, tmp_path: Path) -> None:
    write_report(report, tmp_path)
    text = (tmp_path / "report.html").read_text()
    assert "train_lightning.py" in text
    assert "Lightning Fabric" not in text
    assert "Recorded in a script: not compared" in text


def test_scores_stand_beside_the_runs_that_report_them(tmp_path: Path) -> None:
    write_script_run(tmp_path, end=End(status="complete", scores={"accuracy": 0.9375, "f1": 0.5}))
    study = load_study(tmp_path)
    assert study.runs["scores"].tolist() == ["accuracy=0.9375, f1=0.5"]


def test_one_script_in_two_frameworks_is_two_arms(tmp_path: Path) -> None:
    same: dict[str, Any] = {"script": "train.py", "script_sha256": None}
    write_script_run(tmp_path, "pytorch_native", **same)
    write_script_run(tmp_path, "horovod", **same)
    study = load_study(tmp_path)
    assert study.runs["options"].tolist() == [
        "train.py, framework=horovod",
        "train.py, framework=pytorch_native",
    ]
    assert make_report(study).comparisons.empty


def test_options_that_vary_tell_the_points_of_an_arm_apart(tmp_path: Path) -> None:
    for batch in (8, 16):
        write_script_run(tmp_path, options={"batch": batch, "optimizer": "sgd"})
    options = load_study(tmp_path).runs["options"].tolist()
    assert options == ["train_pytorch_native.py, batch=16", "train_pytorch_native.py, batch=8"]


@pytest.mark.parametrize(
    ("fact", "change"),
    [
        ("SHA-256 of the script", {"script_sha256": "0" * 64}),
        ("version of torch", {"versions": {"python": "3.11.7", "torch": "2.12.0"}}),
        ("transport of native DDP", {"transport": {"backend": "nccl"}}),
    ],
)
def test_refuses_a_run_that_differs_from_others_of_its_arm(
    fact: str, change: dict[str, Any], tmp_path: Path
) -> None:
    for repeat in (1, 2):
        write_script_run(tmp_path, repeat=repeat)
    write_script_run(tmp_path, "horovod", **change)
    write_script_run(tmp_path, repeat=3, **change)
    study = load_study(tmp_path)
    assert study.left_out["run"].tolist() == ["script-pytorch_native-w01-r3"]
    assert study.left_out["state"].tolist() == ["refused"]
    assert study.left_out["reason"].iloc[0].startswith(fact)


def test_runs_of_scripts_are_refused_beside_the_projects_own_by_name(tmp_path: Path) -> None:
    for repeat in (1, 2, 3):
        write_script_run(tmp_path, "horovod", 1, repeat)
    write_run(tmp_path)
    study = load_study(tmp_path)
    assert study.runs["run"].tolist() == ["pytorch_native-w01-r1"]
    assert not study.is_of_scripts
    assert study.left_out["run"].tolist() == [f"script-horovod-w01-r{repeat}" for repeat in (1, 2, 3)]
    assert set(study.left_out["state"]) == {"refused"}
    assert set(study.left_out["framework"]) == {"horovod"}
    assert "the project's own in pytorch_native-w01-r1" in study.left_out["reason"].iloc[0]
    assert [verdict.outcome for verdict in make_report(study).verdicts] == [""]


def test_a_run_without_its_end_is_left_out_and_says_how_far_it_came(tmp_path: Path) -> None:
    write_script_run(tmp_path, repeat=1)
    unfinished = write_script_run(tmp_path, repeat=2, end=None)
    record = read_record(unfinished / RECORD_NAME)
    assert record.problems == ()
    assert len(record.epochs) == EPOCHS
    study = load_study(tmp_path)
    assert study.runs["run"].tolist() == ["script-pytorch_native-w01-r1"]
    assert study.left_out["state"].tolist() == ["failed"]
    assert "no end line after 3 epochs" in study.left_out["reason"].iloc[0]


def test_a_damaged_record_is_named_with_file_and_line(tmp_path: Path) -> None:
    write_script_run(tmp_path, repeat=1)
    path = write_script_run(tmp_path, repeat=2) / RECORD_NAME
    path.write_bytes(path.read_bytes().replace(b'"images":4800', b'"images":4900', 1))
    left_out = load_study(tmp_path).left_out
    assert left_out["state"].tolist() == ["invalid"]
    assert f"{path}:2" in left_out["reason"].iloc[0]


def _compare(folder: Path) -> object:
    return compare_folders(folder, folder, folder / "comparison")


def _predict(folder: Path) -> object:
    return predict_study(folder, load_study(folder), [4])


@pytest.mark.parametrize("use", [_compare, _predict])
def test_is_neither_compared_nor_predicted_from(use: Callable[[Path], object], folder: Path) -> None:
    with pytest.raises(UserError, match="recorded in scripts, arms not proven equal"):
        use(folder)
