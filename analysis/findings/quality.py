"""What more workers cost in IoU: against 1 worker of the same framework, and DDP against Horovod.

Both are questions about differences of IoU paired by repeat: the launches of a repeat share seed, initial
weights and test images. A point is not inferior where the whole interval of the median difference lies
above -margin, and inferior where it lies below -margin; two frameworks are equal within the margin where it
lies inside (-margin, margin). A difference that is "not significant" answers neither, so everything else is
"not shown" (the interval form of a non-inferiority test and of two one-sided tests of equivalence:
Schuirmann 1987, J. Pharmacokinet. Biopharm. 15, 657). Few seeds promise less than the nominal interval, and
`why` says how much.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
import pandas as pd

from analysis.findings.differences import (
    Answer,
    Difference,
    Finding,
    PointSeeds,
    differences_of,
    evaluated,
    lost_seeds,
    reasons,
    seeds_of,
)
from analysis.statistics.intervals import SHARE, Interval, median_intervals
from analysis.study import Study


@dataclass(frozen=True)
class PointQuality:
    """IoU of one point over its seeds; `difference` is to the same series on 1 worker."""

    options: str
    framework: str
    knobs: str
    workers: int
    seeds: int
    test_images: float
    iou: float
    iou_low: float
    iou_high: float
    difference: float
    difference_low: float
    difference_high: float
    pairs: int
    diverged: int
    non_inferior: Literal["baseline", "yes", "no", "not shown"]
    why: str


@dataclass(frozen=True)
class FrameworkQuality:
    """IoU of native DDP minus that of Horovod on equally many workers."""

    options: str
    native_knobs: str
    horovod_knobs: str
    workers: int
    pairs: int
    difference: float
    difference_low: float
    difference_high: float
    equal_within_margin: Answer
    why: str


def iou_table(study: Study) -> pd.DataFrame:
    """One row per point, as `PointQuality`, in the order of the study's runs.

    IoU and differences are shares from 0 to 1, medians over seeds with 95 % intervals (what an interval of
    few seeds is worth stands in `why`). `difference` is IoU minus that on 1 worker, paired by repeat; `pairs`
    counts the repeats that both have, `diverged` the point's diverged runs, of which one forbids a "yes".
    What is not known is NaN.
    """
    points = seeds_of(study)
    of_one = {(each.options, each.framework, each.knobs): each for each in points if each.workers == 1}
    baselines = [of_one.get((each.options, each.framework, each.knobs)) for each in points]
    differences = differences_of(
        [
            (point, baseline) if baseline and point.workers != 1 and study.provenance_known else None
            for point, baseline in zip(points, baselines, strict=True)
        ]
    )
    intervals = median_intervals([each.values for each in points], SHARE)
    rows = [_point(study, *each) for each in zip(points, baselines, differences, intervals, strict=True)]
    return pd.DataFrame([asdict(row) for row in rows], columns=list(PointQuality.__dataclass_fields__))


def iou_between_frameworks(study: Study) -> pd.DataFrame:
    """One row per options, knobs of both frameworks and common worker count, as `FrameworkQuality`.

    The difference is IoU of native DDP minus IoU of Horovod, paired by repeat, with the margin of the study.
    """
    pairs = list(_opposite_points(seeds_of(study)))
    differences = differences_of([pair if study.provenance_known else None for pair in pairs])
    rows = [_between(study, *pair, difference) for pair, difference in zip(pairs, differences, strict=True)]
    return pd.DataFrame([asdict(row) for row in rows], columns=list(FrameworkQuality.__dataclass_fields__))


def _point(
    study: Study, point: PointSeeds, baseline: PointSeeds | None, difference: Difference, interval: Interval
) -> PointQuality:
    finding = _against_baseline(study, point, difference)
    return PointQuality(
        options=point.options,
        framework=point.framework,
        knobs=point.knobs,
        workers=point.workers,
        seeds=len(point.ious),
        test_images=point.test_images,
        iou=float(np.median(point.values)),
        iou_low=interval[0],
        iou_high=interval[1],
        difference=difference.median,
        difference_low=difference.interval[0],
        difference_high=difference.interval[1],
        pairs=difference.pairs,
        diverged=point.diverged,
        non_inferior="baseline" if point.workers == 1 else finding.shown,
        why="; ".join(_why(study, point, baseline, finding)),
    )


def _against_baseline(study: Study, point: PointSeeds, difference: Difference) -> Finding:
    margin = study.criteria.iou_margin
    low, high = difference.interval
    answer: Answer = "yes" if low > -margin else "no" if high < -margin else "not shown"
    return Finding(difference, answer, margin + difference.median, {"this point": point.diverged})


def _between(
    study: Study, native: PointSeeds, horovod: PointSeeds, difference: Difference
) -> FrameworkQuality:
    lost = {"native DDP": native.diverged, "Horovod": horovod.diverged}
    finding = _against_each_other(study, difference, lost)
    return FrameworkQuality(
        options=native.options,
        native_knobs=native.knobs,
        horovod_knobs=horovod.knobs,
        workers=native.workers,
        pairs=difference.pairs,
        difference=difference.median,
        difference_low=difference.interval[0],
        difference_high=difference.interval[1],
        equal_within_margin=finding.shown,
        why="; ".join(reasons(study, native, finding)),
    )


def _against_each_other(study: Study, difference: Difference, lost: dict[str, int]) -> Finding:
    margin = study.criteria.iou_margin
    low, high = difference.interval
    inside, outside = -margin < low and high < margin, low > margin or high < -margin
    answer: Answer = "yes" if inside else "no" if outside else "not shown"
    return Finding(difference, answer, margin - abs(difference.median), lost)


def _opposite_points(points: list[PointSeeds]) -> Iterator[tuple[PointSeeds, PointSeeds]]:
    """Every point of native DDP with every point of Horovod of the same options and worker count."""
    horovod: dict[tuple[str, int], list[PointSeeds]] = {}
    for point in points:
        if point.framework == "horovod":
            horovod.setdefault((point.options, point.workers), []).append(point)
    for point in points:
        if point.framework == "pytorch_native":
            for other in horovod.get((point.options, point.workers), []):
                yield point, other


def _why(study: Study, point: PointSeeds, baseline: PointSeeds | None, finding: Finding) -> Iterator[str]:
    """What stands behind the answer for a point."""
    if point.workers == 1:
        yield "what the others are compared with"
    elif baseline is None and study.provenance_known:
        yield "no run on 1 worker to compare with: run this series on 1 worker"
    else:
        yield from reasons(study, point, finding)
        return
    yield evaluated(study, point)
    yield from lost_seeds(finding)
