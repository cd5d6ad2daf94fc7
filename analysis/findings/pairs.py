"""What is compared: points, and runs of one repeat, of both frameworks with equal options and workers."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.findings.check import PointPair
from analysis.stats import block_deviations, counts_for_speed
from analysis.study import COMPARED, Study
from analysis.text import clean, count, first_of

PAIR = ["options", "native_knobs", "horovod_knobs", "workers"]
KNOBS = {"knobs_native": "native_knobs", "knobs_horovod": "horovod_knobs"}
# A sentence carries three examples; the rest is counted.
MOST_EXAMPLES = 3

Sides = tuple[pd.DataFrame, pd.DataFrame]


def side_by_side(table: pd.DataFrame, on: Sequence[str]) -> pd.DataFrame:
    """Return every pair of rows of native DDP and of Horovod that agree in the columns `on`.

    Their other columns end in `_native` and `_horovod`; the knobs are `native_knobs` and `horovod_knobs`.
    """
    native, horovod = (table[table["framework"] == framework] for framework in COMPARED)
    return native.merge(horovod, on=list(on), suffixes=("_native", "_horovod")).rename(columns=KNOBS)


def paired_runs(study: Study) -> pd.DataFrame:
    """Return one row for each pair of runs of one repeat: PAIR, repeat, and the columns of both runs.

    Columns of the runs end in `_native` and `_horovod`. Pairs with a disturbed launch are left out where
    enough others of their point remain.
    """
    pairs = side_by_side(study.runs, ["options", "workers", "repeat"])
    return pairs[counts_for_speed(pairs, _has_disturbed(pairs), PAIR)].reset_index(drop=True)


def disturbed_pairs(study: Study) -> list[PointPair]:
    """Return the points at which a compared pair of runs holds a disturbed launch."""
    pairs = paired_runs(study)
    points = pairs.loc[_has_disturbed(pairs), PAIR].drop_duplicates()
    return [pair_of(row) for row in points.itertuples(index=False, name=None)]


def pair_of(row: Sequence[Any]) -> PointPair:
    """Return the values of PAIR as plain text and number."""
    options, native, horovod, workers = row
    return str(options), str(native), str(horovod), int(workers)


def _has_disturbed(pairs: pd.DataFrame) -> "pd.Series[bool]":
    return (pairs["disturbed_native"] != "") | (pairs["disturbed_horovod"] != "")


def paired_logarithms(study: Study, pairs: pd.DataFrame) -> NDArray[np.float64]:
    """Return the logarithm of each pair's ratio of throughputs, native DDP over Horovod."""
    native, horovod = (pairs[f"{study.throughput}_{name}"] for name in ("native", "horovod"))
    return np.asarray(np.log(native / horovod), dtype=np.float64)


def paired_deviations(study: Study, pairs: pd.DataFrame) -> NDArray[np.float64]:
    """Return the difference of both runs' block deviations, (realisations, pairs)."""
    native = block_deviations(study, pairs["run_native"].to_list())
    return native - block_deviations(study, pairs["run_horovod"].to_list())


def sides(runs: pd.DataFrame) -> Iterator[tuple[PointPair, Sides]]:
    """Yield every pair of points of equal options and workers, with the runs of each framework."""
    points = dict(iter(runs.groupby(["framework", "knobs", "options", "workers"])))
    keys = runs[["framework", "options", "workers", "knobs"]].drop_duplicates()
    for row in side_by_side(keys, ["options", "workers"])[PAIR].itertuples(index=False, name=None):
        pair = options, native, horovod, workers = pair_of(row)
        here = options, workers
        yield pair, (points["pytorch_native", native, *here], points["horovod", horovod, *here])


def pairs_known_of_one(runs: pd.DataFrame, known: Iterable[str]) -> list[PointPair]:
    """Return the points at which a larger share of one framework's runs than of the other's is `known`."""
    told = set(known)
    is_split = 0 < runs["run"].isin(told).sum() < len(runs)
    return [
        pair
        for pair, (native, horovod) in (sides(runs) if is_split else ())
        if native["run"].isin(told).mean() != horovod["run"].isin(told).mean()
    ]


def in_both(name: str, values: Iterable[Sequence[str]], names: Iterable[str]) -> str:
    """Return what both frameworks have of a fact: "hosts: a in native DDP, b in Horovod"."""
    shown = [first_of([clean(value) for value in own], "value", MOST_EXAMPLES) for own in values]
    told = [f"{text or 'not recorded'} in {arm}" for text, arm in zip(shown, names, strict=True)]
    return f"{clean(name)}: {', '.join(told)}"


def point_name(pair: PointPair) -> str:
    """Return "at 2 workers (lr=0.1; bucket=5)"."""
    options, native, horovod, workers = pair
    varied = "; ".join(part for part in (options, native, horovod) if part)
    return clean(f"at {count(workers, 'worker')}{f' ({varied})' if varied else ''}")


def first_points(parts: Iterable[str]) -> str:
    """Return the first of these phrases about points, and how many more there are."""
    return first_of(list(parts), "point", MOST_EXAMPLES, separator="; ")
