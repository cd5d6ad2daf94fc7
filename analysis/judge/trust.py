"""How far to trust numbers: quiet machine, repeats, steadiness, fairness; as a tile, and within sentences.

Epochs that are not steady after the warm-up, and launches unlike the others of their point, only warn: no run
is left out. A warning needs a change that is significant, and one of a size that matters. Rules and measured
false-alarm rates: docs/background/statistics.md.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Literal, get_args

import numpy as np
import pandas as pd
from scipy import special  # type: ignore[import-untyped]

from analysis.numbers import stats
from analysis.numbers.check import NO, NOT_KNOWN, YES, Check, PointPair
from analysis.numbers.contrast import QUIET
from analysis.study import FEWEST_REPEATS, NAN, POINT, RECOMMENDED_REPEATS, Array, Study
from analysis.text import count, listed, number, percent
from unet_scaling.format.run_state import Exclusion

# By permutation, 7 blocks reach 0.1 % in perfect order only; of 8, two neighbours may be swapped.
_FEWEST_BLOCKS = 8
# A study has hundreds of runs: at 5 % every report would warn (false alarms: docs/background/statistics.md).
# For shifts stricter: Kolmogorov's distribution is of long series; of few blocks it is too small.
SIGNIFICANCE = {"drift": 0.001, "shift": 0.0001}
# Relative: 5 repeats resolve 3 % at best (docs/background/statistics.md); a smaller drift decides nothing.
LEAST_CHANGE = 0.02
# Relative: a launch nearer than this hardly moves the median, however quiet its point is.
LEAST_DISTANCE = 0.1
# Standard deviations (Iglewicz and Hoaglin 1993, How to Detect and Handle Outliers).
LEAST_SCORE = 3.5
# Of fewer launches two outliers set the median absolute deviation themselves.
LAUNCHES_OF_OWN_DEVIATION = 5
# Gives the factor of 3 launches to 0.5 % (two standard deviations over seeds).
NORMAL_POINTS = 100_000
# Of points of very many launches: each of them tells as much as many small ones.
MOST_NORMAL_LAUNCHES = 10_000_000
STATISTICS = ["drift", "drift_probability", "shift", "shift_probability"]


def run_steadiness(study: Study) -> pd.DataFrame:
    """Return one row per run: how the time for equal work changes over its epochs after the warm-up.

    epochs             epochs after the warm-up
    drift              relative change from the first to the last of up to 20 blocks of epochs, by
                       Theil and Sen's slope; positive is slower
    drift_probability  of such a trend in steady noise: Spearman's rank correlation with time
    shift              relative change of the median at the most likely change point
    shift_probability  of such a shift in steady noise: largest cumulative sum of deviations, by
                       Kolmogorov's distribution, with a spread from the differences of neighbours,
                       which a shift leaves alone (too small for few blocks, so judged at 0.01 %)
    size               of what is significant and matters of both; 0: nothing is
    steady             "no" where the drift has a probability below 0.1 % or the shift one below 0.01 %,
                       and a size of at least 2 %; "not checked" for fewer than 8 epochs; otherwise "yes"
    """
    names = list(study.runs["run"])
    blocks = stats.epoch_blocks(study.epochs, study.throughput, names)
    statistics = np.full((len(names), len(STATISTICS)), NAN)
    for size in np.unique(blocks.counts[blocks.counts >= _FEWEST_BLOCKS]):
        chosen = np.flatnonzero(blocks.counts == size)
        pace = np.log(blocks.seconds[chosen, :size] / blocks.work[chosen, :size])
        statistics[chosen] = np.column_stack([*_trend(pace), *_change_point(pace)])
    table = pd.DataFrame({"run": names, "epochs": blocks.epochs})
    table[STATISTICS] = statistics
    table["size"] = np.maximum(_size(table, "drift"), _size(table, "shift"))
    table["steady"] = np.where(table["size"] > 0, "no", "yes")
    table.loc[table["drift"].isna(), "steady"] = "not checked"
    return table


def _trend(pace: Array) -> tuple[Array, Array]:
    """Return the relative change over the blocks, of logarithms (runs, blocks), and its probability.

    That is how probable so strong a rank correlation with time is in steady noise.
    """
    blocks = pace.shape[-1]
    earlier, later = np.triu_indices(blocks, k=1)
    slope = np.median((pace[:, later] - pace[:, earlier]) / (later - earlier), axis=-1)
    middle = (blocks + 1) / 2
    ranks, time = (
        pd.DataFrame(pace).rank(axis="columns").to_numpy() - middle,
        np.arange(1, blocks + 1) - middle,
    )
    size = np.sqrt((ranks**2).sum(axis=-1) * (time**2).sum())
    # A run whose epochs all last equally long has no trend: its correlation is 0.
    correlation = np.divide(np.abs(ranks @ time), size, out=np.zeros(len(pace)), where=size > 0)
    half = blocks / 2 - 1
    return np.expm1(slope * (blocks - 1)), 2 * special.betainc(half, half, (1 - correlation) / 2)


def _change_point(pace: Array) -> tuple[Array, Array]:
    """Return the relative change of the median at the change point, and its probability.

    That is how probable so large a cumulative sum of deviations is in steady noise; 1 without noise.
    """
    blocks = pace.shape[-1]
    sums = np.abs(np.cumsum(pace - pace.mean(axis=-1, keepdims=True), axis=-1)[:, :-1])
    change = sums.argmax(axis=-1) + 1
    before = np.arange(blocks) < change[:, None]
    medians = [np.nanmedian(np.where(side, pace, np.nan), axis=-1) for side in (before, ~before)]
    # From the differences of neighbours, which a shift leaves alone: the mean size of a difference of two
    # normal values of deviation 1 is 2 / sqrt(pi).
    noise = np.abs(np.diff(pace, axis=-1)).mean(axis=-1) * np.sqrt(np.pi) / 2
    scaled = sums.max(axis=-1) / np.sqrt(blocks)
    ratio = np.divide(scaled, noise, out=np.zeros(len(pace)), where=noise > 0)
    return np.expm1(medians[1] - medians[0]), special.kolmogorov(ratio)


def _size(table: pd.DataFrame, change: str) -> "pd.Series[float]":
    """Return the size of a drift or shift that is significant and matters, else 0."""
    size = table[change].abs()
    shown = table[f"{change}_probability"] < SIGNIFICANCE[change]
    return size.where(shown & (size >= LEAST_CHANGE), 0.0)


def steadiness_notes(table: pd.DataFrame) -> Iterator[str]:
    """Yield by the table of `run_steadiness` how many runs are not steady, the worst one, and what to do."""
    unsteady = table[table["steady"] == "no"]
    if len(unsteady):
        worst = unsteady.sort_values("size", ascending=False, kind="stable").to_dict("records")[0]
        yield (
            f"not steady after the warm-up: {len(unsteady)} of {count(len(table), 'run')}, the worst "
            f"{worst['run']} (by {percent(worst['size'], 0)}); train more epochs, or leave out more of them "
            "as warm-up, until the rest is steady"
        )


def outlier_notes(study: Study) -> Iterator[str]:
    """Yield how many launches are far from the others of their point, and the farthest one."""
    outliers = outlying_launches(study)
    if len(outliers):
        worst = outliers.to_dict("records")[0]
        yield (
            f"far from the others of the same point: {len(outliers)} of {count(len(study.runs), 'launch')}, "
            f"the farthest {worst['run']} ({number(worst['distance'], '+.0%')} of the median throughput); "
            "kept, since only a known cause is a reason to leave a launch out"
        )


def outlying_launches(study: Study) -> pd.DataFrame:
    """Return the runs at least 10 % from the median of their point and more than 3.5 deviations from it.

    Of the launches that count for speed. Columns of study.runs, and `distance` (throughput over that median,
    minus 1), farthest first. The deviation is the usual one of the study, or the point's own if it is larger.
    Points of fewer than 3 launches have none.
    """
    runs = study.timed.runs.reset_index(drop=True)
    logs = np.log(runs[study.throughput].to_numpy(dtype=np.float64))
    groups = [members for _, members in stats.launches_of(runs, POINT).of_equal_size()]
    distances = [_distances(logs[members]) for members in groups]
    usual = _usual_deviation(distances)
    distance, score = np.full((2, len(runs)), NAN)
    for members, apart in zip(groups, distances, strict=True):
        distance[members] = np.expm1(apart)
        own = np.zeros((len(apart), 1))
        if apart.shape[-1] >= LAUNCHES_OF_OWN_DEVIATION:
            own = _absolute_deviation(apart) / _median_of_noise(apart.shape[-1], _absolute_deviation)
        with np.errstate(divide="ignore", invalid="ignore"):
            score[members] = np.abs(apart) / np.maximum(usual, own)
    outlying = (np.abs(distance) >= LEAST_DISTANCE) & (score > LEAST_SCORE)
    far: pd.DataFrame = runs.assign(distance=distance).loc[outlying]
    order = far["distance"].abs().sort_values(ascending=False, kind="stable")
    return far.loc[order.index]


def _usual_deviation(distances: Sequence[Array]) -> float:
    """Return the standard deviation of launches about their point's median, which outliers hardly move.

    `distances`: logarithms, one array (points, launches) for each number of launches. The median absolute
    deviation of 3 or 4 launches says almost nothing of their own point, so it is taken over all points; the
    launch that is the median of its point has no distance and does not count.
    """
    scaled = [
        (_drop_centre(apart) / _median_of_noise(apart.shape[-1], _drop_centre)).ravel() for apart in distances
    ]
    return float(np.median(np.concatenate(scaled))) if scaled else NAN


def _distances(values: Array) -> Array:
    return np.asarray(values - np.median(values, axis=-1, keepdims=True), dtype=np.float64)


def _drop_centre(distances: Array) -> Array:
    absolute = np.sort(np.abs(distances), axis=-1)
    return np.asarray(absolute[..., distances.shape[-1] % 2 :], dtype=np.float64)


def _absolute_deviation(distances: Array) -> Array:
    return np.asarray(np.median(np.abs(distances), axis=-1, keepdims=True), dtype=np.float64)


@cache
def _median_of_noise(launches: int, statistic: Callable[[Array], Array]) -> float:
    """Return the median of a statistic of the distances of so many launches of standard normal noise."""
    points = max(1, min(NORMAL_POINTS, MOST_NORMAL_LAUNCHES // launches))
    normal = np.random.default_rng(stats.RESAMPLING_SEED).standard_normal((points, launches))
    return float(np.median(statistic(_distances(normal))))


# none: no criterion tells what would be good.
Light = Literal["good", "caution", "bad", "unknown", "none"]
# From good to bad: the light of the tile is the worst of its reasons.
LIGHTS: Sequence[Light] = ("good", "caution", "bad")
# So many of them stand in a sentence; the tile has all.
MOST_QUALIFIERS = 2
# One epoch says nothing of how others would have been.
FEWEST_TIMED_EPOCHS = 2
UNMET = {NO: "not met", NOT_KNOWN: "not known"}
# Said with every claim of logs that do not say where they come from.
NO_PROVENANCE = "no provenance"


@dataclass(frozen=True)
class Tile:
    """One aspect of an answer: a short value, a sentence with interval and unit, a light and its reasons."""

    title: str
    value: str
    detail: str
    light: Light
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reason:
    """A light and why; `short`: what a sentence that claims something has to say of it, or nothing.

    One that is `minor` stands beside the value only where no other weighs as much. A claim that names what a
    reason is `about` says it itself.
    """

    light: Light
    text: str
    short: str = ""
    minor: bool = False
    about: str = ""

    @property
    def weight(self) -> int:
        return LIGHTS.index(self.light)


@dataclass(frozen=True)
class Trust:
    """What tells how far to trust a study: its runs, and the checks of its fairness table."""

    study: Study
    checks: Sequence[Check]

    def tile(self, options: str) -> Tile:
        """Return how far the numbers of these options may be trusted."""
        own = self._checks_of(options)
        marks = [check.mark for check in own]
        rest = [f"{marks.count(mark)} {words}" for mark, words in UNMET.items() if mark in marks]
        value = ", ".join((f"{marks.count(YES)} of {count(len(marks), 'check')} met", *rest))
        reasons = list(self._reasons(own, options))
        worst = max(reasons, key=lambda reason: reason.weight).light
        weakest = [reason for reason in reasons if reason.light == worst]
        named = [reason for reason in weakest if not reason.minor] or weakest
        others = tuple(reason.text for reason in reasons if reason not in named and reason.light != "good")
        return Tile("Trust", value, "; ".join(reason.text for reason in named), worst, others)

    def qualified(self, claim: str, options: str, pair: PointPair | None = None) -> str:
        """Return a sentence with what lowers the trust in it, the worst first, unless it says so itself.

        `pair`: the sentence is about these points alone.
        """
        warnings, unknown, remarks = self.qualifiers(claim, options, pair)
        return "; ".join((claim, *[f"caution: {', '.join(warnings)}"] * bool(warnings), *unknown, *remarks))

    def qualifiers(
        self, claim: str, options: str, pair: PointPair | None = None
    ) -> tuple[list[str], list[str], list[str]]:
        """Return what a claim has to warn of, the worst first, what is not known, and remarks of checks."""
        own = self._checks_of(options, pair)
        reasons = self._reasons(own, options)
        unmet_first = sorted(reasons, key=lambda reason: UNMET[NOT_KNOWN] in reason.short)
        worst_first = sorted(unmet_first, key=lambda reason: (-reason.weight, reason.minor))
        new = {each.short: each.light for each in worst_first if (each.about or each.short) not in claim}
        said = list(new.items())[:MOST_QUALIFIERS]
        warnings = [short for short, light in said if light != "good"]
        unknown = [short for short, light in said if light == "good"]
        remarks = [check.remark for check in own if check.remark and check.remark not in claim]
        return warnings, unknown, remarks

    def _checks_of(self, options: str, pair: PointPair | None = None) -> list[Check]:
        """Return the checks that say something of these options; one that names no points says it of all."""
        return [
            check
            for check in self.checks
            if not check.pairs
            or (pair in check.pairs if pair else any(each[0] == options for each in check.pairs))
        ]

    def _reasons(self, checks: Sequence[Check], options: str) -> Iterator[Reason]:
        runs = self.study.runs[self.study.runs["options"] == options]
        quiet = [_unmet(check) for check in checks if check.check == QUIET and check.mark != YES]
        good = Reason("good", "machine quiet at these points", minor=True)
        yield max(quiet, key=lambda reason: reason.weight, default=good)
        if missing := runs_to_come(self.study, options):
            told = count(missing, "run")
            yield Reason("caution", f"{told} of the study did not complete", f"{told} incomplete")
        yield from _unfair(checks)
        steady = self.steadiness.loc[self.steadiness["run"].isin(runs["run"]), "steady"]
        yield _steady(steady, int(runs["epochs_used"].min()))
        fewest = int(runs.groupby(["framework", "knobs", "workers"]).size().min())
        light: Light = "good" if fewest >= RECOMMENDED_REPEATS else "caution"
        needed = f"{FEWEST_REPEATS} are needed, {RECOMMENDED_REPEATS} recommended"
        repeats = count(fewest, "repeat")
        yield Reason(
            light if fewest >= FEWEST_REPEATS else "bad",
            f"{repeats} at the point with the fewest: {needed}",
            "" if light == "good" else repeats,
        )

    @cached_property
    def steadiness(self) -> pd.DataFrame:
        """How steady each run is, the table of `run_steadiness`."""
        return run_steadiness(self.study)


class TrustOfLogs(Trust):
    """The same of logs and tables, which do not say which code, data and machine they are of."""

    def tile(self, options: str) -> Tile:
        """Return the tile of records, with what logs lack instead of what is weakest."""
        *_, repeats = self._reasons(self._checks_of(options), options)
        detail = "nothing says which code, machine and data these numbers are of"
        return replace(super().tile(options), detail=detail, light="unknown", reasons=(repeats.text,))

    def qualifiers(
        self,
        claim: str,
        options: str,  # noqa: ARG002
        pair: PointPair | None = None,  # noqa: ARG002
    ) -> tuple[list[str], list[str], list[str]]:
        """Return what logs lack, unless the claim says so itself."""
        return [NO_PROVENANCE] * (NO_PROVENANCE not in claim), [], []


def _unmet(check: Check) -> Reason:
    lacks = "known of one framework only" if check.one_sided and check.pairs else UNMET[check.mark]
    short = f'check "{check.title}" {lacks}'
    text = f"{check.title}: {check.mark}: {check.fact}"
    about = check.title
    if check.check == QUIET:
        about = "quiet"
        short = "the machine was not quiet" if check.mark == NO else short
    return Reason("bad" if check.withholds else "caution", text, short, about=about)


def runs_to_come(study: Study, options: str | None = None) -> int:
    """Return how many runs, by default of all options, did not complete: what is seen before may not last."""
    settled = (*get_args(Exclusion), "diverged")
    left = study.left_out
    own = left["options"].isin(["", options]) if options is not None else True
    return int((~left["state"].isin(settled) & own).sum())


def _unfair(checks: Sequence[Check]) -> Iterator[Reason]:
    unmet = [check for check in checks if (check.mark == NO or check.one_sided) and check.check != QUIET]
    yield from map(_unmet, unmet)
    if unmet:
        return
    unknown = [check.title for check in checks if check.mark == NOT_KNOWN and not check.one_sided]
    rest = f"; not known: {listed(unknown)}" if unknown else ""
    few = f"{count(len(unknown), 'check')} not known" if unknown else ""
    yield Reason("good", f"every fairness check that the records can answer is met{rest}", few, minor=True)


def _steady(steady: "pd.Series[str]", fewest_epochs: int) -> Reason:
    runs = count(len(steady), "run")
    unsteady = int((steady == "no").sum())
    short = int((steady == "not checked").sum())
    if unsteady:
        text = f"{unsteady} of {runs} not steady"
        return Reason("caution", f"{text} after the warm-up", text)
    if short and fewest_epochs < FEWEST_TIMED_EPOCHS:
        return Reason("caution", f"some of {runs} have one timed epoch", "one epoch timed", minor=True)
    if short:
        # Nothing was found against these runs: short ones are usual, and their launches show the spread.
        return Reason("good", f"{short} of {runs} too short to be checked for drift", minor=True)
    return Reason("good", f"{runs}, all steady after the warm-up")
