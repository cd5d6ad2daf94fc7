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
from numpy.typing import NDArray

from analysis.budget.shares import PARTS, Shares, known_points, run_shares, share_array, shares_of
from analysis.findings.comparison import compare
from analysis.findings.pairs import PAIR, paired_launches, paired_logarithms, paired_runs
from analysis.findings.speedup import NO_BASELINE, NONE, own_baseline, repeats_key
from analysis.statistics.intervals import bounds
from analysis.statistics.launches import Launches, launches_of
from analysis.statistics.timed import timed
from analysis.study import NAMES, POINT, Study

MOST_REST = 0.02
_BOUNDED = [f"{name}{end}" for name in PARTS for end in ("", "_low", "_high")]
_DEVIATION = ["deviation", "deviation_low", "deviation_high"]
BUDGET_COLUMNS = (*POINT, "repeats", *_DEVIATION, *_BOUNDED, "rest_of_step")
DIFFERENCE_COLUMNS = (*PAIR, "pairs", "difference", "difference_low", "difference_high", *_BOUNDED)

Array = NDArray[np.float64]
Numbers = NDArray[np.int64]


def budget_table(study: Study) -> pd.DataFrame:
    """One row per point on 2 workers or more, where it and its series' point on 1 worker have a budget.

    Columns: BUDGET_COLUMNS. The parts are shares of the point's worker time and sum to `deviation`; a
    negative part takes less time per image than on 1 worker. Intervals (95 %, see intervals.py) are over
    launches, paired by repeat where both points have the same ones, and need 3. `rest_of_step` is the
    share of a step that no phase explains. What is missing is in `budget_notes`.
    """
    runs, shares = _known_runs(study)
    if runs.empty:
        return pd.DataFrame(columns=list(BUDGET_COLUMNS))
    launches = launches_of(study, runs, POINT)
    points = runs.groupby(launches.point)[POINT].first()
    points["repeats"] = np.bincount(launches.point, minlength=launches.points)
    baseline = own_baseline(points)
    chosen = np.flatnonzero((baseline != NONE) & (points["workers"].to_numpy() > 1))
    table = points.iloc[chosen].reset_index(drop=True)
    _add_losses(table, launches, np.log(_per_worker(study, runs)), shares, chosen, baseline[chosen])
    return table[list(BUDGET_COLUMNS)]


def difference_table(study: Study) -> pd.DataFrame:
    """One row for each pair of points that compare() has, where all runs of its pairs have a budget.

    Columns: DIFFERENCE_COLUMNS. The parts are shares of native DDP's worker time and sum to `difference`,
    which is the ratio of throughputs, native DDP over Horovod, less 1, with the interval of `compare`.
    """
    pairs, shares = _known_pairs(study)
    if pairs.empty:
        return pd.DataFrame(columns=list(DIFFERENCE_COLUMNS))
    launches, logs = paired_launches(study, pairs), paired_logarithms(study, pairs)
    table = pairs.groupby(launches.point)[PAIR].first()
    table["pairs"] = np.bincount(launches.point, minlength=launches.points)
    native, horovod = (shares_of(launches, each) for each in shares)
    ratio, together = np.exp(launches.medians(logs)), np.exp(launches.replicates(logs, blocks=False))
    compared = table[PAIR].merge(compare(study), on=PAIR, how="left")
    table["difference"] = ratio - 1
    for end in ("low", "high"):
        table[f"difference_{end}"] = compared[f"ratio_{end}"].to_numpy() - 1
    parts = ratio * horovod.medians - native.medians
    _add_parts(table, parts, together * horovod.replicates - native.replicates)
    return table.sort_values(PAIR, kind="stable", ignore_index=True)


def budget_notes(study: Study, budget: pd.DataFrame) -> Iterator[str]:
    """Which points have no budget and why, and where too much of a step is left unexplained."""
    runs = study.runs.assign(no_budget=run_shares(study)["no_budget"].to_numpy())
    if (runs["no_budget"] != "").all():
        yield f"no overhead budget: {'; '.join(dict.fromkeys(runs['no_budget']))}"
        return
    has = set(budget[POINT].itertuples(index=False, name=None))
    groups: list[tuple[Any, pd.DataFrame]] = list(runs.groupby(POINT, sort=False))
    alone = {key[:-1]: _reason(of) for key, of in groups if key[-1] == 1}
    for key, of in groups:
        if key[-1] > 1 and key not in has:
            yield f"{_named(*key)}: no overhead budget: {_missing(_reason(of), alone.get(key[:-1]))}"
    for row in budget[budget["rest_of_step"] > MOST_REST].to_dict("records"):
        share = f"{100 * row['rest_of_step']:.1f} %"
        yield f"{_named(*(row[name] for name in POINT))}: no phase explains {share} of a step"


def _missing(own: str, on_one_worker: str | None) -> str:
    if on_one_worker is None:
        return NO_BASELINE.removeprefix("speed-up: ")
    return own or f"on 1 worker: {on_one_worker}"


def _reason(runs: pd.DataFrame) -> str:
    """Why a point has no budget; empty where all its runs have one."""
    missing = runs.loc[runs["no_budget"] != "", "no_budget"]
    return f"{missing.iloc[0]} ({len(missing)} of {len(runs)} runs)" if len(missing) else ""


def _named(options: str, framework: str, knobs: str, workers: int) -> str:
    name = next(text for key, text in NAMES.items() if key == framework)
    parts = ", ".join(part for part in (name, knobs) if part)
    return f"{options + ': ' if options else ''}{parts} on {workers} workers"


def _known_runs(study: Study) -> tuple[pd.DataFrame, Array]:
    """The runs of the points whose launches all have a budget, and the shares of each, (parts, runs)."""
    study = timed(study)
    runs, shares = study.runs.reset_index(drop=True), share_array(run_shares(study))
    if runs.empty:
        return runs, shares
    launches = launches_of(study, runs, POINT)
    kept = known_points(launches, shares)[launches.point]
    return runs[kept].reset_index(drop=True), shares[:, kept]


def _known_pairs(study: Study) -> tuple[pd.DataFrame, tuple[Array, Array]]:
    """The pairs of runs, and the shares of their native and of their Horovod runs, (parts, pairs)."""
    pairs = paired_runs(study)
    shares = run_shares(study).set_index("run")
    native, horovod = (share_array(shares.reindex(pairs[f"run_{name}"])) for name in ("native", "horovod"))
    if len(pairs):
        kept = known_points(paired_launches(study, pairs), native + horovod)
        whole = kept[paired_launches(study, pairs).point]
        pairs, native, horovod = pairs[whole].reset_index(drop=True), native[:, whole], horovod[:, whole]
    return pairs, (native, horovod)


def _per_worker(study: Study, runs: pd.DataFrame) -> Array:
    return (runs[study.throughput] / runs["workers"]).to_numpy(dtype=np.float64)


def _add_losses(
    table: pd.DataFrame, launches: Launches, logs: Array, shares: Array, points: Numbers, baseline: Numbers
) -> None:
    """Deviation and parts of the points against those that `baseline` names."""
    medians = launches.medians(np.exp(logs))
    efficiency = medians[points] / medians[baseline]
    at, alone = shares_of(launches, shares), _drawn_for(launches, shares, points, baseline)
    pace = launches.replicates(logs, blocks=False)
    ratios = np.exp(pace[points] - _paired(launches, logs[None], points, baseline)[0])
    _add(table, "deviation", 1 - efficiency, 1 - ratios)
    parts = at.medians[:, points] - efficiency * alone.medians
    _add_parts(table, parts, at.replicates[:, points] - ratios * alone.replicates)
    table["rest_of_step"] = at.medians[PARTS.index("rest"), points]


def _drawn_for(launches: Launches, shares: Array, points: Numbers, baseline: Numbers) -> Shares:
    """The baseline's shares, drawn with each point's repeats."""
    medians = shares_of(launches, shares).medians[:, baseline]
    replicated = _paired(launches, shares, points, baseline)
    return Shares(medians, replicated / replicated.sum(axis=0))


def _paired(launches: Launches, values: Array, points: Numbers, baseline: Numbers) -> Array:
    """Replicates of the baseline, (values, points, RESAMPLES): of another stream where repeats differ."""
    repeats = repeats_key(launches)
    apart = np.flatnonzero(repeats[points] != repeats[baseline])
    found = np.stack([launches.replicates(each, blocks=False)[baseline] for each in values])
    if len(apart):
        independent = [launches.replicates(each, blocks=False, stream=1) for each in values]
        found[:, apart] = np.stack(independent)[:, baseline[apart]]
    return found


def _add_parts(table: pd.DataFrame, parts: Array, replicated: Array) -> None:
    for name, values, drawn in zip(PARTS, parts, replicated, strict=True):
        _add(table, name, values, drawn)


def _add(table: pd.DataFrame, name: str, values: Array, replicated: Array) -> None:
    low, high = bounds(replicated)
    table[name], table[f"{name}_low"], table[f"{name}_high"] = values, low, high
