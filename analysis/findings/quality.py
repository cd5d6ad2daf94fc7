"""IoU on more workers: against 1 worker of the same framework, and native DDP against Horovod.

Both are questions about differences of IoU paired by repeat: the launches of a repeat share seed, initial
weights and test images. A point is not inferior where the whole interval of the median difference lies
above -margin, and inferior where it lies below -margin; two frameworks are equal within the margin where it
lies inside (-margin, margin). A difference that is "not significant" answers neither, so everything else is
"not shown" (the interval form of a non-inferiority test and of two one-sided tests of equivalence:
Schuirmann 1987, J. Pharmacokinet. Biopharm. 15, 657). Few seeds promise less than the nominal interval, and
`why` says how much. Scores that a constant prediction reaches answer neither, and the margin is at most a
share of what was learned beyond it (differences.py).
"""

from collections.abc import Iterator, Sequence

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
from analysis.stats import SHARE, Interval, median_intervals
from analysis.study import POINT, Study

_DIFFERENCE_COLUMNS = ["difference", "difference_low", "difference_high"]
IOU_COLUMNS = [
    *POINT, "seeds", "test_images", "iou", "iou_low", "iou_high", *_DIFFERENCE_COLUMNS, "pairs", "diverged",
    "constant_iou", "learned", "margin", "non_inferior", "why",
]  # fmt: skip
BETWEEN_COLUMNS = [
    "options", "native_knobs", "horovod_knobs", "workers", "pairs", *_DIFFERENCE_COLUMNS,
    "margin", "equal_within_margin", "why",
]  # fmt: skip

_Cells = dict[str, object]


def iou_table(study: Study) -> pd.DataFrame:
    """Return one row per point, in the order of the study's runs: IOU_COLUMNS.

    IoU and differences are shares from 0 to 1, medians over seeds with 95 % intervals (the confidence that
    few seeds allow stands in `why`). `difference` is IoU minus that on 1 worker, paired by repeat; `pairs`
    counts the repeats that both have, `diverged` the point's diverged runs, of which one forbids a "yes".
    `constant_iou` is what the best constant prediction scores, `learned` ("yes", "no", "not known") whether
    1 worker of the series scores more, `margin` the one used. `non_inferior` is "baseline", "yes", "no" or
    "not shown". What is not known is NaN.
    """
    points = seeds_of(study)
    of_one = {_series(point): point for point in points if point.workers == 1}
    baselines = [of_one.get(_series(point)) for point in points]
    differences = _differences_from_baseline(points, baselines, known=study.provenance_known)
    intervals = median_intervals([point.values for point in points], SHARE)
    learning = learning_of(baselines, study.criteria.iou_margin)
    rows = [
        _point(study, *row) for row in zip(points, baselines, differences, intervals, learning, strict=True)
    ]
    return pd.DataFrame(rows, columns=IOU_COLUMNS)


def _differences_from_baseline(
    points: Sequence[PointSeeds], baselines: Sequence[PointSeeds | None], *, known: bool
) -> list[Difference]:
    pairs = zip(points, baselines, strict=True)
    return differences_of([
        (point, baseline) if baseline and point.workers != 1 and known else None for point, baseline in pairs
    ])  # fmt: skip


def iou_between_frameworks(study: Study) -> pd.DataFrame:
    """Return one row per options, knobs of both frameworks and common worker count: BETWEEN_COLUMNS.

    The difference is IoU of native DDP minus IoU of Horovod, paired by repeat, with the margin of the study.
    `equal_within_margin` is "yes", "no" or "not shown".
    """
    pairs = list(_opposite_points(seeds_of(study)))
    differences = differences_of([pair if study.provenance_known else None for pair in pairs])
    better = [max(pair, key=lambda point: np.median(point.values)) for pair in pairs]
    learning = learning_of(better, study.criteria.iou_margin)
    rows = [
        _between(study, *pair, difference, learned)
        for pair, difference, learned in zip(pairs, differences, learning, strict=True)
    ]
    return pd.DataFrame(rows, columns=BETWEEN_COLUMNS)


def _series(point: PointSeeds) -> tuple[str, str, str]:
    return point.options, point.framework, point.knobs


def _point(
    study: Study,
    point: PointSeeds,
    baseline: PointSeeds | None,
    difference: Difference,
    interval: Interval,
    learning: Learning,
) -> _Cells:
    test = against_baseline(learning, point, difference)
    low, high = interval
    cells: _Cells = {
        **{name: getattr(point, name) for name in (*POINT, "test_images", "diverged")},
        "seeds": len(point.ious),
        "iou": float(np.median(point.values)),
        "iou_low": low,
        "iou_high": high,
        "constant_iou": point.constant,
        "learned": learning.learned,
        "margin": learning.margin,
        "non_inferior": "baseline" if point.workers == 1 else test.shown,
        "why": "; ".join(_why(study, point, baseline, test)),
    }
    return cells | _difference_cells(difference)


def _difference_cells(difference: Difference) -> _Cells:
    low, high = difference.interval
    values = (difference.median, low, high)
    return {"pairs": difference.pairs, **dict(zip(_DIFFERENCE_COLUMNS, values, strict=True))}


def against_baseline(learning: Learning, point: PointSeeds, difference: Difference) -> MarginTest:
    """Return whether a point, by its difference to 1 worker, is not inferior to what that learned."""
    low, high = difference.interval
    margin = learning.margin
    answer: MarginAnswer = "yes" if low > -margin else "no" if high < -margin else "not shown"
    return MarginTest(difference, answer, learning, {"this point": point.diverged})


def _between(
    study: Study, native: PointSeeds, horovod: PointSeeds, difference: Difference, learning: Learning
) -> _Cells:
    diverged = {"native DDP": native.diverged, "Horovod": horovod.diverged}
    test = _against_each_other(learning, difference, diverged)
    cells: _Cells = {
        "options": native.options,
        "native_knobs": native.knobs,
        "horovod_knobs": horovod.knobs,
        "workers": native.workers,
        "margin": learning.margin,
        "equal_within_margin": test.shown,
        "why": "; ".join(reasons(study, native, test)),
    }
    return cells | _difference_cells(difference)


def _against_each_other(learning: Learning, difference: Difference, diverged: dict[str, int]) -> MarginTest:
    low, high = difference.interval
    margin = learning.margin
    inside = -margin < low and high < margin
    outside = low > margin or high < -margin
    answer: MarginAnswer = "yes" if inside else "no" if outside else "not shown"
    return MarginTest(difference, answer, learning, diverged)


def _opposite_points(points: list[PointSeeds]) -> Iterator[tuple[PointSeeds, PointSeeds]]:
    """Yield every point of native DDP with every point of Horovod of the same options and worker count."""
    horovod: dict[tuple[str, int], list[PointSeeds]] = {}
    for point in points:
        if point.framework == "horovod":
            horovod.setdefault((point.options, point.workers), []).append(point)
    for point in points:
        if point.framework == "pytorch_native":
            for other in horovod.get((point.options, point.workers), []):
                yield point, other


def _why(study: Study, point: PointSeeds, baseline: PointSeeds | None, test: MarginTest) -> Iterator[str]:
    """Yield what stands behind the answer for a point."""
    if point.workers == 1:
        yield "what the others are compared with"
    elif baseline is None and study.provenance_known:
        yield "no run on 1 worker to compare with: run this series on 1 worker"
    else:
        yield from reasons(study, point, test)
        return
    yield evaluated(study, point)
    yield from diverged_seeds(study, test)
