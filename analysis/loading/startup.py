"""The seconds from the start of each worker's process to its first epoch, from the record, as columns."""

import numpy as np

from analysis.loading.budget_columns import Columns
from unet_scaling.study.measurements import STARTUP_COLUMNS
from unet_scaling.study.record import Record


def startup_columns(record: Record) -> Columns:
    """Return one row per worker, by rank: its number and the seconds of each part.

    There is no row where the record has no start: an older format, or a system other than Linux.
    """
    if record.startup is None:
        return {name: np.array([], dtype=np.float64) for name in ("worker", *STARTUP_COLUMNS)}
    columns: Columns = {
        name: np.array(getattr(record.startup, name), dtype=np.float64) for name in STARTUP_COLUMNS
    }
    return {"worker": np.arange(len(columns["imports_seconds"]))} | columns
