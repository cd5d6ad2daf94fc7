"""Show what the workers of a doctor's launch report: a table of them, one of the pairs, and a verdict."""

from collections.abc import Sequence
from statistics import median

from rich import box
from rich.console import Console
from rich.table import Table

from unet_scaling.doctor.findings import Findings, node_speeds
from unet_scaling.doctor.reports import WorkerReport
from unet_scaling.measure.ping_pong import HostPair
from unet_scaling.study.texts import count

# More pairs than these say no more to a reader; the slowest come first.
MOST_PAIRS_SHOWN = 12


def verdict(reports: Sequence[WorkerReport], workers: int, findings: Findings) -> str:
    """Return one line: whether a study may start with such a launch, or the first fault."""
    if findings.faults:
        more = f" (and {count(len(findings.faults) - 1, 'more fault')})" if findings.faults[1:] else ""
        return f"do not train like this: {findings.faults[0]}{more}"
    warned = f"; {count(len(findings.warnings), 'warning')}" if findings.warnings else ""
    alone = "1 worker" if workers == 1 else f"{workers} workers in 1 group, for torch and for MPI"
    return f"{alone}, on {_nodes(node_speeds(reports))}{warned}"


def _nodes(speeds: dict[str, float]) -> str:
    """Return how many nodes there are and, of several, the slowest with its speed."""
    nodes = count(len(speeds), "node")
    if len(speeds) < 2:
        return nodes
    slowest, speed = next(iter(speeds.items()))
    return f"{nodes}; the slowest, {slowest}, computes at {speed / median(speeds.values()):.0%} of the median"


def show(console: Console, reports: Sequence[WorkerReport], workers: int, findings: Findings) -> None:
    """Print the tables, then the findings, and the verdict last."""
    if reports:
        console.print(worker_table(reports))
        versions = ", ".join(f"{name} {version}" for name, version in reports[0].versions.items())
        console.print(f"versions of {reports[0].place}: {versions}", markup=False)
    pairs = [pair for report in reports for pair in report.pairs]
    if pairs:
        console.print(host_pair_table(pairs))
    for kind, sentences in (("fault", findings.faults), ("warning", findings.warnings)):
        for sentence in sentences:
            console.print(f"{kind}: {sentence}", markup=False)
    console.print(f"verdict: {verdict(reports, workers, findings)}", markup=False)


def worker_table(reports: Sequence[WorkerReport]) -> Table:
    """Return a row for each worker."""
    table = _new_table(
        "worker", "host", "interface", "address", "device", "cores", "clock", "GFLOP/s", "came to"
    )
    for report in reports:
        table.add_row(
            f"{report.rank} of {report.size}",
            report.facts.host,
            report.interface or "none",
            report.address or "none",
            report.facts.device,
            f"{len(report.facts.cores)} of {report.host_cores}",
            _clock(report),
            _number(report.operations_per_second, 1e-9, ".1f"),
            report.stage,
        )
    return table


def _clock(report: WorkerReport) -> str:
    """Return the offset of its clock in milliseconds, with how wrong that can be."""
    if report.clock_offset_seconds is None or report.clock_error_seconds is None:
        return ""
    return f"{1e3 * report.clock_offset_seconds:+.1f} ± {1e3 * report.clock_error_seconds:.1f} ms"


def _number(value: float | None, factor: float, form: str) -> str:
    return "" if value is None else f"{value * factor:{form}}"


def host_pair_table(pairs: Sequence[HostPair]) -> Table:
    """Return a row for each pair of hosts, the slowest first."""
    table = _new_table("pair", "over", "latency", "MB/s", "message")
    slowest_first = sorted(pairs, key=lambda pair: pair.bytes_per_second)
    for pair in slowest_first[:MOST_PAIRS_SHOWN]:
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


def _new_table(first: str, *columns: str) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column(first)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
