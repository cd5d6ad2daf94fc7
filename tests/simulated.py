"""Studies made of tables alone, without files: throughputs in, Study out."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.findings.comparison import compare
from analysis.findings.verdict import Verdict, verdicts
from analysis.simulation import study_of
from analysis.study import Study
from unet_scaling.study.config import FRAMEWORKS, Framework

Throughputs = Mapping[tuple[Framework, int], Sequence[float]]


def study_from(
    throughputs: Throughputs, *, epochs: int = 10, epoch_noise: float = 0.0, seed: int = 0
) -> Study:
    """A study with one run per throughput, in images per second; their places are the repeats.

    `epoch_noise` is the standard deviation of an epoch's logarithm.
    """
    keys = sorted(throughputs, key=lambda key: (FRAMEWORKS.index(key[0]), key[1]))
    rows = pd.DataFrame(
        [
            {"options": "", "framework": framework, "workers": workers, "repeat": repeat}
            for framework, workers in keys
            for repeat, _ in enumerate(throughputs[framework, workers], start=1)
        ]
    )
    values = np.array([value for key in keys for value in throughputs[key]], dtype=np.float64)
    noise = np.random.default_rng(seed).normal(0, epoch_noise, (len(rows), epochs))
    return study_of(rows, values[:, None] * np.exp(noise))


def study_with_pace(pace: NDArray[np.float64]) -> Study:
    """One Horovod run on 1 worker for each row of seconds per epoch, (runs, epochs)."""
    rows = pd.DataFrame(
        {"options": "", "framework": "horovod", "workers": 1, "repeat": 1 + np.arange(len(pace))}
    )
    return study_of(rows, 1000 / pace)


def verdict_list(study: Study) -> list[Verdict]:
    """The verdicts on a study."""
    return verdicts(study, compare(study))


def sentence_of(throughputs: Throughputs) -> str:
    """The one verdict on these throughputs."""
    (verdict,) = verdict_list(study_from(throughputs))
    return str(verdict)
