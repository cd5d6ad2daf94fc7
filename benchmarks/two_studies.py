"""How often a comparison of two equal studies finds a difference, and how often its interval holds the truth.

    .venv/bin/python -m benchmarks.two_studies [--studies 1000]

Draws the logarithms of throughput of the launches of both studies from noise of known truth and passes them
through the statistics of `python -m analysis compare`. Prints the table of docs/compare.md. Two minutes.
"""

import argparse
from collections.abc import Iterator

import numpy as np

from analysis.arrays import Array
from analysis.compare.contrast import Sample, corrected, unpaired_contrasts
from analysis.statistics.launches import Launches
from benchmarks.simulation import NULL_CELLS, SIMULATION_SEED, NullCell

# Launches of A, launches of B, points that are corrected for each other.
DESIGNS = ((3, 3, 1), (4, 4, 1), (5, 5, 1), (5, 5, 5), (10, 10, 1), (3, 10, 1))
FASTER_SHARE = 0.03


def sample(random: np.random.Generator, cell: NullCell, points: int, launches: int) -> Sample:
    """Draw the launches of so many points."""
    point = np.repeat(np.arange(points), launches)
    repeats = np.tile(np.arange(1, launches + 1), points)
    return Sample(Launches(point, points, repeats), cell.launch(random, points * launches))


def intervals(cell: NullCell, design: tuple[int, int, int], studies: int, ratio: float = 1.0) -> Array:
    """Return the intervals of the logarithms of B / A: (studies, points of a study, 2)."""
    launches_a, launches_b, points = design
    random = np.random.default_rng(SIMULATION_SEED)
    a = sample(random, cell, studies * points, launches_a)
    b = sample(random, cell, studies * points, launches_b)
    contrasts = unpaired_contrasts(a, Sample(b.launches, b.values + np.log(ratio)))
    found = [corrected(contrasts[first : first + points]) for first in range(0, len(contrasts), points)]
    return np.stack([table[["low", "high"]].to_numpy(dtype=np.float64) for table in found])


def lines(studies: int) -> Iterator[str]:
    """Yield the rows of the table."""
    yield "| noise | launches of A, B | points | found though equal | holds the truth | 3 % found |"
    yield "|---|--:|--:|--:|--:|--:|"
    for cell in NULL_CELLS[:3]:
        for design in DESIGNS:
            low, high = np.moveaxis(intervals(cell, design, studies), -1, 0)
            faster = intervals(cell, design, studies, 1 + FASTER_SHARE)[..., 0] > 0
            shares = (((low > 0) | (high < 0)).any(axis=1), (low <= 0) & (high >= 0), faster)
            cells = " | ".join(f"{100 * float(share.mean()):.1f}" for share in shares)
            yield f"| {cell.name} | {design[0]}, {design[1]} | {design[2]} | {cells} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--studies", type=int, default=1000, help="simulated for each row of the table")
    for line in lines(parser.parse_args().studies):
        print(line, flush=True)


if __name__ == "__main__":
    main()
