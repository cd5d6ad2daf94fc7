"""When a score is judged at all, how often its answers are wrong, and the cause of a lower one."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.iou import PointSeeds, answer_of, differences_of, seeds_of
from analysis.iou_causes import RULES, score_facts
from analysis.load import load_study
from analysis.study import Study
from tests.honest import Honest, write_honest
from tests.records import PIXELS, Measured, make_epochs, make_point, near, write_run
from tests.reports import report_of
from tests.tampering import Runs, as_own_task, scored
from unet_scaling.study.record_lines import Epoch, NormStatistics, RunningScore

MARGIN = 0.01
SHORT: dict[str, Any] = {"images_per_epoch": 48}


def statistics(running: float | None, layers: int = 9) -> NormStatistics:
    """Statistics over 64 images; `running` is the IoU with those that training left."""
    counts = [round((running or 0) * PIXELS), 0, PIXELS - round((running or 0) * PIXELS), 9 * PIXELS]
    score = None if running is None else RunningScore(counts=counts, score=counts[0] / PIXELS)
    return NormStatistics(layers=layers, images=64, seconds=0.1, others=[], running=score)


def write(folder: Path, two: Callable[[int], float] = lambda repeat: 0.8, **run: Any) -> Path:
    """Both frameworks on 1 and on 2 workers, 1.9 times as fast; `two` is the IoU of a repeat on 2 workers."""
    for repeat in range(1, 6):
        for workers, iou in ((1, 0.8 + 0.001 * repeat), (2, two(repeat) + 0.001 * repeat)):
            for framework in ("pytorch_native", "horovod"):
                about = {"started_utc": f"2025-01-31T{8 + repeat:02d}:{len(list(folder.glob('*'))):02d}:00Z"}
                speed = (100 + repeat) * (1.9 if workers == 2 else 1)
                settings = {"images_per_second": speed, "iou": round(iou, 6), "header": about} | run
                write_run(folder, framework, workers, repeat, **settings)  # type: ignore[arg-type]
    return folder


def images(folder: Path, deviation: float) -> Path:
    """Runs whose test images differ in what 2 workers cost by so much."""
    random = np.random.default_rng(3)
    for repeat in range(1, 6):
        for workers in (1, 2):
            ious = np.clip(0.8 + random.normal(0, deviation if workers == 2 else 0, 12), 0, 1).round(4).tolist()
            evaluated = {"image_ious": ious, "statistics": statistics(0.8)}
            iou = round(0.8 + 0.001 * repeat, 6)
            write_run(folder, workers=workers, repeat=repeat, iou=iou, evaluated=evaluated,
                      images_per_second=95.0 * workers + repeat)  # fmt: skip
    return folder


def own_task(folder: Path) -> Path:
    return as_own_task(write(folder, iou=0.75))


NOT_JUDGED: Mapping[str, tuple[Callable[[Path], Path], str]] = {
    "few steps": (lambda to: write(to, **SHORT), "optimizer steps, at least 100 are needed (5 epochs)"),
    "few steps, and a collapse": (lambda to: write(to, lambda _: 0.01, **SHORT), "optimizer steps"),
    "one test image": (lambda to: write(to, evaluated={"images": 1}), "1 test image"),
    "a perfect score": (lambda to: write(to, iou=1.0), "scores 1"),
    "a constant score": (lambda to: write(to, iou=0.75), "scores 0.75"),
    "a constant score of an own task": (own_task, "scores"),
    "test images that differ": (lambda to: images(to, 0.2), "standard error"),
    "a score that rises": (
        lambda to: write_honest(to, Honest(workers=(1, 2), training={"epochs": 5, "evaluate_every": 1})),
        "still rises",
    ),
}


@pytest.mark.parametrize("name", NOT_JUDGED)
def test_what_cannot_be_judged_is_answered_by_speed_alone(name: str, tmp_path: Path) -> None:
    make, words = NOT_JUDGED[name]
    told = report_of(make(tmp_path / "study"))
    row, *_ = told.rows("iou", workers=2)
    assert row["non_inferior"] == "not judged"
    assert words in row["not_judged"]
    (answer,) = told.summary["answers"]
    (advice,) = told.summary["recommendations"]
    assert (answer["kind"], advice["workers"]) == ("scale", 2)
    assert answer["headline"].startswith("By speed alone")
    assert row["not_judged"] in answer["headline"]
    assert (answer["tiles"][1]["light"], answer["tiles"][1]["value"]) == ("unknown", "not judged")
    needed = row["epochs_needed"]
    steps = "; ".join(answer["next_steps"])
    assert ("training.epochs=" in steps) == ("few steps" in name)
    assert math.isnan(needed) or f"--set training.epochs={needed:.0f}" in steps


def test_a_judged_point_goes_before_a_faster_one_that_is_not(tmp_path: Path) -> None:
    for iou, workers in (("yes", 2), ("no", None)):
        folder = write(tmp_path / iou, (lambda _: 0.8) if workers else (lambda _: 0.5))
        for repeat in range(1, 6):
            write_run(folder, workers=4, repeat=repeat, images_per_second=380.0 + repeat, images_per_epoch=96)
        told = report_of(folder)
        assert told.row("iou", workers=4)["non_inferior"] == "not judged"
        assert told.row("iou", workers=2, framework="pytorch_native")["non_inferior"] == iou
        (advice,) = told.summary["recommendations"]
        assert advice["workers"] == workers


def test_statistics_that_training_left_are_told_from_settled_ones(tmp_path: Path) -> None:
    settled = {"evaluated": {"statistics": statistics(0.0)}}
    told = report_of(write(tmp_path / "new", **SHORT, **settled))
    assert {row["statistics"] for row in told.rows("runs")} == {"recomputed"}
    assert {row["iou_running"] for row in told.rows("runs")} == {0.0}
    reasons = "; ".join(told.summary["answers"][0]["tiles"][1]["reasons"])
    assert "with settled statistics; 0.000 with those that training left: 9 steps are too few" in reasons
    without = {"evaluated": {"statistics": statistics(None, layers=0)}}
    told = report_of(write(tmp_path / "none", **without))
    assert {row["statistics"] for row in told.rows("runs")} == {"none in the model"}
    assert [row["iou_running"] for row in told.rows("runs")] == [row["iou"] for row in told.rows("runs")]


def test_scores_by_unlike_statistics_are_never_compared(tmp_path: Path) -> None:
    for repeat in range(1, 6):
        write_run(tmp_path, repeat=repeat, iou=near(0.8)[repeat - 1])
        write_run(tmp_path, workers=2, repeat=repeat, iou=near(0.8)[repeat - 1],
                  evaluated={"statistics": statistics(0.5 + 0.001 * repeat)})  # fmt: skip
    told = report_of(tmp_path)
    assert {row["statistics"] for row in told.rows("runs")} == {"running"}
    assert told.row("iou", workers=2)["iou"] == pytest.approx(0.503)
    assert told.row("evaluations", run="pytorch_native-w02-r1")["iou"] == pytest.approx(0.501)
    assert told.row("iou", workers=2)["non_inferior"] == "no"
    assert "that training left" in told.notes


def answers(random: np.random.Generator, seeds: int, deviation: float, loss: float, points: int) -> list[str]:
    """Return what a study of so many points answers whose true loss of IoU is this."""
    pairs = []
    for point in range(points):
        alone = dict(enumerate(random.normal(0.8, 0.02, seeds)))
        ious = {seed: iou - loss + random.normal(0, deviation) for seed, iou in alone.items()}
        of = [PointSeeds("", "horovod", "", workers, each, 50, 0)
              for workers, each in ((2**point, ious), (1, alone))]  # fmt: skip
        pairs.append((of[0], of[1]))
    found = differences_of(pairs, [-MARGIN] * points, [""] * points)
    return [
        answer_of(each, yes=each["difference_low"] > -MARGIN, no=each["difference_high"] < -MARGIN)
        for each in found
    ]


def test_a_loss_of_the_margin_is_seldom_called_kept_and_few_seeds_only_suggest_it() -> None:
    random = np.random.default_rng(5)
    studies = 150
    for seeds in (3, 5, 8):
        found = [answers(random, seeds, 0.005, MARGIN, 4) for _ in range(studies)]
        wrong = sum(any(each.endswith("yes") for each in study) for study in found)
        # 5 % with three standard errors of so many studies.
        assert wrong / studies <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / studies)
        kept = [each for _ in range(10) for each in answers(random, seeds, 0.002, 0.0, 4)]
        assert set(kept) <= {"suggests yes", "not shown"} if seeds < 5 else {"yes", "not shown"}
        assert sum(each.endswith("yes") for each in kept) >= 0.9 * len(kept)


CAUSES = [*RULES, "nothing that is recorded"]


def invented(folder: Path, cause: str, random: np.random.Generator) -> Study:
    """A study of 1 worker and of more, whose score falls by this cause alone."""
    seeds = int(random.integers(3, 9))
    workers = int(random.choice([2, 4, 8]))
    epochs = int(random.integers(8, 15))
    running = cause == "statistics" or bool(random.integers(2))
    # Steps in which the loss halves; the score follows the loss that is left.
    halving = random.uniform(40, 120)
    per_epoch = 160 if cause == "statistics" else int(random.integers(40, 80)) * workers
    size = random.uniform(0.03, 0.2)
    for repeat in range(1, seeds + 1):
        luck = np.exp(random.normal(0, 0.015, 2))
        for count, own in ((1, luck[0]), (workers, luck[0] * luck[1])):
            options = {"training": {"epochs": epochs, "batch_per_worker": 1, "rate_scaling": "linear"}}
            point = make_point(workers=count, repeat=repeat, options=options)
            planned = make_epochs(point, 100.0 * count, per_epoch)
            slower = count if cause == "too few steps" else 1
            pace = per_epoch / slower / (halving * (3 if slower > 1 else 1))
            losses = [0.06 + 0.6 * 0.5 ** (pace * (number + 0.5)) for number in range(epochs)]
            iou = 0.8 - 0.3 * (losses[-1] - 0.06)
            if count > 1 and cause == "learning rate":
                rising = random.uniform(0.0, 0.1) * np.arange(epochs)
                losses = [0.6 * random.uniform(0.9, 1.1) + each for each in rising]
                iou = random.uniform(0.0, 0.6)
            elif count > 1 and cause == "larger batches":
                iou -= size
            elif count > 1 and cause == "statistics":
                iou *= random.uniform(0.0, 0.4)
            elif count > 1 and cause == "noise of seeds":
                iou += random.normal(0, 0.06)
            elif count > 1 and cause == "nothing that is recorded":
                iou -= size if random.integers(2) else 0
            lines = [each.model_copy(update={"loss": float(loss * own)}) for each, loss in zip(planned, losses, strict=True)]
            score = float(np.clip(iou + random.normal(0, 0.003), 0, 1))
            made = None if running else {"statistics": statistics(score)}
            write_run(folder, workers=count, repeat=repeat, options=options, iou=round(score, 6),
                      measured=Measured(lines), evaluated=made)  # fmt: skip
    return load_study(folder)
