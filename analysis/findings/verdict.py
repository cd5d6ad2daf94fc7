"""Which framework is faster, in one sentence that claims no more than the runs support."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product

import pandas as pd

from analysis.findings.check import PointPair
from analysis.findings.comparison import FASTER, NO_DIFFERENCE, NOT_ENOUGH, SUGGESTED, SUGGESTS, WITHHELD
from analysis.findings.doubts import medians_disagree
from analysis.findings.pairs import PAIR, pair_of
from analysis.findings.unmatched import unmatched
from analysis.stats import CONFIDENCE, FEWEST_REPEATS, RECOMMENDED_REPEATS, timed
from analysis.study import COMPARED, NAMES, Study
from analysis.text import Row, bracketed, count
from unet_scaling.study.config import Framework


@dataclass(frozen=True)
class Verdict:
    """A sentence about the runs that have these options; `knobs` name the two compared series.

    `outcome` is that of the comparison behind it, "" where there is none.
    """

    options: str
    knobs: str
    sentence: str
    outcome: str = ""
    pair: PointPair | None = None

    def __str__(self) -> str:
        compared = "; ".join(part for part in (self.options, self.knobs) if part)
        return f"[{compared}] {self.sentence}" if compared else self.sentence


def verdicts(study: Study, comparisons: pd.DataFrame) -> list[Verdict]:
    """Return one verdict for each set of options, and for each pair of knob settings within it.

    It is about the largest worker count that both have, the last of `pair`; `comparisons` (see comparison.py)
    has them all.
    """
    decided = _at_largest_count(comparisons)
    return [
        verdict
        for options, runs in study.runs.groupby("options", sort=False)
        for verdict in _of_options(study, str(options), runs, decided)
    ]


def _at_largest_count(comparisons: pd.DataFrame) -> dict[tuple[str, ...], Row]:
    """Return for each options and knobs of both frameworks the comparison at the most workers."""
    series = PAIR[:-1]
    ordered = comparisons.sort_values("workers", kind="stable")
    largest = ordered.groupby(series, sort=False).tail(1)
    return {tuple(row[name] for name in series): row for row in largest.to_dict("records")}


def _of_options(
    study: Study, options: str, runs: pd.DataFrame, decided: Mapping[tuple[str, ...], Row]
) -> list[Verdict]:
    native, horovod = (runs.loc[runs["framework"] == name, "knobs"].unique() for name in COMPARED)
    if not len(horovod) and study.wrappers:
        return []  # findings/leaving_horovod.py has the verdicts on further frameworks
    if not (len(native) and len(horovod)):
        missing: Framework = "horovod" if len(native) else "pytorch_native"
        return [Verdict(options, "", unmatched(study, runs, missing))]
    compared = [(options, *knobs) for knobs in product(native, horovod)]
    return [_of_series(study, runs, series, decided.get(series)) for series in compared]


def _of_series(study: Study, runs: pd.DataFrame, series: tuple[str, str, str], row: Row | None) -> Verdict:
    options, *knobs = series
    compared = " against ".join(label for label in knobs if label)
    if row is None:
        return Verdict(options, compared, "no verdict: the frameworks have no worker count in common")
    sentence = _not_enough(study, runs, row) if row["outcome"] == NOT_ENOUGH else _sentence(row)
    return Verdict(options, compared, sentence, str(row["outcome"]), pair_of([row[name] for name in PAIR]))


def _sentence(row: Row) -> str:
    claim = f"At {count(row['workers'], 'worker')} {claim_of(row)} ({evidence_words(row)})"
    return f"{claim}{_other_medians(row)}" if row["outcome"] == NO_DIFFERENCE else claim


def claim_of(row: Row) -> str:
    """Return the outcome of a comparison in words: what every sentence about two frameworks says of them."""
    if row["outcome"] == NOT_ENOUGH:
        return f"no verdict on speed from {count(row['pairs'], 'repeat')}"
    if row["outcome"] == NO_DIFFERENCE:
        interval = bracketed(row["ratio_low"], row["ratio_high"], ".3f")
        return (
            f"no significant difference between native DDP and {NAMES[compared_framework(row)]}: "
            f"ratio {row['ratio']:.3f} {interval}"
        )
    if row["outcome"] == WITHHELD:
        return f"no verdict on speed: {_faster(row, 'measured')}, but {row['doubts']}"
    if row["outcome"] in SUGGESTED:
        return f"{row['pairs']} repeats suggest that {_faster(row)}"
    return _faster(row)


def compared_framework(row: Row) -> Framework:
    """Return what a row compares native DDP with: Horovod, unless it names a further framework."""
    framework: Framework = row.get("framework", COMPARED[1])
    return framework


def slower_framework(row: Row) -> Framework | None:
    """Return the framework that a comparison calls slower, or suggests to be; None where it says neither."""
    if row["outcome"] not in (*FASTER, *SUGGESTED):
        return None
    return compared_framework(row) if row["ratio_low"] > 1 else COMPARED[0]


def _faster(row: Row, verb: str = "is") -> str:
    """Return "X is 5 % faster than Y [3, 7]"; ratios are symmetric in the two names."""
    other = NAMES[compared_framework(row)]
    faster, slower = ("native DDP", other) if row["ratio_low"] > 1 else (other, "native DDP")
    low, high = sorted(_percent(row[name]) for name in ("ratio_low", "ratio_high"))
    digits = 0 if low >= 1 else 1
    percent = f"{_percent(row['ratio']):.{digits}f} %"
    return f"{faster} {verb} {percent} faster than {slower} {bracketed(low, high, f'.{digits}f')}"


def _percent(ratio: float) -> float:
    """Return how much faster the faster one is."""
    return 100 * math.expm1(abs(math.log(ratio)))


def evidence_words(row: Row) -> str:
    """Return on what the outcome of a comparison rests: "94 % interval, 5 repeats"."""
    evidence = f"{100 * row['coverage']:.0f} % interval, {row['pairs']} repeats"
    if str(row["outcome"]).startswith(SUGGESTS):
        evidence += f"; {RECOMMENDED_REPEATS} or more can show it"
    if row["comparisons"] > 1:
        evidence += f"; corrected for {row['comparisons']:.0f} comparisons"
    if row["confidence"] > CONFIDENCE:
        evidence += "; widened, as for a look at the results before the last repeat"
    return evidence


def _other_medians(row: Row) -> str:
    """Return why a table of medians may show the other framework ahead, where no difference is claimed."""
    if not medians_disagree(row):
        return ""
    return (
        f"; the medians over all launches have the ratio {row['ratio_of_medians']:.3f}: this one pairs the "
        "launches of a repeat, and repeats differ more from each other than the frameworks do"
    )


def _not_enough(study: Study, runs: pd.DataFrame, row: Row) -> str:
    series = _compared_series(timed(replace(study, runs=runs)).runs, row)
    launches = min(int((table["workers"] == row["workers"]).sum()) for table in series.values())
    scope = "per point" if row["pairs"] == launches else "that both frameworks have"
    measured = ", ".join(_measured(study, name, table, row["workers"]) for name, table in series.items())
    needed = f"at least {FEWEST_REPEATS} needed ({RECOMMENDED_REPEATS} recommended)"
    return (
        f"not enough repeats for a verdict: {row['pairs']} {scope}, {needed}; "
        f"measured so far: {measured} ({count(row['workers'], 'worker')})"
    )


def _compared_series(runs: pd.DataFrame, row: Row) -> dict[Framework, pd.DataFrame]:
    knobs = (row["native_knobs"], row["horovod_knobs"])
    return {
        framework: runs[(runs["framework"] == framework) & (runs["knobs"] == own)]
        for framework, own in zip(COMPARED, knobs, strict=True)
    }


def _measured(study: Study, framework: Framework, runs: pd.DataFrame, workers: int) -> str:
    """Return the speed-up so far, or the throughput where there is no baseline."""
    throughput = runs.groupby("workers")[study.throughput].median()
    if 1 not in throughput.index or workers == 1:
        return f"{study.names[framework]} {throughput[workers]:.3g} {study.unit.replace(' ', '')}"
    return f"{study.names[framework]} {throughput[workers] / throughput[1]:.2f}x"
