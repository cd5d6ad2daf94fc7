"""Played runs: their IoU counts at the workers that they play, their seconds nowhere."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from analysis.__main__ import main
from analysis.report.program import print_report
from tests.records import DIVERGED, digest, make_workers, near, write_all_played, write_played, write_real
from tests.reports import Told, all_said, report_of, reported
from unet_scaling.base.errors import EXIT_BAD_DATA, UserError
from unet_scaling.study.config import PROJECT
from unet_scaling.study.options import Criteria

PAGE = PROJECT / "docs" / "background" / "plan_quality.md"
RULES = {"linear": (0.799, 0.792, 0.713), "square_root": (0.801, 0.8, 0.797), "none": (0.798, 0.781, 0.752)}
BASE, KEPT, LOST, OPEN = "baseline", "no loss", "loss", "undecided"
Ious = Mapping[int, Sequence[float | None]]


def write_rules(folder: Path) -> Path:
    """Three rules for the rate: the square root keeps the IoU up to 14, the others lose some before."""
    for number, (rule, ious) in enumerate(RULES.items()):
        played = {1: near(0.8, deviation=0.002)}
        for place, (plays, iou) in enumerate(zip((4, 8, 14), ious, strict=True)):
            played[plays] = near(iou, deviation=0.002, seed=10 * number + place + 2)
        write_all_played(folder, played, training={"rate_scaling": rule}, label=f"-{rule}")
    return folder


def kept_up_to(found: Told) -> list[int]:
    """Up to how many workers the headlines say that the IoU is kept."""
    said = " ".join(map(all_said, found.summary["answers"]))
    return [int(number) for number in re.findall(r"[Uu]p to (\d+) workers keep", said)]


# IoU by workers; the verdict on each number, and up to how many the headline says that it is kept.
FINDINGS: Sequence[tuple[Ious, Sequence[str], Sequence[int]]] = [
    (
        {1: near(0.8), 4: near(0.799, seed=2), 8: near(0.798, seed=3), 14: near(0.76, seed=4)},
        (BASE, KEPT, KEPT, LOST), [8],
    ),
    ({1: near(0.8), 4: near(0.8), 8: near(0.8)}, (BASE, KEPT, KEPT), [8]),
    ({1: near(0.8), 4: near(0.7)}, (BASE, LOST), []),
    ({1: near(0.8), 4: near(0.8), 8: [*near(0.8, 3), DIVERGED, DIVERGED]}, (BASE, KEPT, "diverges"), [4]),
    ({1: [0.8], 8: [0.8]}, (BASE, OPEN), []),
    ({1: near(0.8), 8: near(0.795, deviation=0.02)}, (BASE, OPEN), []),
    ({4: near(0.8), 8: near(0.8)}, (OPEN, OPEN), []),
    ({1: near(0.8)}, (BASE,), []),
    ({1: near(0.8), 8: [0.8, 0.8, 0.8, None]}, (BASE, OPEN), []),
    (
        {1: near(0.8), 4: near(0.8), 8: near(0.78, deviation=0.02), 14: near(0.8)}, (BASE, KEPT, OPEN, KEPT),
        [4],
    ),
    # A seed that is missing at one number is left out there.
    ({1: near(0.8), 8: near(0.8)[:4]}, (BASE, KEPT), [8]),
]  # fmt: skip


def test_the_finding_says_no_more_than_its_runs(tmp_path: Path) -> None:
    for number, (ious, _, _) in enumerate(FINDINGS, start=1):
        training = {"learning_rate": number / 1000}
        write_all_played(tmp_path, ious, training=training, label=f"-{number}")
    found = report_of(tmp_path)
    answers = {answer["options"]: answer for answer in found.summary["answers"]}
    for number, (ious, verdicts, kept) in enumerate(FINDINGS, start=1):
        options = f"learning_rate={number / 1000:g}"
        rows = found.rows("played", options=options)
        assert [row["workers"] for row in rows] == list(ious), number
        assert [row["verdict"] for row in rows] == list(verdicts), number
        said = re.findall(r"[Uu]p to (\d+) workers keep", all_said(answers[options]))
        assert [int(each) for each in said] == kept, answers[options]
    assert found.row("played", options="learning_rate=0.011", workers=8)["pairs"] == 4
    assert found.rows("played", workers=14)[0]["difference"] == pytest.approx(-0.04, abs=0.002)


def test_the_margin_is_that_of_the_study(tmp_path: Path) -> None:
    write_all_played(tmp_path, {1: near(0.8), 8: near(0.77, seed=2)})
    for margin, verdict in ((0.01, LOST), (0.05, KEPT)):
        assert report_of(tmp_path, Criteria(iou_margin=margin)).row("played", workers=8)["verdict"] == verdict


def test_real_runs_do_not_depend_on_played_ones_beside_them(tmp_path: Path) -> None:
    for name in ("alone", "beside"):
        write_real(tmp_path / name, 1, near(0.8), 100)
        write_real(tmp_path / name, 2, near(0.8), 190)
    write_all_played(tmp_path / "beside", {1: near(0.8), 8: [*near(0.7, 4), DIVERGED]})
    alone, beside = report_of(tmp_path / "alone"), report_of(tmp_path / "beside")
    for table in ("summary", "comparison", "iou", "cost", "predictions", "runs"):
        pd.testing.assert_frame_equal(alone.table(table), beside.table(table))
    assert beside.row("played", workers=8)["diverged"] == 1
    headlines = [all_said(found.summary["answers"][0]) for found in (alone, beside)]
    assert headlines[0].startswith("Use native DDP on 2 workers")
    assert ["played" in headline for headline in headlines] == [False, True]


def test_of_two_kinds_at_one_number_the_worse_counts_or_that_of_more_seeds(tmp_path: Path) -> None:
    write_real(tmp_path / "worse", 1, near(0.8), 100)
    write_real(tmp_path / "worse", 2, near(0.7, seed=2), 190)
    worse = report_of(write_all_played(tmp_path / "worse", {1: near(0.8), 2: near(0.8), 8: near(0.8)}))
    assert worse.report.played.kept[0].workers == 1
    assert "do not agree" in worse.notes
    ious = [0.80, 0.79, 0.81, 0.80, 0.805]
    for workers, speed in ((1, 100), (2, 190)):
        write_real(tmp_path / "more", workers, ious, speed)
    more = report_of(write_all_played(tmp_path / "more", {2: ious[:2]}))
    assert [row["verdict"] for row in more.rows("played", workers=2)] == [OPEN, KEPT]
    assert more.report.played.kept[0].workers == 2


def test_played_and_real_runs_of_one_seed_are_held_against_each_other(tmp_path: Path) -> None:
    for workers, seed in ((1, 1), (2, 2)):
        write_real(tmp_path, workers, near(0.8, seed=seed), 100 * workers)
    write_all_played(tmp_path, {1: near(0.8), 2: near(0.8, seed=2)})
    assert "(10 pairs of one seed)" in report_of(tmp_path).notes
    write_real(tmp_path / "cores", 1, near(0.8), 100)
    for repeat, iou in enumerate(near(0.8), start=1):
        write_played(tmp_path / "cores", 1, repeat, iou, header={"workers": make_workers(1, cores_each=2)})
    assert "played runs had 2 cores per worker, real ones 1" in report_of(tmp_path / "cores").notes


def played(plays: int, by: int = 1, **header: Any) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        for repeat in (1, 2, 3):
            write_played(folder, plays, repeat, 0.8, workers=by, header=header)

    return write


def real(folder: Path) -> None:
    write_real(folder, 1, near(0.8), 100)


OTHER_DATA: dict[str, Any] = {"manifest_sha256": digest("others")}
OTHER_PLACE: dict[str, Any] = {
    "commit": "f" * 40,
    "workers": make_workers(1, device="NVIDIA H200", host="laptop"),
}
# What is written, how many runs are left out, and a word of the reason.
MIXED: Mapping[str, tuple[Sequence[Callable[[Path], None]], int, str]] = {
    "other data than real ones": ((real, played(8, **OTHER_DATA)), 3, "not played"),
    "two data sets": ((played(1), played(8, **OTHER_DATA)), 3, "manifest"),
    "two commits": ((played(1), played(8), played(4, commit="f" * 40)), 3, "commit: "),
    "one training by 1 and by 2": ((played(4), played(4, by=2)), 3, "the same repeat of the same point as"),
    "another host and commit than real ones": (
        (real, played(4, **OTHER_PLACE), played(8, **OTHER_PLACE)),
        0,
        "",
    ),
    "as many as there are": ((played(2, by=2),), 0, ""),
}


@pytest.mark.parametrize("case", MIXED)
def test_played_runs_that_differ_are_no_curve_of_one(case: str, tmp_path: Path) -> None:
    writes, number, words = MIXED[case]
    for write in writes:
        write(tmp_path)
    found = report_of(tmp_path)
    assert len(found.left_out) == number, found.left_out
    assert all(words in reason for reason in found.left_out.values())
    assert len(found.study.runs) == (5 if real in writes else 0)


def test_the_rule_that_keeps_the_iou_farthest_is_the_best_and_no_file_holds_a_second(tmp_path: Path) -> None:
    folder = reported(write_rules(tmp_path / "plan"))
    found = report_of(tmp_path / "plan")
    assert found.summary["answers"][0]["options"] == "rate_scaling=square_root"
    assert kept_up_to(found)[0] == 14
    assert {answer["kind"] for answer in found.summary["answers"]} == {"played"}
    for table in ("summary", "runs", "cost", "comparison", "iou", "predictions", "iou_between_frameworks"):
        assert found.rows(table) == [], table
    assert found.study.played is not None
    seconds = ["images_per_second", "epochs_per_second", "seconds_per_epoch", "training_seconds"]
    assert found.study.played.runs[seconds].isna().all(axis=None)
    times = re.compile("second|worker_hours|speed")
    played_tables = [*folder.glob("played*.csv"), folder / "plan.csv"]
    for path in played_tables:
        rows = pd.read_csv(path)
        assert len(rows) >= 9, path
        named = [name for name in map(str, rows) if times.search(name)]
        assert rows[named].isna().all(axis=None), path.name
    assert "seconds_to_target" in pd.read_csv(folder / "plan.csv")
    visible = re.sub(r"<style.*?</style>", "", (folder / "report.html").read_text(), flags=re.DOTALL)
    assert not re.search(r"\d (images|epochs) / s|speed-up of|\d+(\.\d+)?x\b", visible)
    assert "plays = [1, 4, 8, 14]" in (folder / "tiny.toml").read_text()


def test_the_page_of_the_documentation_shows_what_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    print_report(report_of(write_rules(tmp_path / "plan_quality")).report, tmp_path)
    printed = capsys.readouterr().out
    shown = r"^```\n(\[rate_scaling.*?)\.\.\.\n```$"
    (block,) = re.findall(shown, PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(block.splitlines()) > 6
    assert printed.startswith(block), f"{PAGE.name} shows another output:\n{printed[:2500]}"


def test_played_runs_are_no_side_of_a_comparison_and_diverged_ones_no_report(tmp_path: Path) -> None:
    write_all_played(tmp_path / "plan", {1: near(0.8), 8: near(0.8)})
    write_all_played(tmp_path / "lost", {1: [DIVERGED] * 3})
    for command in (["compare", *[str(tmp_path / "plan")] * 2], [str(tmp_path / "lost")]):
        with pytest.raises(UserError) as refused:
            main(command)
        assert refused.value.exit_code == EXIT_BAD_DATA
