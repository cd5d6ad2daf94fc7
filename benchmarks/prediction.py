"""The error of throughputs predicted for larger worker counts from smaller ones, by each law.

    .venv/bin/python -m benchmarks.prediction --reference FOLDER    logs in the older layout; with
                                              [--images M --batch B] predicted by steps
    .venv/bin/python -m benchmarks.prediction --study logs/STUDY    the records of a study
    .venv/bin/python -m benchmarks.prediction --simulate 200        intervals against simulated truths

The first two print the error of every law at every held-out count, fitted on the smallest counts only.
The last prints how often the 95 % interval of the step-time model holds what is measured at a larger
count, over eight truths; the number is how many studies are simulated of each.
"""

import argparse
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.loading.epoch_work import epoch_work
from analysis.loading.load import load_study
from analysis.loading.reference import load_reference
from analysis.prediction.extrapolation import extrapolate
from analysis.prediction.least_squares import fit
from analysis.prediction.scaling_laws import Counts, Term, Vector, constant, ring_messages, term_matrix
from analysis.prediction.series import Series, all_series, why_unpredictable
from analysis.prediction.step_time import STEP_TERMS, fit_step_time
from analysis.study import SERIES, Study


@dataclass(frozen=True)
class LaunchNoise:
    """Relative normal noise of a launch about its point and of a point about the law; launches of a point."""

    launch: float
    point: float
    launches: int


# Milliseconds of compute, transfer, transfer between nodes, latency and imbalance, as in STEP_TERMS.
STEP_TIME_TRUTHS = {
    "perfectly linear": (100, 0, 0, 0, 0),
    "little transfer": (100, 10, 0, 0, 0),
    "much transfer": (100, 60, 0, 0, 0),
    "latency": (100, 0, 0, 1, 0),
    "imbalance": (100, 0, 0, 0, 6),
    "transfer and latency": (100, 15, 0, 1, 0),
    "transfer and imbalance": (100, 15, 0, 0, 5),
    "all three": (100, 15, 0, 0.6, 5),
}
# Fitted on all but the last, at which is predicted.
WORKERS = ((1, 2, 4, 8), (1, 2, 4, 8, 14), (1, 2, 4, 6, 8, 14))
NOISES = (LaunchNoise(0.01, 0.0, 5), LaunchNoise(0.01, 0.01, 5), LaunchNoise(0.01, 0.0, 1))


def pairs(at: Counts) -> Vector:
    """Return the ordered pairs of workers: N (N - 1)."""
    return at.workers * (at.workers - 1)


# Step times as sums of terms. Amdahl 1967 with serial share f: b (1 - f + f N). Universal Scalability Law
# (Gunther 1993) with contention s and coherency k: b (1 + s (N - 1) + k N (N - 1)). b/N, the seconds of an
# epoch without any loss: b.
SIMPLE_LAWS: Mapping[str, tuple[Term, ...]] = {
    "Amdahl": (constant, ring_messages),
    "USL": (constant, ring_messages, pairs),
    "b/N": (constant,),
}
# What needs no law at all: a step lasts as long as at the largest count fitted.
LAST_EFFICIENCY = "last efficiency"
LAWS = (*SIMPLE_LAWS, LAST_EFFICIENCY)


def simple_law(name: str, counts: Counts, seconds: Vector) -> Callable[[Counts], float]:
    """Return the law of this name (one of LAWS) fitted to the points: from one count to its seconds."""
    if name == LAST_EFFICIENCY:
        return lambda _: float(seconds[-1])
    terms = SIMPLE_LAWS[name]
    coefficients = fit(term_matrix(terms, counts), seconds)
    return lambda at: float((term_matrix(terms, at) @ coefficients)[0])


def law_errors(series: Series, law: str) -> Iterator[float]:
    """Yield the errors of a law at the held-out counts, in the order of the model's predictions."""
    for size, larger in series.held_out():
        seconds_at = simple_law(law, series.counts[:size], series.medians[:size])
        for place in larger:
            at = series.counts[place : place + 1]
            yield series.throughput(at, seconds_at(at)) / series.measured[place] - 1


def compare_laws(study: Study) -> pd.DataFrame:
    """Return, by split and held-out count, the errors of all laws in per cent and the model's interval."""
    model = extrapolate(study).predictions
    model = model[model["held_out"].astype(bool)].reset_index(drop=True)
    known = [series for series in all_series(study) if not why_unpredictable(series)]
    comparison = model[[*SERIES, "fitted_on", "workers"]].assign(model=100 * model["error"])
    for law in LAWS:
        comparison[law] = [100 * error for series in known for error in law_errors(series, law)]
    low, high, measured = (model[name] for name in ("predicted_low", "predicted_high", "measured"))
    bounds = zip(low / measured, high / measured, strict=True)
    comparison["interval"] = [f"[{100 * (low - 1):+.0f}, {100 * (high - 1):+.0f}]" for low, high in bounds]
    comparison["holds"] = np.where((low <= measured) & (measured <= high), "yes", "no")
    return comparison


def print_comparison(study: Study) -> None:
    """Print the table of every series and the median absolute error of every law over all of it."""
    found = compare_laws(study)
    laws = ["model", *LAWS]
    for (options, framework, knobs), rows in found.groupby(SERIES, sort=False):
        name = next(name for known, name in study.names.items() if known == framework)
        print(", ".join(part for part in (name, str(options), str(knobs)) if part))
        print(rows.drop(columns=SERIES).to_string(index=False, float_format="{:+.1f}".format))
    typical = ", ".join(f"{law} {found[law].abs().median():.1f} %" for law in laws)
    print(f"median absolute error of {len(found)} checks: {typical}")
    print_smallest_fits(found)


def print_smallest_fits(found: pd.DataFrame) -> None:
    """Print mean and worst error where only the fewest counts are known."""
    first = found[found["fitted_on"] == found.groupby(SERIES)["fitted_on"].transform("first")]
    errors = first["model"].abs()
    held = int((first["holds"] == "yes").sum())
    print(
        f"fitted on {', '.join(dict.fromkeys(first['fitted_on']))} alone: mean absolute error "
        f"{errors.mean():.1f} %, worst {errors.max():.1f} %, {held} of {len(first)} intervals hold"
    )


def interval_coverage(workers: tuple[int, ...], noise: LaunchNoise, studies: int) -> dict[str, float]:
    """Return, by truth, the share of simulated studies whose 95 % interval holds what is measured.

    The interval is at the last of these worker counts, of the fit to all others.
    """
    at = Counts(np.array(workers, dtype=np.float64), np.full(len(workers), np.nan))
    random = np.random.default_rng(1)
    return {
        truth: float(np.mean(list(_held(at, terms, noise, studies, random))))
        for truth, terms in STEP_TIME_TRUTHS.items()
    }


def simulated_launches(
    at: Counts, terms: tuple[float, ...], noise: LaunchNoise, random: np.random.Generator
) -> tuple[Vector, ...]:
    """Return the step times of every launch at every count, in the unit of the terms."""
    exact = term_matrix(tuple(STEP_TERMS.values()), at) @ np.array(terms)
    points = exact * np.exp(noise.point * random.standard_normal(len(exact)))
    return tuple(point * np.exp(noise.launch * random.standard_normal(noise.launches)) for point in points)


def _held(
    at: Counts, terms: tuple[float, ...], noise: LaunchNoise, studies: int, random: np.random.Generator
) -> Iterator[bool]:
    for _ in range(studies):
        times = simulated_launches(at, terms, noise, random)
        low, high = fit_step_time(at[:-1], times[:-1]).interval(at[-1:])
        yield low <= float(np.median(times[-1])) <= high


def print_coverage(studies: int) -> None:
    """Print the share of every setting over all truths, and of the truth that fares worst."""
    for workers, noise in itertools.product(WORKERS, NOISES):
        held = interval_coverage(workers, noise, studies)
        worst = min(held, key=lambda truth: held[truth])
        fitted = ", ".join(map(str, workers[:-1]))
        of_noise = f"noise {noise.launch:.0%} of a launch and {noise.point:.0%} of a point"
        share = f"{np.mean(list(held.values())):.1%}; worst: {worst} {held[worst]:.0%}"
        line = f"fitted on {fitted}, at {workers[-1]}, {of_noise}, {noise.launches} per point: {share}"
        print(line.replace("%", " %"))


def main() -> None:
    """Print what the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.prediction",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--reference", type=Path, metavar="FOLDER")
    source.add_argument("--study", type=Path, metavar="logs/STUDY")
    source.add_argument("--simulate", type=int, metavar="STUDIES")
    for option in ("--images", "--batch"):
        parser.add_argument(option, type=int, help="with --reference: as of python -m analysis")
    options = parser.parse_args()
    if options.simulate is not None:
        print_coverage(options.simulate)
    else:
        work = epoch_work(options.images, options.batch)
        print_comparison(
            load_reference(options.reference, work) if options.reference else load_study(options.study)
        )


if __name__ == "__main__":
    main()
