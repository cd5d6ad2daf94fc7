"""Runs of scripts (unet_scaling/record): each arm by itself, and never beside the project's own runs.

An arm is a script and the framework that it names. It is among the options of its runs, so that two arms
have no point in common, and nothing pairs their runs.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from analysis.facts import FACTS, SAME, UNCOMMITTED_CHANGES, Fact, differing_in, version_facts
from analysis.records import (
    distinct,
    epoch_columns,
    escape_unprintable,
    measured_cells,
    name_of,
    scores_text,
    stacked_columns,
    worker_columns,
)
from analysis.study import (
    BUDGET_COLUMNS,
    EPOCH_COLUMNS,
    EVALUATION_COLUMNS,
    SCRIPTS,
    LeftOut,
    Run,
    Study,
    left_out_table,
    names_of,
    run_table,
)
from analysis.valid import impossible_epochs, step_faults
from unet_scaling.study.disturbance import disturbance
from unet_scaling.study.record import RECORD_NAME, Record, read_record
from unet_scaling.study.record_lines import ScriptHeader
from unet_scaling.study.run_state import Exclusion, State, first_problem
from unet_scaling.study.study_file import config_path

# Fabric and the Trainer are one arm.
ANY_LIGHTNING = "Lightning"


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
    scripts = []
    others = []
    for folder in folders:
        try:
            record = None if config_path(folder).exists() else read_record(folder / RECORD_NAME)
        except OSError:
            record = None  # whoever reads it as another run says why it cannot be
        if record is not None and record.script:
            scripts.append(ScriptRun(name_of(folder), record, record.script))
        else:
            others.append(folder)
    return scripts, others


def beside_others(scripts: Sequence[ScriptRun], other: str) -> list[LeftOut]:
    """Return the runs of scripts as refused beside the project's own runs, of which `other` is one."""
    reason = f"computing is a script's, but the project's own in {other}: move it to a study of its own"
    return [run.left_out("refused", reason) for run in scripts]


def script_study(name: str, runs: Sequence[ScriptRun]) -> Study:
    """Return the study of these runs; those of one arm have to agree in script, machine and software."""
    left_out = {run.name: run.left_out(*reason) for run in runs if (reason := _unusable(run))}
    sound = {run.name: run for run in runs if run.name not in left_out}
    script = Fact(
        "software", "SHA-256 of the script", "all", "", lambda told: (told.script_sha256 or "")[:16]
    )
    told = [fact for fact in FACTS if fact.group != "data" and fact.name != UNCOMMITTED_CHANGES]
    among = dict.fromkeys(SAME, _arm) | {"workers": lambda header: (_arm(header), len(header.workers))}
    headers = {name: run.header for name, run in sound.items()}
    refused = differing_in(headers, [script, *told, *version_facts(headers)], among)
    left_out |= {run: sound[run].left_out("refused", reason) for run, reason in refused.items()}
    return _study(name, [run for run in runs if run.name not in left_out], list(left_out.values()))


def _unusable(run: ScriptRun) -> tuple[State | Exclusion, str] | None:
    """Return state and reason of a run that gives no throughput."""
    record = run.record
    epochs = len(record.epochs)
    if record.damaged:
        return "invalid", first_problem(record.problems)
    if not record.complete:
        first = run.header.workers[0]
        runs = f"still runs (worker 0 was process {first.process} on {first.host})"
        return "failed", f"no end line after {epochs} epochs: it failed, did not call finish, or {runs}"
    if all(epoch.warmup for epoch in record.epochs):
        return "no throughput", f"{epochs} epochs, none after the warm-up: record at least 2 epochs"
    problems = tuple(impossible_epochs(record, len(run.header.workers))) or step_faults(record)[0]
    return ("invalid", first_problem(problems)) if problems else None


def _arm(header: ScriptHeader) -> Hashable:
    return header.framework, header.script


def _study(name: str, runs: Sequence[ScriptRun], left_out: Sequence[LeftOut]) -> Study:
    headers = {run.name: run.header for run in runs}
    labels = _labels(headers)
    epochs = {}
    workers = {}
    rows = []
    for run in runs:
        disturbed = disturbance(run.record)
        epochs[run.name] = epoch_columns(run.record.epochs, disturbed.stalled_epochs)
        workers[run.name] = worker_columns(run.record, disturbed.stalled_epochs)
        end = run.record.end
        row = Run(
            run=run.name,
            framework=run.header.framework,
            workers=len(run.header.workers),
            repeat=run.header.repeat,
            options=labels[run.name],
            training_seconds=epochs[run.name]["seconds"].sum().item(),
            hosts=distinct(worker.host for worker in run.header.workers),
            scores=scores_text(((end.scores if end else None) or {}).items()),
            **measured_cells(run.header, epochs[run.name], workers[run.name], disturbed),
        )
        rows.append(row)
    rows.sort(key=lambda row: (row.options, row.workers, row.repeat, row.run))
    frameworks = {row.framework for row in rows}
    names = dict(names_of(frameworks | {left.framework for left in left_out if left.framework}))
    return Study(
        name=name,
        names=names | {"lightning": ANY_LIGHTNING} if "lightning" in names else names,
        runs=run_table(rows),
        epochs=stacked_columns(epochs, EPOCH_COLUMNS),
        evaluations=stacked_columns({}, EVALUATION_COLUMNS),
        left_out=left_out_table(left_out),
        headers={},
        scripts=headers,
        iou_scope=SCRIPTS.unlearned,
        budgets=stacked_columns(workers, BUDGET_COLUMNS),
    )


def _labels(headers: Mapping[str, ScriptHeader]) -> dict[str, str]:
    """Return the options of each run: its script, its arm where several have this script, and what varies."""
    arms = {_arm(header): header.script for header in headers.values()}
    scripts = list(arms.values())
    names = dict.fromkeys(name for header in headers.values() for name in header.options)
    varying = [
        name for name in names if len({str(header.options.get(name)) for header in headers.values()}) > 1
    ]
    labels = {}
    for run, header in headers.items():
        parts = [header.script or "typed"]
        if scripts.count(header.script) > 1:
            parts.append(f"framework={header.framework}")
        parts += [f"{name}={header.options[name]}" for name in varying if name in header.options]
        labels[run] = ", ".join(parts)
    return labels
