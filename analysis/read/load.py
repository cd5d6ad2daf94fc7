"""Read the records of a study's folder into tables: the runs that can be used, and those left out.

Runs of scripts (unet_scaling/record.py) are a study of their own: each arm by itself, and never beside the
project's runs. An arm is a script and the framework that it names. It is among the options of its runs, so
that two arms have no point in common, and nothing pairs their runs.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.read import records
from analysis.read.companion_files import read_forecasts, read_manifests, read_ping_pongs
from analysis.read.facts import SAME, differing_in, refusals
from analysis.read.impossible import impossible_epochs
from analysis.read.options import (
    compared_configs,
    flat_options,
    identity,
    label,
    labels,
    shown,
    sort_key,
    varying,
    with_common_places,
)
from analysis.study import (
    ABSENT,
    ASKED_COLUMNS,
    BUDGET_COLUMNS,
    EPOCH_COLUMNS,
    EVALUATION_COLUMNS,
    IS_READ,
    MAPS_ONLY,
    NAN,
    NOT_ASKED,
    PLAYED,
    RECOMPUTED,
    RUNNING,
    SCRIPTS,
    LeftOut,
    Run,
    Score,
    Study,
    left_out_table,
    names_of,
    run_table,
)
from analysis.text import count, first_of, lines
from unet_scaling.base.errors import UserError
from unet_scaling.base.parallel import parallel_map
from unet_scaling.format import facts
from unet_scaling.format.disturbance import disturbance
from unet_scaling.format.record import (
    RECORD_NAME,
    Record,
    attempt_records,
    attempt_to_set_aside,
    disturbed_records,
    read_any_record,
    read_record,
)
from unet_scaling.format.record_lines import Header, ScriptHeader
from unet_scaling.format.run_state import Exclusion, State, first_problem
from unet_scaling.study.config import RunConfig, StudyConfig
from unet_scaling.study.frameworks import FRAMEWORK_ROWS
from unet_scaling.study.near_paths import describe_no_study
from unet_scaling.study.options import Criteria
from unet_scaling.study.repeats import read_history, stopping_rule
from unet_scaling.study.study_file import JOB_NAME, config_path, is_of_others, recorded_study

# No more than these are read by this process alone: to start others would take longer.
RUNS_AT_ONCE = 100
# No further submission changes these.
FINAL_FATES = (IS_READ, NOT_ASKED, "diverged", "refused", "no throughput")
# What decides the IoU. Device, host and software of a played run may be others than those of the real ones.
# Beside emulated ones, which learn nothing, they have no speed to go with their IoU.
DECIDE_IOU = ("computing", facts.MANIFEST, "training", "test", "initial weights")
# Runs are named so that one can be looked at; a note of all would hide the others.
_MOST_OF_MAPS_NAMED = 5


def load_study(folder: Path) -> Study:
    """Read every run of `logs/STUDY`. Nothing is inferred from folder names.

    Raises UserError where the folder is missing or has no run folders.
    """
    scripts, paths = split_scripts(_run_folders(folder))
    name = folder.resolve().name
    if scripts and not paths:
        return script_study(name, scripts)
    own = f"computing is a script's, but the project's own in {records.name_of(paths[0])}"
    reason = f"{own}: move it to a study of its own"
    runs = _read(paths, [run.left_out("refused", reason) for run in scripts])
    recorded = recorded_study(folder)
    study = _studies(name, *runs, recorded.criteria if recorded else Criteria())
    study = replace(_with_other_files(study, folder), folder=folder)
    lost = [path for path in paths if len(attempt_records(path)) < attempt_to_set_aside(path) - 1]
    if lost:
        told = first_of(list(map(records.name_of, lost)), "run", _MOST_OF_MAPS_NAMED)
        note = f"{told}: records of earlier attempts were removed, perhaps of complete launches"
        study = replace(study, notes=(*study.notes, note))
    asked = _asked_table(folder, recorded, runs, study.all_left_out) if recorded else None
    until = recorded.until if recorded else None
    early = further = False
    if asked is not None:
        read = asked[asked["fate"] == IS_READ]
        to_come = ~asked["fate"].isin(FINAL_FATES) & asked["point"].isin(read["point"])
        # Repeats of a point that is read are to come, in a study that compares frameworks.
        early = bool(to_come.any()) and read["framework"].nunique() > 1
        further = bool((asked["fate"] == NOT_ASKED).any())
    stopping = stopping_rule(until, read_history(folder), early=early, further=further)
    notes = (*study.notes, *stopping.notes)
    return replace(study, asked=asked, until=until, notes=notes, significance=stopping.significance)


def _run_folders(folder: Path) -> list[Path]:
    """Return the folders below a study's that hold a configuration or a record."""
    paths = sorted(path for path in folder.iterdir() if _is_run(path)) if folder.is_dir() else []
    if not paths:
        raise UserError(describe_no_study(folder))
    return paths


def _is_run(path: Path) -> bool:
    try:
        config = config_path(path)
        return (path / RECORD_NAME).exists() or (config.exists() and not is_of_others(config))
    except OSError:
        return True  # it may not be looked into: reading it gives the reason


def _read(folders: Sequence[Path], further: Sequence[LeftOut]) -> records.Loaded:
    """Return the runs in the order of their folders, read by several processes where there are many.

    Options that are no part of the comparison are equal in their configurations.
    """
    runs = list(parallel_map(records.read_run, folders, chunk=RUNS_AT_ONCE))
    complete = [run for run in runs if isinstance(run, records.CompleteRun)]
    left_out = [*(run for run in runs if isinstance(run, LeftOut)), *further]
    configs = compared_configs([run.header for run in complete])
    complete = [replace(run, config=config) for run, config in zip(complete, configs, strict=True)]
    placed = with_common_places([left.config for left in left_out if left.config], configs)
    return complete, [replace(left, config=next(placed)) if left.config else left for left in left_out]


def _studies(
    name: str, complete: Sequence[records.CompleteRun], left_out: Sequence[LeftOut], criteria: Criteria
) -> Study:
    """Return the study of the real runs, with that of the played ones in it where there are any.

    A played run (training.plays) trains exactly as so many workers, on fewer. It is taken as the run of these
    workers that it stands for, in a study of its own that knows no times.
    """
    real = _comparable_runs(
        [run for run in complete if not run.config.is_played],
        [run for run in left_out if run.config is None or not run.config.is_played],
    )
    played = _comparable_with_real(
        *_comparable_runs(
            [replace(run, config=_as_trained(run.config)) for run in complete if run.config.is_played],
            [
                replace(run, workers=run.config.played_workers, config=_as_trained(run.config))
                for run in left_out
                if run.config and run.config.is_played
            ],
        ),
        real[0],
    )
    notes: tuple[str, ...] = ()
    if mixed := _scored_in_two_ways([*real[0], *played[0]]):
        # Those that training left are known of every run: none has to be left out.
        real, played = (
            ([run.with_running_score() if run.name in mixed else run for run in runs], others)
            for runs, others in (real, played)
        )
        notes = tuple(lines("notes", said="statistics"))
    both = [*real[0], *played[0]]
    # A point of which every run diverged is a point of the study all the same. Of both kinds, so that a set
    # of options has one name in all tables.
    diverged = [run.config for run in (*real[1], *played[1]) if run.config and run.state == "diverged"]
    axes = varying([*(run.config for run in both), *diverged])
    score = Score(both[0].score_name, both[0].config.sample) if both else Score()

    def study_of(runs: Sequence[records.CompleteRun], others: Sequence[LeftOut]) -> Study:
        found = _study(name, runs, others, axes)
        found = replace(found, notes=(*found.notes, *notes))
        return replace(found, criteria=criteria, score=score, unit=f"{score.samples} / s")

    study = study_of([run for run in real[0] if run.has_throughput], real[1])
    of_maps = [run for run in real[0] if not run.has_throughput]
    if of_maps:
        study = _with_maps_only(study, study_of(of_maps, []))
    return replace(study, played=_without_times(study_of(*played))) if any(played) else study


def _scored_in_two_ways(runs: Sequence[records.CompleteRun]) -> set[str]:
    """Return the runs that recomputed statistics of norm layers where others of equal options did not."""
    ways: dict[Hashable, set[str]] = {}
    for run in runs:
        ways.setdefault(SAME["options"](run.header), set()).add(run.row.statistics)
    recomputed = [run for run in runs if run.row.statistics == RECOMPUTED]
    return {run.name for run in recomputed if RUNNING in ways[SAME["options"](run.header)]}


def _as_trained(config: RunConfig) -> RunConfig:
    """Return the configuration of the run that a played one stands for: as many workers, all of them real."""
    training = config.training.model_copy(update={"plays": None})
    return config.model_copy(update={"training": training, "workers": config.played_workers})


def _comparable_runs(complete: Sequence[records.CompleteRun], left_out: Sequence[LeftOut]) -> records.Loaded:
    """Return the runs that may be compared, sorted, and those left out: unusable, copies and refused."""
    axes = varying([run.config for run in complete])
    ordered = sorted(complete, key=lambda run: (*sort_key(run.config, axes), run.name))
    first: dict[Hashable, records.CompleteRun] = {}
    reasons: dict[str, str] = {}
    for run in ordered:
        kept = first.setdefault(identity(run.config), run)
        if kept is not run:
            reasons[run.name] = f"the same repeat of the same point as {kept.name}"
    reasons |= _copied(list(first.values()))
    headers = {run.name: _compared_header(run) for run in first.values() if run.name not in reasons}
    return _without(ordered, left_out, reasons | refusals(headers))


def _without(
    runs: Sequence[records.CompleteRun], left_out: Sequence[LeftOut], reasons: Mapping[str, str]
) -> records.Loaded:
    """Return the runs without those that are refused; these are left out, each with its reason."""
    refused = [
        records.unusable(run.name, run.config, "refused", reasons[run.name])
        for run in runs
        if run.name in reasons
    ]
    return [run for run in runs if run.name not in reasons], [*left_out, *refused]


def _compared_header(run: records.CompleteRun) -> Header:
    return run.header.model_copy(update={"config": run.config})


def _copied(runs: Sequence[records.CompleteRun]) -> dict[str, str]:
    """Return the runs whose numbers stand in another one too, {run: reason}; either may be the copy."""
    first: dict[int, records.CompleteRun] = {}
    reasons: dict[str, str] = {}
    for run in runs:
        for digest, of in run.digests.items():
            other = first.setdefault(digest, run)
            if other is run:
                continue
            its = other.digests[digest]
            same = f"epochs {of} and {its} agree to the last digit ({run.epochs['seconds'].tolist()[of]} s)"
            both = f"{same}: one is a copy of the other"
            reasons.setdefault(run.name, f"run.jsonl and {other.name}/run.jsonl: {both}")
            reasons.setdefault(other.name, f"run.jsonl and {run.name}/run.jsonl: {both}")
    return reasons


def _comparable_with_real(
    played: Sequence[records.CompleteRun], left_out: Sequence[LeftOut], real: Sequence[records.CompleteRun]
) -> records.Loaded:
    """Return the played runs without those that learned from other data or weights than real ones did.

    Each reason names the fact and both values, against the last real run of equal options.
    """
    headers = {run.name: _compared_header(run) for run in played}
    of_real = {run.name: _compared_header(run) for run in real}
    reasons: dict[str, list[str]] = {}
    for fact in (fact for fact in facts.FACTS if fact.name in DECIDE_IOU):
        key = SAME[fact.same]
        known = {key(header): run for run, header in of_real.items()}
        for run, header in headers.items():
            same = known.get(key(header))
            value = fact.of(header)
            usual = fact.of(of_real[same]) if same else value
            if value != usual:
                reason = f"{fact.title(header)}: {value}, but {usual} in {same}, which is not played"
                reasons.setdefault(run, []).append(reason)
    return _without(played, left_out, {run: "; ".join(of_run) for run, of_run in reasons.items()})


def _study(
    name: str, runs: Sequence[records.CompleteRun], left_out: Sequence[LeftOut], axes: Sequence[str]
) -> Study:
    headers = {run.name: run.header for run in runs}
    frameworks = {run.config.framework for run in runs}
    frameworks |= {left.framework for left in left_out if left.framework}
    unused = []
    for left in left_out:
        options, knobs = labels(left.config, axes) if left.config else ("", "")
        unused.append(replace(left, options=options, knobs=knobs))
    tables: dict[str, Any] = {
        table: records.row_table({run.name: run.rows[table] for run in runs}, columns)
        for table, columns in records.ROW_TABLES.items()
    }
    study = Study(
        name=name,
        names=names_of(frameworks),
        runs=_run_table(runs, axes),
        epochs=records.stacked_columns({run.name: run.epochs for run in runs}, EPOCH_COLUMNS),
        budgets=records.stacked_columns({run.name: run.workers for run in runs}, BUDGET_COLUMNS),
        left_out=left_out_table(unused),
        headers=headers,
        axes=tuple(axes),
        notes=tuple(remarks(headers)),
        digests={run.name: run.digests.keys() for run in runs},
        image_ious={run.name: run.image_ious for run in runs if run.image_ious is not None},
        saliency={run.name: run.saliency for run in runs if run.saliency},
        **tables,
    )
    # Of images of several sizes the median; an IoU says nothing of objects at another scale.
    scales = {words for header in headers.values() if (words := facts.scale_words(header))}
    scope = f"{study.iou_scope}, {scales.pop()}" if len(scales) == 1 else study.iou_scope
    return replace(study, iou_scope=study.kind.learned(scope))


def _run_table(runs: Sequence[records.CompleteRun], axes: Sequence[str]) -> pd.DataFrame:
    """Return one row per run, with the study's axes as further columns."""
    rows = []
    for run in runs:
        options, knobs = labels(run.config, axes)
        rows.append(replace(run.row, workers=run.config.workers, options=options, knobs=knobs))
    table = run_table(rows)
    values = [flat_options(run.config) for run in runs]
    for axis in axes:
        table[axis] = [shown(options[axis]) if axis in options else None for options in values]
    return table


def remarks(headers: Mapping[str, Header]) -> list[str]:
    """Return what no row of the fairness table says, but should be known to who reads a comparison."""
    told = headers.values()
    folders: dict[str, set[str]] = {}
    for header in told:
        folders.setdefault(header.manifest_sha256, set()).add(header.config.data.folder)
    return lines(
        "notes",
        said="records",
        folders=folders.values(),
        slowed=dict.fromkeys((header.dilation, header.link_rate) for header in told),
    )


def _with_maps_only(study: Study, maps_only: Study) -> Study:
    """Return a study with those of its runs that tell of their maps only, and a note on them."""
    names = [str(run) for run in maps_only.runs["run"]]
    note = (
        f"{count(len(names), 'run')} without an epoch after the warm-up: of saliency maps alone, no table on "
        f"training or IoU has {'it' if len(names) == 1 else 'them'}: "
        f"{first_of(names, 'run', _MOST_OF_MAPS_NAMED)}"
    )
    notes = dict.fromkeys([*study.notes, note, *maps_only.notes])
    return replace(study, maps_only=replace(maps_only, part=MAPS_ONLY), notes=tuple(notes))


def _without_times(played: Study) -> Study:
    """Return a study of played runs in which no time or speed is known."""
    times = ("images_per_second", "epochs_per_second", "seconds_per_epoch", "step_seconds")
    unknown_times = dict.fromkeys((*times, "training_seconds", "busy_share", "uncounted_share"), NAN)
    return replace(
        played,
        runs=played.runs.assign(**unknown_times, disturbed="", stalls=""),
        evaluations=played.evaluations.assign(training_seconds=NAN, seconds=NAN),
        **{name: getattr(played, name).iloc[:0] for name in ("epochs", "budgets", "probes", "startups")},
        notes=(),
        part=PLAYED,
    )


def _with_other_files(study: Study, folder: Path) -> Study:
    """Add what the files beside the records hold, and a note on each that cannot be used."""
    ping_pongs, problems = read_ping_pongs(folder)
    forecasts, changed = read_forecasts(folder, study.headers, study.runs)
    with_maps = study.with_maps
    explained, unexplained = read_manifests(folder, with_maps.saliency, with_maps.headers)
    return replace(
        study,
        ping_pongs=ping_pongs,
        forecasts=forecasts,
        explained=explained,
        notes=(*study.notes, *problems, *changed, *unexplained),
    )


def _asked_table(
    folder: Path, recorded: StudyConfig, runs: records.Loaded, all_left_out: pd.DataFrame
) -> pd.DataFrame:
    """Return ASKED_COLUMNS: a row per run that study.json asks for, and per further repeat of its points."""
    complete, left_out = runs
    states = all_left_out.set_index("run")["state"].to_dict()
    configs = [run.config for run in complete]
    asked = [*with_common_places(recorded.configs(), configs)]
    points = {_point(config): number for number, config in enumerate(asked)}
    found = {identity(left.config): left.run for left in left_out if left.config}
    found |= {identity(run.config): run.name for run in complete}
    found |= {identity(run.config): run.name for run in complete if run.name not in states}
    wanted = set(map(identity, asked))
    further = {identity(config): config for config in configs if _point(config) in points}
    further = {key: config for key, config in further.items() if key not in wanted}
    headers = {run.name: run.header for run in complete}
    started: dict[Hashable, set[str]] = {}
    for run in complete:
        started.setdefault(identity(run.config), set()).add(run.header.started_utc)
    axes = varying(asked)
    rows = []
    for config in (*asked, *further.values()):
        name = found.get(identity(config), config.run)
        fate = states.get(name, IS_READ if name in headers else ABSENT)
        if fate == "waiting" and not (folder / name / JOB_NAME).exists():
            fate = ABSENT  # neither trained nor submitted
        quiet = list(_replaced(folder / name, headers[name])) if fate == IS_READ else []
        # Of another launch of the repeat, in a folder of its own, it is not asked why it was made.
        quiet += [True] * (len(started.get(identity(config), ())) - 1)
        fate = NOT_ASKED if fate == IS_READ and identity(config) in further else fate
        place = (name, points[_point(config)], label(config, axes))
        of_config = (config.framework, config.workers, config.repeat)
        rows.append((*place, *of_config, fate, len(quiet), sum(quiet)))
    return pd.DataFrame(rows, columns=list(ASKED_COLUMNS))


def _point(config: RunConfig) -> Hashable:
    return identity(config.model_copy(update={"repeat": 1}))


def _replaced(folder: Path, header: Header) -> Iterator[bool]:
    """Yield for each complete launch that the run in this folder replaced whether it was quiet.

    One on another machine, of another code, or that could not be used, was no choice between results.
    """
    for path in (*disturbed_records(folder), *attempt_records(folder)):
        record = read_any_record(path)
        if not record.complete or record.header is None:
            continue
        own = folder / RECORD_NAME
        if record.header == header and not (own.exists() and read_any_record(own).complete):
            continue  # it counts itself, until the new one is complete
        both = header.model_copy(update={"earlier": [record.header]})
        if not any(facts.differing_attempts(both)) and records.why_unusable(record) is None:
            yield not disturbance(record).reason


@dataclass(frozen=True)
class ScriptRun:
    """A run of a script as its record tells of it; `header` is that of the record."""

    name: str
    record: Record
    header: ScriptHeader

    def left_out(self, state: State | Exclusion, reason: str) -> LeftOut:
        """Return the run as one that is not used."""
        point = self.header.framework, len(self.header.workers), self.header.repeat
        return LeftOut(self.name, state, records.escape_unprintable(reason), *point)


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
            scripts.append(ScriptRun(records.name_of(folder), record, record.script))
        else:
            others.append(folder)
    return scripts, others


def script_study(name: str, runs: Sequence[ScriptRun]) -> Study:
    """Return the study of these runs; those of one arm have to agree in script, machine and software."""
    left_out = {run.name: run.left_out(*reason) for run in runs if (reason := _unusable(run))}
    sound = {run.name: run for run in runs if run.name not in left_out}
    script = facts.Fact(
        "software", "SHA-256 of the script", "all", "", lambda told: (told.script_sha256 or "")[:16]
    )
    told = [fact for fact in facts.FACTS if fact.group != "data" and fact.name != facts.UNCOMMITTED_CHANGES]
    among = dict.fromkeys(SAME, _arm) | {"workers": lambda header: (_arm(header), len(header.workers))}
    headers = {name: run.header for name, run in sound.items()}
    refused = differing_in(headers, [script, *told, *facts.version_facts(headers)], among)
    left_out |= {run: sound[run].left_out("refused", reason) for run, reason in refused.items()}
    used = [run for run in runs if run.name not in left_out]
    headers = {run.name: run.header for run in used}
    labels = _labels(headers)
    epochs = {}
    workers = {}
    rows = []
    for run in used:
        disturbed = disturbance(run.record)
        epochs[run.name] = records.epoch_columns(run.record.epochs, disturbed.stalled_epochs)
        workers[run.name] = records.worker_columns(run.record, disturbed.stalled_epochs)
        end = run.record.end
        row = Run(
            run=run.name,
            framework=run.header.framework,
            workers=len(run.header.workers),
            repeat=run.header.repeat,
            options=labels[run.name],
            training_seconds=epochs[run.name]["seconds"].sum().item(),
            hosts=records.distinct(worker.host for worker in run.header.workers),
            scores=records.scores_text(((end.scores if end else None) or {}).items()),
            **records.measured_cells(run.header, epochs[run.name], workers[run.name], disturbed),
        )
        rows.append(row)
    rows.sort(key=lambda row: (row.options, row.workers, row.repeat, row.run))
    frameworks = {row.framework for row in rows}
    arms = names_of(frameworks | {left.framework for left in left_out.values() if left.framework})
    return Study(
        name=name,
        names={framework: FRAMEWORK_ROWS[framework].title_of_scripts for framework in arms},
        runs=run_table(rows),
        epochs=records.stacked_columns(epochs, EPOCH_COLUMNS),
        evaluations=records.stacked_columns({}, EVALUATION_COLUMNS),
        left_out=left_out_table([*left_out.values()]),
        headers={},
        scripts=headers,
        iou_scope=SCRIPTS.unlearned,
        budgets=records.stacked_columns(workers, BUDGET_COLUMNS),
    )


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
    problems = tuple(impossible_epochs(record, len(run.header.workers)))
    return ("invalid", first_problem(problems)) if problems else None


def _arm(header: ScriptHeader) -> Hashable:
    return header.framework, header.script


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
