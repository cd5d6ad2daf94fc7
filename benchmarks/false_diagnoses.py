"""Count findings of the diagnosis where nothing is wrong: simulated studies in which all scales linearly.

    python -m benchmarks.false_diagnoses --studies 1000

Each study has both frameworks on 1 and 2 workers. A step is 97 % compute at either count, and only launches
differ, in their pace as a whole. Printed is the percentage of studies with at least one finding of a rule.
"""

import argparse
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.budget.diagnosis import diagnose
from analysis.budget.network_floor import network_table
from analysis.budget.tables import budget_table
from analysis.study import BUDGET_COLUMNS, Study
from benchmarks.records import header_of
from benchmarks.simulation import study_of
from unet_scaling.study.config import FRAMEWORKS, Framework, RunConfig
from unet_scaling.study.record_lines import Header

WORKERS = (1, 2)
EPOCHS = 3
STEPS = 100
BATCH = 8
# A study has two series; tables of many studies at once take quadratic time.
STUDIES_AT_ONCE = 50
# Not that of the studies by which causes.LEAST_SHOWN_OVERHEAD was chosen.
SEED = 2026
PHASES = {"data_wait": 0.01, "host_to_device": 0.0, "forward": 0.32, "backward": 0.65, "sync": 0.004}
PHASES |= {"optimizer": 0.015, "rest": 0.001}
WIRE = 0.002

Array = NDArray[np.float64]
# Logarithms of the seconds of launches, of an array (studies, repeats, launches within a repeat).
Draw = Callable[[np.random.Generator, tuple[int, int, int]], Array]


def normal(deviation: float) -> Draw:
    """Launch noise of this standard deviation."""
    return lambda random, shape: random.normal(0, deviation, shape)


def stragglers(random: np.random.Generator, shape: tuple[int, int, int]) -> Array:
    """2 % noise, and every tenth launch 10 to 50 % slower."""
    slow = np.where(random.random(shape) < 0.1, random.uniform(0.1, 0.5, shape), 0.0)
    return np.asarray(random.normal(0, 0.02, shape) + np.log1p(slow), dtype=np.float64)


def bimodal(random: np.random.Generator, shape: tuple[int, int, int]) -> Array:
    """1 % noise about one of two paces that are 10 % apart."""
    return np.asarray(random.normal(0, 0.01, shape) + 0.1 * (random.random(shape) < 0.5), dtype=np.float64)


def drift(random: np.random.Generator, shape: tuple[int, int, int]) -> Array:
    """2 % noise on a machine that becomes 10 % slower; each repeat is launched in an order of its own."""
    place = np.argsort(random.random(shape), axis=-1) + shape[2] * np.arange(shape[1])[:, None]
    return np.asarray(random.normal(0, 0.02, shape) + 0.1 * place / (shape[1] * shape[2]), dtype=np.float64)


NOISES: dict[str, Draw] = {
    **{f"{100 * deviation:.0f} % launch": normal(deviation) for deviation in (0.01, 0.02, 0.05, 0.1)},
    "stragglers": stragglers,
    "bimodal": bimodal,
    "10 % drift, interleaved": drift,
}


def null_study(random: np.random.Generator, noise: Draw, studies: int, repeats: int) -> Study:
    """Return many studies in one, an `options` each, in which nothing but the pace of launches differs."""
    rows = pd.MultiIndex.from_product(
        [range(studies), range(1, repeats + 1), FRAMEWORKS, WORKERS],
        names=["options", "repeat", "framework", "workers"],
    ).to_frame(index=False)
    pace = noise(random, (studies, repeats, len(FRAMEWORKS) * len(WORKERS))).ravel()
    rows["options"] = [f"{number:05d}" for number in rows["options"]]
    throughput = rows["workers"].to_numpy() * np.exp(-pace)
    study = study_of(rows, np.repeat(throughput[:, None], EPOCHS, axis=1))
    runs = study.runs.assign(step_seconds=study.runs["seconds_per_epoch"] / STEPS)
    headers = {(name, workers): _header(name, workers) for name in FRAMEWORKS for workers in WORKERS}
    of_runs = zip(runs["run"], runs["framework"], runs["workers"], strict=True)
    return replace(
        study,
        runs=runs,
        budgets=_budgets(runs),
        headers={run: headers[framework, workers] for run, framework, workers in of_runs},
    )


def _budgets(runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row per worker, its phases in the shares of PHASES."""
    table = runs.loc[runs.index.repeat(runs["workers"].to_numpy())].copy()
    seconds = EPOCHS * table["seconds_per_epoch"]
    budgets = pd.DataFrame({f"{name}_seconds": share * seconds for name, share in PHASES.items()})
    budgets = budgets.assign(
        run=table["run"],
        worker=table.groupby("run").cumcount(),
        host="node1",
        epochs=EPOCHS,
        seconds=seconds,
        worker_seconds=seconds,
        steps=EPOCHS * STEPS,
        images=EPOCHS * STEPS * BATCH * table["workers"],
        wire_seconds=WIRE * seconds,
        process_cpu_seconds=seconds,
        training_cpu_seconds=seconds,
        communication_cpu_seconds=0.0,
        helper_cpu_seconds=0.0,
        waiting_seconds=0.0,
        runqueue_seconds=0.0,
        cores=1.0,
        frequency_mhz=np.nan,
        no_budget="",
    )
    return budgets.reindex(columns=list(BUDGET_COLUMNS)).reset_index(drop=True)


def _header(framework: Framework, workers: int) -> Header:
    config = RunConfig.model_validate(
        {
            "study": "null",
            "run": f"{framework}-w{workers}",
            "framework": framework,
            "workers": workers,
            "repeat": 1,
            "seed": 1,
            "data": {"folder": "/data", "image_height": 128, "image_width": 128},
            "model": {},
            "training": {"epochs": EPOCHS + 1, "batch_per_worker": BATCH},
        }
    )
    return header_of(config, STEPS * BATCH)


def false_findings(noise: Draw, repeats: int, studies: int) -> dict[str, float]:
    """Return the percentage of null studies with a finding of each rule, and of any rule."""
    random = np.random.default_rng(SEED)
    findings: Counter[str] = Counter()
    done = 0
    while done < studies:
        size = min(STUDIES_AT_ONCE, studies - done)
        study = null_study(random, noise, size, repeats)
        diagnoses = diagnose(study, budget_table(study), network_table(study))
        findings.update(rule for rule, _ in {(each.rule, each.options) for each in diagnoses})
        findings["any"] += len({each.options for each in diagnoses})
        done += size
    return {rule: 100 * number / studies for rule, number in findings.items()}


def table_lines(studies: int, all_repeats: Sequence[int]) -> Iterator[str]:
    """Yield the table: of each noise and number of repeats the percentage of null studies with a finding."""
    yield "| noise | repeats | slower compute | any finding, % of null studies |"
    yield "|---|--:|--:|--:|"
    for (name, noise), repeats in product(NOISES.items(), all_repeats):
        shares = false_findings(noise, repeats, studies)
        slower, anything = (shares.get(rule, 0.0) for rule in ("slower compute", "any"))
        yield f"| {name} | {repeats} | {slower:.1f} | {anything:.1f} |"


def main() -> None:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--studies", type=int, default=1000, help="null studies of each row")
    parser.add_argument("--repeats", type=int, nargs="+", default=[3, 5])
    arguments = parser.parse_args()
    for line in table_lines(arguments.studies, arguments.repeats):
        print(line, flush=True)


if __name__ == "__main__":
    main()
