"""Single step times of every run, from the files beside the records, as quantiles per worker."""

import io
from pathlib import Path

import pandas as pd

from analysis.loading.runs import name_of
from analysis.processes import parallel_map
from analysis.study import STEP_COLUMNS, STEP_QUANTILES
from unet_scaling.measure.step_sample import STEPS_NAME
from unet_scaling.study.files import read_verified
from unet_scaling.study.measurements import PHASE_COLUMNS

# Files that one process reads at a time; fewer are not worth starting another process.
FILES_AT_ONCE = 50

RunFile = tuple[str, Path, frozenset[int]]


def read_steps(study: Path, epochs: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Return STEP_COLUMNS, a row per worker of every run with a step file, and why files cannot be read.

    `epochs` are those of the runs in use; steps of their warm-up are left out. A run whose budget was off
    has no step file and no row.
    """
    warm_up = epochs[epochs["warmup"].astype(bool)].groupby("run", observed=True)["epoch"]
    skipped = {str(run): frozenset(numbers) for run, numbers in warm_up}
    paths = {name_of(path.parent): path for path in sorted(study.glob(f"*/{STEPS_NAME}"))}
    used = [
        (run, paths[run], skipped.get(run, frozenset())) for run in epochs["run"].unique() if run in paths
    ]
    results = list(parallel_map(_read, used, chunk=FILES_AT_ONCE))
    tables = [result for result in results if isinstance(result, pd.DataFrame) and len(result)]
    table = pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=list(STEP_COLUMNS))
    return table, [result for result in results if isinstance(result, str)]


def _read(run_file: RunFile) -> pd.DataFrame | str:
    """Return the rows of a run, or why its file cannot be read."""
    run, path, skipped = run_file
    try:
        steps = pd.read_parquet(io.BytesIO(read_verified(path)))
        return _quantiles(steps[~steps["epoch"].isin(skipped)]).assign(run=run)[list(STEP_COLUMNS)]
    except (OSError, ValueError, KeyError) as error:
        return f"{run}: {STEPS_NAME} cannot be read: {str(error).splitlines()[0]}"


def _quantiles(steps: pd.DataFrame) -> pd.DataFrame:
    """Return one row per worker: quantiles of whole steps, and the median of its own work, all but sync."""
    seconds = steps[list(PHASE_COLUMNS)].sum(axis=1)
    work = seconds - steps["sync_seconds"]
    of_worker = seconds.groupby(steps["worker"])
    columns = {name: of_worker.quantile(share) for name, share in STEP_QUANTILES.items()}
    table = pd.DataFrame(columns)
    table["steps"] = of_worker.size()
    table["work_seconds"] = work.groupby(steps["worker"]).median()
    return table.reset_index()
