"""Whether what was recorded of two frameworks' runs was alike: one rule for every figure.

The frameworks differ in a figure where the means of their launches at a point are further apart than a
figure's own `least`, and than chance explains by the spread of the launches there, and of all points. What is
drawn at random for each launch, such as a node with another clock, is in that spread.
"""

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
from scipy import special  # type: ignore[import-untyped]

from analysis.judge.gpus import BY_POWER, ENERGY, gpu_remarks, listed_reasons, run_gpus
from analysis.judge.launch_checks import Checked
from analysis.numbers import contrast
from analysis.numbers.check import Check, PointPair, no, not_known, recorded_by_one, withhold_claims, yes
from analysis.numbers.stats import CHANCE_OF_APART, apart
from analysis.study import NOT_RECORDED, POINT, Array, Study
from analysis.text import Row, count, number, percent
from unet_scaling.format.record_lines import STARTUP_COLUMNS

Meaning = Literal["setting", "held back", "slows", "disturbs", "follows"]


class RecordedFigure(NamedTuple):
    """A figure of a run, and what it means that two frameworks differ in it.

    `least` is a share of the larger mean, for a figure in per cent a difference of shares; up to `harmless`,
    alike, a difference is a remark.

    setting    one framework alone had it: nothing is claimed
    held back  nothing is claimed where the slower framework has less: GPUs that wait for a slower framework
               need more energy for an image, and have a clock that is not lower
    slows      it stands beside every claim where the slower framework has more: at a power limit, which
               full load may reach, a faster framework is not held back
    disturbs   it stands beside every claim
    follows    from the framework, or from the speed itself: a remark
    """

    name: str
    unit: str
    least: float
    meaning: Meaning
    harmless: float = 0.0


# Nodes of one kind differ by some per cent, and a processor's clock by steps of 100 MHz: 3.5 % of 2.9 GHz.
OF_CLOCK = {"frequency_mhz": RecordedFigure("clock of the cores", "MHz", 0.01, "setting", 0.04)}
OF_GPUS = {
    "power_limit_watts": RecordedFigure("power limit", "W", 1e-9, "setting"),
    # The driver's steps are of 15 MHz.
    "sm_clock_mhz": RecordedFigure("SM clock", "MHz", 0.05, "held back"),
    # NVML's readings of power are of moments, and good to some per cent.
    ENERGY: RecordedFigure("energy of an image", "J", 0.15, "held back"),
    "throttled": RecordedFigure("clock held down", "%", 0.10, "slows"),
    "occupied": RecordedFigure("GPUs with memory of others", "%", 0.10, "disturbs"),
    "utilization": RecordedFigure("load", "%", 0.05, "follows"),
    "power_watts": RecordedFigure("power", "W", 0.15, "follows"),
    "memory_bytes": RecordedFigure("memory in use", "GiB", 0.10, "follows"),
    "other_memory_bytes": RecordedFigure("memory of others", "GiB", 0.10, "follows"),
    "peak_allocated_bytes": RecordedFigure("memory that torch had", "GiB", 0.10, "follows"),
}
OF_OTHERS = {
    "busy_share": RecordedFigure("time that other processes took", "%", 0.02, "slows"),
    "uncounted_share": RecordedFigure("time that nothing counted", "%", 0.02, "slows"),
    "waiting": RecordedFigure("training thread's wait for a core", "%", 0.02, "follows"),
    "helpers": RecordedFigure("CPU time of other threads", "%", 0.05, "follows"),
    "peak_memory_bytes": RecordedFigure("memory of a worker's process", "GiB", 0.10, "follows"),
    "messages_per_second": RecordedFigure("the probe's pace of short messages", "1/s", 0.25, "follows"),
    "bytes_per_second": RecordedFigure("the probe's bandwidth", "MB/s", 0.25, "follows"),
    "evaluation_seconds": RecordedFigure("an evaluation", "s", 0.20, "follows"),
} | {
    name: RecordedFigure(f"start: {name.removesuffix('_seconds').replace('_', ' ')}", "s", 0.25, "follows")
    for name in STARTUP_COLUMNS
}
# Seconds: what takes less differs by chance, and is not compared.
LEAST_TOLD_SECONDS = 0.05
SIZES_OF_UNITS = {"GiB": 2**30, "MB/s": 10**6}
# Share of the seconds of training from which start and evaluations are told.
LEAST_BESIDE = 0.1


def run_figures(study: Study) -> pd.DataFrame:
    """Return one row per run, by its name, with the columns of OF_CLOCK and OF_OTHERS; NaN where not known.

    Of workers the mean, of memory and of the parts of a start the most of them.
    """
    budgets = study.budgets.assign(run=study.budgets["run"].astype(str))
    of_run = budgets.groupby("run")
    seconds = of_run["worker_seconds"].sum().astype(float)
    probes = study.probes.assign(run=study.probes["run"].astype(str)).groupby("run")
    last = probes[["bytes", "median_seconds"]].last().astype(float)
    startups = study.startups.assign(run=study.startups["run"].astype(str)).groupby("run")
    evaluations = study.evaluations.groupby(study.evaluations["run"].astype(str))
    columns = {
        "frequency_mhz": of_run["frequency_mhz"].mean(),
        "waiting": of_run["waiting_seconds"].sum(min_count=1) / seconds,
        "helpers": of_run["helper_cpu_seconds"].sum(min_count=1) / seconds,
        "messages_per_second": 1 / probes["median_seconds"].min().astype(float),
        "bytes_per_second": last["bytes"] / last["median_seconds"],
        "evaluation_seconds": evaluations["seconds"].mean(),
    }
    runs = study.runs.set_index("run").reindex(columns=["busy_share", "uncounted_share", "peak_memory_bytes"])
    return runs.join([pd.DataFrame(columns), startups[list(STARTUP_COLUMNS)].max()]).astype(float)


def seconds_beside_training(study: Study, point: Row) -> dict[str, float]:
    """Return the seconds of a start and of all evaluations in the median launch of a point, where long.

    Times and costs are of training alone: what is together less than LEAST_BESIDE of it need not be said.
    """
    runs = study.timed.runs
    own = runs[(runs[POINT] == [point[name] for name in POINT]).all(axis=1)]["run"]
    starts = (
        study.startups.groupby(study.startups["run"].astype(str))[list(STARTUP_COLUMNS)].max().sum(axis=1)
    )
    evaluated = study.evaluations.groupby(study.evaluations["run"].astype(str))["seconds"].sum()
    medians = {"start": starts.reindex(own).median(), "evaluations": evaluated.reindex(own).median()}
    known = {name: float(seconds) for name, seconds in medians.items() if seconds > 0}
    return known if sum(known.values()) >= LEAST_BESIDE * point["training_seconds"] else {}


def check_clocks(subject: Checked) -> Check:
    """Check that the cores of both frameworks had the same clock.

    A clock that never changes is that of a virtual machine's description: no measurement, unless the
    frameworks differ in it.
    """
    figures = run_figures(subject.study)
    clocks = figures["frequency_mhz"].reindex([row["run"] for row in subject.runs])
    found = _check(subject, OF_CLOCK, figures, f"at {count(len(subject.sides), 'point')} the means are alike")
    if found.withholds or not subject.sides:
        return found if subject.sides else not_known("no point of both frameworks")
    if clocks.isna().any():
        return not_known("not every run recorded the clock")
    recorded = subject.study.budgets["frequency_mhz"].dropna()
    if clocks.nunique() == 1 and recorded.nunique() == 1:
        fact = f"all name {clocks.iloc[0]:,.0f} MHz at all times"
        return not_known(f"{fact}, as virtual machines do whatever their clock")
    return found


def check_gpus(subject: Checked) -> Check | None:
    """Check that the GPUs of both frameworks were alike at every point; no row where there are none."""
    gpus = run_gpus(subject.study.budgets)
    if gpus.empty:
        has_gpus = any(worker.device_uuid for header in subject.headers.values() for worker in header.workers)
        return not_known("no run recorded its GPUs") if has_gpus else None
    alike = f"at {count(len(subject.sides), 'point')} no figure of the GPUs speaks against a framework"
    return _check(subject, OF_GPUS, gpus, "; ".join((alike, *gpu_remarks(gpus))))


def check_others(subject: Checked) -> Check:
    """Check that nothing else that is recorded speaks against a framework: load, memory, start, and so on."""
    figures = run_figures(subject.study.timed)
    if figures["helpers"].isna().all():  # nor the rest of what decides speed
        return not_known(NOT_RECORDED)
    alike = f"at {count(len(subject.sides), 'point')} no other figure speaks against a framework"
    return _check(subject, OF_OTHERS, figures, alike)


def _check(
    subject: Checked, figures: Mapping[str, RecordedFigure], of_runs: pd.DataFrame, alike: str
) -> Check:
    """Return the check of these figures: each is named once, at the last point where frameworks differ."""
    told: dict[str, list[str]] = {}
    unfair: set[PointPair] = set()
    one_sided: set[PointPair] = set()
    for column, figure in figures.items():
        phrases: dict[str, list[str]] = {}
        for pair, meaning, values in differing_points(subject.sides, figure, of_runs[column]):
            if meaning == "one" and figure.meaning not in ("slows", "follows"):
                one_sided.add(pair)
            elif meaning in ("setting", "held back"):
                unfair.add(pair)
            shown = [[_shown(figure, each)] if len(each) else [] for each in values]
            runs = [row["run"] for side in subject.sides[pair] for row in side]
            title = _title(column, figure, of_runs.reindex(runs))
            names = contrast.names_of_pair(subject.study.names, pair)
            phrases.setdefault(meaning, []).append(
                f"{contrast.point_name(pair)} {contrast.in_both(title, shown, names)}"
            )
        for meaning, each in phrases.items():
            more = f" (and at {count(len(each) - 1, 'more point')})" if len(each) > 1 else ""
            told.setdefault(meaning, []).append(each[-1] + more)
    ordered = ("setting", "held back", "slows", "disturbs", "one", "follows")
    facts = "; ".join(phrase for meaning in ordered for phrase in told.get(meaning, ()))
    if unfair:
        return withhold_claims(facts, unfair | one_sided)
    if one_sided:
        return recorded_by_one(facts, one_sided)
    if "slows" in told or "disturbs" in told:
        return no(facts)
    return yes("; ".join(filter(None, (alike, facts))))


def differing_points(
    points: Mapping[PointPair, contrast.Sides], figure: RecordedFigure, of_runs: "pd.Series[float]"
) -> Iterator[tuple[PointPair, str, list[Array]]]:
    """Yield where the frameworks differ in a figure, its meaning there, and the launches' values of each."""
    of_figure = of_runs.astype(float)
    known: dict[PointPair, list[Array]] = {}
    sizes: dict[PointPair, float] = {}
    for pair, both in points.items():
        found = [of_figure.reindex([row["run"] for row in side]).dropna() for side in both]
        size = 1.0 if figure.unit == "%" else max((side.mean() for side in found if len(side)), default=0.0)
        sizes[pair] = size or 1.0
        known[pair] = [np.asarray(side, dtype=np.float64) for side in found]
    # Of all points: a few launches may be alike by chance.
    sides = [side / sizes[pair] for pair, values in known.items() for side in values if len(side)]
    freedom = sum(len(side) - 1 for side in sides)
    spread = sum(float(((side - side.mean()) ** 2).sum()) for side in sides) / max(1, freedom)
    for pair, values in known.items():
        first, second = (np.asarray(side / sizes[pair], dtype=np.float64) for side in values)
        if bool(len(first)) != bool(len(second)):
            yield pair, "one", values
        elif len(first):
            error = (spread * (1 / len(first) + 1 / len(second))) ** 0.5
            chance = -float(special.stdtrit(freedom, CHANCE_OF_APART / 2)) * error if freedom else 0.0
            of_clock = LEAST_TOLD_SECONDS / sizes[pair] if figure.unit == "s" else 0.0
            if not apart(first, second, max(figure.least, chance, of_clock)):
                continue
            difference = float(first.mean() - second.mean())
            meaning: str = figure.meaning if abs(difference) > figure.harmless else "follows"
            if _is_told(meaning, difference, points[pair]):
                yield pair, meaning, values


def _is_told(meaning: str, difference: float, both: contrast.Sides) -> bool:
    """Return whether the framework with more of a figure is the one of which its meaning tells."""
    speeds = [float(np.mean([row["images_per_second"] for row in side])) for side in both]
    faster_has_more = (speeds[0] - speeds[1]) * difference >= 0
    return {"held back": faster_has_more, "slows": not faster_has_more}.get(meaning, True)


def _shown(figure: RecordedFigure, values: Array) -> str:
    mean = float(values.mean())
    if figure.unit == "%":
        return percent(mean, 0)
    return f"{number(mean / SIZES_OF_UNITS.get(figure.unit, 1), '~3')} {figure.unit}"


def _title(column: str, figure: RecordedFigure, runs: pd.DataFrame) -> str:
    """Return the name of a figure; with what held a clock down, or where an energy comes from."""
    if column == "throttled":
        return f"{figure.name} ({listed_reasons(runs['throttle_reasons'].dropna())})"
    is_by_power = column == ENERGY and (runs["energy_from"] == BY_POWER).any()
    return f"{figure.name} ({BY_POWER})" if is_by_power else figure.name
