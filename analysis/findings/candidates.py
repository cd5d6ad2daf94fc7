"""The points of one set of options as candidates for a recommendation, and the comparisons between them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from analysis.findings.standing import (
    DIGITS,
    Criterion,
    Requirements,
    Standing,
    judge,
    missing_baselines,
    slow_baseline,
)
from analysis.study import Study
from analysis.text import Row, count, with_interval
from unet_scaling.study.config import Framework

# Of one set of options: rows of `comparison.compare` by workers, knobs of native DDP, framework compared with
# it, and knobs of that.
Comparisons = Mapping[tuple[int, str, Framework, str], Row]


@dataclass(frozen=True)
class Candidate:
    """A point with its row of all tables, its framework's name, and how it stands and why (`Judgement`)."""

    row: Row
    name: str
    standing: Standing
    criterion: Criterion
    reason: str

    @property
    def framework(self) -> Framework:
        """Framework of the point."""
        framework: Framework = self.row["framework"]
        return framework

    @property
    def workers(self) -> int:
        """Worker count of the point."""
        return int(self.row["workers"])

    @property
    def throughput(self) -> float:
        """Median throughput, in the study's unit."""
        return float(self.row["throughput"])

    @property
    def series(self) -> str:
        """The framework, and its knobs where they vary."""
        return self.name + (f" ({self.row['knobs']})" if self.row["knobs"] else "")

    @property
    def detail(self) -> str:
        """The reason with all the evidence: more than a sentence can carry."""
        return f"{self.reason} ({self.row['iou_why']})" if self.criterion == "iou" else self.reason

    @property
    def short(self) -> str:
        """The reason with its numbers, for a sentence."""
        if self.criterion != "iou" or math.isnan(self.row["difference"]):
            return self.reason
        pairs = f"{count(self.row['pairs'], 'seed')} in common"
        return f"{self.reason} (difference {self.shown('difference')}, {pairs})"

    def shown(self, column: str) -> str:
        """Return a number of the point with its interval: "0.870 [0.853, 0.890]"."""
        return with_interval(self.row, column, DIGITS)

    def __str__(self) -> str:
        return f"{self.series} on {count(self.workers, 'worker')}"


@dataclass(frozen=True)
class CandidateSet:
    """All candidates of one set of options, the largest throughput first.

    `missing` names the frameworks without a point on 1 worker.
    """

    study: Study
    candidates: Sequence[Candidate]
    comparisons: Comparisons
    missing: Sequence[str]

    @property
    def best(self) -> Candidate | None:
        """The fastest candidate that qualifies."""
        return next((candidate for candidate in self.candidates if candidate.standing == "qualifies"), None)

    @property
    def larger(self) -> list[Candidate]:
        """Those of more than 1 worker."""
        return [candidate for candidate in self.candidates if candidate.workers > 1]

    @property
    def most_workers(self) -> int:
        """Largest worker count of them."""
        return max(candidate.workers for candidate in self.candidates)

    def others(self, best: Candidate) -> list[Candidate]:
        """Return those of the other framework."""
        return [candidate for candidate in self.candidates if candidate.framework != best.framework]

    def comparison(self, one: Candidate, other: Candidate) -> Row | None:
        """Return the comparison of two frameworks' points; None where none is native, or not as large."""
        native, wrapped = (one, other) if one.framework == "pytorch_native" else (other, one)
        if one.workers != other.workers or native.framework != "pytorch_native":
            return None
        key = one.workers, native.row["knobs"], wrapped.framework, wrapped.row["knobs"]
        return self.comparisons.get(key)


def candidate_set(
    study: Study, points: pd.DataFrame, between: pd.DataFrame, comparisons: Comparisons
) -> CandidateSet:
    """Return the points of one set of options as candidates.

    `points` has the columns of `speedup.summarise`, `cost.cost_table` and `quality.iou_table`, whose `why` is
    called `iou_why` here; `between` is `quality.iou_between_frameworks`.
    """
    names = study.names
    rows: Sequence[Row] = points.to_dict("records")
    missing = missing_baselines(points, names)
    slow = slow_baseline(rows, names)
    required = Requirements(study.criteria, study.score, names, between, missing, slow)
    candidates = [Candidate(row, names[row["framework"]], **vars(judge(row, required))) for row in rows]
    candidates.sort(key=lambda candidate: -candidate.throughput)
    return CandidateSet(study, candidates, comparisons, missing)
