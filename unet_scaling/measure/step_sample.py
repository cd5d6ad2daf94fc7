"""steps.parquet: the phases of single steps, all of a short run, a uniform sample of a long one.

One row per epoch, step and worker; seconds. A step is kept with all its workers or not at all. Up to
MOST_SAMPLED_ROWS rows every step is kept; beyond, a reservoir (Vitter 1985, algorithm R, seeded) in which
each step seen so far has the same chance.
"""

import io
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from unet_scaling.measure.phases import Seconds
from unet_scaling.study.measurements import PHASE_COLUMNS, Phase
from unet_scaling.study.random_streams import STEP_SAMPLE_STREAM

# About 1 MB.
MOST_SAMPLED_ROWS = 20_000

_Column = npt.NDArray[np.generic]


class StepSample:
    """A uniform sample of all steps added to it; only worker 0 has one."""

    def __init__(self, workers: int, seed: int, most_rows: int = MOST_SAMPLED_ROWS) -> None:
        self._capacity = max(1, most_rows // workers)
        self._random = np.random.default_rng([seed, STEP_SAMPLE_STREAM])
        self._seen = 0
        self._kept: dict[int, tuple[int, int, Seconds]] = {}

    def add(self, epoch: int, first_step: int, phases: Seconds) -> None:
        """Add steps of an epoch in their order: seconds [workers, steps, phases]."""
        for offset in range(phases.shape[1]):
            self._seen += 1
            full = self._seen > self._capacity
            slot = int(self._random.integers(self._seen)) if full else self._seen - 1
            if slot < self._capacity:
                self._kept[slot] = (epoch, first_step + offset, phases[:, offset].copy())

    def parquet(self) -> bytes | None:
        """Return the file's content, sorted by epoch, step and worker; None where no step was added."""
        if not self._kept:
            return None
        # Takes seconds to import, and is needed once, after the last epoch.
        import pyarrow
        from pyarrow import parquet

        columns = self._columns()
        table = pyarrow.table({name: _arrow_array(pyarrow, column) for name, column in columns.items()})
        facts = {"format": "1", "steps_seen": str(self._seen), "steps_kept": str(len(self._kept))}
        buffer = io.BytesIO()
        parquet.write_table(table.replace_schema_metadata(facts), buffer)
        return buffer.getvalue()

    def _columns(self) -> dict[str, _Column]:
        kept = sorted(self._kept.values(), key=lambda step: step[:2])
        phases = np.stack([seconds for _, _, seconds in kept])
        positions = [(epoch, step) for epoch, step, _ in kept]
        return _key_columns(positions, workers=phases.shape[1]) | _phase_columns(phases)


def _key_columns(positions: Sequence[tuple[int, int]], workers: int) -> dict[str, _Column]:
    """Return epoch, step and worker of every row, given epoch and step of each step that was kept."""
    epochs, steps = zip(*positions, strict=True)
    return {
        "epoch": np.repeat(np.array(epochs, dtype=np.int32), workers),
        "step": np.repeat(np.array(steps, dtype=np.int64), workers),
        "worker": np.tile(np.arange(workers, dtype=np.int32), len(positions)),
    }


def _phase_columns(phases: Seconds) -> dict[str, _Column]:
    """Return the columns of seconds [steps, workers, phases]; the wire is the same for all workers."""
    columns: dict[str, _Column] = {
        name: phases[:, :, phase].ravel() for phase, name in enumerate(PHASE_COLUMNS)
    }
    wire = phases[:, :, Phase.SYNC].min(axis=1)
    return columns | {"wire_seconds": np.repeat(wire, phases.shape[1])}


def _arrow_array(pyarrow: ModuleType, column: _Column) -> Any:  # noqa: ANN401, imported late
    # From buffers: given an array, pyarrow would first import pandas, while all workers wait.
    arrow_type = pyarrow.from_numpy_dtype(column.dtype)
    return pyarrow.Array.from_buffers(arrow_type, len(column), [None, pyarrow.py_buffer(column)])
