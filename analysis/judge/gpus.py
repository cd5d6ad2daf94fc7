"""The GPUs of each run and point, as their driver counted."""

from collections.abc import Iterable, Iterator

import pandas as pd

from analysis.study import GPU_COLUMNS, POINT, Study
from analysis.text import count

ENERGY = "joules_per_image"
BY_COUNTER = "the devices' counters"
BY_POWER = "power at the ends of epochs x time"
GPU_TABLE_COLUMNS = [
    *POINT, "repeats", "utilization", "memory_bytes", "peak_allocated_bytes", "other_memory_bytes",
    "sm_clock_mhz", "throttled", "throttle_reasons", "power_watts", ENERGY, "energy_from",
]  # fmt: skip
# Contexts of a display or of a monitoring service are smaller; a process that trains has more.
LEAST_OTHER_BYTES = 2**28


def run_gpus(budgets: pd.DataFrame) -> pd.DataFrame:
    """Return one row per run that recorded its GPUs, by its name: means over GPUs; NaN where not known.

    The memory is that of the fullest GPU; `throttled` is the share of GPUs and epochs in which the clock was
    held down, `occupied` that of GPUs on which others had memory. The energy of an image is that of all GPUs,
    by their counters where all runs have them, else by their power for all runs alike: `energy_from`.
    """
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
    gpus = run_gpus(study.budgets)
    if gpus.empty:
        return pd.DataFrame(columns=GPU_TABLE_COLUMNS)
    runs = study.timed.runs[["run", *POINT]].merge(gpus.reset_index(), on="run")
    points = runs.drop(columns="run").groupby(POINT, sort=False)
    table = points.median(numeric_only=True).assign(
        repeats=points.size(), energy_from=gpus["energy_from"].iloc[0]
    )
    reasons = points["throttle_reasons"].agg(listed_reasons)
    return table.assign(throttle_reasons=reasons).reset_index()[GPU_TABLE_COLUMNS]


def gpu_remarks(gpus: pd.DataFrame) -> Iterator[str]:
    """Yield what the GPUs of both frameworks met alike."""
    held = gpus.loc[gpus["throttled"] > 0, "throttle_reasons"]
    if len(held):
        yield f"clocks held down in {count(len(held), 'run')} ({listed_reasons(held)})"
    shared = int((gpus["occupied"] > 0).sum())
    if shared:
        yield f"others had memory on GPUs of {count(shared, 'run')}"


def listed_reasons(texts: Iterable[str]) -> str:
    """Return each reason that clocks were held down once: "hw_slowdown, sw_power_cap"."""
    return ", ".join(sorted({*" ".join(texts).split()}))
