"""One run folder: its record as columns, or the reason why the run cannot be used by itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

import numpy as np

from analysis.loading.budget_columns import (
    Columns,
    budget_columns,
    probe_columns,
    startup_columns,
)
from analysis.loading.consistency import impossible_values, too_large
from analysis.loading.copies import Digests, measured_digests
from analysis.loading.fidelity import infidelity
from analysis.loading.steps import step_faults
from analysis.score import BUILT_IN_SCORE
from analysis.study import EPOCH_COLUMNS, EVALUATION_COLUMNS, NAN, LeftOut
from unet_scaling.study.config import RunConfig
from unet_scaling.study.disturbance import Disturbance, disturbance
from unet_scaling.study.errors import UserError
from unet_scaling.study.record import Record, read_record
from unet_scaling.study.record_lines import AttemptFacts, Epoch, Evaluation, Header, Scores
from unet_scaling.study.run_state import STATE_OF_END, Exclusion, RunState, State, first_problem, recorded_run
from unet_scaling.study.saliency import Saliency
from unet_scaling.study.study_file import config_path, read_config

RECORDED = [name for name in EPOCH_COLUMNS if name not in ("run", "fastest_worker_seconds", "stalled")]
# One call for all columns of an epoch: a study of 10,000 runs has two million epochs.
OF_EPOCH = attrgetter(*RECORDED)
START = (0, 0)


@dataclass(frozen=True)
class CompleteRun:
    """A run whose record is complete and can give a throughput, or tells of saliency maps.

    `epochs`, `evaluations`, `scores`, `budget`, `probe` and `startup` hold one array per
    column of the tables, without the run's name. `config` is the header's, with the operational options that
    all runs compared share; `score_name` is that of the score which is judged; `attempts_known` says
    whether the header tells the facts of every attempt that trained a part; `saliency` is the line on its
    saliency maps, `note` why a file beside the record cannot be read.
    """

    name: str
    header: Header
    epochs: Columns
    evaluations: Columns
    scores: Columns
    budget: Columns
    probe: Columns
    startup: Columns
    disturbance: Disturbance
    config: RunConfig
    score_name: str
    digests: Digests
    attempts_known: bool = True
    saliency: Saliency | None = None
    note: str = ""

    @property
    def has_throughput(self) -> bool:
        """Return whether an epoch counts for speed; else the run is here for its saliency maps."""
        return not self.epochs["warmup"].all()


@dataclass(frozen=True)
class UnusableRun:
    """A run that cannot be used: the reason, and its point where that is known."""

    left_out: LeftOut
    config: RunConfig | None = None


# Runs that can be used, and those that cannot.
Loaded = tuple[list[CompleteRun], list[UnusableRun]]


def read_run(folder: Path) -> CompleteRun | UnusableRun:
    """Return the run in a folder, or why it cannot be used by itself."""
    try:
        config = _usable_config(config_path(folder))
    except (UserError, OSError) as error:  # OSError: a folder that may not be looked into
        return UnusableRun(LeftOut(name_of(folder), "invalid", escape_unprintable(str(error))))
    run = recorded_run(folder, config)
    if run.record is None or not run.state.is_complete:
        return _unusable_run(folder, config, run.state.state, _why_incomplete(run.state))
    reason = why_unusable(run.record)
    if reason:
        return _unusable_run(folder, config, *reason)
    faults, unread = step_faults(run.record)
    if faults:
        return _unusable_run(folder, config, "invalid", first_problem(faults))
    return _complete_run(folder, run.record, unread)


def _usable_config(path: Path) -> RunConfig:
    """Return a run's configuration; raises UserError where it is invalid or no table can hold its numbers."""
    config = read_config(path)
    oversized = tuple(f"{path}: {problem}" for problem in too_large(config))
    if oversized:
        raise UserError(first_problem(oversized))
    return config


def _complete_run(folder: Path, record: Record, note: str) -> CompleteRun:
    assert record.header is not None
    disturbed = disturbance(record)
    stalled = disturbed.stalled_epochs
    tables = (
        epoch_columns(record.epochs, stalled),
        _evaluations(record.results),
        _scores(record.results),
        budget_columns(record, stalled),
        probe_columns(record),
        startup_columns(record),
    )
    score_name = record.results[-1].score_name if record.results else BUILT_IN_SCORE
    header, known = _with_earlier_attempts(record.header, folder)
    of_run = (disturbed, header.config, score_name, measured_digests(record.epochs))
    return CompleteRun(name_of(folder), header, *tables, *of_run, known, record.saliency, note)


def _with_earlier_attempts(header: Header, folder: Path) -> tuple[Header, bool]:
    """Return the header with the facts of every attempt that trained a part of it, and whether all are known.

    Older records have only the last attempt's. Those of the others stand in `run.attemptN.jsonl` beside
    it; one of them is not known where its file is missing or damaged.
    """
    if header.resumed is None or header.earlier:
        return header, True
    earlier: list[AttemptFacts] = []
    resumed_at = _start(header)
    known = True
    for number in range(header.attempt - 1, 0, -1):
        if resumed_at == START:
            break
        found, readable = _header_of(folder / f"run.attempt{number}.jsonl")
        known = known and readable
        # What began no earlier than the next attempt did has trained nothing that the next one kept.
        if found is not None and _start(found) < resumed_at:
            earlier.insert(0, found)
            resumed_at = _start(found)
    return header.model_copy(update={"earlier": earlier}), known and resumed_at == START


def _start(header: Header) -> tuple[int, int]:
    return (header.resumed.epoch, header.resumed.step) if header.resumed else START


def _header_of(path: Path) -> tuple[Header | None, bool]:
    """Return the header of an attempt and whether it is known; one that wrote none has trained nothing."""
    try:
        record = read_record(path)
    except OSError:
        return None, False
    return record.header, record.header is not None or not record.damaged


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


def _unusable_run(folder: Path, config: RunConfig, state: State | Exclusion, reason: str) -> UnusableRun:
    left_out = LeftOut(
        name_of(folder), state, escape_unprintable(reason), config.framework, config.workers, config.repeat
    )
    return UnusableRun(left_out, config)


def _why_incomplete(state: RunState) -> str:
    if state.state in STATE_OF_END.values():
        return f"{state.state}: {state.reason}"
    return state.reason or "no record yet: it has not started"


def why_unusable(record: Record) -> tuple[State | Exclusion, str] | None:
    """Return (state, reason) of a complete record that gives no throughput, or not that of its cluster."""
    if all(epoch.warmup for epoch in record.epochs) and not _has_maps(record):
        warmed = f"{len(record.epochs)} epochs, none after the warm-up of a start"
        reason = f"{warmed}: run --repeat-disturbed measures it again"
        return "no throughput", reason
    problems = tuple(impossible_values(record))
    if problems:
        return "invalid", first_problem(problems)
    unfaithful = infidelity(record, disturbance(record).stalled_epochs)
    return ("invalid", unfaithful) if unfaithful else None


def _has_maps(record: Record) -> bool:
    """Return whether a run without a throughput has saliency maps to tell of; a played one has no times."""
    return record.saliency is not None and record.header is not None and not record.header.config.is_played


def epoch_columns(epochs: Sequence[Epoch], stalled: frozenset[int]) -> Columns:
    """Return one row per epoch: EPOCH_COLUMNS without the run's name."""
    fastest = np.array([min(epoch.worker_seconds, default=NAN) for epoch in epochs])
    columns = zip(*map(OF_EPOCH, epochs), strict=True) if epochs else ((),) * len(RECORDED)
    found = {name: np.array(column) for name, column in zip(RECORDED, columns, strict=True)}
    for name in ("loss", "learning_rate"):  # none of an emulated run, or of a script's: NaN
        found[name] = found[name].astype(float)
    which = np.array([epoch.epoch in stalled for epoch in epochs], dtype=bool)
    return found | {"fastest_worker_seconds": fastest, "stalled": which}


def _evaluations(results: Sequence[Evaluation]) -> Columns:
    return {
        name: np.array([_known(_column(result, name)) for result in results])
        for name in EVALUATION_COLUMNS
        if name != "run"
    }


def _scores(results: Sequence[Evaluation]) -> Columns:
    """Return every score of each evaluation, one below the other; none where there is one only."""
    rows = [
        (result.epochs, name, _known(value))
        for result in results
        if isinstance(result, Scores) and len(result.scores) > 1
        for name, value in result.scores.items()
    ]
    epochs, names, values = zip(*rows, strict=True) if rows else ((), (), ())
    return {
        "epochs": np.array(epochs, dtype=int),
        "score": np.array(names, dtype=object),
        "value": np.array(values, dtype=float),
    }


def _column(result: Evaluation, name: str) -> float | str | None:
    """Return a column of an evaluation; the score that is judged, of any task, stands as `iou`."""
    if name == "iou":
        return result.score
    value: float | str | None = getattr(result, name, None)
    return value


def _known(value: float | str | None) -> float | str:
    return NAN if value is None else value
