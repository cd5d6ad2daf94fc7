"""Studies that add repeats until their intervals are narrow: how often these hold the truth."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from analysis.findings.comparison import compare
from analysis.findings.precision import half_widths
from analysis.study import Study
from benchmarks.simulation import SIMULATION_SEED, Noise, simulate
from unet_scaling.study.repeats import (
    ADAPTIVE_SIGNIFICANCE,
    FEWEST_ADAPTIVE_REPEATS,
    FIXED_SIGNIFICANCE,
    MOST_ADAPTIVE_REPEATS,
)

TRUE_RATIO = 1.03
# Over the noise of a pair, that of a launch times the root of 2; least is covered between 0.6 and 0.8.
WIDTHS_OF_A_PAIR = (0.6, 0.75, 0.9)
NOISES = (Noise(0, 0.02, 0, 2), Noise(0.05, 0.05, 0.02, 5), Noise(0.02, 0.03, 0, 2, "skewed"))
ONE_COUNT, TWO_COUNTS = (4,), (1, 4)


@dataclass(frozen=True)
class Outcome:
    """Percent of intervals that hold the truth when their studies end, and the mean of the repeats then."""

    covered: float
    repeats: float


def adaptive_outcome(study: Study, asked: float, significance: float) -> Outcome:
    """Let each simulated study, an `options` of `study`, end as soon as its intervals are this narrow."""
    study = replace(study, significance=significance)
    held: list[bool] = []
    repeats: list[int] = []
    for number in range(FEWEST_ADAPTIVE_REPEATS, MOST_ADAPTIVE_REPEATS + 1):
        runs = study.runs
        compared = compare(replace(study, runs=runs[runs["repeat"] <= number]), family=["options"])
        narrow = (half_widths(compared) <= asked).groupby(compared["options"]).transform("all")
        ended = compared[narrow | (number == MOST_ADAPTIVE_REPEATS)]
        held += ended["ratio_low"].le(TRUE_RATIO).mul(ended["ratio_high"].ge(TRUE_RATIO)).tolist()
        repeats += [number] * len(ended)
        study = replace(study, runs=runs[~runs["options"].isin(ended["options"])])
        if study.runs.empty:
            break
    return Outcome(100 * float(np.mean(held)), float(np.mean(repeats)))


def simulated(noise: Noise, studies: int, workers: Sequence[int]) -> Study:
    """Return studies with all the repeats that they may need, at these worker counts."""
    random = np.random.default_rng(SIMULATION_SEED)
    study = simulate(random, noise, studies, MOST_ADAPTIVE_REPEATS, TRUE_RATIO)
    return replace(study, runs=study.runs[study.runs["workers"].isin(workers)])


def adaptive_lines(studies: int) -> Iterator[str]:
    """Yield the table of adaptive studies, without and with the correction."""
    yield "| noise | worker counts | asked | 95 % intervals | repeats | 98 % intervals | repeats |"
    yield "|---|--:|--:|--:|--:|--:|--:|"
    for noise in NOISES:
        for workers in (ONE_COUNT, TWO_COUNTS):
            study = simulated(noise, studies, workers)
            for width in WIDTHS_OF_A_PAIR:
                asked = width * np.sqrt(2) * noise.launch
                cells = [
                    f"{outcome.covered:.1f} | {outcome.repeats:.1f}"
                    for significance in (FIXED_SIGNIFICANCE, ADAPTIVE_SIGNIFICANCE)
                    for outcome in [adaptive_outcome(study, asked, significance)]
                ]
                yield f"| {noise} | {len(workers)} | {100 * asked:.1f} % | {' | '.join(cells)} |"
