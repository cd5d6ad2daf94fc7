"""What a record says of the time from the start of the workers' processes to the first epoch, as columns."""

import numpy as np

from analysis.loading.measured import Columns
from unet_scaling.study.measurements import STARTUP_COLUMNS
from unet_scaling.study.record import Record


def startup_columns(record: Record) -> Columns:
    """Return one row per worker, by rank: `worker` and the seconds of each part.

    There is no row where the record has no start: one of an older format, or of a system other than Linux.
    """
    if record.startup is None:
        return {name: np.array([], dtype=np.float64) for name in ("worker", *STARTUP_COLUMNS)}
    parts = {name: np.array(getattr(record.startup, name), dtype=np.float64) for name in STARTUP_COLUMNS}
    return {"worker": np.arange(len(record.header.workers) if record.header else 0), **parts}
