"""Whether what a slowed cluster measures depends on by how much it was slowed.

    .venv/bin/python -m benchmarks.dilation logs/STUDY_AT_K7 logs/STUDY_AT_K14 logs/STUDY_AT_K28

The studies are of the same points, each on a virtual cluster of its own `--dilate K`. What is not slowed
with the cluster (ticks and slices of the scheduler, latency of the virtual links) takes a K-th of its time
in the figures, so that the step is extrapolated along a line in 1 / K to 1 / K = 0. Printed for every point
with several K: the median step at each with the 95 % interval over its launches, by how much it differs
from the extrapolated step, and the largest residual of the line. Runs that were not slowed as they should
be are left out, as in a report.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.loading.load import load_study
from analysis.study import NAMES, POINT
from analysis.text import series_name
from benchmarks.arms import Estimate, parser_of


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("studies", type=Path, nargs="+", metavar="logs/STUDY")
    lines = list(agreement_lines(parser.parse_args().studies))
    print(*lines or ["no point was measured at two values of K"], sep="\n")
    sys.exit(not lines)


def agreement_lines(studies: Sequence[Path]) -> Iterator[str]:
    """Yield the step of every point at each K, and what of it depends on K."""
    runs = pd.concat([load_study(study).runs for study in studies], ignore_index=True)
    for _, alike in runs.groupby(POINT, sort=False):
        steps = {
            float(k): alike.loc[alike["dilation"] == k, "step_seconds"].to_numpy()
            for k in np.unique(alike["dilation"])
        }
        if len(steps) < 2:
            continue
        slowed = np.array(list(steps))
        medians = 1000 * np.array([np.median(launches) for launches in steps.values()])
        slope, at_zero = np.polyfit(1 / slowed, medians, 1)
        residuals = medians / (at_zero + slope / slowed) - 1
        name = series_name(alike.to_dict("records")[0], NAMES)
        left = f"largest residual {np.abs(residuals).max():.2%}" if len(steps) > 2 else "two K, no residual"
        yield f"{name} on {alike['workers'].iloc[0]}: {at_zero:.2f} ms at 1/K = 0, {left}"
        for k, launches, median in zip(slowed, steps.values(), medians, strict=True):
            yield (
                f"  K = {k:g}: {Estimate.of([1000 * each for each in launches]):.2f} ms, "
                f"{median / at_zero - 1:+.2%} ({len(launches)} launches)"
            )


if __name__ == "__main__":
    main()
