"""One run folder: its record as rows of the study's tables, or why the run cannot be used by itself."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.read.impossible import impossible_values, infidelity
from analysis.study import (
    BUDGET_COLUMNS,
    BUILT_IN_SCORE,
    EPOCH_COLUMNS,
    EVALUATION_COLUMNS,
    GPU_COLUMNS,
    NAN,
    NO_STATISTICS,
    PROBE_COLUMNS,
    RECOMPUTED,
    RUNNING,
    SCORE_COLUMNS,
    STARTUP_TABLE_COLUMNS,
    Array,
    LeftOut,
    Run,
)
from unet_scaling.base.errors import UserError
from unet_scaling.base.validation import StrictModel
from unet_scaling.format import record_lines
from unet_scaling.format.disturbance import Disturbance, disturbance, helper_seconds, waiting_seconds
from unet_scaling.format.record import Record
from unet_scaling.format.run_state import (
    STATE_OF_END,
    Exclusion,
    State,
    first_problem,
    last_complete,
    recorded_run,
)
from unet_scaling.study.config import SHARED_TABLES, RunConfig
from unet_scaling.study.study_file import config_path, read_config

Columns = dict[str, NDArray[np.generic]]
Cells = dict[str, Any]
# {digest of what was measured: its epoch}
Digests = Mapping[int, int]

# The tables of a study besides epochs, by name.
ROW_TABLES: Mapping[str, Sequence[str]] = {
    "evaluations": EVALUATION_COLUMNS,
    "scores": SCORE_COLUMNS,
    "probes": PROBE_COLUMNS,
    "startups": STARTUP_TABLE_COLUMNS,
}
_RECORDED = [name for name in EPOCH_COLUMNS if name not in ("run", "fastest_worker_seconds", "stalled")]
# One call for all columns of an epoch: a study of 10,000 runs has two million epochs.
_OF_EPOCH = attrgetter(*_RECORDED)
_SPEEDS = (
    "images_per_second", "epochs_per_second", "seconds_per_epoch", "images_per_epoch", "steps_per_epoch",
    "step_seconds", "loss",
)  # fmt: skip
_CPU_SUMS: Mapping[str, Callable[[record_lines.CpuFacts], float | None]] = {
    "process_cpu_seconds": lambda facts: facts.process_seconds,
    "training_cpu_seconds": lambda facts: facts.thread_seconds.get("training"),
    "communication_cpu_seconds": lambda facts: facts.thread_seconds.get("communication"),
    "helper_cpu_seconds": helper_seconds,
    "runqueue_seconds": lambda facts: facts.training_runqueue_seconds,
}
_OF_GPU: Mapping[str, Callable[[record_lines.GpuFacts], float | None]] = {
    "gpu_throttled": lambda facts: None if facts.throttle_reasons is None else bool(facts.throttle_reasons),
}
_NOT_RECORDED = "the run recorded no budget (training.budget was off, or its code is older)"
# So many different numbers agree in no two of 10,000 runs by chance.
FEWEST_NUMBERS = 3
# Tables of options, of which the runs of a study have most in common: one object for all saves memory.
_FIRST_EQUAL: dict[StrictModel, StrictModel] = {}


@dataclass(frozen=True)
class CompleteRun:
    """A run whose record is complete and can give a throughput, or tells of saliency maps.

    `row` is that of the table of runs, but for what the other runs of the study decide; `epochs` has one
    array per column, `rows` the rows of each of ROW_TABLES, all without the run's name. `config` is the
    header's, with the operational options that all runs compared share; `score_name` is that of the score
    which is judged. `running` are the cells of the last evaluation that differ with the statistics of norm
    layers that training left.
    """

    name: str
    header: record_lines.Header
    config: RunConfig
    row: Run
    epochs: Columns
    workers: Columns
    rows: Mapping[str, Sequence[Cells]]
    score_name: str
    digests: Digests
    saliency: record_lines.Saliency | None = None
    image_ious: Array | None = None
    running: Cells = field(default_factory=dict)

    def with_running_score(self) -> "CompleteRun":
        """Return the run as its last evaluation scores it with the statistics that training left.

        Of its other evaluations, and of its further scores, these are not known.
        """
        last = self.rows["evaluations"][-1] | self.running
        row = replace(self.row, iou=self.row.iou_running, statistics=RUNNING, dice=NAN, scores="")
        return replace(
            self, row=row, rows={**self.rows, "evaluations": [last], "scores": []}, image_ious=None
        )

    @property
    def has_throughput(self) -> bool:
        """Return whether an epoch counts for speed; else the run is here for its saliency maps."""
        return not self.epochs["warmup"].all()


# Runs that can be used, and those that cannot.
Loaded = tuple[list[CompleteRun], list[LeftOut]]


def unusable(name: str, config: RunConfig, state: State | Exclusion, reason: str) -> LeftOut:
    """Return the run of this configuration as one that is not used."""
    point = config.framework, config.workers, config.repeat
    return LeftOut(name, state, escape_unprintable(reason), *point, config=config)


def read_run(folder: Path) -> CompleteRun | LeftOut:
    """Return the run in a folder, or why it cannot be used by itself."""
    try:
        config = read_config(config_path(folder))
    except (UserError, OSError) as error:  # OSError: a folder that may not be looked into
        return LeftOut(name_of(folder), "invalid", escape_unprintable(str(error)))
    run = last_complete(recorded_run(folder, config))
    if run.record is None or not run.state.is_complete:
        state, reason = run.state.state, run.state.reason
        told = f"{state}: {reason}" if state in STATE_OF_END.values() else reason
        return unusable(name_of(folder), config, state, told or "no record yet: it has not started")
    if why := why_unusable(run.record):
        return unusable(name_of(folder), config, *why)
    return _complete_run(folder, run.record)


def why_unusable(record: Record) -> tuple[State | Exclusion, str] | None:
    """Return (state, reason) of a complete record that gives no throughput, or not that of its cluster."""
    assert record.header is not None
    # A played run has no times of its own to be without.
    has_maps = record.saliency is not None and not record.header.config.is_played
    if all(epoch.warmup for epoch in record.epochs) and not has_maps:
        warmed = f"{len(record.epochs)} epochs, none after the warm-up of a start"
        return "no throughput", f"{warmed}: run --repeat-disturbed measures it again"
    problems = tuple(impossible_values(record))
    if problems:
        return "invalid", first_problem(problems)
    unfaithful = infidelity(record, disturbance(record).stalled_epochs)
    return ("invalid", unfaithful) if unfaithful else None


def _complete_run(folder: Path, record: Record) -> CompleteRun:
    assert record.header is not None
    disturbed = disturbance(record)
    header = record.header
    tables = {name: getattr(header.config, name) for name in SHARED_TABLES}
    tables = {name: _FIRST_EQUAL.setdefault(table, table) for name, table in tables.items()}
    config = header.config.model_copy(update=tables)
    header = header.model_copy(update={"config": config})
    epochs = epoch_columns(record.epochs, disturbed.stalled_epochs)
    workers = worker_columns(record, disturbed.stalled_epochs)
    rows = {
        "evaluations": [_evaluation_row(result) for result in record.results],
        "scores": [
            {"epochs": result.epochs, "score": name, "value": NAN if value is None else value}
            for result in record.results
            if isinstance(result, record_lines.Scores) and len(result.scores) > 1
            for name, value in result.scores.items()
        ],
        "probes": _rows_of_lists(record.probe, PROBE_COLUMNS[1:]),
        "startups": [
            {"worker": worker} | row
            for worker, row in enumerate(_rows_of_lists(record.startup, record_lines.STARTUP_COLUMNS))
        ],
    }
    last = rows["evaluations"][-1] if rows["evaluations"] and not header.is_emulated else {}
    scores = [(row["score"], row["value"]) for row in rows["scores"] if row["epochs"] == last.get("epochs")]
    image_ious = getattr(record.results[-1], "image_ious", None) if last else None
    row = Run(
        run=name_of(folder),
        framework=config.framework,
        workers=config.workers,
        repeat=config.repeat,
        seed=config.seed,
        iou=last.get("iou", NAN),
        **(_statistics(config, record.results[-1]) if last else {}),
        dice=last.get("dice", NAN),
        test_images=last.get("images", NAN),
        training_seconds=last.get("training_seconds", float(epochs["seconds"].sum())),
        **measured_cells(header, epochs, workers, disturbed),
        hosts=distinct(worker.host for facts in header.attempts() for worker in facts.workers),
        emulated_by=header.compute.name if header.compute else "",
        scores=scores_text(scores),
    )
    return CompleteRun(
        name=row.run,
        header=header,
        config=config,
        row=row,
        epochs=epochs,
        workers=workers,
        rows=rows,
        score_name=record.results[-1].score_name if record.results else BUILT_IN_SCORE,
        digests=_measured_digests(record.epochs),
        saliency=record.saliency,
        image_ious=None if image_ious is None else np.array(image_ious, dtype=np.float64),
        running=_running_row(record.results[-1]) if last else {},
    )


def _measured_digests(epochs: Sequence[record_lines.Epoch]) -> Digests:
    """Return the digests of the epochs that count for speed: a copied folder tells of no launch of its own.

    Clocks count nanoseconds: no two launches have an epoch in common to the last digit. None of a launch that
    has two equal epochs, as no clock gives.
    """
    used = [epoch for epoch in epochs if not epoch.warmup]
    if len(used) < 2 or len({epoch.seconds for epoch in used}) < len(used):
        return {}
    found = {}
    for epoch in used:
        phases = (*epoch.budget.forward_seconds, *epoch.budget.sync_seconds) if epoch.budget else ()
        processors = [facts.process_seconds for facts in epoch.cpu or ()]
        found[epoch.epoch] = (*epoch.worker_seconds, *phases, *processors)
    return {hash(numbers): of for of, numbers in found.items() if len(set(numbers)) >= FEWEST_NUMBERS}


def epoch_columns(epochs: Sequence[record_lines.Epoch], stalled: Collection[int]) -> Columns:
    """Return one row per epoch: EPOCH_COLUMNS without the run's name."""
    fastest = np.array([min(epoch.worker_seconds, default=NAN) for epoch in epochs])
    columns = zip(*map(_OF_EPOCH, epochs), strict=True) if epochs else ((),) * len(_RECORDED)
    found = {
        name: np.array(column, dtype=float if None in column else None)  # what is not recorded is NaN
        for name, column in zip(_RECORDED, columns, strict=True)
    }
    which = np.array([epoch.epoch in stalled for epoch in epochs], dtype=bool)
    return found | {"fastest_worker_seconds": fastest, "stalled": which}


def _evaluation_row(result: record_lines.Evaluation) -> Cells:
    """Return an evaluation; the score that is judged, of any task, stands as `iou`."""
    cells = {name: getattr(result, name, None) for name in EVALUATION_COLUMNS[1:]} | {"iou": result.score}
    return {name: _known(value) for name, value in cells.items()}


def _running_row(result: record_lines.Evaluation) -> Cells:
    """Return the cells of an evaluation that change with the statistics that training left in norm layers."""
    running = result.statistics.running if result.statistics else None
    if running is None:
        return {}
    is_built_in = isinstance(result, record_lines.Result)
    counts = vars(record_lines.PixelCounts(*running.counts)) if is_built_in else {}
    return {"iou": _known(running.score), "dice": NAN, "image_iou": NAN, **counts}


def _statistics(config: RunConfig, result: record_lines.Evaluation) -> Cells:
    """Return which statistics of norm layers a score is of, and the score with those that training left."""
    recomputed = result.statistics
    if recomputed is None:
        is_without = not config.has_own_task and config.model.batch_norm == "off"
        return {"statistics": NO_STATISTICS if is_without else RUNNING, "iou_running": _known(result.score)}
    if not recomputed.layers:
        kind = RUNNING if recomputed.others else NO_STATISTICS
        return {"statistics": kind, "iou_running": _known(result.score)}
    running = recomputed.running
    return {"statistics": RECOMPUTED, "iou_running": _known(running.score if running else None)}


def _known(number: float | None) -> float:
    return NAN if number is None else number


def _rows_of_lists(line: object | None, names: Sequence[str]) -> list[Cells]:
    """Return the lists of these fields of a line as rows of numbers; none without such a line."""
    lists = [getattr(line, name) for name in names] if line is not None else []
    return [dict(zip(names, map(float, values), strict=True)) for values in zip(*lists, strict=True)]


def worker_columns(record: Record, stalled: Collection[int] = ()) -> Columns:
    """Return one row per worker, by rank: BUDGET_COLUMNS without the run's name; none without an epoch in
    use.

    `seconds`, `images` and `steps` are of the whole run and equal in all its rows, as is `wire_seconds`;
    `worker_seconds`, the phases and CPU seconds are the worker's own, and so are `waiting_seconds`: how long
    its training thread at least was ready outside sync and had no core, and `runqueue_seconds`, the same in
    sync or not, so the most that it can have been. `epochs` are those summed: neither warm-up nor
    `stalled`, so that one stall does not pass for the network or the computing of the whole run.
    `cores`, `frequency_mhz` and what is said of GPUs, but for energy, are means, `peak_memory_bytes` is the
    highest, and `gpu_throttle_reasons` are those of all workers. NaN where one of these epochs does not say:
    a part of the epochs would not sum to the run's seconds. `no_budget` says why phases and wire are not
    known.
    """
    assert record.provenance is not None
    workers = record.provenance.workers
    used = [epoch for epoch in record.epochs if not epoch.warmup and epoch.epoch not in stalled]
    if not used:
        return {name: np.array([]) for name in BUDGET_COLUMNS[1:]}
    found: dict[str, object] = {
        "worker": np.arange(len(workers)),
        "host": np.array([worker.host for worker in workers], dtype=object),
        "epochs": len(used),
        "worker_seconds": np.sum([epoch.worker_seconds for epoch in used], axis=0),
    }
    found |= {
        name: float(sum(getattr(each, name) for each in used)) for name in ("seconds", "images", "steps")
    }
    budgets = [epoch.budget for epoch in used if epoch.budget is not None]
    if len(budgets) == len(used):
        found |= {
            name: np.sum([getattr(each, name) for each in budgets], axis=0)
            for name in record_lines.PHASE_COLUMNS
        }
        found |= {"wire_seconds": sum(each.wire_seconds for each in budgets), "no_budget": ""}
    else:
        why = next((each.no_budget for each in used if each.no_budget), _NOT_RECORDED)
        found |= dict.fromkeys((*record_lines.PHASE_COLUMNS, "wire_seconds"), NAN) | {"no_budget": why}
    paced = [each.host_paced_seconds for each in budgets if each.host_paced_seconds is not None]
    found["host_paced_seconds"] = np.sum(paced, axis=0) if len(paced) == len(used) else NAN
    cpu = [epoch.cpu for epoch in used]
    found |= {name: _by_worker(cpu, value).sum(axis=0) for name, value in _CPU_SUMS.items()}
    found |= {name: _by_worker(cpu, attrgetter(name)).mean(axis=0) for name in ("cores", "frequency_mhz")}
    found["peak_memory_bytes"] = _by_worker(cpu, attrgetter("peak_memory_bytes")).max(axis=0)
    found["waiting_seconds"] = np.sum([_waiting(epoch, len(workers)) for epoch in used], axis=0)
    gpu = [epoch.gpu for epoch in used]
    for name in GPU_COLUMNS:
        values = _by_worker(gpu, _OF_GPU.get(name, attrgetter(name.removeprefix("gpu_"))))
        found[name] = values.sum(axis=0) if name == "gpu_energy_joules" else values.mean(axis=0)
    reasons = [[*(facts.throttle_reasons or [])] for workers in gpu for facts in workers or ()]
    found["gpu_throttle_reasons"] = " ".join(sorted({*chain.from_iterable(reasons)}))
    return {name: np.full(len(workers), found[name]) for name in BUDGET_COLUMNS[1:]}


def _by_worker(
    epochs: Sequence[Sequence[Any] | None], value: Callable[[Any], float | None]
) -> NDArray[np.float64]:
    """Return a value of the facts of each worker, [epochs, workers]; one NaN where an epoch has no facts."""
    known = [workers for workers in epochs if workers is not None]
    if len(known) < len(epochs):
        return np.full((1, 1), NAN)
    return np.array([[value(facts) for facts in workers] for workers in known], dtype=np.float64)


def _waiting(epoch: record_lines.Epoch, workers: int) -> list[float]:
    """Return how long each worker waited for a core in an epoch; NaN where it is not known."""
    if epoch.cpu is None or epoch.budget is None:
        return [NAN] * workers
    waited = map(waiting_seconds, epoch.cpu, epoch.worker_seconds, epoch.budget.sync_seconds)
    return [NAN if each is None else each for each in waited]


def measured_cells(
    header: record_lines.Provenance, epochs: Columns, workers: Columns, disturbed: Disturbance
) -> Cells:
    """Return where a run ran (of several attempts the last), how fast, and what disturbed it, of `Run`.

    Throughputs are sums over sums of the epochs in use; without such an epoch they are NaN.
    """
    used = ~epochs["warmup"].astype(bool) & ~epochs["stalled"].astype(bool)
    speed: Cells = dict.fromkeys(_SPEEDS, NAN) | {"epochs_used": 0}
    if used.any():
        seconds, images, steps, loss = (
            epochs[name][used].astype(float) for name in ("seconds", "images", "steps", "loss")
        )
        speed = {
            "images_per_second": images.sum() / seconds.sum(),
            "epochs_per_second": len(seconds) / seconds.sum(),
            "epochs_used": len(seconds),
            "seconds_per_epoch": float(np.median(seconds)),
            "images_per_epoch": images.mean(),
            "steps_per_epoch": steps.mean(),
            "step_seconds": seconds.sum() / steps.sum(),
            "loss": loss[-1].item(),
        }
    memory = workers["peak_memory_bytes"].astype(float)
    return speed | {
        "nodes": len({worker.host for worker in header.workers}),
        "devices": distinct(worker.device for worker in header.workers),
        "cores_per_worker": distinct(str(len(worker.cores)) for worker in header.workers),
        "started_utc": header.first_started_utc,
        "dilation": header.dilation or 1.0,
        "link_rate": header.link_rate or "",
        "peak_memory_bytes": float(memory.max()) if len(memory) else NAN,
        "busy_share": NAN if disturbed.busy_share is None else disturbed.busy_share,
        "uncounted_share": NAN if disturbed.uncounted_share is None else disturbed.uncounted_share,
        "disturbed": disturbed.reason,
        "stalls": "; ".join(map(str, disturbed.stalls)),
    }


def scores_text(scores: Iterable[tuple[str, float]]) -> str:
    """Return scores that are known as text, "accuracy=0.93, f1=0.9"."""
    return ", ".join(f"{name}={value:.6g}" for name, value in scores if not math.isnan(value))


def distinct(values: Iterable[str]) -> str:
    """Return every text once, in order: "node1 node2"."""
    return " ".join(dict.fromkeys(values))


def stacked_columns(parts: Mapping[str, Columns], names: Sequence[str]) -> pd.DataFrame:
    """Return the columns of all runs one below the other, the run's name, the first column, beside them."""
    if not parts:
        return pd.DataFrame(columns=list(names))
    sizes = [len(columns[names[1]]) for columns in parts.values()]
    run = pd.Categorical.from_codes(np.repeat(np.arange(len(parts)), sizes), categories=pd.Index([*parts]))
    columns = {name: np.concatenate([columns[name] for columns in parts.values()]) for name in names[1:]}
    return pd.DataFrame({"run": run} | columns)


def row_table(parts: Mapping[str, Sequence[Cells]], columns: Sequence[str]) -> pd.DataFrame:
    """Return the rows of all runs one below the other, the run's name beside them."""
    rows = [{"run": run} | row for run, of_run in parts.items() for row in of_run]
    table = pd.DataFrame(rows, columns=list(columns))
    return table.assign(run=pd.Categorical(table["run"], categories=pd.Index([*parts]))) if parts else table


def name_of(folder: Path) -> str:
    """Return the folder's name as text that can be shown; no two names give the same.

    A name that has something to escape has its backslashes escaped too.
    """
    name = folder.name
    return name if name.isprintable() and "\\" not in name else name.encode("unicode_escape").decode()


def escape_unprintable(text: str) -> str:
    """Return text that any file and terminal can hold: what cannot be shown is escaped, line breaks stay."""
    return "".join(
        each if each.isprintable() or each == "\n" else each.encode("unicode_escape").decode()
        for each in text
    )
