"""Simulated studies of known truth: what the analysis says of them can be held against what is so.

Throughput of an epoch is exp(block + launch + epoch noise); the block is what all launches of one repeat have
in common.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.arrays import Array
from analysis.study import EVALUATION_COLUMNS, Study, left_out_table
from unet_scaling.study.config import FRAMEWORKS, RunConfig, StudyConfig

# The same draws in every study of null cells, so that a difference between cells is not one of luck.
SIMULATION_SEED = 7
_IMAGES = 1000
SIMULATED_WORKERS = (1, 4)
# From the first launch of a study to the last.
DRIFT = 0.10
EPOCHS = 2
# The configurations of a study in the order in which its jobs are submitted.
LaunchOrder = Callable[[StudyConfig], Sequence[RunConfig]]


@dataclass(frozen=True)
class Noise:
    """Standard deviations of a block (repeat), of a launch and of an epoch; `shape` is that of launches."""

    block: float
    launch: float
    epoch: float
    epochs: int
    shape: str = "normal"

    def __str__(self) -> str:
        parts = [f"{100 * getattr(self, name):g} % {name}" for name in ("block", "launch", "epoch")]
        shape = "" if self.shape == "normal" else f", {self.shape}"
        return f"{', '.join(part for part in parts if part[0:2] != '0 ')}, {self.epochs} epochs{shape}"


def draw(random: np.random.Generator, noise: Noise, size: int) -> Array:
    """Draw noise of launches of median 0: normal, Student's t with 3 degrees of freedom, or slow-downs."""
    if noise.shape == "heavy tails":
        return np.asarray(noise.launch * random.standard_t(3, size), dtype=np.float64)
    if noise.shape == "skewed":
        return np.asarray(noise.launch * (np.log(2) - random.exponential(size=size)), dtype=np.float64)
    return random.normal(0, noise.launch, size)


def simulate(
    random: np.random.Generator, noise: Noise, studies: int, repeats: int, ratio: float, paired: bool = True
) -> Study:
    """Return many studies in one, an `options` each; perfectly linear, Horovod slower by `ratio`.

    Not `paired`: native DDP alone, whose launches on 1 worker have repeats, and blocks, of their own.
    """
    rows = _simulated_runs(studies, FRAMEWORKS if paired else FRAMEWORKS[:1], repeats)
    blocks = random.normal(0, noise.block, (studies, 2 * repeats + 1))
    if not paired:
        rows["repeat"] += repeats * (rows["workers"] == 1)
    factor = np.where(rows["framework"] == "horovod", 1 / ratio, 1.0) * rows["workers"].to_numpy()
    launch = blocks[rows["options"], rows["repeat"]] + draw(random, noise, len(rows))
    pace = launch[:, None] + random.normal(0, noise.epoch, (len(rows), noise.epochs))
    rows["options"] = [f"{number:05d}" for number in rows["options"]]
    return study_of(rows, factor[:, None] * np.exp(pace))


def _simulated_runs(studies: int, frameworks: Sequence[str], repeats: int) -> pd.DataFrame:
    return pd.MultiIndex.from_product(
        [range(studies), frameworks, SIMULATED_WORKERS, range(1, repeats + 1)],
        names=["options", "framework", "workers", "repeat"],
    ).to_frame(index=False)


def study_of(rows: pd.DataFrame, throughput: Array) -> Study:
    """Return a study of these runs from the throughput of each of their epochs, (runs, epochs)."""
    runs = rows.assign(run=[f"run{number}" for number in range(len(rows))], knobs="", iou=np.nan, nodes=1.0)
    runs = runs.assign(busy_share=0.0, disturbed="", stalls="", dilation=1.0, link_rate="")
    seconds = _IMAGES / throughput
    _add_speed(runs, seconds)
    evaluations = pd.DataFrame(columns=list(EVALUATION_COLUMNS))
    return Study("simulated", runs, _epoch_table(runs, seconds), evaluations, left_out_table([]), headers={})


def _add_speed(runs: pd.DataFrame, seconds: Array) -> None:
    epochs = seconds.shape[1]
    runs["images_per_second"] = epochs * _IMAGES / seconds.sum(axis=1)
    runs["epochs_per_second"] = runs["images_per_second"] / _IMAGES
    runs["images_per_epoch"] = float(_IMAGES)
    runs["steps_per_epoch"] = 1.0
    runs["seconds_per_epoch"] = np.median(seconds, axis=1)
    runs["epochs_used"] = epochs


def _epoch_table(runs: pd.DataFrame, seconds: Array) -> pd.DataFrame:
    epochs = seconds.shape[1]
    table = pd.DataFrame({"run": np.repeat(runs["run"].to_numpy(), epochs), "seconds": seconds.ravel()})
    return table.assign(
        steps=1, epoch=np.tile(np.arange(epochs), len(runs)), images=_IMAGES, warmup=False, stalled=False
    )


def true_throughput(noise: Noise, workers: int) -> float:
    """Return the median throughput of all possible launches: harmonic over the noise of epochs."""
    return workers * float(np.exp(-(noise.epoch**2) / 2 * (1 - 1 / noise.epochs)))


def steady_launches(random: np.random.Generator, size: int) -> Array:
    """Draw 2 % of noise in each launch."""
    return random.normal(0, 0.02, size)


def stragglers(random: np.random.Generator, size: int) -> Array:
    """Draw 1 % of noise, and one launch in five slowed by an exponential of 20 % on average."""
    slowed = np.where(random.random(size) < 0.2, random.exponential(0.2, size), 0.0)
    return random.normal(0, 0.01, size) - slowed


def bimodal(random: np.random.Generator, size: int) -> Array:
    """Draw 1 % of noise, and half of the launches 10 % slower."""
    return random.normal(0, 0.01, size) - 0.1 * (random.random(size) < 0.5)


@dataclass(frozen=True)
class NullCell:
    """Studies in which both frameworks are equally fast; `drift` slows the machine from start to end.

    Others: Horovod is slower by `ratio`, and more than 1 worker have this `efficiency`.
    """

    name: str
    launch: Callable[[np.random.Generator, int], Array]
    drift: float = 0.0
    one_after_the_other: bool = False
    ratio: float = 1.0
    efficiency: float = 1.0


NULL_CELLS = (
    NullCell("2 % launch", steady_launches),
    NullCell("stragglers", stragglers),
    NullCell("bimodal", bimodal),
    NullCell("2 % launch, 10 % drift, interleaved", steady_launches, DRIFT),
    NullCell("2 % launch, 10 % drift, one arm after the other", steady_launches, DRIFT, True),
)


def null_study(
    cell: NullCell, studies: int, workers: Sequence[int], repeats: int, launch_order: LaunchOrder
) -> Study:
    """Return many studies in one, an `options` each, whose runs start in the order of their launches."""
    random = np.random.default_rng(SIMULATION_SEED)
    rows = pd.concat([_launched(cell, number, workers, repeats, launch_order) for number in range(studies)])
    rows = rows.reset_index(drop=True)
    started = pd.Timestamp("2025-01-31T12:00:00Z") + pd.to_timedelta(rows["place"], unit="min")
    rows["started_utc"] = started.dt.strftime("%Y-%m-%dT%H:%M:%SZ")
    last = 2 * len(workers) * repeats - 1
    pace = cell.launch(random, len(rows)) + np.log1p(-cell.drift * rows["place"].to_numpy() / last)
    slower = np.where(rows["framework"] == "horovod", cell.ratio, 1.0)
    efficiency = np.where(rows["workers"] > 1, cell.efficiency, 1.0)
    throughput = rows["workers"].to_numpy() * efficiency / slower * np.exp(pace)
    rows = rows.assign(hosts="node", training_seconds=0.0).drop(columns="place")
    return study_of(rows, np.repeat(throughput[:, None], EPOCHS, axis=1))


def _launched(
    cell: NullCell, number: int, workers: Sequence[int], repeats: int, launch_order: LaunchOrder
) -> pd.DataFrame:
    """Return the runs of one study; `place` is that in the order of their launches."""
    file = {"name": "null", "workers": list(workers), "repeats": repeats, "seed": number}
    tables = {
        "data": {"folder": "/data", "image_height": 32, "image_width": 32},
        "training": {"epochs": EPOCHS, "batch_per_worker": 1},
    }
    configs = launch_order(StudyConfig.model_validate({**file, **tables}))
    if cell.one_after_the_other:
        configs = sorted(configs, key=lambda config: config.framework == "horovod")
    runs = [(config.framework, config.workers, config.repeat) for config in configs]
    table = pd.DataFrame(runs, columns=["framework", "workers", "repeat"])
    return table.assign(options=f"{number:05d}", place=np.arange(len(table)))
