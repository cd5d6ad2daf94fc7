"""What a record measured beside its epochs, as columns: budget, probe and start."""

from collections.abc import Callable, Collection, Iterable, Sequence
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from analysis.loading.gpu_columns import gpu_columns
from analysis.study import BUDGET_COLUMNS, NAN, PROBE_COLUMNS
from unet_scaling.study.disturbance import helper_seconds, waiting_seconds
from unet_scaling.study.measurements import PHASE_COLUMNS, STARTUP_COLUMNS, CpuFacts
from unet_scaling.study.record import Record
from unet_scaling.study.record_lines import Epoch

Columns = dict[str, NDArray[np.generic]]

NOT_RECORDED = "the run recorded no budget (training.budget was off, or its code is older)"
PROCESSOR: dict[str, Callable[[CpuFacts], float | None]] = {
    "process_cpu_seconds": lambda facts: facts.process_seconds,
    "training_cpu_seconds": lambda facts: facts.thread_seconds.get("training"),
    "communication_cpu_seconds": lambda facts: facts.thread_seconds.get("communication"),
    "helper_cpu_seconds": helper_seconds,
    "runqueue_seconds": lambda facts: facts.training_runqueue_seconds,
}


def budget_columns(record: Record, stalled: Collection[int] = ()) -> Columns:
    """Return one row per worker, by rank: BUDGET_COLUMNS without the run's name.

    `seconds`, `images` and `steps` are of the whole run and equal in all its rows, as is `wire_seconds`;
    `worker_seconds`, the phases and CPU seconds are the worker's own, and so are `waiting_seconds`: how long
    its training thread at least was ready outside sync and had no core, and `runqueue_seconds`, the same in
    sync or not, so the most that it can have been. `epochs` are those summed: neither warm-up nor
    `stalled`, so that one stall does not pass for the network or the computing of the whole run.
    `cores` and `frequency_mhz` are means, `peak_memory_bytes` is the highest. Where one of these epochs has
    no budget, phases and wire are NaN and `no_budget` says why: a part of the epochs would not sum to the
    run's seconds. Without an epoch to sum there is no row.
    """
    assert record.provenance is not None
    used = [epoch for epoch in record.epochs if not epoch.warmup and epoch.epoch not in stalled]
    if not used:
        return {name: np.array([]) for name in BUDGET_COLUMNS if name != "run"}
    workers = record.provenance.workers
    found = _of_the_run(used, len(workers)) | _phases(used, len(workers)) | _processor(used, len(workers))
    found |= gpu_columns(used, len(workers))
    found["worker"] = np.arange(len(workers))
    found["host"] = np.array([worker.host for worker in workers], dtype=object)
    return {name: found[name] for name in BUDGET_COLUMNS if name != "run"}


def startup_columns(record: Record) -> Columns:
    """Return one row per worker, by rank: its number and the seconds of each part.

    There is no row where the record has no start: an older format, or a system other than Linux.
    """
    if record.startup is None:
        return {name: np.array([], dtype=np.float64) for name in ("worker", *STARTUP_COLUMNS)}
    columns: Columns = {
        name: np.array(getattr(record.startup, name), dtype=np.float64) for name in STARTUP_COLUMNS
    }
    return {"worker": np.arange(len(columns["imports_seconds"]))} | columns


def probe_columns(record: Record) -> Columns:
    """Return one row per message size: PROBE_COLUMNS without the run's name; none without a probe."""
    names = PROBE_COLUMNS[1:]
    if record.probe is None:
        return {name: np.array([], dtype=np.float64) for name in names}
    return {name: np.array(getattr(record.probe, name), dtype=np.float64) for name in names}


def _of_the_run(epochs: Sequence[Epoch], workers: int) -> Columns:
    sums = {name: sum(getattr(each, name) for each in epochs) for name in ("seconds", "images", "steps")}
    columns: Columns = {name: np.full(workers, float(value)) for name, value in sums.items()}
    columns["epochs"] = np.full(workers, len(epochs))
    columns["worker_seconds"] = np.sum([epoch.worker_seconds for epoch in epochs], axis=0)
    return columns


def _phases(epochs: Sequence[Epoch], workers: int) -> Columns:
    budgets = [epoch.budget for epoch in epochs if epoch.budget is not None]
    if len(budgets) < len(epochs):
        why = next((each.no_budget for each in epochs if each.no_budget), NOT_RECORDED)
        unknown = _unknown((*PHASE_COLUMNS, "wire_seconds"), workers)
        return unknown | {"no_budget": np.full(workers, why, dtype=object)}
    known: Columns = {
        name: np.sum([getattr(each, name) for each in budgets], axis=0) for name in PHASE_COLUMNS
    }
    wire = sum(each.wire_seconds for each in budgets)
    return known | {"wire_seconds": np.full(workers, wire), "no_budget": np.full(workers, "", dtype=object)}


def _processor(epochs: Sequence[Epoch], workers: int) -> Columns:
    """CPU and waiting seconds; NaN where one of the epochs does not say."""
    facts = [epoch.cpu for epoch in epochs if epoch.cpu is not None]
    if len(facts) < len(epochs):
        return _unknown(
            (*PROCESSOR, "waiting_seconds", "cores", "frequency_mhz", "peak_memory_bytes"), workers
        )
    columns: Columns = {name: _numbers(facts, value).sum(axis=0) for name, value in PROCESSOR.items()}
    for name in ("cores", "frequency_mhz"):
        columns[name] = _numbers(facts, attrgetter(name)).mean(axis=0)
    columns["peak_memory_bytes"] = _numbers(facts, attrgetter("peak_memory_bytes")).max(axis=0)
    columns["waiting_seconds"] = _waiting_seconds(epochs, workers)
    return columns


def _waiting_seconds(epochs: Sequence[Epoch], workers: int) -> NDArray[np.float64]:
    """Return the seconds that each worker waited for a core over all epochs, [workers]."""
    waiting = [[_waiting(epoch, worker) for worker in range(workers)] for epoch in epochs]
    return np.asarray(np.sum(waiting, axis=0), dtype=np.float64)


def _unknown(names: Iterable[str], workers: int) -> Columns:
    return {name: np.full(workers, NAN) for name in names}


def _waiting(epoch: Epoch, worker: int) -> float:
    if epoch.cpu is None or epoch.budget is None:
        return NAN
    sync = epoch.budget.sync_seconds[worker]
    waited = waiting_seconds(epoch.cpu[worker], epoch.worker_seconds[worker], sync)
    return NAN if waited is None else waited


def _numbers(
    facts: Sequence[Sequence[CpuFacts]], value: Callable[[CpuFacts], float | None]
) -> NDArray[np.float64]:
    """[epochs, workers]"""
    known = [[value(each) for each in workers] for workers in facts]
    return np.array([[NAN if each is None else each for each in row] for row in known], dtype=np.float64)
