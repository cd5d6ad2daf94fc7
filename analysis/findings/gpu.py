"""Summarise the GPUs of each point: load, memory, power, and the energy of an image."""

import pandas as pd

from analysis.stats import timed
from analysis.study import GPU_COLUMNS, POINT, Study

_COLUMNS = (*POINT, "repeats", "utilization", "memory_bytes", "power_watts", "joules_per_image")


def gpu_table(study: Study) -> pd.DataFrame:
    """Return one row per point whose runs recorded their GPUs, with COLUMNS: medians over launches.

    Of a launch, utilization and power are means over its GPUs, memory is that of the fullest GPU, and the
    energy is that of all GPUs over the images of the epochs in use. NaN where a GPU did not say.
    """
    recorded = study.budgets[study.budgets[list(GPU_COLUMNS)].notna().any(axis="columns")]
    if recorded.empty:
        return pd.DataFrame(columns=list(_COLUMNS))
    runs = timed(study).runs[["run", *POINT]].merge(_of_runs(recorded), on="run")
    points = runs.drop(columns="run").groupby(POINT, sort=False)
    return points.median().assign(repeats=points.size()).reset_index()[list(_COLUMNS)]


def _of_runs(workers: pd.DataFrame) -> pd.DataFrame:
    """Return one row per run from those of its workers; where a worker does not say, the run is NaN."""
    of_run = workers.assign(run=workers["run"].astype(str)).groupby("run", sort=False)
    return pd.DataFrame(
        {
            "utilization": of_run["gpu_utilization"].mean(skipna=False),
            "memory_bytes": of_run["gpu_memory_bytes"].max(skipna=False),
            "power_watts": of_run["gpu_power_watts"].mean(skipna=False),
            "joules_per_image": of_run["gpu_energy_joules"].sum(skipna=False) / of_run["images"].first(),
        }
    ).reset_index()
