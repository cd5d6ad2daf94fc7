"""The share of intervals that hold the truth, and the difference that 5 repeats resolve, by simulation.

    .venv/bin/python -m benchmarks.coverage [--studies 2000] [--table coverage] [--table null] ...

Simulates the throughput of launches from noise models of known truth and passes it through the code of
the analysis. Throughput of an epoch is exp(block + launch + epoch noise); the block is what all launches
of one repeat have in common. Prints the percentage of studies whose 95 % interval holds the truth, the
percentage that finds a difference, the percentage that calls a framework faster where none is, what the
headlines name and advise then, and the false alarms of the steadiness check and of the rule for outlying
launches. A few minutes for each table.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.checks import fairness_checks
from analysis.contrast import FASTER, SUGGESTED, compare, withhold
from analysis.findings.decide import recommend
from analysis.iou import iou_between_frameworks, iou_table
from analysis.points import cost_table, summarise
from analysis.stats import repeats_needed
from analysis.steady import outlying_launches, run_steadiness
from analysis.study import Study
from benchmarks.adaptive import adaptive_lines, by_hand_lines, early_lines
from benchmarks.simulation import (
    NULL_CELLS,
    SIMULATED_WORKERS,
    SIMULATION_SEED,
    Noise,
    NullCell,
    null_study,
    simulate,
    study_of,
    true_throughput,
)
from slurm.study_folder import in_launch_order

Array = NDArray[np.float64]
STUDIES_AT_ONCE = 500
# Each table then takes a few minutes on one core. Where a study is looked at up to 18 times, fewer do.
STUDIES = 2000
STUDIES_WITH_LOOKS = 300
FIVE_COUNTS = (1, 2, 4, 8, 16)

# Efficiency on 4 workers and how much faster native DDP is: well above the floor of 0.7, and close to it.
TRUTHS = ((0.9, 1.0), (0.9, 1.03), (0.693, 1.0), (0.707, 1.0))
ANSWER_COLUMNS = ("one named", "Horovod named", "use 4 workers", "do not scale out")

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


def holds(table: pd.DataFrame, name: str, truth: float) -> float:
    """Percentage of rows whose interval holds the truth."""
    return 100 * float(((table[f"{name}_low"] <= truth) & (truth <= table[f"{name}_high"])).mean())


def coverages(noise: Noise, repeats: int, studies: int) -> list[float]:
    """Percent covered: point median, speed-up paired, speed-up unpaired, DDP/Horovod ratio."""
    random = np.random.default_rng(SIMULATION_SEED)
    shares = []
    for _ in range(max(1, studies // STUDIES_AT_ONCE)):
        size = min(studies, STUDIES_AT_ONCE)
        study = simulate(random, noise, size, repeats, 1.03)
        apart = simulate(random, noise, size, repeats, 1.03, paired=False)
        paired, unpaired = (of_four_workers(each) for each in (study, apart))
        ratios = compare(study, family=["options"])
        shares.append([
            holds(paired, "throughput", true_throughput(noise, SIMULATED_WORKERS[-1])),
            holds(paired, "speedup", SIMULATED_WORKERS[-1]),
            holds(unpaired, "speedup", SIMULATED_WORKERS[-1]),
            holds(ratios[ratios["workers"] == SIMULATED_WORKERS[-1]], "ratio", 1.03),
        ])  # fmt: skip
    return list(np.mean(shares, axis=0))


def of_four_workers(study: Study) -> pd.DataFrame:
    """Return the points of native DDP on the most workers: one per simulated study."""
    native = study.runs[study.runs["framework"] == "pytorch_native"]
    configs = summarise(replace(study, runs=native))
    return configs[configs["workers"] == SIMULATED_WORKERS[-1]]


def resolved(noise: Noise, ratio: float, repeats: int, studies: int) -> float:
    """Percentage of studies that call native DDP faster where it is, by `ratio`."""
    study = simulate(np.random.default_rng(SIMULATION_SEED), noise, studies, repeats, ratio)
    return 100 * float((compare(study, family=["options"])["outcome"] == "native DDP faster").mean())


def false_alarms(noise: Noise, correlation: float, runs: int) -> float:
    """Percentage of steady runs called unsteady; `correlation` is that of neighbouring epochs."""
    random = np.random.default_rng(SIMULATION_SEED)
    pace = random.normal(0, noise.epoch, (runs, noise.epochs))
    for epoch in range(1, noise.epochs):
        pace[:, epoch] = correlation * pace[:, epoch - 1] + np.sqrt(1 - correlation**2) * pace[:, epoch]
    rows = pd.DataFrame({"options": "", "framework": "horovod", "workers": 1, "repeat": np.arange(runs)})
    return 100 * float((run_steadiness(study_of(rows, np.exp(pace)))["steady"] == "no").mean())


def false_claims(study: Study, *, fairness: bool = True) -> tuple[float, float]:
    """Percentage of studies with any "is faster", and with any "suggests that ... is faster".

    Without `fairness` they are at least as many as a report claims: its checks only withhold.
    """
    compared = compare(study, family=["options"])
    if fairness:
        compared = withhold(compared, fairness_checks(study))
    claims = [
        compared["outcome"].isin(words).groupby(compared["options"]).any() for words in (FASTER, SUGGESTED)
    ]
    faster, suggested = (100 * float(each.mean()) for each in claims)
    return faster, suggested


def false_outliers(configs: int, launches: int, noise: float, studies: int) -> float:
    """Percentage of launches named as outliers where all are of one noise."""
    random = np.random.default_rng(SIMULATION_SEED)
    named = 0
    for _ in range(studies):
        rows = pd.MultiIndex.from_product([range(configs), range(launches)], names=["workers", "repeat"])
        table = rows.to_frame(index=False).assign(options="", framework="horovod")
        study = study_of(table, np.exp(random.normal(0, noise, (len(table), 1))))
        named += len(outlying_launches(study))
    return 100 * named / (studies * configs * launches)


def coverage_lines(studies: int, repeats: Sequence[int]) -> Iterator[str]:
    """Yield the coverage table: all mixes at 5 repeats, then some of them at other numbers of repeats."""
    yield "| noise | repeats | median | speed-up, paired | speed-up, unpaired | DDP / Horovod |"
    yield "|---|--:|--:|--:|--:|--:|"
    cases = [(noise, 5) for noise in MIXES]
    cases += [(noise, number) for noise in (MIXES[0], MIXES[3], MIXES[7]) for number in repeats]
    cases += [(MIXES[6], number) for number in (7, 20)]
    for noise, number in cases:
        cells = " | ".join(f"{value:.1f}" for value in coverages(noise, number, studies))
        yield f"| {noise} | {number} | {cells} |"


def power_lines(studies: int) -> Iterator[str]:
    """Yield the table of how often a difference is found."""
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
        share = resolved(noise, ratio, number, studies)
        yield f"| {noise} | {100 * (ratio - 1):.1f} % | {number} | {share:.1f} |"


def alarm_lines(runs: int) -> Iterator[str]:
    """False alarms of the steadiness check."""
    yield "| epochs | noise of an epoch | correlation of neighbours | false alarms in % of runs |"
    yield "|--:|--:|--:|--:|"
    for epochs in (8, 20, 50, 200):
        for correlation in (0.0, 0.5):
            share = false_alarms(Noise(0, 0, 0.02, epochs), correlation, runs)
            yield f"| {epochs} | 2 % | {correlation:g} | {share:.2f} |"


def null_lines(studies: int) -> Iterator[str]:
    """Yield the table of how often a framework is called faster at some worker count where none is."""
    yield '| noise | worker counts | repeats | "is faster" in % of studies | "suggests" in % |'
    yield "|---|--:|--:|--:|--:|"
    one_count = SIMULATED_WORKERS[-1:]
    for repeats, workers in ((5, one_count), (5, FIVE_COUNTS), (10, one_count), (3, one_count)):
        for cell in NULL_CELLS:
            faster, suggested = false_claims(
                null_study(cell, studies, workers, repeats, in_launch_order),
                fairness=cell.one_after_the_other,
            )
            yield f"| {cell.name} | {len(workers)} | {repeats} | {faster:.1f} | {suggested:.1f} |"


def simulated_answers(cell: NullCell, studies: int, repeats: int) -> pd.DataFrame:
    """Return the kind of answer and the framework named alone of each study; every IoU is kept."""
    study = null_study(cell, studies, SIMULATED_WORKERS, repeats, in_launch_order)
    # The seed of a repeat decides most of an IoU.
    by_seed = 0.8 + 0.01 * np.sin(study.runs["repeat"].to_numpy(dtype=np.float64))
    noise = np.random.default_rng(SIMULATION_SEED).normal(0, 0.002, len(by_seed))
    study = replace(study, runs=study.runs.assign(iou=by_seed + noise, test_images=100.0))
    compared, between = compare(study, family=["options"]), iou_between_frameworks(study)
    found = recommend(study, summarise(study), compared, iou_table(study), between, cost_table(study))
    return pd.DataFrame([{"kind": each.kind, "framework": each.framework} for each in found])


def answer_lines(studies: int) -> Iterator[str]:
    """Yield the table of what headlines name and advise, where the truth is known."""
    columns = ("noise", "repeats", "efficiency on 4", "native DDP faster by", *ANSWER_COLUMNS)
    yield f"| {' | '.join(columns)} |"
    yield f"|---{'|--:' * (len(columns) - 1)}|"
    for repeats in (3, 5):
        for cell in NULL_CELLS[:3]:
            for efficiency, ratio in TRUTHS:
                true = replace(cell, efficiency=efficiency, ratio=ratio)
                answers = simulated_answers(true, studies, repeats)
                shares = (
                    answers["framework"].notna(),
                    answers["framework"] == "horovod",
                    answers["kind"] == "scale",
                    answers["kind"] == "stay",
                )
                cells = " | ".join(f"{100 * float(share.mean()):.1f}" for share in shares)
                truth = f"{efficiency:.3f} | {100 * (ratio - 1):.0f} %"
                yield f"| {cell.name} | {repeats} | {truth} | {cells} |"


def outlier_lines(studies: int) -> Iterator[str]:
    """False names of outlying launches."""
    yield "| points | launches of each | noise of a launch | named in % of launches |"
    yield "|--:|--:|--:|--:|"
    for configs, launches in ((1, 5), (4, 3), (4, 5), (10, 5)):
        for noise in (0.02, 0.05, 0.1, 0.2):
            share = false_outliers(configs, launches, noise, studies)
            yield f"| {configs} | {launches} | {100 * noise:g} % | {share:.2f} |"


def main() -> None:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument(
        "--studies",
        type=int,
        help=f"simulated for each row (default: {STUDIES}, of tables with many looks {STUDIES_WITH_LOOKS})",
    )
    names = (
        "coverage", "power", "null", "answers", "alarms", "outliers", "adaptive", "by-hand", "early",
    )  # fmt: skip
    parser.add_argument("--table", action="append", choices=names, help="only these; default: all")
    options = parser.parse_args()
    studies = options.studies or STUDIES
    with_looks = options.studies or STUDIES_WITH_LOOKS
    tables = {
        "coverage": lambda: coverage_lines(studies, (3, 4, 6, 7, 10, 20)),
        "power": lambda: power_lines(studies),
        "null": lambda: null_lines(studies),
        "answers": lambda: answer_lines(studies),
        "alarms": lambda: alarm_lines(10 * studies),
        "outliers": lambda: outlier_lines(studies),
        "adaptive": lambda: adaptive_lines(with_looks),
        "by-hand": lambda: by_hand_lines(with_looks),
        "early": lambda: early_lines(with_looks),
    }
    for name in options.table or names:
        for line in tables[name]():
            print(line, flush=True)
        print()


if __name__ == "__main__":
    main()
