"""The check that the runs of both frameworks alternated: a drift of the machine must not meet one alone."""

import numpy as np
import pandas as pd

from analysis.findings.check import Check, PointPair, not_known, withhold_claims, yes
from analysis.findings.pairs import first_points, point_name, sides
from analysis.study import Study
from analysis.text import count

# Runs that trained together for less of the shorter one's time ran one after the other.
LEAST_OVERLAP = 0.5


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
    if not known:
        return not_known("no point of both frameworks has two repeats with different start times")
    apart = sorted(pair for pair, (distance, repeats) in known.items() if abs(distance) > repeats / 2)
    if apart:
        return _one_before_the_other(apart, len(known))
    return yes(f"at {count(len(known), 'point')} the runs of both frameworks alternate")


def _one_before_the_other(apart: list[PointPair], points: int) -> Check:
    where = f"at {len(apart)} of {count(points, 'point')}"
    fact = f"{where} one framework ran before the other ({first_points(map(point_name, apart))})"
    return withhold_claims(f"{fact}: a drift of the machine would look like a difference", apart)


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
