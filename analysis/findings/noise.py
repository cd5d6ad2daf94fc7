"""The gradient noise scale of every point, over the whole training and over stages of it."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.arrays import Integers
from analysis.score import Score
from analysis.statistics.noise_scale import FEWEST_BLOCKS, NoiseScale, estimate_noise_scale
from analysis.study import POINT, SERIES, Study
from analysis.text import Row, count, labelled, number, series_name, with_interval
from unet_scaling.study.config import RunConfig
from unet_scaling.study.options import Training

WHOLE_TRAINING = "whole training"
# Beyond so many a curve shows noise; with fewer samples a stage is hardly ever resolved.
MOST_STAGES = 10
FEWEST_SAMPLES_OF_A_STAGE = 20
# More would change no interval: Student's t has hardly a heavier tail than a normal then.
MOST_STEP_BLOCKS = 20
_ESTIMATED = ("noise_scale_workers", "noise_scale_images")
NOISE_COLUMNS = (
    *POINT, "kind", "played_workers", "repeats", "stage", "first_epoch", "last_epoch", "sampled_steps",
    "noise", "signal", "signal_low", "signal_high",
    *(f"{name}{end}" for name in _ESTIMATED for end in ("", "_low", "_high")), "answer",
)  # fmt: skip
# Of the points by whose IoU an estimate is judged.
JUDGED_COLUMNS = [*SERIES, "workers", "non_inferior"]
NOISE_CAUTION = (
    "the noise scale is an early warning, not a law: it is derived for SGD, and for Adam the largest batch "
    "that costs no quality may lie far from it (arXiv 2505.23971, 1907.04164); what decides is the"
)


def noise_table(*studies: Study) -> pd.DataFrame:
    """Return one row per point and stage of training, and one for the whole; none where nothing was sampled.

    `noise` and `signal` are S and G of analysis/statistics/noise_scale.py. A stage holds consecutive epochs.
    """
    rows = [row for study in studies for row in _rows_of(study)]
    return pd.DataFrame(rows, columns=list(NOISE_COLUMNS))


def _rows_of(study: Study) -> Iterator[dict[str, Any]]:
    sampled = study.gradient_norms.merge(study.runs[[*POINT, "run"]].astype({"run": object}), on="run")
    for point, samples in sampled.groupby(POINT, sort=False):
        for row in _rows(study, samples):
            yield dict(zip(POINT, point, strict=True)) | row


def _rows(study: Study, samples: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield the rows of one point: of the whole training, then of its stages where there are several."""
    config = study.headers[str(samples["run"].iloc[0])].config
    facts = _facts(config) | {"repeats": samples["run"].nunique()}
    for stage, part in _stages(len(samples), np.arange(config.training.epochs)):
        within = samples[samples["epoch"].isin(part)]
        columns = _columns(_estimate(within, config.played_workers), config.training)
        yield facts | _place(stage, part) | {"sampled_steps": len(within)} | columns


def _facts(config: RunConfig) -> dict[str, Any]:
    kind = "played" if config.is_played else "real"
    return {"kind": kind, "played_workers": config.played_workers}


def _place(stage: str, epochs: Integers) -> dict[str, Any]:
    return {"stage": stage, "first_epoch": int(epochs[0]) + 1, "last_epoch": int(epochs[-1]) + 1}


def _stages(samples: int, epochs: Integers) -> Iterator[tuple[str, Integers]]:
    """Yield the name and the epochs of the whole training, and of its stages of about equal length."""
    yield WHOLE_TRAINING, epochs
    stages = min(MOST_STAGES, samples // FEWEST_SAMPLES_OF_A_STAGE, len(epochs))
    if stages > 1:
        for number, part in enumerate(np.array_split(epochs, stages), start=1):
            yield f"{number} of {stages}", part


def _estimate(samples: pd.DataFrame, workers: int) -> NoiseScale:
    own, mean = (samples[name].to_numpy(dtype=np.float64) for name in ("own_squared", "mean_squared"))
    return estimate_noise_scale(own, mean, workers, _blocks(samples))


def _blocks(samples: pd.DataFrame) -> Integers:
    """Return the block of each sampled step: its launch where there are enough launches.

    Otherwise each block holds steps of all launches and of the whole time, so that what changes in
    training does not pass for noise.
    """
    launches = pd.factorize(samples["run"])[0]
    if launches.max(initial=0) + 1 >= FEWEST_BLOCKS:
        return np.asarray(launches, dtype=np.int64)
    return np.arange(len(samples)) % MOST_STEP_BLOCKS


def _columns(estimate: NoiseScale, training: Training) -> dict[str, Any]:
    """Return the columns of an estimate in workers and in images."""
    images = training.batch_per_worker * training.accumulate
    low, high = estimate.workers_interval
    workers = {"": estimate.workers, "_low": low, "_high": high}
    return {
        "noise": estimate.noise,
        "signal": estimate.signal,
        "signal_low": estimate.signal_interval[0],
        "signal_high": estimate.signal_interval[1],
        **{f"noise_scale_workers{end}": value for end, value in workers.items()},
        **{f"noise_scale_images{end}": value * images for end, value in workers.items()},
        "answer": estimate.answer,
    }


def critical_workers(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of N_crit: of each series the whole training on its fewest workers."""
    whole = table[table["stage"] == WHOLE_TRAINING].sort_values("played_workers", kind="stable")
    return whole.drop_duplicates(SERIES)


def noise_notes(table: pd.DataFrame, judged: pd.DataFrame, study: Study) -> list[str]:
    """Return the noise scale of each series on its fewest workers, in words, and how far to trust it.

    `judged` holds JUDGED_COLUMNS, with `non_inferior` as in `iou_table`: what became of the warning.
    """
    rows = critical_workers(table).to_dict("records")
    caution = f"{NOISE_CAUTION} {study.score.title} at so many workers, played or real"
    return [*(_note(row, judged, study) for row in rows), caution] if rows else []


def _note(row: Row, judged: pd.DataFrame, study: Study) -> str:
    series = labelled(row["options"], series_name(row, study.names))
    workers = count(int(row["played_workers"]), f"{row['kind']} worker")
    return (
        f"{series}, measured on {workers}: the gradient noise scale is {noise_scale_text(row, study.score)}"
        f"{_outcome(row, judged[(judged[SERIES] == pd.Series(row)[SERIES]).all(axis=1)], study.score)}"
    )


def _outcome(row: Row, judged: pd.DataFrame, score: Score) -> str:
    """Return what the IoU says of the warning; nothing where one of them is not known."""
    kept, lost = (sorted(judged.loc[judged["non_inferior"] == answer, "workers"]) for answer in ("yes", "no"))
    if pd.isna(row["noise_scale_workers_high"]) or not (kept or lost):
        return ""
    if lost and lost[0] < row["noise_scale_workers_low"]:
        return f". It came too late: the {score.title} is inferior on {lost[0]} workers already"
    if kept and kept[-1] > row["noise_scale_workers_high"]:
        return f". It was too cautious: the {score.title} is not inferior on {kept[-1]} workers"
    return f". {_within(kept, lost, score)}"


def _within(kept: Sequence[int], lost: Sequence[int], score: Score) -> str:
    """Return the outcome where nothing speaks against the warning."""
    if lost:
        return f"It fits: the {score.title} is inferior on {lost[0]} workers, and on no fewer"
    most = f"{kept[-1]} workers, the most that tell"
    return f"It was not put to the test: the {score.title} is not inferior on {most}"


def noise_scale_text(row: Row, score: Score) -> str:
    """Return the noise scale of a row in images and in workers, or what is known of it."""
    if not pd.isna(row["noise_scale_workers"]):
        samples, workers = (with_interval(row, name, "~2") for name in _ESTIMATED[::-1])
        return f"{samples} {score.samples}, the batch of N_crit = {workers} workers"
    low = row["noise_scale_workers_low"]
    least = "" if pd.isna(low) else f"; at least the batch of {number(low, '~2')} workers"
    return f"{row['answer']}{least}"
