"""Read what a record says of each worker's GPU, as columns of the table of budgets."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from analysis.study import GPU_COLUMNS, NAN
from unet_scaling.study.measurements import GpuFacts
from unet_scaling.study.record_lines import Epoch


def gpu_columns(epochs: Sequence[Epoch], workers: int) -> dict[str, NDArray[np.generic]]:
    """Return GPU_COLUMNS by worker: the energy of all these epochs, and means over them of the rest.

    NaN where one of the epochs does not say: on a CPU, without NVML, or where the driver lacks a counter.
    """
    facts = [epoch.gpu for epoch in epochs if epoch.gpu is not None]
    if len(facts) < len(epochs):
        return {name: np.full(workers, NAN) for name in GPU_COLUMNS}
    columns = {name: _by_epoch(facts, name.removeprefix("gpu_")) for name in GPU_COLUMNS}
    return {
        name: values.sum(axis=0) if name == "gpu_energy_joules" else values.mean(axis=0)
        for name, values in columns.items()
    }


def _by_epoch(facts: Sequence[Sequence[GpuFacts]], name: str) -> NDArray[np.float64]:
    """[epochs, workers]; NaN for None."""
    return np.array([[getattr(gpu, name) for gpu in workers] for workers in facts], dtype=np.float64)
