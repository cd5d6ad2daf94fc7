"""The facts of one point that the rules of the diagnosis judge: shares, processor, network and straggler.

Of the launches that count for speed (stats.timed).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from analysis.budget.shares import PARTS, Shares, known_points, run_shares, share_array, shares_of
from analysis.budget.tables import CONTENDED
from analysis.facts import share_cores
from analysis.stats import Interval, launches_of, timed
from analysis.study import NAN, POINT, SERIES, Study
from unet_scaling.study.config import Framework, RunConfig
from unet_scaling.study.disturbance import DISTURBED_SHARE
from unet_scaling.study.record_lines import Header

# Relative, of the own work without sync. Equal workers differ by less; a slower clock or memory by more.
SLOWER = 0.05


@dataclass(frozen=True)
class Processor:
    """Of the workers of a point, medians over its runs; NaN where not recorded.

    communication     CPU seconds of the threads that carry gradients, as a share of the cores' time
    helpers           the same of all threads of the worker but the one that trains
    runqueue          share of its time that the training thread at least waited for a core outside sync
    runqueue_most     the same in sync or not: it was no more outside sync
    busy              share of a worker's time that went to other processes
    cores, frequency_mhz  of a worker, means
    """

    communication: float
    helpers: float
    runqueue: float
    runqueue_most: float
    busy: float
    cores: float
    frequency_mhz: float


@dataclass(frozen=True)
class Straggler:
    """A host, or a worker where all are on one, that is slower than the others in most of its runs.

    `slower` is by how much longer it works than they do, `of_step` how much of a step and `share` how much
    of all workers' time that is.
    """

    name: str
    is_host: bool
    slower: float
    of_step: float
    share: float
    seen: int
    runs: int


@dataclass(frozen=True)
class PointFacts:
    """One point: its shares of worker time and their overhead against 1 worker, NaN where not known.

    Both are of each part, with intervals, which are NaN below 3 repeats; there is also the overhead of what
    contention makes longer (tables.CONTENDED). Seconds are of one step.
    `busy_launches` are those, of `launches`, that other programs disturbed; they had at most `busiest` of
    the workers' time. `mpi` names the library that the
    workers loaded, `controller` what Horovod negotiates by; empty where not recorded. `alone` is the same
    series on 1 worker.
    """

    options: str
    framework: Framework
    knobs: str
    workers: int
    point: RunConfig
    step_seconds: float
    shares: Mapping[str, float]
    share_intervals: Mapping[str, Interval]
    overhead: Mapping[str, float]
    overhead_intervals: Mapping[str, Interval]
    launches: int
    busy_launches: int
    busiest: float
    mpi: str
    controller: str
    wire_seconds: float
    floor_seconds: float
    latency_seconds: float
    processor: Processor
    straggler: Straggler | None
    cores_shared: bool
    alone: "PointFacts | None" = None

    def more_than_alone(self, name: str) -> float:
        """Return how much more of the workers' time a fact of the processor is than on 1 worker.

        As the overhead is: less what 1 worker has of it, times the efficiency. NaN where one is not known.
        """
        if self.alone is None:
            return NAN
        efficiency = 1 - sum(self.overhead[part] for part in PARTS)
        here, alone = (getattr(point.processor, name) for point in (self, self.alone))
        return float(here - efficiency * alone)


def point_facts(study: Study, budget: pd.DataFrame, network: pd.DataFrame) -> Iterator[PointFacts]:
    """Yield the facts of each series' largest worker count that has a budget."""
    study = timed(study)
    runs = study.runs.reset_index(drop=True)
    if runs.empty:
        return
    launches = launches_of(runs, POINT)
    shares = share_array(run_shares(study))
    of_points = shares_of(launches, shares)
    points = runs.groupby(launches.point)[POINT].first()[known_points(launches, shares)]
    for _, series in points.groupby(SERIES, sort=False):
        facts = None
        for number in _smallest_and_largest(series):
            of_point = runs[launches.point == number]
            point = _Point(study, of_point, budget, network, of_points, number)
            facts = _facts(point, facts)
        if facts is not None:
            yield facts


def _smallest_and_largest(series: pd.DataFrame) -> list[Any]:
    """Return the numbers of the points of a series with the fewest and the most workers."""
    by_workers = series.sort_values("workers", kind="stable").index
    return list(dict.fromkeys((by_workers[0], by_workers[-1])))


@dataclass(frozen=True)
class _Point:
    """The study, the runs of one point in it, the shares of worker time of all points, its number there."""

    study: Study
    runs: pd.DataFrame
    budget: pd.DataFrame
    network: pd.DataFrame
    shares: Shares
    number: int

    @property
    def identity(self) -> Mapping[str, Any]:
        return {name: self.runs[name].tolist()[0] for name in POINT}

    @property
    def budgets(self) -> pd.DataFrame:
        return self.study.budgets[self.study.budgets["run"].isin(self.runs["run"])]

    @property
    def headers(self) -> list[Header]:
        return [self.study.headers[run] for run in self.runs["run"]]

    def row(self, table: pd.DataFrame) -> Mapping[Any, Any]:
        """Return the point's row of a table that has one per point; empty where it has none."""
        rows = table[(table[POINT] == self.runs[POINT].iloc[0]).all(axis=1)]
        return rows.to_dict("records")[0] if len(rows) else {}


def _facts(point: _Point, smaller: PointFacts | None) -> PointFacts:
    budget = point.row(point.budget)
    parts = (*PARTS, CONTENDED)
    return PointFacts(
        **point.identity,
        **_of_runs(point.runs),
        **_of_headers(point.headers),
        **_of_network(point),
        shares=point.shares.of_point(point.number),
        share_intervals=point.shares.intervals_of_point(point.number),
        overhead={part: budget.get(part, NAN) for part in parts},
        overhead_intervals={part: _interval(budget, part) for part in parts},
        processor=_processor(point),
        straggler=_straggler(point.budgets),
        alone=smaller if smaller is not None and smaller.workers == 1 else None,
    )


def _interval(row: Mapping[Any, Any], name: str) -> Interval:
    return row.get(f"{name}_low", NAN), row.get(f"{name}_high", NAN)


def _of_runs(runs: pd.DataFrame) -> dict[str, Any]:
    return {
        "step_seconds": float(runs["step_seconds"].median()),
        "launches": len(runs),
        "busy_launches": int((runs["busy_share"] >= DISTURBED_SHARE).sum()),
        "busiest": float(runs["busy_share"].max()),
    }


def _of_headers(headers: Sequence[Header]) -> dict[str, Any]:
    return {
        "point": headers[0].config,
        "mpi": headers[0].versions.get("mpi", ""),
        "controller": headers[0].transport.get("controller", ""),
        "cores_shared": any(map(share_cores, headers)),
    }


def _of_network(point: _Point) -> dict[str, Any]:
    row = point.row(point.network)
    return {
        "wire_seconds": _per_run(point.budgets, "wire_seconds", "steps"),
        "floor_seconds": row.get("floor_seconds", NAN),
        "latency_seconds": row.get("latency_seconds", NAN),
    }


def _processor(point: _Point) -> Processor:
    core_seconds = point.budgets["worker_seconds"] * point.budgets["cores"].astype(float)
    budgets = point.budgets.assign(core_seconds=core_seconds)
    return Processor(
        communication=_per_run(budgets, "communication_cpu_seconds", "core_seconds"),
        helpers=_per_run(budgets, "helper_cpu_seconds", "core_seconds"),
        runqueue=_per_run(budgets, "waiting_seconds", "worker_seconds"),
        runqueue_most=_per_run(budgets, "runqueue_seconds", "worker_seconds"),
        busy=float(point.runs["busy_share"].median()),
        cores=float(budgets["cores"].median()),
        frequency_mhz=float(budgets["frequency_mhz"].median()),
    )


def _per_run(budgets: pd.DataFrame, above: str, below: str) -> float:
    """Return the median over runs of a ratio of sums over their workers; NaN where one is not known."""
    means = budgets.groupby("run", observed=True)[[above, below]].mean()
    known = budgets[[above, below]].notna().all(axis=None)
    return float((means[above] / means[below]).median()) if known else NAN


def _straggler(budgets: pd.DataFrame) -> Straggler | None:
    """Return who is slower than the others by SLOWER in more than half of its runs, the slowest first."""
    several_hosts = bool(budgets.groupby("run", observed=True)["host"].nunique().gt(1).all())
    names = budgets["host"] if several_hosts else "worker " + budgets["worker"].astype(str)
    work = _own_work(budgets, names)
    slow = [_slower_than_others(work, name, several_hosts) for name in work["seconds"].columns]
    return max(filter(None, slow), key=lambda straggler: straggler.slower, default=None)


def _own_work(budgets: pd.DataFrame, names: "pd.Series[str]") -> Mapping[str, pd.DataFrame]:
    """Return the own work without sync of each name in each run, tables (runs, names).

    `seconds` are means over its workers, `share` and `of_step` parts of the time of all workers and of one.
    """
    seconds = (budgets["worker_seconds"] - budgets["sync_seconds"]).astype(float)
    time = budgets.groupby("run", observed=True)["worker_seconds"].transform("sum").astype(float)
    table = pd.DataFrame({"run": budgets["run"].astype(str), "name": names, "seconds": seconds})
    grouped = table.assign(share=seconds / time).groupby(["run", "name"])
    return {
        "seconds": grouped["seconds"].mean().unstack("name"),
        "share": grouped["share"].sum().unstack("name"),
        "of_step": budgets["worker"].nunique() * grouped["share"].mean().unstack("name"),
    }


def _slower_than_others(work: Mapping[str, pd.DataFrame], name: str, is_host: bool) -> Straggler | None:
    """Return a straggler if its seconds exceed the median of the others in more than half of its runs."""
    others = work["seconds"].drop(columns=name).median(axis=1)
    excess = (work["seconds"][name] / others - 1).dropna()
    seen = excess[excess > SLOWER]
    if 2 * len(seen) <= len(excess):
        return None
    longer = seen / (1 + seen)
    of_step, share = (float((work[part][name] * longer).median()) for part in ("of_step", "share"))
    return Straggler(name, is_host, float(seen.median()), of_step, share, len(seen), len(excess))
