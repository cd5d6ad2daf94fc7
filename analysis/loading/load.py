"""Read the records of a study's folder into tables: the runs that can be used, and those left out."""

import gc
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pandas as pd

from analysis.facts import refusals
from analysis.loading.asked import asked_table, is_early
from analysis.loading.copies import copied
from analysis.loading.forecasts import read_forecasts
from analysis.loading.options import (
    compared_configs,
    flat_options,
    identity,
    labels,
    order,
    shown,
    split_axes,
    varying,
    with_common_places,
)
from analysis.loading.ping_pongs import read_ping_pongs
from analysis.loading.played import differing_from_real, split_played, without_times
from analysis.loading.remarks import remarks
from analysis.loading.rows import run_row, tidy
from analysis.loading.runs import CompleteRun, Loaded, UnusableRun, name_of, read_run
from analysis.loading.saliency import read_manifests, split_untimed, with_maps_only
from analysis.loading.scripts import ScriptRun, beside_others, script_study, split_scripts
from analysis.processes import parallel_map
from analysis.restriction import NOTHING_LEARNED
from analysis.score import Score
from analysis.study import (
    BUDGET_COLUMNS,
    EPOCH_COLUMNS,
    EVALUATION_COLUMNS,
    NOT_ASKED,
    PROBE_COLUMNS,
    SCORE_COLUMNS,
    STARTUP_TABLE_COLUMNS,
    LeftOut,
    Study,
    left_out_table,
    names_of,
    run_table,
)
from unet_scaling.study.command_line import LAUNCH_HINT
from unet_scaling.study.config import ALL_FRAMEWORKS, Framework, StudyConfig
from unet_scaling.study.errors import UserError
from unet_scaling.study.options import Criteria
from unet_scaling.study.record import RECORD_NAME
from unet_scaling.study.record_lines import Header
from unet_scaling.study.repeats import read_history, stopping_rule
from unet_scaling.study.study_file import config_path, recorded_study

# No more than these are read by this process alone: to start others would take longer.
RUNS_AT_ONCE = 100


def load_study(folder: Path) -> Study:
    """Read every run of `logs/STUDY`. Nothing is inferred from folder names.

    Raises UserError where the folder is missing or has no run folders.
    """
    scripts, paths = split_scripts(_run_folders(folder))
    if scripts and not paths:
        return script_study(folder.resolve().name, scripts)
    with _without_garbage_collection():
        recorded = recorded_study(folder)
        criteria = recorded.criteria if recorded else Criteria()
        runs = _read_beside(scripts, paths)
        study = _with_other_files(_studies(folder.resolve().name, runs, criteria), folder)
        if recorded:
            study = replace(study, asked=asked_table(folder, recorded, runs, study))
        return _with_stopping_rule(study, folder, recorded)


def _read_beside(scripts: Sequence[ScriptRun], paths: Sequence[Path]) -> Loaded:
    """Return the runs in these folders as they are compared; those of scripts are left out beside them."""
    complete, left_out = _read(paths)
    left_out += map(UnusableRun, beside_others(scripts, name_of(paths[0])))
    return _as_compared(complete, left_out)


def _with_other_files(study: Study, folder: Path) -> Study:
    """Add what the files beside the records hold, and a note on each that cannot be used."""
    ping_pongs, problems = read_ping_pongs(folder)
    forecasts, changed = read_forecasts(folder, study)
    with_maps = study.with_maps
    explained, unexplained = read_manifests(folder, with_maps.saliency, with_maps.headers)
    return replace(
        study,
        ping_pongs=ping_pongs,
        forecasts=forecasts,
        explained=explained,
        notes=(*study.notes, *problems, *changed, *unexplained),
    )


def _with_stopping_rule(study: Study, folder: Path, recorded: StudyConfig | None) -> Study:
    """Add how narrow intervals are to be, and the significance that is left after looks at the results."""
    until = recorded.until if recorded else None
    early = study.asked is not None and is_early(study.asked)
    further = study.asked is not None and bool((study.asked["fate"] == NOT_ASKED).any())
    stopping = stopping_rule(until, read_history(folder), early=early, further=further)
    notes = (*study.notes, *stopping.notes)
    return replace(study, notes=notes, significance=stopping.significance, until=until)


def _run_folders(folder: Path) -> list[Path]:
    """Return the folders below a study's that hold a configuration or a record."""
    if not folder.is_dir():
        raise UserError(
            f"{folder} is no folder; give the one of a study, such as logs/STUDY; {LAUNCH_HINT} makes it"
        )
    paths = sorted(path for path in folder.iterdir() if _is_run(path))
    if not paths:
        raise UserError(f"{folder} has no run folders; {LAUNCH_HINT} makes them")
    return paths


def _studies(name: str, runs: Loaded, criteria: Criteria) -> Study:
    """Return the study of the real runs, with that of the played ones in it where there are any."""
    real, played = split_played(*runs)
    real = _comparable_runs(real)
    played = _comparable_with_real(_comparable_runs(played), real)
    # Of both, so that a set of options has one name in all tables.
    axes = _axes([*real[0], *played[0]], [*real[1], *played[1]])
    runs_of_both = [*real[0], *played[0]]
    timed, maps_only = split_untimed(*real)
    study = _with_task(_study(name, timed, criteria, axes), runs_of_both)
    if maps_only:
        of_maps = _with_task(_study(name, (maps_only, []), criteria, axes), runs_of_both)
        study = with_maps_only(study, of_maps)
    if not any(played):
        return study
    of_played = _with_task(_study(name, played, criteria, axes), runs_of_both)
    return replace(study, played=without_times(of_played))


def _comparable_runs(runs: Loaded) -> Loaded:
    """Return the runs that may be compared, sorted, and those left out: unusable, copies and refused."""
    complete, left_out = runs
    kept, copies = _without_copies(_sorted(complete))
    refused = copied(
        {name: run.digests for name, run in kept.items()},
        {name: run.epochs["seconds"].tolist() for name, run in kept.items()},
    )
    refused |= refusals({name: _compared_header(run) for name, run in kept.items() if name not in refused})
    left_out = [*left_out, *copies, *(_refused(kept[name], reason) for name, reason in refused.items())]
    return [run for name, run in kept.items() if name not in refused], left_out


def _comparable_with_real(played: Loaded, real: Loaded) -> Loaded:
    """Return the played runs without those that may not stand beside the real ones."""
    headers = [{run.name: _compared_header(run) for run in complete} for complete, _ in (played, real)]
    refused = differing_from_real(*headers)
    kept = [run for run in played[0] if run.name not in refused]
    others = [_refused(run, refused[run.name]) for run in played[0] if run.name in refused]
    return kept, [*played[1], *others]


def _is_run(path: Path) -> bool:
    try:
        return any((path / name).exists() for name in (config_path(path).name, RECORD_NAME))
    except OSError:
        return True  # it may not be looked into: reading it gives the reason


def _read(folders: Sequence[Path]) -> Loaded:
    """Return the runs in the order of their folders, read by several processes where there are many."""
    complete: list[CompleteRun] = []
    left_out: list[UnusableRun] = []
    for run in parallel_map(read_run, folders, chunk=RUNS_AT_ONCE):
        if isinstance(run, CompleteRun):
            complete.append(run)
        else:
            left_out.append(run)
    return complete, left_out


def _as_compared(complete: Sequence[CompleteRun], left_out: Sequence[UnusableRun]) -> Loaded:
    """Return the runs with configurations in which options that are no part of the comparison are equal."""
    configs = compared_configs([run.header for run in complete])
    runs = [replace(run, config=config) for run, config in zip(complete, configs, strict=True)]
    placed = with_common_places([left.config for left in left_out if left.config], configs)
    others = [replace(left, config=next(placed)) if left.config else left for left in left_out]
    return runs, others


def _compared_header(run: CompleteRun) -> Header:
    return run.header.model_copy(update={"config": run.config})


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Suspend the collector: what is read stays, and to search it again and again takes its time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _refused(run: CompleteRun, reason: str) -> UnusableRun:
    config = run.config
    return UnusableRun(
        LeftOut(run.name, "refused", reason, config.framework, config.workers, config.repeat), config
    )


def _sorted(runs: Iterable[CompleteRun]) -> list[CompleteRun]:
    """Sort by options, framework, knobs, workers and repeat."""
    runs = list(runs)
    shared, knobs = split_axes(varying([run.config for run in runs]))

    def key(run: CompleteRun) -> tuple[object, ...]:
        config = run.config
        options = order(config, shared), ALL_FRAMEWORKS.index(config.framework), order(config, knobs)
        return *options, config.workers, config.repeat, run.name

    return sorted(runs, key=key)


def _without_copies(runs: Sequence[CompleteRun]) -> tuple[dict[str, CompleteRun], list[UnusableRun]]:
    """Return each repeat of a point once, and the further folders that hold it as refused."""
    first: dict[Hashable, CompleteRun] = {}
    copies = []
    for run in runs:
        kept = first.setdefault(identity(run.config), run)
        if kept is not run:
            copies.append(_refused(run, f"the same repeat of the same point as {kept.name}"))
    return {run.name: run for run in first.values()}, copies


def _study(name: str, loaded: Loaded, criteria: Criteria, axes: tuple[str, ...]) -> Study:
    runs, left_out = loaded
    headers = {run.name: run.header for run in runs}
    unknown = tuple(run.name for run in runs if not run.attempts_known)
    study = Study(
        name=name,
        names=names_of(_frameworks(runs, left_out)),
        runs=_run_table(runs, axes),
        epochs=_table_of(runs, "epochs", EPOCH_COLUMNS),
        evaluations=_table_of(runs, "evaluations", EVALUATION_COLUMNS),
        scores=_table_of(runs, "scores", SCORE_COLUMNS),
        left_out=left_out_table([_labelled(left, axes) for left in left_out]),
        headers=headers,
        criteria=criteria,
        axes=axes,
        notes=(*remarks(headers, unknown), *(f"{run.name}: {run.note}" for run in runs if run.note)),
        unknown_attempts=unknown,
        digests={run.name: run.digests.keys() for run in runs},
    )
    return _with_measurements(study, runs)


def _frameworks(runs: Sequence[CompleteRun], left_out: Sequence[UnusableRun]) -> set[Framework]:
    """Return the frameworks of all runs, used or not."""
    unused = {left.left_out.framework for left in left_out if left.left_out.framework}
    return unused | {run.config.framework for run in runs}


def _with_task(study: Study, runs: Sequence[CompleteRun]) -> Study:
    """Add what the task is judged by and counted in; emulated runs learn nothing."""
    score = Score(runs[0].score_name, runs[0].config.sample) if runs else Score()
    return replace(
        study,
        score=score,
        unit=f"{score.samples} / s",
        iou_scope=NOTHING_LEARNED if study.is_emulated else study.iou_scope,
    )


def _with_measurements(study: Study, runs: Sequence[CompleteRun]) -> Study:
    """Add the tables of what a run measures besides its epochs."""
    return replace(
        study,
        budgets=_table_of(runs, "budget", BUDGET_COLUMNS),
        probes=_table_of(runs, "probe", PROBE_COLUMNS),
        startups=_table_of(runs, "startup", STARTUP_TABLE_COLUMNS),
        saliency={run.name: run.saliency for run in runs if run.saliency},
    )


def _axes(runs: Sequence[CompleteRun], left_out: Sequence[UnusableRun]) -> tuple[str, ...]:
    """Return what varies; a point of which every run diverged is a point of the study all the same."""
    diverged = [left.config for left in left_out if left.config and left.left_out.state == "diverged"]
    return varying([*(run.config for run in runs), *diverged])


def _table_of(runs: Sequence[CompleteRun], part: str, columns: Sequence[str]) -> pd.DataFrame:
    return tidy([(run.name, getattr(run, part)) for run in runs], columns)


def _run_table(runs: Sequence[CompleteRun], axes: Sequence[str]) -> pd.DataFrame:
    """Return one row per run, with the study's axes as further columns."""
    table = run_table([run_row(run, axes) for run in runs])
    values = [flat_options(run.config) for run in runs]
    for axis in axes:
        table[axis] = [shown(options[axis]) if axis in options else None for options in values]
    return table


def _labelled(unusable: UnusableRun, axes: Sequence[str]) -> LeftOut:
    if unusable.config is None:
        return unusable.left_out
    options, knobs = labels(unusable.config, axes)
    return replace(unusable.left_out, options=options, knobs=knobs)
