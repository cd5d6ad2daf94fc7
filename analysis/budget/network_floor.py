"""The physical floor of the wire: what the probed network needs for the gradients of one step.

The probe times one all-reduce of each message size, with the library and group of the training. The floor
is one message that holds all gradients: between two sizes that were timed, on the line between them;
beyond the largest, at its bandwidth. No line is fitted to all sizes: a network that lets short messages
pass faster than it can keep up would bend it. What overlaps with backward is not in the wire, so that
wire may also lie below the floor.
"""

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.loading.ping_pongs import hosts_floor_seconds
from analysis.statistics.interval_batches import median_intervals
from analysis.statistics.intervals import NOT_NEGATIVE
from analysis.statistics.timed import timed
from analysis.study import POINT, Study
from unet_scaling.study.config import RunConfig

FLOAT32_BYTES = 4
# Messages up to this size tell the latency.
SHORT_BYTES = 1024
MEASURED = ("wire_seconds", "floor_seconds", "latency_seconds", "bytes_per_second")
OF_HOSTS = "hosts_floor_seconds"
_BOUNDED = [f"{name}{end}" for name in MEASURED for end in ("", "_low", "_high")]
NETWORK_COLUMNS = (*POINT, "repeats", "gradient_bytes", *_BOUNDED, OF_HOSTS)

Array = NDArray[np.float64]


def name_of_floor(wire_seconds: float, floor_seconds: float) -> str:
    """Return "floor", or what it is where the wire lies below it, since parts of the wire were hidden."""
    return "floor" if floor_seconds <= wire_seconds else "one message"


def parameter_count(point: RunConfig) -> int:
    """Parameters of this point's U-Net (unet_scaling/model.py): 487,145 at width 8, depth 5, 1 channel."""
    widths: list[int] = [point.model.width * 2**level for level in range(point.model.depth)]
    per_norm = 0 if point.model.batch_norm == "off" else 2

    def pair(inputs: int, outputs: int) -> int:
        convolutions = 9 * inputs * outputs + 9 * outputs * outputs + 2 * outputs
        return convolutions + 2 * per_norm * outputs

    encoder = sum(pair(*each) for each in zip([point.data.channels, *widths[:-1]], widths, strict=True))
    levels = list(zip(widths[1:], widths[:-1], strict=True))
    upward = sum(4 * deep * flat + flat + pair(deep, flat) for deep, flat in levels)
    return encoder + upward + widths[0] + 1


def gradient_bytes(point: RunConfig) -> int:
    """Of one step and worker: gradients are float32 at every precision."""
    return FLOAT32_BYTES * parameter_count(point)


def latency_and_pace(sizes: Array, seconds: Array) -> tuple[float, float]:
    """Seconds of a short message, and seconds per byte of the largest."""
    return float(np.median(seconds[sizes <= SHORT_BYTES])), float(seconds[-1] / sizes[-1])


def seconds_of_message(wanted: float, sizes: Array, seconds: Array) -> float:
    """What one message of so many bytes takes, from the times of some sizes."""
    if wanted <= sizes[-1]:
        return float(np.interp(wanted, sizes, seconds))
    return float(seconds[-1] / sizes[-1] * wanted)


def network_table(study: Study) -> pd.DataFrame:
    """One row per point of several workers whose runs all have a probe and a budget: NETWORK_COLUMNS.

    Medians over launches with their 95 % intervals. `wire_seconds` are of one step, measured.
    `hosts_floor_seconds` is what MPI alone needs between the hosts (ping_pongs.py), NaN where not timed.
    """
    runs = timed(study).runs.merge(_of_runs(study), on="run")
    rows: list[dict[str, Any]] = []
    for key, of in runs.groupby(POINT, sort=False):
        if of[list(MEASURED)].notna().all(axis=None):
            point = study.headers[of["run"].iloc[0]].config
            values = [of[name].to_numpy(dtype=np.float64) for name in MEASURED]
            row = dict(zip(POINT, key, strict=True))
            own = {"repeats": len(of), "gradient_bytes": gradient_bytes(point)}
            rows.append(row | own | _medians(values) | {OF_HOSTS: float(of[OF_HOSTS].median())})
    return pd.DataFrame(rows, columns=list(NETWORK_COLUMNS))


def _medians(values: list[Array]) -> dict[str, float]:
    row: dict[str, float] = {}
    intervals = median_intervals(values, NOT_NEGATIVE)
    for name, each, (low, high) in zip(MEASURED, values, intervals, strict=True):
        row |= {name: float(np.median(each)), f"{name}_low": low, f"{name}_high": high}
    return row


def _of_runs(study: Study) -> pd.DataFrame:
    """MEASURED of every run that has a probe; its wire is NaN where it has no budget."""
    first = study.budgets.drop_duplicates("run").set_index("run")
    wire = (first["wire_seconds"] / first["steps"]).to_dict()
    rows = []
    for run, probe in study.probes.groupby("run", observed=True):
        sizes, seconds = (probe[name].to_numpy(dtype=np.float64) for name in ("bytes", "median_seconds"))
        latency, pace = latency_and_pace(sizes, seconds)
        header = study.headers[str(run)]
        size, hosts = gradient_bytes(header.config), {worker.host for worker in header.workers}
        floor = seconds_of_message(size, sizes, seconds)
        of_hosts = hosts_floor_seconds(study.ping_pongs, hosts, size)
        rows.append((str(run), wire[run], floor, latency, 1 / pace, of_hosts))
    return pd.DataFrame(rows, columns=["run", *MEASURED, OF_HOSTS])
