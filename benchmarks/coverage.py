"""How often intervals hold the truth, and how often a difference is named that is none, by simulation.

    .venv/bin/python -m benchmarks.coverage [--studies 2000] [--table intervals] [--table null] ...

Simulates the throughput of launches from noise models of known truth and passes it through the code of
the analysis. Throughput of an epoch is exp(block + launch + epoch noise); the block is what all launches
of one repeat have in common. A few minutes for each table, in percent of the studies:
  intervals  whose interval holds the truth, of each kind that a report prints: least and most of 7 noises
  power      that find a difference, or call equal what is so within 3 %
  demo       of `make demo` that tell which framework is faster, or that they are equal
  null       that call a framework faster where none is
  answers    whose headline names and advises what, where the truth is known
  alarms     false alarms of the steadiness check; outliers: of the rule for outlying launches
  adaptive   that get repeats until their intervals are narrow; by-hand, early: that are looked at before the
             last repeat and end as soon as a framework is called faster
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from analysis.judge.checks import fairness_checks
from analysis.judge.decide import half_widths, recommend
from analysis.judge.trust import outlying_launches, run_steadiness
from analysis.numbers.contrast import FASTER, SUGGESTED, compare, withhold
from analysis.numbers.iou import iou_between_frameworks, iou_table
from analysis.numbers.points import cost_table, summarise
from analysis.numbers.stats import corrected
from analysis.study import Array, Study
from slurm.launch.study_folder import in_launch_order
from tests.simulated import study_of
from unet_scaling.base.command_line import CommandLine
from unet_scaling.study.config import FRAMEWORKS, PROJECT, StudyConfig
from unet_scaling.study.repeats import (
    ADAPTIVE_SIGNIFICANCE,
    EARLY_SIGNIFICANCE,
    FEWEST_ADAPTIVE_REPEATS,
    FIXED_SIGNIFICANCE,
    MOST_ADAPTIVE_REPEATS,
    RepeatHistory,
    stopping_rule,
)
from unet_scaling.study.study_file import read_study

# The same draws in every study of a table, so that a difference between its rows is not one of luck.
SEED = 7
STUDIES_AT_ONCE = 500
# Each table then takes a few minutes on one core. Where a study is looked at up to 18 times, fewer do.
STUDIES = 2000
STUDIES_WITH_LOOKS = 300
WORKERS = (1, 4)
ONE_COUNT = (4,)
FIVE_COUNTS = (1, 2, 4, 8, 16)
# Efficiency on 4 workers and how much faster native DDP is: well above the floor of 0.7, and close to it.
TRUTHS = ((0.9, 1.0), (0.9, 1.03), (0.693, 1.0), (0.707, 1.0))
ADAPTIVE_RATIO = 1.03
# Over the noise of a pair, that of a launch times the root of 2; least is covered between 0.6 and 0.8.
WIDTHS_OF_A_PAIR = (0.6, 0.75, 0.9)
# The repeats at each look of a user who adds some while no framework is called faster.
TOTALS_BY_HAND = ((5, 8, 11, 14), (3, 6, 9, 12), tuple(range(5, 15)))
# Of these looks the table has a line, as it ends after so many at most.
LOOKS_SHOWN = (1, 2, 4, 10)


@dataclass(frozen=True)
class Noise:
    """Standard deviations of a block (repeat), of a launch and of an epoch; `shape` is that of launches."""

    block: float
    launch: float
    epoch: float
    epochs: int
    shape: str = "normal"

    def __str__(self) -> str:
        parts = [f"{100 * getattr(self, name):g} % {name}" for name in ("block", "launch", "epoch")]
        shape = "" if self.shape == "normal" else f", {self.shape}"
        return f"{', '.join(part for part in parts if part[0:2] != '0 ')}, {self.epochs} epochs{shape}"

    def launches(self, random: np.random.Generator, size: int) -> Array:
        """Draw noise of launches of median 0: normal, Student's t of 3 degrees of freedom, or slow-downs."""
        if self.shape == "heavy tails":
            return np.asarray(self.launch * random.standard_t(3, size), dtype=np.float64)
        if self.shape == "skewed":
            return np.asarray(self.launch * (np.log(2) - random.exponential(size=size)), dtype=np.float64)
        if self.shape == "rare slow":
            return rare_slow(random, size)
        return random.normal(0, self.launch, size)


NOISES_OF_INTERVALS = (
    Noise(0, 0.02, 0, 2),
    Noise(0, 0.1, 0, 2),
    Noise(0, 0, 0.02, 10),
    Noise(0.02, 0.02, 0.02, 10),
    Noise(0, 0.02, 0.02, 5, "heavy tails"),
    Noise(0, 0.02, 0.02, 5, "skewed"),
    Noise(0, 0.02, 0, 2, "rare slow"),
)
# Of a pair of launches 2.2 %, as on a quiet machine of two cores.
NOISE_OF_DEMO = Noise(0.02, 0.0125, 0.017, 4)
DEMO = PROJECT / "slurm" / "studies" / "demo.toml"
NOISES_OF_LOOKS = (Noise(0, 0.02, 0, 2), Noise(0.05, 0.05, 0.02, 5), Noise(0.02, 0.03, 0, 2, "skewed"))


def simulate(
    random: np.random.Generator,
    noise: Noise,
    studies: int,
    repeats: int,
    ratio: float,
    *,
    paired: bool = True,
    workers: Sequence[int] = WORKERS,
) -> Study:
    """Return many studies in one, an `options` each; perfectly linear, Horovod slower by `ratio`.

    Not `paired`: native DDP alone, whose launches on 1 worker have repeats, and blocks, of their own.
    """
    rows = pd.MultiIndex.from_product(
        [range(studies), FRAMEWORKS if paired else FRAMEWORKS[:1], workers, range(1, repeats + 1)],
        names=["options", "framework", "workers", "repeat"],
    ).to_frame(index=False)
    blocks = random.normal(0, noise.block, (studies, 2 * repeats + 1))
    if not paired:
        rows["repeat"] += repeats * (rows["workers"] == 1)
    factor = np.where(rows["framework"] == "horovod", 1 / ratio, 1.0) * rows["workers"].to_numpy()
    launch = blocks[rows["options"], rows["repeat"]] + noise.launches(random, len(rows))
    pace = launch[:, None] + random.normal(0, noise.epoch, (len(rows), noise.epochs))
    rows["options"] = [f"{number:05d}" for number in rows["options"]]
    return study_of(rows, factor[:, None] * np.exp(pace))


def steady_launches(random: np.random.Generator, size: int) -> Array:
    """Draw 2 % of noise in each launch."""
    return random.normal(0, 0.02, size)


def stragglers(random: np.random.Generator, size: int) -> Array:
    """Draw 1 % of noise, and one launch in five slowed by an exponential of 20 % on average."""
    slowed = np.where(random.random(size) < 0.2, random.exponential(0.2, size), 0.0)
    return random.normal(0, 0.01, size) - slowed


def rare_slow(random: np.random.Generator, size: int) -> Array:
    """Draw 2 % of noise, and one launch in ten 30 % slower."""
    return random.normal(0, 0.02, size) - np.where(random.random(size) < 0.1, np.log(1.3), 0.0)


def bimodal(random: np.random.Generator, size: int) -> Array:
    """Draw 1 % of noise, and half of the launches 10 % slower."""
    return random.normal(0, 0.01, size) - 0.1 * (random.random(size) < 0.5)


@dataclass(frozen=True)
class Cell:
    """Studies in which Horovod is slower by `ratio`, and more than 1 worker have this `efficiency`.

    `drift` slows the machine from the first launch of a study to the last.
    """

    name: str
    launch: Callable[[np.random.Generator, int], Array]
    drift: float = 0.0
    one_after_the_other: bool = False
    ratio: float = 1.0
    efficiency: float = 1.0


NULL_CELLS = (
    Cell("2 % launch", steady_launches),
    Cell("stragglers", stragglers),
    Cell("bimodal", bimodal),
    Cell("2 % launch, 10 % drift, interleaved", steady_launches, 0.10),
    Cell("2 % launch, 10 % drift, one arm after the other", steady_launches, 0.10, True),
)


def launched(cell: Cell, studies: int, workers: Sequence[int], repeats: int) -> Study:
    """Return many studies in one, an `options` each, whose runs start in the order of their launches."""
    tables = []
    for number in range(studies):
        asked = {"name": "null", "workers": list(workers), "repeats": repeats, "seed": number}
        asked["data"] = {"folder": "/data", "image_height": 32, "image_width": 32}
        asked["training"] = {"epochs": 2, "batch_per_worker": 1}
        configs = list(in_launch_order(StudyConfig.model_validate(asked)))
        if cell.one_after_the_other:
            configs.sort(key=lambda config: config.framework == "horovod")
        names = ["framework", "workers", "repeat"]
        table = pd.DataFrame([[getattr(config, name) for name in names] for config in configs], columns=names)
        tables.append(table.assign(options=f"{number:05d}", place=np.arange(len(table))))
    rows = pd.concat(tables, ignore_index=True)
    started = pd.Timestamp("2025-01-31T12:00:00Z") + pd.to_timedelta(rows["place"], unit="min")
    rows["started_utc"] = started.dt.strftime("%Y-%m-%dT%H:%M:%SZ")
    pace = cell.launch(np.random.default_rng(SEED), len(rows))
    pace += np.log1p(-cell.drift * rows["place"].to_numpy() / rows["place"].max())
    slower = np.where(rows["framework"] == "horovod", cell.ratio, 1.0)
    efficiency = np.where(rows["workers"] > 1, cell.efficiency, 1.0)
    throughput = rows["workers"].to_numpy() * efficiency / slower * np.exp(pace)
    rows = rows.assign(hosts="node", training_seconds=0.0).drop(columns="place")
    return study_of(rows, np.repeat(throughput[:, None], 2, axis=1))


Rows = Iterator[tuple[object, ...]]


def interval_rows(studies: int) -> Rows:
    """Yield each interval of a report with the least and the most percentage that holds the truth."""
    numbers = (3, 5, 10)
    found: dict[str, list[str]] = {}
    for repeats in numbers:
        cases = (interval_shares(noise, repeats, studies) for noise in NOISES_OF_INTERVALS)
        table = pd.DataFrame([*cases])
        table["IoU difference, each bound"] = iou_bounds(repeats, min(studies, STUDIES_WITH_LOOKS) // 3)
        for name, shares in table.items():
            found.setdefault(str(name), []).append(f"{shares.min():.1f} to {shares.max():.1f}")
    for name, cells in found.items():
        yield name, *cells


def interval_shares(noise: Noise, repeats: int, studies: int) -> dict[str, float]:
    """Return the percentage of each interval that holds the truth; frameworks differ by 0 or 3 %."""
    random = np.random.default_rng(SEED)
    most = WORKERS[-1]
    # The median throughput of all possible launches: harmonic over the noise of epochs.
    throughput = most * float(np.exp(-(noise.epoch**2) / 2 * (1 - 1 / noise.epochs)))
    tables = []
    for ratio in (1.0, ADAPTIVE_RATIO):
        study = simulate(random, noise, min(studies, STUDIES_AT_ONCE), repeats, ratio)
        apart = simulate(random, noise, min(studies, STUDIES_AT_ONCE), repeats, ratio, paired=False)
        points, unpaired = (each[each["workers"] == most] for each in map(summarise, (study, apart)))
        native = points[points["framework"] == FRAMEWORKS[0]]
        many = simulate(random, noise, min(studies, STUDIES_AT_ONCE), repeats, ratio, workers=FIVE_COUNTS)
        together = compare(many, family=["options"])
        together["all"] = _holds(together, "ratio", ratio).groupby(together["options"]).transform("all")
        compared = compare(study, family=["options"])
        held = {
            "median": _holds(native, "throughput", throughput),
            "speed-up, efficiency": _holds(points, "speedup", most),
            "the same, unpaired": _holds(unpaired, "speedup", most),
            "common efficiency": _holds(native, "efficiency_common", 1.0),
            "native DDP / Horovod, all of 2 counts together": _holds(compared, "ratio", ratio)
            .groupby(compared["options"]).all(),
            "the same, of 5 counts": together["all"],
        }  # fmt: skip
        tables.append({name: 100 * float(holds.mean()) for name, holds in held.items()})
    return {str(name): float(share) for name, share in pd.DataFrame(tables).mean().items()}


def iou_bounds(repeats: int, studies: int) -> float:
    """Return the percentage of bounds of the difference of IoU to 1 worker that hold the truth."""
    random, held = np.random.default_rng(SEED), []
    for _ in range(studies):
        study = simulate(random, NOISES_OF_INTERVALS[0], 1, repeats, 1.0)
        by_seed = 0.8 + 0.01 * np.sin(study.runs["repeat"].to_numpy(dtype=np.float64))
        iou = by_seed + random.normal(0, 0.002, len(by_seed))
        table = iou_table(
            replace(
                study, runs=study.runs.assign(iou=iou, test_images=100.0, iou_running=np.nan, statistics="")
            )
        )
        known = table[table["workers"] > 1]
        held += [known["difference_low"] <= 0, known["difference_high"] >= 0]
    return 100 * float(pd.concat(held).mean())


def _holds(table: pd.DataFrame, name: str, truth: float) -> "pd.Series[bool]":
    """Return which intervals hold the truth."""
    return table[f"{name}_low"].le(truth) & table[f"{name}_high"].ge(truth)


def power_rows(studies: int) -> Rows:
    models = (NOISES_OF_INTERVALS[0], Noise(0.02, 0.005, 0.02, 20), NOISES_OF_INTERVALS[-1])
    cases = [
        (noise, ratio, repeats) for noise in models for ratio in (1.05, 1.03, 1.0) for repeats in (5, 10, 15)
    ]
    # Launches that decide in 80 % of studies, by the spread of the logarithm of a pair's ratio.
    pair = np.sqrt(2) * models[0].launch
    for ratio in (1.05, 1.03, 1.0):
        test = {"low": 0.0, "high": 0.0, "centre": 0.0, "error": pair / 2, "freedom": 3.0}
        tests = pd.DataFrame([test | {"median": np.log(ratio), "fewest": 4.0}])
        cases.append((models[0], ratio, int(corrected(tests, equal_within=np.log1p(0.03))["needed"].item())))
    for noise, ratio, number in cases:
        study = simulate(np.random.default_rng(SEED), noise, studies, number, ratio, workers=ONE_COUNT)
        found = compare(study, family=["options"])["outcome"]
        shares = (
            100 * found.str.endswith(words).mean() for words in ("native DDP faster", "equal within 3 %")
        )
        yield noise, f"{100 * (ratio - 1):.0f} %", number, *shares


def demo_rows(studies: int) -> Rows:
    """Yield how often the study of `make demo` tells anything of the frameworks on its most workers."""
    demo = read_study(DEMO)
    epochs = demo.training["epochs"] - 1
    largest = max(demo.workers)
    all_told = []
    for ratio in (0.95, 0.97, 1.0, 1.03, 1.05, 1.1):
        random, noise = np.random.default_rng(SEED), replace(NOISE_OF_DEMO, epochs=epochs)
        study = simulate(random, noise, studies, demo.repeats, ratio, workers=demo.workers)
        compared = compare(replace(study, criteria=demo.criteria), family=["options"])
        outcome = compared.loc[compared["workers"] == largest, "outcome"]
        told = [100 * float(outcome.str.contains(words).mean()) for words in ("faster", "equal within")]
        all_told.append(sum(told))
        yield noise, demo.repeats, f"{100 * (ratio - 1):.0f} %", *told
    yield "all of these", demo.repeats, "", float(np.mean(all_told)), ""


def null_rows(studies: int) -> Rows:
    for repeats, workers in ((5, ONE_COUNT), (5, FIVE_COUNTS), (10, ONE_COUNT), (3, ONE_COUNT)):
        for cell in NULL_CELLS:
            study = launched(cell, studies, workers, repeats)
            compared = compare(study, family=["options"])
            # The checks of fairness only withhold: without them it is at least as many as a report claims.
            if cell.one_after_the_other:
                compared = withhold(compared, fairness_checks(study))
            claims = (compared["outcome"].isin(words) for words in (FASTER, SUGGESTED))
            shares = (100 * claim.groupby(compared["options"]).any().mean() for claim in claims)
            yield cell.name, len(workers), repeats, *shares


def answer_rows(studies: int) -> Rows:
    for repeats in (3, 5):
        for cell in NULL_CELLS[:3]:
            for efficiency, ratio in TRUTHS:
                study = launched(replace(cell, efficiency=efficiency, ratio=ratio), studies, WORKERS, repeats)
                # The seed of a repeat decides most of an IoU; every IoU is kept.
                by_seed = 0.8 + 0.01 * np.sin(study.runs["repeat"].to_numpy(dtype=np.float64))
                iou = by_seed + np.random.default_rng(SEED).normal(0, 0.002, len(by_seed))
                study = replace(
                    study,
                    runs=study.runs.assign(iou=iou, test_images=100.0, iou_running=np.nan, statistics=""),
                )
                compared, between = compare(study, family=["options"]), iou_between_frameworks(study)
                tables = (summarise(study), compared, iou_table(study), between, cost_table(study))
                found = [(each.framework, each.kind) for each in recommend(study, *tables)]
                named = [framework is not None for framework, _ in found]
                horovod = [framework == "horovod" for framework, _ in found]
                scale, stay = ([kind == wanted for _, kind in found] for wanted in ("scale", "stay"))
                shares = (100 * float(np.mean(of)) for of in (named, horovod, scale, stay))
                truth = (f"{efficiency:.3f}", f"{100 * (ratio - 1):.0f} %")
                yield cell.name, repeats, *truth, *shares


def alarm_rows(studies: int) -> Rows:
    """Yield the percentage of steady runs called unsteady; `correlation` is that of neighbouring epochs."""
    runs = 10 * studies
    rows = pd.DataFrame({"options": "", "framework": "horovod", "workers": 1, "repeat": np.arange(runs)})
    for epochs in (8, 20, 50, 200):
        for correlation in (0.0, 0.5):
            pace = np.random.default_rng(SEED).normal(0, 0.02, (runs, epochs))
            for epoch in range(1, epochs):
                fresh = np.sqrt(1 - correlation**2) * pace[:, epoch]
                pace[:, epoch] = correlation * pace[:, epoch - 1] + fresh
            unsteady = run_steadiness(study_of(rows, np.exp(pace)))["steady"] == "no"
            yield epochs, "2 %", f"{correlation:g}", f"{100 * unsteady.mean():.2f}"


def outlier_rows(studies: int) -> Rows:
    """Yield the percentage of launches named as outliers where all are of one noise."""
    for points, launches in ((1, 5), (4, 3), (4, 5), (10, 5)):
        product = pd.MultiIndex.from_product([range(points), range(launches)], names=["workers", "repeat"])
        rows = product.to_frame(index=False).assign(options="", framework="horovod")
        for noise in (0.02, 0.05, 0.1, 0.2):
            random = np.random.default_rng(SEED)
            drawn = (np.exp(random.normal(0, noise, (len(rows), 1))) for _ in range(studies))
            named = sum(len(outlying_launches(study_of(rows, each))) for each in drawn)
            share = 100 * named / (studies * points * launches)
            yield points, launches, f"{100 * noise:g} %", f"{share:.2f}"


@dataclass(frozen=True)
class Outcome:
    """What is so when studies end: percent of intervals that hold the truth, of studies that call a framework
    faster, or suggest it; and the mean of their repeats.
    """

    covered: float
    claimed: float
    repeats: float


def looks(
    study: Study, totals: Sequence[int], significances: Sequence[float], truth: float, narrow: float = 0.0
) -> pd.DataFrame:
    """Return what each simulated study, an `options` of `study`, shows after each of these totals of repeats.

    Columns: options, look, repeats, holds (its interval holds the truth), claimed (at any worker count),
    widest (half the width of its widest interval over the ratio). One row per study, look and worker count.
    Nobody looks again at studies whose intervals are all as `narrow` as this.
    """
    tables = []
    runs = study.runs
    for look, (total, significance) in enumerate(zip(totals, significances, strict=True), start=1):
        so_far = replace(study, runs=runs[runs["repeat"] <= total], significance=significance)
        compared = compare(so_far, family=["options"])
        by_study = compared["options"]
        claims = compared["outcome"].isin([*FASTER, *SUGGESTED])
        seen = pd.DataFrame({
            "options": by_study, "look": look, "repeats": total,
            "holds": compared["ratio_low"].le(truth) & compared["ratio_high"].ge(truth),
            "claimed": claims.groupby(by_study).transform("any"),
            "widest": half_widths(compared).groupby(by_study).transform("max"),
        })  # fmt: skip
        tables.append(seen)
        runs = runs[~runs["options"].isin(seen.loc[seen["widest"] <= narrow, "options"])]
        if runs.empty:
            break
    return pd.concat(tables)


def ended(seen: pd.DataFrame, ends: "pd.Series[bool]") -> Outcome:
    """Return what is so at the first look of each study that `ends` it; its last one does in any case."""
    last = seen["look"] == seen.groupby("options")["look"].transform("max")
    possible = seen[ends | last]
    rows = possible[possible["look"] == possible.groupby("options")["look"].transform("min")]
    studies = rows.groupby("options")[["claimed", "repeats"]].first()
    means = (100 * rows["holds"].mean(), 100 * studies["claimed"].mean(), studies["repeats"].mean())
    return Outcome(*map(float, means))


def with_all_repeats(noise: Noise, studies: int, workers: Sequence[int], ratio: float) -> Study:
    """Return studies with all the repeats that they may need, at these worker counts."""
    study = simulate(np.random.default_rng(SEED), noise, studies, MOST_ADAPTIVE_REPEATS, ratio)
    return replace(study, runs=study.runs[study.runs["workers"].isin(workers)])


def adaptive_rows(studies: int) -> Rows:
    """Yield studies that end as soon as their intervals are narrow, at 95 % and corrected."""
    totals = range(FEWEST_ADAPTIVE_REPEATS, MOST_ADAPTIVE_REPEATS + 1)
    for noise in NOISES_OF_LOOKS:
        for workers in (ONE_COUNT, WORKERS):
            study = with_all_repeats(noise, studies, workers, ADAPTIVE_RATIO)
            widths = [width * np.sqrt(2) * noise.launch for width in WIDTHS_OF_A_PAIR]
            seen = [
                looks(study, totals, [significance] * len(totals), ADAPTIVE_RATIO, min(widths))
                for significance in (FIXED_SIGNIFICANCE, ADAPTIVE_SIGNIFICANCE)
            ]
            for asked in widths:
                fixed, corrected = (ended(each, each["widest"] <= asked) for each in seen)
                cells = (fixed.covered, fixed.repeats, corrected.covered, corrected.repeats)
                yield noise, len(workers), f"{100 * asked:.1f} %", *cells


def by_hand_rows(studies: int) -> Rows:
    """Yield studies without a difference that end as soon as a framework is called faster."""
    usual, *others = NOISES_OF_LOOKS
    cases = [(usual, workers, totals) for workers in (ONE_COUNT, WORKERS) for totals in TOTALS_BY_HAND]
    cases += [(noise, ONE_COUNT, TOTALS_BY_HAND[0]) for noise in others]
    for noise, workers, totals in cases:
        study = with_all_repeats(noise, studies, workers, 1.0)
        histories = (RepeatHistory(by_hand=before) for before in range(len(totals)))
        corrected = [stopping_rule(None, history).significance for history in histories]
        seen = [looks(study, totals, rule, 1.0) for rule in ([FIXED_SIGNIFICANCE] * len(totals), corrected)]
        for number in [number for number in LOOKS_SHOWN if number <= len(totals)]:
            parts = [each[each["look"] <= number] for each in seen]
            outcomes = [ended(each, each["claimed"]) for each in parts]
            cells = [cell for each in outcomes for cell in (each.covered, each.claimed)]
            yield noise, len(workers), ", ".join(map(str, totals[:number])), *cells


def early_rows(studies: int) -> Rows:
    """Yield studies without a difference that are looked at after each repeat from 3 on."""
    for repeats in (10, 20):
        totals = range(FEWEST_ADAPTIVE_REPEATS, repeats + 1)
        study = with_all_repeats(NOISES_OF_LOOKS[0], studies, ONE_COUNT, 1.0)
        rules = (
            [*[early] * (len(totals) - 1), FIXED_SIGNIFICANCE]
            for early in (FIXED_SIGNIFICANCE, EARLY_SIGNIFICANCE)
        )
        seen = (looks(study, totals, rule, 1.0) for rule in rules)
        yield repeats, *(ended(each, each["claimed"]).claimed for each in seen)


# Columns and rows of each table; how many studies it takes.
TABLES: Mapping[str, tuple[str, Callable[[int], Rows], int]] = {
    "intervals": ("95 % interval of | 3 repeats | 5 repeats | 10 repeats", interval_rows, STUDIES_WITH_LOOKS),
    "power": (
        'noise | native DDP faster by | repeats | found in % | "equal within 3 %" in %', power_rows, STUDIES,
    ),
    "demo": (
        'noise | repeats | native DDP faster by | one "is faster" in % | "equal within 5 %" in %',
        demo_rows, STUDIES,
    ),
    "null": (
        'noise | worker counts | repeats | "is faster" in % of studies | "suggests" in %',
        null_rows, STUDIES,
    ),
    "answers": (
        "noise | repeats | efficiency on 4 | native DDP faster by | one named | Horovod named | "
        "use 4 workers | do not scale out", answer_rows, STUDIES,
    ),
    "alarms": (
        "epochs | noise of an epoch | correlation of neighbours | false alarms in % of runs",
        alarm_rows, STUDIES,
    ),
    "outliers": (
        "points | launches of each | noise of a launch | named in % of launches", outlier_rows, STUDIES,
    ),
    "adaptive": (
        "noise | worker counts | asked | 95 % intervals | repeats | 98 % intervals | repeats",
        adaptive_rows, STUDIES_WITH_LOOKS,
    ),
    "by-hand": (
        "noise | worker counts | repeats | 95 % at each look | claims | corrected | claims",
        by_hand_rows, STUDIES_WITH_LOOKS,
    ),
    "early": (
        "repeats asked for | 95 % at each look | corrected before the last repeat",
        early_rows, STUDIES_WITH_LOOKS,
    ),
}  # fmt: skip


def main() -> None:
    parser = CommandLine("python -m benchmarks.coverage", __doc__)
    about = f"simulated for each row (default: {STUDIES}, of tables with many looks {STUDIES_WITH_LOOKS})"
    parser.add_argument("--studies", type=int, help=about)
    parser.add_argument("--table", action="append", choices=TABLES, help="only these; default: all")
    options = parser.parse_args()
    for name in options.table or TABLES:
        columns, rows, studies = TABLES[name]
        print(f"| {columns} |\n|{'--:|' * (1 + columns.count(' | '))}", flush=True)
        for row in rows(options.studies or studies):
            cells = [f"{cell:.1f}" if isinstance(cell, float) else str(cell) for cell in row]
            print(f"| {' | '.join(cells)} |", flush=True)
        print()


if __name__ == "__main__":
    main()
