"""The gradient norms of a record as columns: one row per sampled step."""

import numpy as np

from analysis.loading.budget_columns import Columns
from unet_scaling.study.record import Record


def norm_columns(record: Record) -> Columns:
    """Return GRADIENT_NORM_COLUMNS without the run's name, a row per sampled step in their order."""
    epochs = [(epoch.epoch, epoch.gradient_norms) for epoch in record.epochs if epoch.gradient_norms]
    own = [value for _, norms in epochs for value in norms.own_squared]
    mean = [value for _, norms in epochs for value in norms.mean_squared]
    numbers = [number for number, norms in epochs for _ in norms.own_squared]
    return {
        "epoch": np.array(numbers, dtype=np.int64),
        "own_squared": np.array(own, dtype=np.float64),
        "mean_squared": np.array(mean, dtype=np.float64),
    }
