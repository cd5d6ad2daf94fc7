"""What a study asked for against what is read: one thing done to its folder, and what the report says."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from analysis.assemble import make_report
from analysis.contrast import WITHHELD
from analysis.load import load_study
from slurm.study_folder import StudyFolder
from tests.honest import Honest, write_honest
from tests.tampering import Runs
from unet_scaling.study.config import Framework
from unet_scaling.study.record import RECORD_NAME, set_launch_aside
from unet_scaling.study.record_lines import End
from unet_scaling.study.repeats import EARLY_SIGNIFICANCE, REPEATS_NAME, note_look
from unet_scaling.study.study_file import STUDY_NAME, recorded_study

CHECK = "asked for and read"
FASTER = "native DDP faster"
TRUTH = Honest(workers=(2,), repeats=6, advantage=0.3)


def ask_for(folder: Path, **changes: object) -> None:
    """Write the study file of another request, and the run folders that it lacks."""
    study = recorded_study(folder)
    assert study is not None
    StudyFolder(folder, study.model_copy(update=changes)).prepare()


def remove(folder: Path, repeat: int, framework: Framework | None = None) -> None:
    for run, _ in [*Runs(folder).of(framework, repeats=[repeat]).records()]:
        shutil.rmtree(run)


def fail(folder: Path) -> None:
    """The runs of both frameworks end without a word."""
    Runs(folder).of(repeats=[3]).change(lambda lines: replace(lines, epochs=lines.epochs[:2], end=None))


def diverge(folder: Path) -> None:
    end = End(status="diverged", reason="the loss is nan")
    Runs(folder).of(repeats=[6]).change(lambda lines: replace(lines, results=[], end=end))


def launch_again(folder: Path, name: str, repeats: Sequence[int], framework: Framework | None = None) -> None:
    """The best of two launches stands, the other one beside it."""
    again = write_honest(folder.with_name("again"), replace(TRUTH, seed=2, speed=1.02))
    for run, _ in [*Runs(folder).of(framework, repeats=repeats).records()]:
        set_launch_aside(run, name)
        shutil.copy(again / run.name / RECORD_NAME, run)


def fewer_asked_than_made_again(folder: Path) -> None:
    launch_again(folder, "attempt1", ALL)
    ask_for(folder, repeats=3)


def looked_at(folder: Path) -> None:
    note_look(folder, 3, 6, by_hand=True, adaptive=False)


def history_removed(folder: Path) -> None:
    looked_at(folder)
    ask_for(folder)
    (folder / REPEATS_NAME).unlink()


ALL = range(1, 7)


CASES: dict[str, tuple[Callable[[Path], object], str, str, float, str]] = {
    "complete": (lambda _: None, "yes", FASTER, 0.05, "all 12 runs"),
    "records only": (lambda study: (study / STUDY_NAME).unlink(), "not known", FASTER, 0.05, STUDY_NAME),
    "still running": (lambda study: remove(study, 6), "no", FASTER, EARLY_SIGNIFICANCE, "5 of 6"),
    "failed in both": (fail, "no", FASTER, EARLY_SIGNIFICANCE, "(1 failed)"),
    "diverged in both": (diverge, "no", FASTER, 0.05, "(1 diverged)"),
    "points to come": (lambda study: ask_for(study, workers=[2, 4]), "no", FASTER, 0.05, "of 2 points"),
    "a gap": (lambda study: remove(study, 2, "horovod"), "no", WITHHELD, EARLY_SIGNIFICANCE, "2 of Horovod"),
    "a gap in both": (lambda study: remove(study, 2), "no", WITHHELD, EARLY_SIGNIFICANCE, "repeats 2 of"),
    "one quiet launch again": (
        lambda study: launch_again(study, "disturbed1", [1], "horovod"), "no", WITHHELD, 0.05,
        "1 of them not",
    ),
    "one arm again": (
        lambda study: launch_again(study, "attempt1", ALL, "horovod"), "no", WITHHELD, 0.05, "6 launches of",
    ),
    "both arms again": (
        lambda study: launch_again(study, "attempt1", ALL), "no", FASTER, 0.05, "6 of Horovod",
    ),
    "both again, and fewer asked": (fewer_asked_than_made_again, "no", FASTER, 0.025, "6 of Horovod"),
    "a look that is noted": (looked_at, "yes", FASTER, 0.025, "all 12 runs"),
    "a look whose note is gone": (history_removed, "yes", FASTER, 0.025, "all 12 runs"),
    "repeats that nothing tells of": (
        lambda study: ask_for(study, repeats=3), "no", FASTER, 0.025, "3 not asked for",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_honest(tmp_path_factory.mktemp("logs") / "honest", TRUTH)


@pytest.mark.parametrize("case", CASES)
def test_a_folder_says_what_became_of_what_was_asked_for(honest: Path, tmp_path: Path, case: str) -> None:
    change, mark, outcome, significance, words = CASES[case]
    study = tmp_path / "honest"
    shutil.copytree(honest, study)
    change(study)
    report = make_report(load_study(study))
    row = report.fairness.set_index("check").loc[CHECK]
    assert (row["mark"], list(report.comparisons["outcome"])) == (mark, [outcome]), row["fact"]
    assert row["withholds"] == (outcome == WITHHELD)
    assert report.study.significance == significance
    assert words in row["fact"], row["fact"]
