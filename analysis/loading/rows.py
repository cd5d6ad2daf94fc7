"""The rows of a study's tables: one per run, and the columns of all runs one below the other."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.loading.budget_columns import Columns
from analysis.loading.options import labels
from analysis.loading.runs import CompleteRun
from analysis.study import NAN, Run
from unet_scaling.study.record_lines import Provenance

# What the epochs in use say of a run.
_SPEEDS = (
    "images_per_second", "epochs_per_second", "seconds_per_epoch", "images_per_epoch", "steps_per_epoch",
    "step_seconds", "loss",
)  # fmt: skip


def run_row(run: CompleteRun, axes: Sequence[str]) -> Run:
    """Return a run as a row of the table; `axes` are the options that vary in the study."""
    options, knobs = labels(run.config, axes)
    busy = run.disturbance.busy_share
    return Run(
        run=run.name,
        framework=run.config.framework,
        workers=run.config.workers,
        repeat=run.config.repeat,
        seed=run.config.seed,
        options=options,
        knobs=knobs,
        **speed_of(run.epochs),
        **_quality(run),
        **machine_of(run.header),
        hosts=distinct(worker.host for facts in run.header.attempts() for worker in facts.workers),
        peak_memory_bytes=_peak_memory_bytes(run),
        busy_share=NAN if busy is None else busy,
        disturbed=run.disturbance.reason,
        stalls="; ".join(map(str, run.disturbance.stalls)),
        emulated_by=run.header.compute.name if run.header.compute else "",
        scores=_scores(run),
    )


def speed_of(epochs: Columns) -> dict[str, Any]:
    """Return throughputs and times over the epochs in use, as sums over sums, and their last loss.

    Without such an epoch they are NaN.
    """
    used = ~epochs["warmup"].astype(bool) & ~epochs["stalled"].astype(bool)
    if not used.any():
        return dict.fromkeys(_SPEEDS, NAN) | {"epochs_used": 0}
    names = ("seconds", "images", "steps", "loss")
    seconds, images, steps, loss = (epochs[name][used].astype(float) for name in names)
    return {
        "images_per_second": images.sum() / seconds.sum(),
        "epochs_per_second": len(seconds) / seconds.sum(),
        "epochs_used": len(seconds),
        "seconds_per_epoch": float(np.median(seconds)),
        "images_per_epoch": images.mean(),
        "steps_per_epoch": steps.mean(),
        "step_seconds": seconds.sum() / steps.sum(),
        "loss": loss[-1].item(),
    }


def _peak_memory_bytes(run: CompleteRun) -> float:
    of_workers = run.budget["peak_memory_bytes"].astype(float)
    return float(of_workers.max()) if len(of_workers) else NAN


def _quality(run: CompleteRun) -> dict[str, Any]:
    """Return what the last evaluation says; an emulated run has none, and learns nothing."""
    evaluations = run.evaluations
    if run.header.is_emulated:
        trained = run.epochs["seconds"].sum().item()
        return {"iou": NAN, "dice": NAN, "test_images": NAN, "training_seconds": trained}
    last = {name: values[-1].item() for name, values in evaluations.items()}
    shown = {name: last[name] for name in ("iou", "dice", "training_seconds")}
    return shown | {"test_images": last["images"]}


def _scores(run: CompleteRun) -> str:
    """Return the scores of the last evaluation; empty where there is one only, which is judged."""
    epochs, names, values = (run.scores[name] for name in ("epochs", "score", "value"))
    last = epochs == epochs.max(initial=0)
    return scores_text(zip(names[last], values[last], strict=True))


def scores_text(scores: Iterable[tuple[str, float]]) -> str:
    """Return scores that are known as text, "accuracy=0.93, f1=0.9"."""
    return ", ".join(f"{name}={value:.6g}" for name, value in scores if not math.isnan(value))


def machine_of(header: Provenance) -> dict[str, Any]:
    """Return where the run ran: nodes, devices and cores of the last attempt, and when it began."""
    return {
        "nodes": len({worker.host for worker in header.workers}),
        "devices": distinct(worker.device for worker in header.workers),
        "cores_per_worker": distinct(str(len(worker.cores)) for worker in header.workers),
        "started_utc": header.first_started_utc,
        "dilation": header.dilation or 1.0,
        "link_rate": header.link_rate or "",
    }


def distinct(values: Iterable[str]) -> str:
    return " ".join(dict.fromkeys(values))


def tidy(parts: Sequence[tuple[str, Columns]], names: Sequence[str]) -> pd.DataFrame:
    """Return the columns of all runs one below the other, the run's name repeated beside them."""
    if not parts:
        return pd.DataFrame(columns=list(names))
    runs = [name for name, _ in parts]
    sizes = [len(columns[names[1]]) for _, columns in parts]
    table = {name: np.concatenate([columns[name] for _, columns in parts]) for name in names[1:]}
    run = pd.Categorical.from_codes(np.repeat(np.arange(len(runs)), sizes), categories=pd.Index(runs))
    return pd.DataFrame({names[0]: run} | table)
