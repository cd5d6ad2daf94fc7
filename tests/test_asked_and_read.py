"""What a study asked for against what is read: one thing done to its folder, and what the report says."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from analysis.contrast import WITHHELD
from analysis.load import load_study
from analysis.report.assemble import Report, make_report
from slurm.study_folder import StudyFolder
from tests.honest_launches import launch, opened
from tests.records import write_record
from unet_scaling.study.config import RunConfig
from unet_scaling.study.record import RECORD_NAME, set_launch_aside
from unet_scaling.study.record_lines import End
from unet_scaling.study.repeats import EARLY_SIGNIFICANCE, REPEATS_NAME, note_look
from unet_scaling.study.study_file import STUDY_NAME

CHECK = "asked for and read"
FASTER = "native DDP faster"


def chosen(folder: StudyFolder, framework: str = "", repeats: tuple[int, ...] = ()) -> list[RunConfig]:
    """The runs of a framework, or of both, in these repeats, or in all."""
    return [
        config
        for config in folder.study.configs()
        if config.framework.startswith(framework) and (not repeats or config.repeat in repeats)
    ]


def remove(folder: StudyFolder, framework: str, *repeats: int) -> None:
    for config in chosen(folder, framework, repeats):
        shutil.rmtree(folder.run_folder(config))


def fail(folder: StudyFolder, *repeats: int) -> None:
    """The runs of both frameworks end without a word."""
    for config in chosen(folder, "", repeats):
        record = folder.run_folder(config) / RECORD_NAME
        record.write_bytes(b"".join(record.read_bytes().splitlines(keepends=True)[:3]))


def launch_again(folder: StudyFolder, framework: str, name: str, repeats: int, luck: str = "again") -> None:
    """The best of two launches stands, the other one beside it."""
    for config in chosen(folder, framework, tuple(range(1, repeats + 1))):
        run = folder.run_folder(config)
        set_launch_aside(run, name)
        launch(run, config, luck=luck, pace=0.98)


def diverge(folder: StudyFolder) -> None:
    for config in chosen(folder, "", (6,)):
        run = folder.run_folder(config)
        (run / RECORD_NAME).unlink()
        for file in ("log.csv", "steps.parquet"):
            (run / file).unlink()
        write_record(run, config, end=End(status="diverged", reason="the loss is nan"))


def looked_at(folder: StudyFolder) -> None:
    note_look(folder.path, 3, 6, by_hand=True, adaptive=False)


def history_removed(folder: StudyFolder) -> None:
    looked_at(folder)
    opened(folder.path)
    (folder.path / REPEATS_NAME).unlink()


def without_history(folder: StudyFolder) -> None:
    """Three repeats more than study.json tells of, and no repeats.json."""
    opened(folder.path, repeats=3)


def report_after(tmp_path: Path, change: Callable[[StudyFolder], object]) -> Report:
    folder = opened(tmp_path / "honest")
    for config in folder.study.configs():
        launch(folder.run_folder(config), config)
    change(folder)
    return make_report(load_study(folder.path))


def points_to_come(folder: StudyFolder) -> None:
    opened(folder.path, workers=[2, 4])


CASES: dict[str, tuple[Callable[[StudyFolder], object], str, str, float, str]] = {
    "complete": (lambda _: None, "yes", FASTER, 0.05, "all 12 runs"),
    "records only": (lambda study: (study.path / STUDY_NAME).unlink(), "not known", FASTER, 0.05, STUDY_NAME),
    "still running": (lambda study: remove(study, "", 6), "no", FASTER, EARLY_SIGNIFICANCE, "5 of 6"),
    "failed in both": (lambda study: fail(study, 3), "no", FASTER, EARLY_SIGNIFICANCE, "(1 failed)"),
    "diverged in both": (diverge, "no", FASTER, 0.05, "(1 diverged)"),
    "points to come": (points_to_come, "no", FASTER, 0.05, "of 2 points"),
    "a gap": (lambda study: remove(study, "horovod", 2), "no", WITHHELD, EARLY_SIGNIFICANCE, "2 of Horovod"),
    "a gap in both": (lambda study: remove(study, "", 2), "no", WITHHELD, EARLY_SIGNIFICANCE, "repeats 2 of"),
    "one quiet launch again": (
        lambda study: launch_again(study, "horovod", "disturbed1", 1), "no", WITHHELD, 0.05, "1 of them not",
    ),
    "one arm again": (
        lambda study: launch_again(study, "horovod", "attempt1", 6), "no", WITHHELD, 0.05, "6 launches of",
    ),
    "both arms again": (
        lambda study: launch_again(study, "", "attempt1", 6), "no", FASTER, 0.05, "6 of Horovod",
    ),
    "a look that is noted": (looked_at, "yes", FASTER, 0.025, "all 12 runs"),
    "a look whose note is gone": (history_removed, "yes", FASTER, 0.025, "all 12 runs"),
    "repeats that nothing tells of": (without_history, "no", FASTER, 0.025, "3 not asked for"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_folder_says_what_became_of_what_was_asked_for(tmp_path: Path, case: str) -> None:
    change, mark, outcome, significance, words = CASES[case]
    report = report_after(tmp_path, change)
    row = report.fairness.set_index("check").loc[CHECK]
    assert (row["mark"], list(report.comparisons["outcome"])) == (mark, [outcome]), row["fact"]
    assert row["withholds"] == (outcome == WITHHELD)
    assert report.study.significance == significance
    assert words in row["fact"], row["fact"]
