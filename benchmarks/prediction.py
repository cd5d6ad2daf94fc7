"""How well throughput at larger worker counts is predicted from smaller ones, by which law.

    .venv/bin/python -m benchmarks.prediction --reference FOLDER    logs in the older layout; with
                                              [--images M --batch B] predicted by steps
    .venv/bin/python -m benchmarks.prediction --study logs/STUDY    the records of a study
    .venv/bin/python -m benchmarks.prediction --simulate 200        intervals against simulated truths

The first two print the error of every law at every held-out count, fitted on the smallest counts only.
The last prints how often the 95 % interval of the step-time model holds what is measured at a larger
count, over eight truths; the number is how many studies are simulated of each.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.loading.epoch_work import epoch_work
from analysis.loading.load import load_study
from analysis.loading.reference import load_reference
from analysis.prediction.extrapolation import extrapolate, law_predictions
from analysis.prediction.scaling_laws import LAWS, Counts, Vector, term_matrix
from analysis.prediction.step_time import STEP_TERMS, fit_step_time
from analysis.study import SERIES, Study

SPLIT = [*SERIES, "fitted_on", "workers"]
# Milliseconds of compute, transfer, transfer between nodes, latency and imbalance, as in STEP_TERMS.
TRUTHS = {
    "perfectly linear": (100, 0, 0, 0, 0),
    "little transfer": (100, 10, 0, 0, 0),
    "much transfer": (100, 60, 0, 0, 0),
    "latency": (100, 0, 0, 1, 0),
    "imbalance": (100, 0, 0, 0, 6),
    "transfer and latency": (100, 15, 0, 1, 0),
    "transfer and imbalance": (100, 15, 0, 0, 5),
    "all three": (100, 15, 0, 0.6, 5),
}
# Worker counts fitted and predicted; relative noise of a launch and of a point; launches of a point.
SETTINGS = [
    (counts, *noise)
    for counts in ((1, 2, 4, 8), (1, 2, 4, 8, 14), (1, 2, 4, 6, 8, 14))
    for noise in ((0.01, 0.0, 5), (0.01, 0.01, 5), (0.01, 0.0, 1))
]


def compare_laws(study: Study) -> pd.DataFrame:
    """One row per split and held-out count: measured throughput, errors in per cent, the model's interval."""
    model = extrapolate(study).predictions
    table = model[model["held_out"].astype(bool)].set_index(SPLIT)
    low, high, measured = (table[name] for name in ("predicted_low", "predicted_high", "measured"))
    errors = {"model": table["error"]}
    errors |= {law: law_predictions(study, law).set_index(SPLIT)["error"] for law in LAWS}
    found = pd.DataFrame({law: 100 * error for law, error in errors.items()})
    found["interval"] = [
        f"[{100 * (least / value - 1):+.0f}, {100 * (most / value - 1):+.0f}]"
        for least, most, value in zip(low, high, measured, strict=True)
    ]
    found["holds"] = np.where((low <= measured) & (measured <= high), "yes", "no")
    return found.reset_index()


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


def coverage(
    counts: tuple[int, ...], launch_noise: float, point_noise: float, launches: int, studies: int
) -> dict[str, float]:
    """By truth, the share of simulated studies whose interval holds what is measured at the last count.

    Every point deviates from the law by `point_noise`, every launch from its point by `launch_noise`, both
    relative and normal. The interval is of the fit to all counts but the last.
    """
    at = Counts(np.array(counts, dtype=np.float64), np.full(len(counts), np.nan))
    random = np.random.default_rng(1)
    return {
        truth: float(np.mean(list(_held(at, terms, (launch_noise, point_noise), launches, studies, random))))
        for truth, terms in TRUTHS.items()
    }


def simulated_launches(
    at: Counts,
    terms: tuple[float, ...],
    noise: tuple[float, float],
    launches: int,
    random: np.random.Generator,
) -> tuple[Vector, ...]:
    """Step times of every launch of every count where the model is the truth up to (launch, point) noise."""
    exact = term_matrix(tuple(STEP_TERMS.values()), at) @ np.array(terms)
    configs = exact * np.exp(noise[1] * random.standard_normal(len(exact)))
    return tuple(config * np.exp(noise[0] * random.standard_normal(launches)) for config in configs)


def _held(
    at: Counts,
    terms: tuple[float, ...],
    noise: tuple[float, float],
    launches: int,
    studies: int,
    random: np.random.Generator,
) -> Iterator[bool]:
    for _ in range(studies):
        times = simulated_launches(at, terms, noise, launches, random)
        low, high = fit_step_time(at[:-1], times[:-1]).interval(at[-1:])
        yield low <= float(np.median(times[-1])) <= high


def print_coverage(studies: int) -> None:
    """Print the share of every setting over all truths, and of the truth that fares worst."""
    for counts, launch_noise, point_noise, launches in SETTINGS:
        found = coverage(counts, launch_noise, point_noise, launches, studies)
        worst = min(found, key=lambda truth: found[truth])
        fitted = ", ".join(map(str, counts[:-1]))
        noise = f"noise {launch_noise:.0%} of a launch and {point_noise:.0%} of a point, {launches} per point"
        share = f"{np.mean(list(found.values())):.1%}; worst: {worst} {found[worst]:.0%}"
        print(f"fitted on {fitted}, at {counts[-1]}, {noise}: {share}".replace("%", " %"))


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
