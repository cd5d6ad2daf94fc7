"""The overhead budget: where the efficiency went, and why one framework is slower, in parts that sum to it.

The parts are the same for all frameworks; docs/background/budget.md derives why they sum to 1 - efficiency,
and between frameworks to the ratio of throughputs less 1. A run's time is workers x the seconds of the
slowest worker, summed over the epochs after the warm-up.

The floor of the wire is one message that holds all gradients, on the network that a run probed: between two
sizes that were timed, on the line between them; beyond the largest, at its bandwidth; far beyond, it is not
known. No line is fitted to all sizes: a network that lets short messages pass faster than it can keep up
would bend it.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import special  # type: ignore[import-untyped]

from analysis.numbers.contrast import KEY, PAIR, paired_logarithms, paired_runs
from analysis.numbers.points import NO_BASELINE, NONE, baseline_rows
from analysis.numbers.stats import (
    NOT_NEGATIVE,
    Launches,
    add_bounded,
    bounds,
    launches_of,
    median_intervals,
)
from analysis.study import COMPARED, ENDS, FEWEST_REPEATS, NAMES, NAN, POINT, Array, Study, bounded
from analysis.text import Row, count, percent
from unet_scaling.format.record_lines import Header
from unet_scaling.study.config import Framework, RunConfig

PARTS = ("data_wait", "compute", "wire", "imbalance", "optimizer", "rest")
# The parts of a step in which one worker can be later than the others.
OWN_PARTS = ("data_wait", "compute", "optimizer", "rest")
# The probability, over all parts of a comparison, of naming a part as longer although it is not.
CHANCE_OF_CAUSE = 0.05
# Of an overhead or a difference, for what is named as its cause: two causes cannot each be the larger half.
EXPLAINS = 0.5
# Of a difference: a part that makes less of it is not worth a word.
LEAST_NAMED = 0.2
OLDER = "these logs have no budget"
# Of a step. Marks and hooks take up to 0.6 % of a short one; more means a phase is missing.
MOST_REST = 0.02
# What takes longer where threads compete for cores. Its interval is not the sum of those of its parts.
CONTENDED = "contended"
CONTENDED_PARTS = ("data_wait", "compute")
FLOAT32_BYTES = 4
# So short that the bandwidth takes no part: their median time is the latency.
SHORT_BYTES = 1024
# Two sizes of the probe: each is 4 times as large as the one before it. A probe ends after a slow message.
MOST_EXTRAPOLATED = 16
_ARMS = ("native", "other")
_MEASURED = ("wire_seconds", "floor_seconds", "latency_seconds", "bytes_per_second")


_BUDGET_COLUMNS = [*POINT, "repeats", *bounded("deviation", *PARTS, CONTENDED), "rest_of_step", "host_paced"]
_DIFFERENCE_COLUMNS = [*PAIR, "pairs", *bounded("difference", *PARTS)]
_NETWORK_COLUMNS = [*POINT, "repeats", "gradient_bytes", *bounded(*_MEASURED)]


def run_shares(study: Study) -> pd.DataFrame:
    """Return one row per run, in the order of the study's runs: run, the share of each of PARTS, no_budget.

    docs/background/budget.md has what each part is. Where the images do not prove that all workers had
    equally many, as the loader gives them, nothing of the run is known, since the record does not say which
    worker had how many. PARTS are NaN where the run has no budget; `no_budget` says why.
    """
    names = pd.Index(study.runs["run"], name="run")
    if study.budgets.empty:
        return pd.DataFrame(np.nan, names, list(PARTS)).assign(no_budget=OLDER).reset_index()
    workers = study.budgets.groupby("run", sort=False, observed=True)
    first, total = workers.first(), workers.sum(numeric_only=True)
    everything = (workers.size() * first["seconds"]).astype(float)
    wire = workers.size() * first["wire_seconds"]
    shares = _seconds_of_parts(total, wire, everything).div(everything, axis=0)
    shares = shares.where(shares.notna().all(axis=1) & _had_equal_work(study.headers, first), np.nan)
    not_proven = "are not steps x workers x batch: the work of its workers was not equal"
    recorded = first["no_budget"].astype(object)
    is_told = recorded.ne("") | shares["wire"].notna()
    shares["no_budget"] = recorded.where(is_told, f"the {study.score.samples} {not_proven}")
    shares = shares.reindex(names)
    shares["no_budget"] = shares["no_budget"].astype(object).fillna(OLDER)
    return shares.reset_index()


def _seconds_of_parts(
    spent: pd.DataFrame, wire: "pd.Series[float]", everything: "pd.Series[float]"
) -> pd.DataFrame:
    """Return the seconds of PARTS that sum to `everything`, of the phases that workers `spent`, by run."""
    seconds = {
        "data_wait": spent["data_wait_seconds"] + spent["host_to_device_seconds"],
        "compute": spent["forward_seconds"] + spent["backward_seconds"],
        "wire": wire,
        "imbalance": spent["sync_seconds"] - wire + everything - spent["worker_seconds"],
        "optimizer": spent["optimizer_seconds"],
        "rest": spent["rest_seconds"],
    }
    return pd.DataFrame(seconds, dtype=float)[list(PARTS)]


def slowest_worker_steps(study: Study) -> pd.DataFrame:
    """Return by run with a budget the seconds of a step, in PARTS, of the worker with most work of its own.

    The others wait for it: what makes it late is then no imbalance.
    """
    known = run_shares(study).set_index("run")["no_budget"] == ""
    budgets = study.budgets[study.budgets["run"].astype(str).map(known).astype(bool)]
    own = (budgets["worker_seconds"] - budgets["sync_seconds"]).astype(float)
    slowest = budgets.loc[own.groupby(budgets["run"].astype(str)).idxmax()]
    slowest = slowest.set_index(slowest["run"].astype(str))
    seconds = _seconds_of_parts(slowest, slowest["wire_seconds"], slowest["seconds"])
    return seconds.div(slowest["steps"].astype(float), axis=0)


def explaining_parts(slower: Array, faster: Array) -> dict[str, float]:
    """Return which of PARTS explain why an arm is slower, with their shares of the difference, largest first.

    `slower` and `faster` are seconds of a step (parts, pairs of launches). A part is named where it is longer
    beyond chance, by Student's t corrected for the number of parts, and all that are named are together most
    of the difference. Waiting for each other follows from what makes workers late, where that is longer, too.
    """
    pairs = slower.shape[1]
    pace = np.sqrt(slower.sum(axis=0) * faster.sum(axis=0))
    longer = (slower - faster) / pace
    means = longer.mean(axis=1)
    if pairs < FEWEST_REPEATS or not means.sum() > 0:
        return {}
    reach = special.stdtrit(pairs - 1, 1 - CHANCE_OF_CAUSE / len(PARTS))
    is_shown = means > reach * longer.std(axis=1, ddof=1) / math.sqrt(pairs)
    shares = np.where(is_shown, means / means.sum(), 0.0)
    own = is_shown & np.isin(PARTS, OWN_PARTS)
    waits = PARTS.index("imbalance")
    if own.any():
        shares[waits] = 0.0
        shares[own] *= 1 + max(0.0, means[waits]) / means[own].sum()
    named = {PARTS[part]: float(shares[part]) for part in np.argsort(-shares) if shares[part] >= LEAST_NAMED}
    return named if sum(named.values()) >= EXPLAINS else {}


def difference_parts(study: Study, row: Row, slower: Framework) -> dict[str, float] | None:
    """Return which parts explain why one arm of a comparison is slower; None where runs have no budget."""
    pairs = paired_runs(study.runs)
    pairs = pairs[(pairs[KEY] == [row[name] for name in KEY]).all(axis=1)]
    of_pairs = {*pairs["run_native"], *pairs["run_other"]}
    # Of a study of many options only these: each of its answers asks.
    own = {name: getattr(study, name) for name in ("runs", "budgets")}
    own = {name: table[table["run"].astype(str).isin(of_pairs)] for name, table in own.items()}
    steps = slowest_worker_steps(replace(study, **own))
    native, other = (steps.reindex(pairs[f"run_{arm}"]).to_numpy(dtype=np.float64).T for arm in _ARMS)
    if not len(pairs) or np.isnan(native + other).any():
        return None
    return explaining_parts(native, other) if slower == COMPARED[0] else explaining_parts(other, native)


def _had_equal_work(headers: Mapping[str, Header], runs: pd.DataFrame) -> "pd.Series[bool]":
    """Return whether the images of each run prove it."""
    if not headers:  # of scripts, which write no budget without equal work
        return pd.Series(data=True, index=runs.index)
    expected = []
    for run, steps in runs["steps"].items():
        point = headers[str(run)].config
        expected.append(steps * point.workers * point.passes_per_step * point.training.batch_per_worker)
    return runs["images"] == expected


def host_paced_shares(budgets: pd.DataFrame) -> "pd.Series[float]":
    """Return by run the share of its workers' time in which the GPUs kept up with the host; NaN of CPUs."""
    columns = budgets[["host_paced_seconds", "worker_seconds"]].astype(float)
    sums = columns.groupby(budgets["run"].astype(str)).sum(min_count=1)
    return sums["host_paced_seconds"] / sums["worker_seconds"]


def share_array(shares: pd.DataFrame) -> Array:
    """Return the shares as an array (parts, runs)."""
    return shares[list(PARTS)].to_numpy(dtype=np.float64).T


def shares_of(launches: Launches, shares: Array) -> tuple[Array, Array]:
    """Return medians (parts, points) of shares (parts, launches), and replicates; of a point they sum to 1.

    The replicates draw the same launches for points of equal size, so that those of two points are pairs.
    """
    medians = np.stack([launches.medians(part) for part in shares])
    replicated = np.stack([launches.replicates(part) for part in shares])
    return medians / medians.sum(axis=0), replicated / replicated.sum(axis=0)


def known_points(launches: Launches, shares: Array) -> NDArray[np.bool_]:
    """Return which points have a budget of every launch."""
    unknown = np.isnan(shares).any(axis=0)
    return np.asarray(np.bincount(launches.point, unknown, minlength=launches.points) == 0)


def budget_table(study: Study) -> pd.DataFrame:
    """Return one row per point on 2 workers or more, where it and its baseline on 1 worker have a budget.

    The parts sum to `deviation`; a negative part takes less time per image than on 1 worker. Intervals are
    paired by repeat where both points have the same ones. What is missing is in `budget_notes`.
    """
    study = study.timed
    runs = study.runs.reset_index(drop=True)
    shares = share_array(run_shares(study))
    launches = launches_of(runs, POINT)
    kept = known_points(launches, shares)[launches.point]
    runs, shares = runs[kept].reset_index(drop=True), shares[:, kept]
    if runs.empty:
        return pd.DataFrame(columns=_BUDGET_COLUMNS)
    launches = launches_of(runs, POINT)
    points = runs.groupby(launches.point)[POINT].first().assign(repeats=launches.sizes)
    baseline = baseline_rows(points)
    chosen = np.flatnonzero((baseline != NONE) & (points["workers"].to_numpy() > 1))
    baseline = baseline[chosen]
    table = points.iloc[chosen].reset_index(drop=True)

    def at_both(values: Array) -> tuple[Array, Array]:
        """Return replicates of the chosen points, and of their baselines as pairs with them."""
        drawn = launches.replicates(values)
        return drawn[chosen], launches.baseline_replicates(values, drawn, chosen, baseline)

    per_worker = (runs[study.throughput] / runs["workers"]).to_numpy(dtype=np.float64)
    medians = launches.medians(per_worker)
    efficiency = medians[chosen] / medians[baseline]
    here, alone = at_both(np.log(per_worker))
    efficiencies = np.exp(here - alone)
    _add(table, "deviation", 1 - efficiency, 1 - efficiencies)
    here, alone = (np.stack(drawn) for drawn in zip(*map(at_both, shares), strict=True))
    of_points = np.stack([launches.medians(part) for part in shares])
    of_points /= of_points.sum(axis=0)
    parts = of_points[:, chosen] - efficiency * of_points[:, baseline]
    replicated = here / here.sum(axis=0) - efficiencies * (alone / alone.sum(axis=0))
    for name, values, drawn in zip(PARTS, parts, replicated, strict=True):
        _add(table, name, values, drawn)
    contended = [PARTS.index(part) for part in CONTENDED_PARTS]
    _add(table, CONTENDED, parts[contended].sum(axis=0), replicated[contended].sum(axis=0))
    table["rest_of_step"] = of_points[PARTS.index("rest"), chosen]
    paced = np.asarray(runs["run"].map(host_paced_shares(study.budgets)), dtype=np.float64)
    table["host_paced"] = launches.medians(paced)[chosen]
    return table[_BUDGET_COLUMNS]


def _add(table: pd.DataFrame, name: str, values: Array, replicated: Array) -> None:
    """Add a difference of shares and its interval, which is not known where it reaches below -1."""
    ends = np.stack(bounds(replicated))
    add_bounded(table, name, [values, *np.where(ends[0] < -1, NAN, ends)])


def difference_table(study: Study, comparisons: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each pair of points in `comparisons` where all runs of its pairs have a budget.

    The parts are shares of native DDP's worker time and sum to `difference`, which is the ratio of
    throughputs, native DDP over Horovod, less 1, with the interval that the report's `comparisons` have.
    """
    pairs = paired_runs(study.runs)
    pairs = pairs[pairs["framework"] == COMPARED[1]].reset_index(drop=True)
    shares = run_shares(study).set_index("run")
    native, horovod = (share_array(shares.reindex(pairs[f"run_{arm}"])) for arm in _ARMS)
    launches = launches_of(pairs, PAIR)
    kept = known_points(launches, native + horovod)[launches.point]
    pairs = pairs[kept].reset_index(drop=True)
    if pairs.empty:
        return pd.DataFrame(columns=_DIFFERENCE_COLUMNS)
    launches = launches_of(pairs, PAIR)
    table = pairs.groupby(launches.point)[PAIR].first().assign(pairs=launches.sizes)
    compared = table[PAIR].merge(comparisons, on=PAIR, how="left")
    for end in ENDS:
        table[f"difference{end}"] = compared[f"ratio{end}"].to_numpy(dtype=np.float64) - 1
    of_native, drawn_native = shares_of(launches, native[:, kept])
    of_horovod, drawn_horovod = shares_of(launches, horovod[:, kept])
    ratios = np.exp(launches.replicates(paired_logarithms(study.throughput, pairs)))
    parts = compared["ratio"].to_numpy(dtype=np.float64) * of_horovod - of_native
    for name, values, drawn in zip(PARTS, parts, ratios * drawn_horovod - drawn_native, strict=True):
        _add(table, name, values, drawn)
    return table.sort_values(PAIR, kind="stable", ignore_index=True)


def budget_notes(study: Study, budget: pd.DataFrame) -> Iterator[str]:
    """Yield which points have no budget and why, and where too much of a step is left unexplained."""
    runs = study.runs.assign(no_budget=run_shares(study)["no_budget"].to_numpy())
    if (runs["no_budget"] != "").all():
        yield f"no overhead budget: {'; '.join(dict.fromkeys(runs['no_budget']))}"
        return
    known = set(budget[POINT].itertuples(index=False, name=None))
    points: dict[Any, pd.DataFrame] = dict(iter(runs.groupby(POINT, sort=False)))
    for key, point in points.items():
        if key[-1] > 1 and key not in known:
            alone = points.get((*key[:-1], 1))
            reason = NO_BASELINE.removeprefix("speed-up: ")
            if alone is not None:
                reason = _reason(point) or f"on 1 worker: {_reason(alone)}"
            yield f"{series_at(*key)}: no overhead budget: {reason}"
    for row in budget[budget["rest_of_step"] > MOST_REST].to_dict("records"):
        share = percent(row["rest_of_step"])
        yield f"{series_at(*(row[name] for name in POINT))}: no phase explains {share} of a step"


def _reason(runs: pd.DataFrame) -> str:
    """Return why a point has no budget; empty where all its runs have one."""
    missing = runs.loc[runs["no_budget"] != "", "no_budget"]
    return f"{missing.iloc[0]} ({len(missing)} of {len(runs)} runs)" if len(missing) else ""


def series_at(options: str, framework: Framework, knobs: str, workers: int) -> str:
    """Return "native DDP, bucket_cap_mb=5 on 2 workers"."""
    series = ", ".join(part for part in (NAMES[framework], knobs) if part)
    return f"{options + ': ' if options else ''}{series} on {count(workers, 'worker')}"


def gradient_bytes(header: Header) -> int:
    """Return the bytes of one step's gradients as one worker sends them; derived where a record is older."""
    return header.gradient_bytes or FLOAT32_BYTES * _parameter_count(header.config)


def _parameter_count(point: RunConfig) -> int:
    """Return the parameters of this point's U-Net: 487,145 at width 8, depth 5, 1 channel."""
    norm = point.model.batch_norm != "off"

    def two_convolutions(inputs: int, outputs: int) -> int:
        """Count two 3x3 convolutions with biases, each with weight and bias of its norm."""
        convolutions = 9 * inputs * outputs + 9 * outputs * outputs + 2 * outputs
        return convolutions + (4 * outputs if norm else 0)

    widths: list[int] = [point.model.width * 2**level for level in range(point.model.depth)]
    encoder = [two_convolutions(*level) for level in pairwise([point.data.channels, *widths])]
    decoder = [4 * deep * flat + flat + two_convolutions(deep, flat) for flat, deep in pairwise(widths)]
    return sum(encoder) + sum(decoder) + widths[0] + 1


def network_table(study: Study) -> pd.DataFrame:
    """Return one row per point of several workers whose runs all have a probe and a budget.

    Of those alone that average gradients at every step: others send another message, or less often. Medians
    over launches with their 95 % intervals; of the floor, over those whose probe reaches so far.
    """
    first = study.budgets.drop_duplicates("run").set_index("run")
    wire = (first["wire_seconds"] / first["steps"]).to_dict()
    measured = [
        {"run": str(run), "wire_seconds": wire[run], **_floors(study.headers, str(run), probe)}
        for run, probe in study.probes.groupby("run", observed=True)
        if study.headers[str(run)].config.strategy.averages_gradients
    ]
    runs = study.timed.runs.merge(pd.DataFrame(measured, columns=["run", *_MEASURED]), on="run")
    rows = []
    for key, point in runs.groupby(POINT, sort=False):
        if point[["wire_seconds", "latency_seconds"]].isna().any(axis=None):
            continue
        samples = [point[name].dropna().to_numpy(dtype=np.float64) for name in _MEASURED]
        bounded: list[float] = []
        for sample, ends in zip(samples, median_intervals(samples, NOT_NEGATIVE), strict=True):
            bounded += [float(np.median(sample)) if len(sample) else NAN, *ends]
        size = gradient_bytes(study.headers[point["run"].iloc[0]])
        rows.append((*key, len(point), size, *bounded))
    return pd.DataFrame(rows, columns=_NETWORK_COLUMNS)


def _floors(headers: Mapping[str, Header], run: str, probe: pd.DataFrame) -> dict[str, float]:
    """Return what the network needs for the gradients of a run, by its own probe."""
    sizes, seconds = (probe[name].to_numpy(dtype=np.float64) for name in ("bytes", "median_seconds"))
    size = gradient_bytes(headers[run])
    pace = float(seconds[-1] / sizes[-1])
    floor = float(np.interp(size, sizes, seconds)) if size <= sizes[-1] else pace * size
    is_reached = size <= MOST_EXTRAPOLATED * sizes[-1]
    return {
        "floor_seconds": floor if is_reached else NAN,
        "latency_seconds": float(np.median(seconds[sizes <= SHORT_BYTES])),
        "bytes_per_second": 1 / pace if is_reached else NAN,
    }
