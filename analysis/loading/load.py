"""From the records of a study's folder to its tables: the runs that can be used, and those left out."""

import gc
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.loading.budget_columns import Columns
from analysis.loading.fairness import refusals, remarks
from analysis.loading.options import (
    compared_configs,
    flat_options,
    identity,
    is_knob,
    labels,
    order,
    shown,
    varying,
    with_common_places,
)
from analysis.loading.ping_pongs import read_ping_pongs
from analysis.loading.runs import CompleteRun, UnusableRun, read_run
from analysis.loading.steps import read_steps
from analysis.processes import parallel_map
from analysis.study import (
    BUDGET_COLUMNS,
    EPOCH_COLUMNS,
    EVALUATION_COLUMNS,
    NAN,
    PROBE_COLUMNS,
    STARTUP_TABLE_COLUMNS,
    LeftOut,
    Run,
    Study,
    left_out_table,
    run_table,
)
from unet_scaling.study.config import FRAMEWORKS
from unet_scaling.study.errors import UserError
from unet_scaling.study.options import Criteria
from unet_scaling.study.record import RECORD_NAME
from unet_scaling.study.record_lines import Header
from unet_scaling.study.study_file import CONFIG_NAME, recorded_study

RUNS_AT_ONCE = 100


def load_study(folder: Path) -> Study:
    """Read every run of `logs/STUDY`. Nothing is inferred from folder names.

    Raises UserError where the folder is missing or has no run folders.
    """
    paths = run_folders(folder)
    with _nothing_collected():
        complete, left_out = _as_compared(*_read(paths))
        kept, copies = _without_copies(_sorted(complete))
        refused = refusals({name: _compared_header(run) for name, run in kept.items()})
        left_out += copies + [_refused(kept[name], reason) for name, reason in refused.items()]
        used = [run for name, run in kept.items() if name not in refused]
        recorded = recorded_study(folder)
        criteria = recorded.criteria if recorded else Criteria()
        study = _study(folder.resolve().name, used, left_out, criteria)
        ping_pongs, problems = read_ping_pongs(folder)
        steps, unreadable = read_steps(folder, study.epochs)
        notes = (*study.notes, *problems, *unreadable)
        return replace(study, ping_pongs=ping_pongs, steps=steps, notes=notes)


def run_folders(folder: Path) -> list[Path]:
    """The folders below a study's that hold a point or a record."""
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder; give the one of a study, such as logs/STUDY")
    found = sorted(path for path in folder.iterdir() if _is_run(path))
    if not found:
        raise UserError(f"{folder} has no run folders; slurm/submission.sh STUDY.toml makes and submits them")
    return found


def _is_run(path: Path) -> bool:
    try:
        return any((path / name).exists() for name in (CONFIG_NAME, RECORD_NAME))
    except OSError:
        return True  # it may not be looked into: reading it gives the reason


def _read(folders: Sequence[Path]) -> tuple[list[CompleteRun], list[UnusableRun]]:
    """The runs in the order of their folders, many of them by several processes."""
    complete: list[CompleteRun] = []
    left_out: list[UnusableRun] = []
    for found in parallel_map(read_run, folders, chunk=RUNS_AT_ONCE):
        if isinstance(found, CompleteRun):
            complete.append(found)
        else:
            left_out.append(found)
    return complete, left_out


def _as_compared(
    complete: Sequence[CompleteRun], left_out: Sequence[UnusableRun]
) -> tuple[list[CompleteRun], list[UnusableRun]]:
    """Return the runs with points in which options that are no part of the comparison are equal."""
    configs = compared_configs([run.header for run in complete])
    runs = [replace(run, config=config) for run, config in zip(complete, configs, strict=True)]
    others = [
        replace(left, config=with_common_places(left.config, configs)) if left.config else left
        for left in left_out
    ]
    return runs, others


def _compared_header(run: CompleteRun) -> Header:
    return run.header.model_copy(update={"config": run.config})


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """What is read stays: to search it for garbage again and again takes longer than to unpack it."""
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
    """By options, framework, knobs, workers and repeat."""
    runs = list(runs)
    axes = varying([run.config for run in runs])
    shared, knobs = [axis for axis in axes if not is_knob(axis)], [axis for axis in axes if is_knob(axis)]

    def key(run: CompleteRun) -> tuple[object, ...]:
        config = run.config
        options = order(config, shared), FRAMEWORKS.index(config.framework), order(config, knobs)
        return *options, config.workers, config.repeat, run.name

    return sorted(runs, key=key)


def _without_copies(runs: Sequence[CompleteRun]) -> tuple[dict[str, CompleteRun], list[UnusableRun]]:
    """A repeat of a point counts once, however many folders hold it."""
    first: dict[Hashable, CompleteRun] = {}
    copies = []
    for run in runs:
        kept = first.setdefault(identity(run.config), run)
        if kept is not run:
            copies.append(_refused(run, f"the same repeat of the same point as {kept.name}"))
    return {run.name: run for run in first.values()}, copies


def _study(
    name: str, runs: Sequence[CompleteRun], left_out: Sequence[UnusableRun], criteria: Criteria
) -> Study:
    configs = [run.config for run in runs]
    # A point of which every run diverged is a point of the study all the same.
    diverged = [left.config for left in left_out if left.config and left.left_out.state == "diverged"]
    axes = varying(configs + diverged)
    table = run_table([_row(run, axes) for run in runs])
    values = [flat_options(config) for config in configs]
    unknown = tuple(run.name for run in runs if not run.attempts_known)
    for axis in axes:
        table[axis] = [shown(options[axis]) if axis in options else None for options in values]
    return Study(
        name=name,
        runs=table,
        epochs=tidy([(run.name, run.epochs) for run in runs], EPOCH_COLUMNS),
        evaluations=tidy([(run.name, run.evaluations) for run in runs], EVALUATION_COLUMNS),
        left_out=left_out_table([_labelled(left, axes) for left in left_out]),
        headers={run.name: run.header for run in runs},
        criteria=criteria,
        axes=axes,
        notes=remarks({run.name: run.header for run in runs}, unknown),
        unknown_attempts=unknown,
        budgets=tidy([(run.name, run.budget) for run in runs], BUDGET_COLUMNS),
        probes=tidy([(run.name, run.probe) for run in runs], PROBE_COLUMNS),
        startups=tidy([(run.name, run.startup) for run in runs], STARTUP_TABLE_COLUMNS),
    )


def _labelled(unusable: UnusableRun, axes: Sequence[str]) -> LeftOut:
    if unusable.config is None:
        return unusable.left_out
    options, knobs = labels(unusable.config, axes)
    return replace(unusable.left_out, options=options, knobs=knobs)


def tidy(parts: Sequence[tuple[str, Columns]], names: Sequence[str]) -> pd.DataFrame:
    """The columns of all runs one below the other, the run's name repeated beside them."""
    if not parts:
        return pd.DataFrame(columns=list(names))
    runs = [name for name, _ in parts]
    sizes = [len(columns[names[1]]) for _, columns in parts]
    table = {name: np.concatenate([columns[name] for _, columns in parts]) for name in names[1:]}
    run = pd.Categorical.from_codes(np.repeat(np.arange(len(runs)), sizes), categories=pd.Index(runs))
    return pd.DataFrame({names[0]: run} | table)


def _row(run: CompleteRun, axes: Sequence[str]) -> Run:
    """One row of the table: throughput is images over seconds, both summed over the epochs in use."""
    header, config = run.header, run.config
    used = ~run.epochs["warmup"].astype(bool) & ~run.epochs["stalled"].astype(bool)
    seconds, images, steps, losses = (
        run.epochs[name][used].astype(float) for name in ("seconds", "images", "steps", "loss")
    )
    last = {name: values[-1].item() for name, values in run.evaluations.items()}
    hosts = [worker.host for facts in header.attempts() for worker in facts.workers]
    options, knobs = labels(config, axes)
    busy = run.disturbance.busy_share
    return Run(
        run=run.name,
        framework=config.framework,
        workers=config.workers,
        repeat=config.repeat,
        seed=config.seed,
        options=options,
        knobs=knobs,
        images_per_second=images.sum() / seconds.sum(),
        epochs_per_second=len(seconds) / seconds.sum(),
        epochs_used=len(seconds),
        seconds_per_epoch=float(np.median(seconds)),
        images_per_epoch=images.mean(),
        steps_per_epoch=steps.mean(),
        step_seconds=seconds.sum() / steps.sum(),
        loss=losses[-1].item(),
        iou=last["iou"],
        dice=last["dice"],
        test_images=last["images"],
        training_seconds=last["training_seconds"],
        hosts=_distinct(hosts),
        nodes=len({worker.host for worker in header.workers}),
        devices=_distinct(worker.device for worker in header.workers),
        cores_per_worker=_distinct(str(len(worker.cores)) for worker in header.workers),
        started_utc=header.attempts()[0].started_utc,
        busy_share=NAN if busy is None else busy,
        disturbed=run.disturbance.reason,
        stalls="; ".join(map(str, run.disturbance.stalls)),
    )


def _distinct(values: Iterable[str]) -> str:
    return " ".join(dict.fromkeys(values))
