"""Reports of own tasks, of scripts and of further frameworks: their words, and what they must not say."""

import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.__main__ import main
from analysis.figures.catalogue import FIGURES
from analysis.judge.checks import fairness_checks
from analysis.numbers.direction import direction_note, score_direction
from analysis.numbers.iou import iou_table
from analysis.read.load import load_study
from analysis.report.columns import TABLES, taken_names
from analysis.report.tables import COMPARE_LINES
from analysis.study import TAKEN_NAMES_FILE, Score
from tests.evidence import evidence
from tests.honest import Honest, write_honest
from tests.records import near, write_all_played, write_real, write_run, write_script_run
from tests.reports import Compared, all_said, report_of, reported
from tests.tampering import SCORE, Change, Runs, as_own_task, header, in_epochs, workers
from unet_scaling.base.errors import EXIT_BAD_DATA, UserError
from unet_scaling.format.record import RECORD_NAME
from unet_scaling.format.record_lines import End
from unet_scaling.study.config import ALL_FRAMEWORKS, FRAMEWORKS, PROJECT, Framework

NATIVE: Framework = "pytorch_native"
NAMES = {"lightning": "Lightning Fabric", "accelerate": "Accelerate"}
# In sentences and names, but not in words such as "previous", in names that the user gave, nor in the columns
# that all tasks have (images, test_images, joules_per_image) and "image/svg+xml".
FOREIGN = re.compile(r"""(?i)(?<![a-z])iou(?!_weight)(?![a-z])|(?<![\w/,"])images?(?![\w/])""")
TEXTS = (".csv", ".html", ".json", ".md", ".svg", ".tex", ".toml")


def measured(folder: Path) -> Path:
    """Both frameworks on 1 to 4 workers; 4 lose more than the margin."""
    for framework in FRAMEWORKS:
        for count in (1, 2, 4):
            for repeat, score in enumerate(near(0.8 - 0.05 * (count == 4)), start=1):
                speed = 100.0 * count + repeat
                write_run(folder, framework, count, repeat, images_per_second=speed, iou=score)
    return as_own_task(folder, iou_weight=2)


def played(folder: Path) -> Path:
    return as_own_task(write_all_played(folder, {1: near(0.8), 8: near(0.7)}))


def both(folder: Path) -> Path:
    write_real(folder, 1, near(0.8), 100.0)
    return as_own_task(write_all_played(folder, {1: near(0.8), 8: near(0.799)}))


def foreign_words(files: Mapping[str, str]) -> set[str]:
    """Texts of the built-in task, with the name of their file."""
    return {
        f"{name}: {word[0]}" for name, text in files.items() for word in FOREIGN.finditer(f"{name} {text}")
    }


@pytest.mark.parametrize("write", [measured, played, both])
def test_a_task_is_told_in_its_own_words(
    tmp_path: Path, write: Callable[[Path], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = reported(write(tmp_path / "mine"))
    files = {path.name: path.read_text() for path in folder.iterdir() if path.suffix in TEXTS}
    assert len(files) > 7
    printed = capsys.readouterr().out
    assert foreign_words(files | {"console": printed.replace(str(tmp_path), "")}) == set()
    assert "top accuracy" in printed.lower()
    content = json.loads(files["summary.json"])
    assert content["criteria"]["score_margin"] == 0.01
    if write is measured:
        assert {f"{SCORE}_low", SCORE} <= {*content["points"][0]}
        assert "Top accuracy" in {tile["title"] for tile in content["answers"][0]["tiles"]}


@pytest.mark.parametrize("direction", ["higher", "lower", "mixed", "unknown"])
def test_which_values_of_a_score_are_better_is_what_training_does_to_it(
    direction: str, tmp_path: Path
) -> None:
    """Its name tells nothing; the row is there where more is not known to be better."""
    training = {"evaluate_every": 10 if direction == "unknown" else 5}
    truth = Honest(workers=(1, 2), repeats=2, training=training)
    folder = as_own_task(write_honest(tmp_path / "mine", truth), "mismatch")
    if direction in ("lower", "mixed"):

        def falls(result: Any) -> Any:
            return result.model_copy(update={"scores": {"mismatch": 1 - result.score}})

        of = Runs(folder, repeats=[1] if direction == "mixed" else None)
        of.change(lambda lines: replace(lines, results=list(map(falls, lines.results))))
    study = load_study(folder)
    assert score_direction(study) == ("unknown" if direction == "mixed" else direction)
    cures = {"lower": "less of it", "mixed": "more epochs", "unknown": "evaluate_every = 1"}
    assert cures.get(direction, "") in direction_note(study)
    marks = [row.mark for row in fairness_checks(study) if row.check == "score better when higher"]
    assert marks == {"higher": [], "lower": ["no"]}.get(direction, ["not known"])
    judged = iou_table(study).set_index("workers")["non_inferior"][2]
    assert (set(judged) == {"not judged"}) == (direction == "lower")
    assert score_direction(load_study(write_honest(tmp_path / "of_iou", Honest(repeats=1)))) == "higher"


def test_a_comparison_is_told_in_the_words_of_the_task(tmp_path: Path) -> None:
    a, b = measured(tmp_path / "a"), tmp_path / "b"
    for repeat, score in enumerate(near(0.7), start=1):
        write_run(b, NATIVE, 1, repeat, images_per_second=100.0 + repeat, iou=score)
    files = Compared(a, as_own_task(b, iou_weight=2)).files
    assert foreign_words({name: content.decode() for name, content in files.items() if content}) == set()
    assert f"{SCORE}_difference" in files["compare.csv"].decode()


@pytest.mark.parametrize(
    ("score", "column"), [("dice", "dice"), ("loss", "loss_score"), ("workers", "workers_score")]
)
def test_a_score_may_have_any_name(score: str, column: str, tmp_path: Path) -> None:
    write_run(tmp_path / "mine", iou=0.8)
    found = report_of(as_own_task(tmp_path / "mine", score=score))
    for file in ("runs.csv", "summary.csv"):
        header = found.files[file].decode().splitlines()[0].split(",")
        assert len(set(header)) == len(header), file
    assert found.row("runs")[column] == pytest.approx(0.8, abs=1e-4)
    point = found.summary["points"][0]
    assert (point["workers"], point[column]) == (1, pytest.approx(0.8, abs=1e-4))


def test_no_name_of_a_score_is_that_of_another_column() -> None:
    """Every column that there is, and what it begins with, may be the name of a score."""
    assert TAKEN_NAMES_FILE.read_text() == taken_names(), "make docs"
    tables = [[name for name in table.names if Score("x").has(name)] for table in TABLES]
    compared = [name for line in COMPARE_LINES for name in line.names]
    tables += [compared, [table.file.partition(".")[0] for table in TABLES], [*FIGURES]]
    for name in {part for names in tables for column in names for part in beginnings(column)}:
        for names in tables:
            written = [Score(name).key(column) for column in names]
            assert len(set(written)) == len(written), f"{name}: make docs"


def beginnings(column: str) -> set[str]:
    """The parts of a name up to each "_"; of names for IoU none, which a task may use as its own."""
    words = column.split("_")
    return set() if "iou" in words else {"_".join(words[: end + 1]) for end in range(len(words))}


def test_a_name_that_the_user_gave_is_no_word_of_ours(tmp_path: Path) -> None:
    """A study called iou, and a task with two values of an option called iou_weight."""
    study = tmp_path / "iou"
    study.mkdir()
    for weight, label in ((1, "-a"), (2, "-b")):
        part = tmp_path / f"weight{weight}"
        write_run(part, label=label)
        for run in as_own_task(part, iou_weight=weight).iterdir():
            run.rename(study / run.name)
    found = report_of(study)
    assert {row["options"] for row in found.rows("runs")} == {"iou_weight=1", "iou_weight=2"}
    assert found.summary["study"] == "iou"
    assert "task.options.iou_weight" in found.table("runs")


ARMS: tuple[Framework, ...] = (NATIVE, "horovod", "lightning")


def test_scripts_have_each_their_own_speed_up_and_no_verdict(tmp_path: Path) -> None:
    """Three arms on 1 and 2 workers, five launches each, of which Horovod's are twice as slow."""
    for framework in ARMS:
        for count in (1, 2):
            for repeat in range(1, 6):
                speed = (50.0 if framework == "horovod" else 100.0) * count**0.9 * (1 + repeat / 1000)
                write_script_run(tmp_path / "arms", framework, count, repeat, images_per_second=speed)
    folder = reported(tmp_path / "arms")
    found = report_of(tmp_path / "arms")
    summary = found.summary
    assert summary["verdicts"] == summary["recommendations"] == summary["comparisons"] == []
    assert found.report.request_sentences == []
    assert found.rows("differences") == found.rows("diagnoses") == []
    assert [answer["kind"] for answer in summary["answers"]] == ["script"] * len(ARMS)
    assert (summary["checks"][0]["mark"], summary["checks"][0]["withholds"]) == ("no", True)
    for row in found.rows("summary", workers=2):
        # The faster arm on 1 worker is no baseline of another arm.
        assert row["speedup"] == pytest.approx(row["speedup_common"]) == pytest.approx(2**0.9)
    for path in folder.iterdir():
        if path.suffix in (".html", ".md", ".tex", ".json"):
            text = path.read_text()
            assert "arms not proven equal" in text, path.name
            claims = ("Native DDP is faster", "Horovod is faster", "significant", "Train with", "Use native")
            assert [claim for claim in claims if claim in text] == [], path.name
    for command in (
        ["compare", *[str(tmp_path / "arms")] * 2],
        ["predict", str(tmp_path / "arms"), "--for", "4"],
    ):
        with pytest.raises(UserError) as refused:
            main(command)
        assert refused.value.exit_code == EXIT_BAD_DATA


def test_arms_of_scripts_are_told_by_script_framework_and_options_that_vary(tmp_path: Path) -> None:
    same: dict[str, Any] = {"script": "train.py", "script_sha256": None}
    scores = End(status="complete", scores={"accuracy": 0.9375, "f1": 0.5})
    write_script_run(tmp_path / "one", NATIVE, **same)
    write_script_run(tmp_path / "one", "horovod", end=scores, **same)
    rows = report_of(tmp_path / "one").rows("runs")
    assert [row["options"] for row in rows] == [f"train.py, framework={name}" for name in ("horovod", NATIVE)]
    assert rows[0]["scores"] == "accuracy=0.9375, f1=0.5"
    for batch in (8, 16):
        write_script_run(tmp_path / "two", options={"batch": batch, "optimizer": "sgd"})
    options = [row["options"] for row in report_of(tmp_path / "two").rows("runs")]
    assert options == ["train_pytorch_native.py, batch=16", "train_pytorch_native.py, batch=8"]


def differing(change: Mapping[str, Any]) -> Callable[[Path], object]:
    def write(folder: Path) -> None:
        write_script_run(folder, "horovod", **change)
        write_script_run(folder, repeat=3, **change)

    return write


def beside_the_projects(folder: Path) -> None:
    for run in folder.iterdir():
        run.rename(folder / run.name.replace("-r", "-s"))
    write_run(folder)


def damaged(folder: Path) -> None:
    path = write_script_run(folder, repeat=3) / RECORD_NAME
    path.write_bytes(path.read_bytes().replace(b'"images":4800', b'"images":4900', 1))


THIRD = "script-pytorch_native-w01-r3"
# What is written beside two runs of a script; which runs are left out, and words of the reason.
LEFT_OUT: Mapping[str, tuple[Callable[[Path], object], set[str], str]] = {
    "another script": (differing({"script_sha256": "0" * 64}), {THIRD}, "refused: SHA-256 of the script"),
    "the project's own": (
        beside_the_projects, {f"script-{NATIVE}-w01-s{n}" for n in (1, 2)}, "the project's own in",
    ),
    "no end": (
        lambda folder: write_script_run(folder, repeat=3, end=None), {THIRD}, "failed: no end line after 3",
    ),
    "damaged": (damaged, {THIRD}, "invalid: "),
}  # fmt: skip


@pytest.mark.parametrize("case", LEFT_OUT)
def test_a_run_of_a_script_that_does_not_belong_is_left_out(case: str, tmp_path: Path) -> None:
    write, runs, words = LEFT_OUT[case]
    for repeat in (1, 2):
        write_script_run(tmp_path, repeat=repeat)
    write(tmp_path)
    found = report_of(tmp_path)
    assert set(found.left_out) == runs, found.left_out
    assert all(words in reason for reason in found.left_out.values()), found.left_out
    assert found.study.kind.compares == (case == "the project's own")


def test_four_repeats_do_not_show_that_a_wrapper_costs_nothing_and_without_horovod_none_is_named(
    tmp_path: Path,
) -> None:
    truth = Honest((NATIVE, "lightning"), workers=(1, 2), repeats=4, advantage=0.0, noise=0.0002)
    found = report_of(write_honest(tmp_path / "study", truth))
    row = found.row("frameworks", workers=2)
    assert (row["framework"], row["pairs"], row["costs"]) == ("lightning", 4, "not shown")
    assert found.rows("comparison") == []
    said = [*map(str, found.report.verdicts), *map(all_said, found.summary["answers"])]
    assert not any("Horovod" in sentence for sentence in said)
    titles = {row["check"] for row in found.rows("checks")}
    assert "same nodes (Lightning Fabric)" in titles
    assert "same nodes" not in titles


# What is changed in one wrapper, the row of the fairness table, its mark, words of its fact.
DIFFERS: Mapping[str, tuple[Change, str, str, str]] = {
    "hosts": (workers(host="node9"), "same nodes", "no", "node9 in Accelerate"),
    "packages": (
        header(versions=lambda found: found.versions | {"strange": "1.0"}), "same software", "not known",
        "version of strange: not recorded",
    ),
    "variables": (
        workers(environment=None), "same environment", "not known", "not recorded in Accelerate",
    ),
    "work": (in_epochs(images=lambda epoch: epoch.images - 1), "same work per epoch", "no", "in accelerate"),
}  # fmt: skip


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Path:
    truth = Honest(ALL_FRAMEWORKS, workers=(1, 2), repeats=3)
    return write_honest(tmp_path_factory.mktemp("four") / "study", truth)


@pytest.mark.parametrize("case", DIFFERS)
def test_what_differs_in_one_wrapper_alone_withholds_its_verdict_only(
    case: str, four: Path, tmp_path: Path
) -> None:
    change, check, mark, words = DIFFERS[case]
    study = shutil.copytree(four, tmp_path / "study")
    Runs(study).of("accelerate").change(change)
    found = report_of(study)
    rows = {name: found.row("checks", check=f"{check} ({called})") for name, called in NAMES.items()}
    assert (rows["accelerate"]["mark"], rows["accelerate"]["withholds"]) == (mark, True)
    assert words in rows["accelerate"]["fact"]
    assert rows["lightning"]["mark"] == "yes"
    assert "withheld" not in found.row("frameworks", framework="horovod", workers=2)["outcome"]


def test_runs_that_were_not_evaluated_tell_no_weights(tmp_path: Path) -> None:
    options = {"emulation": {"compute": "slurm/profiles/v100_like.toml"}}
    for framework in (NATIVE, "lightning"):
        for repeat in range(1, 6):
            write_run(tmp_path, framework, 2, repeat, images_per_second=100 + 0.01 * repeat, options=options)
    table = report_of(tmp_path).table("frameworks")
    assert table[["same_weights", "difference"]].replace("", np.nan).isna().all(axis=None)


def test_the_page_on_leaving_horovod_says_what_the_records_say() -> None:
    """Four frameworks on two cores, of which none is shown to be faster."""
    found = report_of(evidence("leaving_horovod"))
    text = (PROJECT / "docs" / "leaving_horovod.md").read_text()
    names = found.summary["frameworks"]
    for point in found.rows("summary"):
        assert f"| {names[point['framework']]} | {point['images_per_second']:.1f} |" in text
        assert f"{point['iou']:.3f} |" in text
    said = "\n".join(verdict.sentence for verdict in found.report.verdicts)
    for words in ("0.964 [0.926, 1.003]", "adds -1.04 ms [-3.47, +2.82]", "adds +1.08 ms [-2.00, +3.29]"):
        assert words in said
        assert words in text
    assert said.count("the same weights in 5 of 5 repeats") == 3
