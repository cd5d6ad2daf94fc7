"""Why a score on several workers lies below that on 1 worker, as rules over what the records say.

The training loss tells training that went worse from a score that is worse for its loss. It is compared after
as many images, and after as many optimizer steps: what 1 worker has after as few steps is no sign of a bad
learning rate. At most one cause is named, and none where the figures do not tell two from each other.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.judge.decide import SCORE_LOST, Candidate
from analysis.numbers.iou import PointSeeds, seeds_of
from analysis.study import NAN, POINT, RUNNING, Study
from analysis.text import lines
from unet_scaling.format.record_lines import Header

# Relative: losses of one training with two seeds differ by some per cent.
EQUAL_LOSS = 0.05
# Averages with a momentum of 0.1 reach back some 44 steps: of 10 times as many they are of the late weights.
SETTLED_STEPS = 440
# Statistics that do not fit the weights spoil a prediction; no batch size is known to halve a score.
SPOILED_SCORE = 0.5


@dataclass(frozen=True)
class ScoreFacts:
    """A point with a lower score beside 1 worker of its series.

    seeds     a row for each seed of both: `difference` of the score, `images` and `steps`: its last loss over
              that of 1 worker after as many of them, `late`: its loss in the last third of the epochs over
              that in the third before, and `rate`: its largest learning rate over that of 1 worker; what is
              not known is NaN
    is_shown  whether the interval of the difference excludes 0
    is_larger_batch  whether more workers mean larger batches: gradients are averaged at every step
    is_other_data  whether both were trained or tested on other images
    """

    point: PointSeeds
    alone: PointSeeds
    seeds: pd.DataFrame
    is_shown: bool
    is_larger_batch: bool
    is_other_data: bool

    def is_higher(self, after: str) -> bool:
        """Return whether its loss is higher after as many, for each seed, and by more than seeds differ."""
        return bool(self.seeds[after].median() > 1 + EQUAL_LOSS and (self.seeds[after] > 1).all())

    def is_equal(self, after: str) -> bool:
        """Return whether its loss is no higher after as many."""
        return bool(self.seeds[after].median() <= 1 + EQUAL_LOSS)

    @property
    def is_settled(self) -> bool:
        """Whether its statistics of norm layers fit its weights."""
        return self.point.trained.statistics != RUNNING or self.point.trained.steps >= SETTLED_STEPS

    @property
    def is_spoiled(self) -> bool:
        """Whether its score is a small part of that of 1 worker."""
        return self.point.score < SPOILED_SCORE * self.alone.score


def _is_rate(facts: ScoreFacts) -> bool:
    is_worse = facts.is_higher("steps") or facts.seeds["late"].median() > 1 - EQUAL_LOSS
    return bool(facts.is_higher("images") and is_worse and facts.seeds["rate"].median() > 1)


def _is_short(facts: ScoreFacts) -> bool:
    still_falls = facts.seeds["late"].median() < 1 - 2 * EQUAL_LOSS
    return bool(facts.is_higher("images") and facts.is_equal("steps") and still_falls)


# The first that applies is named.
RULES: Mapping[str, Callable[[ScoreFacts], bool]] = {
    "different data": lambda facts: facts.is_other_data,
    "learning rate": _is_rate,
    "too few steps": _is_short,
    "noise of seeds": lambda facts: (
        facts.is_equal("images") and not facts.is_shown and bool((facts.seeds["difference"] >= 0).any())
    ),
    "statistics": lambda facts: facts.is_equal("images") and not facts.is_settled and facts.is_spoiled,
    "larger batches": lambda facts: (
        facts.is_equal("images")
        and facts.is_settled
        and facts.is_shown
        and facts.is_larger_batch
        and not facts.is_spoiled
    ),
}


def cause_of(study: Study, candidate: Candidate) -> dict[str, str] | None:
    """Return why the score of a point is lower than on 1 worker: rule, finding, evidence and try_next.

    None where no rule applies, or where it is not lower by more than the margin.
    """
    row = candidate.row
    is_lower = row["non_inferior"] == "not shown" and row["difference"] < -row["margin"]
    if not (is_lower or row["non_inferior"] in SCORE_LOST) or not study.headers:
        return None
    points = {(*point.series, point.workers): point for point in seeds_of(study)}
    series = row["options"], candidate.framework, row["knobs"]
    is_shown = not row["difference_low"] < 0 < row["difference_high"]
    facts = score_facts(
        study.runs,
        study.epochs,
        study.headers,
        points[*series, candidate.workers],
        points[*series, 1],
        is_shown,
    )
    rule = next((name for name, applies in RULES.items() if applies(facts)), "")
    said = lines("iou_causes", rule=rule, facts=facts, title=study.score.title)
    return (
        dict(zip(("rule", "finding", "evidence", "try_next"), (rule, *said), strict=True)) if rule else None
    )


def score_facts(
    runs: pd.DataFrame,
    epochs: pd.DataFrame,
    headers: Mapping[str, Header],
    point: PointSeeds,
    alone: PointSeeds,
    is_shown: bool,
) -> ScoreFacts:
    """Return what the rules look at, of the seeds that both points have."""
    runs = runs.assign(seed=runs["seed"].fillna(runs["repeat"]).astype(int))
    of_points: dict[Any, pd.DataFrame] = dict(iter(runs.groupby(POINT)))
    own, base = (of_points[*each.series, each.workers].set_index("seed")["run"] for each in (point, alone))
    epochs_of = dict(iter(epochs.groupby(epochs["run"].astype(str))))
    rows = []
    for seed in own.index.intersection(base.index):
        one, other = (epochs_of[of[seed]].sort_values("epoch") for of in (own, base))
        thirds = np.array_split(one["loss"].to_numpy(float), 3)
        rows.append({
            "difference": point.ious[seed] - alone.ious[seed],
            "images": _loss_ratio(one, other, "images"),
            "steps": _loss_ratio(one, other, "steps"),
            "late": thirds[2].mean() / thirds[1].mean() if len(one) >= len(thirds) else NAN,
            "rate": one["learning_rate"].max() / other["learning_rate"].max(),
        })  # fmt: skip
    data = [
        {(header.manifest_sha256, header.train_images, header.test_images)
         for header in map(headers.__getitem__, of)}
        for of in (own, base)
    ]  # fmt: skip
    is_larger_batch = headers[own.iloc[0]].config.strategy.averages_gradients
    return ScoreFacts(point, alone, pd.DataFrame(rows), is_shown, is_larger_batch, data[0] != data[1])


def _loss_ratio(curve: pd.DataFrame, alone: pd.DataFrame, column: str) -> float:
    """Return the last loss over that of 1 worker at the same sum of a column; NaN where that has none.

    The loss of an epoch is the mean over it, so that it stands for the middle of it.
    """
    own, other = ((each[column].cumsum() - each[column] / 2).to_numpy(float) for each in (curve, alone))
    # Epochs on several workers drop some images of the last batches.
    if own[-1] < other[0] or own[-1] > other[-1] * (1 + EQUAL_LOSS):
        return NAN
    return float(curve["loss"].iloc[-1] / np.interp(own[-1], other, alone["loss"].to_numpy(float)))
