"""Runs of scripts (unet_scaling/record): each arm by itself, and never beside the project's own runs.

An arm is a script and the framework that it names. It is among the options of its runs, so that two arms
have no point in common, and nothing pairs their runs.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from analysis.facts import FACTS, SAME, UNCOMMITTED_CHANGES, Fact, differing_in, version_facts
from analysis.loading.budget_columns import Columns, budget_columns
from analysis.loading.consistency import impossible_epochs
from analysis.loading.rows import distinct, machine_of, scores_text, speed_of, tidy
from analysis.loading.runs import epoch_columns, escape_unprintable, name_of
from analysis.loading.steps import step_faults
from analysis.restriction import SPEED_ALONE
from analysis.study import (
    BUDGET_COLUMNS,
    EPOCH_COLUMNS,
    EVALUATION_COLUMNS,
    NAN,
    LeftOut,
    Names,
    Run,
    Study,
    left_out_table,
    names_of,
    run_table,
)
from unet_scaling.study.config import Framework
from unet_scaling.study.disturbance import Disturbance, disturbance
from unet_scaling.study.record import RECORD_NAME, Record, read_record
from unet_scaling.study.record_lines import ScriptHeader
from unet_scaling.study.run_state import Exclusion, State, first_problem
from unet_scaling.study.study_file import config_path

# Fabric and the Trainer are one arm.
ANY_LIGHTNING = "Lightning"
TYPED = "typed"


@dataclass(frozen=True)
class _Tables:
    """What the tables hold of one run, without its name."""

    epochs: Columns
    budget: Columns
    disturbance: Disturbance

    @classmethod
    def of(cls, record: Record) -> "_Tables":
        disturbed = disturbance(record)
        stalled = disturbed.stalled_epochs
        return cls(epoch_columns(record.epochs, stalled), budget_columns(record, stalled), disturbed)


@dataclass(frozen=True)
class ScriptRun:
    """A run of a script as its record tells of it; `header` is that of the record."""

    name: str
    record: Record
    header: ScriptHeader

    def left_out(self, state: State | Exclusion, reason: str) -> LeftOut:
        """Return the run as one that is not used."""
        point = self.header.framework, len(self.header.workers), self.header.repeat
        return LeftOut(self.name, state, escape_unprintable(reason), *point)


def split_scripts(folders: Sequence[Path]) -> tuple[list[ScriptRun], list[Path]]:
    """Return the runs of scripts, and the folders of all others."""
    found = {folder: run for folder in folders if (run := _script_run(folder)) is not None}
    return list(found.values()), [folder for folder in folders if folder not in found]


def _script_run(folder: Path) -> ScriptRun | None:
    try:
        if config_path(folder).exists():
            return None
        record = read_record(folder / RECORD_NAME)
    except OSError:
        return None  # whoever reads it as another run says why it cannot be
    return ScriptRun(name_of(folder), record, record.script) if record.script else None


def beside_others(scripts: Sequence[ScriptRun], other: str) -> list[LeftOut]:
    """Return the runs of scripts as refused beside the project's own runs, of which `other` is one."""
    reason = f"computing is a script's, but the project's own in {other}: move it to a study of its own"
    return [run.left_out("refused", reason) for run in scripts]


def script_study(name: str, runs: Sequence[ScriptRun]) -> Study:
    """Return the study of these runs; those of one arm have to agree in script, machine and software."""
    unusable = {run.name: run.left_out(*reason) for run in runs if (reason := _unusable(run))}
    sound = {run.name: run for run in runs if run.name not in unusable}
    headers = {name: run.header for name, run in sound.items()}
    script = Fact(
        "software", "SHA-256 of the script", "all", "", lambda told: (told.script_sha256 or "")[:16]
    )
    told = [fact for fact in FACTS if fact.group != "data" and fact.name != UNCOMMITTED_CHANGES]
    among = dict.fromkeys(SAME, _arm) | {"workers": _arm_and_workers}
    refused = differing_in(headers, [script, *told, *version_facts(headers)], among)
    left_out = [sound[name].left_out("refused", reason) for name, reason in refused.items()]
    return _study(
        name,
        [run for name, run in sound.items() if name not in refused],
        [*unusable.values(), *left_out],
    )


def _unusable(run: ScriptRun) -> tuple[State | Exclusion, str] | None:
    """Return state and reason of a run that gives no throughput."""
    record = run.record
    if record.damaged:
        return "invalid", first_problem(record.problems)
    if not record.complete:
        return "failed", _why_no_end(run)
    if all(epoch.warmup for epoch in record.epochs):
        return (
            "no throughput",
            f"{len(record.epochs)} epochs, none after the warm-up: record at least 2 epochs",
        )
    problems = tuple(impossible_epochs(record, len(run.header.workers))) or step_faults(record)[0]
    return ("invalid", first_problem(problems)) if problems else None


def _why_no_end(run: ScriptRun) -> str:
    first = run.header.workers[0]
    runs = f"still runs (worker 0 was process {first.process} on {first.host})"
    return f"no end line after {len(run.record.epochs)} epochs: it failed, did not call finish, or {runs}"


def _arm(header: ScriptHeader) -> Hashable:
    return header.framework, header.script


def _arm_and_workers(header: ScriptHeader) -> Hashable:
    return _arm(header), len(header.workers)


def _study(name: str, runs: Sequence[ScriptRun], left_out: Sequence[LeftOut]) -> Study:
    headers = {run.name: run.header for run in runs}
    tables = {run.name: _Tables.of(run.record) for run in runs}
    labels = _labels(headers)
    rows = [_row(run, labels[run.name], tables[run.name]) for run in runs]
    rows.sort(key=lambda row: (row.options, row.workers, row.repeat, row.run))
    frameworks = {header.framework for header in headers.values()}
    return Study(
        name=name,
        names=_names(frameworks | {left.framework for left in left_out if left.framework}),
        runs=run_table(rows),
        epochs=tidy([(run, found.epochs) for run, found in tables.items()], EPOCH_COLUMNS),
        evaluations=tidy([], EVALUATION_COLUMNS),
        left_out=left_out_table(left_out),
        headers={},
        scripts=headers,
        iou_scope=SPEED_ALONE,
        budgets=tidy([(run, found.budget) for run, found in tables.items()], BUDGET_COLUMNS),
    )


def _names(frameworks: set[Framework]) -> Names:
    names = dict(names_of(frameworks))
    return names | {"lightning": ANY_LIGHTNING} if "lightning" in names else names


def _labels(headers: Mapping[str, ScriptHeader]) -> dict[str, str]:
    """Return the options of each run: its script, its arm where several have this script, and what varies."""
    arms = {_arm(header): header for header in headers.values()}
    scripts = [header.script for header in arms.values()]
    varying = _varying_options([dict(header.options) for header in headers.values()])
    labels = {}
    for run, header in headers.items():
        parts = [header.script or TYPED]
        if scripts.count(header.script) > 1:
            parts.append(f"framework={header.framework}")
        parts += [f"{name}={header.options[name]}" for name in varying if name in header.options]
        labels[run] = ", ".join(parts)
    return labels


def _varying_options(options: Sequence[Mapping[str, object]]) -> list[str]:
    """Return the names of the options that have several values, or that only some runs have."""
    names = dict.fromkeys(name for each in options for name in each)
    return [name for name in names if len({str(each.get(name)) for each in options}) > 1]


def _row(run: ScriptRun, label: str, tables: _Tables) -> Run:
    disturbed = tables.disturbance
    end = run.record.end
    scores = (end.scores if end else None) or {}
    return Run(
        run=run.name,
        framework=run.header.framework,
        workers=len(run.header.workers),
        repeat=run.header.repeat,
        seed=None,
        options=label,
        knobs="",
        **speed_of(tables.epochs),
        iou=NAN,
        dice=NAN,
        test_images=NAN,
        training_seconds=tables.epochs["seconds"].sum().item(),
        **machine_of(run.header),
        hosts=distinct(worker.host for worker in run.header.workers),
        peak_memory_bytes=float(tables.budget["peak_memory_bytes"].astype(float).max()),
        busy_share=NAN if disturbed.busy_share is None else disturbed.busy_share,
        disturbed=disturbed.reason,
        stalls="; ".join(map(str, disturbed.stalls)),
        scores=scores_text(scores.items()),
    )
