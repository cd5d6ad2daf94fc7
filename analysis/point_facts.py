"""The facts of one point that the rules of the diagnosis judge: shares, processor, network and straggler."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.budget import PARTS, known_points, run_shares, share_array, shares_of
from analysis.facts import share_cores
from analysis.stats import SHARE, bounds, launches_of, timed
from analysis.study import NAN, POINT, SERIES, Study
from unet_scaling.study.config import Framework, RunConfig
from unet_scaling.study.disturbance import DISTURBED_SHARE

# Relative, of the own work without sync. Equal workers differ by less; a slower clock or memory by more.
SLOWER = 0.05
# Of an overhead, for what is named as its cause: two causes cannot each be the larger half.
EXPLAINS = 0.5

Numbers = Mapping[str, float]


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

    def explains(self, imbalance: float) -> bool:
        """Return whether what it works longer can be half of what the workers wait for each other."""
        return self.of_step >= EXPLAINS * imbalance


@dataclass(frozen=True)
class PointFacts:
    """One point: its shares of worker time and their overhead against 1 worker, NaN where not known.

    shares, overhead  of each part, with `_low` and `_high`, which are NaN below 3 repeats; overhead also of
                      CONTENDED, what contention makes longer
    processor         of the workers, medians over the runs: CPU seconds of the `communication` threads, and
                      of all `helpers` beside the training thread, as shares of the cores' time; which share
                      of its time the training thread at least waited for a core outside sync, `runqueue`, or
                      in sync or not, `runqueue_most`; the share that went to other processes, `busy`;
                      `cores` and `frequency_mhz` of a worker
    network           seconds of one step on the `wire`, of its `floor` and of an empty message, `latency`
    busy_launches     those, of `launches`, that other programs disturbed; they had at most `busiest`
    mpi, controller   the library that the workers loaded, and what Horovod negotiates by; "": not recorded
    alone             the same series on 1 worker
    """

    options: str
    framework: Framework
    knobs: str
    workers: int
    point: RunConfig
    step_seconds: float
    shares: Numbers
    overhead: Numbers
    processor: Numbers
    network: Numbers
    launches: int
    busy_launches: int
    busiest: float
    mpi: str
    controller: str
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
        return self.processor[name] - efficiency * self.alone.processor[name]


def point_facts(study: Study, budget: pd.DataFrame, network: pd.DataFrame) -> Iterator[PointFacts]:
    """Yield the facts of each series' largest worker count that has a budget.

    They are of the launches that count for speed; `budget` and `network` are tables of this study.
    """
    study = timed(study)
    runs = study.runs.reset_index(drop=True)
    if runs.empty:
        return
    launches = launches_of(runs, POINT)
    shares = share_array(run_shares(study))
    medians, replicated = shares_of(launches, shares)
    ends = np.clip(np.stack(bounds(replicated)), *SHARE)
    points = runs.groupby(launches.point)[POINT].first()[known_points(launches, shares)]
    for _, series in points.groupby(SERIES, sort=False):
        by_workers = series.sort_values("workers", kind="stable").index
        facts: PointFacts | None = None
        for number in dict.fromkeys((by_workers[0], by_workers[-1])):
            of_point = {
                f"{part}{end}": float(values[place, number])
                for end, values in zip(("", "_low", "_high"), (medians, *ends), strict=True)
                for place, part in enumerate(PARTS)
            }
            alone: PointFacts | None = facts if facts is not None and facts.workers == 1 else None
            of_runs = runs[launches.point == number]
            overhead, of_network = (_row_of(of_runs, table) for table in (budget, network))
            facts = _facts(study, of_runs, of_point, overhead, of_network, alone)
        if facts is not None:
            yield facts


def _facts(
    study: Study,
    runs: pd.DataFrame,
    shares: Numbers,
    overhead: Numbers,
    network: Numbers,
    alone: PointFacts | None,
) -> PointFacts:
    budgets = study.budgets[study.budgets["run"].isin(runs["run"])]
    budgets = budgets.assign(core_seconds=budgets["worker_seconds"] * budgets["cores"].astype(float))
    headers = [study.headers[run] for run in runs["run"]]
    return PointFacts(
        **{name: runs[name].tolist()[0] for name in POINT},
        point=headers[0].config,
        step_seconds=float(runs["step_seconds"].median()),
        shares=shares,
        overhead=overhead,
        processor={
            "communication": _per_run(budgets, "communication_cpu_seconds", "core_seconds"),
            "helpers": _per_run(budgets, "helper_cpu_seconds", "core_seconds"),
            "runqueue": _per_run(budgets, "waiting_seconds", "worker_seconds"),
            "runqueue_most": _per_run(budgets, "runqueue_seconds", "worker_seconds"),
            "busy": float(runs["busy_share"].median()),
            "cores": float(budgets["cores"].median()),
            "frequency_mhz": float(budgets["frequency_mhz"].median()),
        },
        network={
            "wire": _per_run(budgets, "wire_seconds", "steps"),
            "floor": network["floor_seconds"],
            "latency": network["latency_seconds"],
        },
        launches=len(runs),
        busy_launches=int((runs["busy_share"] >= DISTURBED_SHARE).sum()),
        busiest=float(runs["busy_share"].max()),
        mpi=headers[0].versions.get("mpi", ""),
        controller=headers[0].transport.get("controller", ""),
        straggler=_straggler(budgets),
        cores_shared=any(map(share_cores, headers)),
        alone=alone,
    )


def _row_of(runs: pd.DataFrame, table: pd.DataFrame) -> Mapping[Any, Any]:
    """Return the row that a table has of the point of these runs, NaN of what it has not."""
    rows = table[(table[POINT] == runs[POINT].iloc[0]).all(axis=1)]
    return defaultdict(lambda: NAN, rows.to_dict("records")[0] if len(rows) else {})


def _per_run(budgets: pd.DataFrame, above: str, below: str) -> float:
    """Return the median over runs of a ratio of sums over their workers; NaN where one is not known."""
    means = budgets.groupby("run", observed=True)[[above, below]].mean()
    known = budgets[[above, below]].notna().all(axis=None)
    return float((means[above] / means[below]).median()) if known else NAN


def _straggler(budgets: pd.DataFrame) -> Straggler | None:
    """Return who is slower than the others by SLOWER in more than half of its runs, the slowest one."""
    is_host = bool(budgets.groupby("run", observed=True)["host"].nunique().gt(1).all())
    seconds = (budgets["worker_seconds"] - budgets["sync_seconds"]).astype(float)
    time = budgets.groupby("run", observed=True)["worker_seconds"].transform("sum").astype(float)
    names = budgets["host"] if is_host else "worker " + budgets["worker"].astype(str)
    own = pd.DataFrame({"run": budgets["run"].astype(str), "name": names, "seconds": seconds})
    grouped = own.assign(share=seconds / time).groupby(["run", "name"])
    # The own work without sync of each name in each run, (runs, names): mean over its workers, and its parts
    # of the time of all workers and of one.
    work = grouped["seconds"].mean().unstack("name")
    shares = grouped["share"].sum().unstack("name")
    of_step = budgets["worker"].nunique() * grouped["share"].mean().unstack("name")
    slow = []
    for name in work.columns:
        excess = (work[name] / work.drop(columns=name).median(axis=1) - 1).dropna()
        seen = excess[excess > SLOWER]
        if 2 * len(seen) > len(excess):
            longer = seen / (1 + seen)
            lost, share = (float((part[name] * longer).median()) for part in (of_step, shares))
            slow.append(Straggler(name, is_host, float(seen.median()), lost, share, len(seen), len(excess)))
    return max(slow, key=lambda straggler: straggler.slower, default=None)
