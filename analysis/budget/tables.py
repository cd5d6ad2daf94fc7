"""The overhead budget: where the efficiency went, and why one framework is slower, in parts that sum to it.

Let W be the worker-seconds per image of a point (workers / throughput) and s the shares of its parts
(shares.py). What a part lost at N workers is its worker-seconds per image above those on 1 worker, over W:

    (s_N W_N - s_1 W_1) / W_N = s_N - efficiency x s_1

The shares sum to 1, so these sum to 1 - efficiency: the deviation that summary.csv has. Between the
frameworks, per second that native DDP needs for an image:

    (s_H W_H - s_D W_D) / W_D = ratio x s_H - s_D

They sum to ratio - 1, with the ratio that comparison.csv has: what is positive Horovod needs more.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from analysis.arrays import Array, Integers
from analysis.budget.shares import PARTS, known_points, run_shares, share_array, shares_of
from analysis.contrast import paired_logarithms
from analysis.findings.node_scaling import NONE
from analysis.findings.speedup import NO_BASELINE, PairedLaunches, own_baseline
from analysis.pairs import PAIR, paired_runs
from analysis.stats import Launches, bounds, launches_of, timed
from analysis.study import COMPARED, NAMES, NAN, POINT, Study
from analysis.text import count, percent
from unet_scaling.study.config import Framework

# Of a step. Marks and hooks take up to 0.6 % of a short one (docs/budget.md); more means a phase is missing.
MOST_REST = 0.02
# What takes longer where threads compete for cores. Its interval is not the sum of those of its parts.
CONTENDED = "contended"
CONTENDED_PARTS = ("data_wait", "compute")
_ENDS = ("", "_low", "_high")
_BOUNDED = [f"{name}{end}" for name in PARTS for end in _ENDS]
_OF_POINTS = [f"{name}{end}" for name in ("deviation", *PARTS, CONTENDED) for end in _ENDS]
_BUDGET_COLUMNS = (*POINT, "repeats", *_OF_POINTS, "rest_of_step")
_DIFFERENCE_COLUMNS = (*PAIR, "pairs", "difference", "difference_low", "difference_high", *_BOUNDED)


def budget_table(study: Study) -> pd.DataFrame:
    """Return one row per point on 2 workers or more, where it and its baseline on 1 worker have a budget.

    Columns: BUDGET_COLUMNS. The parts are shares of the point's worker time and sum to `deviation`; a
    negative part takes less time per image than on 1 worker; `contended` is the sum of CONTENDED_PARTS,
    beside them. Intervals (95 %, see stats.py) are over
    launches, paired by repeat where both points have the same ones, and need 3. `rest_of_step` is the
    share of a step that no phase explains. What is missing is in `budget_notes`.
    """
    runs, shares = _known_runs(study)
    if runs.empty:
        return pd.DataFrame(columns=list(_BUDGET_COLUMNS))
    launches = launches_of(runs, POINT)
    points = _points(runs, launches, POINT, "repeats")
    baseline = own_baseline(points)
    chosen = np.flatnonzero((baseline != NONE) & (points["workers"].to_numpy() > 1))
    table = points.iloc[chosen].reset_index(drop=True)
    per_worker = (runs[study.throughput] / runs["workers"]).to_numpy(dtype=np.float64)
    _add_overhead(table, launches, chosen, baseline[chosen], np.log(per_worker), shares)
    return table[list(_BUDGET_COLUMNS)]


def _points(rows: pd.DataFrame, launches: Launches, columns: list[str], number: str) -> pd.DataFrame:
    """Return what the launches of each point have in common, and their number in a column of this name."""
    points = rows.groupby(launches.point)[columns].first()
    points[number] = np.bincount(launches.point, minlength=launches.points)
    return points


def difference_table(study: Study, comparisons: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each pair of points in `comparisons` where all runs of its pairs have a budget.

    Columns: DIFFERENCE_COLUMNS. The parts are shares of native DDP's worker time and sum to `difference`,
    which is the ratio of throughputs, native DDP over Horovod, less 1, with the interval that the report's
    `comparisons` have.
    """
    pairs, of_runs = _known_pairs(study)
    if pairs.empty:
        return pd.DataFrame(columns=list(_DIFFERENCE_COLUMNS))
    launches = launches_of(pairs, PAIR)
    table = _points(pairs, launches, PAIR, "pairs")
    compared = table[PAIR].merge(comparisons, on=PAIR, how="left")
    for end in _ENDS:
        table[f"difference{end}"] = compared[f"ratio{end}"].to_numpy(dtype=np.float64) - 1
    native, horovod = (shares_of(launches, shares) for shares in of_runs)
    ratios = np.exp(launches.replicates(paired_logarithms(study, pairs)))
    parts = compared["ratio"].to_numpy(dtype=np.float64) * horovod.medians - native.medians
    _add_parts(table, parts, ratios * horovod.replicates - native.replicates)
    return table.sort_values(PAIR, kind="stable", ignore_index=True)


def budget_notes(study: Study, budget: pd.DataFrame) -> Iterator[str]:
    """Yield which points have no budget and why, and where too much of a step is left unexplained."""
    runs = study.runs.assign(no_budget=run_shares(study)["no_budget"].to_numpy())
    if (runs["no_budget"] != "").all():
        yield f"no overhead budget: {'; '.join(dict.fromkeys(runs['no_budget']))}"
        return
    yield from _points_without_budget(runs, budget)
    for row in budget[budget["rest_of_step"] > MOST_REST].to_dict("records"):
        share = percent(row["rest_of_step"])
        yield f"{series_at(*(row[name] for name in POINT))}: no phase explains {share} of a step"


def _points_without_budget(runs: pd.DataFrame, budget: pd.DataFrame) -> Iterator[str]:
    known = set(budget[POINT].itertuples(index=False, name=None))
    points: dict[Any, pd.DataFrame] = dict(iter(runs.groupby(POINT, sort=False)))
    for key, point in points.items():
        if key[-1] > 1 and key not in known:
            reason = _reason_of_pair(point, points.get((*key[:-1], 1)))
            yield f"{series_at(*key)}: no overhead budget: {reason}"


def _reason_of_pair(point: pd.DataFrame, alone: pd.DataFrame | None) -> str:
    if alone is None:
        return NO_BASELINE.removeprefix("speed-up: ")
    return _reason(point) or f"on 1 worker: {_reason(alone)}"


def _reason(runs: pd.DataFrame) -> str:
    """Return why a point has no budget; empty where all its runs have one."""
    missing = runs.loc[runs["no_budget"] != "", "no_budget"]
    return f"{missing.iloc[0]} ({len(missing)} of {len(runs)} runs)" if len(missing) else ""


def series_at(options: str, framework: Framework, knobs: str, workers: int) -> str:
    """Return "native DDP, bucket_cap_mb=5 on 2 workers"."""
    series = ", ".join(part for part in (NAMES[framework], knobs) if part)
    return f"{options + ': ' if options else ''}{series} on {count(workers, 'worker')}"


def _known_runs(study: Study) -> tuple[pd.DataFrame, Array]:
    """Return the runs of the points whose launches all have a budget, and their shares, (parts, runs)."""
    study = timed(study)
    runs = study.runs.reset_index(drop=True)
    shares = share_array(run_shares(study))
    if runs.empty:
        return runs, shares
    launches = launches_of(runs, POINT)
    kept = known_points(launches, shares)[launches.point]
    return runs[kept].reset_index(drop=True), shares[:, kept]


def _known_pairs(study: Study) -> tuple[pd.DataFrame, tuple[Array, Array]]:
    """Return the pairs of runs, and the shares of their native and their Horovod runs, (parts, pairs)."""
    pairs = paired_runs(study)
    pairs = pairs[pairs["framework"] == COMPARED[1]].reset_index(drop=True)
    shares = run_shares(study).set_index("run")
    native, horovod = (share_array(shares.reindex(pairs[f"run_{name}"])) for name in ("native", "other"))
    if pairs.empty:
        return pairs, (native, horovod)
    launches = launches_of(pairs, PAIR)
    kept = known_points(launches, native + horovod)[launches.point]
    return pairs[kept].reset_index(drop=True), (native[:, kept], horovod[:, kept])


def _add_overhead(
    table: pd.DataFrame,
    launches: Launches,
    points: Integers,
    baseline: Integers,
    logs: Array,
    shares: Array,
) -> None:
    """Add the deviation and the parts of `points` against the points on 1 worker that `baseline` numbers.

    `logs` are of throughput per worker, `shares` those of launches.
    """
    medians = launches.medians(np.exp(logs))
    efficiency = medians[points] / medians[baseline]
    efficiencies = np.exp(PairedLaunches(launches, logs).differences(points, baseline))
    _add(table, "deviation", 1 - efficiency, 1 - efficiencies)
    here = shares_of(launches, shares)
    alone = np.stack([PairedLaunches(launches, each).of_baseline(points, baseline) for each in shares])
    parts = here.medians[:, points] - efficiency * here.medians[:, baseline]
    replicated = here.replicates[:, points] - efficiencies * (alone / alone.sum(axis=0))
    _add_parts(table, parts, replicated)
    contended = [PARTS.index(part) for part in CONTENDED_PARTS]
    _add(table, CONTENDED, parts[contended].sum(axis=0), replicated[contended].sum(axis=0))
    table["rest_of_step"] = here.medians[PARTS.index("rest"), points]


def _add_parts(table: pd.DataFrame, parts: Array, replicated: Array) -> None:
    for name, values, drawn in zip(PARTS, parts, replicated, strict=True):
        _add(table, name, values, drawn)


def _add(table: pd.DataFrame, name: str, values: Array, replicated: Array) -> None:
    """Add a difference of shares and its interval, which is not known where it reaches below -1."""
    table[name] = values
    ends = np.stack(bounds(replicated))
    table[f"{name}_low"], table[f"{name}_high"] = np.where(ends[0] < -1, NAN, ends)
