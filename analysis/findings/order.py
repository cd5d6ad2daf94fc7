"""The check that the runs of both frameworks alternated: a drift of the machine must not meet one alone."""

import numpy as np
import pandas as pd
from scipy import stats  # type: ignore[import-untyped]

from analysis.findings.check import Check, known_of_one, no, not_known, withhold_claims, yes
from analysis.findings.pairs import first_points, pairs_known_of_one, point_name, side_by_side, sides
from analysis.study import Study
from analysis.text import count

# Runs that trained together for less of the shorter one's time ran one after the other.
LEAST_OVERLAP = 0.5
# In so few honest comparisons does one framework come first as often by chance: 9 pairs of 9, 14 of 15. A
# report of four frameworks makes three of them.
CHANCE_OF_ORDER_SHARE = 0.005


def check_order(study: Study) -> Check:
    """Check that at no point one framework ran before the other as a whole.

    Of the runs of a point, ranked by their start, the two of one repeat are neighbours in an order that
    alternates, and as far apart as there are repeats where one framework ran wholly before the other. The
    median of their signed distance decides: more than half the number of repeats is "no". One run that
    came later than the others does not move a median; two of one repeat that ran at once for most of the
    shorter one's time are not apart.
    """
    distances = {pair: _distance(*map(_trained, both)) for pair, both in sides(study.runs)}
    known = {pair: distance for pair, distance in distances.items() if distance is not None}
    one_sided = pairs_known_of_one(study.runs, study.runs.loc[start_times(study.runs).notna(), "run"])
    if one_sided:
        where = first_points(map(point_name, one_sided))
        return known_of_one(f"{where} only one framework's runs say when they started", one_sided)
    if not known:
        return not_known("no point of both frameworks has two repeats with different start times")
    apart = sorted(pair for pair, (distance, repeats) in known.items() if abs(distance) > repeats / 2)
    if apart:
        where = f"at {len(apart)} of {count(len(known), 'point')}"
        fact = f"{where} one framework ran before the other ({first_points(map(point_name, apart))})"
        return withhold_claims(f"{fact}: a drift of the machine would look like a difference", apart)
    return yes(f"at {count(len(known), 'point')} the runs of both frameworks alternate")


def check_first(study: Study) -> Check:
    """Check that of the two runs of a repeat now one framework's, now the other's began first."""
    times = study.runs.join(_trained(study.runs)[["begin", "end"]])
    both = side_by_side(times, ["options", "workers", "repeat"]).dropna(
        subset=["begin_native", "begin_horovod"]
    )
    in_turn = both[~_together(both) & (both["begin_native"] != both["begin_horovod"])]
    first = list(in_turn["begin_native"] < in_turn["begin_horovod"])
    most, name = max(
        (first.count(native), name) for native, name in zip((True, False), study.compared_names, strict=True)
    )
    if first and stats.binomtest(most, len(first)).pvalue < CHANCE_OF_ORDER_SHARE:
        ordered = f"{name} came first in {most} of {count(len(first), 'pair')} of runs of one repeat"
        return no(f"{ordered}: what the first of two leaves to the second would look like a difference")
    if not first:
        return not_known("no two runs of one repeat are known to have run one after the other")
    return yes(f"{study.compared_names[0]} came first in {first.count(True)} of {count(len(first), 'pair')}")


def start_times(runs: pd.DataFrame) -> "pd.Series[pd.Timestamp]":
    """Return when each run started, NaT where the record does not say."""
    return pd.to_datetime(runs["started_utc"], errors="coerce", utc=True, format="ISO8601")


def _trained(side: pd.DataFrame) -> pd.DataFrame:
    """Return start and end of training of each repeat whose start is known, by the clock of its machine."""
    begin = start_times(side)
    end = begin + pd.to_timedelta(side["training_seconds"] * side["dilation"], unit="s")
    return pd.DataFrame({"repeat": side["repeat"], "begin": begin, "end": end}).dropna(subset="begin")


def _distance(native: pd.DataFrame, horovod: pd.DataFrame) -> tuple[float, int] | None:
    """Return the median signed distance in rank of the two runs of a repeat, and the number of repeats.

    None where there are fewer than two repeats of both, or all started in the same second.
    """
    both = native.merge(horovod, on="repeat", suffixes=("_native", "_horovod"))
    begin = pd.concat([both["begin_native"], both["begin_horovod"]])
    if len(both) < 2 or begin.nunique() < 2:
        return None
    native_rank, horovod_rank = begin.rank().to_numpy().reshape(2, -1)
    return float(np.median(np.where(_together(both), 0.0, native_rank - horovod_rank))), len(both)


def _together(both: pd.DataFrame) -> "pd.Series[bool]":
    """Return which pairs of runs trained together for most of the shorter one's time."""
    native = both["end_native"] - both["begin_native"]
    horovod = both["end_horovod"] - both["begin_horovod"]
    shorter = native.where(native <= horovod, horovod)
    first_end = both[["end_native", "end_horovod"]].min(axis="columns")
    overlap = first_end - both[["begin_native", "begin_horovod"]].max(axis="columns")
    return (overlap > pd.Timedelta(0)) & (overlap >= LEAST_OVERLAP * shorter)
