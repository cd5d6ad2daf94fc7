"""Native DDP against Horovod at every worker count that both have: the ratio of their throughputs.

A framework is called faster where the interval of the ratio excludes 1. The interval has to hold for all
comparisons of a study together: Student's t on the logarithms of the paired ratios, at the significance that
Holm's procedure asks for (Holm 1979, Scand. J. Statist. 6, 65), and never narrower than the bootstrap
interval of their median. `python -m benchmarks.coverage` prints how often studies without a difference are
called faster.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd
from scipy import stats  # type: ignore[import-untyped]

from analysis.arrays import Array, Integers
from analysis.findings.check import Check, withholding
from analysis.findings.doubts import doubts_of
from analysis.findings.pairs import PAIR, paired_deviations, paired_logarithms, paired_runs, side_by_side
from analysis.stats import (
    FEWEST_REPEATS,
    RECOMMENDED_REPEATS,
    bounds,
    coverage,
    holm_in_families,
    launches_of,
    repeats_needed,
    timed,
)
from analysis.study import NAN, Study

TABLE_SAYS_NO = "the fairness table says no to: "
POINT_OF_FRAMEWORK = ["framework", "options", "workers", "knobs"]
_COLUMNS = [
    *PAIR, "pairs", "ratio", "ratio_low", "ratio_high", "confidence", "coverage", "p_adjusted", "comparisons",
    "ratio_of_medians", "outcome", "doubts", "repeats_needed",
]  # fmt: skip
NATIVE_FASTER = "native DDP faster"
HOROVOD_FASTER = "Horovod faster"
FASTER = (NATIVE_FASTER, HOROVOD_FASTER)
SUGGESTS = "suggests "
SUGGESTED = tuple(f"{SUGGESTS}{outcome}" for outcome in FASTER)
WITHHELD = "withheld"
NO_DIFFERENCE = "no significant difference"
NOT_ENOUGH = "not enough repeats"


def compare(study: Study, family: Sequence[str] = ()) -> pd.DataFrame:
    """Return one row for each options, pair of knobs and worker count that both frameworks have.

    `family`: columns that tell studies apart which are in one table; comparisons of one family are corrected
    for each other. None: all rows are one family.

    Columns: options, native_knobs, horovod_knobs, workers; pairs (repeats that both have); ratio (throughput
    of native DDP over that of Horovod, the median over the pairs) with `_low` and `_high`, symmetric in the
    two names; confidence (of all intervals together: above 0.95 where repeats were added after a look at
    the results, see docs/statistics.md); coverage (confidence that an interval over so few pairs can promise
    for any noise); p_adjusted (of the paired t-test on logarithms, by Holm) over so many `comparisons`;
    ratio_of_medians (over all launches of each framework, as the table of points has them); outcome; doubts
    (why it is withheld, empty if nothing speaks against it); repeats_needed (see significance.py). NaN where
    not known.
    """
    table = _common_points(study.runs).merge(_ratios(study, family), on=PAIR, how="left")
    table = table.merge(_ratios_of_medians(study), on=PAIR, how="left")
    table["pairs"] = table["pairs"].fillna(0).astype(int)
    table["confidence"] = 1 - study.significance
    table["coverage"] = [coverage(pairs) if pairs >= FEWEST_REPEATS else NAN for pairs in table["pairs"]]
    table["outcome"] = _outcomes(table)
    claimed = _claims(table)
    table["doubts"] = pd.Series("", index=table.index, dtype=object)
    table.loc[claimed, "doubts"] = doubts_of(study, table[claimed])
    return _withheld(table)[_COLUMNS]


def withhold(comparisons: pd.DataFrame, checks: Iterable[Check]) -> pd.DataFrame:
    """Return `comparisons` with the doubts of the fairness table; what they forbid to claim is withheld."""
    checks = list(checks)
    pairs = comparisons[PAIR].itertuples(index=False, name=None)
    unfair = [_unfair(withholding(checks, pair)) for pair in pairs]
    doubts = ["; ".join(filter(None, both)) for both in zip(unfair, comparisons["doubts"], strict=True)]
    return _withheld(comparisons.assign(doubts=pd.Series(doubts, index=comparisons.index, dtype=object)))


def _unfair(checks: Sequence[Check]) -> str:
    """Return the checks by name; their facts stand beside every verdict."""
    names = ", ".join(check.check for check in checks)
    return f"{TABLE_SAYS_NO}{names}" if names else ""


def _claims(table: pd.DataFrame) -> "pd.Series[bool]":
    return table["outcome"].isin([*FASTER, *SUGGESTED])


def _withheld(table: pd.DataFrame) -> pd.DataFrame:
    """No framework is called faster, nor suggested to be, where a doubt speaks against it."""
    return table.assign(outcome=table["outcome"].mask(_claims(table) & (table["doubts"] != ""), WITHHELD))


def _common_points(runs: pd.DataFrame) -> pd.DataFrame:
    """Return every pair of points of equal options and workers, with or without repeats in common."""
    both = side_by_side(runs[POINT_OF_FRAMEWORK].drop_duplicates(), ["options", "workers"])
    series = both.groupby(PAIR[:-1], sort=False).ngroup()
    return both.assign(series=series).sort_values(["series", "workers"], ignore_index=True)[PAIR]


def _ratios(study: Study, family: Sequence[str]) -> pd.DataFrame:
    """Return one row per point with pairs: their number, ratio and interval, and the repeats needed."""
    pairs = paired_runs(study)
    logs = paired_logarithms(study, pairs)
    launches = launches_of(pairs, PAIR)
    tests = _tests(pairs, pd.Series(logs), launches.point)
    corrected = holm_in_families(tests, family, study.significance)
    replicated = launches.replicates(logs, paired_deviations(study, pairs))
    bootstrapped = bounds(replicated, 1 - study.significance)
    low, high = _interval(tests, corrected["significance"], bootstrapped)
    ratios = np.exp([launches.medians(logs), low, high])
    table = tests.drop(columns=["centre", "error"])
    table["ratio"], table["ratio_low"], table["ratio_high"] = ratios
    return table.join(corrected[["p_adjusted", "comparisons"]])


def _tests(pairs: pd.DataFrame, logs: "pd.Series[float]", point: Integers) -> pd.DataFrame:
    """Return for each point its pairs, the repeats needed, and the mean of the logarithms with its error."""
    by_point = logs.groupby(point)
    table = pairs.groupby(PAIR, sort=False)["repeat"].size().rename("pairs").reset_index()
    table["repeats_needed"] = [repeats_needed(np.asarray(values)) for _, values in by_point]
    return table.assign(centre=by_point.mean(), error=by_point.std() / np.sqrt(table["pairs"]))


def _interval(
    tests: pd.DataFrame, significance: "pd.Series[float]", bootstrapped: tuple[Array, Array]
) -> tuple[Array, Array]:
    """Return the wider of Student's t and the bootstrap interval, on each side."""
    reach = stats.t.isf(significance / 2, tests["pairs"] - 1) * tests["error"]
    low, high = bootstrapped
    # A mean of equal numbers may differ from them in the last digit.
    return np.minimum(low, tests["centre"] - reach), np.maximum(high, tests["centre"] + reach)


def _ratios_of_medians(study: Study) -> pd.DataFrame:
    """Return the ratio of the medians over all launches of each framework: PAIR, ratio_of_medians."""
    medians = timed(study).runs.groupby(POINT_OF_FRAMEWORK, sort=False)[study.throughput].median()
    both = side_by_side(medians.rename("median").reset_index(), ["options", "workers"])
    return both.assign(ratio_of_medians=both["median_native"] / both["median_horovod"])[
        [*PAIR, "ratio_of_medians"]
    ]


def _outcomes(table: pd.DataFrame) -> Array:
    low = table["ratio_low"]
    high = table["ratio_high"]
    enough = table["pairs"] >= RECOMMENDED_REPEATS
    native, horovod = (
        np.where(enough, certain, suggested) for certain, suggested in zip(FASTER, SUGGESTED, strict=True)
    )
    return np.select([low.isna(), low > 1, high < 1], [NOT_ENOUGH, native, horovod], default=NO_DIFFERENCE)
