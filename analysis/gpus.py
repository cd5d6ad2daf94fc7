"""The GPUs of each run and point, and the check that those of two frameworks were alike.

One rule for every recorded figure: the frameworks differ where the means of their launches at a point are
further apart than the spread of the launches explains, and than a figure's own `least`. What is drawn at
random for each launch, such as a node with a cooler GPU, is in that spread.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from analysis import contrast
from analysis.machines import Checked
from analysis.stats import apart, timed
from analysis.study import GPU_COLUMNS, POINT, Array, Study
from analysis.text import count, number, percent

ENERGY = "joules_per_image"
BY_COUNTER = "the devices' counters"
BY_POWER = "power at the ends of epochs x time"
GPU_TABLE_COLUMNS = [
    *POINT, "repeats", "utilization", "memory_bytes", "peak_allocated_bytes", "other_memory_bytes",
    "sm_clock_mhz", "throttled", "throttle_reasons", "power_watts", ENERGY, "energy_from",
]  # fmt: skip
# Contexts of a display or of a monitoring service are smaller; a process that trains has more.
LEAST_OTHER_BYTES = 2**28


class GpuFigure(NamedTuple):
    """A figure of a run's GPUs, and what it means that two frameworks differ in it.

    `least` is a share of the larger mean, for a figure in per cent a difference of shares.

    setting    one framework alone had it: nothing is claimed
    held back  nothing is claimed where the slower framework has less: GPUs that wait for a slower framework
               need more energy for an image, and have a clock that is not lower
    slows      it stands beside every claim where the slower framework has more: at a power limit, which
               full load may reach, a faster framework is not held back
    disturbs   it stands beside every claim
    follows    from the speed itself: a remark
    """

    name: str
    unit: str
    least: float
    meaning: Literal["setting", "held back", "slows", "disturbs", "follows"]


GPU_FIGURES = {
    "power_limit_watts": GpuFigure("power limit", "W", 1e-9, "setting"),
    # As of the cores (machines.py); the driver's steps are of 15 MHz.
    "sm_clock_mhz": GpuFigure("SM clock", "MHz", 0.05, "held back"),
    # NVML's readings of power are of moments, and good to some per cent.
    ENERGY: GpuFigure("energy of an image", "J", 0.15, "held back"),
    "throttled": GpuFigure("clock held down", "%", 0.10, "slows"),
    "occupied": GpuFigure("GPUs with memory of others", "%", 0.10, "disturbs"),
    "utilization": GpuFigure("load", "%", 0.05, "follows"),
    "power_watts": GpuFigure("power", "W", 0.15, "follows"),
}


def run_gpus(study: Study) -> pd.DataFrame:
    """Return one row per run that recorded its GPUs, by its name: means over GPUs; NaN where not known.

    The memory is that of the fullest GPU; `throttled` is the share of GPUs and epochs in which the clock was
    held down, `occupied` that of GPUs on which others had memory. The energy of an image is that of all GPUs,
    by their counters where all runs have them, else by their power for all runs alike: `energy_from`.
    """
    budgets = study.budgets
    recorded = budgets[budgets[list(GPU_COLUMNS)].notna().any(axis="columns")]
    recorded = recorded.astype(dict.fromkeys(GPU_COLUMNS, float)).assign(run=recorded["run"].astype(str))
    others = recorded["gpu_other_memory_bytes"]
    recorded["gpu_occupied"] = (others > LEAST_OTHER_BYTES).astype(float).where(others.notna())
    of_run = recorded.groupby("run", sort=False)
    means = ("utilization", "sm_clock_mhz", "throttled", "occupied", "power_watts", "power_limit_watts")
    gpus = pd.DataFrame({name: of_run[f"gpu_{name}"].mean(skipna=False) for name in means})
    for name in ("memory_bytes", "other_memory_bytes", "peak_allocated_bytes"):
        gpus[name] = of_run[f"gpu_{name}"].max(skipna=False)
    gpus["throttle_reasons"] = of_run["gpu_throttle_reasons"].agg(" ".join)
    first = of_run.first()
    energy = of_run["gpu_energy_joules"].sum(skipna=False)
    is_counted = bool(energy.notna().all())
    if not is_counted:
        energy = of_run["gpu_power_watts"].sum(skipna=False) * first["seconds"].astype(float)
    gpus[ENERGY] = energy / first["images"].astype(float)
    return gpus.assign(energy_from=BY_COUNTER if is_counted else BY_POWER)


def gpu_table(study: Study) -> pd.DataFrame:
    """Return one row per point whose runs recorded their GPUs: medians over launches, NaN where not known."""
    gpus = run_gpus(study)
    if gpus.empty:
        return pd.DataFrame(columns=GPU_TABLE_COLUMNS)
    runs = timed(study).runs[["run", *POINT]].merge(gpus.reset_index(), on="run")
    points = runs.drop(columns="run").groupby(POINT, sort=False)
    table = points.median(numeric_only=True).assign(
        repeats=points.size(), energy_from=gpus["energy_from"].iloc[0]
    )
    reasons = points["throttle_reasons"].agg(_listed_reasons)
    return table.assign(throttle_reasons=reasons).reset_index()[GPU_TABLE_COLUMNS]


def check_gpus(subject: Checked) -> contrast.Check | None:
    """Check that the GPUs of both frameworks were alike at every point; no row where there are none."""
    gpus = run_gpus(subject.study)
    if gpus.empty:
        has_gpus = any(worker.device_uuid for header in subject.headers.values() for worker in header.workers)
        return contrast.not_known("no run recorded its GPUs") if has_gpus else None
    meanings = ("setting", "held back", "slows", "disturbs", "follows", "one")
    told: dict[str, list[str]] = {meaning: [] for meaning in meanings}
    unfair: set[contrast.PointPair] = set()
    one_sided: set[contrast.PointPair] = set()
    for pair, both in subject.sides.items():
        names = contrast.names_of_pair(subject.study, pair)
        arms = [gpus.reindex([row["run"] for row in side]) for side in both]
        for column, figure in GPU_FIGURES.items():
            known = [arm[column].dropna().to_numpy(dtype=np.float64) for arm in arms]
            meaning: str = figure.meaning
            if bool(len(known[0])) != bool(len(known[1])):
                meaning = "one"
                one_sided.add(pair)
            elif not len(known[0]) or not _differs(figure, known, both):
                continue
            elif meaning in ("setting", "held back"):
                unfair.add(pair)
            values = [[_shown(figure, values)] if len(values) else [] for values in known]
            told[meaning].append(
                f"{contrast.point_name(pair)} {contrast.in_both(_title(column, arms), values, names)}"
            )
    facts = "; ".join(contrast.first_points(phrases) for phrases in told.values() if phrases)
    if unfair:
        return contrast.withhold_claims(facts, unfair | one_sided)
    if one_sided:
        return contrast.known_of_one(facts, one_sided)
    if told["slows"] or told["disturbs"]:
        return contrast.no(facts)
    alike = f"at {count(len(subject.sides), 'point')} no figure of the GPUs speaks against a framework"
    return contrast.yes("; ".join(filter(None, (alike, *_remarks(gpus), facts))))


def _remarks(gpus: pd.DataFrame) -> Iterator[str]:
    """Yield what the GPUs of both frameworks met alike."""
    held = gpus.loc[gpus["throttled"] > 0, "throttle_reasons"]
    if len(held):
        yield f"clocks held down in {count(len(held), 'run')} ({_listed_reasons(held)})"
    shared = int((gpus["occupied"] > 0).sum())
    if shared:
        yield f"others had memory on GPUs of {count(shared, 'run')}"


def _listed_reasons(texts: Iterable[str]) -> str:
    return ", ".join(sorted({*" ".join(texts).split()}))


def _differs(figure: GpuFigure, known: Sequence[Array], both: contrast.Sides) -> bool:
    """Return whether the frameworks differ in a figure, as its meaning has it."""
    means = [float(values.mean()) for values in known]
    least = figure.least * (1.0 if figure.unit == "%" else max(means))
    is_apart = apart(known[0], known[1], least)
    if not is_apart or figure.meaning not in ("held back", "slows"):
        return is_apart
    speeds = [float(np.mean([row["images_per_second"] for row in side])) for side in both]
    faster_has_more = (speeds[0] - speeds[1]) * (means[0] - means[1]) >= 0
    return faster_has_more if figure.meaning == "held back" else not faster_has_more


def _shown(figure: GpuFigure, values: Array) -> str:
    mean = float(values.mean())
    return percent(mean, 0) if figure.unit == "%" else f"{number(mean, '~3')} {figure.unit}"


def _title(column: str, arms: Sequence[pd.DataFrame]) -> str:
    """Return the name of a figure; with what held a clock down, or where an energy comes from."""
    name = GPU_FIGURES[column].name
    if column == "throttled":
        return f"{name} ({_listed_reasons(pd.concat(arms)['throttle_reasons'].dropna())})"
    is_by_power = column == ENERGY and (pd.concat(arms)["energy_from"] == BY_POWER).any()
    return f"{name} ({BY_POWER})" if is_by_power else name
