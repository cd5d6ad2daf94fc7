"""What the rules of the diagnosis look at: one point's shares, losses, processor, network and workers.

Of the launches that count for speed (statistics/timed.py).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from analysis.budget.shares import PARTS, known_points, run_shares, share_array, shares_of
from analysis.loading.fairness import share_cores
from analysis.statistics.launches import launches_of
from analysis.statistics.timed import timed
from analysis.study import NAN, POINT, SERIES, Study
from unet_scaling.study.config import Framework, RunConfig
from unet_scaling.study.disturbance import DISTURBED_SHARE

SLOWER = 0.05
NO_NETWORK = {"floor_seconds": NAN, "latency_seconds": NAN}


@dataclass(frozen=True)
class Processor:
    """Of the workers of a point, medians over its runs; NaN where not recorded.

    communication     CPU seconds of the threads that carry gradients, as a share of the cores' time
    helpers           the same of all threads of the worker but the one that trains
    runqueue          share of its time that the training thread was ready outside sync, and had no core
    busy              share of a worker's time that went to other processes
    cores, frequency_mhz  of a worker, means
    """

    communication: float
    helpers: float
    runqueue: float
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
    """One point. `shares` are of its worker time, `losses` its overhead budget, NaN where there is none.

    `lows` are the low ends of the losses' intervals, NaN below 3 repeats. Seconds are of one step.
    `busy_launches` are those, of `launches`, that other programs disturbed. `mpi` names the library that the
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
    losses: Mapping[str, float]
    lows: Mapping[str, float]
    launches: int
    busy_launches: int
    mpi: str
    controller: str
    wire_seconds: float
    floor_seconds: float
    latency_seconds: float
    processor: Processor
    straggler: Straggler | None
    cores_shared: bool
    alone: "PointFacts | None" = None


def point_facts(study: Study, budget: pd.DataFrame, network: pd.DataFrame) -> Iterator[PointFacts]:
    """The facts of each series' largest worker count that has a budget."""
    study = timed(study)
    runs = study.runs.reset_index(drop=True)
    if runs.empty:
        return
    launches, shares = launches_of(study, runs, POINT), share_array(run_shares(study))
    known, medians = known_points(launches, shares), shares_of(launches, shares).medians
    points = runs.groupby(launches.point)[POINT].first()[known]
    for _, series in points.groupby(SERIES, sort=False):
        found = None
        for number in series.loc[[series["workers"].idxmin(), series["workers"].idxmax()]].index.unique():
            of = _Tables(study, runs[launches.point == number], budget, network)
            found = _facts(of, dict(zip(PARTS, medians[:, number], strict=True)), found)
        if found is not None:
            yield found


@dataclass(frozen=True)
class _Tables:
    """The study, and the runs of one point in it."""

    study: Study
    runs: pd.DataFrame
    budget: pd.DataFrame
    network: pd.DataFrame

    def row(self, table: pd.DataFrame) -> Mapping[Any, Any]:
        """The point's row of a table that has one per point; empty where it has none."""
        first = self.runs.iloc[0]
        rows = table[(table[POINT] == first[POINT]).all(axis=1)]
        return rows.to_dict("records")[0] if len(rows) else {}


def _facts(of: _Tables, shares: Mapping[str, float], smaller: PointFacts | None) -> PointFacts:
    first = of.runs.iloc[0]
    budgets = of.study.budgets[of.study.budgets["run"].isin(of.runs["run"])]
    headers = [of.study.headers[run] for run in of.runs["run"]]
    budget, network = of.row(of.budget), NO_NETWORK | dict(of.row(of.network))
    return PointFacts(
        options=first["options"],
        framework=first["framework"],
        knobs=first["knobs"],
        workers=int(first["workers"]),
        point=headers[0].config,
        step_seconds=float(of.runs["step_seconds"].median()),
        shares=shares,
        losses={part: budget.get(part, NAN) for part in PARTS},
        lows={part: budget.get(f"{part}_low", NAN) for part in PARTS},
        launches=len(of.runs),
        busy_launches=int((of.runs["busy_share"] >= DISTURBED_SHARE).sum()),
        mpi=headers[0].versions.get("mpi", ""),
        controller=headers[0].transport.get("controller", ""),
        wire_seconds=_per_run(budgets, "wire_seconds", "steps"),
        floor_seconds=network["floor_seconds"],
        latency_seconds=network["latency_seconds"],
        processor=_processor(of.runs, budgets),
        straggler=_straggler(budgets),
        cores_shared=any(share_cores(header) for header in headers),
        alone=smaller if smaller is not None and smaller.workers == 1 else None,
    )


def _processor(runs: pd.DataFrame, budgets: pd.DataFrame) -> Processor:
    core_seconds = budgets["worker_seconds"] * budgets["cores"].astype(float)
    budgets = budgets.assign(core_seconds=core_seconds)
    return Processor(
        communication=_per_run(budgets, "communication_cpu_seconds", "core_seconds"),
        helpers=_per_run(budgets, "helper_cpu_seconds", "core_seconds"),
        runqueue=_per_run(budgets, "waiting_seconds", "worker_seconds"),
        busy=float(runs["busy_share"].median()),
        cores=float(budgets["cores"].median()),
        frequency_mhz=float(budgets["frequency_mhz"].median()),
    )


def _per_run(budgets: pd.DataFrame, above: str, below: str) -> float:
    """Median over the runs of a ratio of sums over their workers; NaN where one is not known."""
    means = budgets.groupby("run", observed=True)[[above, below]].mean()
    known = budgets[[above, below]].notna().all(axis=None)
    return float((means[above] / means[below]).median()) if known else NAN


def _straggler(budgets: pd.DataFrame) -> Straggler | None:
    """Who is slower than the others by SLOWER in more than half of its runs, by own work without sync."""
    several = budgets.groupby("run", observed=True)["host"].nunique().gt(1).all()
    names = budgets["host"] if several else "worker " + budgets["worker"].astype(str)
    busy = (budgets["worker_seconds"] - budgets["sync_seconds"]).astype(float)
    whole = budgets.groupby("run", observed=True)["worker_seconds"].transform("sum").astype(float)
    table = pd.DataFrame(
        {"run": budgets["run"].astype(str), "name": names, "busy": busy, "part": busy / whole}
    )
    means = table.groupby(["run", "name"])["busy"].mean().unstack("name")
    parts = table.groupby(["run", "name"])["part"].sum().unstack("name")
    of_steps = len(budgets["worker"].unique()) * table.groupby(["run", "name"])["part"].mean().unstack("name")
    found = []
    for name in means.columns:
        excess = _excess(means, name)
        seen = excess[excess > SLOWER]
        if 2 * len(seen) > len(excess):
            longer = (excess / (1 + excess))[seen.index]
            of_step, share = ((part[name] * longer).median() for part in (of_steps, parts))
            found.append(
                Straggler(name, bool(several), seen.median(), of_step, share, len(seen), len(excess))
            )
    return max(found, key=lambda each: each.slower, default=None)


def _excess(means: pd.DataFrame, name: str) -> "pd.Series[float]":
    """In each of its runs, by how much a host takes longer than the median of the others."""
    others = means.drop(columns=name).median(axis=1)
    return (means[name] / others - 1).dropna()
