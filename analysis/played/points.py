"""The IoU at every number of workers, of played and of real runs, against 1 worker.

A played run trains exactly as so many workers (training.plays), so both kinds are judged alike: by the
differences to 1 worker, paired by seed, and the study's margin, as in analysis/findings/quality.py. A run
that diverged counts: training that diverges for one seed does not keep the IoU.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pandas as pd

from analysis.findings.differences import (
    Difference,
    Learning,
    MarginAnswer,
    MarginTest,
    PointSeeds,
    differences_of,
    diverged_seeds,
    evaluated,
    learning_of,
    reasons,
    seeds_of,
)
from analysis.findings.quality import against_baseline
from analysis.stats import SHARE, Interval, median_intervals
from analysis.study import NAN, POINT, SERIES, Study
from analysis.text import count

RunKind = Literal["real", "played"]
# From what a recommendation stops at to what it goes on with.
LossVerdict = Literal["diverges", "loss", "undecided", "no loss", "baseline"]
PLAYED_COLUMNS = [
    *POINT, "kind", "seeds", "test_images", "iou", "iou_low", "iou_high", "difference", "difference_low",
    "difference_high", "pairs", "diverged", "constant_iou", "learned", "margin", "verdict", "best", "why",
]  # fmt: skip
VERDICTS: Mapping[MarginAnswer, LossVerdict] = {"yes": "no loss", "no": "loss", "not shown": "undecided"}
# Medians that differ by less are one value that was summed in another order.
SAME_IOU = 1e-9


@dataclass(frozen=True)
class KindPoint:
    """The IoU of the seeds of one point, from runs of one kind."""

    kind: RunKind
    seeds: PointSeeds

    @property
    def series(self) -> tuple[str, str, str]:
        """Options, framework and knobs."""
        return self.seeds.options, self.seeds.framework, self.seeds.knobs


def played_table(study: Study) -> pd.DataFrame:
    """Return one row per point and kind of run, by series and workers: PLAYED_COLUMNS.

    No row where the study has no played run. IoU and `difference` to 1 worker are medians over seeds with
    their intervals; the runs on 1 worker are those of the same kind, and of the other kind for further seeds.
    `best`: no other set of options has a higher median at this number of workers. What is not known is NaN.
    """
    points = points_of(study)
    baselines = [baseline_of(points, point) for point in points]
    differences = differences_of([_pair(*each) for each in zip(points, baselines, strict=True)])
    intervals = median_intervals([point.seeds.values for point in points], SHARE)
    learning = learning_of(baselines, study.criteria.iou_margin)
    rows = [
        _row(study, *each) for each in zip(points, baselines, differences, intervals, learning, strict=True)
    ]
    table = pd.DataFrame(rows, columns=PLAYED_COLUMNS)
    return table.assign(best=_best(table))


def points_of(study: Study) -> list[KindPoint]:
    """Return every point of the played and the real runs, those of which every run diverged among them."""
    if study.played is None:
        return []
    points = [*_of_kind("played", study.played), *_of_kind("real", study)]
    series = list(dict.fromkeys(point.series for point in points))
    return sorted(points, key=lambda point: (series.index(point.series), point.seeds.workers, point.kind))


def _of_kind(kind: RunKind, study: Study) -> Iterator[KindPoint]:
    """Yield the points with their IoU by seed: two studies may number their repeats otherwise."""
    seeds = study.runs.set_index([*POINT, "repeat"])["seed"].to_dict()
    for point in seeds_of(study):
        key = (*_key(point),)
        by_seed = {int(seeds[(*key, repeat)]): iou for repeat, iou in point.ious.items()}
        yield KindPoint(kind, replace(point, ious=by_seed))
    yield from (KindPoint(kind, point) for point in _only_diverged(study))


def _key(point: PointSeeds) -> tuple[str, str, str, int]:
    return point.options, point.framework, point.knobs, point.workers


def _only_diverged(study: Study) -> Iterator[PointSeeds]:
    """Yield the points of which no run is left that has an IoU, since one or more diverged."""
    known = set(study.runs.set_index(POINT).index)
    lost = study.left_out[study.left_out["state"] == "diverged"]
    for point, runs in lost.groupby(POINT):
        if point not in known:
            diverged = int(runs["repeat"].nunique())
            options, framework, knobs, workers = map(str, point)
            yield PointSeeds(options, framework, knobs, int(workers), {}, NAN, diverged)


def baseline_of(points: Sequence[KindPoint], point: KindPoint) -> PointSeeds | None:
    """Return 1 worker of the same series: its runs of the same kind, and of the other for further seeds.

    A run that plays 1 worker and one that has it train alike.
    """
    alone = [each for each in points if each.series == point.series and each.seeds.workers == 1]
    own_last = sorted(alone, key=lambda each: each.kind == point.kind)
    ious = {seed: iou for each in own_last for seed, iou in each.seeds.ious.items()}
    return replace(own_last[-1].seeds, ious=ious) if ious else None


def _pair(point: KindPoint, baseline: PointSeeds | None) -> tuple[PointSeeds, PointSeeds] | None:
    return (point.seeds, baseline) if baseline and point.seeds.workers > 1 else None


def _row(
    study: Study,
    point: KindPoint,
    baseline: PointSeeds | None,
    difference: Difference,
    interval: Interval,
    learning: Learning,
) -> dict[str, object]:
    seeds = point.seeds
    low, high = difference.interval
    test = against_baseline(learning, seeds, difference)
    return {name: getattr(seeds, name) for name in (*POINT, "test_images", "diverged")} | {
        "kind": point.kind,
        "seeds": len(seeds.ious),
        "iou": float(np.median(seeds.values)) if seeds.ious else NAN,
        "iou_low": interval[0],
        "iou_high": interval[1],
        "difference": difference.median,
        "difference_low": low,
        "difference_high": high,
        "pairs": difference.pairs,
        "constant_iou": seeds.constant,
        "learned": learning.learned,
        "margin": learning.margin,
        "verdict": _verdict(seeds, test),
        "why": "; ".join(_why(study, seeds, baseline, test)),
    }


def _verdict(point: PointSeeds, test: MarginTest) -> LossVerdict:
    if point.diverged:
        return "diverges"
    return "baseline" if point.workers == 1 else VERDICTS[test.shown]


def _why(study: Study, point: PointSeeds, baseline: PointSeeds | None, test: MarginTest) -> Iterator[str]:
    """Yield what stands behind the verdict on a point."""
    if point.workers == 1:
        yield "what the others are compared with"
    elif baseline is None:
        yield "no run on 1 worker to compare with: add 1 to training.plays"
    elif point.ious:
        yield from _unpaired(point, baseline)
        yield from reasons(study, point, test)
        return
    if point.ious:
        yield evaluated(study, point)
    yield from diverged_seeds(study, test)


def _unpaired(point: PointSeeds, baseline: PointSeeds) -> Iterator[str]:
    """Yield how many seeds only one of both points has."""
    alone = baseline.ious.keys() - point.ious.keys()
    extra = point.ious.keys() - baseline.ious.keys()
    if alone:
        yield f"{len(alone)} of {count(len(baseline.ious), 'seed')} of 1 worker missing here"
    if extra:
        yield f"{len(extra)} of {count(len(point.ious), 'seed')} without a run on 1 worker"


def _best(table: pd.DataFrame) -> "pd.Series[bool]":
    """Return which rows have the highest median IoU of the sets of options with played runs, if they differ.

    A point of which a run diverged is none of them.
    """
    played = table.loc[table["kind"] == "played", "options"]
    iou = table["iou"].where((table["diverged"] == 0) & table["options"].isin(played)).astype(float)
    rivals = iou.groupby([table[name] for name in ("framework", "knobs", "workers")], sort=False)
    highest = rivals.transform("max")
    return (iou >= highest - SAME_IOU) & (highest - rivals.transform("min") > SAME_IOU)


def series_rows(table: pd.DataFrame) -> Iterator[tuple[tuple[str, str, str], pd.DataFrame]]:
    """Yield options, framework and knobs of each series with its rows, in the order of the table."""
    for (options, framework, knobs), rows in table.groupby(SERIES, sort=False):
        yield (str(options), str(framework), str(knobs)), rows
