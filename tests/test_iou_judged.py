"""When a score is judged at all, how often its answers are wrong, and the cause of a lower one."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.judge.score_causes import RULES, cause_of
from analysis.numbers.iou import PointSeeds, answer_of, differences_of, iou_table
from analysis.study import Run, Study, left_out_table, run_table
from tests.honest import Honest, write_honest
from tests.records import PIXELS, make_header, make_point, near, write_run
from tests.reports import report_of
from tests.tampering import as_own_task
from unet_scaling.format.record_lines import NormStatistics, RunningScore

MARGIN = 0.01
SHORT: dict[str, Any] = {"images_per_epoch": 48}


def statistics(running: float | None, layers: int = 9) -> NormStatistics:
    """Statistics over 64 images; `running` is the IoU with those that training left."""
    counts = [round((running or 0) * PIXELS), 0, PIXELS - round((running or 0) * PIXELS), 9 * PIXELS]
    score = None if running is None else RunningScore(counts=counts, score=counts[0] / PIXELS)
    return NormStatistics(layers=layers, images=64, seconds=0.1, others=[], running=score)


def write(
    folder: Path, two: Callable[[int], float] = lambda repeat: 0.8, test_images: int = 12, **run: Any
) -> Path:
    """Both frameworks on 1 and on 2 workers, 1.9 times as fast; `two` is the IoU of a repeat on 2 workers."""
    for repeat in range(1, 6):
        for workers, iou in ((1, 0.8 + 0.001 * repeat), (2, two(repeat) + 0.001 * repeat)):
            for framework in ("pytorch_native", "horovod"):
                started = f"2025-01-31T{8 + repeat:02d}:{len(list(folder.glob('*'))):02d}:00Z"
                about = {"started_utc": started, "test_images": test_images}
                speed = (100 + repeat) * (1.9 if workers == 2 else 1)
                settings = {"images_per_second": speed, "iou": round(iou, 6), "header": about} | run
                write_run(folder, framework, workers, repeat, **settings)
    return folder


def images(folder: Path, deviation: float) -> Path:
    """Runs whose test images differ in what 2 workers cost by so much."""
    random = np.random.default_rng(3)
    for repeat in range(1, 6):
        for workers in (1, 2):
            ious = (
                np.clip(0.8 + random.normal(0, deviation if workers == 2 else 0, 12), 0, 1).round(4).tolist()
            )
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
    "few steps, and one test image": (
        lambda to: write(to, test_images=1, **SHORT),
        "are needed (5 epochs); 1 test image, at least 5",
    ),
    "one test image": (lambda to: write(to, test_images=1), "1 test image"),
    "a perfect score": (lambda to: write(to, iou=1.0), "scores 1, the most there is"),
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
    row = told.report.iou.query("workers == 2").to_dict("records")[0]
    assert row["non_inferior"] == "not judged"
    assert words in row["not_judged"]
    (answer,) = told.summary["answers"]
    (advice,) = told.summary["recommendations"]
    assert (answer["kind"], advice["workers"]) == ("scale", 2)
    assert answer["headline"].startswith("By speed alone")
    assert any(row["not_judged"] in remark for remark in answer["remarks"])
    assert (answer["tiles"][1]["light"], answer["tiles"][1]["value"]) == ("unknown", "not judged")
    needed = row["epochs_needed"]
    steps = "; ".join(answer["next_steps"])
    assert ("training.epochs=" in steps) == ("few steps" in name)
    assert math.isnan(needed) or f"--set training.epochs={needed:.0f}" in steps


# Of 1 worker, and of 2; each a reason not to judge, were the loss not plain.
PLAIN_LOSSES: Mapping[str, Callable[[Path], Path]] = {
    "few steps on 2 workers alone": lambda to: plain(to, {1: 480, 2: 48}, {}),
    "test images that differ": lambda to: plain(to, {1: 480, 2: 480}, {"spread": 0.1}),
}


def plain(
    folder: Path, images_per_epoch: Mapping[int, int], spread: Mapping[str, float], images: int = 40
) -> Path:
    """Settled statistics; 2 workers score 0.2 less, in every seed."""
    random = np.random.default_rng(3)
    for repeat in range(1, 6):
        for workers, score in ((1, 0.8), (2, 0.6)):
            of_images = score + random.normal(0, spread.get("spread", 0.0), images)
            evaluated = {
                "image_ious": of_images.clip(0, 1).round(4).tolist(), "statistics": statistics(score)
            }  # fmt: skip
            write_run(folder, workers=workers, repeat=repeat, iou=round(score + 0.001 * repeat, 6),
                      evaluated=evaluated, images_per_second=95.0 * workers + repeat,
                      images_per_epoch=images_per_epoch[workers], header={"test_images": images})  # fmt: skip
    return folder


def test_a_loss_that_one_of_two_reasons_explains_is_not_plain(tmp_path: Path) -> None:
    """Few steps on 2 workers explain none of it, but test images that differ so much explain all."""
    told = report_of(plain(tmp_path / "study", {1: 480, 2: 48}, {"spread": 3.0}, 5))
    row = told.row("iou", workers=2)
    assert row["non_inferior"] == "not judged"
    assert "optimizer steps" in row["not_judged"]
    assert "standard error" in row["not_judged"]


@pytest.mark.parametrize("name", PLAIN_LOSSES)
def test_a_plain_loss_is_no_answer_by_speed_alone(name: str, tmp_path: Path) -> None:
    told = report_of(PLAIN_LOSSES[name](tmp_path / "study"))
    assert told.row("iou", workers=2)["non_inferior"] == "no"
    (answer,) = told.summary["answers"]
    assert answer["headline"].startswith("Do not scale out")


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
    told = report_of(write(tmp_path / "new", **SHORT, evaluated={"statistics": statistics(0.0)}))
    assert {row["statistics"] for row in told.rows("runs")} == {"recomputed"}
    assert {row["iou_running"] for row in told.rows("runs")} == {0.0}
    reasons = "; ".join(told.summary["answers"][0]["tiles"][1]["reasons"])
    assert (
        "with recomputed statistics of batch norm; 0.000 with those that training left: 72 steps" in reasons
    )
    told = report_of(write(tmp_path / "none", evaluated={"statistics": statistics(None, layers=0)}))
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
    found = differences_of(pairs, [-MARGIN] * points, [()] * points)
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


def invented(cause: str, random: np.random.Generator) -> tuple[Study, int]:
    """Return a study of 1 worker and of more, and how many: its score falls by this cause alone.

    The loss halves in so many steps of 1 worker; with a rate that grows with the workers, in as many images.
    """
    seeds, epochs = int(random.integers(3, 7)), int(random.integers(8, 25))
    workers = int(random.choice([2, 4, 8]))
    steps = (
        int(random.integers(100, 400) / epochs) + 1 if cause == "statistics" else int(random.integers(20, 90))
    )
    statistics = "running" if cause == "statistics" or random.integers(2) else "recomputed"
    few = cause == "too few steps"
    halvings = random.uniform(1, 3) if few else random.uniform(3, 30 / workers)
    noise = random.uniform(0.03, 0.06) if cause == "noise of seeds" else random.uniform(0.001, 0.004)
    lost, flat = random.uniform(0.02, 0.15), random.uniform(1.2, 8)
    runs, curves, evaluated, headers = [], [], [], {}
    for count in (1, workers):
        changes = {"manifest_sha256": "0" * 64} if count > 1 and cause == "different data" else {}
        header = make_header(make_point(workers=count), **changes)
        for seed in range(1, seeds + 1):
            pace = (1 if few else count) * halvings / (steps * epochs)
            done = pace * steps * workers / count * (np.arange(epochs) + 0.5)
            losses = (0.05 + 0.6 * 0.5**done) * np.exp(random.normal(0, 0.015))
            iou = 0.9 - 0.8 * losses[-1]
            if count > 1 and cause == "learning rate":
                losses = np.maximum(losses, flat * losses[-1] * np.exp(random.normal(0, 0.05, epochs)))
                iou = 0.9 - 0.8 * losses[-1] - lost
            elif count > 1 and cause == "statistics":
                iou *= random.uniform(0, 0.4)
            elif count > 1 and cause in ("larger batches", "different data"):
                iou -= lost
            score = float(np.clip(iou + random.normal(0, noise), 0, 1))
            name = f"w{count}-r{seed}"
            headers[name] = header
            of = {"framework": "horovod", "workers": count, "repeat": seed, "seed": seed, "iou": score}
            speed = dict.fromkeys(("images_per_second", "epochs_per_second", "seconds_per_epoch"), 1.0)
            each = steps * workers // count
            of |= {"epochs_used": epochs, "steps_per_epoch": each, "test_images": 50, "iou_running": score}
            runs.append(Run(run=name, statistics=statistics, **of, **speed))  # type: ignore[arg-type]
            rate = 0.001 * (1 if few else count)
            curves += [
                (name, number, 8 * steps * workers, each, loss, rate) for number, loss in enumerate(losses)
            ]
            evaluated.append((name, epochs, score, 2e5, 0, 8e5, 0))
    columns = ["run", "epoch", "images", "steps", "loss", "learning_rate"]
    counts = ["run", "epochs", "iou", "true_positive", "false_positive", "true_negative", "false_negative"]
    tables = pd.DataFrame(curves, columns=columns), pd.DataFrame(evaluated, columns=counts)
    return Study("invented", run_table(runs), *tables, left_out_table([]), headers), workers


def test_a_named_cause_of_a_lower_score_is_the_true_one() -> None:
    random = np.random.default_rng(11)
    named: dict[str, list[str]] = {cause: [] for cause in RULES}
    for number in range(100):
        cause = list(RULES)[number % len(RULES)]
        study, workers = invented(cause, random)
        row = iou_table(study).to_dict("records")[-1]
        found = cause_of(study, SimpleNamespace(row=row, framework="horovod", workers=workers))  # type: ignore[arg-type]
        named[cause].append(found["rule"] if found else "")
    wrong = [(cause, rule) for cause, rules in named.items() for rule in rules if rule not in ("", cause)]
    told = sum(rule != "" for rules in named.values() for rule in rules)
    assert len(wrong) <= 0.05 * told, wrong
    assert told >= 50, named
