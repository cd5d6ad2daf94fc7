"""Time MPI itself between the hosts of a job, in a launch of its own beside the training runs.

    mpiexec -n HOSTS python -m unet_scaling.measure.ping_pong OUTPUT.json

One rank of each host takes part, one pair at a time: a message goes there and back, and half the time
is counted. On a single host two of its ranks are measured, and the file says that this is shared memory.
A launch of its own, so that native DDP never initialises MPI.
"""

import itertools
import json
import os
import random
import socket
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from unet_scaling.base.command_line import CommandLine
from unet_scaling.base.errors import UserError, run_program
from unet_scaling.base.files import read_json_with_checksum, write_json_with_checksum
from unet_scaling.base.machine import clock_seconds, machine, wall_seconds
from unet_scaling.base.validation import StrictModel
from unet_scaling.group.identity import identify
from unet_scaling.group.watchdog import blocking, thread_ids

PING_PONG_BYTES = tuple(4**power for power in range(0, 13))  # 1 B ... 16 MiB
# A median of fewer repeats is one outlier; more than these make no figure better.
FEWEST_ROUND_TRIP_REPEATS = 3
MOST_ROUND_TRIP_REPEATS = 100
ROUND_TRIP_SECONDS_PER_SIZE = 0.1
# No larger message follows one that took longer than this: the next would take four times as long.
LONGEST_ONE_WAY_SECONDS = 0.2
# Beyond so many hosts, pairs grow faster than what they show.
ALL_PAIRS_UP_TO = 8
# Fixed: every measurement of a cluster times the same pairs.
PAIR_CHOICE_SEED = 1


class HostPair(StrictModel):
    """Two ranks and the one-way times between them, by message size."""

    ranks: tuple[NonNegativeInt, NonNegativeInt]
    hosts: tuple[str, str]
    medium: Literal["network", "shared memory"]
    bytes: list[PositiveInt]
    repeats: list[PositiveInt]
    median_seconds: list[PositiveFloat] = Field(description="half of there and back")
    minimum_seconds: list[PositiveFloat]
    latency_seconds: PositiveFloat = Field(description="median of the smallest message")
    bytes_per_second: PositiveFloat = Field(description="of the largest message, by its median")


class PingPong(StrictModel):
    """The content of the file."""

    format: Literal[1] = 1
    mpi: str = Field(description="the library, in its own words")
    hosts: list[str]
    pairs: list[HostPair]


def write_ping_pong(path: Path, ping_pong: PingPong) -> None:
    write_json_with_checksum(path, ping_pong.model_dump(mode="json"))


def read_ping_pong(path: Path) -> PingPong:
    """Read the file; ValueError where it is damaged, OSError where it cannot be read."""
    return PingPong.model_validate_json(json.dumps(read_json_with_checksum(path)))


def choose_pairs(hosts: Sequence[str]) -> list[tuple[int, int]]:
    """Choose the ranks to pair, given the host of each: the first rank of every host represents it.

    All pairs of up to 8 hosts; of more, a ring and as many random pairs again (a fixed seed).
    Of one host, its first two ranks. Raises UserError where there is only one rank.
    """
    if len(hosts) < 2:
        raise UserError(
            "a ping-pong needs two processes: mpiexec -n 2 python -m unet_scaling.measure.ping_pong ..."
        )
    first = sorted({host: hosts.index(host) for host in hosts}.values())
    if len(first) == 1:
        return [(0, 1)]
    pairs = list(itertools.combinations(first, 2))
    if len(first) <= ALL_PAIRS_UP_TO:
        return pairs
    ring = {(min(pair), max(pair)) for pair in zip(first, [*first[1:], first[0]], strict=True)}
    others = [pair for pair in pairs if pair not in ring]
    # A choice to repeat, not a secret.
    generator = random.Random(PAIR_CHOICE_SEED)  # noqa: S311
    return sorted(ring) + sorted(generator.sample(others, min(len(others), len(first))))


def measure(
    world: Any,  # noqa: ANN401
    pair: tuple[int, int],
    hosts: Sequence[str],
    sizes: Sequence[int],
) -> HostPair | None:
    """Time one pair on an MPI communicator; return the result on its first rank, None on the second."""
    rank = world.Get_rank()
    leads = rank == pair[0]
    other = pair[1] if leads else pair[0]
    rows: list[tuple[int, int, float, float]] = []
    for size in sizes:
        count, median, minimum = _one_way_seconds(world, other, size, leads)
        rows.append((size, count, median, minimum))
        # The slower of both: they must end at the same size.
        if max(median, float(world.sendrecv(median, other, source=other))) > LONGEST_ONE_WAY_SECONDS:
            break
    if not leads:
        return None
    sent, counts, medians, minima = (list(column) for column in zip(*rows, strict=True))
    return HostPair(
        ranks=pair,
        hosts=(hosts[rank], hosts[other]),
        medium="shared memory" if hosts[rank] == hosts[other] else "network",
        bytes=sent,
        repeats=counts,
        median_seconds=medians,
        minimum_seconds=minima,
        latency_seconds=medians[0],
        bytes_per_second=sent[-1] / medians[-1],
    )


def _one_way_seconds(world: Any, other: int, size: int, leads: bool) -> tuple[int, float, float]:  # noqa: ANN401
    """Return repeats, median and minimum; the first round trip warms up and says how many to make."""
    message = np.zeros(size, dtype=np.uint8)

    def round_trip() -> float:
        begin = clock_seconds()
        for turn in (leads, not leads):
            world.Send(message, dest=other) if turn else world.Recv(message, source=other)
        return clock_seconds() - begin

    fitting = int(ROUND_TRIP_SECONDS_PER_SIZE / wall_seconds(round_trip()))
    own_choice = min(MOST_ROUND_TRIP_REPEATS, max(FEWEST_ROUND_TRIP_REPEATS, fitting))
    other_choice = int(world.sendrecv(own_choice, other, source=other))
    repeats = own_choice if leads else other_choice
    times = [round_trip() / 2 for _ in range(repeats)]
    return repeats, statistics.median(times), min(times)


def main() -> None:
    parser = CommandLine("python -m unet_scaling.measure.ping_pong", __doc__)
    parser.add_argument("output", type=Path, help="the JSON file to write")
    output = parser.parse_args().output
    # Importing it initialises MPI.
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    own = machine()
    if own.is_slowed:  # as a worker of this rank is
        identity = identify(os.environ)
        cores = own.dealt_cores(identity.local_rank) or []
        os.sched_setaffinity(0, own.processors(identity.rank, cores))
        own.enter_quota(identity.rank, len(cores), thread_ids())
    hosts = world.allgather(socket.gethostname())
    pairs = measure_pairs(world, hosts)
    if world.Get_rank() == 0:
        library = MPI.Get_library_version().strip("\0 \n").splitlines()[0]
        write_ping_pong(output, PingPong(mpi=library, hosts=sorted(set(hosts)), pairs=pairs))


def measure_pairs(
    world: Any,  # noqa: ANN401
    hosts: Sequence[str],
    sizes: Sequence[int] = PING_PONG_BYTES,
) -> list[HostPair]:
    """Return the result of every pair, on every rank."""
    pairs: list[HostPair] = []
    for ranks in choose_pairs(hosts):
        with blocking:
            # One pair at a time: the others must not use the network.
            world.Barrier()
            own = measure(world, ranks, hosts, sizes) if world.Get_rank() in ranks else None
            pairs += filter(None, world.allgather(own))
    return pairs


if __name__ == "__main__":
    run_program(main)
