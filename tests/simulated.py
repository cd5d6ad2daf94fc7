"""Studies made of tables alone, without files: throughputs or their noise in, Study out."""

import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.judge.checks import fairness_checks
from analysis.numbers.contrast import FASTER, SUGGESTED, compare, withhold
from analysis.numbers.points import summarise
from analysis.study import EVALUATION_COLUMNS, Study, left_out_table
from unet_scaling.study.config import FRAMEWORKS, Framework

Throughputs = Mapping[tuple[Framework, int], Sequence[float]]
# Logarithms of the throughput of launches.
Draw = Callable[[np.random.Generator, int], NDArray[np.float64]]
IMAGES = 1000


def study_of(rows: pd.DataFrame, throughput: NDArray[np.float64]) -> Study:
    """A study of these runs from the throughput of each of their epochs, (runs, epochs)."""
    epochs = throughput.shape[1]
    seconds = IMAGES / throughput
    names = np.array([f"run{number}" for number in range(len(rows))])
    runs = rows.assign(run=names, knobs="", iou=np.nan, nodes=1.0, busy_share=0.0, disturbed="", stalls="")
    runs = runs.assign(dilation=1.0, link_rate="", uncounted_share=0.0, seed=rows["repeat"])
    runs = runs.assign(
        images_per_second=epochs * IMAGES / seconds.sum(axis=1),
        epochs_per_second=epochs / seconds.sum(axis=1),
        seconds_per_epoch=np.median(seconds, axis=1),
        images_per_epoch=float(IMAGES),
        steps_per_epoch=1.0,
        epochs_used=epochs,
    )
    of_epochs = {"run": np.repeat(names, epochs), "epoch": np.tile(np.arange(epochs), len(rows))}
    table = pd.DataFrame(of_epochs | {"seconds": seconds.ravel()})
    table = table.assign(images=IMAGES, steps=1, warmup=False, stalled=False)
    evaluations = pd.DataFrame(columns=list(EVALUATION_COLUMNS))
    return Study("simulated", runs, table, evaluations, left_out_table([]), headers={})


def equal_frameworks(draw: Draw, studies: int, repeats: int, *, drift: float = 0.0) -> Study:
    """Many studies in one, an `options` each, whose launches on 4 workers differ by luck and drift alone.

    The machine slows by `drift` over a study. Within a repeat the order of the frameworks is random.
    """
    random = np.random.default_rng(7)
    rows = _product(options=range(studies), repeat=range(1, repeats + 1), framework=FRAMEWORKS)
    rows["luck"] = random.random(len(rows))
    rows = rows.sort_values(["options", "repeat", "luck"])
    place = rows.groupby("options").cumcount().to_numpy()
    started = pd.Timestamp("2025-01-31T12:00:00Z") + pd.to_timedelta(place, unit="min")
    rows = rows.assign(
        options=_labels(rows), workers=4, hosts="node", training_seconds=0.0,
        started_utc=started.strftime("%Y-%m-%dT%H:%M:%SZ"),
    )  # fmt: skip
    pace = draw(random, len(rows)) + np.log1p(-drift * place / place.max())
    return study_of(rows.reset_index(drop=True), np.repeat(4 * np.exp(pace)[:, None], 2, axis=1))


def _product(**values: Sequence[object]) -> pd.DataFrame:
    return pd.DataFrame(itertools.product(*values.values()), columns=list(values))


def _labels(rows: pd.DataFrame) -> list[str]:
    return [f"{number:05d}" for number in rows["options"]]


def study_from(throughputs: Throughputs) -> Study:
    """A study with one run per throughput, in images per second; their places are the repeats."""
    keys = sorted(throughputs, key=lambda key: (FRAMEWORKS.index(key[0]), key[1]))
    rows = pd.DataFrame(
        [
            {"options": "", "framework": framework, "workers": workers, "repeat": repeat}
            for framework, workers in keys
            for repeat, _ in enumerate(throughputs[framework, workers], start=1)
        ]
    )
    values = np.array([value for key in keys for value in throughputs[key]], dtype=np.float64)
    return study_of(rows, np.repeat(values[:, None], 10, axis=1))


def study_with_pace(pace: NDArray[np.float64]) -> Study:
    """One Horovod run on 1 worker for each row of seconds per epoch, (runs, epochs)."""
    rows = pd.DataFrame(
        {"options": "", "framework": "horovod", "workers": 1, "repeat": 1 + np.arange(len(pace))}
    )
    return study_of(rows, 1000 / pace)


def points_of(study: Study) -> pd.DataFrame:
    """The table of points, as summary.csv has it."""
    return summarise(study)


def ratios_of(study: Study, family: Sequence[str] = ()) -> pd.DataFrame:
    """The table of comparisons; those of one `family` are corrected for each other."""
    return compare(study, family=family)


def claims(study: Study) -> tuple[float, float]:
    """Percent of the studies in one that call a framework faster, and that suggest it."""
    compared = withhold(compare(study, family=["options"]), fairness_checks(study))
    faster, suggested = (
        100 * compared["outcome"].isin(words).groupby(compared["options"]).any().mean()
        for words in (FASTER, SUGGESTED)
    )
    return faster, suggested
