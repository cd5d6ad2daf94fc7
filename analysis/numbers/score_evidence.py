"""Whether scores can be judged at all: enough training, something learned, and a test set that can tell.

A difference near 0 is no proof of quality where no training could have shown another. "Not judged" is an
answer: the study then says which framework is faster, and what a study of the score needs.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pandas as pd

from analysis.numbers import stats
from analysis.study import FEWEST_REPEATS, NAN, POINT, RUNNING, SERIES, Array
from unet_scaling.study.options import FEWEST_JUDGED_STEPS, FEWEST_TEST_SAMPLES

# In so many more a score that rises faster than another could catch up with it.
EPOCHS_TO_COME = 10
# Why a score is not judged.
UnjudgedReason = Literal[
    "direction", "steps", "constant", "perfect", "learned", "samples", "sampling", "rising"
]
# Longer training cures the first, more test images the second.
_OF_TRAINING: Collection[UnjudgedReason] = ("steps", "learned", "rising")
_OF_TEST_SET: Collection[UnjudgedReason] = ("samples", "sampling")


@dataclass(frozen=True)
class ScoreEvidence:
    """What stands behind the scores of a point: medians over its runs; what is not known is NaN.

    steps        of the optimizer in a whole training, and `epoch_steps` in an epoch
    rise         of the score in an epoch, by the last two evaluations
    fallen       best score of a run's evaluations less the last one
    running      score with the statistics of norm layers that training left; `statistics`: which are judged
    is_constant  whether every evaluation of every run of the series has one score
    images       IoU of each test image, by seed
    """

    steps: float = NAN
    epoch_steps: float = NAN
    rise: float = NAN
    fallen: float = NAN
    running: float = NAN
    statistics: str = ""
    is_constant: bool = False
    images: Mapping[int, Array] = field(default_factory=dict)

    @property
    def is_short(self) -> bool:
        """Whether the training has too few steps to say what more workers cost."""
        return self.steps < FEWEST_JUDGED_STEPS

    @property
    def epochs_needed(self) -> float:
        """How many epochs have enough steps."""
        return math.ceil(FEWEST_JUDGED_STEPS / self.epoch_steps) if self.epoch_steps > 0 else NAN


def trained_of(
    evaluations: pd.DataFrame, runs: pd.DataFrame, image_ious: Mapping[str, Array]
) -> dict[tuple[Any, ...], ScoreEvidence]:
    """Return what stands behind the scores of each point, by POINT."""
    evaluations = evaluations.assign(run=evaluations["run"].astype(str))
    of_run = evaluations.groupby("run")
    change = evaluations[["epochs", "iou"]].astype(float)
    change -= of_run[["epochs", "iou"]].shift()
    found = {
        "epochs": of_run["epochs"].last(),
        "rise": (change["iou"] / change["epochs"]).groupby(evaluations["run"]).last(),
        "fallen": of_run["iou"].max() - of_run["iou"].last(),
    }
    mapped = {name: runs["run"].map(values).astype(float) for name, values in found.items()}
    runs = runs.assign(**mapped, seed=runs["seed"].fillna(runs["repeat"]).astype(int))
    runs["steps"] = runs["epochs"] * runs["steps_per_epoch"]
    scores = evaluations.merge(runs[["run", *SERIES]], on="run").groupby(SERIES)
    constant = (scores["iou"].nunique() == 1) & (scores["run"].nunique() >= FEWEST_REPEATS)
    trained = {}
    for key, own in runs.groupby(POINT, sort=False):
        medians = own[["steps", "steps_per_epoch", "rise", "fallen", "iou_running"]].astype(float).median()
        of_runs = zip(own["seed"], own["run"], strict=True)
        trained[key] = ScoreEvidence(
            steps=medians["steps"],
            epoch_steps=medians["steps_per_epoch"],
            rise=medians["rise"],
            fallen=medians["fallen"],
            running=medians["iou_running"],
            statistics=str(own["statistics"].iloc[-1]),
            is_constant=bool(constant.get(key[:-1], default=False)),
            images={seed: image_ious[run] for seed, run in of_runs if run in image_ious},
        )
    return trained


def why_not_judged(one: Any, other: Any, learned: str, margin: float) -> tuple[UnjudgedReason, ...]:  # noqa: ANN401, of iou.py
    """Return all reasons for which the scores of two points cannot be compared; both are a `PointSeeds`."""
    both = one.trained, other.trained
    rules: dict[UnjudgedReason, bool] = {
        "steps": any(each.is_short for each in both),
        "perfect": bool({*one.ious.values(), *other.ious.values()} == {1.0}),
        "constant": one.trained.is_constant and other.trained.is_constant,
        "learned": learned == "no",
        "samples": one.test_images < FEWEST_TEST_SAMPLES,
        "sampling": sampling_error(*both) > margin,
        "rising": any(each.rise > margin for each in both),
    }
    reasons = tuple(reason for reason, applies in rules.items() if applies)
    return () if _is_plain_loss(one, other, reasons, margin) else reasons


def _is_plain_loss(one: Any, other: Any, reasons: Collection[str], margin: float) -> bool:  # noqa: ANN401, as above
    """Return whether the whole interval of the loss is above what the reasons leave open: it is judged."""
    lost = [other.ious[seed] - one.ious[seed] for seed in one.ious if seed in other.ious]
    if not reasons or len(lost) < FEWEST_REPEATS:
        return False
    (contrast,) = stats.contrasts_of([np.array(lost, dtype=np.float64)])
    is_settled = one.trained.statistics != RUNNING and not other.trained.is_short
    catches_up = max(one.trained.rise - other.trained.rise, 0.0)
    left_open = {
        "steps": 0 if is_settled else math.inf,
        "sampling": 2 * sampling_error(one.trained, other.trained),
        # Of few steps the rise is a part: both are what more workers cost in as many epochs.
        "rising": 0 if one.trained.is_short else EPOCHS_TO_COME * catches_up,
    }
    return all(contrast["low"] > margin + left_open.get(reason, math.inf) for reason in reasons)


def named(reasons: Sequence[UnjudgedReason]) -> list[UnjudgedReason]:
    """Return the first reason, and the first with another cure, which a longer training alone is not."""
    for own, others in ((_OF_TRAINING, _OF_TEST_SET), (_OF_TEST_SET, _OF_TRAINING)):
        if reasons and reasons[0] in own:
            return [reasons[0], *[reason for reason in reasons if reason in others][:1]]
    return [*reasons[:1]]


def sampling_error(one: ScoreEvidence, other: ScoreEvidence) -> float:
    """Return the standard error over the test images of a difference, mean over seeds; NaN: not known."""
    common = [one.images[seed] - other.images[seed] for seed in one.images if seed in other.images]
    if not common:
        return NAN
    # An image without foreground in mask and prediction has no IoU.
    known = pd.DataFrame(common).mean().dropna()
    return float(known.std() / np.sqrt(len(known))) if len(known) else NAN
