"""The physical floor of the wire: what the probed network needs for the gradients of one step.

The probe times one all-reduce of each message size, with the library and group of the training. The floor
is one message that holds all gradients: between two sizes that were timed, on the line between them;
beyond the largest, at its bandwidth; far beyond, it is not known. No line is fitted to all sizes: a network
that lets short messages pass faster than it can keep up would bend it. What overlaps with backward is not
in the wire, so that wire may also lie below the floor.
"""

from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from analysis.arrays import Array
from analysis.beside import hosts_floor_seconds
from analysis.stats import NOT_NEGATIVE, median_intervals, timed
from analysis.study import NAN, POINT, Study
from unet_scaling.study.config import RunConfig
from unet_scaling.study.record_lines import Header

FLOAT32_BYTES = 4
# So short that the bandwidth takes no part: their median time is the latency.
SHORT_BYTES = 1024
# Two sizes of the probe: each is 4 times as large as the one before it. A probe ends after a slow message.
MOST_EXTRAPOLATED = 16
MEASURED = ("wire_seconds", "floor_seconds", "latency_seconds", "bytes_per_second")
OF_HOSTS = "hosts_floor_seconds"
_BOUNDED = [f"{name}{end}" for name in MEASURED for end in ("", "_low", "_high")]
NETWORK_COLUMNS = (*POINT, "repeats", "gradient_bytes", *_BOUNDED, OF_HOSTS)


def name_of_floor(wire_seconds: float, floor_seconds: float) -> str:
    """Return "floor", or what it is where the wire lies below it, since parts of the wire were hidden."""
    return "floor" if floor_seconds <= wire_seconds else "one message"


def parameter_count(point: RunConfig) -> int:
    """Return the parameters of this point's U-Net: 487,145 at width 8, depth 5, 1 channel."""
    norm = point.model.batch_norm != "off"
    widths: list[int] = [point.model.width * 2**level for level in range(point.model.depth)]
    encoder = [_pair(*level, norm) for level in pairwise([point.data.channels, *widths])]
    decoder = [4 * deep * flat + flat + _pair(deep, flat, norm) for flat, deep in pairwise(widths)]
    head = widths[0] + 1
    return sum(encoder) + sum(decoder) + head


def _pair(inputs: int, outputs: int, norm: bool) -> int:
    """Return the parameters of two 3x3 convolutions with biases, each with weight and bias of its norm."""
    convolutions = 9 * inputs * outputs + 9 * outputs * outputs + 2 * outputs
    return convolutions + (4 * outputs if norm else 0)


def gradient_bytes(header: Header) -> int:
    """Return the bytes of one step's gradients as one worker sends them; derived where a record is older."""
    return header.gradient_bytes or FLOAT32_BYTES * parameter_count(header.config)


def latency_and_pace(sizes: Array, seconds: Array) -> tuple[float, float]:
    """Return the seconds of a short message, and the seconds per byte of the largest."""
    return float(np.median(seconds[sizes <= SHORT_BYTES])), float(seconds[-1] / sizes[-1])


def seconds_of_message(size: float, sizes: Array, seconds: Array) -> float:
    """Return what one message of `size` bytes takes, from the times of some sizes; NaN far beyond them."""
    if not reaches(size, sizes):
        return NAN
    if size <= sizes[-1]:
        return float(np.interp(size, sizes, seconds))
    return float(seconds[-1] / sizes[-1] * size)


def reaches(size: float, sizes: Array) -> bool:
    """Return whether the times of these sizes tell of a message of `size` bytes."""
    return bool(size <= MOST_EXTRAPOLATED * sizes[-1])


def network_table(study: Study) -> pd.DataFrame:
    """Return one row per point of several workers whose runs all have a probe and a budget: NETWORK_COLUMNS.

    Medians over launches with their 95 % intervals; of the floor, over those whose probe reaches so far.
    `wire_seconds` are of one step, measured.
    `hosts_floor_seconds` is what MPI alone needs between the hosts (ping_pongs.py), NaN where not timed.
    """
    runs = timed(study).runs.merge(_measured_runs(study), on="run")
    rows = [
        dict(zip(POINT, key, strict=True)) | _row(study, point)
        for key, point in runs.groupby(POINT, sort=False)
        if point[["wire_seconds", "latency_seconds"]].notna().all(axis=None)
    ]
    return pd.DataFrame(rows, columns=list(NETWORK_COLUMNS))


def _row(study: Study, point: pd.DataFrame) -> dict[str, Any]:
    """Return what the network table says of a point, from its runs."""
    header = study.headers[point["run"].iloc[0]]
    row: dict[str, Any] = {"repeats": len(point), "gradient_bytes": gradient_bytes(header)}
    samples = [point[name].dropna().to_numpy(dtype=np.float64) for name in MEASURED]
    intervals = median_intervals(samples, NOT_NEGATIVE)
    for name, sample, (low, high) in zip(MEASURED, samples, intervals, strict=True):
        median = float(np.median(sample)) if len(sample) else NAN
        row |= {name: median, f"{name}_low": low, f"{name}_high": high}
    return row | {OF_HOSTS: float(point[OF_HOSTS].median())}


def _measured_runs(study: Study) -> pd.DataFrame:
    """Return MEASURED of every run that has a probe; its wire is NaN where it has no budget."""
    first = study.budgets.drop_duplicates("run").set_index("run")
    wire = (first["wire_seconds"] / first["steps"]).to_dict()
    rows = [
        {"run": str(run), "wire_seconds": wire[run], **_floors(study, str(run), probe)}
        for run, probe in study.probes.groupby("run", observed=True)
    ]
    return pd.DataFrame(rows, columns=["run", *MEASURED, OF_HOSTS])


def _floors(study: Study, run: str, probe: pd.DataFrame) -> dict[str, float]:
    """Return what the network needs for the gradients of a run, by its own probe and between its hosts."""
    sizes, seconds = (probe[name].to_numpy(dtype=np.float64) for name in ("bytes", "median_seconds"))
    header = study.headers[run]
    size = gradient_bytes(header)
    latency, pace = latency_and_pace(sizes, seconds)
    return {
        "floor_seconds": seconds_of_message(size, sizes, seconds),
        "latency_seconds": latency,
        "bytes_per_second": 1 / pace if reaches(size, sizes) else NAN,
        OF_HOSTS: hosts_floor_seconds(study.ping_pongs, {worker.host for worker in header.workers}, size),
    }
