"""MPI between the hosts of a study, as the ping-pongs of its jobs timed it, and the floor that it gives.

Over H hosts an all-reduce moves 2 (H-1)/H of the gradients through the link of each host, in 2 (H-1)
rounds: no library needs less than that over the bandwidth of a pair, and the latency of each round.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.study import NAN, PING_PONG_COLUMNS
from unet_scaling.measure.ping_pong import PingPong, read_ping_pong
from unet_scaling.study.study_file import PING_PONG_NAME


@dataclass(frozen=True)
class Link:
    """What carries messages between two workers: the latency of one, and bytes per second."""

    latency_seconds: float
    bytes_per_second: float

    def all_reduce(self, members: int, size: float) -> float:
        """Return the seconds of a ring all-reduce of `size` bytes (Thakur et al. 2005)."""
        messages = 2 * (members - 1)
        return messages * (self.latency_seconds + size / members / self.bytes_per_second)


def read_ping_pongs(study: Path) -> tuple[pd.DataFrame, list[str]]:
    """Return every pair that was timed, by PING_PONG_COLUMNS, and the files that cannot be read."""
    rows: list[Mapping[str, object]] = []
    problems = []
    for path in sorted(study.glob(f"*/{PING_PONG_NAME}")):
        place = path.parent.name
        try:
            rows += _rows(place, read_ping_pong(path))
        except (OSError, ValueError) as error:
            problems.append(f"{place}: {PING_PONG_NAME} cannot be read: {str(error).splitlines()[0]}")
    return pd.DataFrame(rows, columns=list(PING_PONG_COLUMNS)), problems


def _rows(place: str, found: PingPong) -> Iterator[Mapping[str, object]]:
    for pair in found.pairs:
        values = (place, *sorted(pair.hosts), pair.medium, pair.latency_seconds, pair.bytes_per_second)
        yield dict(zip(PING_PONG_COLUMNS, values, strict=True))


def pair_table(ping_pongs: pd.DataFrame) -> pd.DataFrame:
    """Return one row per pair of hosts: medians over its measurements, and how many there are."""
    columns = ["latency_seconds", "bytes_per_second"]
    pairs = ping_pongs.groupby(["host", "other_host", "medium"], sort=True)[columns]
    return pairs.median().assign(measurements=pairs.size()).reset_index()


def hosts_floor_seconds(ping_pongs: pd.DataFrame, hosts: set[str], size: int) -> float:
    """Return what an all-reduce of `size` bytes needs at least between hosts; NaN where no pair was timed."""
    pairs = ping_pongs[
        ping_pongs["host"].isin(hosts)
        & ping_pongs["other_host"].isin(hosts)
        & (ping_pongs["medium"] == "network")
    ]
    if len(hosts) < 2 or pairs.empty:
        return NAN
    latency, bandwidth = (float(np.median(pairs[name])) for name in ("latency_seconds", "bytes_per_second"))
    return Link(latency, bandwidth).all_reduce(len(hosts), float(size))
