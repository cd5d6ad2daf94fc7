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
import itertools
from pathlib import Path

import numpy as np

from analysis.loading.epoch_work import epoch_work
from analysis.loading.load import load_study
from analysis.loading.reference import load_reference
from analysis.prediction.extrapolation import compare_laws
from analysis.prediction.scaling_laws import LAWS
from analysis.prediction.simulation import LaunchNoise, interval_coverage
from analysis.study import SERIES, Study

# Fitted on all but the last, at which is predicted.
WORKERS = ((1, 2, 4, 8), (1, 2, 4, 8, 14), (1, 2, 4, 6, 8, 14))
NOISES = (LaunchNoise(0.01, 0.0, 5), LaunchNoise(0.01, 0.01, 5), LaunchNoise(0.01, 0.0, 1))


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
