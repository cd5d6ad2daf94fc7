"""B against A at every point of both studies: throughput and IoU, with intervals that hold for all together.

As in the comparison of frameworks (docs/statistics.md): a bootstrap interval over launches, never narrower
than Student's t at the significance that Holm's procedure asks for. Launches of two studies are no pairs,
since nothing ties a launch of one to a launch of the other: t is Welch's, and both studies are resampled
independently. IoU is paired by seed where enough seeds agree.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats  # type: ignore[import-untyped]

from analysis.arrays import Array
from analysis.compare.facts import doubts_on_speed, why_no_difference
from analysis.compare.sides import PointMatch, StudyPoint, StudySide
from analysis.contrast import NO_DIFFERENCE, NOT_ENOUGH, WITHHELD
from analysis.iou import learning_of, seeds_of
from analysis.stats import (
    ANY,
    FEWEST_REPEATS,
    NORMAL_QUANTILES,
    RECOMMENDED_REPEATS,
    Interval,
    Launches,
    block_deviations,
    bounds,
    coverage,
    holm,
    median_intervals,
    timed,
)
from analysis.study import NAN
from analysis.text import count

A_FASTER = "A faster"
B_FASTER = "B faster"
REFUSED = "refused"
A_HIGHER = "A higher"
B_HIGHER = "B higher"
NEITHER_LEARNED = "nothing learned"
# Means of equal numbers differ by their rounding.
_ROUNDING = 1e-12
# The variance of the median of normal values over that of their mean.
_MEDIAN_OVER_MEAN = np.pi / 2
# Between two shares.
_POSSIBLE: Interval = (-1.0, 1.0)
_KEYS = ["framework", "workers", "options", "knobs"]


@dataclass(frozen=True)
class Sample:
    """One number per launch of one study, grouped into points; `deviations` are those of their blocks."""

    launches: Launches
    values: Array
    deviations: Array | None = None

    def of_points(self) -> list[Array]:
        """Return the values of each point."""
        return [self.values[self.launches.point == point] for point in range(self.launches.points)]

    def replicates(self, stream: int) -> Array:
        """Return replicates of each point's median; those of different streams are independent."""
        return self.launches.replicates(self.values, self.deviations, stream=stream)


@dataclass(frozen=True)
class Contrast:
    """B minus A at one point, before any correction for several points.

    median     difference of the medians, or median of the differences of pairs
    low, high  its bootstrap interval
    mean, error, freedom  of Student's t; unknown for fewer than 3 launches of either study
    fewest     launches of the study that has fewer, or pairs
    needed     launches of each study, or pairs, that would find such a difference in 80 % of studies
    """

    median: float = NAN
    low: float = NAN
    high: float = NAN
    mean: float = NAN
    error: float = NAN
    freedom: float = NAN
    fewest: int = 0
    needed: float = NAN


def unpaired_contrasts(a: Sample, b: Sample) -> list[Contrast]:
    """Return B minus A at each point; swapping the studies changes nothing but the sign."""
    one, other = (b.replicates(stream) - a.replicates(1 - stream) for stream in (0, 1))
    low, high = bounds(np.concatenate([one, other], axis=-1))
    samples = zip(a.of_points(), b.of_points(), strict=True)
    return list(map(_contrast, samples, zip(low.tolist(), high.tolist(), strict=True)))


def _contrast(samples: Sequence[Array], interval: Interval) -> Contrast:
    """Return the contrast of one sample of differences, or of samples of A and of B (Welch 1947)."""
    fewest = min(map(len, samples))
    medians = [float(np.median(values)) if fewest else NAN for values in samples]
    median = medians[-1] - sum(medians[:-1])
    if fewest < FEWEST_REPEATS:
        return Contrast(median, fewest=fewest)
    variances = [float(values.var(ddof=1)) for values in samples]
    squares = [variance / len(values) for variance, values in zip(variances, samples, strict=True)]
    spread = sum(square**2 / (len(values) - 1) for square, values in zip(squares, samples, strict=True))
    freedom = sum(squares) ** 2 / spread if spread > 0 else fewest - 1.0
    means = [float(values.mean()) for values in samples]
    needed = NAN
    if abs(median) > 0:
        of_normal = _MEDIAN_OVER_MEAN * sum(variances) * (NORMAL_QUANTILES / median) ** 2
        needed = float(max(fewest + 1, np.ceil(of_normal)))
    mean = means[-1] - sum(means[:-1])
    return Contrast(median, *interval, mean, sum(squares) ** 0.5, freedom, fewest, needed)


def corrected(contrasts: Sequence[Contrast], possible: Interval = ANY) -> pd.DataFrame:
    """Return low, high, p_adjusted and comparisons of each contrast, corrected by Holm for all of them.

    An interval excludes 0 only where that holds for all points together; none reaches beyond what is
    `possible`. NaN where a study has fewer than 3 launches.
    """
    names = ("low", "high", "mean", "error", "freedom")
    low, high, mean, error, freedom = np.array(
        [[getattr(each, name) for each in contrasts] for name in names], dtype=np.float64
    )
    mean = np.where(np.abs(mean) < _ROUNDING, 0.0, mean)
    with np.errstate(divide="ignore", invalid="ignore"):
        probability = np.where(mean == 0, 1.0, 2 * stats.t.sf(np.abs(mean) / error, freedom))
    known = np.flatnonzero(np.isfinite(probability))
    of_tests = np.full((3, len(probability)), NAN)
    of_tests[:, known] = holm(probability[known])
    significance, adjusted, comparisons = of_tests
    # The wider of the bootstrap and Student's t interval, on each side.
    reach = stats.t.isf(significance / 2, freedom) * error
    ends = pd.DataFrame({"low": np.minimum(low, mean - reach), "high": np.maximum(high, mean + reach)})
    return ends.clip(*possible).assign(p_adjusted=adjusted, comparisons=comparisons)


def compared_points(a: StudySide, b: StudySide, matches: Sequence[PointMatch]) -> pd.DataFrame:
    """Return one row per match: its throughputs and their ratio, and its IoU and their difference.

    Disturbed launches count only where fewer than 3 others of their point remain; then nothing is claimed.
    A difference of IoU of runs that saw other images or other masks has no meaning, and is refused.
    """
    keys = [(match.a.framework, match.a.workers, match.options, match.knobs) for match in matches]
    table = pd.DataFrame(keys, columns=_KEYS)
    if not keys:
        return table
    return pd.concat([table, _ratios(a, b, matches), _iou_differences(a, b, matches)], axis=1)


def _ratios(a: StudySide, b: StudySide, matches: Sequence[PointMatch]) -> pd.DataFrame:
    table = pd.DataFrame()
    samples = _speeds(a, [match.a for match in matches]), _speeds(b, [match.b for match in matches])
    for letter, sample in zip("ab", samples, strict=True):
        table[f"launches_{letter}"] = [len(values) for values in sample.of_points()]
        table[f"throughput_{letter}"] = sample.launches.medians(np.exp(sample.values))
    contrasts = unpaired_contrasts(*samples)
    found = corrected(contrasts)
    fewest = [contrast.fewest for contrast in contrasts]
    table["coverage"] = [coverage(launches) if launches >= FEWEST_REPEATS else NAN for launches in fewest]
    table["ratio"] = table["throughput_b"] / table["throughput_a"]
    table["ratio_low"] = np.exp(found["low"])
    table["ratio_high"] = np.exp(found["high"])
    table[["p_adjusted", "comparisons"]] = found[["p_adjusted", "comparisons"]]
    table["launches_needed"] = [contrast.needed for contrast in contrasts]
    table["doubts"] = doubts_on_speed(a, b, matches)
    rows = zip(found["low"], found["high"], fewest, table["doubts"], strict=True)
    table["outcome"] = [_speed_outcome(*row) for row in rows]
    return table


def _speeds(side: StudySide, points: Sequence[StudyPoint]) -> Sample:
    """Return the logarithms of the throughputs of the launches that count for speed."""
    numbers = {run: number for number, point in enumerate(points) for run in point.runs}
    runs = timed(side.study).runs
    runs = runs[runs["run"].isin([*numbers])]
    point = np.asarray(runs["run"].map(numbers), dtype=np.int64)
    launches = Launches(point, len(points), runs["repeat"].to_numpy(dtype=np.int64))
    values = np.log(runs[side.study.throughput].to_numpy(dtype=np.float64))
    return Sample(launches, values, block_deviations(side.study, runs["run"].to_list()))


def _speed_outcome(low: float, high: float, fewest: int, doubts: str) -> str:
    if np.isnan(low):
        return NOT_ENOUGH
    if low <= 0 <= high:
        return NO_DIFFERENCE
    if doubts:
        return WITHHELD
    faster = B_FASTER if low > 0 else A_FASTER
    return faster if fewest >= RECOMMENDED_REPEATS else f"suggests {faster}"


def _iou_differences(a: StudySide, b: StudySide, matches: Sequence[PointMatch]) -> pd.DataFrame:
    """Return seeds, medians, the difference with its interval, and the outcome of each match."""
    rows, contrasts, verdicts = [], [], []
    of_a, of_b = (_learned(side) for side in (a, b))
    for match in matches:
        seeds_a, seeds_b = _iou_by_seed(a, match.a), _iou_by_seed(b, match.b)
        common = [seed for seed in seeds_a if seed in seeds_b]
        is_paired = len(common) >= FEWEST_REPEATS
        refused = why_no_difference(a, b, match)
        contrast = Contrast()
        if is_paired and not refused:
            differences = np.array([seeds_b[seed] - seeds_a[seed] for seed in common], dtype=np.float64)
            contrast = _contrast([differences], median_intervals([differences])[0])
        elif seeds_a and seeds_b and not refused:
            (contrast,) = unpaired_contrasts(_of_seeds(seeds_a), _of_seeds(seeds_b))
        contrasts.append(contrast)
        nothing = of_a[match.a.runs] == of_b[match.b.runs] == "no"
        verdicts.append(REFUSED if refused else NEITHER_LEARNED if nothing else "")
        diverged = {"A": _diverged(a, match.a), "B": _diverged(b, match.b)}
        pairing = f"{len(common)} seeds as pairs" if is_paired else "seeds not paired"
        lost = [f"{count(runs, 'run')} of {of} diverged" for of, runs in diverged.items() if runs]
        rows.append(
            {
                "seeds_a": len(seeds_a),
                "seeds_b": len(seeds_b),
                "seeds_paired": len(common) if is_paired else 0,
                "iou_a": float(np.median([*seeds_a.values()])) if seeds_a else NAN,
                "iou_b": float(np.median([*seeds_b.values()])) if seeds_b else NAN,
                "iou_difference": contrast.median,
                "iou_remarks": refused or "; ".join([pairing, *lost]),
            }
        )
    found = corrected(contrasts, _POSSIBLE)
    ends = zip(verdicts, found["low"], found["high"], strict=True)
    return pd.DataFrame(rows).assign(
        iou_difference_low=found["low"],
        iou_difference_high=found["high"],
        iou_p_adjusted=found["p_adjusted"],
        iou_outcome=[decided or _iou_outcome(low, high) for decided, low, high in ends],
    )


def _learned(side: StudySide) -> Mapping[tuple[str, ...], str]:
    """Return whether the series of each point is shown to score more than a constant prediction."""
    found = learning_of(seeds_of(side.study), side.study.criteria.iou_margin)
    return {point.runs: own.learned for point, own in zip(side.points, found, strict=True)}


def _iou_by_seed(side: StudySide, point: StudyPoint) -> dict[int, float]:
    """Return the IoU of each run: disturbed ones learned as well as the others."""
    runs = side.study.runs
    own = runs[runs["run"].isin(point.runs) & runs["iou"].notna()]
    seeds = own["seed"].fillna(own["repeat"]).astype(int)
    return dict(zip(seeds.tolist(), own["iou"].astype(float).tolist(), strict=True))


def _of_seeds(ious: Mapping[int, float]) -> Sample:
    seeds = np.array([*ious], dtype=np.int64)
    return Sample(Launches(np.zeros(len(seeds), dtype=np.int64), 1, seeds), np.array([*ious.values()]))


def _diverged(side: StudySide, point: StudyPoint) -> int:
    runs, lost = side.study.runs, side.study.left_out
    own = runs[runs["run"] == point.runs[0]].iloc[0]
    same = lost["state"] == "diverged"
    for name in ("framework", "workers", "options", "knobs"):
        same &= lost[name] == own[name]
    return int(same.sum())


def _iou_outcome(low: float, high: float) -> str:
    if np.isnan(low):
        return NOT_ENOUGH
    if low <= 0 <= high:
        return NO_DIFFERENCE
    return B_HIGHER if low > 0 else A_HIGHER
