"""Pages of docs hold the numbers of the committed records, all of which are in tests/golden/studies."""

import re
from functools import cache

import pytest

from analysis.assembly.assemble import Report, make_report
from analysis.predict.forecast import score_table
from analysis.read.load import load_study
from analysis.study import COMPARED
from analysis.text import with_interval
from tests.evidence import evidence
from unet_scaling.study.config import PROJECT

LAUNCHES = 3
NATIVE = ("pytorch_native", "")
POLLS = ("horovod", "yield_when_idle=False")
YIELDS = ("horovod", "yield_when_idle=True")


def page(name: str) -> str:
    (path,) = (PROJECT / "docs").rglob(f"{name}.md")
    return path.read_text()


@cache
def report_of(study: str) -> Report:
    return make_report(load_study(evidence(study)))


def test_the_table_of_the_published_curve_is_that_of_the_records() -> None:
    report = report_of("published_emulated")
    arms, counts = (NATIVE, POLLS, YIELDS), (1, 2, 4, 8, 14)
    assert (len(report.study.runs), len(report.study.left_out)) == (LAUNCHES * len(arms) * len(counts), 0)
    rows = {(row["framework"], row["knobs"], row["workers"]): row for row in report.points.to_dict("records")}
    for workers in counts:
        cells = []
        for arm in arms:
            row = rows[*arm, workers]
            interval = f" [{row['efficiency_low']:.2f}, {row['efficiency_high']:.2f}]" if workers > 1 else ""
            cells += [f"{row['images_per_second']:.2f}", f"{row['efficiency']:.2f}{interval}"]
        assert f"| {workers} | {' | '.join(cells)} |" in page("published_gap")


def test_what_14_emulated_workers_reached_is_that_of_the_records() -> None:
    points = report_of("emulated_scaling").points
    native, horovod = (points[points["workers"] == 14].set_index("framework").loc[name] for name in COMPARED)
    efficiencies = [with_interval(row.to_dict(), "efficiency", ".2f") for row in (native, horovod)]
    said = (
        f"14 native DDP workers reach {native['images_per_second']:.0f} images / s at an efficiency of"
        f" {efficiencies[0]}, Horovod's {horovod['images_per_second']:.0f} at {efficiencies[1]}"
    )
    assert said in page("emulation")
    mpich = report_of("published_emulated_mpich").points
    speeds = mpich[mpich["workers"] == 14].set_index("framework")["images_per_second"]
    share = f"{100 * speeds['horovod'] / speeds['pytorch_native']:.0f} %"
    assert f"Horovod has {share} of DDP's throughput on 14 workers" in page("published_gap")


@pytest.mark.parametrize(("name", "arm"), [("MPI polls", POLLS), ("MPI yields", YIELDS)])
def test_horovods_share_of_the_speed_of_native_ddp_is_that_of_the_records(
    name: str, arm: tuple[str, str]
) -> None:
    points = report_of("published_emulated").points
    speed = points.set_index(["framework", "knobs", "workers"])["images_per_second"]
    shares = [f"{speed[*arm, workers] / speed[*NATIVE, workers]:.0%}" for workers in (1, 2, 4, 8, 14)]
    assert f"| emulated, {name} | {' | '.join(shares)} |".replace("%", " %") in page("published_gap")


@pytest.mark.parametrize(
    ("study", "counted", "digits"), [("emulated_scaling", 4, 0), ("published_emulated", 6, 1)]
)
def test_predictions_that_were_written_before_the_runs_hold(study: str, counted: int, digits: int) -> None:
    scores = score_table(load_study(evidence(study)))
    fair = scores[scores["counted"]]
    assert list(fair["inside"]) == ["yes"] * counted
    for row in fair[fair["workers"] == 14].to_dict("records"):
        predicted, low, high, measured = (
            f"{row[name]:.{digits}f}" for name in ("predicted", "predicted_low", "predicted_high", "measured")
        )
        assert f"on 14 | {predicted} [{low}, {high}] | {measured} |" in page("prediction")


def test_the_iou_of_played_and_real_workers_is_that_of_the_records() -> None:
    points = report_of("plan_nuclei").played.points
    linear = points[(points["options"] == "rate_scaling=linear") & (points["workers"] == 2)].set_index("kind")
    real = linear.loc["real"]
    assert real["iou_low"] <= linear.loc["played", "iou"] <= real["iou_high"]
    rows = dict(re.findall(r"^\| (\d+) \| (.*) \|$", page("plan_quality"), flags=re.MULTILINE))
    assert len(rows) > 4
    for workers, cells in rows.items():
        of_count = points[points["workers"] == int(workers)].itertuples()
        said = [f"{row.iou:.3f} [{row.iou_low:.3f}, {row.iou_high:.3f}]" for row in of_count]
        assert said
        assert all(each in cells for each in said)


def test_the_strategies_on_a_slow_link_are_those_of_the_records() -> None:
    rows = report_of("slow_link").strategies
    said = {
        f"| {row['ratio']:.2f} [{row['ratio_low']:.2f}, {row['ratio_high']:.2f}] "
        f"| {row['difference']:.3f} [{row['difference_low']:.3f}, {row['difference_high']:.3f}] |"
        for row in rows.to_dict("records")
    }
    assert len(said) == 6
    assert [row for row in said if row not in page("strategies")] == []


def test_the_table_and_the_sentences_of_saliency_are_those_of_the_records() -> None:
    report = report_of("saliency_nuclei")
    assert set(report.study.explained) == set(report.study.runs["run"])
    sentences = report.saliency.sentences
    assert sentences
    text = " ".join(page("saliency").split())
    assert [sentence for sentence in sentences if sentence not in text] == []
    speedups = report.saliency.points.query("workers == 2")["speedup"]
    assert f"{speedups.min():.2f} to {speedups.max():.2f} times as fast as one" in text
