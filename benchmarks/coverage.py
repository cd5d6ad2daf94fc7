"""How often the intervals hold the truth, and how small a difference 5 repeats resolve, by simulation.

    .venv/bin/python -m benchmarks.coverage [--studies 2000]

Simulates the throughput of launches from noise models of known truth and passes it through the code of
the analysis. Throughput of an epoch is exp(block + launch + epoch noise); the block is what all launches
of one repeat have in common. Prints the percentage of studies whose 95 % interval holds the truth, then
the percentage that finds a difference, with the false alarms of the steadiness check. A few minutes.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.findings.comparison import compare, repeats_needed
from analysis.findings.speedup import summarise
from analysis.findings.steadiness import run_steadiness
from analysis.study import EVALUATION_COLUMNS, Study, left_out_table
from unet_scaling.config import FRAMEWORKS

Array = NDArray[np.float64]
SEED = 7
STUDIES_AT_ONCE = 500
IMAGES = 1000
WORKERS = (1, 4)


@dataclass(frozen=True)
class Noise:
    """Standard deviations: of a block (repeat), of a launch, of an epoch; `shape` is that of launches."""

    block: float
    launch: float
    epoch: float
    epochs: int
    shape: str = "normal"

    def __str__(self) -> str:
        parts = [f"{100 * getattr(self, name):g} % {name}" for name in ("block", "launch", "epoch")]
        shape = "" if self.shape == "normal" else f", {self.shape}"
        return f"{', '.join(part for part in parts if part[0:2] != '0 ')}, {self.epochs} epochs{shape}"


MIXES = (
    Noise(0, 0.02, 0, 2),
    Noise(0, 0, 0.02, 2),
    Noise(0, 0, 0.02, 10),
    Noise(0, 0, 0.02, 50),
    Noise(0, 0.02, 0.02, 2),
    Noise(0, 0.02, 0.02, 20),
    Noise(0.02, 0.005, 0.02, 10),
    Noise(0.02, 0.02, 0.02, 10),
    Noise(0, 0.02, 0.02, 5, "heavy tails"),
    Noise(0, 0.02, 0.02, 5, "skewed"),
)


def draw(random: np.random.Generator, noise: Noise, size: int) -> Array:
    """Noise of launches with median 0: normal, Student's t with 3 degrees of freedom, or slow-downs."""
    if noise.shape == "heavy tails":
        return np.asarray(noise.launch * random.standard_t(3, size), dtype=np.float64)
    if noise.shape == "skewed":
        return np.asarray(noise.launch * (np.log(2) - random.exponential(size=size)), dtype=np.float64)
    return random.normal(0, noise.launch, size)


def simulate(
    random: np.random.Generator, noise: Noise, studies: int, repeats: int, ratio: float, paired: bool = True
) -> Study:
    """Many studies in one, an `options` each; perfectly linear, Horovod slower by `ratio`.

    Not `paired`: native DDP alone, whose launches on 1 worker have repeats, and blocks, of their own.
    """
    rows = pd.MultiIndex.from_product(
        [range(studies), FRAMEWORKS if paired else FRAMEWORKS[:1], WORKERS, range(1, repeats + 1)],
        names=["options", "framework", "workers", "repeat"],
    ).to_frame(index=False)
    blocks = random.normal(0, noise.block, (studies, 2 * repeats + 1))
    if not paired:
        rows["repeat"] += repeats * (rows["workers"] == 1)
    factor = np.where(rows["framework"] == "horovod", 1 / ratio, 1.0) * rows["workers"].to_numpy()
    launch = blocks[rows["options"], rows["repeat"]] + draw(random, noise, len(rows))
    pace = launch[:, None] + random.normal(0, noise.epoch, (len(rows), noise.epochs))
    rows["options"] = [f"{number:05d}" for number in rows["options"]]
    return study_of(rows, factor[:, None] * np.exp(pace))


def study_of(rows: pd.DataFrame, throughput: Array) -> Study:
    """A study of these runs from the throughput of each of their epochs, (runs, epochs)."""
    runs = rows.assign(run=[f"run{number}" for number in range(len(rows))], knobs="", iou=np.nan, nodes=1.0)
    epochs = throughput.shape[1]
    seconds = IMAGES / throughput
    runs["images_per_second"] = epochs * IMAGES / seconds.sum(axis=1)
    runs["epochs_per_second"] = runs["images_per_second"] / IMAGES
    runs["images_per_epoch"] = float(IMAGES)
    runs["seconds_per_epoch"] = np.median(seconds, axis=1)
    table = pd.DataFrame({"run": np.repeat(runs["run"].to_numpy(), epochs), "seconds": seconds.ravel()})
    table = table.assign(epoch=np.tile(np.arange(epochs), len(runs)), images=IMAGES, warmup=False)
    evaluations = pd.DataFrame(columns=list(EVALUATION_COLUMNS))
    return Study("simulated", runs, table, evaluations, left_out_table([]), headers={})


def true_throughput(noise: Noise, workers: int) -> float:
    """Median throughput of all possible launches: harmonic over the noise of epochs."""
    return workers * float(np.exp(-(noise.epoch**2) / 2 * (1 - 1 / noise.epochs)))


def holds(table: pd.DataFrame, name: str, truth: float) -> float:
    """Percentage of rows whose interval holds the truth."""
    return 100 * float(((table[f"{name}_low"] <= truth) & (truth <= table[f"{name}_high"])).mean())


def coverages(noise: Noise, repeats: int, studies: int) -> list[float]:
    """Percent covered: point median, speed-up paired, speed-up unpaired, DDP/Horovod ratio."""
    random = np.random.default_rng(SEED)
    found = []
    for _ in range(max(1, studies // STUDIES_AT_ONCE)):
        size = min(studies, STUDIES_AT_ONCE)
        study = simulate(random, noise, size, repeats, 1.03)
        apart = simulate(random, noise, size, repeats, 1.03, paired=False)
        paired, unpaired = (of_four_workers(each) for each in (study, apart))
        ratios = compare(study)
        found.append([
            holds(paired, "throughput", true_throughput(noise, WORKERS[-1])),
            holds(paired, "speedup", WORKERS[-1]),
            holds(unpaired, "speedup", WORKERS[-1]),
            holds(ratios[ratios["workers"] == WORKERS[-1]], "ratio", 1.03),
        ])  # fmt: skip
    return list(np.mean(found, axis=0))


def of_four_workers(study: Study) -> pd.DataFrame:
    """The points of native DDP on the most workers: one per simulated study."""
    native = study.runs[study.runs["framework"] == "pytorch_native"]
    points = summarise(replace(study, runs=native))
    return points[points["workers"] == WORKERS[-1]]


def resolved(noise: Noise, ratio: float, repeats: int, studies: int) -> float:
    """Percentage of studies that call native DDP faster where it is, by `ratio`."""
    study = simulate(np.random.default_rng(SEED), noise, studies, repeats, ratio)
    return 100 * float((compare(study)["outcome"] == "native DDP faster").mean())


def false_alarms(noise: Noise, correlation: float, runs: int) -> float:
    """Percentage of steady runs called unsteady; `correlation` is that of neighbouring epochs."""
    random = np.random.default_rng(SEED)
    pace = random.normal(0, noise.epoch, (runs, noise.epochs))
    for epoch in range(1, noise.epochs):
        pace[:, epoch] = correlation * pace[:, epoch - 1] + np.sqrt(1 - correlation**2) * pace[:, epoch]
    rows = pd.DataFrame({"options": "", "framework": "horovod", "workers": 1, "repeat": np.arange(runs)})
    return 100 * float((run_steadiness(study_of(rows, np.exp(pace)))["steady"] == "no").mean())


def coverage_lines(studies: int, repeats: Sequence[int]) -> Iterator[str]:
    """The coverage table: all mixes at 5 repeats, then some of them at other numbers of repeats."""
    yield "| noise | repeats | median | speed-up, paired | speed-up, unpaired | DDP / Horovod |"
    yield "|---|--:|--:|--:|--:|--:|"
    cases = [(noise, 5) for noise in MIXES]
    cases += [(noise, number) for noise in (MIXES[0], MIXES[3], MIXES[7]) for number in repeats]
    cases += [(MIXES[6], number) for number in (7, 20)]
    for noise, number in cases:
        cells = " | ".join(f"{value:.1f}" for value in coverages(noise, number, studies))
        yield f"| {noise} | {number} | {cells} |"


def power_lines(studies: int) -> Iterator[str]:
    """How often a difference is found."""
    yield "| noise | native DDP faster by | repeats | found in % of studies |"
    yield "|---|--:|--:|--:|"
    models = (
        Noise(0, 0, 0.02, 5),
        Noise(0, 0, 0.02, 20),
        Noise(0.02, 0.005, 0.02, 20),
        Noise(0, 0.02, 0, 20),
    )
    cases = [(noise, ratio, 5) for noise in models for ratio in (1.03, 1.005)]
    # Two launches a pair: the spread of the logarithm of their ratio is sqrt(2) times that of a launch.
    pair = np.array([-1.0, 0.0, 1.0]) * np.sqrt(2) * models[-1].launch + np.log(1.03)
    cases += [(models[-1], 1.03, number) for number in (8, int(repeats_needed(pair)), 15)]
    for noise, ratio, number in cases:
        found = resolved(noise, ratio, number, studies)
        yield f"| {noise} | {100 * (ratio - 1):.1f} % | {number} | {found:.1f} |"


def alarm_lines(runs: int) -> Iterator[str]:
    """False alarms of the steadiness check."""
    yield "| epochs | noise of an epoch | correlation of neighbours | false alarms in % of runs |"
    yield "|--:|--:|--:|--:|"
    for epochs in (8, 20, 50, 200):
        for correlation in (0.0, 0.5):
            found = false_alarms(Noise(0, 0, 0.02, epochs), correlation, runs)
            yield f"| {epochs} | 2 % | {correlation:g} | {found:.2f} |"


def main() -> None:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--studies", type=int, default=2000, help="simulated for each row of the tables")
    studies = parser.parse_args().studies
    tables = (coverage_lines(studies, (3, 4, 6, 7, 10, 20)), power_lines(studies), alarm_lines(10 * studies))
    for lines in tables:
        for line in lines:
            print(line, flush=True)
        print()


if __name__ == "__main__":
    main()
