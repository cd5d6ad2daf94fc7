"""What the workers of a doctor's launch report, what is wrong with it, and how that is shown.

Each worker writes one JSON file into a folder that all nodes share, before it joins anything and again after
each stage, so that it tells how far a worker came that did not come back. Faults are that with which no study
should start; warnings cost time only. Imported on login nodes: needs neither torch nor a network.
"""

import json
import math
import re
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from rich import box
from rich.console import Console
from rich.table import Table

from unet_scaling.base.files import read_json_with_checksum
from unet_scaling.base.texts import count
from unet_scaling.base.validation import StrictModel
from unet_scaling.format.facts import NODE_VERSIONS
from unet_scaling.format.record import different_versions, shared_devices
from unet_scaling.format.record_lines import WorkerFacts
from unet_scaling.group.gpus import cure_of_sharing
from unet_scaling.group.identity import LAUNCHERS, LOOPBACK
from unet_scaling.group.rendezvous import WITHOUT_NCCL
from unet_scaling.measure.ping_pong import HostPair

REPORT_PATTERN = "worker.*.json"
GLOO_VARIABLE = "GLOO_SOCKET_IFNAME"
# Slower than this share of the median node, it delays every step of all others.
SLOW_NODE_SHARE = 0.8
# A message takes so many times as long as between the fastest pair; noise of the fastest repeat is far less.
SLOW_LINK_RATIO = 2.0
# Latencies of one network differ by the hops between hosts.
SLOW_LATENCY_RATIO = 5.0
# Clocks that NTP sets differ by a hundredth of this.
LARGEST_CLOCK_OFFSET_SECONDS = 1.0
# More pairs than these say no more to a reader; the slowest come first.
MOST_PAIRS_SHOWN = 12
# How Intel MPI, MPICH, Open MPI and srun name the first worker that ended. MPICH names another's process id.
DEATHS = (
    r"RANK (?P<rank>\d+) PID \d+ RUNNING AT (?P<host>\S+)\s+=\s+KILLED BY SIGNAL: (?P<how>\d+)",
    r"PID \d+ RUNNING AT (?P<host>\S+)[^()]*\(signal (?P<how>\d+)\)",
    r"process rank (?P<rank>\d+) with PID \d+ on node (?P<host>\S+) exited on\s+signal (?P<how>\d+)",
    r"srun: error: (?P<host>\S+): tasks? (?P<rank>\d+)[\d,-]*: (?P<how>[^\n]+)",
)
# How a launcher tells of a worker that reported its own failure, and of one that the launcher ended.
ORDERLY_ENDS = ("Exited", "Terminated", "15")
MPI_CURE = 'let srun speak to MPI (launcher_arguments = ["--mpi=pmi2"]), or start with its own mpiexec'
LARGE_MESSAGE_STOPS = "8 bytes pass, 100 kB do not: a switch drops large packets; see the MTU (`ip link`)"


class WorkerReport(StrictModel):
    """One worker: who it is by its launcher, where it runs, and what it measured so far."""

    # The last stage that it completed, in their order.
    stage: Literal[
        "started", "joined by torch", "exchanged small messages", "measured", "joined by MPI", "finished"
    ] = "started"
    problem: str = Field("", description="why it got no further")
    rank: NonNegativeInt
    size: PositiveInt = Field(description="of its group, as the launcher says")
    launcher: str
    launcher_variables: dict[str, str] = Field(description="what launchers tell a rank by, as far as set")
    facts: WorkerFacts
    host_cores: PositiveInt
    versions: dict[str, str]
    addresses: dict[str, str] = Field(description="IPv4, by interface")
    interface: str = Field(description="over which gloo talks, whether or not it exists; empty for none")
    own_address: str = Field(description="what the host's own name resolves to")
    joined_workers: PositiveInt | None = Field(None, description="in torch's group")
    mpi_workers: PositiveInt | None = Field(None, description="in MPI's group")
    clock_offset_seconds: float | None = Field(None, description="from the clock of worker 0")
    clock_error_seconds: NonNegativeFloat | None = Field(None, description="of that offset, at most")
    operations_per_second: PositiveFloat | None = Field(None, description="of a product of two matrices")
    horovod_built: str = Field("", description="with what Horovod was built; empty where it does not load")
    pairs: list[HostPair] = Field([], description="by worker 0 only")

    @property
    def host(self) -> str:
        return self.facts.host

    @property
    def address(self) -> str:
        """Return the address of the interface over which gloo talks; empty where it has none."""
        return self.addresses.get(self.interface, "")

    @property
    def place(self) -> str:
        return f"worker {self.rank} on {self.host}"


Reports = Sequence[WorkerReport]


@dataclass(frozen=True)
class Findings:
    faults: tuple[str, ...]
    warnings: tuple[str, ...]


def read_reports(folder: Path) -> list[WorkerReport]:
    """Return the reports in the folder by rank, host and process. Raises ValueError for a damaged one."""
    paths = sorted(folder.glob(REPORT_PATTERN))
    reports = [WorkerReport.model_validate_json(json.dumps(read_json_with_checksum(path))) for path in paths]
    return sorted(reports, key=lambda report: (report.rank, report.host, report.facts.process))


def launch_findings(
    reports: Reports, workers: int, cores_wanted: int | None = None, output: str = ""
) -> Findings:
    """Return what is wrong with a launch of so many workers, the likeliest cause first.

    `cores_wanted` is what the cluster file promises each worker, `output` what the launcher printed.
    """
    death = first_death(reports, workers, output)
    faults = (
        *death,
        *wrong_groups(reports, workers),
        *wrong_interfaces(reports),
        # Problems of the workers that survive follow from a death.
        *([] if death else problems(reports)),
        *wrong_mpi_groups(reports, workers),
        *differences(reports),
    )
    warnings = (
        *fewer_cores(reports, cores_wanted),
        *horovod_without_nccl(reports),
        *slow_links([pair for report in reports for pair in report.pairs]),
        *slow_nodes_and_wrong_clocks(reports),
    )
    return Findings(faults, warnings)


def first_death(reports: Reports, workers: int, output: str) -> list[str]:
    """Find the first worker that a signal ended, in the words of its launcher, which then ends the others."""
    found = next((match for pattern in DEATHS if (match := re.search(pattern, output))), None)
    if found is None or found["how"].startswith(ORDERLY_ENDS) or any(map(_lost_variable, reports)):
        return []
    host, how = found["host"], found["how"]
    there = [str(report.rank) for report in reports if report.host == host]
    alone = there[0] if len(there) == 1 and len(reports) == workers else None
    rank = found.groupdict().get("rank") or alone
    place = f"worker {rank} on {host}" if rank else f"a worker on {host}"
    name = f"signal {how} ({signal.Signals(int(how)).name})" if how.isdecimal() else how
    cause = ""
    if "oom" in output.lower() or how == "Out Of Memory":
        cause = ": it needs more memory than its job has; ask for more (options = ['--mem=...'])"
    elif how in ("9", "Killed"):
        cause = f": from outside, as where memory runs out (`dmesg` of {host}), or by hand"
    return [f"{place} was the first to end, by {name}{cause}"]


def wrong_groups(reports: Reports, workers: int) -> Iterator[str]:
    """Find missing workers, groups of another size than asked for, and several groups of that size."""
    if len(reports) < workers:
        hosts = ", ".join(sorted({report.host for report in reports})) or "no host"
        cure = "the others did not start, or share no folder with this machine; see the output"
        yield f"{len(reports)} of {workers} workers reported, from {hosts}: {cure}"
    apart = [report for report in reports if report.size != workers]
    if apart:
        sizes = Counter(report.size for report in apart)
        groups = " and ".join(_groups(size, number) for size, number in sizes.items())
        wanted = " or ".join(f"{launcher.rank} and {launcher.size}" for launcher in LAUNCHERS)
        told = f"the launcher set {_told(apart[0])} on {apart[0].host}, a worker needs {wanted}"
        why = _lost_variable(apart[0]) or f"{told}; use srun or mpiexec"
        yield f"{groups} instead of 1 group of {workers}: {why}"
    together = [report for report in reports if report.size == workers]
    times = Counter(report.rank for report in together)
    twice = [report for report in together if times[report.rank] > 1]
    if twice:
        hosts = " and ".join([report.host for report in twice if report.rank == twice[0].rank][:2])
        found = f"{len(together)} workers reported, {workers} were asked for, two are worker {twice[0].rank}"
        yield f"{found} (on {hosts}): let the launcher start one task for each worker"


def _groups(size: int, reported: int) -> str:
    """Return "2 groups of 1"; a group of which some reported is one all the same."""
    return f"{count(math.ceil(reported / size), 'group')} of {size}"


def _lost_variable(report: WorkerReport) -> str:
    """Name the variable of a launcher that set the other one of rank and size; empty where none is lost."""
    pairs = [{launcher.rank, launcher.size} for launcher in LAUNCHERS]
    told = {name for pair in pairs if pair <= report.launcher_variables.keys() for name in pair}
    for pair in pairs:
        lost = pair - report.launcher_variables.keys()
        if len(lost) == 1 and not pair & told:
            return f"{lost.pop()} is not set on {report.host}, with {_told(report)}; do not unset it"
    return ""


def _told(report: WorkerReport) -> str:
    return ", ".join(f"{name}={value}" for name, value in report.launcher_variables.items()) or "none"


def wrong_interfaces(reports: Reports) -> Iterator[str]:
    """Find interfaces that do not exist, or that no other host can reach."""
    hosts = _first_by_host(reports)
    for host, report in hosts.items():
        known = ", ".join(f"{name} ({address})" for name, address in report.addresses.items())
        setting = f"{GLOO_VARIABLE}={report.interface}"
        if report.interface and not report.address:
            yield f"{setting}: {host} has no such interface with an address; it has {known}"
        elif len(hosts) > 1 and (report.address or "127.").startswith(LOOPBACK):
            cure = f": change {setting}"
            if report.interface != "lo" or report.own_address.startswith(LOOPBACK):
                name = f"since its own name resolves to {report.own_address or 'nothing'}"
                cure = f", {name}: set {GLOO_VARIABLE} in [environment] of the cluster file"
            yield f"{host} would talk over its loopback{cure}; it has {known}"


def problems(reports: Reports) -> list[str]:
    """Return why workers got no further, each text once with the first worker that says so."""
    first: dict[str, WorkerReport] = {}
    for report in reports:
        if report.problem:
            first.setdefault(report.problem, report)
    told = [text if text.startswith("worker ") else f"{own.place}: {text}" for text, own in first.items()]
    small = [report for report in reports if report.stage == "exchanged small messages"]
    if small:
        own = next((report for report in small if report.problem), small[0])
        told.insert(0, f"{own.place}: {LARGE_MESSAGE_STOPS}")
    silent = [report for report in reports if not report.problem and report.stage != "finished"]
    if told or not silent:
        return told
    # Nobody says why: a library ended the process itself, or kept it from saying so.
    step = "MPI did not start" if silent[0].stage == "measured" else f"it ended after it {silent[0].stage}"
    return [f"{silent[0].place}: {step}; {_lost_variable(silent[0]) or 'see the output of the launch'}"]


def wrong_mpi_groups(reports: Reports, workers: int) -> list[str]:
    """Find workers that MPI, and Horovod with it, does not take for one group."""
    sizes = Counter(report.mpi_workers for report in reports if report.mpi_workers not in (None, workers))
    groups = [_groups(size, number) for size, number in sizes.items() if size]
    return [f"MPI makes {each} instead of 1 group of {workers}: {MPI_CURE}" for each in groups[:1]]


def differences(reports: Reports) -> Iterator[str]:
    """Find versions that are not the same everywhere, but for a node's own, and what two workers own."""
    numbered = [report.facts.model_copy(update={"worker": number}) for number, report in enumerate(reports)]
    versions = [
        {name: version for name, version in report.versions.items() if name not in NODE_VERSIONS}
        for report in reports
    ]
    for text in different_versions(numbered, versions):
        yield f"{text}: load the same environment on every node"
    # Known of those which joined, and took theirs.
    shared = shared_devices([report.facts for report in reports if report.joined_workers])
    if shared:
        more = f" (and {len(shared) - 1} more)" if shared[1:] else ""
        on_gpus = any(report.facts.device_uuid for report in reports)
        yield f"{shared[0]}{more}: {cure_of_sharing(on_gpus)}"


def fewer_cores(reports: Reports, wanted: int | None) -> Iterator[str]:
    """Find workers with fewer cores than others or than the cluster file promises, and smaller hosts."""
    cores = {report.place: len(report.facts.cores) for report in reports}
    most = max([*cores.values(), wanted or 0], default=0)
    fewer = [f"{place} has {count(number, 'core')}" for place, number in cores.items() if number < most]
    if fewer:
        promised = f"the cluster file says {wanted}" if most == wanted else f"others have {most}"
        yield f"{', '.join(fewer)}; {promised}: ask for equal nodes, or lower cores_per_worker"
    hosts = {host: report.host_cores for host, report in _first_by_host(reports).items()}
    largest = max(hosts.values(), default=0)
    smaller = [f"{host} is a host of {count(n, 'core')}" for host, n in hosts.items() if n < largest]
    if smaller:
        yield f"{', '.join(smaller)}; others have {largest}: ask for equal nodes"


def horovod_without_nccl(reports: Reports) -> list[str]:
    on_gpus = [report for report in reports if report.facts.device_uuid and report.horovod_built]
    lacking = [report.place for report in on_gpus if "NCCL" not in report.horovod_built]
    return [f"{place}: {WITHOUT_NCCL}" for place in lacking[:1]]


def slow_links(pairs: Sequence[HostPair]) -> list[str]:
    """Return a sentence for each pair with a slow link, and one for a host at the end of several."""
    linked = [pair for pair in pairs if pair.medium == "network"]
    slow = {pair.hosts: sentence for pair in linked if (sentence := _slower(pair, linked))}
    ends = Counter(host for hosts in slow for host in hosts)
    links = Counter(host for pair in linked for host in pair.hosts)
    suspects = [host for host, number in ends.items() if 1 < number == links[host]]
    return [
        *slow.values(),
        *(f"every link of {host} is slow: look at its port or cable" for host in suspects),
    ]


def _slower(pair: HostPair, pairs: Sequence[HostPair]) -> str:
    """Return how a pair is slower than the fastest, in the same message; empty where it is not."""
    for row, ratio in ((len(pair.bytes) - 1, SLOW_LINK_RATIO), (0, SLOW_LATENCY_RATIO)):
        own = pair.minimum_seconds[row]
        fastest = min(other.minimum_seconds[row] for other in pairs if len(other.bytes) > row)
        if own > ratio * fastest:
            times = f"{1e3 * own:.3g} ms, between the fastest pair {1e3 * fastest:.3g} ms"
            return f"the link {' - '.join(pair.hosts)} is slow: {pair.bytes[row]:,} bytes take {times}"
    return ""


def node_speeds(reports: Reports) -> dict[str, float]:
    """Return the operations per second of each host's slowest worker, slowest host first."""
    measured = [report for report in reports if report.operations_per_second is not None]
    fastest_first = sorted(measured, key=lambda report: report.operations_per_second or 0, reverse=True)
    slowest = {report.host: report.operations_per_second or 0 for report in fastest_first}
    return dict(sorted(slowest.items(), key=lambda item: item[1]))


def slow_nodes_and_wrong_clocks(reports: Reports) -> Iterator[str]:
    speeds = node_speeds(reports)
    for host, speed in speeds.items():
        share = speed / median(speeds.values())
        if share < SLOW_NODE_SHARE:
            cure = f'leave it out (options = ["--exclude={host}"]), or see what else runs there'
            yield f"{host} computes at {share:.0%} of the median node: {cure}"
    for host, report in _first_by_host(reports).items():
        offset = report.clock_offset_seconds or 0
        if abs(offset) - (report.clock_error_seconds or 0) > LARGEST_CLOCK_OFFSET_SECONDS:
            yield f"the clock of {host} is {offset:+.1f} s off that of worker 0: let NTP set it"


def _first_by_host(reports: Reports) -> dict[str, WorkerReport]:
    by_host: dict[str, WorkerReport] = {}
    for report in reports:
        by_host.setdefault(report.host, report)
    return by_host


def verdict(reports: Reports, workers: int, findings: Findings) -> str:
    """Return one line: whether a study may start with such a launch, or the first fault."""
    if findings.faults:
        more = f" (and {count(len(findings.faults) - 1, 'more fault')})" if findings.faults[1:] else ""
        return f"launch broken: {findings.faults[0]}{more}"
    speeds = node_speeds(reports)
    group = "1 worker" if workers == 1 else f"{workers} workers in 1 group, for torch and for MPI"
    line = f"{group}, on {count(len(speeds), 'node')}"
    if len(speeds) > 1:
        host, speed = next(iter(speeds.items()))
        share = speed / median(speeds.values())
        line += f"; the slowest, {host}, computes at {share:.0%} of the median"
    return line + (f"; {count(len(findings.warnings), 'warning')}" if findings.warnings else "")


def show(console: Console, reports: Reports, workers: int, findings: Findings) -> None:
    """Print the tables of workers and of pairs, then the findings, and the verdict last."""
    if reports:
        console.print(_worker_table(reports))
        versions = ", ".join(f"{name} {version}" for name, version in reports[0].versions.items())
        console.print(f"versions of {reports[0].place}: {versions}", markup=False)
    pairs = [pair for report in reports for pair in report.pairs]
    if pairs:
        console.print(_pair_table(pairs))
    for fault in findings.faults:
        console.print(f"fault: {fault}", markup=False)
    for warning in findings.warnings:
        console.print(f"warning: {warning}", markup=False)
    console.print(f"verdict: {verdict(reports, workers, findings)}", markup=False)


def _worker_table(reports: Reports) -> Table:
    table = _new_table("worker", "host interface address device cores clock GFLOP/s", "came to")
    for report in reports:
        clock = speed = ""
        if report.clock_offset_seconds is not None and report.clock_error_seconds is not None:
            clock = f"{1e3 * report.clock_offset_seconds:+.1f} ± {1e3 * report.clock_error_seconds:.1f} ms"
        if report.operations_per_second is not None:
            speed = f"{report.operations_per_second / 1e9:.1f}"
        table.add_row(
            f"{report.rank} of {report.size}",
            report.host,
            report.interface or "none",
            report.address or "none",
            report.facts.device,
            f"{len(report.facts.cores)} of {report.host_cores}",
            clock,
            speed,
            report.stage,
        )
    return table


def _pair_table(pairs: Sequence[HostPair]) -> Table:
    """Return a row for each pair of hosts, the slowest first."""
    table = _new_table("pair", "over latency MB/s message")
    for pair in sorted(pairs, key=lambda pair: pair.bytes_per_second)[:MOST_PAIRS_SHOWN]:
        table.add_row(
            " - ".join(pair.hosts),
            pair.medium,
            f"{1e6 * pair.minimum_seconds[0]:.1f} µs",
            f"{pair.bytes[-1] / pair.minimum_seconds[-1] / 1e6:.0f}",
            f"{pair.bytes[-1]:,} B",
        )
    more = len(pairs) - MOST_PAIRS_SHOWN
    table.caption = f"{more} faster pairs are left out" if more > 0 else None
    return table


def _new_table(first: str, words: str, *last: str) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column(first)
    for column in (*words.split(), *last):
        table.add_column(column, overflow="fold")
    return table
