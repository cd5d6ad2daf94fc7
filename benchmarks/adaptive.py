"""Studies that get repeats after a look at their results: how often their intervals hold the truth then."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from analysis.contrast import FASTER, SUGGESTED, compare
from analysis.findings.precision import half_widths
from analysis.study import Study
from benchmarks.simulation import SIMULATION_SEED, Noise, simulate
from unet_scaling.study.repeats import (
    ADAPTIVE_SIGNIFICANCE,
    EARLY_SIGNIFICANCE,
    FEWEST_ADAPTIVE_REPEATS,
    FIXED_SIGNIFICANCE,
    MOST_ADAPTIVE_REPEATS,
    RepeatHistory,
    stopping_rule,
)

ADAPTIVE_RATIO = 1.03
# Over the noise of a pair, that of a launch times the root of 2; least is covered between 0.6 and 0.8.
WIDTHS_OF_A_PAIR = (0.6, 0.75, 0.9)
NOISES = (Noise(0, 0.02, 0, 2), Noise(0.05, 0.05, 0.02, 5), Noise(0.02, 0.03, 0, 2, "skewed"))
ONE_COUNT, TWO_COUNTS = (4,), (1, 4)
# The repeats at each look of a user who adds some while no framework is called faster.
TOTALS_BY_HAND = ((5, 8, 11, 14), (3, 6, 9, 12), tuple(range(5, 15)))
# Of these looks the table has a line, as it ends after so many at most.
LOOKS_SHOWN = (1, 2, 4, 10)


@dataclass(frozen=True)
class Outcome:
    """What is so when studies end: percent of intervals that hold the truth, of studies that call a framework
    faster, or suggest it; and the mean of their repeats.
    """

    covered: float
    claimed: float
    repeats: float


def looks(
    study: Study, totals: Sequence[int], significances: Sequence[float], truth: float, narrow: float = 0.0
) -> pd.DataFrame:
    """Return what each simulated study, an `options` of `study`, shows after each of these totals of repeats.

    Columns: options, look, repeats, holds (its interval holds the truth), claimed (at any worker count),
    widest (half the width of its widest interval over the ratio). One row per study, look and worker count.
    Nobody looks again at studies whose intervals are all as `narrow` as this.
    """
    tables = []
    runs = study.runs
    for look, (total, significance) in enumerate(zip(totals, significances, strict=True), start=1):
        _print_progress(f"look {look} of {len(totals)}, {runs['options'].nunique()} studies")
        so_far = replace(study, runs=runs[runs["repeat"] <= total], significance=significance)
        seen = _seen(compare(so_far, family=["options"]), truth)
        tables.append(seen.assign(look=look, repeats=total))
        runs = runs[~runs["options"].isin(seen.loc[seen["widest"] <= narrow, "options"])]
        if runs.empty:
            break
    return pd.concat(tables)


def _seen(compared: pd.DataFrame, truth: float) -> pd.DataFrame:
    by_study = compared["options"]
    claims = compared["outcome"].isin([*FASTER, *SUGGESTED])
    return pd.DataFrame({
        "options": by_study,
        "holds": compared["ratio_low"].le(truth) & compared["ratio_high"].ge(truth),
        "claimed": claims.groupby(by_study).transform("any"),
        "widest": half_widths(compared).groupby(by_study).transform("max"),
    })  # fmt: skip


def ended(seen: pd.DataFrame, ends: "pd.Series[bool]") -> Outcome:
    """Return what is so at the first look of each study that `ends` it; its last one does in any case."""
    last = seen["look"] == seen.groupby("options")["look"].transform("max")
    possible = seen[ends | last]
    rows = possible[possible["look"] == possible.groupby("options")["look"].transform("min")]
    studies = rows.groupby("options")[["claimed", "repeats"]].first()
    return Outcome(
        covered=100 * float(rows["holds"].mean()),
        claimed=100 * float(studies["claimed"].mean()),
        repeats=float(studies["repeats"].mean()),
    )


def simulated(noise: Noise, studies: int, workers: Sequence[int], ratio: float) -> Study:
    """Return studies with all the repeats that they may need, at these worker counts."""
    random = np.random.default_rng(SIMULATION_SEED)
    study = simulate(random, noise, studies, MOST_ADAPTIVE_REPEATS, ratio)
    return replace(study, runs=study.runs[study.runs["workers"].isin(workers)])


def adaptive_lines(studies: int) -> Iterator[str]:
    """Yield the table of studies that end as soon as their intervals are narrow, at 95 % and corrected."""
    yield "| noise | worker counts | asked | 95 % intervals | repeats | 98 % intervals | repeats |"
    yield "|---|--:|--:|--:|--:|--:|--:|"
    totals = range(FEWEST_ADAPTIVE_REPEATS, MOST_ADAPTIVE_REPEATS + 1)
    for noise in NOISES:
        for workers in (ONE_COUNT, TWO_COUNTS):
            study = simulated(noise, studies, workers, ADAPTIVE_RATIO)
            widths = [width * np.sqrt(2) * noise.launch for width in WIDTHS_OF_A_PAIR]
            seen = [
                looks(study, totals, [significance] * len(totals), ADAPTIVE_RATIO, min(widths))
                for significance in (FIXED_SIGNIFICANCE, ADAPTIVE_SIGNIFICANCE)
            ]
            for asked in widths:
                outcomes = [ended(each, each["widest"] <= asked) for each in seen]
                cells = " | ".join(f"{each.covered:.1f} | {each.repeats:.1f}" for each in outcomes)
                yield f"| {noise} | {len(workers)} | {100 * asked:.1f} % | {cells} |"


def by_hand_lines(studies: int) -> Iterator[str]:
    """Yield the table of studies without a difference that end as soon as a framework is called faster."""
    yield "| noise | worker counts | repeats | 95 % at each look | claims | corrected | claims |"
    yield "|---|--:|--:|--:|--:|--:|--:|"
    usual, *others = NOISES
    cases = [(usual, workers, totals) for workers in (ONE_COUNT, TWO_COUNTS) for totals in TOTALS_BY_HAND]
    cases += [(noise, ONE_COUNT, TOTALS_BY_HAND[0]) for noise in others]
    for noise, workers, totals in cases:
        study = simulated(noise, studies, workers, 1.0)
        yield from _lines_of_looks(study, totals, f"{noise} | {len(workers)}")


def early_lines(studies: int) -> Iterator[str]:
    """Yield the table of studies without a difference that are looked at after each repeat from 3 on."""
    yield "| repeats asked for | 95 % at each look | corrected before the last repeat |"
    yield "|--:|--:|--:|"
    for repeats in (10, 20):
        totals = range(FEWEST_ADAPTIVE_REPEATS, repeats + 1)
        before = len(totals) - 1
        study = simulated(NOISES[0], studies, ONE_COUNT, 1.0)
        claims = []
        for early in (FIXED_SIGNIFICANCE, EARLY_SIGNIFICANCE):
            seen = looks(study, totals, [*[early] * before, FIXED_SIGNIFICANCE], 1.0)
            claims.append(ended(seen, seen["claimed"]).claimed)
        yield f"| {repeats} | {' | '.join(f'{claimed:.1f}' for claimed in claims)} |"


def _lines_of_looks(study: Study, totals: Sequence[int], case: str) -> Iterator[str]:
    corrected = [
        stopping_rule(None, RepeatHistory(by_hand=before)).significance for before in range(len(totals))
    ]
    seen = [looks(study, totals, rule, 1.0) for rule in ([FIXED_SIGNIFICANCE] * len(totals), corrected)]
    for number in LOOKS_SHOWN:
        if number <= len(totals):
            parts = [each[each["look"] <= number] for each in seen]
            outcomes = [ended(each, each["claimed"]) for each in parts]
            cells = " | ".join(f"{each.covered:.1f} | {each.claimed:.1f}" for each in outcomes)
            yield f"| {case} | {', '.join(map(str, totals[:number]))} | {cells} |"


def _print_progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"{text:40}", end="\r", file=sys.stderr, flush=True)
