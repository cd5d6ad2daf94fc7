"""Which framework is faster, in one sentence that claims no more than the runs support."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.intervals import FEWEST_REPEATS, RECOMMENDED_REPEATS, coverage, median_interval
from analysis.load import Study
from unet_scaling.config import Framework

NAMES: dict[Framework, str] = {"pytorch_native": "native DDP", "horovod": "Horovod"}
SHORT_NAMES: dict[Framework, str] = {"pytorch_native": "DDP", "horovod": "Horovod"}


@dataclass(frozen=True)
class Verdict:
    """A sentence about the runs that have these options; `knobs` name the two compared series."""

    options: str
    knobs: str
    sentence: str

    def __str__(self) -> str:
        compared = "; ".join(part for part in (self.options, self.knobs) if part)
        return f"[{compared}] {self.sentence}" if compared else self.sentence


def verdicts(study: Study) -> list[Verdict]:
    """One verdict for each set of options, and for each pair of knob settings within it."""
    found = []
    for options, runs in study.runs.groupby("options", sort=False):
        native = dict(list(runs[runs["framework"] == "pytorch_native"].groupby("knobs", sort=False)))
        horovod = dict(list(runs[runs["framework"] == "horovod"].groupby("knobs", sort=False)))
        if not (native and horovod):
            missing = NAMES["horovod"] if native else NAMES["pytorch_native"]
            found.append(Verdict(str(options), "", f"no verdict: there is no usable run of {missing}"))
        found += [
            Verdict(str(options), _knobs(first, second), _sentence(study, native[first], horovod[second]))
            for first in native
            for second in horovod
        ]
    return found


def _knobs(*labels: object) -> str:
    return " against ".join(str(label) for label in labels if label)


def _sentence(study: Study, native: pd.DataFrame, horovod: pd.DataFrame) -> str:
    common = set(native["workers"]) & set(horovod["workers"])
    if not common:
        return "no verdict: the frameworks have no worker count in common"
    workers = max(common)
    pairs = native[native["workers"] == workers].merge(horovod[horovod["workers"] == workers], on="repeat")
    if len(pairs) < FEWEST_REPEATS:
        return _not_enough(study, workers, len(pairs), {"pytorch_native": native, "horovod": horovod})
    ratios = np.asarray(pairs[f"{study.throughput}_x"] / pairs[f"{study.throughput}_y"], dtype=np.float64)
    return _decided(np.log(ratios), workers)


def _decided(logarithms: NDArray[np.float64], workers: int) -> str:
    """From the logarithms of the paired ratios DDP / Horovod: they are symmetric in the two names."""
    low, high = median_interval(logarithms)
    evidence = f"{coverage(len(logarithms)):.0%} interval, {len(logarithms)} repeats".replace("%", " %")
    centre = float(np.median(logarithms))
    if low <= 0 <= high:
        ratio, least, most = np.exp([centre, low, high])
        difference = "no significant difference between native DDP and Horovod"
        return f"At {_count(workers)} {difference}: ratio {ratio:.3f} [{least:.3f}, {most:.3f}] ({evidence})"
    faster, slower = ("native DDP", "Horovod") if centre > 0 else ("Horovod", "native DDP")
    percent, *bounds = 100 * np.expm1(np.abs([centre, low, high]))
    digits = 0 if min(bounds) >= 1 else 1
    interval = ", ".join(f"{bound:.{digits}f}" for bound in sorted(bounds))
    by = f"{percent:.{digits}f} % faster than {slower} [{interval}]"
    return f"At {_count(workers)} {faster} is {by} ({evidence})"


def _not_enough(study: Study, workers: int, pairs: int, runs: dict[Framework, pd.DataFrame]) -> str:
    needed = f"at least {FEWEST_REPEATS} needed ({RECOMMENDED_REPEATS} recommended)"
    measured = ", ".join(_measured(study, framework, table, workers) for framework, table in runs.items())
    most = min(int((table["workers"] == workers).sum()) for table in runs.values())
    have = f"{pairs} per point" if pairs == most else f"{pairs} that both frameworks have"
    start = f"not enough repeats for a verdict: {have}, {needed}"
    return f"{start}; measured so far: {measured} ({_count(workers)})"


def _measured(study: Study, framework: Framework, runs: pd.DataFrame, workers: int) -> str:
    """The speed-up so far, or the throughput where there is no baseline."""
    throughput = runs.groupby("workers")[study.throughput].median()
    if 1 not in throughput.index or workers == 1:
        return f"{SHORT_NAMES[framework]} {throughput[workers]:.3g} {study.unit.replace(' ', '')}"
    return f"{SHORT_NAMES[framework]} {throughput[workers] / throughput[1]:.2f}x"


def _count(workers: int) -> str:
    return f"{workers} worker{'' if workers == 1 else 's'}"
