"""What the reports of a doctor's launch show: faults, with which no study should start, and warnings.

Pure functions of the reports. Each sentence names worker, host or variable, the value found, and the cure.
"""

import math
import re
import signal
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from unet_scaling.doctor.interfaces import GLOO_VARIABLE
from unet_scaling.doctor.pairs import slow_links
from unet_scaling.doctor.reports import WorkerReport
from unet_scaling.group.horovod_controller import WITHOUT_NCCL
from unet_scaling.group.identity import LAUNCHERS, LOOPBACK
from unet_scaling.study.different_versions import different_versions
from unet_scaling.study.shared_devices import shared_devices
from unet_scaling.study.texts import count

# Slower than this share of the median node, it delays every step of all others.
SLOW_NODE_SHARE = 0.8
# Of clocks: what NTP keeps is a hundredth of it.
LARGEST_CLOCK_OFFSET_SECONDS = 1.0
LARGE_MESSAGE_STOPS = (
    "messages of 8 bytes pass and one of 100 kB does not: a switch or tunnel drops packets as large as "
    "the MTU of an interface; compare `ip link` of the hosts, try `ping -M do -s 1472 HOST`"
)
# How Intel MPI, MPICH, Open MPI and srun name the first worker that ended. MPICH names another's process id.
DEATHS = (
    r"RANK (?P<rank>\d+) PID \d+ RUNNING AT (?P<host>\S+)\s+=\s+KILLED BY SIGNAL: (?P<how>\d+)",
    r"PID \d+ RUNNING AT (?P<host>\S+)[^()]*\(signal (?P<how>\d+)\)",
    r"process rank (?P<rank>\d+) with PID \d+ on node (?P<host>\S+) exited on\s+signal (?P<how>\d+)",
    r"srun: error: (?P<host>\S+): tasks? (?P<rank>\d+)[\d,-]*: (?P<how>[^\n]+)",
)
# Of a worker that says itself what went wrong, and of one that its launcher ends.
ORDERLY_ENDS = ("Exited", "Terminated", "15")
MPI_CURE = (
    'let srun speak to MPI (launcher_arguments = ["--mpi=pmi2"]; `srun --mpi=list` shows what it can), '
    "or start with the mpiexec of this MPI"
)


@dataclass(frozen=True)
class Findings:
    """Faults end what would train wrongly or not at all; warnings cost time only."""

    faults: tuple[str, ...]
    warnings: tuple[str, ...]


def launch_findings(
    reports: Sequence[WorkerReport], workers: int, cores_wanted: int | None = None, output: str = ""
) -> Findings:
    """Return what is wrong with a launch of so many workers, the likeliest cause first.

    `cores_wanted` is what the cluster file promises each worker, `output` what the launcher printed.
    """
    died = first_death(reports, workers, output)
    faults = (
        *died,
        *missing_reports(reports, workers),
        *launcher_groups(reports, workers),
        *ranks_told_twice(reports, workers),
        *wrong_interfaces(reports),
        # Those of the survivors follow from it.
        *([] if died else problems(reports)),
        *mpi_groups(reports, workers),
        *other_versions(reports),
        *devices_in_common(reports),
    )
    warnings = (
        *unequal_cores(reports, cores_wanted),
        *unequal_hosts(reports),
        *horovod_without_nccl(reports),
        *slow_links([pair for report in reports for pair in report.pairs]),
        *slow_nodes(reports),
        *wrong_clocks(reports),
    )
    return Findings(faults, warnings)


def first_death(reports: Sequence[WorkerReport], workers: int, output: str) -> list[str]:
    """Find the first worker that a signal ended, in the words of its launcher, which then ends the others."""
    found = next((match for pattern in DEATHS if (match := re.search(pattern, output))), None)
    if found is None or found["how"].startswith(ORDERLY_ENDS) or any(map(_lost_variable, reports)):
        return []
    host = found["host"]
    how = found["how"]
    there = [str(report.rank) for report in reports if report.facts.host == host]
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


def missing_reports(reports: Sequence[WorkerReport], workers: int) -> list[str]:
    if len(reports) >= workers:
        return []
    hosts = ", ".join(sorted({report.facts.host for report in reports})) or "no host"
    return [
        f"{len(reports)} of {workers} workers reported, from {hosts}: the others did not start, or do not "
        f"share the folder of the reports with this machine; see the output of the launch"
    ]


def devices_in_common(reports: Sequence[WorkerReport]) -> list[str]:
    """Find a device or core that two workers own: known of those which joined, and took theirs."""
    shared = shared_devices([report.facts for report in reports if report.joined_workers])
    if not shared:
        return []
    more = f" (and {len(shared) - 1} more)" if shared[1:] else ""
    return [
        f"{shared[0]}{more}: give each worker its own, or set training.shared_devices = true in the study"
    ]


def launcher_groups(reports: Sequence[WorkerReport], workers: int) -> list[str]:
    """Find workers that the launcher did not tell that they belong together: N groups of 1 train N models."""
    alone = [report for report in reports if report.size != workers]
    if not alone:
        return []
    sizes = Counter(report.size for report in alone)
    groups = " and ".join(_groups(size, number) for size, number in sizes.items())
    return [f"{groups} instead of 1 group of {workers}: {_why_alone(alone[0])}"]


def _groups(size: int, reported: int) -> str:
    """Return "2 groups of 1"; of a group that reported in part, it is one all the same."""
    return f"{count(math.ceil(reported / size), 'group')} of {size}"


def ranks_told_twice(reports: Sequence[WorkerReport], workers: int) -> list[str]:
    """Find workers with the rank of another: several groups, each as large as the one asked for."""
    told = [report for report in reports if report.size == workers]
    by_rank: dict[int, list[WorkerReport]] = defaultdict(list)
    for report in told:
        by_rank[report.rank].append(report)
    twice = next((same for same in by_rank.values() if len(same) > 1), None)
    if twice is None:
        return []
    hosts = " and ".join(report.facts.host for report in twice[:2])
    return [
        f"{len(told)} workers reported, {workers} were asked for, and two are worker {twice[0].rank} "
        f"(on {hosts}): the launcher starts several groups; let it start one task for each worker"
    ]


def _why_alone(report: WorkerReport) -> str:
    """Return which variable is missing, or what a worker needs."""
    wanted = " or ".join(f"{launcher.rank} and {launcher.size}" for launcher in LAUNCHERS)
    return _lost_variable(report) or (
        f"the launcher set {_told(report)} on {report.facts.host}, a worker needs {wanted}; "
        f"use srun or mpiexec"
    )


def _lost_variable(report: WorkerReport) -> str:
    """Name the variable of a launcher that set the other one of rank and size; empty where none is lost."""
    pairs = [{launcher.rank, launcher.size} for launcher in LAUNCHERS]
    told = {name for pair in pairs if pair <= report.launcher_variables.keys() for name in pair}
    for pair in pairs:
        lost = pair - report.launcher_variables.keys()
        if len(lost) == 1 and not pair & told:
            return (
                f"{lost.pop()} is not set on {report.facts.host}, with {_told(report)}; "
                f"do not unset it between launcher and worker"
            )
    return ""


def _told(report: WorkerReport) -> str:
    return ", ".join(f"{name}={value}" for name, value in report.launcher_variables.items()) or "none"


def wrong_interfaces(reports: Sequence[WorkerReport]) -> list[str]:
    """Find interfaces that do not exist, or that no other host can reach."""
    several = len({report.facts.host for report in reports}) > 1
    sentences = []
    for host, report in _first_by_host(reports).items():
        known = ", ".join(f"{name} ({address})" for name, address in report.addresses.items())
        if report.interface and not report.address:
            sentences.append(
                f"{GLOO_VARIABLE}={report.interface}: {host} has no such interface with an address; "
                f"it has {known}"
            )
        elif several and (report.address or "127.").startswith(LOOPBACK):
            sentences.append(f"{host} would talk over {_loopback(report)}; it has {known}")
    return sentences


def _loopback(report: WorkerReport) -> str:
    if report.interface != "lo" or report.own_address.startswith(LOOPBACK):
        resolved = report.own_address or "nothing"
        return (
            f"its loopback, which no other host reaches, since its own name resolves to {resolved}: "
            f"set {GLOO_VARIABLE} in [environment] of the cluster file"
        )
    return f"its loopback, which no other host reaches: change {GLOO_VARIABLE}={report.interface}"


def problems(reports: Sequence[WorkerReport]) -> list[str]:
    """Return why workers got no further, each text once with the first worker that says so."""
    first: dict[str, WorkerReport] = {}
    for report in reports:
        if report.problem:
            first.setdefault(report.problem, report)
    told = [
        problem if problem.startswith("worker ") else f"{report.place}: {problem}"
        for problem, report in first.items()
    ]
    small = [report for report in reports if report.stage == "exchanged small messages"]
    if small:
        own = next((report for report in small if report.problem), small[0])
        told.insert(0, f"{own.place}: {LARGE_MESSAGE_STOPS}")
    silent = [report for report in reports if not report.problem and report.stage != "finished"]
    # Nobody says why: a library ended the process itself, or kept it from saying so.
    return told or [_silent_end(report) for report in silent[:1]]


def _silent_end(report: WorkerReport) -> str:
    step = "MPI did not start" if report.stage == "measured" else f"it ended after it {report.stage}"
    return f"{report.place}: {step}; {_lost_variable(report) or 'see the output of the launch'}"


def mpi_groups(reports: Sequence[WorkerReport], workers: int) -> list[str]:
    """Find workers that MPI, and Horovod with it, does not take for one group."""
    sizes = Counter(report.mpi_workers for report in reports if report.mpi_workers not in (None, workers))
    if not sizes:
        return []
    size, number = next((size, number) for size, number in sizes.items() if size is not None)
    launcher = next(report.launcher for report in reports if report.mpi_workers == size)
    groups = f"{_groups(size, number)} instead of 1 group of {workers}"
    return [f"MPI, and so Horovod, makes {groups} (launcher: {launcher}): {MPI_CURE}"]


def other_versions(reports: Sequence[WorkerReport]) -> list[str]:
    """Return each version that is not the same everywhere; nodes may differ in their driver."""
    numbered = [report.facts.model_copy(update={"worker": number}) for number, report in enumerate(reports)]
    versions = [
        {name: version for name, version in report.versions.items() if name != "driver"} for report in reports
    ]
    return [
        f"{text}: load the same environment on every node" for text in different_versions(numbered, versions)
    ]


def unequal_cores(reports: Sequence[WorkerReport], wanted: int | None) -> list[str]:
    """Find workers with fewer cores than others, or than the cluster file promises."""
    cores = {report.place: len(report.facts.cores) for report in reports}
    most = max([*cores.values(), wanted or 0], default=0)
    fewer = [f"{place} has {count(number, 'core')}" for place, number in cores.items() if number < most]
    if not fewer:
        return []
    promised = f"the cluster file says {wanted}" if most == wanted else f"others have {most}"
    return [f"{', '.join(fewer)}; {promised}: ask for equal nodes, or lower cores_per_worker"]


def unequal_hosts(reports: Sequence[WorkerReport]) -> list[str]:
    """Find hosts with fewer cores than others."""
    cores = {host: report.host_cores for host, report in _first_by_host(reports).items()}
    most = max(cores.values(), default=0)
    smaller = [f"{host} is a host of {count(n, 'core')}" for host, n in cores.items() if n < most]
    return [f"{', '.join(smaller)}; others have {most}: ask for equal nodes"] if smaller else []


def horovod_without_nccl(reports: Sequence[WorkerReport]) -> list[str]:
    on_gpus = [report for report in reports if report.facts.device_uuid and report.horovod_built]
    lacking = [report.place for report in on_gpus if "NCCL" not in report.horovod_built]
    return [f"{place}: {WITHOUT_NCCL}" for place in lacking[:1]]


def node_speeds(reports: Iterable[WorkerReport]) -> dict[str, float]:
    """Return the operations per second of each host's slowest worker, slowest host first."""
    by_host: dict[str, list[float]] = defaultdict(list)
    for report in reports:
        if report.operations_per_second is not None:
            by_host[report.facts.host].append(report.operations_per_second)
    slowest = {host: min(speeds) for host, speeds in by_host.items()}
    return dict(sorted(slowest.items(), key=lambda item: item[1]))


def slow_nodes(reports: Sequence[WorkerReport]) -> list[str]:
    speeds = node_speeds(reports)
    if len(speeds) < 2:
        return []
    typical = median(speeds.values())
    return [
        f"{host} computes at {speed / typical:.0%} of the median node: every step would wait for it; "
        f'leave it out (options = ["--exclude={host}"]), or see what else runs there'
        for host, speed in speeds.items()
        if speed < SLOW_NODE_SHARE * typical
    ]


def wrong_clocks(reports: Sequence[WorkerReport]) -> list[str]:
    return [
        f"the clock of {report.facts.host} is {report.clock_offset_seconds:+.1f} s off that of worker 0: "
        f"let NTP set it, or times in logs cannot be compared"
        for report in _first_by_host(reports).values()
        if abs(report.clock_offset_seconds or 0) - (report.clock_error_seconds or 0)
        > LARGEST_CLOCK_OFFSET_SECONDS
    ]


def _first_by_host(reports: Sequence[WorkerReport]) -> dict[str, WorkerReport]:
    by_host: dict[str, WorkerReport] = {}
    for report in reports:
        by_host.setdefault(report.facts.host, report)
    return by_host
